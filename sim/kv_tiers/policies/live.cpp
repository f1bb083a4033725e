// SPDX-License-Identifier: Apache-2.0
#include "sim/kv_tiers/kv_tiers.hpp"

namespace moesim {

namespace {

// Writes as write_back, but only blocks of an agent that asks again. What an agent leaves behind
// with its last turn is not worth a copy. Blocks of requests outside sessions are never copied.
class Live final : public TierWrite {
 public:
  bool when_taken(int /*hits*/, bool goes_on) const override { return goes_on; }
  bool looks_ahead() const override { return true; }
};

}  // namespace

std::unique_ptr<TierWrite> make_live(ConfigReader&) { return std::make_unique<Live>(); }

}  // namespace moesim
