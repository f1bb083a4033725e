// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace moesim {

/// The version of moesim and 16 hex digits of what its program file holds: "0.1.0 (a1b2..)".
/// Another build, even of the same version, may give other numbers.
std::string this_build();

}  // namespace moesim
