// SPDX-License-Identifier: Apache-2.0
#include "tools/validation/validation.hpp"

#include <algorithm>
#include <cmath>

#include <tbb/enumerable_thread_specific.h>
#include <tbb/parallel_for.h>

#include "tools/validation/predict_serving.hpp"

namespace moesim {

namespace {

/// The smallest value that `share` of the values do not exceed.
double quantile(std::vector<double> values, double share) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const auto rank = std::ceil(share * static_cast<double>(values.size()));
  return values[static_cast<std::size_t>(std::max(1.0, rank)) - 1];
}

}  // namespace

double ValidatedPoint::error_pct() const {
  if (!failure.empty()) return 100;
  return (std::get<Prediction>(predicted).value / point.value - 1) * 100;
}

std::vector<ValidatedPoint> validate(const std::vector<MeasuredPoint>& points,
                                     const std::filesystem::path& root,
                                     const std::map<std::string, std::filesystem::path>& gpus) {
  std::map<std::string, GpuSpec> given;
  for (const auto& [name, file] : gpus) given[name] = read_gpu(ConfigNode::from_file(file));
  std::vector<ValidatedPoint> all;
  for (const MeasuredPoint& point : points) all.push_back({point, Skipped{}, {}});
  ServingPredictor serving(root);
  tbb::enumerable_thread_specific<OperationPredictor> operations([&] {
    OperationPredictor predictor(root);
    for (const auto& [name, gpu] : given) predictor.use(name, gpu);
    return predictor;
  });
  tbb::parallel_for(std::size_t{0}, all.size(), [&](std::size_t i) {
    ValidatedPoint& p = all[i];
    const bool whole = p.point.category == "e2e" || p.point.category == "prefill";
    try {
      p.predicted = whole ? serving.predict(p.point) : operations.local().predict(p.point);
    } catch (const std::exception& error) {
      p.failure = error.what();
    }
  });
  return all;
}

std::vector<std::string> categories_of(const MeasuredPoint& point) {
  if (point.category != "e2e") return {point.category};
  if (point.metric.starts_with("TPOT")) return {"e2e", "e2e/tpot"};
  if (point.metric.starts_with("TTFT")) return {"e2e", "e2e/ttft"};
  if (point.metric.starts_with("output_tok_s")) return {"e2e", "e2e/throughput"};
  return {"e2e"};
}

std::map<std::string, CategoryErrors> errors_by_category(
    const std::vector<ValidatedPoint>& points) {
  std::map<std::string, CategoryErrors> categories;
  std::map<std::string, std::vector<double>> errors;
  for (const ValidatedPoint& p : points) {
    for (const std::string& name : categories_of(p.point)) {
      CategoryErrors& category = categories[name];
      if (p.skipped()) {
        ++category.skipped;
        continue;
      }
      ++category.n;
      if (!p.failure.empty()) {
        ++category.failed;
      } else if (std::get<Prediction>(p.predicted).extrapolated) {
        ++category.extrapolated;
      }
      errors[name].push_back(p.error_pct());
    }
  }
  for (auto& [name, values] : errors) {
    CategoryErrors& category = categories[name];
    category.bias_pct = quantile(values, 0.5);
    for (double& value : values) value = std::abs(value);
    category.median_abs_pct = quantile(values, 0.5);
    category.p90_abs_pct = quantile(values, 0.9);
  }
  return categories;
}

}  // namespace moesim
