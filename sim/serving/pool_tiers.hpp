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
    std::unique_ptr<KvTier> tier;
    std::vector<Place> ranks{};  ///< by port
    std::optional<Time> due{};   ///< when an event stands for its next landing
  };
  std::vector<Site>& sites() { return sites_; }
  const std::vector<Site>& sites() const { return sites_; }
  /// The ways of an EP group's ranks, [rank]; none without tiers.
  std::vector<TierPort> ports(int instance) const;

 private:
  const Deployment& deployment_;
  int ranks_of_site_ = 1;
  std::vector<Site> sites_;
};

}  // namespace moesim
