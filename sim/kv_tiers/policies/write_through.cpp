// SPDX-License-Identifier: Apache-2.0
#include "sim/kv_tiers/kv_tiers.hpp"

namespace moesim {

namespace {

// Writes as the step has ended that computed the block. Writes again when a request finds it in HBM
// after the tier has evicted it. The offloading connector of vLLM offers all blocks of a request,
// and the tier takes those that it lacks.
class WriteThrough final : public TierWrite {
 public:
  bool when_full() const override { return true; }
  bool when_hit(int) const override { return true; }
};

}  // namespace

std::unique_ptr<TierWrite> make_write_through(ConfigReader&) {
  return std::make_unique<WriteThrough>();
}

}  // namespace moesim
