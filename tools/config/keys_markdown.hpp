// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "hardware/config.hpp"

namespace moesim {

/// All keys as one page of Markdown, by section: the keys of an experiment under their JSON
/// pointers, the options of every policy, the keys of a sweep, and the keys of a report.
std::string keys_markdown(const PolicyRows&);

}  // namespace moesim
