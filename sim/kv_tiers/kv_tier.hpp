// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <vector>

#include "sim/kv_tiers/block_map.hpp"
#include "sim/kv_tiers/block_owners.hpp"

namespace moesim {

/// Counts of a tier in a run, in blocks of one rank.
struct KvTierTally {
  std::int64_t loads = 0, stores = 0;   ///< transfers
  std::int64_t read = 0, written = 0;   ///< blocks that they carried
  std::int64_t evicted = 0, dead = 0;   ///< that made room; of these, never read
  std::int64_t refused = 0;             ///< not stored: all that the tier holds was pinned
  std::int64_t given_up = 0;            ///< loads whose request lost its blocks before it ran
  std::int64_t passed = 0;              ///< blocks of lower tiers that loads carried past it
  std::int64_t kept = 0;                ///< of these, those that stayed
  std::int64_t peak = 0;                ///< blocks resident at a time
  double block_seconds = 0;             ///< resident blocks over time
  std::vector<double> waits{};          ///< seconds from the start of each load to its end
  Seconds read_busy{}, write_busy{};    ///< of all ports
  Seconds held_up{};                    ///< for which other loads of the host link held it up
  Seconds alone_read{}, alone_write{};  ///< what transfers take at the full rate of their ports
  Time until{};                         ///< when it was counted
};

class KvTier;

/// A block's shard on one GPU, which its own link moves.
struct BlockShard {
  Bytes bytes{};
  double pieces = 1;  ///< contiguous
};

/// The next lower tier, none without `tier`; the upper one's first port is its `first_port`.
struct TierBelow {
  KvTier* tier = nullptr;
  int first_port = 0;
};

/// Blocks of the KV cache in a memory below HBM, shared by ranks with a link each. A block is held
/// from the moment in which its copy begins, and can be loaded once that copy has landed. Blocks on
/// their way, to the tier or from it, are pinned: they make room for no other. A block stays in the
/// tier when it is loaded.
///
/// Another tier may be below it, whose ranks include those of this one. The lower tier's write
/// policy says which blocks of this one are copied there, over the lower one's link. Such a copy
/// pins its source, unless the source has made room: then the block is in a buffer that no tier
/// counts.
class KvTier {
 public:
  /// Room for `blocks` >= 1. `plan` and what is below must outlive the tier.
  KvTier(const KvTierPlan& plan, std::int64_t blocks, BlockShard of_block, int ports,
         TierBelow below = {});

  /// True if a block can be loaded.
  bool has(BlockHash hash) const {
    const auto found = blocks_.find(hash);
    return found != blocks_.end() && found->second.landed;
  }
  /// True if a block is here or on its way here.
  bool holds(BlockHash hash) const { return blocks_.contains(hash); }
  std::int64_t resident() const { return std::ssize(blocks_); }
  std::int64_t capacity() const { return capacity_; }
  const TierWrite& write() const { return *plan_.write; }
  /// True if a block that the memory above takes for other tokens is copied here.
  bool takes_leaving(BlockHash hash) const {
    return write().when_taken && (!write().live_only || owners_->has(hash));
  }
  TierPath path() const { return plan_.path; }
  const TierBelow& below() const { return below_; }

  /// Blocks that an agent's request, which is under way, has or will fill, its first one first.
  void own(AgentName, std::span<const BlockHash>);
  /// When an agent asks again.
  void announce(const Announcement&);

  /// A rank's request has these leading blocks of its prompt from HBM, from here or from below.
  void use(int port, std::span<const BlockHash> prompt);
  /// Marks blocks of a prompt as the newest, its beginning last. No request has found them.
  void stamp(std::span<const BlockHash> prompt);
  /// Begins to load blocks that it has, and so many from below that pass over its link.
  TransferId load(int port, std::vector<BlockHash> blocks, Time now, std::int64_t passing = 0);
  /// Blocks of a prompt from below have passed, and stay as far as others can make room.
  void keep(int port, std::span<const BlockHash> passed, Time now);
  /// Begins the copies to the tier below of blocks that a rank's requests have found.
  void copy_found(int port, Time now);
  /// A store of the tier below has landed, perhaps of blocks from here.
  void copied(TransferId store_below);

  struct Stored {
    TransferId transfer = 0;
    std::vector<std::size_t> places{};  ///< in what was offered
  };
  /// Begins to store those of the offered blocks that it does not hold, as far as others can make
  /// room. Returns nothing, or one transfer unless some took no time.
  std::vector<Stored> store(int port, std::span<const BlockHash> offered, Time now);
  /// When a store that began now or before will have landed.
  Time stored_by(TransferId, Time now) const;
  /// When a load under way will have landed.
  Time loaded_by(TransferId load) const { return reads_.end(load); }
  /// When a rank's link has brought all that is on its way to HBM; `now` if nothing is.
  Time loads_until(int port, Time now) const { return reads_.idle(port, now); }
  /// The rank's link brings other things to HBM for so long.
  void hold_up_loads(int port, Duration, Time now);
  /// The rank's link carries so many other bytes from HBM.
  void hold_up_stores(int port, Bytes, Time now);

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
    int pins = 0;            // by loads, and by copies to the tier below
    std::int64_t stamp = 0;  // the greatest is the newest
  };
  struct Moving {
    int port = 0;
    Time began{};
    std::vector<BlockHash> blocks{};
  };
  bool make_room();
  bool pinned(BlockHash) const;
  void evict(BlockHash);
  void tell_order(std::span<const BlockHash> changed);
  void land_stores(Time now);
  void take_in(BlockHash hash, Block block);
  void copy_below(int port, std::vector<BlockHash> blocks, Time now);
  void copy_leaving(int port, Time now);
  void count_fill(Time now);
  // Begins a transfer; adds what it takes alone.
  TransferId start(TransferLink&, int port, std::int64_t blocks, Time now, Seconds& alone) const;

  const KvTierPlan& plan_;
  TierBelow below_;
  std::int64_t capacity_;
  BlockShard of_block_;
  TransferLink reads_, writes_;
  std::unique_ptr<TierOrder> order_;
  std::optional<BlockOwners> owners_;  // if a policy looks ahead
  BlockMap<Block> blocks_;
  std::map<TransferId, Moving> loading_, storing_;
  std::vector<Landed> landed_stores_;  // not reported yet

  std::int64_t last_stamp_ = 0;

  // With a tier below.
  std::vector<BlockHash> leaving_;                              // made room just now
  std::vector<std::vector<BlockHash>> found_;                   // [port], not copied yet
  std::map<TransferId, std::vector<BlockHash>> copying_below_;  // pinned here

  Time changed_{};
  KvTierTally tally_;
};

/// A rank's way to the first tier below its HBM; none without `tier`.
struct TierPort {
  KvTier* tier = nullptr;
  int port = 0;
  TierRead read = TierRead::parked;
  std::int64_t least_blocks = 1;  ///< fewer are computed, not loaded
  bool output = true;             ///< replies are copied, not only prompts
};

}  // namespace moesim
