// SPDX-License-Identifier: Apache-2.0
// Arrays as numpy saves them, a file for each request: .npy of ids, or .npz of ids and of what
// belongs to them.
#include <array>

#include <fmt/format.h>

#include "hardware/config.hpp"
#include "traces/import/forms.hpp"
#include "traces/import/zip_archive.hpp"
#include "traces/npy.hpp"

namespace moesim {

void add_npy_request(const std::filesystem::path& file, TraceBuilder& builder) {
  builder.add({.place = file.string(), .ids = array_of(NpyArray::open(file))});
}

void add_npz_request(const std::filesystem::path& file, TraceBuilder& builder) {
  constexpr std::array<std::string_view, 4> names{"routed_experts.npy", "topk_ids.npy",
                                                  "topk_experts.npy", "data.npy"};
  const ZipArchive zip(file);
  const auto array = [&](std::string_view name) {
    return NpyArray::parse(zip.read(name), fmt::format("{}:{}", file.string(), name));
  };
  const auto found = std::find_if(names.begin(), names.end(),
                                  [&](std::string_view name) { return zip.has(name); });
  if (found == names.end())
    throw ConfigError(
        "{}: has no array routed_experts or topk_ids of shape [tokens, layers, experts per token]",
        file.string());
  // vLLM's split of a request (split_routed_experts): rows of the prompt, and of what followed.
  const bool apart = zip.has("prompt_routed_experts.npy");
  Array ahead;
  if (apart) ahead = array_of(array("prompt_routed_experts.npy"));
  RecordedRequest request{.place = file.string()};
  if (apart)
    request.prompt_rows = ahead.shape.empty() ? 0 : ahead.extent(0);
  else if (zip.has("prompt_token_ids.npy"))
    request.prompt_rows = array("prompt_token_ids.npy").elements();
  request.ids = joined(file.string(), std::move(ahead), array_of(array(*found)));
  builder.add(request);
}

void read_npz_recording(std::span<const std::filesystem::path> files, TraceBuilder& builder) {
  for (const std::filesystem::path& file : files) {
    if (file.extension() != ".npz") refuse_file(file, "an .npz file of one request");
    add_npz_request(file, builder);
  }
}

}  // namespace moesim
