// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>

#include "hardware/registry.hpp"
#include "traces/requests/request_source.hpp"

namespace moesim {

/// Decides for how long HBM holds what an agent of a session had, between two of its requests. What
/// is held makes no room for waiting requests. It gives way where a running request would be
/// preempted, and where nothing could run. Pure.
class Retention {
 public:
  virtual ~Retention() = default;
  /// Returns until when blocks of an agent answered `now` are held, unless it is back before. It
  /// comes back as announced, perhaps once others were answered. Nothing: they are free at once.
  virtual std::optional<Time> until(Time now, const NextRequest&) const = 0;
  /// True if blocks are ever held.
  virtual bool holds() const { return true; }
};

/// The table: lru, ttl, announced.
const Registry<Retention>& retentions();

}  // namespace moesim
