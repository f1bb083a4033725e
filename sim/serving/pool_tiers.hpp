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
  explicit PoolTiers(const Deployment&);

  /// A rank of an EP group of the pool.
  struct Place {
    int instance = 0;
    std::size_t rank = 0;
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

 private:
  // Of the sites of one depth.
  struct Level {
    std::size_t first_site = 0;
    int ranks = 1;  // of each, perhaps fewer of the last
  };
  const Site& site_of(const Level& level, int rank) const {
    return sites_[level.first_site + static_cast<std::size_t>(rank / level.ranks)];
  }

  std::int64_t least_blocks() const;

  const Deployment& deployment_;
  std::vector<Level> levels_;  // by depth
  std::vector<Site> sites_;
  std::int64_t least_blocks_ = 1;
};

}  // namespace moesim
