// SPDX-License-Identifier: Apache-2.0
#include "hardware/tables/calls.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <numeric>

#include <fmt/format.h>

#include "hardware/rng.hpp"

namespace moesim {

namespace {

// Shares of the data sheet that kernels reach, roughly, so that what is left to interpolate varies
// slowly; launches likewise. Chosen by leaving out points, shapes and models of the tables.
constexpr double gemm_launch_us = 3, experts_launch_us = 20, attention_launch_us = 5;
constexpr double library_launch_us = 8, exchange_launch_us = 15;

double log_of(double x) { return std::log2(std::max(x, 1e-3)); }

// Bytes of an element and the precision of the multiplication.
struct Format {
  double weights, activations;
  Precision multiplied;
};

Format format_of(std::string_view name) {
  struct Row {
    std::string_view name;
    Format format;
  };
  static constexpr Row rows[] = {{"bfloat16", {2, 2, Precision::bf16}},
                                 {"fp8", {1, 1, Precision::fp8}},
                                 {"fp8_static", {1, 1, Precision::fp8}},
                                 {"fp8_block", {1, 1, Precision::fp8}},
                                 {"nvfp4", {0.5625, 0.5625, Precision::nvfp4}},
                                 {"w4a16_mxfp4", {0.53125, 2, Precision::bf16}},
                                 {"w4a8_mxfp4_mxfp8", {0.53125, 1, Precision::fp8}},
                                 {"w4afp8", {0.515625, 1, Precision::fp8}},
                                 {"int4_wo", {0.515625, 2, Precision::bf16}},
                                 {"int8_wo", {1, 2, Precision::bf16}},
                                 {"sq", {1, 1, Precision::fp8}}};
  const auto found = std::ranges::find(rows, name, &Row::name);
  return found == std::end(rows) ? Format{1, 1, Precision::fp8} : found->format;
}

double hbm_us(double bytes, const GpuSpec& gpu) { return bytes / gpu.hbm_bandwidth.value() * 1e6; }
// What is loaded passes the L2 as well, and kernels hide only a part of one behind the other: the
// more HBM a GPU has for its SMs, the smaller the share of it that they use.
double loads_us(double bytes, const GpuSpec& gpu) {
  return hbm_us(bytes, gpu) + bytes / gpu.l2_bandwidth.value() * 1e6;
}
double flops_us(double flops, Precision multiplied, const GpuSpec& gpu) {
  return flops / gpu.peak(multiplied, multiplied).value() * 1e6;
}
double link_us(double bytes, const GpuSpec& gpu) {
  return bytes / gpu.scale_up_bandwidth.value() * 1e6;
}

std::string_view kernel_of(const TableRow& row) {
  const std::string_view kernel = row.text("kernel");
  return kernel.empty() ? "default" : kernel;
}

double cache_bytes(std::string_view precision) {
  return table_name(precision) == "bfloat16" ? 2 : 1;
}

Sample sample(std::string group, const TableRow& row, const Located& place) {
  return {std::move(group), std::string(kernel_of(row)), place, row.number("us")};
}

[[noreturn]] void refuse(const TableRow& row, std::string_view why) {
  throw ConfigError(fmt::format("{}: {}", row.place(), why));
}

// What the draws of a row's experts take for granted.
void check_experts(const TableRow& row, const ExpertsCall& c, double ranks) {
  constexpr double most_tokens = 1e7;
  if (!(c.experts >= 1 && c.experts <= 65536)) refuse(row, "experts: expected 1 to 65536");
  if (!(c.top_k >= 1 && c.top_k <= c.experts)) refuse(row, "top_k: expected 1 to experts");
  if (!(c.tokens >= 1 && c.tokens <= most_tokens)) refuse(row, "tokens: expected 1 to 1e7");
  if (!(ranks >= 1 && std::fmod(c.experts, ranks) == 0))
    refuse(row, "ep: expected a divisor of experts");
}

}  // namespace

EngineVersion engine_named(std::string_view folder) {
  const std::size_t dash = folder.find('-');
  if (dash == std::string_view::npos) return {std::string(folder), ""};
  return {std::string(folder.substr(0, dash)), std::string(folder.substr(dash + 1))};
}

std::array<int, 4> numbers_of(std::string_view version) {
  std::array<int, 4> numbers{};
  std::size_t next = 0;
  const char* end = version.data() + version.size();
  for (const char* c = version.data(); c < end && next < numbers.size();) {
    const auto [rest, failed] = std::from_chars(c, end, numbers[next]);
    next += failed == std::errc() ? 1 : 0;
    c = failed == std::errc() ? rest : c + 1;
  }
  return numbers;
}

double Sample::value() const { return std::log(us / place.rough_us); }

Located locate(const GemmCall& c, const GpuSpec& gpu) {
  const Format f = format_of(c.precision);
  const double loads =
      loads_us(c.n * c.k * f.weights + c.m * c.k * f.activations + c.m * c.n * 2, gpu);
  const double arithmetic = flops_us(2 * c.m * c.n * c.k, f.multiplied, gpu);
  return {{log_of(c.m), log_of(c.n), log_of(c.k)},
          gemm_launch_us + std::max(loads, arithmetic),
          c.precision == "sq" ? 0 : arithmetic};  // no file says how fast a GPU multiplies int8
}

Located locate(const ExpertsCall& c, const GpuSpec& gpu) {
  const Format f = format_of(c.precision);
  const double loads = loads_us(
      c.active * 3 * c.hidden * c.width * f.weights + c.rows * c.hidden * (f.activations + 2), gpu);
  const double arithmetic = flops_us(6 * c.hidden * c.width * c.rows, f.multiplied, gpu);
  // Most engines permute, activate and sum the copies of all tokens, whichever experts they chose.
  const double copies = loads_us(c.tokens * c.top_k * (2 * c.hidden + 4 * c.width) * 2, gpu);
  // Half an octave of a model's width and number of experts counts as a whole one of what a step
  // varies. Triton's layers change their tiles where tokens outnumber experts.
  return {{log_of(c.active), log_of(c.rows / c.active), log_of(c.tokens), log_of(c.hidden) / 2,
           log_of(c.width), log_of(c.experts), log_of(c.top_k), c.tokens > c.experts ? 1.0 : 0.0},
          experts_launch_us + loads + arithmetic / 0.5 + 0.3 * copies,
          arithmetic};
}

double cached_bytes(const AttentionCall& c) {
  constexpr double latent = 512 + 64;
  const double seen = c.window > 0 ? std::min(c.context, c.window + c.queries - 1) : c.context;
  if (!c.mla) return c.batch * seen * 2 * c.kv_heads * c.head_dim * c.kv_bytes;
  // Prefill multiplies keys and values of full size, which were just computed.
  return c.decode ? c.batch * c.context * latent * c.kv_bytes : 0;
}

bool reads_from_hbm(const AttentionCall& c, const GpuSpec& gpu) {
  constexpr double times = 4;
  return c.decode && c.window <= 0 && cached_bytes(c) > times * gpu.l2_capacity.value();
}

std::string from_hbm(std::string_view group) { return fmt::format("{} from HBM", group); }

Located locate(const AttentionCall& c, const GpuSpec& gpu) {
  const double before = c.context - c.queries;
  // Causal pairs of a sequence, within the window.
  double pairs = c.queries * before + c.queries * (c.queries + 1) / 2;
  if (c.window > 0 && c.context > c.window) pairs = std::min(pairs, c.queries * c.window);
  const double queries = c.batch * c.queries;
  double bytes = 0, flops = 0;
  if (!c.mla) {
    bytes = cached_bytes(c) + queries * 2 * c.q_heads * c.head_dim * 2;
    flops = 4 * c.q_heads * c.head_dim * c.batch * pairs;
  } else if (c.decode) {
    bytes = cached_bytes(c) + queries * c.q_heads * 1088 * 2;
    flops = 2 * c.q_heads * 1088 * c.batch * pairs;
  } else {
    bytes = c.batch * (c.queries + c.context) * c.q_heads * 320 * 2;
    flops = 2 * c.q_heads * 320 * c.batch * pairs;
  }
  double projections = 0;
  if (!c.block.empty()) {
    const Format f = format_of(c.block);
    const double weights =
        7168.0 * (1536 + 576) + c.q_heads * (1536 * 192 + 512 * 256 + 128 * 7168);
    bytes += weights * f.weights;
    projections = flops_us(2 * queries * weights, f.multiplied, gpu);
  }
  const double rough = attention_launch_us + loads_us(bytes, gpu) +
                       (flops_us(flops, Precision::bf16, gpu) + projections) / 0.6;
  // Kernels may multiply a cache of eight bits as such.
  const Precision narrowest = c.kv_bytes < 2 ? Precision::fp8 : Precision::bf16;
  // What a call before this one read may be in the L2 still, as much as goes into it.
  const double not_in_l2 = std::max(0.0, cached_bytes(c) - gpu.l2_capacity.value());
  const double least = std::max(flops_us(flops, narrowest, gpu), hbm_us(not_in_l2, gpu));
  // A prompt behind a prefix is as well used as a whole prompt with as many pairs.
  const double length = c.decode || c.window > 0 ? c.context : std::sqrt(2 * pairs);
  if (!c.mla) {
    // Kernels split a batch's KV heads over the SMs, and are chosen by how many queries share one.
    return {{log_of(c.batch * c.kv_heads), log_of(length), 2 * log_of(c.q_heads / c.kv_heads),
             log_of(c.kv_heads) / 2, log_of(c.head_dim), log_of(std::max(1.0, c.window))},
            rough,
            least};
  }
  return {{log_of(c.batch), log_of(length), log_of(c.q_heads),
           c.decode ? log_of(c.queries) : log_of(c.context)},
          rough,
          least};
}

Located locate(const BmmCall& c, const GpuSpec& gpu) {
  const double bytes = c.heads * 512 * 128 * 2 + c.tokens * c.heads * (512 + 128) * 2;
  const double flops = 2 * c.tokens * c.heads * 512 * 128;
  return {{log_of(c.tokens), log_of(c.heads)},
          gemm_launch_us + loads_us(bytes, gpu) + flops_us(flops, Precision::bf16, gpu) / 0.6};
}

Located locate(const QuantizeCall& c, const GpuSpec& gpu) {
  return {{log_of(c.m), log_of(c.k)}, gemm_launch_us + loads_us(c.m * c.k * 3, gpu)};
}

Located locate(const CollectiveCall& c, const GpuSpec& gpu) {
  const double passes = c.op == "all_reduce" ? 2 : 1;
  const double moved = passes * c.bytes * (c.gpus - 1) / c.gpus;
  const double launch = c.engine ? gemm_launch_us : library_launch_us;
  return {{log_of(c.bytes), 8 * log_of(c.gpus)}, launch + link_us(moved, gpu) / 0.75};
}

ExchangeVolume volume_of(const ExchangeCall& c) {
  // fp8 with a scale for 128 values on the way out, bf16 back.
  const double token = c.combine ? 2 * c.hidden : c.hidden * (1 + 4.0 / 128);
  const double gpus = 8 * c.nodes;
  // Low latency sends a copy for each expert, straight to it.
  if (c.low_latency) return {token * c.top_k * 7 / gpus, token * c.top_k * (gpus - 8) / gpus};
  return {token * 7 * (1 - std::pow(1 - 1 / gpus, c.top_k)),
          token * (c.nodes - 1) * (1 - std::pow(1 - 8 / gpus, c.top_k))};
}

Located locate(const ExchangeCall& c, const GpuSpec& gpu) {
  const ExchangeVolume one = volume_of(c);
  const double near = link_us(c.tokens_per_rank * one.nvlink, gpu) / 0.6;
  const double far = c.tokens_per_rank * one.network / measured_nic * 1e6 / 0.8;
  return {{log_of(c.tokens_per_rank), log_of(c.hidden), log_of(c.top_k), log_of(c.experts) / 2,
           4 * log_of(c.nodes), 2 * log_of(std::max(1.0, c.sms))},
          exchange_launch_us + std::max(near, far)};
}

int axes_of(TableFamily family) {
  switch (family) {
    case TableFamily::gemm: return 3;
    case TableFamily::experts: return 8;
    case TableFamily::attention_decode:
    case TableFamily::attention_prefill: return 6;
    case TableFamily::mla_decode:
    case TableFamily::mla_prefill:
    case TableFamily::mla_decode_module:
    case TableFamily::mla_prefill_module: return 4;
    case TableFamily::low_latency:
    case TableFamily::normal: return 6;
    default: return 2;
  }
}

namespace {

std::vector<Sample> unchecked_samples(TableFamily family, const TableRow& row, const GpuSpec& gpu,
                                      const EngineVersion& engine) {
  const std::string precision(table_name(row.text("precision")));
  const auto attention = [&](bool decode, bool mla) {
    AttentionCall c;
    c.decode = decode;
    c.mla = mla;
    c.q_heads = row.number("q_heads");
    const std::string_view kv = row.text("kv_precision");
    c.kv_bytes = cache_bytes(kv);
    c.batch = row.number("batch");
    if (!mla) {
      c.kv_heads = row.number("kv_heads");
      c.head_dim = row.number("head_dim");
      c.window = row.number("window", 0);
      c.queries = decode ? 1 : row.number("isl");
      c.context = decode ? row.number("ctx") + 1 : c.queries + row.number("prefix", 0);
    } else {
      c.queries = row.number("isl");
      c.context = row.number("step") + c.queries;
      c.block = row.text("gemm_type");
    }
    const std::string group =
        mla && !c.block.empty()
            ? fmt::format("{} {} {}", table_name(kv), precision, c.block)
            : fmt::format("{} {}{}", table_name(kv), precision, c.window > 0 ? " window" : "");
    return std::vector{
        sample(reads_from_hbm(c, gpu) ? from_hbm(group) : group, row, locate(c, gpu))};
  };
  switch (family) {
    case TableFamily::gemm:
      return {sample(
          precision, row,
          locate(GemmCall{precision, row.number("m"), row.number("n"), row.number("k")}, gpu))};
    case TableFamily::experts: {
      ExpertsCall c{.precision = precision,
                    .hidden = row.number("hidden"),
                    .width = row.number("width") / row.number("tp", 1),
                    .top_k = row.number("top_k"),
                    .experts = row.number("experts"),
                    .tokens = row.number("tokens")};
      // What a thinned table says of its draws; what a source's own says only by name.
      if (row.text("rows").empty()) {
        check_experts(row, c, row.number("ep", 1));
        const BusiestRank load =
            rank_load(row.text("distribution"), c.tokens, c.top_k, c.experts, row.number("ep", 1),
                      kernel_of(row) == "sglang_fused_moe_triton" && times_lone_ranks(engine));
        c.rows = load.rows;
        c.active = load.active;
      } else {
        c.rows = row.number("rows");
        c.active = row.number("active");
      }
      return {sample(precision, row, locate(c, gpu))};
    }
    case TableFamily::attention_decode: return attention(true, false);
    case TableFamily::attention_prefill: return attention(false, false);
    case TableFamily::mla_decode:
    case TableFamily::mla_decode_module: return attention(true, true);
    case TableFamily::mla_prefill:
    case TableFamily::mla_prefill_module: return attention(false, true);
    case TableFamily::mla_bmm:
      return {sample(fmt::format("{} {}", row.text("op"), precision), row,
                     locate(BmmCall{row.number("tokens"), row.number("heads")}, gpu))};
    case TableFamily::quantize:
      return {sample(precision, row, locate(QuantizeCall{row.number("m"), row.number("k")}, gpu))};
    case TableFamily::all_reduce:
    case TableFamily::collectives: {
      const bool by_engine = family == TableFamily::all_reduce;
      const std::string op(by_engine ? "all_reduce" : row.text("op"));
      const CollectiveCall c{by_engine, op, row.number("gpus"), row.number("bytes")};
      return {sample(op, row, locate(c, gpu))};
    }
    case TableFamily::low_latency:
    case TableFamily::normal: {
      ExchangeCall c{.low_latency = family == TableFamily::low_latency,
                     .nodes = row.number("nodes"),
                     .hidden = row.number("hidden"),
                     .tokens_per_rank = row.number("tokens_per_rank"),
                     .top_k = row.number("top_k"),
                     .experts = row.number("experts"),
                     .sms = row.number("sms", 0)};
      const Sample out{"dispatch", "deepep", locate(c, gpu), row.number("dispatch_us")};
      c.combine = true;
      return {out, {"combine", "deepep", locate(c, gpu), row.number("combine_us")}};
    }
  }
  return {};
}

bool is_usable(const Sample& sample) {
  const auto finite = [](double x) { return std::isfinite(x); };
  return sample.us > 0 && sample.place.rough_us > 0 && finite(sample.place.rough_us) &&
         std::ranges::all_of(sample.place.at, finite);
}

}  // namespace

std::vector<Sample> samples_of(TableFamily family, const TableRow& row, const GpuSpec& gpu,
                               const EngineVersion& engine) {
  std::vector<Sample> samples = unchecked_samples(family, row, gpu, engine);
  for (const Sample& sample : samples) {
    if (!is_usable(sample))
      refuse(row, fmt::format("{} us for sizes that are no kernel's; expected all of them above 0",
                              sample.us));
  }
  return samples;
}

std::vector<std::string_view> table_names(Precision weights, Precision activations) {
  switch (weights) {
    case Precision::bf16: return {"bfloat16"};
    case Precision::fp8: return {"fp8", "fp8_static", "fp8_block"};
    case Precision::fp8_block: return {"fp8_block", "fp8", "fp8_static"};
    case Precision::nvfp4: return {"nvfp4"};
    case Precision::mxfp4:
      if (activations != Precision::bf16) return {"w4a8_mxfp4_mxfp8", "w4a16_mxfp4", "nvfp4"};
      return {"w4a16_mxfp4"};
    case Precision::int4: return {"int4_wo"};
  }
  return {};
}

std::string_view table_name(std::string_view precision) {
  struct Row {
    std::string_view name, table;
  };
  static constexpr Row rows[] = {{"bf16", "bfloat16"}, {"float16", "bfloat16"},
                                 {"fp16", "bfloat16"}, {"half", "bfloat16"},
                                 {"fp4", "nvfp4"},     {"int4", "int4_wo"},
                                 {"int8", "int8_wo"},  {"mxfp4", "w4a16_mxfp4"}};
  const auto found = std::ranges::find(rows, precision, &Row::name);
  return found == std::end(rows) ? precision : found->table;
}

namespace {

constexpr std::string_view power_law = "power_law_";

double exponent_of(std::string_view distribution) {
  double alpha = 1.01;
  const std::string_view digits = distribution.substr(power_law.size());
  std::from_chars(digits.data(), digits.data() + digits.size(), alpha);
  return alpha == 1 ? 1.0001 : alpha;
}

// What rounding added or lost goes to the least and comes from the most loaded expert, rank by
// rank.
void settle(std::vector<std::int32_t>& counts, int ranks, double tokens, std::int64_t left) {
  const auto per_rank = static_cast<std::ptrdiff_t>(counts.size()) / ranks;
  for (std::ptrdiff_t rank = 0; left != 0; rank = (rank + 1) % ranks) {
    const auto first = counts.begin() + rank * per_rank;
    const auto last = first + per_rank;
    const auto expert = left > 0 ? std::min_element(first, last) : std::max_element(first, last);
    if (left > 0 ? *expert >= tokens : *expert == 0) continue;
    *expert += left > 0 ? 1 : -1;
    left -= left > 0 ? 1 : -1;
  }
}

// Tokens per expert, as drawn by a bounded power law over experts.
std::vector<std::int32_t> power_law_counts(double tokens, double selections, int experts, int ranks,
                                           double alpha, Rng& rng) {
  const bool many = selections > experts;
  const double low = std::pow(many ? 1 : 0.01, 1 - alpha);
  const double high = std::pow(many ? 0.8 * tokens : 2, 1 - alpha);
  std::vector<double> weights(static_cast<std::size_t>(experts));
  double sum = 0;
  for (double& weight : weights) {
    weight = std::pow((high - low) * rng.uniform() + low, 1 / (1 - alpha));
    sum += weight;
  }
  std::vector<std::int32_t> counts;
  std::int64_t left = std::llround(selections);
  for (const double weight : weights) {
    counts.push_back(
        static_cast<std::int32_t>(std::min(tokens, std::round(weight / sum * selections))));
    left -= counts.back();
  }
  settle(counts, ranks, tokens, left);
  return counts;
}

std::span<const std::int32_t> busiest(std::span<const std::int32_t> counts, int ranks) {
  const std::size_t per_rank = counts.size() / static_cast<std::size_t>(ranks);
  std::span<const std::int32_t> most;
  std::int64_t rows = -1;
  for (std::size_t first = 0; first + per_rank <= counts.size(); first += per_rank) {
    const auto rank = counts.subspan(first, per_rank);
    const std::int64_t sum = std::accumulate(rank.begin(), rank.end(), std::int64_t{0});
    if (sum > rows) most = rank;
    rows = std::max(rows, sum);
  }
  return most;
}

BusiestRank load_of(std::span<const std::int32_t> experts) {
  BusiestRank load;
  for (const std::int32_t tokens : experts) {
    load.rows += tokens;
    load.active += tokens > 0 ? 1 : 0;
  }
  return load;
}

}  // namespace

std::vector<std::int32_t> power_law_rank(std::string_view distribution, double tokens, double top_k,
                                         int experts, int ranks, Rng& rng) {
  const auto counts =
      power_law_counts(tokens, tokens * top_k, experts, ranks, exponent_of(distribution), rng);
  const auto rank = busiest(counts, ranks);
  return {rank.begin(), rank.end()};
}

bool times_lone_ranks(const EngineVersion& engine) {
  return engine.name == "sglang" && numbers_of(engine.version) >= std::array{0, 5, 10, 0};
}

std::vector<std::int32_t> lone_rank(std::int64_t tokens, int top_k, int experts, int ranks) {
  const int stride = (experts + top_k - 1) / top_k;
  std::vector<std::int32_t> counts(static_cast<std::size_t>(experts / ranks));
  for (std::int64_t t = 0; t < tokens; ++t) {
    const std::int64_t first = tokens < stride ? t * stride / tokens : t;
    std::int32_t elsewhere = 0;
    for (int j = 0; j < top_k; ++j) {
      const auto expert = static_cast<std::size_t>((first + std::int64_t{j} * stride) % experts);
      expert < counts.size() ? ++counts[expert] : ++elsewhere;
    }
    if (elsewhere < top_k) counts[0] += elsewhere;
  }
  return counts;
}

BusiestRank rank_load(std::string_view distribution, double tokens, double top_k, double experts,
                      double ranks, bool lone) {
  const double selections = tokens * top_k;
  if (!distribution.starts_with(power_law)) {
    if (lone && ranks > 1) {
      return load_of(lone_rank(std::llround(tokens), static_cast<int>(top_k),
                               static_cast<int>(experts), static_cast<int>(ranks)));
    }
    const double own = experts / ranks;
    const double rows = std::max(1.0, selections / ranks);
    return {rows, selections < experts ? std::min(own, std::ceil(selections / ranks)) : own};
  }
  // The same few come again in row after row.
  const std::string name = fmt::format("{} {} {} {}", distribution, tokens, top_k, experts);
  static thread_local std::map<std::pair<std::string, double>, BusiestRank> drawn;
  const auto [found, unseen] = drawn.try_emplace({name, ranks});
  BusiestRank& mean = found->second;
  if (!unseen) return mean;
  Rng rng(1, name);
  for (int i = 0; i < power_law_draws; ++i) {
    const BusiestRank load = load_of(power_law_rank(
        distribution, tokens, top_k, static_cast<int>(experts), static_cast<int>(ranks), rng));
    mean.rows += load.rows / power_law_draws;
    mean.active += load.active / power_law_draws;
  }
  return mean;
}

}  // namespace moesim
