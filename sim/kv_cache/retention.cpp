// SPDX-License-Identifier: Apache-2.0
#include "sim/kv_cache/retention.hpp"

namespace moesim {

namespace {

std::span<const Key> ttl_keys() {
  static constexpr Key keys[] = {{"ttl", form::time, required, "after the reply"}};
  return keys;
}

}  // namespace

// Continuum ([Continuum], arXiv 2511.02230) pins what a program that called a tool has in HBM. It
// chooses the time by what a reload would cost and by how long tools take; here the time is given.
const Registry<Retention>& retentions() {
  static const Registry<Retention> table(
      "retention", {{"lru", "no block is held between turns; the oldest makes room",
                     [](ConfigReader&) { return std::make_unique<Retention>(); }},
                    {"ttl", "an agent's blocks are held for a time after its reply (Continuum)",
                     [](ConfigReader& options) {
                       return std::make_unique<Retention>(options.quantity<Seconds>("ttl"));
                     },
                     ttl_keys}});
  return table;
}

}  // namespace moesim
