// SPDX-License-Identifier: Apache-2.0
#include "sim/expert_memory/policies.hpp"

namespace moesim {

namespace {

// No memory below HBM.
class Resident final : public ExpertMemory {
 public:
  std::unique_ptr<ExpertCache> cache(int keys, int) const override {
    return std::make_unique<StaticCache>(keys, keys);
  }
  bool keeps_all() const override { return true; }
};

}  // namespace

std::unique_ptr<ExpertMemory> make_resident(ConfigReader&) { return std::make_unique<Resident>(); }

}  // namespace moesim
