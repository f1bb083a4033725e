// SPDX-License-Identifier: Apache-2.0
#include "tools/bench/validation.hpp"

#include <algorithm>

#include <fmt/format.h>
#include <tbb/enumerable_thread_specific.h>
#include <tbb/parallel_for.h>

#include "hardware/no_such_file.hpp"
#include "sim/report/statistics.hpp"
#include "tools/bench/impossible.hpp"
#include "tools/bench/predict_serving.hpp"
#include "tools/bench/serving_deployment.hpp"

namespace moesim {

namespace {

bool is_serving(const MeasuredPoint& point) {
  return point.category == "e2e" || point.category == "disaggregated";
}

// True if no kernel and no collective of a GPU was measured.
bool is_data_sheet(const MeasuredPoint& point, const std::filesystem::path& root,
                   const GpuFiles& gpus) {
  const std::filesystem::path file = gpu_path(point.gpu, root, gpus);
  if (file.empty() || !std::filesystem::exists(file)) return false;
  const GpuSpec gpu = read_gpu(ConfigNode::from_file(file));
  const auto fitted = [](const auto& of_kernel) {
    return of_kernel.second.calibration.has_value();
  };
  return gpu.profiles.empty() && std::ranges::none_of(gpu.kernels, fitted) &&
         std::ranges::none_of(gpu.collectives, fitted);
}

}  // namespace

double ValidatedPoint::error_pct() const {
  if (!failure.empty()) return 100;
  return (std::get<Prediction>(predicted).value / point.value - 1) * 100;
}

std::vector<ValidatedPoint> validate(const std::vector<MeasuredPoint>& points,
                                     const std::filesystem::path& root, const Json& overrides,
                                     const GpuFiles& gpus) {
  std::map<std::string, GpuSpec> given;
  for (const auto& [name, file] : gpus) given[name] = read_gpu(ConfigNode::from_file(file));
  std::vector<ValidatedPoint> all;
  for (const MeasuredPoint& point : points) all.push_back({point, Skipped{}, {}});
  ServingPredictor serving(root, overrides, gpus);
  tbb::enumerable_thread_specific<OperationPredictor> operations([&] {
    OperationPredictor predictor(root);
    for (const auto& [name, gpu] : given) predictor.use(name, gpu);
    return predictor;
  });
  std::vector<std::optional<NoSuchFile>> missing(all.size());
  tbb::parallel_for(std::size_t{0}, all.size(), [&](std::size_t i) {
    ValidatedPoint& p = all[i];
    const bool whole = is_serving(p.point) || p.point.category == "prefill";
    try {
      p.predicted = whole ? serving.predict(p.point) : operations.local().predict(p.point);
    } catch (const NoSuchFile& error) {
      missing[i] = error;
    } catch (const std::exception& error) {
      p.failure = error.what();
    }
  });
  for (const auto& file : missing) {
    if (file) throw *file;
  }
  skip_jumps(all);
  std::map<std::string, bool> by_sheet;
  for (ValidatedPoint& p : all) {
    const auto [found, unseen] = by_sheet.try_emplace(p.point.gpu);
    if (unseen) found->second = is_data_sheet(p.point, root, gpus);
    p.by_sheet = found->second;
  }
  return all;
}

std::vector<std::string> categories_of(const MeasuredPoint& point) {
  const std::string& c = point.category;
  if (!is_serving(point)) return {c};
  if (point.metric.starts_with("TPOT")) return {c, c + "/tpot"};
  if (point.metric.starts_with("TTFT")) return {c, c + "/ttft"};
  if (point.metric.starts_with("output_tok_s")) return {c, c + "/throughput"};
  return {c};
}

namespace {

using Names = std::vector<std::string>;

std::string version_of(const MeasuredPoint& point) {
  const EngineVersion engine = engine_of(point);
  return engine.version.empty() ? engine.name : engine.name + " " + engine.version;
}

}  // namespace

std::string deployment_of(const MeasuredPoint& point) {
  return fmt::format("{} {} {} {}", point.gpu, point.model, version_of(point), point.precision);
}

namespace {

Names groups_of_point(const MeasuredPoint& point) {
  const std::string last = categories_of(point).back();
  if (!is_serving(point)) return {fmt::format("{}: {} {}", last, point.gpu, point.precision)};
  return {fmt::format("{}: {}", last, deployment_of(point))};
}

Names engines_of_point(const MeasuredPoint& point) {
  if (!is_serving(point)) return {};
  return {fmt::format("{}: {}", categories_of(point).back(), engine_of(point).name)};
}

std::map<std::string, CategoryErrors> errors_by(const std::vector<ValidatedPoint>& points,
                                                Names (*names_of)(const MeasuredPoint&)) {
  std::map<std::string, CategoryErrors> categories;
  std::map<std::string, std::vector<double>> errors;
  for (const ValidatedPoint& p : points) {
    for (const std::string& of_point : names_of(p.point)) {
      const std::string name = (p.by_sheet ? "roofline " : "") + of_point;
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
    category.bias_pct = median(values);
    category.median_abs_pct = median(absolute(values));
    category.p90_abs_pct = nearest_rank(absolute(values), 0.9);
  }
  return categories;
}

}  // namespace

std::map<std::string, CategoryErrors> errors_by_category(const std::vector<ValidatedPoint>& p) {
  return errors_by(p, categories_of);
}
std::map<std::string, CategoryErrors> errors_by_group(const std::vector<ValidatedPoint>& p) {
  return errors_by(p, groups_of_point);
}
std::map<std::string, CategoryErrors> errors_by_engine(const std::vector<ValidatedPoint>& p) {
  return errors_by(p, engines_of_point);
}

}  // namespace moesim
