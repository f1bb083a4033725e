// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <span>
#include <string_view>
#include <vector>

#include "hardware/units.hpp"
#include "models/operations.hpp"

namespace moesim {

/// Stages that serve the micro-batches of a step where attention and experts have GPUs of their own
/// (AFD). Each serves one micro-batch at a time.
enum class AfdStage { attention, dispatch, ffn, combine };
inline constexpr std::array<std::string_view, 4> afd_stage_names{"attention", "dispatch", "ffn",
                                                                 "combine"};

/// Returns where a part of a step is done. All but experts and exchanges is on attention's GPUs,
/// dense layers, shared experts, gate and LM head included.
AfdStage afd_stage_of(Part);

/// A MoE layer of a micro-batch: times on either side and on the ways between.
struct AfdRound {
  Seconds attention{};  ///< on attention's GPUs until tokens leave; the slowest rank's
  Seconds beside{};     ///< on attention's GPUs while these tokens are away
  Seconds dispatch{};
  Seconds ffn{};  ///< on the experts' GPUs; the slowest rank's
  Seconds combine{};
};

/// The MoE layers of a micro-batch in order, and what attention's GPUs do after the last one. Dense
/// layers are part of the next round's `attention`.
struct AfdChain {
  std::vector<AfdRound> rounds;
  Seconds tail{};
};

/// When micro-batches have passed all layers.
struct AfdTimes {
  Seconds total{};
  /// Time that each stage works; the rest of `total` it is idle.
  std::array<Seconds, 4> busy{};
  /// Time of each stage on the critical path; with `stalls` the sum is `total`.
  std::array<Seconds, 4> critical{};
  /// Between steps, while experts move and no stage works.
  Seconds stalls{};
  Seconds busy_of(AfdStage stage) const { return busy[at(stage)]; }
  Seconds critical_of(AfdStage stage) const { return critical[at(stage)]; }
  /// What comes after the other.
  AfdTimes& operator+=(const AfdTimes& more) {
    total += more.total;
    stalls += more.stalls;
    for (std::size_t stage = 0; stage < busy.size(); ++stage) {
      busy[stage] += more.busy[stage];
      critical[stage] += more.critical[stage];
    }
    return *this;
  }
};

/// Passes micro-batches with equally many rounds through the four stages, layer by layer and,
/// within a layer, in their order. A micro-batch starts on a stage when it has left the stage
/// before and the stage is free. Its next layer starts when its combine has ended (MegaScale-Infer,
/// arXiv:2504.02263, section 4.1; Step-3, arXiv:2507.19427). Where both end at the same time, the
/// critical path stays with the micro-batch.
AfdTimes pass_afd(std::span<const AfdChain> micro_batches);

}  // namespace moesim
