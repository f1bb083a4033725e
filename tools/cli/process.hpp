// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace moesim {

/// Runs a program, found on PATH, to its end and answers what it wrote to stdout; its stderr is
/// ours. Throws ConfigError if it is not there, with what to do about it (`advice`), or if it
/// fails.
std::string run_program(const std::vector<std::string>& command, std::string_view advice);

}  // namespace moesim
