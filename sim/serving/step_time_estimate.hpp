// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "sim/experiment/deployment.hpp"

namespace moesim {

/// Prices steps of this experiment as it starts, for schedulers that plan by time. Steps have 1, 2,
/// 4, .. decodes on every rank, up to max_num_seqs, taken at random from its trace. If the
/// scheduler asks for them, steps of 1, 2, 4, .. prompt tokens as well.
StepPrice price_steps(const Deployment&);

/// Time of a prompt token in a step of nothing but prompts that has max_num_batched_tokens on every
/// rank, each at the beginning of one prompt.
Seconds prompt_token_time(const Deployment&);

}  // namespace moesim
