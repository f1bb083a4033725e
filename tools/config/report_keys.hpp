// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace moesim {

/// Every key of a report, a line each of at most 100 columns where its pointer allows: its JSON
/// pointer as report_keys() has it, unit and meaning.
std::string report_keys_text();

}  // namespace moesim
