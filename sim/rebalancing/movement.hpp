// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <span>
#include <string_view>
#include <vector>

#include "hardware/fabric.hpp"
#include "models/memory.hpp"
#include "sim/placement/placement.hpp"

namespace moesim {

/// Whose copy fills a slot. An engine's rule [SGLang, vLLM]:
///   sglang: a copy on the same GPU; else one in the same NVLink domain; else any; sources are
///           shared evenly over destinations in chunks (expert_location_updater.py)
///   vllm:   a copy on the same GPU, and experts that stay on a GPU keep their slot; else any: each
///           holder serves floor(R/S) receivers in a row, remaining receiver j takes sender j
///           (rebalance_execute.py)
enum class SourceRule { sglang, vllm };
inline constexpr std::array<std::string_view, 2> source_rule_names{"sglang", "vllm"};

/// How many slots' weights of one layer travel. `sent` counts slots between EP ranks, [from, to].
struct LayerMovement {
  TrafficMatrix sent;
  std::vector<int> copied;    ///< slots filled from another slot of the same rank, [ranks]
  std::vector<int> reloaded;  ///< slots for which no rank has a copy, [ranks]
};

/// Sources of `to`'s weights when a layer is placed as `from`. Ranks that are not `live` give
/// nothing (empty: all are). `ranks_per_domain` are neighbours on NVLink. Equal maps move nothing.
LayerMovement movement(const LayerPlacement& from, const LayerPlacement& to, SourceRule,
                       int ranks_per_domain, std::span<const char> live = {});

/// Returns `to` with experts that stay on their GPU in the slots that they have in `from`.
/// Newcomers take the slots that are left, in their order.
LayerPlacement keep_slots(const LayerPlacement& from, const LayerPlacement& to);

/// Cost of moving one layer while nothing else uses the links. Bytes are summed over all GPUs.
struct MoveCost {
  Seconds time{};                      ///< on the links and into place
  Resource bound = Resource::latency;  ///< of the longer part
  Bytes nvlink{}, network{};
  Bytes copied{};               ///< within a GPU
  std::vector<Bytes> reloaded;  ///< from outside the group, by EP rank; their time is not in `time`
};

/// Prices movements of one deployment:
///   time = all-to-all of the bytes per pair + 2 (received + copied) / HBM bandwidth of the busiest
/// because what arrives lands in a buffer and is copied into its slot: read once, written once.
class Mover {
 public:
  Mover(const ClusterSpec&, const ParallelPlan&, Bytes expert, SourceRule);

  MoveCost cost(const LayerPlacement& from, const LayerPlacement& to,
                std::span<const char> live = {}) const;
  /// `to` as the engine of this rule would lay it out: same experts on every GPU.
  LayerPlacement arranged(const LayerPlacement& from, LayerPlacement to) const;
  Bytes expert() const { return expert_; }

 private:
  Fabric fabric_;
  int gpus_, first_gpu_, moe_tp_;
  Bytes expert_;  ///< one slot's weights on one GPU
  SourceRule rule_;
};

}  // namespace moesim
