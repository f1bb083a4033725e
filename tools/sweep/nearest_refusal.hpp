// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <limits>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <tbb/parallel_for.h>
#include <tbb/task_arena.h>

#include "sim/experiment/does_not_fit.hpp"
#include "tools/sweep/slo_search.hpp"

namespace moesim {

/// Reason why one of the places that cannot be run cannot: the one that lacks the least memory on a
/// GPU. Where none lacks memory, the first. Ties: the first.
class NearestRefusal {
 public:
  void add(std::size_t place, const ConfigError& error) {
    const auto* full = dynamic_cast<const DoesNotFit*>(&error);
    const double missing =
        full == nullptr ? std::numeric_limits<double>::infinity() : full->missing.value();
    ++count_;
    if (count_ > 1 && (missing > missing_ || (missing == missing_ && place > place_))) return;
    missing_ = missing;
    place_ = place;
    why_ = error.what();
  }
  std::size_t count() const { return count_; }
  std::size_t place() const { return place_; }
  const std::string& why() const { return why_; }
  /// Why the place cannot be run, and how many others cannot.
  std::string text(const Json& config) const {
    if (count_ < 2) return why_;
    const bool lacks_memory = missing_ < std::numeric_limits<double>::infinity();
    const std::string layout =
        config.contains("parallel") ? fmt::format(" {}", config.at("parallel").dump()) : "";
    return fmt::format("{} (none of the {} points can be run; this is {})", why_, count_,
                       lacks_memory ? "the one nearest to fitting:" + layout : "the first");
  }

 private:
  std::size_t count_ = 0, place_ = 0;
  double missing_ = 0;
  std::string why_;
};

/// Bounds the places from `first` on by bound(place), side by side. Nothing where one is refused,
/// or once the hooks stop it.
template <class Bound>
void bound_all(std::vector<std::optional<TuneBound>>& bounds, std::size_t first,
               const SloHooks& hooks, NearestRefusal& refused, Bound&& bound) {
  std::mutex mutex;
  std::size_t done = 0;
  tbb::parallel_for(first, bounds.size(), [&](std::size_t place) {
    if (hooks.stop()) return;
    tbb::this_task_arena::isolate([&] {
      try {
        bounds[place] = bound(place);
      } catch (const ConfigError& error) {
        const std::lock_guard lock(mutex);
        refused.add(place, error);
      }
    });
    const std::lock_guard lock(mutex);
    hooks.bounded(++done, bounds.size());
  });
}

}  // namespace moesim
