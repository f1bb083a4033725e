// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "hardware/registry.hpp"
#include "models/moe_model.hpp"
#include "traces/routing_trace.hpp"

namespace moesim {

/// A source of expert choices. Every gating is a routing trace that is replayed: a recorded one, or
/// one that a seeded generator makes. So there is one way to route tokens, and any generated trace
/// can be written to a file.
class Gating {
 public:
  virtual ~Gating() = default;
  /// The trace to replay for `model`. Same seed, same rows. Throws ConfigError if a recorded trace
  /// is of another model (experts, k or MoE layers differ) and "adapt" was not asked for.
  virtual RoutingTrace trace(const MoeModel& model, std::uint64_t seed) const = 0;
  /// Returns the first requests and their rows, at least two of each workload if it has two. Their
  /// tokens may choose any experts: callers only ask if a model and a deployment can have the
  /// trace. Generators need not draw. Throws what trace() does.
  virtual RoutingTrace outline(const MoeModel& model, std::uint64_t seed) const {
    return trace(model, seed);
  }
  /// Remark on requests that are left out or that a user may not expect; empty: there are none.
  virtual std::string remark() const { return {}; }
};

/// The table: uniform, popularity, counts, observed, topical, recorded.
const Registry<Gating>& gatings();

}  // namespace moesim
