// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <vector>

#include "sim/step/step_cost.hpp"

namespace moesim {

/// Places at which micro-batches may divide a step.
enum class Cut { anywhere, between_sequences };
/// A step's sequences in `count` parts of nearly equal tokens on every rank, the first at most one
/// larger. A prompt chunk may be cut; its later pieces then have the earlier in their context. Cut
/// between sequences, a part ends with the chunk in which it would. A rank with fewer tokens or
/// chunks than parts has none in some.
std::vector<StepBatch> micro_batches(const StepBatch&, int count, Cut = Cut::anywhere);

/// Adds `other` to `sum`: two micro-batches that share a compute and a link stream, as one step.
/// All computing is on the critical path. Of exchanges, what remains of the total is exposed:
/// dispatch, combine and all-reduce in proportion to their times. Kernels and SMs that they hold
/// are included.
void join_interleaved(StepCost& sum, const StepCost& other);

/// Returns micro-batches that alternate between attention's GPUs and those of the experts as one
/// step, which takes pass_afd() of their chains. Parts are shares of the critical path. Attention's
/// and all others are in proportion to their times on attention's GPUs, experts, dispatch and
/// combine to their own. What is not on that path is hidden. GPUs are idle while their side is.
StepCost join_afd(std::span<const StepCost> micro_batches, const ParallelPlan&);

/// Returns the time in which micro-batches pass a pipeline once, round after round in the same
/// order. A stage serves one at a time. A micro-batch starts its next round when it has left the
/// last stage. Micro-batch m takes stages[m][s] on stage s, and hops[m][s] on its way from there
/// (from the last stage: back to the first). Mean of the rounds of the steady state.
Seconds pipeline_period(std::span<const std::vector<Seconds>> stages,
                        std::span<const std::vector<Seconds>> hops);

/// The time of the first of these rounds, before which every stage is idle.
Seconds first_round(std::span<const std::vector<Seconds>> stages,
                    std::span<const std::vector<Seconds>> hops);

/// Returns a round of a pipeline as one step that takes pipeline_period(), or first_round(). Parts
/// are what a stage spends in the mean. Part::pipeline is the rest of the round: transfers between
/// stages and waiting for other stages. hops[m][s] as above, without the host's time of each
/// micro-batch. Layers are sums: an expert that two micro-batches activate is read twice, hence
/// counted twice.
StepCost join_pipeline(std::span<const StepCost> micro_batches,
                       std::span<const std::vector<CollectiveCost>> hops, const ParallelPlan&,
                       bool first);

}  // namespace moesim
