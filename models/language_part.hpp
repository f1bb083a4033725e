// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "hardware/config.hpp"

namespace moesim {

/// Where a HuggingFace config.json keeps its language model: "text_config" or its like, or the
/// whole file.
ConfigNode language_part(ConfigNode);

}  // namespace moesim
