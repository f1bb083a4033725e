// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include "hardware/registry.hpp"
#include "hardware/units.hpp"

namespace moesim {

/// Rule for how long HBM holds what an agent of a session had, between two of its requests. What is
/// held makes no room for waiting requests. It gives way where a running request would be
/// preempted, and where nothing could run.
class Retention {
 public:
  /// Without `ttl` what a request had is free when the request ends.
  explicit Retention(std::optional<Seconds> ttl = {}) : ttl_(ttl) {}
  /// Returns until when blocks of an agent answered `now` are held, unless it is back before.
  std::optional<Time> until(Time now) const {
    return ttl_ ? std::optional(now + to_duration(*ttl_)) : std::nullopt;
  }
  /// True if blocks are ever held.
  bool holds() const { return ttl_.has_value(); }

 private:
  std::optional<Seconds> ttl_;
};

/// The table: lru, ttl.
const Registry<Retention>& retentions();

}  // namespace moesim
