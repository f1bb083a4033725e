// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string_view>

#include <CLI/CLI.hpp>

namespace moesim {

/// Action of a verb once the command line is parsed. Returns the exit code: 0 done, 3 an asked-for
/// limit not met. Throws ConfigError for bad input (exit 2).
using Action = std::function<int()>;
inline constexpr int exit_limit_not_met = 3;

/// A verb of the command line. `setup` adds its options to its subcommand; the action reads what
/// they hold.
struct Verb {
  std::string_view name;
  std::string_view summary;
  Action (*setup)(CLI::App& command);
};

// The verbs of moesim. One file each: verb_NAME.cpp.
Action setup_run(CLI::App&);
Action setup_plan(CLI::App&);
Action setup_sweep(CLI::App&);
Action setup_pareto(CLI::App&);
Action setup_compare(CLI::App&);
Action setup_report(CLI::App&);
Action setup_tune(CLI::App&);
Action setup_replay(CLI::App&);
Action setup_bench(CLI::App&);
Action setup_place(CLI::App&);
Action setup_explain(CLI::App&);
Action setup_price(CLI::App&);
Action setup_what_if(CLI::App&);
Action setup_trace(CLI::App&);
Action setup_list(CLI::App&);
Action setup_keys(CLI::App&);
Action setup_check(CLI::App&);
Action setup_completion(CLI::App&);

}  // namespace moesim
