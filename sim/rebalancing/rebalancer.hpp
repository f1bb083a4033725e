// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include "hardware/registry.hpp"
#include "sim/rebalancing/movement.hpp"
#include "sim/token_routing/token_routing.hpp"
#include "traces/trace_rows.hpp"

namespace moesim {

/// New maps for some layers, and how they come about.
struct RebalancePlan {
  struct Change {
    int layer;
    LayerPlacement placement;
  };
  std::vector<Change> changes;  ///< in the order in which weights travel; none: not worth moving
  bool synchronous = true;      ///< the engine stands still meanwhile; else steps go on beside
  int layers_per_chunk = 0;     ///< moved between two steps when synchronous; 0 = all
  Seconds planning{};           ///< before the first weights leave
  /// Tokens of the fullest rank over the mean rank's, mean over all layers, by what was seen.
  double imbalance_before = 1, imbalance_after = 1;
};

/// A step that was computed and is about to end.
struct StepSeen {
  std::int64_t step = 0;                 ///< 0, 1, ...
  Time now{};                            ///< when it ends
  std::span<const std::int32_t> tokens;  ///< [MoE layers, experts], without dummy tokens
  /// Sources of the tokens: rows of the traces, whose `rank` is a DP rank, and the request that
  /// each range is of; no_request for a dummy.
  std::span<const RowRange> ranges;
  std::span<const std::uint32_t> request_of_range;
  static constexpr std::uint32_t no_request = 0xffffffff;
  const RowSource& rows;
  const ExpertPlacement& placement;  ///< as it stands
  std::span<const char> live;        ///< by EP rank
  bool moving = false;  ///< an earlier plan's weights are under way: a new plan has to wait
};

/// Decides when experts move, and where to. State per run; the simulator alone moves them.
class Rebalancer {
 public:
  virtual ~Rebalancer() = default;
  /// True if it ever decides anything; one that does not is never shown a step.
  virtual bool watches() const { return true; }
  /// Called once per step. Answers nothing while `moving`. Ties: lowest id.
  virtual std::optional<RebalancePlan> after_step(const StepSeen&) = 0;
  /// Slots' weights that each GPU stages while they travel: memory that the KV cache does not get.
  virtual int buffer_slots() const = 0;
  /// Slots that each GPU keeps free in every layer.
  virtual int free_slots() const { return 0; }
};

/// Context that rebalancers are built for.
struct RebalancingContext {
  const Registry<Placer>& placers;
  PlacementProblem problem;
  int layers = 0;
  const Mover& mover;
  RooflineTime expert{};  ///< seconds
  /// Seconds of link time that a token spends if its expert stands elsewhere, both ways, shared by
  /// all links; 0 where tokens travel whatever they picked.
  double token_seconds = 0;
  int dp = 1;
};

/// Makes rebalancers alike, one for each EP group of a run: they hold what they have seen of it.
using RebalancerFactory = Factory<Rebalancer>;

/// The table: none, eplb_periodic, eplb_async, migrate.
const Registry<RebalancerFactory, const RebalancingContext&>& rebalancers();

/// How weights move, under every rebalancer.
struct MovementOptions {
  SourceRule sources = SourceRule::sglang;
  /// Share of a link's bandwidth that a transfer gets while a step's communication wants it too.
  double link_share = 0;
};
/// Reads "movement".
MovementOptions read_movement(ConfigReader& rebalancing);
/// Beside the options of the policy.
std::span<const Key> rebalancing_keys();

}  // namespace moesim
