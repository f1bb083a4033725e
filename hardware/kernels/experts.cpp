// SPDX-License-Identifier: Apache-2.0
#include "hardware/kernels/experts.hpp"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "hardware/kernels/rough.hpp"

namespace moesim {

namespace {

Located locate(const ExpertsCall& c, const GpuSpec& gpu) {
  constexpr double launch_us = 20;  // chosen by leaving out points, shapes and models
  const Format f = format_of(c.precision);
  const double loads = loads_us(
      c.active * 3 * c.hidden * c.width * f.weights + c.rows * c.hidden * (f.activations + 2), gpu);
  const double arithmetic = flops_us(6 * c.hidden * c.width * c.rows, f.multiplied, gpu);
  // Most engines permute, activate and sum the copies of all tokens, whichever experts they chose.
  const double copies = loads_us(c.tokens * c.top_k * (2 * c.hidden + 4 * c.width) * 2, gpu);
  double rough_us = launch_us + loads + arithmetic / 0.5 + 0.3 * copies;
  if (c.kernel == ExpertKernel::mega_moe) {
    // Tokens come in fp8 and results go in bf16 while others are multiplied; the kernel begins and
    // ends with barriers of all GPUs. Chosen as launch_us is.
    constexpr double barriers_us = 60, share = 0.75;
    const double moved = link_us(c.rows * c.hidden * 3, gpu);
    rough_us = barriers_us + loads + std::max(arithmetic / 0.5, moved / share);
  }
  // Half an octave of a model's width and number of experts counts as a whole one of what a step
  // varies. Triton's layers change their tiles where tokens outnumber the experts that the rank
  // holds (vLLM's get_default_config): rows on the other side are half an octave farther.
  return {
      .at = {log_of(c.active), log_of(c.rows / c.active), log_of(c.tokens), log_of(c.hidden) / 2,
             log_of(c.width), log_of(c.experts), log_of(c.top_k), c.tokens > c.held ? 0.5 : 0.0},
      .rough_us = rough_us,
      .least_us = arithmetic};
}

[[noreturn]] void refuse(const TableRow& row, std::string_view why) {
  throw ConfigError("{}: {}", row.place(), why);
}

// Checks what the draws of a row's experts assume.
void check_experts(const TableRow& row, const ExpertsCall& c, double ranks) {
  constexpr double most_tokens = 1e7;
  if (!(c.experts >= 1 && c.experts <= 65536)) refuse(row, "experts: expected 1 to 65536");
  if (!(c.top_k >= 1 && c.top_k <= c.experts)) refuse(row, "top_k: expected 1 to experts");
  if (!(c.tokens >= 1 && c.tokens <= most_tokens)) refuse(row, "tokens: expected 1 to 1e7");
  if (!(ranks >= 1 && std::fmod(c.experts, ranks) == 0))
    refuse(row, "ep: expected a divisor of experts");
}

// Draws of which no more is known than their name; a rank's load does not follow from that.
bool is_drawn_otherwise(const TableRow& row) {
  return row.text_or_none("rows").empty() &&
         row.text_or_none("distribution").find("sampled") != std::string::npos;
}

template <ExpertKernel kernel>
std::vector<Sample> expert_samples(const TableRow& row, const GpuSpec& gpu,
                                   const EngineVersion& engine) {
  if (is_drawn_otherwise(row)) return {};
  const std::string precision(table_name(row.text("precision")));
  ExpertsCall call = experts_of(row, engine, gpu, precision);
  call.kernel = kernel;
  if (kernel != ExpertKernel::grouped_gemm) call.tokens = 0;
  return {sample(precision, row, locate(call, gpu))};
}

// The load of the measured rank replaces how it was drawn. It has a slice's width for `width` and
// `tp`, the experts that it held, its rows and its active experts for `ep` and `distribution`.
std::vector<KeptColumn> kept_columns(const TableRow& row, const Sample& sample) {
  const Coordinates& at = sample.place.at;
  // Three digits, in full: 1020, not 1.02e+03.
  const auto three = [](double x) {
    return fmt::format("{:g}", std::stod(fmt::format("{:.3g}", x)));
  };
  return {{"width", KeptColumn::of_line, fmt::format("{:.6g}", std::exp2(at[4]))},
          {"tp", KeptColumn::left_out},
          {"ep", KeptColumn::left_out},
          {"distribution", KeptColumn::left_out},
          {"held", KeptColumn::of_line, fmt::format("{:g}", experts_held(row))},
          {"rows", KeptColumn::of_point, three(std::exp2(at[0] + at[1]))},
          {"active", KeptColumn::of_point, three(std::exp2(at[0]))}};
}

// The rows that `active` experts share evenly.
GroupedRows even_rows(double rows, double active, int tile_m) {
  const std::int64_t n = std::max(std::int64_t{1}, std::int64_t{std::llround(active)});
  const std::int64_t all = std::max(n, std::int64_t{std::llround(rows)});
  GroupedRows sums;
  for (std::int64_t i = 0; i < n; ++i) add_slot(sums, (i + 1) * all / n - i * all / n, tile_m);
  return sums;
}

// FFNs without a gate are other layers, of other models.
constexpr std::string_view without_gate = "nongated";

std::optional<RooflineCall> expert_call(const TableRow& row, const GpuSpec& gpu,
                                        const EngineVersion& engine) {
  const std::string format(table_name(row.text("precision")));
  const auto operands = operands_of(format);
  if (!operands || row.text_or_none("kernel").find(without_gate) != std::string::npos)
    return std::nullopt;
  const ExpertsCall c = experts_of(row, engine, gpu, format);
  const GroupedGemmShape shape{.hidden = c.hidden,
                               .width = c.width,
                               .weights = operands->weights,
                               .activations = operands->activations};
  const Tile tile = tile_of(grouped_gemm_kernel, gpu);
  const double copied = row_bytes(c.hidden, c.width);
  return RooflineCall{.operands = *operands,
                      .prefill = c.tokens > most_decode_rows,
                      .shape = fmt::format("{} {} {}", c.hidden, c.top_k, c.experts),
                      .work = expert_work(shape, even_rows(c.rows, c.active, tile.m), tile, 0),
                      .copied = copied * c.rows,
                      .held_copied = copied * std::max(c.rows, c.tokens * c.top_k)};
}

constexpr MeasuredTable experts_table{.name = "experts",
                                      .axes = {{{"active experts"},
                                                {"rows of an active expert"},
                                                {"tokens"},
                                                {"hidden", TableAxis::by_shape},
                                                {"width", TableAxis::by_shape},
                                                {"experts", TableAxis::by_shape},
                                                {"top_k", TableAxis::by_shape},
                                                {"tokens > experts held", TableAxis::derived}}},
                                      .along = "tokens",
                                      .samples = expert_samples<ExpertKernel::grouped_gemm>,
                                      .other_layer = without_gate,
                                      .model = {"hidden", "width", "top_k", "experts"},
                                      .kept = kept_columns};

constexpr MeasuredTable masked_table{.name = "wideep_experts_decode",
                                     .axes = experts_table.axes,
                                     .along = "tokens",
                                     .samples = expert_samples<ExpertKernel::masked>,
                                     .kept = kept_columns};

constexpr MeasuredTable mega_moe_table{.name = "megamoe_module",
                                       .axes = experts_table.axes,
                                       .along = "tokens",
                                       .samples = expert_samples<ExpertKernel::mega_moe>,
                                       .model = experts_table.model,
                                       .kept = kept_columns};

}  // namespace

constinit const Kernel grouped_gemm_kernel{
    .name = "grouped_gemm",
    .summary = "the fused expert layer of one rank: tokens, rows and active experts of one shape",
    .law = Law::roofline,
    .table = &experts_table,
    .points = {"moe_kernel"},
    .power = PowerClass::experts,
    .roofline_call = expert_call,
};

constinit const Kernel masked_grouped_gemm_kernel{
    .name = "masked_grouped_gemm",
    .summary = "the same in DeepGEMM's layout for low-latency dispatch",
    .law = Law::roofline,
    .table = &masked_table,
    .points = {"moe_kernel", "masked"},
    .power = PowerClass::experts,
};

constinit const Kernel mega_moe_kernel{
    .name = "mega_moe",
    .summary = "the expert layer of one rank, its tokens' way there and back in the same kernel",
    .law = Law::roofline,
    .constants_of = &grouped_gemm_kernel,
    .table = &mega_moe_table,
    .power = PowerClass::experts,
};

double experts_held(const TableRow& row) {
  return row.text_or_none("held").empty() ? row.number("experts") / row.number("ep", 1)
                                          : row.number("held");
}

namespace {

// Tokens of the EP group: some tables tell them apart from those of the rank.
double tokens_of(const TableRow& row) {
  return row.number(row.text_or_none("tokens_global").empty() ? "tokens" : "tokens_global");
}

}  // namespace

ExpertsCall experts_of(const TableRow& row, const EngineVersion& engine, const GpuSpec& gpu,
                       std::string_view format) {
  ExpertsCall c{.precision = format,
                .hidden = row.number("hidden"),
                .width = row.number("width") / row.number("tp", 1),
                .top_k = row.number("top_k"),
                .experts = row.number("experts"),
                .held = experts_held(row),
                .tokens = tokens_of(row)};
  // What an imported table says of its draws; what a source's own says only by name.
  if (row.text_or_none("rows").empty()) {
    check_experts(row, c, row.number("ep", 1));
    const BusiestRank load = rank_load(
        row.text_or_none("distribution"), c.tokens, c.top_k, c.experts, row.number("ep", 1),
        draws_of(engine, gpu, c, kernel_of(row) == "sglang_fused_moe_triton"));
    c.rows = load.rows;
    c.active = load.active;
  } else {
    c.rows = row.number("rows");
    c.active = row.number("active");
  }
  return c;
}

// --- curves --------------------------------------------------------------------------------------

struct ExpertCurve {
  const MeasuredTable* table = nullptr;
  std::string precision;
  ExpertsCall shape;
  GpuSpec gpu;  // without tables
  bool of_sibling = false;
  std::optional<LazyGrid> raw, monotone;  // of log time: tokens, rows, active
  // Spots of small counts: a run asks for a few of them millions of times.
  std::vector<LazyGrid::Spot> tokens, rows, active;

  LazyGrid::Spot spot(std::size_t axis, double count) const {
    return monotone->spot(axis, std::log2(count));
  }
  LazyGrid::Spot spot(std::size_t axis, const std::vector<LazyGrid::Spot>& known,
                      double count) const {
    const auto whole = static_cast<std::size_t>(count);
    const bool is_known = whole < known.size() && static_cast<double>(whole) == count;
    return is_known ? known[whole] : spot(axis, count);
  }
};

namespace {

// Half octaves from 1 to 2^top.
std::vector<double> half_octaves(int top) {
  std::vector<double> nodes;
  for (int i = 0; i <= 2 * top; ++i) nodes.push_back(i / 2.0);
  return nodes;
}

/// Ascending values nearest to the guesses, which count by distance^-3 (pool adjacent violators).
/// What was measured near a place outweighs what is far from any point.
std::vector<Scattered::Guess> ascending(const std::vector<Scattered::Guess>& guesses) {
  struct Pool {
    double weighted = 0, weight = 0;
    std::size_t size = 0;
    double mean() const { return weighted / weight; }
  };
  std::vector<Pool> pools;
  for (const Scattered::Guess& guess : guesses) {
    const double weight = std::pow(std::max(guess.nearest, 0.1), -3);
    pools.push_back({weight * guess.value, weight, 1});
    while (pools.size() > 1 && pools.back().mean() < pools[pools.size() - 2].mean()) {
      const Pool last = pools.back();
      pools.pop_back();
      pools.back().weighted += last.weighted;
      pools.back().weight += last.weight;
      pools.back().size += last.size;
    }
  }
  std::vector<Scattered::Guess> values;
  for (const Pool& pool : pools)
    for (std::size_t i = 0; i < pool.size; ++i)
      values.push_back({pool.mean(), guesses[values.size()].nearest});
  return values;
}

const MeasuredTable& table_of(const ExpertsCall& call) {
  switch (call.kernel) {
    case ExpertKernel::masked: return masked_table;
    case ExpertKernel::mega_moe: return mega_moe_table;
    case ExpertKernel::grouped_gemm: break;
  }
  return experts_table;
}

// Null where no table has the group.
std::shared_ptr<const ExpertCurve> make_curve(const KernelTables& tables, const ExpertsCall& call,
                                              std::string_view group) {
  ExpertsCall any = call;
  any.tokens = any.rows = any.active = 1;
  const auto found = std::make_shared<const Candidates>(
      tables.candidates(table_of(call), {std::string(group)}, locate(any, tables.gpu()).at));
  if (found->empty()) return nullptr;
  auto made = std::make_shared<ExpertCurve>();
  made->table = &table_of(call);
  made->precision = call.precision;
  made->shape = call;
  made->shape.precision = made->precision;
  made->gpu = tables.gpu();
  made->of_sibling = found->of_sibling();
  const std::array<std::vector<double>, 3> nodes{found->ticks(2), half_octaves(20),
                                                 half_octaves(10)};
  const ExpertCurve& self = *made;
  made->raw.emplace(nodes, [found, &self](const LazyGrid::Place& at) {
    ExpertsCall c = self.shape;
    c.tokens = std::exp2(at[0]);
    c.rows = std::exp2(at[1]);
    c.active = std::min(std::exp2(at[2]), c.rows);
    const Located located = locate(c, self.gpu);
    const Scattered::Guess share = found->at(located.at);
    return Scattered::Guess{share.value + std::log(located.rough_us), share.nearest};
  });
  // More experts never take less time, however the measured points scatter.
  made->monotone.emplace(nodes, [&self](const LazyGrid::Place& at) {
    const double most = std::log2(std::max(1.0, std::min(self.shape.experts, std::exp2(at[1]))));
    std::vector<Scattered::Guess> column;
    for (double active = 0; active <= std::max(most, at[2]); active += 0.5)
      column.push_back(self.raw->at({at[0], at[1], active}));
    return ascending(column)[static_cast<std::size_t>(2 * at[2])];
  });
  constexpr int known_rows = 4096, known_active = 256;
  for (int count = 0; count < known_rows; ++count) {
    made->tokens.push_back(made->spot(0, std::max(1, count)));
    made->rows.push_back(made->spot(1, std::max(1, count)));
    if (count < known_active) made->active.push_back(made->spot(2, std::max(1, count)));
  }
  return made;
}

}  // namespace

std::shared_ptr<ExpertTables> ExpertTables::of_group(const KernelTables& tables,
                                                     const ExpertsCall& shape,
                                                     std::string_view group) {
  const std::string name =
      fmt::format("{} {} by {}: {} {} {} {} {}", table_of(shape).name, shape.precision, group,
                  shape.hidden, shape.width, shape.top_k, shape.experts, shape.held);
  auto curve =
      tables.remembered<ExpertCurve>(name, [&] { return make_curve(tables, shape, group); });
  if (!curve) return nullptr;
  return std::shared_ptr<ExpertTables>(new ExpertTables(std::move(curve), tables));
}

std::shared_ptr<const ExpertTables> ExpertTables::of(const KernelTables& tables,
                                                     const ExpertsCall& shape) {
  return of_group(tables, shape, shape.precision);
}

std::shared_ptr<const ExpertTables> ExpertTables::of(const KernelTables& tables,
                                                     const ExpertsCall& shape, Precision weights,
                                                     Precision activations) {
  const auto names = table_names(weights, activations);
  if (names.empty()) return nullptr;
  ExpertsCall call = shape;
  call.precision = names.front();
  for (const std::string_view name : names)
    if (tables.has_wanted(table_of(shape), name)) return of_group(tables, call, name);
  std::shared_ptr<const ExpertTables> own;
  for (const std::string_view name : names) {
    ExpertsCall as_stored = shape;
    as_stored.precision = name;
    own = of(tables, as_stored);
    if (own) break;
  }
  // TensorRT-LLM's kernels are generated for all narrow formats alike: where one was measured in
  // another format only, it takes the share of the data sheet's time that it takes there; but no
  // longer than kernels of this format, beside which engines choose it.
  if (!tables.has_wanted(table_of(shape), "nvfp4")) return own;
  const auto borrowed = of_group(tables, call, "nvfp4");
  if (!borrowed) return own;
  borrowed->own_format_ = own;
  return borrowed;
}

TableTime ExpertTables::time(double tokens, double rows, double active) const {
  const TableTime here = own_time(tokens, rows, active);
  if (!own_format_) return here;
  const TableTime there = own_format_->time(tokens, rows, active);
  return there.time < here.time ? there : here;
}

TableTime ExpertTables::own_time(double tokens, double rows, double active) const {
  // Between grid points nothing was measured.
  constexpr double off_the_grid = 1e-3;
  const ExpertCurve& curve = *curve_;
  const Scattered::Guess log_time =
      curve.monotone->at_spots({curve.spot(0, curve.tokens, std::max(1.0, tokens)),
                                curve.spot(1, curve.rows, std::max(1.0, rows)),
                                curve.spot(2, curve.active, std::max(1.0, active))});
  const Evidence evidence =
      KernelTables::evidence_of(curve.of_sibling, std::max(log_time.nearest, off_the_grid));
  return tables_.scaled_time(*curve.table, {Seconds(std::exp(log_time.value) * 1e-6), evidence});
}

// --- prices --------------------------------------------------------------------------------------

namespace {

const Kernel& kernel_of(const GroupedGemmShape& shape) {
  switch (shape.kernel) {
    case ExpertKernel::masked: return masked_grouped_gemm_kernel;
    case ExpertKernel::mega_moe: return mega_moe_kernel;
    case ExpertKernel::grouped_gemm: break;
  }
  return grouped_gemm_kernel;
}

}  // namespace

GroupedGemm::GroupedGemm(const GroupedGemmShape& shape, const GpuSpec& gpu)
    : shape_(shape),
      tile_m_(tile_of(kernel_of(shape), gpu).m),
      tile_n_(tile_of(kernel_of(shape), gpu).n),
      sms_(shape.kernel == ExpertKernel::masked ? gpu.sms : 0),
      hbm_(gpu.hbm_bandwidth),
      peak_(gpu.peak(shape.weights, shape.activations)),
      roofline_({shape.weights, shape.activations}, kernel_of(shape), gpu) {
  power_ = gpu.power;
  const PrecisionConstants constants = gpu.kernel(kernel_of(shape)).of(shape.weights);
  const double row = row_bytes(shape.hidden, shape.width);
  copied_row_ = constants.copies * row;
  copied_held_row_ = constants.held_copies * row;
  for (std::int32_t tokens = 0; tokens <= tile_m_; ++tokens) {
    padded_.push_back(
        static_cast<std::int32_t>(grouped_rows(std::span(&tokens, 1), tile_m_).padded));
  }
  if (gpu.tables && shape.experts > 0) {
    tables_ = ExpertTables::of(*gpu.tables,
                               {.precision = {},
                                .hidden = shape.hidden,
                                .width = shape.width,
                                .top_k = shape.top_k,
                                .experts = shape.experts,
                                .held = shape.held > 0 ? shape.held : shape.experts,
                                .kernel = shape.kernel},
                               shape.weights, shape.activations);
  }
}

GroupedRows GroupedGemm::rows(std::span<const std::int32_t> tokens_per_slot) const {
  GroupedRows rows, long_ones;
  for (const std::int32_t tokens : tokens_per_slot) {
    if (tokens > tile_m_) {
      add_slot(long_ones, tokens, tile_m_);
      continue;
    }
    rows.tokens += tokens;
    rows.slots += tokens > 0 ? 1 : 0;
    rows.padded += padded_[at(tokens)];
  }
  return {rows.slots + long_ones.slots, rows.tokens + long_ones.tokens,
          rows.padded + long_ones.padded, rows.slots + long_ones.tiles};
}

TiledWork expert_work(const GroupedGemmShape& shape, const GroupedRows& rows, Tile tile, int sms) {
  const double weight = bytes_per_element(shape.weights);
  const double activation = bytes_per_element(shape.activations);
  // Gate and up are one GEMM whose epilogue multiplies them: of its 2m columns m are written. The
  // sum over experts is taken in bf16 whatever the multiplication's precision.
  const Projection gate_up{2 * shape.width, shape.hidden, weight, activation, activation / 2};
  const Projection down{shape.hidden, shape.width, weight, activation, 2};
  TiledWork total;
  add_projection(total, rows, gate_up, tile, sms);
  add_projection(total, rows, down, tile, sms);
  return total;
}

Cost GroupedGemm::cost(const GroupedRows& rows, double tokens) const {
  const Cost cost = undrawn(rows, tokens);
  return power_ ? drawing(cost, kernel_of(shape_), *power_, hbm_) : cost;
}

Cost GroupedGemm::undrawn(const GroupedRows& rows, double tokens) const {
  if (rows.slots == 0) return {};
  TiledWork total = expert_work(shape_, rows, {tile_m_, tile_n_}, sms_);
  const auto useful = static_cast<double>(rows.tokens);
  if (!tables_) {
    const double held = std::max(useful, tokens * shape_.top_k);
    total.work.copied = Bytes(copied_row_ * useful + copied_held_row_ * held);
    return tiled_cost(total, roofline_);
  }
  const auto own = useful / shape_.top_k;
  const TableTime measured = tables_->time(std::max(tokens, own), useful, double(rows.slots));
  const Flops flops(6 * shape_.hidden * shape_.width * useful);
  return priced({.work = total.work, .peak = peak_}, measured, total.work.hbm / hbm_,
                flops / peak_);
}

}  // namespace moesim
