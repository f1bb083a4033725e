// SPDX-License-Identifier: Apache-2.0
#include "tools/lab/validation/family_calibration.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <tuple>

#include <fmt/format.h>

#include "hardware/tables/table_file.hpp"
#include "sim/report/statistics.hpp"
#include "tools/bench/validation.hpp"
#include "tools/lab/validation/calibration.hpp"

namespace moesim {

namespace {

// Calls alike: the same work of the same shape.
using Alike = std::tuple<std::string_view, Precision, Precision, std::string, double, double>;
Alike alike(const FamilyCall& c) {
  // Draws of experts differ in the last digits.
  const auto about = [](double x) { return std::round(std::log2(x) * 8); };
  return {c.kernel->name,
          c.operands.weights,
          c.operands.activations,
          c.shape,
          about(c.work.work.flops.value()),
          about(c.work.work.hbm.value())};
}

}  // namespace

double ratio_of(const FamilyCall& call, const GpuSpec& gpu) {
  TiledWork work = call.work;
  const PrecisionConstants c = gpu.kernel(*call.kernel).of(call.operands.weights);
  work.work.copied = Bytes(c.copies * call.copied + c.held_copies * call.held_copied);
  const Roofline roofline(call.operands, *call.kernel, gpu);
  return tiled_cost(work, roofline).time.count() * 1e6 / call.us;
}

namespace {

/// Calls of one precision by one kernel on all GPUs, and the fit of their constants.
class PrecisionFit {
 public:
  void add(const FamilyCall& call, std::size_t gpu) { calls_.push_back({&call, gpu, 0}); }
  std::size_t calls() const { return calls_.size(); }

  /// The constants with the precision's own; false where none fit: calls of kernels that have
  /// nothing in common.
  bool fit(std::span<const MeasuredGpu* const> gpus, KernelConstants& constants) {
    const Kernel* const kernel = calls_.front().call->kernel;
    const Precision precision = calls_.front().call->operands.weights;
    weigh(gpus);
    std::vector<GpuSpec> made;
    for (const MeasuredGpu* gpu : gpus) {
      made.push_back(gpu->gpu);
      made.back().kernels = {{kernel, gpu->gpu.kernel(*kernel)}};
    }
    std::vector<Unknown> unknowns{{10, 0.5, 200}, {0.8, 0.05, 0.98}, {2, 1, 16}, {0.5, 0.01, 0.98}};
    const bool copies = calls_.front().call->copied > 0;
    if (copies) unknowns.insert(unknowns.end(), {{1, 0.01, 10}, {0.5, 0.01, 10}});
    const auto take = [&](std::span<const double> x, KernelConstants& made_of) {
      made_of.by_precision[precision] = {Seconds(x[0] * 1e-6), x[1], x[2], copies ? x[4] : 0,
                                         copies ? x[5] : 0};
      made_of.peak_share[precision] = x[3];
    };
    const auto residuals = [&](std::span<const double> x) {
      for (GpuSpec& gpu : made) take(x, gpu.kernels.begin()->second);
      std::vector<double> logs;
      logs.reserve(calls_.size());
      for (const Row& row : calls_)
        logs.push_back(row.weight * std::log(ratio_of(*row.call, made[row.gpu])));
      return logs;
    };
    constexpr double huber = 0.05;  // near the sum of sizes: medians are what is asked for
    const std::vector<double> x = fit_least_squares(unknowns, residuals, huber);
    std::vector<double> errors = residuals(x);
    for (std::size_t i = 0; i < calls_.size(); ++i)
      errors[i] = std::abs(std::exp(errors[i] / calls_[i].weight) - 1);
    constexpr double useless = 0.4;
    if (median(std::move(errors)) > useless) return false;
    take(x, constants);
    return true;
  }

 private:
  struct Row {
    const FamilyCall* call;
    std::size_t gpu;
    double weight;
  };
  std::vector<Row> calls_;

  // Weighs calls by the time that the data sheet gives.
  void weigh(std::span<const MeasuredGpu* const> gpus) {
    const auto by_sheet = [&](const Row& row) {
      const GpuSpec& gpu = gpus[row.gpu]->gpu;
      const Operands o = row.call->operands;
      const Seconds loads = row.call->work.work.hbm / gpu.hbm_bandwidth;
      const Seconds arithmetic = row.call->work.work.flops / gpu.peak(o.weights, o.activations);
      return std::max(loads, arithmetic).count();
    };
    std::vector<double> seconds;
    for (const Row& row : calls_) seconds.push_back(by_sheet(row));
    const std::vector<double> weights = octave_weights(seconds, 8);
    for (std::size_t i = 0; i < calls_.size(); ++i) calls_[i].weight = std::sqrt(weights[i]);
  }
};

Calibration calibration_of(const Kernel* kernel, const MeasuredGpu& gpu) {
  Calibration c;
  std::vector<double> errors;
  std::set<Precision> precisions;
  for (const FamilyCall& call : gpu.calls) {
    if (call.kernel != kernel) continue;
    errors.push_back(std::abs(ratio_of(call, gpu.gpu) - 1));
    precisions.insert(call.operands.weights);
    widen(c, call.work.work.hbm.value(), call.work.work.flops.value());
  }
  c.points = static_cast<int>(errors.size());
  c.median_error = three_digits(median(std::move(errors)));
  c.precisions.assign(precisions.begin(), precisions.end());
  return c;
}

}  // namespace

std::vector<FamilyCall> family_calls(const GpuSpec& gpu) {
  std::map<Alike, FamilyCall> fastest;
  for (const Profile& profile : gpu.profiles) {
    for (const Kernel* kernel : kernels()) {
      if (kernel->roofline_call == nullptr) continue;
      for (const char* ending : {".csv.gz", ".csv"}) {
        const auto file = profile.folder / fmt::format("{}{}", kernel->table->name, ending);
        if (!std::filesystem::exists(file)) continue;
        read_table(file, [&](const TableRow& row) {
          auto known = kernel->roofline_call(row, gpu, profile.engine);
          const double us = row.number("us");
          if (!known || us <= 0 || known->work.work.flops <= Flops{}) return;
          const Seconds least = known->work.work.hbm / gpu.hbm_bandwidth;
          FamilyCall call{std::move(*known), &kernel->constants(),
                          std::max(us, least.count() * 1e6)};
          const auto [found, first] = fastest.try_emplace(alike(call), call);
          if (!first && call.us < found->second.us) found->second = std::move(call);
        });
      }
    }
  }
  std::vector<FamilyCall> calls;
  calls.reserve(fastest.size());
  for (auto& [key, call] : fastest) calls.push_back(std::move(call));
  return calls;
}

ErrorsByKind errors_by_kind(std::span<const FamilyCall> calls, const GpuSpec& gpu) {
  ErrorsByKind all;
  for (const FamilyCall& call : calls)
    all[{call.kernel->name, call.operands.weights, call.prefill}].push_back(ratio_of(call, gpu) -
                                                                            1);
  return all;
}

ErrorSum sum_of(std::vector<double> errors) {
  const std::vector<double> sizes = absolute(errors);
  return {.calls = errors.size(),
          .median = median(sizes),
          .p90 = nearest_rank(sizes, 0.9),
          .bias = median(std::move(errors))};
}

FittedKernels fit_families(std::span<const MeasuredGpu* const> gpus) {
  std::map<const Kernel*, std::map<Precision, PrecisionFit>> fits;
  for (std::size_t i = 0; i < gpus.size(); ++i)
    for (const FamilyCall& call : gpus[i]->calls)
      fits[call.kernel][call.operands.weights].add(call, i);
  FittedKernels all;
  for (auto& [kernel, precisions] : fits) {
    KernelConstants& constants = all[kernel];
    const KernelConstants& before = gpus.front()->gpu.kernel(*kernel);
    constants.tile_m = before.tile_m;
    constants.tile_n = before.tile_n;
    const PrecisionFit* most = nullptr;
    PrecisionConstants usual{};
    for (auto& [precision, fit] : precisions) {
      constexpr std::size_t fewest = 50;
      if (fit.calls() < fewest || !fit.fit(gpus, constants)) continue;
      if (most != nullptr && fit.calls() <= most->calls()) continue;
      most = &fit;
      usual = constants.by_precision.at(precision);
    }
    // A precision that was not measured takes what the one with the most calls has.
    constants.launch = usual.launch;
    constants.bandwidth_share = usual.bandwidth_share;
    constants.overlap = usual.overlap;
    constants.copies = usual.copies;
    constants.held_copies = usual.held_copies;
    if (constants.by_precision.size() == 1) constants.by_precision.clear();
    if (most == nullptr) all.erase(kernel);
  }
  return all;
}

void take_families(const FittedKernels& fitted, MeasuredGpu& gpu, std::string_view source) {
  for (const auto& [kernel, constants] : fitted) {
    KernelConstants& own = gpu.gpu.kernels[kernel] = constants;
    const Calibration c = calibration_of(kernel, gpu);
    own.calibration = c;
    own.source = fmt::format("fitted on {} calls, median error {:.1f} %: {}", c.points,
                             c.median_error * 100, source);
  }
}

ErrorsByKind errors_by_fit(const FittedKernels& fitted, std::span<const FamilyCall> calls,
                           GpuSpec gpu) {
  for (const auto& [kernel, constants] : fitted) gpu.kernels[kernel] = constants;
  std::vector<FamilyCall> known;
  for (const FamilyCall& call : calls)
    if (gpu.kernel(*call.kernel).peak_share.contains(call.operands.weights)) known.push_back(call);
  return errors_by_kind(known, gpu);
}

ErrorsByKind errors_of_shapes_left_out(const MeasuredGpu& gpu) {
  constexpr std::size_t parts = 5;
  std::map<std::pair<std::string_view, std::string>, std::size_t> shapes;
  for (const FamilyCall& call : gpu.calls) shapes.try_emplace({call.kernel->name, call.shape}, 0);
  std::size_t next = 0;
  for (auto& [shape, part] : shapes) part = next++ % parts;
  // The calls of each part with the constants that the others give: as if each were of a GPU.
  ErrorsByKind all;
  for (std::size_t part = 0; part < parts; ++part) {
    MeasuredGpu others{gpu.gpu, {}};
    std::vector<FamilyCall> left_out;
    for (const FamilyCall& call : gpu.calls) {
      const bool out = shapes.at({call.kernel->name, call.shape}) == part;
      (out ? left_out : others.calls).push_back(call);
    }
    const MeasuredGpu* const fitted_on[] = {&others};
    for (const auto& [kind, errors] : errors_by_fit(fit_families(fitted_on), left_out, gpu.gpu))
      all[kind].insert(all[kind].end(), errors.begin(), errors.end());
  }
  return all;
}

}  // namespace moesim
