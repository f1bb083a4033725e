// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "tools/sweep/store.hpp"

namespace moesim {

/// A value of the axis in a group of points that are equal in everything else.
struct Alternative {
  Json value;                              ///< null where the config leaves it out
  std::vector<const StoredPoint*> points;  ///< done; they differ in the seed alone
  double metric = 0;  ///< what is maximised (or minimised), the mean over seeds
  /// Best of its group, or no further from the best than noise.
  bool best = false;
};

/// Points that differ in one axis alone.
struct Alternatives {
  std::vector<Json> settings;  ///< what tells this group from others, by BestChoice::axes
  std::vector<Alternative> values;
  std::size_t without = 0;  ///< points of the group that are not done or lack the metric
};

/// The best value of one axis, whatever else was chosen.
struct BestChoice {
  StoredSweep sweep;
  std::string over;    ///< pointer into the config
  std::string metric;  ///< pointer into the report
  bool lower_is_better = false;
  std::vector<Axis> axes;  ///< that tell groups apart
  std::vector<Alternatives> groups;
};

/// Places in a report of what tables show next to the metric.
std::vector<std::string> best_pointers();

/// Throws ConfigError if the sweep does not vary `over`, or no finished point has the metric.
BestChoice best_choice(StoredSweep, std::string over, std::string metric, bool lower_is_better);

/// Tables of at most 100 columns, per group. They have every value of the axis and what it gains
/// and costs against the first value. Columns are throughput, sequences in a decode step, decode
/// step time, and KV cache.
std::string best_text(const BestChoice&);
OrderedJson best_json(const BestChoice&);

}  // namespace moesim
