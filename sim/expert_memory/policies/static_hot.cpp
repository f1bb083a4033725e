// SPDX-License-Identifier: Apache-2.0
#include "sim/expert_memory/ranked_cache.hpp"

namespace moesim {

namespace {

// Keeps what it held first, for good: the experts that were loaded at start, which are the hottest
// seen ([Fiddler] pins them so).
class StaticHot final : public ExpertMemory {
 public:
  std::unique_ptr<ExpertCache> cache(int keys, int capacity) const override {
    return std::make_unique<StaticCache>(keys, capacity);
  }
};

}  // namespace

std::unique_ptr<ExpertMemory> make_static_hot(ConfigReader&) {
  return std::make_unique<StaticHot>();
}

}  // namespace moesim
