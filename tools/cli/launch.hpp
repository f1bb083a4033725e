// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string>

#include <CLI/CLI.hpp>

#include "hardware/config.hpp"
#include "sim/experiment/engine.hpp"

namespace moesim {

/// The commands that start a deployment on an engine ("vllm", "sglang", "trtllm") and put the
/// experiment's load on it, and a line for each thing the experiment has that the engine cannot be
/// told. `config` is an experiment, as written or resolved; paths in it go by the folder of `file`.
std::string launch_text(const std::string& engine, const Json& config,
                        const std::filesystem::path& file);

/// engine_names(), as an option's check takes them.
inline std::vector<std::string> names_of_engines() {
  return {engine_names().begin(), engine_names().end()};
}

/// The option --launch.
inline void add_launch_option(CLI::App& command, std::string& engine) {
  command
      .add_option("--launch", engine,
                  "print an engine's own command for it, and its benchmark's: vllm, sglang, trtllm")
      ->check(CLI::IsMember(names_of_engines()));
}

}  // namespace moesim
