// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>

#include "sim/expert_memory/expert_memory.hpp"
#include "sim/expert_memory/host_link.hpp"
#include "sim/placement/placement.hpp"

namespace moesim {

/// Counts of expert memories.
struct ExpertMemoryTally {
  /// Experts that ran and stood in HBM when their layer began.
  std::int64_t hits = 0;
  /// Experts that ran and did not stand in HBM when their layer began.
  std::int64_t misses = 0;
  /// Misses that were fetched without staying, because no other expert could make room.
  std::int64_t streamed = 0;
  /// Misses whose prefetch was under way: they waited for the rest of it.
  std::int64_t late = 0;
  /// Prefetches that began.
  std::int64_t prefetches = 0;
  /// Prefetches whose expert ran, or did not run, when its layer next ran.
  std::int64_t prefetches_used = 0, prefetches_wasted = 0;
  /// Bytes that came over the link from DRAM, and over the one from NVMe.
  Bytes host{}, nvme{};
  /// How much longer layers took than with every expert in HBM, each layer's slowest rank.
  Seconds stall{};
  /// How much longer experts took to come because KV blocks were on the same link.
  Seconds for_blocks{};
  ExpertMemoryTally& operator+=(const ExpertMemoryTally&);
};

/// Expert slots of one EP rank in HBM, DRAM and NVMe, through time.
///
/// A layer's residents run together at once; every other expert runs when it has arrived:
///   t = now + gemm(residents); for each arrival: t = max(t, arrival) + gemm(expert)
/// Transfers are FIFO on one host link: first those in DRAM, then those on NVMe; more tokens first,
/// then the lower slot. Experts of the running layer make no room, nor those fetched or kept for a
/// layer that has not run yet. An expert that finds no room streams through one bounce slot, so a
/// layer may need more experts than fit. When a layer has run, the foreseen experts of the next
/// layers queue for the link. A transfer that has begun ends. A transfer that has not begun when
/// the next layer begins is dropped.
class RankMemory {
 public:
  /// Rank `rank` of a placement, whose shape must not change. At the start the memories are full of
  /// the slots with the highest load seen: [layers][experts], or empty when nothing was.
  RankMemory(const ExpertMemoryPlan&, const ExpertPlacement&, int rank,
             std::span<const ExpertLoad> seen, Bytes expert, std::uint64_t seed);

  /// Time of the grouped GEMM over a rank's slots.
  using GemmTime = std::function<Seconds(std::span<const std::int32_t> tokens)>;
  /// Tokens of the rank's slots in a layer of the step under way.
  using TokensOf = std::function<std::span<const std::int32_t>(int layer)>;

  /// Runs a layer that begins at `now`, not before the last one ended: how long it takes. Adds to
  /// `tally`.
  Seconds run(int layer, Time now, const TokensOf&, const GemmTime&, ExpertMemoryTally& tally);

  /// Sets what else the host link carries from now on.
  void share_link(const SharedHostLink& link) { link_ = link; }
  const SharedHostLink& link() const { return link_; }

 private:
  struct Partition {
    std::unique_ptr<ExpertCache> cache;
    int first = 0, keys = 0;
  };
  struct Queued {
    int key;
    Time since;
  };

  std::span<std::uint8_t> of_layer(std::vector<std::uint8_t>& flags, int layer) const;
  Partition& partition_of(int key);
  bool holds(int key);
  void use(int key);
  bool admit(int key, ExpertMemoryTally&);
  void load_hottest(const ExpertPlacement&, int rank, std::span<const ExpertLoad> seen);
  /// When an expert asked for at `issue` has arrived.
  Time fetch(int key, Time issue, ExpertMemoryTally&);
  void begin_prefetches(Time now, ExpertMemoryTally&);
  void queue_prefetches(int after_layer, Time now, const TokensOf&);
  void look_up(int layer, Time now, std::span<const std::int32_t> tokens, ExpertMemoryTally&);
  void sort_misses(std::span<const std::int32_t> tokens, int first);

  ExpertMemoryPlan plan_;
  Bytes expert_;
  std::vector<int> first_key_;         // [layers + 1]
  std::vector<Partition> partitions_;  // one, or [layers]
  std::unique_ptr<ExpertCache> dram_;  // null: DRAM holds all
  std::unique_ptr<Predictor> predictor_;
  SharedHostLink link_{};
  Time host_free_{}, nvme_free_{};                 // when each link has sent all it was given
  std::vector<Time> arrival_;                      // [keys], of what stands in HBM
  std::vector<std::uint8_t> pinned_, prefetched_;  // [keys]
  std::vector<Queued> queue_;
  std::vector<int> misses_, late_, foreseen_;
  std::vector<std::int32_t> running_;  // [slots of a layer]
};

}  // namespace moesim
