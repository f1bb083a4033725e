// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <set>

#include "sim/kv_tiers/block_map.hpp"

namespace moesim {

/// Order in which the block that is needed last makes room, of those that are not pinned. Of blocks
/// needed equally late it is the one that was found or stored longest ago.
class NextUseOrder : public TierOrder {
 public:
  void add(BlockHash hash) final { put(hash, Place{far({}), ++stamps_}); }
  void use(BlockHash hash) final { move(hash, Place{places_.at(hash).far, ++stamps_}); }
  void next_use(BlockHash hash, const NextRequest& next) final {
    move(hash, Place{far(next), places_.at(hash).stamp});
  }
  void remove(BlockHash hash) final {
    order_.erase({places_.at(hash), hash});
    places_.erase(hash);
  }
  std::optional<BlockHash> victim(const std::function<bool(BlockHash)>& pinned) const final {
    for (const auto& [place, hash] : order_) {
      if (!pinned(hash)) return hash;
    }
    return std::nullopt;
  }

 protected:
  /// How far off a use is.
  virtual double far(const NextRequest&) const = 0;

 private:
  struct Place {
    double far = 0;
    std::int64_t stamp = 0;
    // The first makes room first.
    bool operator<(const Place& other) const {
      return far != other.far ? far > other.far : stamp < other.stamp;
    }
  };
  void put(BlockHash hash, const Place& place) {
    places_[hash] = place;
    order_.emplace(place, hash);
  }
  void move(BlockHash hash, const Place& place) {
    order_.erase({places_.at(hash), hash});
    put(hash, place);
  }

  std::set<std::pair<Place, BlockHash>> order_;
  BlockMap<Place> places_;
  std::int64_t stamps_ = 0;
};

}  // namespace moesim
