// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <vector>

#include "sim/failures/failures.hpp"

namespace moesim {

/// Effects of an outage.
struct OutageRecord {
  std::string what;
  std::vector<int> gpus;
  Time at{};
  Seconds step_lost{};            ///< of the step in flight, which yields nothing
  std::int64_t requests = 0;      ///< moved to other ranks
  std::int64_t tokens_lost = 0;   ///< of their KV cache: computed again
  std::int64_t experts_lost = 0;  ///< (layer, expert) pairs of which no copy was left
  Bytes moved{}, reloaded{};      ///< weights: over links, from outside
  Seconds stopped{};              ///< no GPU computed: detection, movement, reloading
  std::int64_t kv_blocks = 0;     ///< that ranks which are up gave up for experts
  std::int64_t preempted = 0;     ///< requests whose blocks these were
  std::optional<Time> recovered{};
  Bytes moved_back{};
  Seconds stopped_again{};  ///< while experts moved back
};

/// Which EP ranks of a group are up, where its experts go when that changes, and what each outage
/// did.
class Recovery {
 public:
  /// The arguments must outlive it.
  Recovery(const FailurePlan&, const PlacementProblem&, int ep_ranks);

  /// Flags of live ranks, by EP rank.
  const std::vector<char>& live() const { return live_; }
  bool any_live() const;

  /// GPUs stop while experts stand as in `placement`. The record is good until the next one stops.
  OutageRecord& stop(const Outage&, const ExpertPlacement& placement, Time now);
  /// The last outage of these GPUs ends.
  OutageRecord& end(const Outage&, Time now);

  /// All layers over the ranks that are live, by their load, [MoE layers][experts]. Without a
  /// placer, and where there was no load, what survives of the map serves that stood when all ranks
  /// were last up.
  ExpertPlacement placed_anew(std::span<const ExpertLoad> loads) const;

  const std::vector<OutageRecord>& outages() const { return outages_; }

 private:
  void set_live(const Outage&, bool live);

  const FailurePlan& plan_;
  const PlacementProblem& problem_;
  std::vector<char> live_;
  ExpertPlacement whole_;  // as it stood when all ranks were last up
  std::vector<OutageRecord> outages_;
};

}  // namespace moesim
