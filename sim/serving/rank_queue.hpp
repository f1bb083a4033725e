// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <iterator>
#include <span>
#include <vector>

#include "hardware/units.hpp"
#include "models/memory.hpp"
#include "sim/kv_cache/sequence.hpp"

namespace moesim {

/// A sequence that waits for blocks from a tier.
struct Parked {
  Sequence sequence{};
  std::int64_t loads = 0;  ///< blocks of its own that are on their way; 0: another's
  Time since{};
};

/// The sequences of a rank that do not run: those that wait to be admitted, in order, and those
/// that are parked. Says which of them the engine knows of, and the scheduler may see.
class RankQueue {
 public:
  explicit RankQueue(const KvLayout& layout) : layout_(layout) {}

  /// True if no sequence waits; some may be parked.
  bool empty() const { return waiting_.empty(); }
  const std::deque<Sequence>& waiting() const { return waiting_; }
  const std::vector<Parked>& parked() const { return parked_; }
  /// That wait or are parked.
  std::int64_t sequences() const { return std::ssize(waiting_) + std::ssize(parked_); }
  /// KV blocks that they need beside those that they hold.
  std::int64_t blocks() const { return blocks_; }

  /// A sequence comes last, as one that is new.
  void arrive(const Sequence&);
  /// Puts a sequence that ran first in the queue.
  void put_first(const Sequence&);
  /// Puts a sequence that was parked behind those that came before it.
  void put_in_order(const Sequence&);
  /// The first one waits no more.
  Sequence take_first();
  /// A sequence that waits no more waits for blocks instead.
  void park(const Parked&);
  /// Takes all parked sequences out.
  std::vector<Parked> take_parked();
  /// The last of those that wait and hold blocks lets go of them, by `let_go`. False: none does.
  bool give_up_last(const std::function<void(Sequence&)>& let_go);
  /// Lets go of sequences for which `gone` is true. Parked ones with loads under way stay.
  void drop(const std::function<bool(const Sequence&)>& gone,
            const std::function<void(Sequence&)>& let_go);
  /// Removes all that wait. No sequence is parked: failures exclude tiers.
  void clear();

  /// A step passes. The engine `looks` for new requests, or not; it schedules those that it knew
  /// of so many steps ago.
  void pass_step(bool looks, std::size_t steps);

  /// The first ones, as many as a step has seats for, of those that the engine knows. Good until
  /// the queue changes.
  std::span<const Sequence> show(std::size_t seats);
  /// Puts those that the engine knows in another order, by `order`. Others go on waiting behind.
  void reorder(const std::function<void(std::vector<Sequence>&)>& order);

 private:
  std::int64_t last_known() const { return known_.empty() ? 0 : known_.back(); }
  std::size_t received() const;
  std::int64_t wanted(const Sequence& sequence) const {
    return layout_.blocks_for(sequence.tokens) - sequence.blocks;
  }

  KvLayout layout_;
  std::deque<Sequence> waiting_;
  std::vector<Parked> parked_;
  std::int64_t blocks_ = 0;
  // Sequences that ever waited here, and those that wait no more.
  std::int64_t arrived_ = 0, gone_ = 0;
  // Changes of the queue that these two do not tell.
  std::int64_t other_changes_ = 0;
  // Sequences that the engine knew of, by steps: as many steps ago as it takes from knowing to
  // scheduling comes first.
  std::deque<std::int64_t> known_;
  // Counts when shown_ was made: with the same counts the same sequences wait.
  struct Shown {
    std::int64_t arrived = 0, gone = 0, other_changes = 0;
    std::size_t visible = 0;
    bool operator==(const Shown&) const = default;
  };
  Shown shown_at_;
  std::vector<Sequence> shown_, ordered_;
};

}  // namespace moesim
