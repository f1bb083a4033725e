// SPDX-License-Identifier: Apache-2.0
#include <limits>

#include "sim/pool_roles/pool_roles.hpp"

namespace moesim {

namespace {

// A pool's pressure is the mean latency of the last interval over its objective: TTFT of the pool
// that prefills, time between tokens of the pool that decodes. A group goes where
//   pressure >= miss  while the other pool's  pressure * groups / (groups - 1) <= slack:
// what the groups that stay would feel, if latency grew as the load of each.
class SloRoles final : public PoolRoles {
 public:
  explicit SloRoles(ConfigReader& options)
      : miss_(options.number("miss")), slack_(options.number("slack")) {
    if (slack_ > miss_) options.child("slack").fail("is above \"miss\"; give a lower share");
  }
  bool needs_objectives() const override { return true; }

  std::optional<PoolRole> wants(const RolesSeen& seen) override {
    const double prefill = pressure(seen.prefill), decode = pressure(seen.decode);
    if (prefill >= miss_ && has_slack(seen.decode, decode)) return PoolRole::prefill;
    if (decode >= miss_ && has_slack(seen.prefill, prefill)) return PoolRole::decode;
    return std::nullopt;
  }

 private:
  // No token where requests wait is the worst latency, and none where nobody waits is no pressure.
  static double pressure(const RoleLoad& pool) {
    if (pool.latency) return *pool.latency / *pool.objective;
    return pool.waiting > 0 ? std::numeric_limits<double>::infinity() : 0;
  }

  bool has_slack(const RoleLoad& pool, double pressure) const {
    return pool.groups > 1 && pressure * pool.groups / (pool.groups - 1) <= slack_;
  }

  double miss_, slack_;
};

}  // namespace

std::span<const Key> slo_roles_keys() {
  static constexpr Form share = form::number(0, 1e6);
  static constexpr Key keys[] = {
      {"miss", share, "1", "latency over objective from which a pool needs a group"},
      {"slack", share, "0.8", "the same up to which a pool gives one, shared by those that stay"}};
  return keys;
}

PoolRolesFactory make_slo_roles(ConfigReader& options) { return copies_of(SloRoles(options)); }

}  // namespace moesim
