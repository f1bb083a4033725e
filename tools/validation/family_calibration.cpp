// SPDX-License-Identifier: Apache-2.0
#include "tools/validation/family_calibration.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <tuple>

#include <fmt/format.h>

#include "hardware/kernels/attention.hpp"
#include "hardware/kernels/experts.hpp"
#include "hardware/kernels/gemm.hpp"
#include "hardware/kernels/rough.hpp"
#include "hardware/tables/table_file.hpp"
#include "sim/report/statistics.hpp"
#include "tools/validation/calibration.hpp"

namespace moesim {

namespace {

// Rows of a layer or a product that decode steps have at most.
constexpr double most_decode_tokens = 512;

Tile tile_of(const GpuSpec& gpu, KernelFamily family) {
  const KernelConstants& kernel = gpu.kernel(family);
  return {kernel.tile_m, kernel.tile_n};
}

// The rows that `active` experts share evenly.
GroupedRows even_rows(double rows, double active, int tile_m) {
  const std::int64_t n = std::max(std::int64_t{1}, std::int64_t{std::llround(active)});
  const std::int64_t all = std::max(n, std::int64_t{std::llround(rows)});
  GroupedRows sums;
  for (std::int64_t i = 0; i < n; ++i) add_slot(sums, (i + 1) * all / n - i * all / n, tile_m);
  return sums;
}

// A kernel of FFNs without a gate is of another layer.
bool is_gated(const TableRow& row) {
  return row.text("kernel").find("nongated") == std::string::npos;
}

std::optional<FamilyCall> expert_call(const TableRow& row, const GpuSpec& gpu,
                                      const EngineVersion& engine) {
  const std::string format(table_name(row.text("precision")));
  const auto operands = operands_of(format);
  if (!operands || !is_gated(row)) return std::nullopt;
  const ExpertsCall c = experts_of(row, engine, format);
  const GroupedGemmShape shape{.hidden = c.hidden,
                               .width = c.width,
                               .weights = operands->weights,
                               .activations = operands->activations};
  const Tile tile = tile_of(gpu, shape.kernel);
  const double copied = row_bytes(c.hidden, c.width);
  return FamilyCall{.family = shape.kernel,
                    .operands = *operands,
                    .prefill = c.tokens > most_decode_tokens,
                    .shape = fmt::format("{} {} {}", c.hidden, c.top_k, c.experts),
                    .work = expert_work(shape, even_rows(c.rows, c.active, tile.m), tile, 0),
                    .copied = copied * c.rows,
                    .held_copied = copied * std::max(c.rows, c.tokens * c.top_k),
                    .us = row.number("us")};
}

std::optional<FamilyCall> gemm_call(const TableRow& row, const GpuSpec& gpu, const EngineVersion&) {
  const auto operands = operands_of(table_name(row.text("precision")));
  if (!operands) return std::nullopt;
  const double m = row.number("m");
  return FamilyCall{.family = KernelFamily::gemm,
                    .operands = *operands,
                    .prefill = m > most_decode_tokens,
                    .shape = fmt::format("{} {}", row.text("n"), row.text("k")),
                    .work = gemm_work(m, row.number("n"), row.number("k"), *operands,
                                      tile_of(gpu, KernelFamily::gemm), gpu.sms),
                    .us = row.number("us")};
}

// Caches of eight bits that are multiplied as such are faster than the rooflines assume.
bool multiplies_bf16(const TableRow& row) {
  return table_name(row.text("precision")) == "bfloat16";
}

FamilyCall untiled(KernelFamily family, bool prefill, Work work, const TableRow& row) {
  return {.family = family,
          .operands = {},
          .prefill = prefill,
          .shape = {},
          .work = {work, work.flops.value()},
          .us = row.number("us")};
}

template <bool prefill>
std::optional<FamilyCall> attention_call(const TableRow& row, const GpuSpec&,
                                         const EngineVersion&) {
  if (!multiplies_bf16(row)) return std::nullopt;
  const AttentionCall c = attention_of(row, !prefill);
  // Some kernels read what the window hides.
  if (c.window > 0) return std::nullopt;
  const double bytes = c.batch * (c.context * 2 * c.kv_heads * c.head_dim * c.kv_bytes +
                                  c.queries * 2 * c.q_heads * c.head_dim * 2);
  FamilyCall call = untiled(
      prefill ? KernelFamily::attention_prefill : KernelFamily::attention_decode, prefill,
      {.flops = Flops(4 * c.q_heads * c.head_dim * c.batch * c.pairs), .hbm = Bytes(bytes)}, row);
  call.shape = fmt::format("{} {} {}", c.q_heads, c.kv_heads, c.head_dim);
  return call;
}

template <bool prefill>
std::optional<FamilyCall> latent_call(const TableRow& row, const GpuSpec&, const EngineVersion&) {
  if (!multiplies_bf16(row)) return std::nullopt;
  const LatentAttentionCall c = latent_attention_of(row, !prefill);
  const double latent = c.kv_lora + c.qk_rope;
  const double per_head = prefill ? c.qk_nope + c.qk_rope + c.v_dim : latent + c.kv_lora;
  const double cached = prefill ? c.heads * per_head * 2 : latent * c.kv_bytes;
  FamilyCall call =
      untiled(prefill ? KernelFamily::attention_prefill : KernelFamily::mla_decode, prefill,
              {.flops = Flops(2 * c.heads * per_head * c.batch * c.pairs),
               .hbm = Bytes(c.batch * (c.context * cached + c.queries * c.heads * per_head * 2))},
              row);
  call.shape = fmt::format("latent {}", c.heads);
  return call;
}

struct FamilyTable {
  std::string_view name;
  std::optional<FamilyCall> (*call)(const TableRow&, const GpuSpec&, const EngineVersion&);
};
constexpr FamilyTable family_tables[] = {{"experts", expert_call},
                                         {"gemm", gemm_call},
                                         {"attention_decode", attention_call<false>},
                                         {"attention_prefill", attention_call<true>},
                                         {"mla_decode", latent_call<false>},
                                         {"mla_prefill", latent_call<true>}};

// Calls alike: the same work of the same shape.
using Alike = std::tuple<KernelFamily, Precision, Precision, std::string, double, double>;
Alike alike(const FamilyCall& c) {
  // Draws of experts differ in the last digits.
  const auto about = [](double x) { return std::round(std::log2(x) * 8); };
  return {c.family,
          c.operands.weights,
          c.operands.activations,
          c.shape,
          about(c.work.work.flops.value()),
          about(c.work.work.hbm.value())};
}

}  // namespace

double ratio_of(const FamilyCall& call, const GpuSpec& gpu) {
  TiledWork work = call.work;
  const PrecisionConstants c = gpu.kernel(call.family).of(call.operands.weights);
  work.work.copied = Bytes(c.copies * call.copied + c.held_copies * call.held_copied);
  const Roofline roofline(call.operands, call.family, gpu);
  return tiled_cost(work, roofline).time.count() * 1e6 / call.us;
}

namespace {

/// Calls of one precision in one family on all GPUs, and the fit of their constants.
class PrecisionFit {
 public:
  void add(const FamilyCall& call, std::size_t gpu) { calls_.push_back({&call, gpu, 0}); }
  std::size_t calls() const { return calls_.size(); }

  /// The constants with the precision's own; false where none fit: calls of kernels that have
  /// nothing in common.
  bool fit(std::span<const MeasuredGpu* const> gpus, KernelConstants& constants) {
    const KernelFamily family = calls_.front().call->family;
    const Precision precision = calls_.front().call->operands.weights;
    weigh(gpus);
    std::vector<GpuSpec> made;
    for (const MeasuredGpu* gpu : gpus) {
      made.push_back(gpu->gpu);
      made.back().kernels = {{family, gpu->gpu.kernel(family)}};
    }
    std::vector<Unknown> unknowns{{10, 0.5, 200}, {0.8, 0.05, 0.98}, {2, 1, 16}, {0.5, 0.01, 0.98}};
    const bool copies = calls_.front().call->copied > 0;
    if (copies) unknowns.insert(unknowns.end(), {{1, 0.01, 10}, {0.5, 0.01, 10}});
    const auto take = [&](std::span<const double> x, KernelConstants& kernel) {
      kernel.by_precision[precision] = {Seconds(x[0] * 1e-6), x[1], x[2], copies ? x[4] : 0,
                                        copies ? x[5] : 0};
      kernel.peak_share[precision] = x[3];
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

  // Each octave of time by the data sheet counts alike: tables hold many small calls, and steps are
  // made of large ones.
  void weigh(std::span<const MeasuredGpu* const> gpus) {
    const auto octave = [&](const Row& row) {
      const GpuSpec& gpu = gpus[row.gpu]->gpu;
      const Operands o = row.call->operands;
      const Seconds loads = row.call->work.work.hbm / gpu.hbm_bandwidth;
      const Seconds arithmetic = row.call->work.work.flops / gpu.peak(o.weights, o.activations);
      return std::llround(std::log2(std::max(loads, arithmetic).count()));
    };
    std::map<long long, double> octaves;
    for (const Row& row : calls_) octaves[octave(row)] += 1;
    const double mean = static_cast<double>(calls_.size()) / static_cast<double>(octaves.size());
    constexpr double most = 8;
    for (Row& row : calls_) row.weight = std::sqrt(std::min(most, mean / octaves[octave(row)]));
  }
};

double three_digits(double x) { return std::stod(fmt::format("{:.3g}", x)); }

Calibration calibration_of(KernelFamily family, const MeasuredGpu& gpu) {
  Calibration c;
  c.bytes.min = c.flops.min = std::numeric_limits<double>::infinity();
  std::vector<double> errors;
  std::set<Precision> precisions;
  for (const FamilyCall& call : gpu.calls) {
    if (call.family != family) continue;
    const double bytes = call.work.work.hbm.value(), flops = call.work.work.flops.value();
    errors.push_back(std::abs(ratio_of(call, gpu.gpu) - 1));
    precisions.insert(call.operands.weights);
    c.bytes = {std::min(c.bytes.min, three_digits(bytes)),
               std::max(c.bytes.max, three_digits(bytes * 1.01))};
    c.flops = {std::min(c.flops.min, three_digits(flops)),
               std::max(c.flops.max, three_digits(flops * 1.01))};
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
    for (const FamilyTable& table : family_tables) {
      for (const char* ending : {".csv.gz", ".csv"}) {
        const auto file = profile.folder / fmt::format("{}{}", table.name, ending);
        if (!std::filesystem::exists(file)) continue;
        read_table(file, [&](const TableRow& row) {
          auto call = table.call(row, gpu, profile.engine);
          if (!call || call->us <= 0 || call->work.work.flops <= Flops{}) return;
          call->us = std::max(call->us, (call->work.work.hbm / gpu.hbm_bandwidth).count() * 1e6);
          const auto [found, first] = fastest.try_emplace(alike(*call), *call);
          if (!first && call->us < found->second.us) found->second = std::move(*call);
        });
      }
    }
  }
  std::vector<FamilyCall> calls;
  calls.reserve(fastest.size());
  for (auto& [key, call] : fastest) calls.push_back(std::move(call));
  return calls;
}

std::vector<FamilyErrors> family_errors(std::span<const FamilyCall> calls, const GpuSpec& gpu) {
  std::map<std::tuple<KernelFamily, Precision, bool>, std::vector<double>> kinds;
  for (const FamilyCall& call : calls)
    kinds[{call.family, call.operands.weights, call.prefill}].push_back(ratio_of(call, gpu) - 1);
  std::vector<FamilyErrors> all;
  for (auto& [kind, errors] : kinds) {
    const auto [family, precision, prefill] = kind;
    FamilyErrors of{family, precision, prefill, errors.size(), 0, 0, median(errors)};
    for (double& error : errors) error = std::abs(error);
    of.median = median(errors);
    of.p90 = nearest_rank(std::move(errors), 0.9);
    all.push_back(of);
  }
  return all;
}

std::map<KernelFamily, KernelConstants> fit_families(std::span<const MeasuredGpu* const> gpus) {
  std::map<KernelFamily, std::map<Precision, PrecisionFit>> fits;
  for (std::size_t i = 0; i < gpus.size(); ++i)
    for (const FamilyCall& call : gpus[i]->calls)
      fits[call.family][call.operands.weights].add(call, i);
  std::map<KernelFamily, KernelConstants> all;
  for (auto& [family, precisions] : fits) {
    KernelConstants& constants = all[family];
    const KernelConstants& before = gpus.front()->gpu.kernel(family);
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
    if (most == nullptr) all.erase(family);
  }
  return all;
}

void take_families(const std::map<KernelFamily, KernelConstants>& fitted, MeasuredGpu& gpu,
                   std::string_view source) {
  for (const auto& [family, constants] : fitted) {
    gpu.gpu.kernels[family] = constants;
    const Calibration c = calibration_of(family, gpu);
    gpu.gpu.kernels[family].calibration = c;
    gpu.gpu.kernels[family].source = fmt::format("fitted on {} calls, median error {:.1f} %: {}",
                                                 c.points, c.median_error * 100, source);
  }
}

FamilyErrorsLeftOut errors_of_shapes_left_out(const MeasuredGpu& gpu) {
  constexpr std::size_t parts = 5;
  std::map<std::pair<KernelFamily, std::string>, std::size_t> shapes;
  for (const FamilyCall& call : gpu.calls) shapes.try_emplace({call.family, call.shape}, 0);
  std::size_t next = 0;
  for (auto& [shape, part] : shapes) part = next++ % parts;
  // The calls of each part with the constants that the others give: as if each were of a GPU.
  FamilyErrorsLeftOut all;
  for (std::size_t part = 0; part < parts; ++part) {
    MeasuredGpu others{gpu.gpu, {}};
    MeasuredGpu left_out{gpu.gpu, {}};
    for (const FamilyCall& call : gpu.calls) {
      const bool out = shapes.at({call.family, call.shape}) == part;
      (out ? left_out : others).calls.push_back(call);
    }
    const MeasuredGpu* const fitted_on[] = {&others};
    for (const auto& [family, constants] : fit_families(fitted_on))
      left_out.gpu.kernels[family] = constants;
    for (const FamilyCall& call : left_out.calls)
      all[{call.family, call.operands.weights, call.prefill}].push_back(
          std::abs(ratio_of(call, left_out.gpu) - 1));
  }
  return all;
}

}  // namespace moesim
