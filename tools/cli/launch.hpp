// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include <CLI/CLI.hpp>

#include "sim/experiment/engine.hpp"
#include "sim/experiment/spec.hpp"

namespace moesim {

/// The commands that start a deployment on an engine ("vllm", "sglang", "trtllm"), what joins its
/// servers, and the experiment's load on it; then a comment for each thing the experiment has and
/// the commands have not. Names and paths are quoted for the shell. Throws ConfigError for a name
/// with hidden characters.
std::string launch_text(const std::string& engine, const ExperimentSpec&);

/// engine_names(), as an option's check takes them.
inline std::vector<std::string> names_of_engines() {
  return {engine_names().begin(), engine_names().end()};
}

/// The option --launch.
inline void add_launch_option(CLI::App& command, std::string& engine) {
  command
      .add_option(
          "--launch", engine,
          "print an engine's own commands for it, and its benchmark's: vllm, sglang, trtllm")
      ->check(CLI::IsMember(names_of_engines()));
}

}  // namespace moesim
