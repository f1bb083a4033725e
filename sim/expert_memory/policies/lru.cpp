// SPDX-License-Identifier: Apache-2.0
#include "sim/expert_memory/ranked_cache.hpp"

namespace moesim {

namespace {

class LruCache final : public RankedCache {
 public:
  using RankedCache::RankedCache;
  void use(int key) override { used(key, 0); }
};

// Gives up the expert whose last use is longest ago ([mixtral-offloading] keeps one such cache
// per layer). An expert that was fetched ahead and never used goes first, because fetching is no
// use.
class Lru final : public ExpertMemory {
 public:
  std::unique_ptr<ExpertCache> cache(int keys, int capacity) const override {
    return std::make_unique<LruCache>(keys, capacity);
  }
};

}  // namespace

std::unique_ptr<ExpertMemory> make_lru(ConfigReader&) { return std::make_unique<Lru>(); }

}  // namespace moesim
