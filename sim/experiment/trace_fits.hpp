// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>

#include "sim/placement/placement.hpp"

namespace moesim {

/// Values by the text of what they follow from: whatever asks for the same text again gets the
/// value that was made first. Holds so many, then begins anew. Thread-safe.
template <class Value>
class Memo {
 public:
  explicit Memo(std::size_t held = 64) : held_(held) {}
  std::shared_ptr<const Value> get(const std::string& key, const std::function<Value()>& make);

 private:
  struct Entry {
    std::once_flag made;
    std::shared_ptr<const Value> value;
  };
  std::size_t held_;
  std::mutex mutex_;  // of the map alone: different values are made side by side
  std::map<std::string, std::shared_ptr<Entry>> entries_;
};

/// Fits of one pair of traces: the points of a sweep ask for the same statistics and placements.
/// Thread-safe.
class TraceFits {
 public:
  /// observe() of these traces, which must be the same in every call.
  std::shared_ptr<const ExpertStatistics> seen(std::span<const RoutingTrace* const>,
                                               const Observation&);
  /// The placement that a placer makes of these traces; `key` says as text all that it goes by.
  std::shared_ptr<const ExpertPlacement> placement(const std::string& key,
                                                   const std::function<ExpertPlacement()>& make) {
    return placements_.get(key, make);
  }

 private:
  Memo<ExpertStatistics> seen_;
  Memo<ExpertPlacement> placements_;
};

}  // namespace moesim
