// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "sim/report/fields.hpp"

namespace moesim {

/// Line of a key of a report: JSON pointer, unit and meaning, in at most 100 columns.
std::string report_line(const ReportKey&);
/// Lines of all keys of a report. Repeated groups are one line.
std::string report_keys_text();

}  // namespace moesim
