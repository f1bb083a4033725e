// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "tools/bench/predict_operation.hpp"

namespace moesim {

/// A point and what became of it.
struct ValidatedPoint {
  MeasuredPoint point;
  Predicted predicted;
  std::string failure;    ///< the message of an exception: counts as wrong by 100 %
  bool by_sheet = false;  ///< nothing of its GPU was measured: a roofline, and no validation
  /// predicted / measured - 1, in percent; skipped points have none.
  double error_pct() const;
  bool skipped() const { return failure.empty() && std::holds_alternative<Skipped>(predicted); }
};

/// Sizes of errors.
inline std::vector<double> absolute(std::vector<double> errors) {
  for (double& error : errors) error = std::abs(error);
  return errors;
}

/// How far off the predictions of one category are, skipped points left out.
struct CategoryErrors {
  int n = 0;
  double median_abs_pct = 0, p90_abs_pct = 0;
  double bias_pct = 0;  ///< the median error with its sign
  int skipped = 0, failed = 0, extrapolated = 0;
};

/// Predicts every point, on all cores. `root` holds hardware/ and models/. Deployments are
/// simulated with `overrides`, a merge patch of their experiments. Throws NoSuchFile if `root`
/// lacks a file of a point.
std::vector<ValidatedPoint> validate(const std::vector<MeasuredPoint>&,
                                     const std::filesystem::path& root,
                                     const Json& overrides = Json::object(),
                                     const GpuFiles& gpus = {});

/// The categories a point counts in: its own and, of e2e and disaggregated, also e2e/tpot, e2e/ttft
/// or e2e/throughput. Points by a GPU's data sheet alone count in categories of their own,
/// "roofline e2e".
std::vector<std::string> categories_of(const MeasuredPoint&);

std::map<std::string, CategoryErrors> errors_by_category(const std::vector<ValidatedPoint>&);

/// Deployment that was measured: GPU, model, engine with version, precision.
std::string deployment_of(const MeasuredPoint&);

/// The errors of each category's groups, "category: group": whole deployments by GPU, model,
/// engine and precision, operations by GPU and precision.
std::map<std::string, CategoryErrors> errors_by_group(const std::vector<ValidatedPoint>&);
/// The errors of whole deployments, by category and engine.
std::map<std::string, CategoryErrors> errors_by_engine(const std::vector<ValidatedPoint>&);

}  // namespace moesim
