// SPDX-License-Identifier: Apache-2.0
#include "tools/lab/validation/calibration.hpp"

#include <algorithm>
#include <cmath>
#include <set>

#include <Eigen/QR>
#include <fmt/format.h>

#include "hardware/at.hpp"
#include "sim/report/statistics.hpp"

namespace moesim {

namespace {

using Eigen::Index;
using Eigen::MatrixXd;
using Eigen::VectorXd;

/// sum of r^2/2 near zero, |r| huber beyond.
double huber_sum(const VectorXd& residuals, double huber) {
  double sum = 0;
  for (const double r : residuals) {
    const double size = std::abs(r);
    sum += size <= huber ? size * size / 2 : huber * (size - huber / 2);
  }
  return sum;
}

}  // namespace

double three_digits(double x) { return std::stod(fmt::format("{:.3g}", x)); }

std::vector<double> octave_weights(std::span<const double> values, double most) {
  const auto octave = [](double value) { return std::llround(std::log2(value)); };
  std::map<long long, double> octaves;
  for (const double value : values) octaves[octave(value)] += 1;
  const double mean = double(values.size()) / double(octaves.size());
  std::vector<double> weights;
  for (const double value : values)
    weights.push_back(std::min(most, mean / octaves[octave(value)]));
  return weights;
}

void widen(Calibration& c, double bytes, double flops) {
  const auto add = [](auto& range, double value) {
    const double low = three_digits(value), high = three_digits(value * 1.01);
    range = {range.max == 0 ? low : std::min(range.min, low), std::max(range.max, high)};
  };
  add(c.bytes, bytes);
  add(c.flops, flops);
}

std::vector<double> fit_least_squares(
    std::span<const Unknown> unknowns,
    const std::function<std::vector<double>(std::span<const double>)>& residuals, double huber) {
  const auto n = static_cast<Index>(unknowns.size());
  const auto evaluate = [&](const VectorXd& logs) {
    std::vector<double> x(unknowns.size());
    for (Index i = 0; i < n; ++i) x[at(i)] = std::exp(logs[i]);
    const std::vector<double> r = residuals(x);
    return VectorXd(Eigen::Map<const VectorXd>(r.data(), static_cast<Index>(r.size())));
  };
  const auto bounded = [&](VectorXd logs) {
    for (Index i = 0; i < n; ++i) {
      const Unknown& u = unknowns[at(i)];
      logs[i] = std::clamp(logs[i], std::log(u.min), std::log(u.max));
    }
    return logs;
  };

  VectorXd x(n);
  for (Index i = 0; i < n; ++i) x[i] = std::log(unknowns[at(i)].start);
  VectorXd r = evaluate(x);
  double cost = huber_sum(r, huber);
  constexpr double difference = 1e-3;
  double damping = 1e-2;
  for (int step = 0; step < 200 && damping < 1e8; ++step) {
    // sqrt of the weights that make a square of the Huber loss, stacked on the damping.
    const VectorXd weights = r.unaryExpr([&](double value) {
      return std::sqrt(std::min(1.0, huber / std::max(1e-12, std::abs(value))));
    });
    MatrixXd system = MatrixXd::Zero(r.size() + n, n);
    VectorXd right = VectorXd::Zero(r.size() + n);
    for (Index i = 0; i < n; ++i) {
      VectorXd moved = x;
      moved[i] += x[i] + difference <= std::log(unknowns[at(i)].max) ? difference : -difference;
      system.col(i).head(r.size()) = weights.cwiseProduct(evaluate(moved) - r) / (moved[i] - x[i]);
      system(r.size() + i, i) = std::sqrt(damping);
    }
    right.head(r.size()) = -weights.cwiseProduct(r);
    const VectorXd next = bounded(x + system.colPivHouseholderQr().solve(right));
    const VectorXd next_r = evaluate(next);
    const double next_cost = huber_sum(next_r, huber);
    if (next_cost >= cost) {
      damping *= 4;
      continue;
    }
    const bool settled = cost - next_cost < 1e-10 * cost;
    x = next;
    r = next_r;
    cost = next_cost;
    damping = std::max(1e-9, damping / 3);
    if (settled) break;
  }
  std::vector<double> fitted(unknowns.size());
  for (Index i = 0; i < n; ++i) fitted[at(i)] = std::exp(x[i]);
  return fitted;
}

namespace {

Precision precision_of(const MeasuredPoint& point) {
  if (point.precision == "fp8_block") return Precision::fp8_block;
  if (point.precision == "w4a16_mxfp4") return Precision::mxfp4;
  return Precision::bf16;
}

/// Points of one family on one GPU, and what they say.
class Family {
 public:
  Family(std::vector<const MeasuredPoint*> points, const OperationPredictor& predictor,
         const GpuSpec& gpu)
      : points_(std::move(points)), predictor_(predictor), gpu_(gpu) {}

  std::vector<double> residuals(const GpuSpec& gpu) const {
    std::vector<double> logs;
    for (const MeasuredPoint* point : points_) {
      const Predicted predicted = predictor_.predict(*point, gpu);
      if (const auto* prediction = std::get_if<Prediction>(&predicted))
        logs.push_back(std::log(prediction->value / point->value));
    }
    return logs;
  }
  std::vector<double> errors(const GpuSpec& gpu) const {
    std::vector<double> errors;
    for (const double log : residuals(gpu)) errors.push_back(std::abs(std::exp(log) - 1));
    return errors;
  }
  /// The largest bytes and flops of any point.
  Calibration calibration(const GpuSpec& gpu) const {
    Calibration c;
    const std::vector<double> relative = errors(gpu);
    c.points = static_cast<int>(relative.size());
    c.median_error = three_digits(median(relative));
    for (const MeasuredPoint* point : points_) {
      const Predicted predicted = predictor_.predict(*point, gpu);
      if (const auto* prediction = std::get_if<Prediction>(&predicted))
        widen(c, prediction->bytes, prediction->flops);
    }
    return c;
  }
  std::set<Precision> precisions() const {
    std::set<Precision> all;
    for (const MeasuredPoint* point : points_) all.insert(precision_of(*point));
    return all;
  }
  /// Numbers of GPUs that took part.
  std::set<int> sizes() const {
    std::set<int> all;
    for (const MeasuredPoint* point : points_) all.insert(point->gpus);
    return all;
  }
  const GpuSpec& gpu() const { return gpu_; }

 private:
  std::vector<const MeasuredPoint*> points_;
  const OperationPredictor& predictor_;
  const GpuSpec& gpu_;
};

/// The GPU whose constants, set by `make(x, gpu)`, fit the family best.
template <class Make>
GpuSpec fitted(const Family& family, std::span<const Unknown> unknowns, Make make) {
  const auto with = [&](std::span<const double> x) {
    GpuSpec gpu = family.gpu();
    make(x, gpu);
    return gpu;
  };
  return with(fit_least_squares(
      unknowns, [&](std::span<const double> x) { return family.residuals(with(x)); }));
}

GpuSpec fit_kernel(const Family& family, const Kernel& kernel) {
  const std::set<Precision> precisions = family.precisions();
  // Loads and arithmetic that did not overlap at all would hide an expert's padding in f. Kernels
  // are pipelined, so that far down the bound does not go.
  std::vector<Unknown> unknowns{{10, 0.5, 100}, {0.8, 0.3, 0.98}, {2, 1.5, 16}};
  for (std::size_t i = 0; i < precisions.size(); ++i) unknowns.push_back({0.5, 0.05, 0.98});
  return fitted(family, unknowns, [&](std::span<const double> x, GpuSpec& gpu) {
    KernelConstants& constants = gpu.kernels[&kernel];
    constants.launch = Seconds(x[0] * 1e-6);
    constants.bandwidth_share = x[1];
    constants.overlap = x[2];
    constants.by_precision.clear();
    constants.peak_share.clear();
    std::size_t next = 3;
    for (const Precision precision : precisions) constants.peak_share[precision] = x[next++];
  });
}

GpuSpec fit_collective(const Family& family, const Kernel& kernel) {
  // On one number of GPUs the launch cannot be told from what each GPU adds.
  const double most_per_gpu = family.sizes().size() > 1 ? 10 : 0.001;
  const std::vector<Unknown> unknowns{
      {8, 0.5, 100}, {most_per_gpu / 20, 5e-5, most_per_gpu}, {0.7, 0.05, 0.98}, {5, 0.001, 200}};
  return fitted(family, unknowns, [&](std::span<const double> x, GpuSpec& gpu) {
    CollectiveConstants& constants = gpu.collectives[&kernel];
    constants.launch = Seconds(x[0] * 1e-6);
    constants.per_gpu = Seconds(x[1] * 1e-6);
    constants.bandwidth_share = x[2];
    constants.ramp = Seconds(x[3] * 1e-6);
  });
}

std::string described(const Calibration& c, std::string_view source) {
  return fmt::format("calibrated on {} points, median error {:.1f} %: {}", c.points,
                     c.median_error * 100, source);
}

std::string in_microseconds(Seconds time) { return fmt::format("{:.3g} us", time.count() * 1e6); }

std::string name_of(Precision precision) { return std::string(precision_names[at(precision)]); }

OrderedJson to_json(const Calibration& c) {
  OrderedJson json{{"points", c.points},
                   {"median_error", c.median_error},
                   {"bytes", {c.bytes.min, c.bytes.max}}};
  if (c.precisions.empty()) return json;
  json["flops"] = {c.flops.min, c.flops.max};
  for (const Precision precision : c.precisions) json["precisions"].push_back(name_of(precision));
  return json;
}

}  // namespace

std::vector<FittedConstants> calibrate(std::span<const MeasuredPoint> points,
                                       const std::string& gpu_name,
                                       const OperationPredictor& predictor, GpuSpec& gpu,
                                       std::string_view source) {
  constexpr std::size_t fewest = 4;
  std::map<const Kernel*, std::vector<const MeasuredPoint*>> measured;
  for (const MeasuredPoint& point : points) {
    const Kernel* const kernel = kernel_timed_by(point.category, point.operation);
    // Crossing nodes is the network's matter, not the GPU's.
    const bool one_domain = point.nodes <= 1 || point.interconnect.starts_with("NVL72");
    if (gpu_file(point.gpu) != gpu_name || kernel == nullptr || !one_domain) continue;
    if (std::holds_alternative<Prediction>(predictor.predict(point, gpu)))
      measured[&kernel->constants()].push_back(&point);
  }
  std::vector<FittedConstants> all;
  for (const Kernel* kernel : kernels()) {
    const auto found = measured.find(kernel);
    if (found == measured.end() || found->second.size() < fewest) continue;
    const Family family(found->second, predictor, gpu);
    const auto take = [&](const GpuSpec& best, auto& constants) {
      constants.source = described(*constants.calibration, source);
      all.push_back({kernel, constants.calibration->points, constants.calibration->median_error,
                     nearest_rank(family.errors(best), 0.9)});
    };
    if (kernel->law == Law::roofline) {
      const GpuSpec best = fit_kernel(family, *kernel);
      KernelConstants constants = best.kernel(*kernel);
      constants.calibration = family.calibration(best);
      for (const Precision precision : family.precisions())
        constants.calibration->precisions.push_back(precision);
      take(best, constants);
      gpu.kernels[kernel] = std::move(constants);
    } else {
      const GpuSpec best = fit_collective(family, *kernel);
      CollectiveConstants constants = best.collective(*kernel);
      constants.calibration = family.calibration(best);
      take(best, constants);
      gpu.collectives[kernel] = std::move(constants);
    }
  }
  return all;
}

OrderedJson to_json(const KernelConstants& k) {
  OrderedJson shares;
  for (const auto& [precision, g] : k.peak_share) shares[name_of(precision)] = three_digits(g);
  OrderedJson json{{"launch", in_microseconds(k.launch)},
                   {"bandwidth_share", three_digits(k.bandwidth_share)},
                   {"peak_share", shares},
                   {"overlap", three_digits(k.overlap)},
                   {"tile_m", k.tile_m},
                   {"tile_n", k.tile_n}};
  if (k.copies > 0) json["copies"] = three_digits(k.copies);
  if (k.held_copies > 0) json["held_copies"] = three_digits(k.held_copies);
  for (const auto& [precision, own] : k.by_precision) {
    OrderedJson& row = json["by_precision"][name_of(precision)];
    row = {{"launch", in_microseconds(own.launch)},
           {"bandwidth_share", three_digits(own.bandwidth_share)},
           {"overlap", three_digits(own.overlap)}};
    if (own.copies > 0) row["copies"] = three_digits(own.copies);
    if (own.held_copies > 0) row["held_copies"] = three_digits(own.held_copies);
  }
  if (k.calibration) json["calibration"] = to_json(*k.calibration);
  json["source"] = k.source;
  return json;
}

OrderedJson to_json(const CollectiveConstants& c) {
  OrderedJson json{{"launch", in_microseconds(c.launch)},
                   {"per_gpu", in_microseconds(c.per_gpu)},
                   {"bandwidth_share", three_digits(c.bandwidth_share)},
                   {"ramp", in_microseconds(c.ramp)}};
  if (c.calibration) json["calibration"] = to_json(*c.calibration);
  json["source"] = c.source;
  return json;
}

}  // namespace moesim
