// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "sim/experiment/experiment.hpp"
#include "sim/report/metric_catalogue.hpp"

namespace moesim {

/// A number that predicted times are made of, and that may be wrong.
struct PriceConstant {
  std::string name;   ///< "all_gather launch"
  std::string basis;  ///< "fitted, error 8.8 %", "family default", "cluster file", "setting"
  /// Multiplies the constant in one pool. A share stays at or below 1.
  std::function<void(Deployment&, double factor)> scale;
};

/// Constants that the prices of some experiments may use, in this order. First are times that
/// tables guess between their points or from a sibling GPU (a table's go together). Then come
/// constants of kernels and links, the network, charges, the API server. Times at measured points
/// are left out. A constant that no experiment uses is there too, and changes nothing. A name is
/// there once, with the basis of the first experiment that has it.
std::vector<PriceConstant> price_constants(const std::vector<Experiment>&);

/// Effect on some deployments if one constant is wrong.
struct SensitivityRow {
  std::string name, basis;
  std::vector<double> less, more;  ///< the metric of each deployment: a smaller, a larger constant
};

/// Deployments under one metric, and every constant that moves the metric of any of them.
struct Sensitivity {
  std::string metric;            ///< its name
  bool lower_is_better = false;  ///< for times
  double by = .3;                ///< a constant is multiplied by 1 - by and by 1 + by
  std::vector<std::string> deployments;
  std::vector<double> as_it_is;
  /// Rows that turn the ranking come first, then the ones that move the lead most. With one
  /// deployment: the ones that move its metric most. Of equals the first in price_constants().
  std::vector<SensitivityRow> rows;

  /// Which deployment is best by these values; of equals the first.
  std::size_t best(const std::vector<double>& values) const;
  /// The lead of the deployment that is best as it is over the best of the others, as a share;
  /// negative where another one is ahead. With one deployment: the change of its metric.
  double lead(const std::vector<double>& values) const;
  /// True if another deployment is ahead under either value of a constant.
  bool turns(const SensitivityRow&) const;
};

/// Runs each deployment as it is, then under a smaller and a larger value of every constant, one at
/// a time, with the same seed. Runs go side by side; the answer is the same for any number of
/// threads. `progress` is told how many runs of how many are done; `stop` ends the work early, with
/// no answer. Throws ConfigError if a run has no such metric.
std::optional<Sensitivity> sensitivity(
    const std::vector<std::string>& names, const std::vector<Experiment>&, const Metric&, double by,
    const std::function<void(std::size_t, std::size_t)>& progress,
    const std::function<bool()>& stop);

/// A table of at most 100 columns with what turns the ranking below.
std::string sensitivity_text(const Sensitivity&);
OrderedJson sensitivity_json(const Sensitivity&);

}  // namespace moesim
