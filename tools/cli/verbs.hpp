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

/// Adds the options of a verb to its subcommand; the action reads what they hold.
using Setup = Action(CLI::App& command);
/// A verb of the command line.
struct Verb {
  std::string_view name;
  std::string_view summary;
  Setup* setup;
};

// The verbs of moesim. One file each: verb_NAME.cpp.
Setup setup_run, setup_plan, setup_sweep, setup_pareto, setup_compare, setup_report, setup_tune,
    setup_replay, setup_bench, setup_place, setup_explain, setup_price, setup_what_if, setup_trace,
    setup_list, setup_keys, setup_check, setup_completion;

}  // namespace moesim
