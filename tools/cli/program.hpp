// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "tools/cli/verbs.hpp"

namespace moesim {

/// Verbs that answer one kind of question.
struct VerbGroup {
  std::string_view heading;
  std::span<const Verb> verbs;
};

/// A program: `moesim` for its users, `moesim-lab` for those who fit and judge the model.
struct Program {
  std::string_view name, about;
  std::span<const VerbGroup> groups;
};

/// The program for users, with all its verbs.
const Program& moesim_program();

/// Runs the verb that the words name, the first of which is the program's name, and returns its
/// exit code. Throws ConfigError where a word or an input is wrong.
int run_verb(const Program&, std::vector<char*> words);

/// Parses the command line, runs the verb and returns the exit code. Prints each error as one line.
int run_command_line(const Program&, int argc, char** argv);

}  // namespace moesim
