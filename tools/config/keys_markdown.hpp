// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "hardware/config.hpp"

namespace moesim {

/// Page of the keys of experiments by level, then the options of every policy and the keys of a
/// sweep.
std::string keys_markdown(const PolicyRows&);
/// Page of the keys of a report.
std::string report_keys_markdown();

}  // namespace moesim
