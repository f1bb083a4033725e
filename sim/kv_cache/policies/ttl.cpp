// SPDX-License-Identifier: Apache-2.0
#include "sim/kv_cache/retention.hpp"

namespace moesim {

namespace {

// Continuum ([Continuum], arXiv 2511.02230) pins what a program that called a tool has in HBM, for
// a time to live. It gives up the pin where requests could not run otherwise. It chooses the time
// by what a reload would cost and by how long tools take; here the time is given.
class TtlRetention final : public Retention {
 public:
  explicit TtlRetention(Seconds ttl) : ttl_(to_duration(ttl)) {}
  std::optional<Time> until(Time now, const NextRequest&) const override { return now + ttl_; }

 private:
  Duration ttl_;
};

}  // namespace

std::span<const Key> ttl_retention_keys() {
  static constexpr Key keys[] = {{"ttl", form::time, required, "after the reply"}};
  return keys;
}

std::unique_ptr<Retention> make_ttl_retention(ConfigReader& options) {
  return std::make_unique<TtlRetention>(options.quantity<Seconds>("ttl"));
}

}  // namespace moesim
