// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "sim/experiment/spec.hpp"
#include "sim/experiment/trace_fits.hpp"
#include "traces/gating/gating.hpp"

namespace moesim {

/// Choices of the tokens of a load.
struct Traces {
  RoutingTrace decode;                  ///< of both phases, unless prefill has its own
  std::optional<RoutingTrace> prefill;  ///< if prefill has its own
  std::string remark{};                 ///< Gating::remark()
  /// Fits that were made on these traces already. Other traces need another object.
  std::shared_ptr<TraceFits> fits = std::make_shared<TraceFits>();
};

/// Routing traces that several experiments share, with what was fitted on them: a sweep opens or
/// generates each one once. Thread-safe.
class TraceLibrary {
 public:
  /// Contents of generated traces; outlines do where no copies go by loads (`by_gain`).
  enum class Holds { traces, outlines };
  explicit TraceLibrary(Holds holds = Holds::traces) : holds_(holds) {}

  /// Opens or generates what a spec names, all of whose pools have the same. Throws ConfigError.
  Traces open(const ExperimentSpec&);

 private:
  RoutingTrace get(const std::string& key, const ConfigNode& gating, const PoolSpec&, Holds,
                   std::string& remark);

  Holds holds_;
  Memo<RoutingTrace> traces_{std::numeric_limits<std::size_t>::max()};
  std::mutex mutex_;  // of the map
  std::map<std::string, std::shared_ptr<TraceFits>> fits_;
};

}  // namespace moesim
