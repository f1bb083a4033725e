// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace moesim {

/// Every key of a report, a line each of at most 100 columns: its JSON pointer (* is any key or
/// place of a list, ** any number of them), unit and meaning.
std::string report_keys_text();

}  // namespace moesim
