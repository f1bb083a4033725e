// SPDX-License-Identifier: Apache-2.0
#include "sim/expert_memory/ranked_cache.hpp"

namespace moesim {

namespace {

class NoPrefetch final : public Prefetch {
 public:
  std::unique_ptr<Predictor> predictor(std::span<const int>, std::uint64_t) const override {
    return nullptr;
  }
};

}  // namespace

std::unique_ptr<Prefetch> make_no_prefetch(ConfigReader&) { return std::make_unique<NoPrefetch>(); }

}  // namespace moesim
