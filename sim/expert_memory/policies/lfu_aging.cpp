// SPDX-License-Identifier: Apache-2.0
#include "sim/expert_memory/ranked_cache.hpp"

namespace moesim {

namespace {

class LfuAgingCache final : public RankedCache {
 public:
  LfuAgingCache(int keys, int capacity, std::int64_t period)
      : RankedCache(keys, capacity), period_(period) {}

  void use(int key) override {
    if (since_halved_ == period_) {
      halve();
      since_halved_ = 0;
    }
    ++since_halved_;
    used(key, uses(key) + 1);
  }

 private:
  std::int64_t period_;
  std::int64_t since_halved_ = 0;
};

// Gives up the expert with the fewest uses, ties to the one used longest ago. Every `aging_period`
// uses all counts are halved, those of experts elsewhere too, so that the past fades.
class LfuAging final : public ExpertMemory {
 public:
  explicit LfuAging(std::int64_t period) : period_(period) {}
  std::unique_ptr<ExpertCache> cache(int keys, int capacity) const override {
    const std::int64_t period = period_ > 0 ? period_ : std::int64_t{16} * keys;
    return std::make_unique<LfuAgingCache>(keys, capacity, period);
  }

 private:
  std::int64_t period_;  // 0: 16 uses for every expert that the cache may hold
};

}  // namespace

std::span<const Key> lfu_aging_keys() {
  static constexpr Key keys[] = {{"aging_period", form::integer(0, 9e15), "0",
                                  "runs after which counts are halved, 0 for never"}};
  return keys;
}

std::unique_ptr<ExpertMemory> make_lfu_aging(ConfigReader& options) {
  return std::make_unique<LfuAging>(options.integer("aging_period"));
}

}  // namespace moesim
