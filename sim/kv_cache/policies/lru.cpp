// SPDX-License-Identifier: Apache-2.0
#include "sim/kv_cache/retention.hpp"

namespace moesim {

namespace {

// Engines' default: what a request had is free when the request ends, the block that was let go of
// longest ago is taken first.
class LruRetention final : public Retention {
 public:
  std::optional<Time> until(Time, const NextRequest&) const override { return std::nullopt; }
  bool holds() const override { return false; }
};

}  // namespace

std::unique_ptr<Retention> make_lru_retention(ConfigReader&) {
  return std::make_unique<LruRetention>();
}

}  // namespace moesim
