// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "sim/experiment/deployment.hpp"
#include "sim/failures/recovery.hpp"
#include "sim/rebalancing/load_window.hpp"
#include "sim/rebalancing/relocation.hpp"
#include "traces/trace_rows.hpp"

namespace moesim {

/// Places of the experts of one EP group as it serves: rebalancing and outages move them.
class ExpertLayout {
 public:
  /// The deployment outlives it.
  explicit ExpertLayout(const Deployment&);

  /// Placement of the experts now.
  const ExpertPlacement& placement() const { return moved_ ? *moved_ : deployment_.placement; }
  /// The rules of steps over the placement that stands now.
  const PhaseRules& rules() const { return rules_; }
  /// Moves in the run so far.
  const RebalancingLog& rebalancing() const { return relocation_.log(); }
  /// Blocks of each rank's KV cache that experts take while some ranks are down.
  std::int64_t kv_blocks() const;
  const std::vector<OutageRecord>& outages() const { return recovery_.outages(); }

  /// The engine stood idle; what travels beside steps has had the links to itself.
  void pass(Seconds idle);
  /// Layers whose weights have arrived take their new place.
  void switch_arrived();
  /// A priced step of a batch, whose rows are of the requests named, began at `now`. What is
  /// decided after it, and what moves, is part of its time.
  void after_step(const StepBatch&, std::span<const std::uint32_t> request_of_range,
                  const RowSource&, Time now, StepCost&);

  /// GPUs stop: weights under way are lost. The record is good until the next ones stop.
  OutageRecord& stop(const Outage&, Time now);
  /// After stop(): experts go to the ranks that are up, if any. How long the engine stands still.
  Seconds make_whole(OutageRecord&);
  /// The last outage of these GPUs ends, and experts move back. How long the engine stands still.
  Seconds recover(const Outage&, Time now);

 private:
  void count_real_tokens(const StepBatch&, std::span<const std::uint32_t> request_of_range,
                         std::span<const std::int32_t> tokens_of_expert, const RowSource&);
  void take(ExpertPlacement);
  ExpertPlacement placed_anew() const;
  MoveCost move_all(ExpertPlacement to, std::span<const char> sources);

  const Deployment& deployment_;
  // Placement since something has moved experts: a fleet has many groups in which nothing does.
  std::optional<ExpertPlacement> moved_;
  PhaseRules rules_;
  Mover mover_;
  std::unique_ptr<Rebalancer> rebalancer_;
  Relocation relocation_;
  Recovery recovery_;
  std::optional<LoadWindow> recent_;       // what experts are placed by after an outage
  std::int64_t steps_ = 0;                 // that the rebalancer saw
  std::vector<std::int32_t> real_tokens_;  // [MoE layers, experts], without dummies
};

}  // namespace moesim
