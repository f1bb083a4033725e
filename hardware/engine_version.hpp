// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <string>
#include <string_view>

namespace moesim {

/// An engine or a library beneath it, e.g. {"vllm", "0.19.0"}, {"nccl", "2.29.2"}.
struct EngineVersion {
  std::string name, version;
};

/// Engine and version in the name of a folder: "vllm-0.19.0".
EngineVersion engine_named(std::string_view folder);
/// "1.3.0rc10" is 1, 3, 0, 10.
std::array<int, 4> numbers_of(std::string_view version);
/// How far two versions are apart. Numbers count more the further to the left they stand.
double distance(std::string_view one_version, std::string_view other_version);

}  // namespace moesim
