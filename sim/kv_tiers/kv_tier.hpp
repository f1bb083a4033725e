// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <unordered_map>
#include <vector>

#include "sim/kv_tiers/kv_tiers.hpp"

namespace moesim {

/// What a tier did in a run, in blocks of one rank.
struct KvTierTally {
  std::int64_t loads = 0, stores = 0;   ///< transfers
  std::int64_t read = 0, written = 0;   ///< blocks that they carried
  std::int64_t evicted = 0, dead = 0;   ///< that made room; of these, never read
  std::int64_t refused = 0;             ///< not stored: all that the tier holds was pinned
  std::int64_t given_up = 0;            ///< loads whose request lost its blocks before it ran
  std::int64_t peak = 0;                ///< blocks resident at a time
  double block_seconds = 0;             ///< resident blocks over time
  std::vector<double> waits{};          ///< seconds from the start of each load to its end
  Seconds read_busy{}, write_busy{};    ///< of all ports
  Seconds alone_read{}, alone_write{};  ///< what the bytes take at the full rate of their ports
  Time until{};                         ///< when it was counted
};

/// Blocks of the KV cache in a memory below HBM, shared by ranks with a link each. A block is held
/// from the moment in which its copy begins, and can be loaded once that copy has landed. Blocks on
/// their way, to the tier or from it, are pinned: they make room for no other. A block stays in the
/// tier when it is loaded.
class KvTier {
 public:
  /// Room for `blocks` >= 1; `of_block` are the bytes of a block on one GPU, which its own link
  /// moves. `plan` must outlive the tier.
  KvTier(const KvTierPlan& plan, std::int64_t blocks, Bytes of_block, int ports);

  /// Whether a block can be loaded.
  bool has(BlockHash hash) const {
    const auto found = blocks_.find(hash);
    return found != blocks_.end() && found->second.landed;
  }
  /// Whether a block is here or on its way here.
  bool holds(BlockHash hash) const { return blocks_.contains(hash); }
  std::int64_t resident() const { return std::ssize(blocks_); }
  std::int64_t capacity() const { return capacity_; }
  const TierWrite& write() const { return *plan_.write; }

  /// A request has these leading blocks of its prompt from HBM or from here.
  void use(std::span<const BlockHash> prompt);
  /// Begins to load blocks that it has.
  TransferId load(int port, std::vector<BlockHash> blocks, Time now);

  struct Stored {
    TransferId transfer = 0;
    std::vector<std::size_t> places{};  ///< in what was offered
  };
  /// Begins to store those of the offered blocks that it does not hold, as far as others can make
  /// room: nothing, or one transfer unless some took no time.
  std::vector<Stored> store(int port, std::span<const BlockHash> offered, Time now);
  /// When a store that began now or before will have landed.
  Time stored_by(TransferId, Time now) const;
  /// When a load under way will have landed.
  Time loaded_by(TransferId load) const { return reads_.end(load); }

  struct Landed {
    int port = 0;
    bool load = false;
    TransferId transfer = 0;
  };
  /// When a transfer lands next if none begins before.
  std::optional<Time> next() const;
  /// Appends what has landed by `now`, loads first.
  void land(Time now, std::vector<Landed>& landed);

  void give_up() { ++tally_.given_up; }
  /// `now` is not before the last transfer began or landed.
  KvTierTally tally(Time now) const;

 private:
  struct Block {
    bool landed = false;
    bool read = false;
    int pins = 0;  // by loads
  };
  struct Moving {
    int port = 0;
    Time began{};
    std::vector<BlockHash> blocks{};
  };
  bool make_room();
  void land_stores(Time now);
  void count_fill(Time now);
  Bytes bytes_of(std::size_t blocks) const { return of_block_ * static_cast<double>(blocks); }

  const KvTierPlan& plan_;
  std::int64_t capacity_;
  Bytes of_block_;
  TransferLink reads_, writes_;
  std::unique_ptr<TierOrder> order_;
  std::unordered_map<BlockHash, Block> blocks_;
  std::map<TransferId, Moving> loading_, storing_;
  std::vector<Landed> landed_stores_;  // not reported yet
  Time changed_{};
  KvTierTally tally_;
};

/// A rank's way to the tier below its HBM; none without `tier`.
struct TierPort {
  KvTier* tier = nullptr;
  int port = 0;
  TierRead read = TierRead::parked;
  std::int64_t least_blocks = 1;  ///< fewer are computed, not loaded
};

}  // namespace moesim
