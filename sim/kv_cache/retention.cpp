// SPDX-License-Identifier: Apache-2.0
#include "sim/kv_cache/retention.hpp"

namespace moesim {

// The constructor of each row and its options, from policies/.
std::unique_ptr<Retention> make_lru_retention(ConfigReader&);
std::unique_ptr<Retention> make_ttl_retention(ConfigReader&);
std::span<const Key> ttl_retention_keys();
std::unique_ptr<Retention> make_announced_retention(ConfigReader&);
std::span<const Key> announced_retention_keys();

const Registry<Retention>& retentions() {
  static const Registry<Retention> table(
      "retention",
      {{"lru", "no block is held between turns; the oldest makes room", make_lru_retention},
       {"ttl", "an agent's blocks are held for a time after its reply (Continuum)",
        make_ttl_retention, ttl_retention_keys},
       {"announced", "an agent's blocks are held if its pause is short", make_announced_retention,
        announced_retention_keys}});
  return table;
}

}  // namespace moesim
