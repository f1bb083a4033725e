// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "sim/experiment/deployment.hpp"
#include "sim/kv_tiers/kv_tier.hpp"

namespace moesim {

/// The tiers below the HBM of one pool, and which ranks share them: none where the config has none.
class PoolTiers {
 public:
  /// The pool's groups are numbered from `first_group` on. Behind them come those of `writers`, if
  /// there are any: a pool of which the ranks copy to the last tier of this one.
  explicit PoolTiers(const Deployment&, int first_group = 0, const Deployment* writers = nullptr);

  /// A rank of an EP group.
  struct Place {
    int group = 0;  ///< its number
    std::size_t rank = 0;
    std::size_t depth = 0;  ///< of the tier below its HBM
  };
  struct Site {
    std::size_t depth = 0;  ///< 0: the first tier below HBM
    std::unique_ptr<KvTier> tier;
    std::vector<Place> ranks{};  ///< by port
    std::optional<Time> due{};   ///< when an event stands for its next landing
  };
  /// The lowest first.
  std::vector<Site>& sites() { return sites_; }
  const std::vector<Site>& sites() const { return sites_; }
  /// The ways of an EP group's ranks to their first tiers, [rank]; none without tiers.
  std::vector<TierPort> ports(int instance) const;
  /// The same of an EP group of the writers, counted from 0.
  std::vector<TierPort> writers_ports(int instance) const;

 private:
  // Sites of one depth.
  struct Level {
    std::size_t first_site = 0;
    int ranks = 1;  // of each, perhaps fewer of the last
  };
  const Site& site_of(const Level& level, int rank) const {
    return sites_[level.first_site + at(rank / level.ranks)];
  }

  std::int64_t least_blocks() const;

  const Deployment& deployment_;
  const Deployment* writers_;
  std::vector<Level> levels_;  // by depth
  std::vector<Site> sites_;
  std::int64_t least_blocks_ = 1;
};

}  // namespace moesim
