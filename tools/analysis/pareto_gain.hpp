// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tools/analysis/compare.hpp"
#include "tools/analysis/pareto.hpp"

namespace moesim {

/// The places (x, y) of a frontier, from the least x on; y gets better with x.
using Frontier = std::vector<std::pair<double, double>>;

/// The y that is had at x or less: of the best evaluated point, or where a straight line between
/// two neighbours passes x. Beyond the last point its y. Nothing before the first.
std::optional<double> step_value(const Frontier&, double x);
std::optional<double> interpolated_value(const Frontier&, double x);

/// Ratios candidate / baseline of y at equal x, both ways.
struct Gain {
  double x = 0, step = 1, interpolated = 1;
};

/// Gain of one frontier over another. It is within the range of x that both cover, from the greater
/// of their first points to the lesser of their last.
struct GroupGain {
  std::vector<Json> group;
  double first = 0, last = 0;  ///< the common range; first > last where there is none
  std::vector<Gain> at;        ///< at the places asked for that lie within
  Gain best_step{}, best_interpolated{};
  Gain median{};  ///< over the range, every x weighing the same; its x is unused
};

/// The gain for each group of `axes.by`, the compared pointers left out, that has finished points
/// of both sides. Without places, eight evenly spaced ones are taken in each range. Throws
/// ConfigError as compare() and pareto() do, and if no group has both sides.
struct ParetoGain {
  std::vector<std::string> group_names;
  std::string x_name, y_name, baseline, candidate;
  std::vector<GroupGain> groups;
};
ParetoGain pareto_gain(const StoredSweep&, const ParetoAxes&, std::span<const Setting> baseline,
                       std::span<const Setting> candidate, std::span<const double> places);

/// Gain of one frontier over another; the same of two lists of places.
GroupGain frontier_gain(const Frontier& baseline, const Frontier& candidate,
                        std::span<const double> places);

/// Gains of each group as JSON, under the names of GroupGain.
OrderedJson gain_json(const ParetoGain&);
/// For a terminal: a row per group and place, then one per group.
std::string gain_text(const ParetoGain&);

}  // namespace moesim
