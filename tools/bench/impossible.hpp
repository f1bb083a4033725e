// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

#include "hardware/gpu.hpp"
#include "models/moe_model.hpp"
#include "tools/bench/validation.hpp"

namespace moesim {

/// Reason why the deployment of a serving point cannot have been so fast, by data sheets alone.
/// Prompts' arithmetic is at the highest peak of all its GPUs, a token's active weights come from
/// all HBM at once. Empty where it can. Prompts that a cache may hold, or drafts that a row does
/// not tell, are such labels.
std::string_view why_impossible(const MeasuredPoint&, const MoeModel&, const GpuSpec&,
                                double bytes_per_weight);

/// Skips the TPOT of two requests in flight that is more than five times that of one, all else
/// equal. Then something else than the deployment was slow.
void skip_jumps(std::vector<ValidatedPoint>&);

}  // namespace moesim
