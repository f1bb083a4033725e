// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tools/analysis/pareto.hpp"

namespace moesim {

/// Axes that tell the curves of a chart apart when none is asked for: those whose values differ.
/// Left out are those along which one curve runs (load, batch limits, parallel plan, seed). So are
/// those that others imply, e.g. a dispatch that goes with a routing policy. While that makes more
/// groups than a reader tells apart, the axis with the most values is left out.
std::vector<std::string> default_groups(const StoredSweep&);

struct PageOptions {
  ParetoAxes axes;       ///< shown first; the page has a choice of others. `by` is used as it is.
  std::string store;     ///< the store's name, shown
  std::string base;      ///< the experiment file that commands name; empty: as the sweep names it
  std::string chosen{};  ///< config hash of the point that the page opens on; empty: its own choice
};

/// True if any of the points was run under an SLO: goodput is then the question.
bool has_objectives(const StoredSweep&);

/// The whole report of a point of which part was read.
using ReportOf = std::function<Json(const StoredPoint&)>;

/// Places in a report of what the page shows of every point.
std::vector<std::string> page_pointers(const PageOptions&);

/// Data of the page, as JSON: "metrics" to choose axes from; "groups"; "points" with their metrics,
/// mean step by part, loads by layer and rank, and command. A point's resolved config is a JSON
/// patch on "config" (that of the first point). Also "comparisons" between the values of each
/// grouping axis, and "unfinished" points and why. Of points off the frontiers first loads, then
/// steps and config are left out once there are more than a page should carry. Without `report_of`
/// the points hold their whole reports. Throws ConfigError as pareto() does.
OrderedJson page_data(StoredSweep, const PageOptions&, const ReportOf& report_of = {});

/// The page of a store, whose file name it shows. Nothing in `by`: default_groups(). No y: goodput
/// where points have an SLO, else output throughput per GPU. Throws ConfigError as report_page().
struct StorePage {
  std::string html;
  std::string points;  ///< how many there are, by status
};
StorePage store_page(const std::filesystem::path& store, PageOptions);

/// Returns one HTML file that needs no other and no network. Throws ConfigError if moesim was built
/// without ECharts.
std::string report_page(const OrderedJson& data);

}  // namespace moesim
