// SPDX-License-Identifier: Apache-2.0
// vLLM's --enable-return-routed-experts: CompletionOutput.routed_experts is an array [tokens - 1,
// layers, k] of the prompt and of what was generated but for its last token, u1 or u2, dense layers
// among them as zeros; its HTTP answers carry it as base64 of an .npy file.
#include "hardware/config.hpp"
#include "traces/import/forms.hpp"

namespace moesim {

void read_vllm_recording(std::span<const std::filesystem::path> files, TraceBuilder& builder) {
  for (const std::filesystem::path& file : files) {
    if (file.extension() == ".npy") {
      add_npy_request(file, builder);
    } else if (file.extension() == ".npz") {
      add_npz_request(file, builder);
    } else if (is_json_file(file)) {
      add_responses(file, "vLLM's --enable-return-routed-experts", builder);
    } else {
      refuse_file(file, "routed experts of vLLM: .npy, .npz, or responses as .json or .jsonl");
    }
  }
}

}  // namespace moesim
