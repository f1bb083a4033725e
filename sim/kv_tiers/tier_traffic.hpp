// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <limits>
#include <optional>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "sim/kv_tiers/kv_tier.hpp"

namespace moesim {

/// Blocks on their way between one rank's HBM and the tiers below it. It has no clock: loads and
/// copies are noted, and begin in load_noted(), copy_taken() and store(). Blocks of HBM are numbers
/// to it, which the cache above holds and releases.
class TierTraffic {
 public:
  static constexpr std::uint32_t prefetched = std::numeric_limits<std::uint32_t>::max();
  /// Blocks that come together for a request, or for an agent that is not back yet.
  struct Load {
    std::uint32_t request = prefetched;
    std::size_t end = 0;                                      ///< leading blocks once landed
    std::vector<BlockHash> blocks{};                          ///< by name
    std::vector<std::int32_t> free{};                         ///< held by no request: prefetched
    std::vector<std::pair<std::size_t, TransferId>> parts{};  ///< under way, by tier
    std::vector<BlockHash> staged{};                          ///< through the first tier
  };

  explicit TierTraffic(const TierPort& below);
  const TierPort& below() const { return below_; }
  bool has_tiers() const { return below_.tier != nullptr; }
  /// True if loads or copies are under way.
  bool moves() const { return !loading_.empty() || !storing_.empty(); }
  bool loads() const { return !loading_.empty() || !noted_loads_.empty(); }
  bool on_its_way(BlockHash hash) const { return on_their_way_.contains(hash); }

  /// How many of these blocks tiers can load, up to the first that none has.
  std::int64_t loadable(std::span<const BlockHash>) const;
  /// Number of these blocks that come from each lower tier, as no nearer one has them.
  OfLowerTiers<std::int64_t> of_lower(std::span<const BlockHash>) const;

  /// An agent's request has, or will fill, these blocks, and waits for its step.
  void own(AgentName, std::span<const BlockHash>);
  /// A request is served with these leading blocks, in HBM or from tiers: its agent runs.
  void use(const std::optional<AgentName>&, std::span<const BlockHash> prompt);
  /// A block of HBM is full, or was found: it is copied in store() where the first tier takes it.
  void offer(std::int32_t block, BlockHash hash) {
    if (below_.tier->write().when_there && !below_.tier->holds(hash))
      offers_.emplace_back(block, hash);
  }
  /// A block of HBM is taken for other tokens: it is copied in copy_taken() where the tier takes
  /// it.
  void take(BlockHash hash) {
    if (below_.tier->takes_leaving(hash)) taken_.push_back(hash);
  }
  /// Notes a load. No request finds blocks that are `on_their_way` in HBM.
  void note(Load, bool on_their_way);

  /// Begins the loads that were noted. Returns when they will have landed if no other transfer
  /// makes them slower.
  Time load_noted(Time now);
  /// Begins copies of blocks that were taken, unless HBM still has them, and those from tier to
  /// tier of blocks that were found. Returns when the first will have landed.
  Time copy_taken(Time now, const std::function<bool(BlockHash)>& in_hbm);
  /// Begins copies of blocks that were offered since it was asked last. Passes those that move,
  /// which must be held until they have landed. `still`: a block is as it was offered.
  void store(Time now, const std::function<bool(std::int32_t, BlockHash)>& still,
             const std::function<void(std::int32_t)>& hold);

  struct Landed {
    std::vector<std::int32_t> copied{};  ///< to be released
    std::optional<Load> load{};          ///< whole, of those that are parked
  };
  /// A transfer of a tier, counted from the first, has landed.
  Landed land(std::size_t tier, const KvTier::Landed&, Time now);

 private:
  std::size_t nearest(BlockHash) const;
  Time begin(Load&, Time now);
  struct Tier {
    KvTier* tier;
    int port;
  };
  TierPort below_;
  std::vector<Tier> tiers_;                                 // nearest first
  BlockSet on_their_way_;                                   // to HBM
  std::vector<Load> noted_loads_;                           // begin in load_noted()
  std::vector<BlockHash> taken_;                            // copied in copy_taken()
  std::vector<std::pair<std::int32_t, BlockHash>> offers_;  // copied in store()
  std::vector<Load> loading_;
  std::unordered_map<TransferId, std::vector<std::int32_t>> storing_;  // blocks held
};

}  // namespace moesim
