// SPDX-License-Identifier: Apache-2.0
#include "tools/bench/predict_operation.hpp"

#include <algorithm>
#include <cmath>
#include <initializer_list>

#include <fmt/format.h>

#include "hardware/fabric.hpp"
#include "hardware/kernels/attention.hpp"
#include "hardware/kernels/deep_ep.hpp"
#include "hardware/kernels/experts.hpp"
#include "hardware/kernels/gemm.hpp"
#include "hardware/kernels/one_sided.hpp"
#include "hardware/kernels/rough.hpp"
#include "hardware/rng.hpp"
#include "hardware/tables/kernel_tables.hpp"
#include "models/mixers/grouped.hpp"
#include "models/mixers/latent.hpp"
#include "sim/placement/placement.hpp"

namespace moesim {

namespace {

std::optional<Operands> stored_as(std::string_view precision) {
  return operands_of(table_name(precision));
}

bool is_fitted(Evidence evidence) {
  return evidence == Evidence::calibrated || evidence == Evidence::measured ||
         evidence == Evidence::interpolated;
}

Prediction in_us(Seconds time, Evidence evidence, std::string breakdown, double bytes,
                 double flops = 0) {
  return {time.count() * 1e6, std::move(breakdown), !is_fitted(evidence), bytes, flops, evidence};
}

Prediction in_us(const Cost& cost) {
  const auto name = resource_names[at(cost.bound)];
  return in_us(cost.time, cost.evidence,
               fmt::format("{}; {:.4g} GFLOP; {:.4g} MB", name, cost.work.flops.value() / 1e9,
                           cost.work.hbm.value() / 1e6),
               cost.work.hbm.value(), cost.work.flops.value());
}

/// Weights that fit in 70 % of the L2 stay there when a benchmark repeats a kernel on them
/// (RRZE-HPC/gpu-benches: resident up to about 28 of 40 MB on A100).
GpuSpec with_warm_l2(const GpuSpec& gpu, Bytes touched) {
  GpuSpec warm = gpu;
  if (touched < gpu.l2_capacity * 0.7)
    warm.hbm_bandwidth = std::max(gpu.hbm_bandwidth, gpu.l2_bandwidth);
  return warm;
}

Cost repeated(const GroupedGemmShape& shape, const GroupedRows& rows, const GpuSpec& gpu) {
  const Bytes touched = GroupedGemm(shape, gpu).cost(rows).work.hbm;
  return GroupedGemm(shape, with_warm_l2(gpu, touched)).cost(rows);
}

/// Time by a table, in microseconds; no faster than the data sheet with what fits in L2 kept there.
Prediction by_table(const TableTime& measured, const Work& work, FlopsPerSecond peak,
                    const GpuSpec& gpu) {
  const GpuSpec warm = with_warm_l2(gpu, work.hbm);
  return in_us(priced({.work = work, .peak = peak}, measured, work.hbm / warm.hbm_bandwidth,
                      work.flops / peak));
}

bool is_masked(const MeasuredPoint& point) { return contains(point.operation, "masked"); }

/// True if SGLang's Triton kernel is meant by name, or in a precision that it multiplies. The
/// latter does not hold for GPUs with nvfp4, where SGLang takes FlashInfer's from 0.5.14 on.
bool is_triton(const MeasuredPoint& point, const GpuSpec& gpu) {
  bool other = false;
  for (const std::string& text : {point.operation, point.source, point.notes}) {
    if (contains(text, "triton")) return true;
    for (const char* name : {"flashinfer", "cutedsl", "cutlass", "marlin", "deepgemm"})
      other = other || contains(text, name);
  }
  if (other || table_name(point.precision).find('4') != std::string_view::npos) return false;
  return !gpu.dense_peak.contains(Precision::nvfp4) ||
         numbers_of(timed_engine(point).version) < std::array{0, 5, 14, 0};
}

/// How the rank that the point is of was given its share.
Draws draws_of(const MeasuredPoint& point, const ExpertShape& shape, const GpuSpec& gpu) {
  const ExpertsCall layer{.hidden = double(shape.hidden),
                          .top_k = double(shape.per_token),
                          .experts = double(shape.experts)};
  Draws draws = draws_of(timed_engine(point), gpu, layer, is_triton(point, gpu));
  // A rank that holds all experts is not alone; draws that a point forces are as the point says.
  if (point.distribution != "balanced" ||
      (point.ep <= 1 && draws.balanced == Draws::Balanced::lone))
    draws.balanced = Draws::Balanced::even;
  return draws;
}

/// The number behind any of the names.
double any_number(const std::string& text, std::initializer_list<const char*> names) {
  for (const char* name : names)
    if (const double number = number_after(text, name); number > 0) return number;
  return 0;
}

bool has_mla(const MeasuredPoint& point) {
  return contains(point.operation, "MLA") || contains(point.operation, "mla");
}

LatentAttention latent_of(const MeasuredPoint& point) {
  return {.query_heads = static_cast<int>(any_number(point.operation, {"q_heads", "heads", "q"})),
          .kv_lora = 512,
          .qk_nope = 128,
          .qk_rope = 64,
          .v_dim = 128};
}

GroupedAttention grouped_of(const MeasuredPoint& point) {
  return {.query_heads = static_cast<int>(any_number(point.operation, {"q_heads", "heads", "q"})),
          .kv_heads = static_cast<int>(any_number(point.operation, {"kv_heads", "kv"})),
          .head_dim = static_cast<int>(any_number(point.operation, {"head_dim", "hd"})),
          .window = static_cast<int>(number_after(point.operation, "window"))};
}

/// A whole MLA block with its projections.
Predicted mla_module(const MeasuredPoint& point, const SequenceWork& sequence, double heads,
                     const GpuSpec& gpu) {
  const auto weights = stored_as(point.precision);
  const double context = sequence.context_tokens + sequence.new_tokens;
  const LatentAttention a = latent_of(point);
  const LatentAttentionShape shape{.decode = point.category == "attn_decode",
                                   .heads = heads,
                                   .kv_lora = double(a.kv_lora),
                                   .qk_nope = double(a.qk_nope),
                                   .qk_rope = double(a.qk_rope),
                                   .v_dim = double(a.v_dim),
                                   .kv_cache = contains(point.operation + point.notes, "kv_fp8")
                                                   ? Precision::fp8
                                                   : Precision::bf16};
  const AttentionLoad load{.sequences = point.batch,
                           .queries = point.batch * sequence.new_tokens,
                           .context = point.batch * context,
                           .pairs = point.batch * causal_pairs(sequence.new_tokens, context, 0)};
  const auto cost =
      latent_attention_block(shape, load, weights ? weights->weights : Precision::bf16, gpu);
  if (!cost) return Skipped{"no table of whole MLA blocks on this GPU"};
  return in_us(*cost);
}

Predicted attention(const MeasuredPoint& point, const GpuSpec& gpu) {
  const bool mla = has_mla(point);
  const GroupedAttention heads = grouped_of(point);
  const bool known = heads.query_heads > 0 && (mla || (heads.kv_heads > 0 && heads.head_dim > 0));
  if (!known || (point.metric != "kernel_time" && point.metric != "latency"))
    return Skipped{"the row does not give the shape that was measured"};
  PrecisionPlan precision;
  if (contains(point.precision, "fp8")) precision.kv_cache = Precision::fp8;
  const bool decode = point.category == "attn_decode";
  const auto length = static_cast<std::int32_t>(decode ? point.context : point.prompt);
  const SequenceWork sequence = decode ? SequenceWork{1, length - 1} : SequenceWork{length, 0};
  if (length < 1 || point.batch < 1) return Skipped{"the row gives no batch or no length"};
  if (mla && contains(point.operation, "module"))
    return mla_module(point, sequence, heads.query_heads, gpu);
  const std::vector<SequenceWork> sequences(static_cast<std::size_t>(point.batch), sequence);
  const MixerPtr kind = mla ? mixer(latent_of(point)) : mixer(heads);
  const auto core = [&](const GpuSpec& spec) -> Cost {
    std::vector<Operation> operations;
    kind->core({1, {}, precision, spec}, sequences, operations);
    const std::string_view name = decode ? "attention_decode" : "attention_prefill";
    for (const Operation& operation : operations)
      if (operation.name == name) return operation.cost;
    return {};
  };
  const Cost cost = core(gpu);
  return in_us(gpu.tables ? core(with_warm_l2(gpu, cost.work.hbm)) : cost);
}

Predicted dense_gemm(const MeasuredPoint& point, const GpuSpec& gpu) {
  const auto stored = stored_as(point.precision);
  const double m = number_after(point.operation, "M");
  const double n = number_after(point.operation, "N"), k = number_after(point.operation, "K");
  if (m == 0 || n == 0 || k == 0)
    return Skipped{"the row does not give the shape that was measured"};
  if (gpu.tables) {
    const GemmCall call{table_name(point.precision), m, n, k};
    if (const auto measured = gpu.tables->time(ask(call, gpu))) {
      const Operands bytes = stored.value_or(Operands{Precision::fp8, Precision::fp8});
      const double moved = n * k * bytes_per_element(bytes.weights) +
                           m * k * bytes_per_element(bytes.activations) + 2 * m * n;
      return by_table(*measured, {.flops = Flops(2 * m * n * k), .hbm = Bytes(moved)},
                      gpu.peak(bytes.weights, bytes.activations), gpu);
    }
  }
  if (!stored) return Skipped{"no model of its precision"};
  return in_us(gemm(m, n, k, stored->weights, stored->activations, gpu));
}

/// The cluster a collective was measured on. One NIC of 400 Gb/s per GPU between domains.
ClusterSpec cluster_of(const MeasuredPoint& point, const GpuSpec& gpu,
                       const std::filesystem::path& root) {
  ClusterSpec cluster;
  cluster.gpu = gpu;
  cluster.nodes = std::max(1, point.nodes);
  cluster.gpus_per_node = point.gpus / cluster.nodes;
  const bool rack = contains(point.interconnect, "NVL72");
  cluster.scale_up_domain = rack ? point.gpus : cluster.gpus_per_node;
  cluster.network =
      read_cluster(ConfigNode::from_file(root / "hardware/clusters/h100x32.json")).network;
  return cluster;
}

Prediction in_us(const CollectiveCost& cost, int gpus) {
  const auto name = resource_names[at(cost.bound)];
  return in_us(cost.time, cost.evidence,
               fmt::format("{}; NVLink {:.4g} MB; network {:.4g} MB", name,
                           cost.nvlink.value() / 1e6, cost.network.value() / 1e6),
               cost.nvlink.value() / gpus);
}

/// Expected bytes when a token travels once per domain, to the GPU of the same index there. From
/// there it travels once per GPU, its k experts drawn evenly.
TrafficMatrix hierarchical_traffic(int gpus, int domain, double tokens, int k, double token_bytes) {
  const double reaches_gpu = 1 - std::pow(1 - 1.0 / gpus, k);
  const double reaches_domain = 1 - std::pow(1 - double(domain) / gpus, k);
  TrafficMatrix traffic(gpus);
  for (int from = 0; from < gpus; ++from) {
    const int own = from / domain;
    for (int other = 0; other < gpus / domain; ++other) {
      const int landing = other * domain + from % domain;
      if (other != own) traffic.at(from, landing) += tokens * token_bytes * reaches_domain;
      for (int to = other * domain; to < (other + 1) * domain; ++to)
        if (to != landing) traffic.at(landing, to) += tokens * token_bytes * reaches_gpu;
    }
  }
  return traffic;
}

// Draws of a power law that EPLB has placed, as TensorRT-LLM's wide-EP tables time them:
// "power_law_1.01_eplb".
constexpr std::string_view placed_by_eplb = "_eplb";

/// Rows and active slots of the fullest rank, in the mean over draws: EPLB places each draw by its
/// own load, on the point's `slots=` (default: the experts), and a copy takes an even share.
BusiestRank eplb_load(const MeasuredPoint& point, const ExpertShape& shape, Draws draws) {
  const int ranks = std::max(1, point.ep);
  const auto slots = static_cast<int>(number_after(point.operation, "slots"));
  const PlacementProblem problem{.experts = shape.experts,
                                 .gpus = ranks,
                                 .slots_per_gpu = std::max(slots, shape.experts) / ranks};
  const auto eplb = placers().make(ConfigNode("eplb", "placement"));
  Rng rng(1, fmt::format("{} {} {}", point.distribution, point.tokens, shape.experts));
  BusiestRank mean;
  for (int i = 0; i < power_law_draws; ++i) {
    const std::vector<std::int32_t> tokens = power_law_rank(
        {point.distribution, point.tokens, double(shape.per_token), shape.experts, 1, draws.fill},
        rng);
    const ExpertLoad seen(tokens.begin(), tokens.end());
    const LayerPlacement placed = eplb->place(problem, LayerStatistics(seen), 0);
    std::vector<BusiestRank> loads(at(ranks));
    for (int slot = 0; slot < placed.slots(); ++slot) {
      const int expert = placed.expert_of_slot(slot);
      const double rows = tokens[at(expert)] / static_cast<double>(placed.slots_of(expert).size());
      BusiestRank& load = loads[at(placed.gpu_of_slot(slot))];
      load.rows += rows;
      load.active += std::min(1.0, rows);
    }
    const BusiestRank fullest = std::ranges::max(loads, {}, &BusiestRank::rows);
    mean.rows += fullest.rows / power_law_draws;
    mean.active += fullest.active / power_law_draws;
  }
  return mean;
}

/// The layer that a table times, or nothing where no table has its precision.
std::optional<Prediction> expert_table(const MeasuredPoint& point, const ExpertShape& shape,
                                       const GpuSpec& gpu) {
  const double ranks = std::max(1, point.ep);
  const std::string_view precision = table_name(point.precision);
  const auto layer = ExpertTables::of(*gpu.tables, {.precision = precision,
                                                    .hidden = shape.hidden,
                                                    .width = shape.width / std::max(1, point.tp),
                                                    .top_k = double(shape.per_token),
                                                    .experts = double(shape.experts),
                                                    .held = shape.experts / ranks});
  if (!layer) return std::nullopt;
  // A distribution that is not named is taken for an even one.
  const Draws draws = draws_of(point, shape, gpu);
  BusiestRank load = point.distribution.ends_with(placed_by_eplb)
                         ? eplb_load(point, shape, draws)
                         : rank_load(point.distribution, point.tokens, shape.per_token,
                                     shape.experts, ranks, draws);
  if (point.active_experts > 0 && draws.balanced == Draws::Balanced::even &&
      !point.distribution.starts_with("power_law")) {
    load.active = point.active_experts;
    load.rows = std::max(load.active, point.tokens * shape.per_token / ranks);
  }
  const Operands stored =
      stored_as(point.precision).value_or(Operands{Precision::fp8, Precision::fp8});
  const double width = shape.width / std::max(1, point.tp);
  const double weights = load.active * 3 * shape.hidden * width * bytes_per_element(stored.weights);
  const double rows = load.rows * shape.hidden * (bytes_per_element(stored.activations) + 2);
  return by_table(
      layer->time(point.tokens, load.rows, load.active),
      {.flops = Flops(6 * shape.hidden * width * load.rows), .hbm = Bytes(weights + rows)},
      gpu.peak(stored.weights, stored.activations), gpu);
}

/// DeepEP as its tables time it.
std::optional<Prediction> exchange_table(const MeasuredPoint& point, const GpuSpec& gpu) {
  if (!gpu.tables || !contains(point.operation, "DeepEP") || point.batch < 1) return std::nullopt;
  const auto shape = expert_shape(point);
  const std::string text = point.operation + " " + point.notes;
  const auto given = [&](const char* name, double otherwise) {
    const double number = number_after(text, name);
    return number > 0 ? number : otherwise;
  };
  const bool normal = contains(point.operation, "normal");
  const ExchangeCall call{.low_latency = !normal,
                          .combine = contains(point.operation, "combine"),
                          .nodes = double(std::max(1, point.nodes)),
                          .hidden = given("hidden", shape ? shape->hidden : 7168),
                          .tokens_per_rank = point.batch,
                          .top_k = given("top_k", shape ? shape->per_token : 8),
                          .experts = given("experts", shape ? shape->experts : 256),
                          .sms = normal ? given("sms", 24) : 0};
  const auto measured = gpu.tables->time(ask(call, gpu));
  if (!measured) return std::nullopt;
  // Chooses as Fabric::exchange does.
  const Kernel& kernel = *kernel_timed_by(point.category, point.operation);
  if (measured->evidence == Evidence::carried_over && gpu.collective(kernel).calibration)
    return std::nullopt;
  return in_us(measured->time, measured->evidence, "table of DeepEP",
               point.batch * volume_of(call).nvlink);
}

}  // namespace

const GpuSpec& OperationPredictor::gpu(const std::string& file) {
  const auto found = gpus_.find(file);
  if (found != gpus_.end()) return found->second;
  const auto path = root_ / "hardware/gpus" / (file + ".json");
  return gpus_.emplace(file, read_gpu(ConfigNode::from_file(path))).first->second;
}

const GpuSpec& OperationPredictor::gpu_of(const std::string& name, const EngineVersion& engine,
                                          const std::string& expert_kernel) {
  const std::string key = name + " " + engine.name + " " + engine.version + " " + expert_kernel;
  const auto found = engines_.find(key);
  if (found != engines_.end()) return found->second;
  const auto given = given_.find(name);
  const GpuSpec& plain = given != given_.end() ? given->second : gpu(gpu_file(name));
  KernelChoice kernels;
  if (!expert_kernel.empty()) kernels["experts"] = expert_kernel;
  return engines_.emplace(key, with_engine(plain, engine, kernels)).first->second;
}

Predicted OperationPredictor::predict(const MeasuredPoint& point) {
  if (gpu_file(point.gpu).empty() && !given_.contains(point.gpu))
    return Skipped{"no such GPU in hardware/gpus; name its file with --gpu"};
  return predict(point,
                 gpu_of(point.gpu, timed_engine(point), word_after(point.operation, "kernel=")));
}

Predicted OperationPredictor::predict(const MeasuredPoint& point, const GpuSpec& spec) const {
  if (point.category == "moe_kernel") return expert_layer(point, spec);
  if (point.category == "gemm") return dense_gemm(point, spec);
  if (point.category.starts_with("attn_")) return attention(point, spec);
  if (point.category == "collective") return collective(point, spec);
  if (point.category == "moe_a2a") return token_exchange(point, spec);
  return Skipped{"no model of this category"};
}

Predicted OperationPredictor::expert_layer(const MeasuredPoint& point, const GpuSpec& gpu) const {
  const auto shape = expert_shape(point);
  const auto stored = stored_as(point.precision);
  if (!shape) return Skipped{"the experts' shape is unknown: hidden=, width=, experts=, top_k="};
  const int ranks = std::max(1, point.ep);
  if (gpu.tables && !is_masked(point)) {
    if (const auto prediction = expert_table(point, *shape, gpu)) return *prediction;
  }
  if (!stored) return Skipped{"no model of its precision"};
  const GroupedGemmShape gemm{
      .hidden = shape->hidden,
      .width = shape->width / std::max(1, point.tp),
      .weights = stored->weights,
      .activations = stored->activations,
      .kernel = is_masked(point) ? ExpertKernel::masked : ExpertKernel::grouped_gemm};
  const int tile =
      gpu.kernel(is_masked(point) ? masked_grouped_gemm_kernel : grouped_gemm_kernel).tile_m;
  const auto price = [&](std::span<const std::int32_t> tokens) {
    return in_us(repeated(gemm, grouped_rows(tokens, tile), gpu));
  };
  const Draws draws = draws_of(point, *shape, gpu);
  if (point.distribution.starts_with("power_law_")) {
    Rng rng(1, "power law " + point.id);
    Prediction mean;
    for (int i = 0; i < power_law_draws; ++i) {
      const double sum = mean.value;
      mean = price(power_law_rank({point.distribution, point.tokens, double(shape->per_token),
                                   shape->experts, ranks, draws.fill},
                                  rng));
      mean.value += sum;
    }
    mean.value /= power_law_draws;
    return mean;
  }
  if (draws.balanced == Draws::Balanced::lone) {
    return price(lone_rank(std::llround(point.tokens), shape->per_token, shape->experts, ranks));
  }
  if (point.active_experts <= 0) return Skipped{"active experts unknown"};
  const long long active = std::llround(point.active_experts);
  const long long tokens = std::max(active, std::llround(point.tokens * shape->per_token / ranks));
  std::vector<std::int32_t> slots;
  for (long long i = 0; i < active; ++i)
    slots.push_back(static_cast<std::int32_t>((i + 1) * tokens / active - i * tokens / active));
  return price(slots);
}

Predicted OperationPredictor::collective(const MeasuredPoint& point, const GpuSpec& gpu) const {
  const Fabric fabric(cluster_of(point, gpu, root_));
  const Kernel* const kernel = kernel_timed_by(point.category, point.operation);
  if (kernel == nullptr) return Skipped{"no model of this collective"};
  const double n = point.gpus;
  const CollectiveCost cost = kernel->collective(fabric, point.gpus, Bytes(point.bytes));
  Prediction prediction = in_us(cost, point.gpus);
  // nccl-tests: what one GPU's link carries, 2 (n - 1)/n of the message in an all-reduce.
  if (point.metric == "busbw")
    prediction.value = 2 * (n - 1) / n * point.bytes / cost.time.count() / 1e9;
  return prediction;
}

Predicted OperationPredictor::token_exchange(const MeasuredPoint& point, const GpuSpec& gpu) const {
  if (point.metric != "latency") return Skipped{"a bandwidth without the bytes it was taken over"};
  if (const auto prediction = exchange_table(point, gpu)) return *prediction;
  constexpr int top_k = 8, experts = 256;
  constexpr double hidden = 7168;
  const bool combine = contains(point.operation, "combine");
  // fp8 with an fp32 scale per 128 values on the way out, bf16 on the way back.
  const bool bf16 = combine || contains(point.operation, "bf16");
  const double token_bytes = bf16 ? 2 * hidden : hidden + hidden / 128 * 4;
  const int gpus = point.gpus;
  if (contains(point.operation, "OneSided")) {
    // Its benchmark spreads a token's experts over as many GPUs as it can.
    const Fabric fabric(cluster_of(point, gpu, root_));
    const LinkTraffic copies(
        even_traffic(gpus, point.batch * spread_copies(top_k, gpus) / (gpus - 1)),
        fabric.cluster().scale_up_domain);
    return in_us(fabric.exchange({.copies = copies,
                                  .bytes = token_bytes,
                                  .kernels = TokenKernels::one_sided,
                                  .combine = combine,
                                  .hidden = hidden,
                                  .top_k = top_k,
                                  .experts = experts}),
                 gpus);
  }
  // Kernels that DeepEP's tables do not hold are other ones, which keep their constants.
  GpuSpec untabled = gpu;
  untabled.tables = nullptr;
  const ClusterSpec cluster = cluster_of(point, untabled, root_);
  const Kernel& kernel = *kernel_timed_by(point.category, point.operation);
  const auto traffic = [&] {
    if (&kernel == &normal_all_to_all_kernel)
      return hierarchical_traffic(gpus, cluster.scale_up_domain, point.batch, top_k, token_bytes);
    return even_traffic(gpus, point.batch * top_k * token_bytes / gpus);
  };
  return in_us(Fabric(cluster).all_to_all(traffic(), kernel), gpus);
}

}  // namespace moesim
