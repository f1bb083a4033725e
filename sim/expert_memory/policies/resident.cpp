// SPDX-License-Identifier: Apache-2.0
#include "hardware/units.hpp"
#include "sim/expert_memory/ranked_cache.hpp"

namespace moesim {

namespace {

// Every expert stands in HBM, so there is no cache that could be asked what stays.
class Resident final : public ExpertMemory {
 public:
  bool resident() const override { return true; }
  std::unique_ptr<ExpertCache> cache(int, int) const override {
    check(false, "a cache of experts that are all in HBM");
    return nullptr;
  }
};

}  // namespace

std::unique_ptr<ExpertMemory> make_resident(ConfigReader&) { return std::make_unique<Resident>(); }

}  // namespace moesim
