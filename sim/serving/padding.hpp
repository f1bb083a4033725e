// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>

#include "sim/experiment/deployment.hpp"
#include "sim/step/step_record.hpp"

namespace moesim {

/// Pads the ranks of a step of a kind as the engine does. The padding computes, in experts too, by
/// the choices of the tokens beside it. Nothing of it is counted or sent.
inline void pad(const Deployment& deployment, StepKind kind, StepBatch& batch) {
  std::int32_t rows = 0;
  for (const RankStep& rank : batch.ranks) rows = std::max(rows, rank.tokens);
  if (kind == StepKind::decode) {
    // With CUDA graphs all ranks compute the captured size that holds the largest rank.
    const std::vector<std::int32_t>& sizes = deployment.graph_sizes;
    const auto size = std::lower_bound(sizes.begin(), sizes.end(), rows);
    if (size == sizes.end()) return;
    rows = *size;
  } else if (!deployment.prefill_alignment.pads) {
    return;  // else made-up tokens stand for those that a rank has less than another
  }
  for (RankStep& rank : batch.ranks) {
    if (rank.tokens > 0) rank.padding = rows - rank.tokens;
  }
}

}  // namespace moesim
