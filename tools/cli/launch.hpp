// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "sim/engines/serving_engine.hpp"
#include "sim/experiment/spec.hpp"
#include "tools/cli/option_checks.hpp"

namespace moesim {

/// Commands that start a deployment on an engine (a row of serving_engines()), what joins its
/// servers, and the experiment's load on it. Then a comment for each thing that the experiment has
/// and the commands have not. Names and paths are quoted for the shell. Throws ConfigError for a
/// name with hidden characters.
std::string launch_text(const std::string& engine, const ExperimentSpec&);

/// A file of a deployment.
struct LaunchFile {
  std::string name, text;
};

/// Files with these commands: all of them, and a script for each server of one node, for the router
/// and for the benchmark. Each of these servers has a manifest of Kubernetes too, in JSON: a
/// Deployment, and the Service by which others find the server.
std::vector<LaunchFile> launch_files(const std::string& engine, const ExperimentSpec&);

/// The option --launch. Verbs with a result of their own print the commands behind it.
inline void add_launch_option(CLI::App& command, std::string& engine) {
  const std::vector<std::string> names(engine_names().begin(), engine_names().end());
  const std::string texts = fmt::format("{}", fmt::join(names, ", "));
  option(command, "--launch", engine,
         "print an engine's own commands for it, and its benchmark's: " + texts,
         CLI::IsMember(names));
}

}  // namespace moesim
