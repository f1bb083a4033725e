// SPDX-License-Identifier: Apache-2.0
#include "sim/expert_memory/expert_memory.hpp"

namespace moesim {

namespace {

// Foresees nothing, so that nothing is fetched ahead.
class NoPredictor final : public Predictor {
 public:
  void ran(int, std::span<const std::int32_t>) override {}
  void predict(int, std::span<const std::int32_t>, std::vector<int>& slots) override {
    slots.clear();
  }
};

class NoPrefetch final : public Prefetch {
 public:
  std::unique_ptr<Predictor> predictor(std::span<const int>, std::uint64_t) const override {
    return std::make_unique<NoPredictor>();
  }
};

}  // namespace

std::unique_ptr<Prefetch> make_no_prefetch(ConfigReader&) { return std::make_unique<NoPrefetch>(); }

}  // namespace moesim
