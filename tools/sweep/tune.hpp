// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <vector>

namespace moesim {

/// One value of each coordinate.
using TunePlace = std::vector<std::size_t>;

/// What one run under one load showed.
struct Trial {
  double goodput = 0;  ///< requests/s that met the SLO
  bool meets = false;  ///< whether enough of them did
};

/// What is searched: places on a grid, each under rising loads.
struct TuneProblem {
  std::vector<std::size_t> sizes;  ///< values of each coordinate
  std::size_t loads = 0;           ///< numbered from the lightest
  /// A goodput that the place cannot exceed under any load, cheap to ask for; nothing where the
  /// grid has no such place or it cannot be run.
  std::function<std::optional<double>(const TunePlace&)> bound;
  /// Runs a place that has a bound. Called once per place and load.
  std::function<Trial(const TunePlace&, std::size_t load)> run;
};

struct TuneResult {
  TunePlace place;
  std::optional<std::size_t> load;  ///< nothing where no run met the SLO
  double goodput = 0;
  std::size_t runs = 0;
  std::size_t pruned = 0;  ///< places ruled out by their bound alone
};

/// The place and load of the largest goodput that meets the SLO: coordinate search from the place
/// of the best bound, with bisection on the load. It takes for granted that a place which misses
/// the SLO under one load misses it under heavier ones, and finds an optimum that no change of one
/// or two coordinates improves. Ties stay with the first found.
TuneResult tune(const TuneProblem&);

}  // namespace moesim
