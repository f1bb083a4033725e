// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "hardware/config.hpp"

namespace moesim {

/// A decision of a token router, explained: what each GPU serves of the tokens in `tokens_file`. It
/// has {"tokens": [layers][experts]} or {"topk_ids": [layers][tokens][k], "source_rank": [tokens]},
/// under the placement in `placement_file`. Tables, or JSON. Throws ConfigError if the files do not
/// fit each other or the policy.
std::string routed_tokens(const ConfigNode& policy, const std::string& placement_file, int gpus,
                          const std::string& tokens_file, bool json);

}  // namespace moesim
