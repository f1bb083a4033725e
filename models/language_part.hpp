// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "hardware/config.hpp"

namespace moesim {

/// Returns the language model of a HuggingFace config.json: "text_config" or its like, or the whole
/// file.
ConfigNode language_part(ConfigNode);

}  // namespace moesim
