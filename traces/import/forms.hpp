// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>

#include "hardware/config.hpp"
#include "traces/import/import.hpp"

namespace moesim {

// Readers of the rows of import_forms(), each in a file of its own.
void read_vllm_recording(std::span<const std::filesystem::path>, TraceBuilder&);
void read_sglang_recording(std::span<const std::filesystem::path>, TraceBuilder&);
void read_trtllm_recording(std::span<const std::filesystem::path>, TraceBuilder&);
void read_hf_logits(std::span<const std::filesystem::path>, TraceBuilder&);
void read_jsonl_recording(std::span<const std::filesystem::path>, TraceBuilder&);
void read_npz_recording(std::span<const std::filesystem::path>, TraceBuilder&);

/// Adds an .npy file of ids [tokens, layers, k] as one request.
void add_npy_request(const std::filesystem::path&, TraceBuilder&);
/// The requests of one .npz file.
void add_npz_request(const std::filesystem::path&, TraceBuilder&);
/// True if a file is JSON or lines of it, by its name.
bool is_json_file(const std::filesystem::path&);
/// Calls fn(place, value) for the value in a .json file, or for each element if it is a list, and
/// for each line of a .jsonl file.
void for_each_json(const std::filesystem::path& file,
                   const std::function<void(const std::string& place, const Json&)>& fn);
/// Adds the responses of vLLM or SGLang in a file, alone or in lines of a batch. Every
/// "routed_experts" is a request: base64 of an .npy file or of bare int32 [tokens, layers, k], or
/// lists of these. Failed responses are left out with a remark. `advice` says how to ask for them.
void add_responses(const std::filesystem::path&, std::string_view advice, TraceBuilder&);
/// Adds the requests of one response, and returns their number.
std::size_t add_response(const std::string& place, const Json& response, TraceBuilder&);

/// Rows behind others of the same layers, `ahead` of no shape being none. Throws ConfigError.
Array joined(const std::string& place, Array ahead, const Array& ids);

/// The bytes that base64 stands for. Throws ConfigError.
std::string from_base64(const std::string& place, std::string_view text);
/// Numbers within texts are compared as numbers: "layer 2" comes before "layer 10".
bool natural_less(std::string_view, std::string_view);

/// Throws ConfigError: "place: what".
[[noreturn]] void refuse(const std::string& place, const std::string& what);
/// A file that a form has no reader for.
[[noreturn]] void refuse_file(const std::filesystem::path&, std::string_view expected);

}  // namespace moesim
