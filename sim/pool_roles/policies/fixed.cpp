// SPDX-License-Identifier: Apache-2.0
#include "sim/pool_roles/pool_roles.hpp"

namespace moesim {

namespace {

class FixedRoles final : public PoolRoles {
 public:
  bool moves() const override { return false; }
  std::optional<PoolRole> wants(const RolesSeen&) override { return std::nullopt; }
};

}  // namespace

PoolRolesFactory make_fixed_roles(ConfigReader&) { return copies_of(FixedRoles()); }

}  // namespace moesim
