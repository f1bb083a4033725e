// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string>

#include "hardware/config.hpp"
#include "tests/catch.hpp"

namespace moesim::test {

using Catch::Matchers::WithinAbs;
using Catch::Matchers::WithinRel;

/// The root of the source tree.
std::filesystem::path source_dir();

/// Data that stands beside the project and is never copied into it. Tests that need it skip visibly
/// without it:
///   if (!has_shared()) { WARN("skipped: ../shared is absent"); return; }
inline std::filesystem::path shared_dir() { return source_dir() / ".." / "shared"; }
inline bool has_shared() { return std::filesystem::exists(shared_dir() / "data"); }

/// A config written in a test.
inline ConfigNode config(const std::string& text) {
  return ConfigNode(Json::parse(text), source_dir() / "tests" / "inline.json");
}

/// A GPU file to be written into a config: its data sheet and fitted constants, without the folders
/// beside it that it names.
inline Json bare_gpu(const std::filesystem::path& file) {
  Json gpu = ConfigNode::from_file(file).json();
  gpu.erase("profiles");
  gpu.erase("sibling");
  return gpu;
}

/// The message of the ConfigError that fn throws, or "" when it throws none.
template <class Fn>
std::string config_error(Fn&& fn) {
  try {
    fn();
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

}  // namespace moesim::test
