// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sim/report/metric_catalogue.hpp"
#include "tools/sweep/store.hpp"

namespace moesim {

/// Which (x, y) no other point dominates: none has a smaller or equal x and a larger or equal y,
/// one strictly. Equal points stand together on the frontier or not at all.
std::vector<bool> frontier(std::span<const std::pair<double, double>> points);

/// Axes that a frontier is drawn of. Pointers lead into the report ("/metrics/..",
/// "/context/config/.."), or, where that has none, into the config ("/token_routing/decode").
struct ParetoAxes {
  std::string x{metric("median_tpot_ms").pointer};        ///< to minimise
  std::string y{metric("tokens_per_s_per_gpu").pointer};  ///< to maximise, unless ...
  bool least_y = false;                                   ///< ... it is to be minimised: a cost
  std::vector<std::string> by = {};                       ///< a frontier for each of their values
  bool each_seed = false;  ///< runs that differ in their seed alone are points of their own
};

struct ParetoPoint {
  std::string config_hash;     ///< of its first run
  std::vector<Json> group;     ///< values of `by`, null where a point has none
  std::vector<Json> settings;  ///< values of the other axes that vary, null where a point has none
  std::optional<double> x, y;  ///< nothing where the report has null, e.g. a TPOT of no request
  std::size_t runs = 1;        ///< that differ in their seed alone; x and y are their means
  bool on_frontier = false;    ///< of its group
};

/// Every done point of a store, sorted by group and x.
struct Pareto {
  std::vector<std::string> group_names, setting_names;
  std::string x_name, y_name;
  std::string x_label, y_label;  ///< in words with the unit, for a plot; a name where it has none
  std::string title;  ///< "Qwen3-30B-A3B on 8 x A100": what all points share; may be empty
  bool least_y = false;
  std::vector<ParetoPoint> points;
};

/// Throws ConfigError if the store has no done point, or a pointer is found in no point.
Pareto pareto(const StoredSweep&, const ParetoAxes&);

/// A name of `group_names` or `setting_names` in words for plots and pages:
/// "token_routing/decode" as "decode token routing".
std::string name_in_words(std::string_view name);
/// "replication=1.5, decode=metro", or "all points".
std::string group_text(const Pareto&, const ParetoPoint&);
/// Texts of each grouping axis' values for plots: "replication 1.5", "metro". As texts_apart().
std::vector<std::map<Json, std::string>> group_words(const Pareto&);
/// Its points, group after group.
std::vector<std::span<const ParetoPoint>> groups_of(const Pareto&);

/// The points on the frontiers, for a terminal.
std::string pareto_text(const Pareto&);
/// A row for each point: config_hash, group and settings, x and y under their names, on_frontier (0
/// or 1).
OrderedJson pareto_rows(const Pareto&);

}  // namespace moesim
