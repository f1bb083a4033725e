// SPDX-License-Identifier: Apache-2.0
#include "tools/lab/validation/power_calibration.hpp"

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <limits>
#include <map>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "hardware/at.hpp"
#include "hardware/kernels/attention.hpp"
#include "hardware/kernels/experts.hpp"
#include "hardware/kernels/gemm.hpp"
#include "hardware/kernels/kernel.hpp"
#include "hardware/rng.hpp"
#include "hardware/shipped.hpp"
#include "hardware/tables/table_file.hpp"
#include "hardware/text.hpp"
#include "sim/report/statistics.hpp"
#include "tools/bench/predict_operation.hpp"
#include "tools/lab/validation/calibration.hpp"

namespace moesim {

namespace {

struct ColumnName {
  std::string_view theirs, ours;
};

// Families of the source that rooflines know, and what their columns are called in our tables.
struct PowerFamily {
  std::string_view name;
  const Kernel& kernel;
  std::vector<ColumnName> columns;
};

std::vector<ColumnName> with_columns(std::vector<ColumnName> columns,
                                     std::initializer_list<ColumnName> more) {
  columns.insert(columns.end(), more);
  return columns;
}

const std::vector<PowerFamily>& roofline_families() {
  static const std::vector<ColumnName> attention{
      {"attn_dtype", "precision"}, {"kv_cache_dtype", "kv_precision"},
      {"num_heads", "q_heads"},    {"num_key_value_heads", "kv_heads"},
      {"head_dim", "head_dim"},    {"window_size", "window"},
      {"batch_size", "batch"}};
  static const std::vector<ColumnName> latent{{"mla_dtype", "precision"},
                                              {"kv_cache_dtype", "kv_precision"},
                                              {"num_heads", "q_heads"},
                                              {"batch_size", "batch"},
                                              {"isl", "isl"},
                                              {"step", "step"}};
  static const std::vector<PowerFamily> all{
      {"gemm", gemm_kernel, {{"gemm_dtype", "precision"}, {"m", "m"}, {"n", "n"}, {"k", "k"}}},
      {"moe",
       grouped_gemm_kernel,
       {{"moe_dtype", "precision"},
        {"num_tokens", "tokens"},
        {"hidden_size", "hidden"},
        {"inter_size", "width"},
        {"topk", "top_k"},
        {"num_experts", "experts"},
        {"moe_tp_size", "tp"},
        {"moe_ep_size", "ep"},
        {"distribution", "distribution"}}},
      {"generation_attention", attention_decode_kernel, with_columns(attention, {{"step", "ctx"}})},
      {"context_attention", attention_prefill_kernel,
       with_columns(attention, {{"isl", "isl"}, {"step", "prefix"}})},
      {"generation_mla", mla_decode_kernel, latent},
      {"context_mla", mla_prefill_kernel, latent}};
  return all;
}

// "m=16 n=4096" as values by name.
std::map<std::string_view, std::string_view> values_of(std::string_view shape) {
  std::map<std::string_view, std::string_view> values;
  while (!shape.empty()) {
    const std::size_t end = std::min(shape.find(' '), shape.size());
    const std::string_view word = shape.substr(0, end);
    shape.remove_prefix(std::min(end + 1, shape.size()));
    if (const std::size_t sign = word.find('='); sign != word.npos)
      values[word.substr(0, sign)] = word.substr(sign + 1);
  }
  return values;
}

struct Asked {
  PowerClass kind;
  double hbm = 0, flops = 0, link = 0;  // bytes, and bytes that the GPU sends
  FlopsPerSecond peak{};
};

std::optional<Asked> by_roofline(const PowerFamily& family, const TableRow& row,
                                 const GpuSpec& gpu) {
  const auto values = values_of(row.text("shape"));
  std::vector<std::string> columns{"kernel"};
  std::vector<std::string_view> fields{row.text("kernel")};
  for (const auto& [theirs, ours] : family.columns) {
    const auto found = values.find(theirs);
    columns.emplace_back(ours);
    fields.push_back(found == values.end() ? std::string_view() : found->second);
  }
  TableRow ours(columns, row.place());
  ours.fields = std::move(fields);
  const EngineVersion engine{std::string(row.text("engine")), std::string(row.text("version"))};
  const auto call = family.kernel.roofline_call(ours, gpu, engine);
  if (!call) return std::nullopt;
  return Asked{.kind = family.kernel.power,
               .hbm = call->work.work.hbm.value(),
               .flops = call->work.work.flops.value(),
               .peak = gpu.peak(call->operands.weights, call->operands.activations)};
}

double shape_number(const TableRow& row, std::string_view name) {
  const auto values = values_of(row.text("shape"));
  const auto found = values.find(name);
  if (found == values.end()) throw ConfigError("{}: the shape has no {}", row.place(), name);
  const auto number = try_number<double>(found->second);
  if (!number || !(*number > 0))
    throw ConfigError("{}: the shape's {} is no number above 0: {}", row.place(), name,
                      found->second);
  return *number;
}

std::optional<Asked> asked_of(const TableRow& row, const GpuSpec& gpu) {
  const std::string_view name = row.text("family");
  for (const PowerFamily& family : roofline_families())
    if (family.name == name) return by_roofline(family, row, gpu);
  // Scales of activations, and rows times their scales: bf16 in; fp8 out of the latter.
  constexpr double read = 2, written = 1;
  if (name == "computescale" || name == "scale_matrix") {
    const double elements = shape_number(row, "m") * shape_number(row, "k");
    return Asked{.kind = PowerClass::memory,
                 .hbm = elements * (name == "computescale" ? read : read + written)};
  }
  // Messages are counted in elements of two bytes; each GPU sends 2 (n - 1) / n of them.
  if (name == "custom_allreduce") {
    const double gpus = shape_number(row, "num_gpus");
    return Asked{.kind = PowerClass::exchanges,
                 .link = 2 * (gpus - 1) / gpus * shape_number(row, "message_size") * 2};
  }
  return std::nullopt;
}

double peak_share_of(const Asked& asked, double seconds) {
  return asked.peak > FlopsPerSecond{} ? asked.flops / asked.peak.value() / seconds : 0;
}

// Draw that the least hundredth of rows have at most.
double idle_of(std::vector<double> watts) { return nearest_rank(std::move(watts), 0.01); }

}  // namespace

PowerPoints read_power_points(const std::filesystem::path& file, const std::string& gpu_file,
                              const GpuSpec& gpu) {
  // Data that fit into the L2 are loaded faster than the HBM allows.
  constexpr double most_loads = 1.6, most_arithmetic = 1.05;
  PowerPoints all;
  struct Other {
    double limit = 0;
    std::vector<double> watts;
    std::vector<PowerPoint> exchanges;
  };
  std::map<std::string, Other> others;
  std::map<std::string, GpuSpec> gpus;  // of those others
  read_table(file, [&](const TableRow& row) {
    const double seconds = row.number("us") * 1e-6, watts = row.number("watts");
    if (seconds <= 0 || watts <= 0)
      throw ConfigError(row.place() + ": us and watts must be more than zero");
    const std::string name = moesim::gpu_file(row.text("gpu"));
    const auto link_share = [&](const Asked& asked, const GpuSpec& of) {
      return asked.link / seconds / of.scale_up_bandwidth.value();
    };
    if (name != gpu_file) {
      Other& other = others[name];
      other.limit = row.number("limit_watts");
      other.watts.push_back(watts);
      if (row.text("family") != "custom_allreduce") return;
      auto found = gpus.find(name);
      if (found == gpus.end()) {
        const auto path = data_folder() / "hardware/gpus" / (name + ".json");
        found = gpus.emplace(name, read_gpu(ConfigNode::from_file(path))).first;
      }
      other.exchanges.push_back({PowerClass::exchanges,
                                 link_share(*asked_of(row, gpu), found->second), 0, watts,
                                 row.number("us"), std::string(row.text("shape"))});
      return;
    }
    all.limit = std::max(all.limit, Watts(row.number("limit_watts")));
    all.watts.push_back(watts);
    const auto asked = asked_of(row, gpu);
    if (!asked) return;
    const double arithmetic = peak_share_of(*asked, seconds);
    const double loads = asked->kind == PowerClass::exchanges
                             ? link_share(*asked, gpu)
                             : asked->hbm / seconds / gpu.hbm_bandwidth.value();
    if (loads > most_loads || arithmetic > most_arithmetic) return;
    all.points.push_back(
        {asked->kind, loads, arithmetic, watts, row.number("us"), std::string(row.text("shape"))});
  });
  for (auto& [name, other] : others) {
    const double idle = idle_of(other.watts);
    for (PowerPoint& point : other.exchanges) {
      point.watts = std::max(0.0, point.watts - idle) / (other.limit - idle);
      all.exchanges_elsewhere.push_back(std::move(point));
    }
  }
  return all;
}

namespace {

PowerConstants as_written(const PowerConstants& c) {
  return {Watts(std::round(c.floor.value())), three_digits(c.loads), three_digits(c.arithmetic),
          three_digits(c.exponent), c.calibration};
}

double drawn(const GpuPower& power, const PowerPoint& point) {
  return power.draw(point.kind, point.loads, point.arithmetic).value();
}

std::vector<double> weights_of(std::span<const PowerPoint> points) {
  std::vector<double> times;
  for (const PowerPoint& point : points) times.push_back(point.us);
  return octave_weights(times, 4);  // the most of a few calls
}

PowerConstants fit_class(std::span<const PowerPoint> points, GpuPower power) {
  const PowerClass kind = points.front().kind;
  PowerConstants& c = power.classes[at(static_cast<int>(kind))];
  const bool multiplies =
      std::ranges::any_of(points, [](const PowerPoint& point) { return point.arithmetic > 0; });
  const double idle = power.idle.value(), limit = power.limit.value();
  const std::vector<double> weights = weights_of(points);
  PowerConstants best;
  double least = std::numeric_limits<double>::infinity();
  // The sum has valleys: a steep one and a flat one.
  for (const double exponent : {0.5, 1.0, 2.0}) {
    std::vector<Unknown> unknowns{
        {1.1 * idle, idle, (idle + limit) / 2}, {0.6, 0.001, 20}, {exponent, 0.1, 5}};
    if (multiplies) unknowns.push_back({1.2, 0.001, 50});
    const auto take = [&](std::span<const double> x) {
      c = {Watts(x[0]), x[1], multiplies ? x[3] : 0, x[2]};
    };
    const auto residuals = [&](std::span<const double> x) {
      take(x);
      std::vector<double> logs;
      logs.reserve(points.size());
      for (std::size_t i = 0; i < points.size(); ++i)
        logs.push_back(weights[i] * std::log(drawn(power, points[i]) / points[i].watts));
      return logs;
    };
    const std::vector<double> x = fit_least_squares(unknowns, residuals);
    double sum = 0;
    for (const double log : residuals(x)) sum += std::abs(log);
    if (sum >= least) continue;
    least = sum;
    take(x);
    best = as_written(c);
  }
  return best;
}

// |predicted / measured - 1| of watts, and energy.
struct Misses {
  std::vector<double> errors;
  double predicted = 0, measured = 0;

  void add(const GpuPower& power, std::span<const PowerPoint> points) {
    for (const PowerPoint& point : points) {
      const double watts = drawn(power, point);
      errors.push_back(std::abs(watts / point.watts - 1));
      predicted += watts * point.us;
      measured += point.watts * point.us;
    }
  }
  void into(PowerErrors& sums) const {
    sums.median = median(errors);
    sums.p90 = nearest_rank(errors, 0.9);
    sums.energy = predicted / measured;
  }
};

// A tenth of the shapes, the same in every fit.
bool is_left_out(const PowerPoint& point) { return Rng(1, point.shape).uniform() < 0.1; }

}  // namespace

FittedPower fit_power(const PowerPoints& measured) {
  constexpr std::size_t fewest = 20;
  FittedPower fit;
  GpuPower& power = fit.power;
  if (measured.watts.empty()) throw ConfigError("no row of this GPU");
  power.limit = measured.limit;
  power.idle = Watts(std::round(idle_of(measured.watts)));
  if (power.idle >= power.limit)
    throw ConfigError("the least draw, {:g} W, is not below limit_watts, {:g} W",
                      power.idle.value(), power.limit.value());
  Misses all, all_left_out;
  for (std::size_t i = 0; i < power.classes.size(); ++i) {
    const auto kind = static_cast<PowerClass>(i);
    std::vector<PowerPoint> points;
    for (const PowerPoint& point : measured.points)
      if (point.kind == kind) points.push_back(point);
    const bool elsewhere = points.empty() && kind == PowerClass::exchanges;
    if (elsewhere) {
      points = measured.exchanges_elsewhere;
      for (PowerPoint& point : points)
        point.watts = (power.idle + (power.limit - power.idle) * point.watts).value();
    }
    if (points.size() < fewest)
      throw ConfigError("{} rows of the class {}; {} are needed", points.size(),
                        power_class_names[i], fewest);
    std::vector<PowerPoint> kept, left_out;
    for (const PowerPoint& point : points) (is_left_out(point) ? left_out : kept).push_back(point);
    PowerErrors& errors = fit.errors[i];
    errors = {.points = static_cast<int>(points.size()),
              .left_out = static_cast<int>(left_out.size())};
    if (!kept.empty() && !left_out.empty()) {
      power.classes[i] = fit_class(kept, power);
      Misses misses;
      misses.add(power, left_out);
      misses.into(errors);
      if (!elsewhere) all_left_out.add(power, left_out);
    }
    power.classes[i] = fit_class(points, power);
    Misses fitted;
    fitted.add(power, points);
    errors.fitted_median = median(fitted.errors);
    if (!elsewhere) all.add(power, points);
    if (!elsewhere)
      power.classes[i].calibration = {errors.points, three_digits(errors.fitted_median),
                                      three_digits(errors.median)};
  }
  fit.all = {.points = static_cast<int>(all.errors.size()),
             .left_out = static_cast<int>(all_left_out.errors.size()),
             .fitted_median = median(all.errors)};
  if (!all_left_out.errors.empty()) all_left_out.into(fit.all);
  return fit;
}

OrderedJson to_json(const GpuPower& power) {
  const auto watts = [](Watts w) { return fmt::format("{:g} W", w.value()); };
  OrderedJson kernels;
  for (std::size_t i = 0; i < power.classes.size(); ++i) {
    const PowerConstants& c = power.classes[i];
    OrderedJson& row = kernels[std::string(power_class_names[i])];
    row = {{"floor", watts(c.floor)},
           {"loads", c.loads},
           {"arithmetic", c.arithmetic},
           {"exponent", c.exponent}};
    if (!c.calibration) continue;
    row["points"] = c.calibration->points;
    row["median_error"] = c.calibration->median_error;
    row["left_out_error"] = c.calibration->left_out_error;
  }
  return {{"limit", watts(power.limit)},
          {"idle", watts(power.idle)},
          {"kernels", kernels},
          {"source", power.source}};
}

}  // namespace moesim
