// SPDX-License-Identifier: Apache-2.0
#include "models/step_ops.hpp"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "hardware/choice.hpp"
#include "hardware/kernels/attention.hpp"
#include "hardware/kernels/gemm.hpp"
#include "hardware/kernels/quantise.hpp"
#include "hardware/tables/kernel_tables.hpp"

namespace moesim {

namespace {

constexpr double bf16_bytes = 2;
constexpr double fp32_bytes = 4;

constexpr std::int64_t triangle(std::int64_t n) { return n * (n + 1) / 2; }

// Keys that the query at position p sees, itself included, summed over p < n.
// full: sum of p + 1; sliding: sum of min(p + 1, w); chunked: sum of p mod w + 1.
std::int64_t keys_seen_before(std::int64_t n, const LayerSpec& layer) {
  const std::int64_t w = layer.window;
  if (w == 0 || n <= w) return triangle(n);
  if (layer.chunked) return n / w * triangle(w) + triangle(n % w);
  return triangle(w) + (n - w) * w;
}

// The first position that the query at position p sees.
std::int64_t first_seen(std::int64_t p, const LayerSpec& layer) {
  const std::int64_t w = layer.window;
  if (w == 0) return 0;
  return layer.chunked ? p / w * w : std::max<std::int64_t>(0, p + 1 - w);
}

// Tables time whole modules of an engine: linear layers with the quantisation of their inputs,
// attention with the write into the KV cache, expert layers with top-k.
bool is_by_table(const Cost& cost, const GpuSpec& gpu) {
  return gpu.tables && cost.evidence != Evidence::calibrated &&
         cost.evidence != Evidence::unmeasured;
}

bool fuses(const GpuSpec& gpu, std::string_view operation) {
  return gpu.tables && gpu.tables->fuses(operation);
}

bool norm_is_in_all_reduce(const ParallelPlan& plan, const GpuSpec& gpu) {
  return plan.tp > 1 && fuses(gpu, "norm");
}

// A product by a table without the quantisation that the table includes: scales that are known
// beforehand let the kernel before write its output as multiplied.
Cost without_quantisation(Cost product, double m, double n, double k, Precision activations,
                          const GpuSpec& gpu) {
  const Seconds bytes = product.work.hbm / gpu.hbm_bandwidth;
  const Seconds multiplications = Flops(2 * m * n * k) / product.peak;
  const Seconds alone = product.time - quantise(m, k, activations, gpu).time;
  product.time = std::max({alone, bytes, multiplications});
  return product;
}

// Appends the operations of one GPU. Work of no tokens is left out, so that it costs no launch.
class OperationList {
 public:
  OperationList(Part part, const PrecisionPlan& precision, const GpuSpec& gpu,
                std::vector<Operation>& out)
      : part_(part),
        weights_(part == Part::attention ? precision.attention : precision.ffn),
        activations_(weights_ == Precision::bf16 ? Precision::bf16 : precision.activations),
        kv_cache_(precision.kv_cache),
        gpu_(gpu),
        out_(out) {}

  // [m, k] x [k, n] with weights in the precision of the part. Narrow activations are quantised by
  // a kernel of their own, read in bf16 and written as multiplied, whose time tables of GEMMs
  // include; beside weights in bf16 they stay as they are.
  void gemm(std::string_view name, double m, double n, double k) {
    if (m <= 0) return;
    const double stored = bytes_per_element(activations_);
    Cost product = moesim::gemm(m, n, k, weights_, activations_, gpu_);
    const bool scales_known = activations_ == Precision::fp8 || activations_ == Precision::nvfp4;
    const bool fused = scales_known && fuses(gpu_, "quantise");
    if (is_by_table(product, gpu_)) {
      if (fused) product = without_quantisation(product, m, n, k, activations_, gpu_);
    } else if (stored < bf16_bytes && !fused) {
      memory("quantise", m * k * (bf16_bytes + stored));
    }
    append(name, product);
  }
  void bf16_gemm(std::string_view name, double m, double n, double k) {
    if (m > 0) append(name, moesim::gemm(m, n, k, Precision::bf16, Precision::bf16, gpu_));
  }
  void memory(std::string_view name, double bytes) {
    if (bytes > 0) append(name, memory_op(Bytes(bytes), gpu_));
  }
  // Queries against keys and values. Queries stay in bf16, and with them the product, however the
  // cache is stored: FlashMLA and FlashInfer widen an fp8 cache on the way in.
  void attention(std::string_view name, AttentionShape shape, AttentionLoad load, double flops,
                 double bytes) {
    shape.kv_cache = kv_cache_;
    load.work = {.flops = Flops(flops), .hbm = Bytes(bytes)};
    append(name, moesim::attention(shape, load, gpu_));
  }
  void attention(std::string_view name, LatentAttentionShape shape, AttentionLoad load,
                 double flops, double bytes) {
    shape.kv_cache = kv_cache_;
    load.work = {.flops = Flops(flops), .hbm = Bytes(bytes)};
    append(name, latent_attention(shape, load, gpu_));
  }
  void absorption(std::string_view name, bool keys, double queries,
                  const LatentAttentionShape& shape) {
    if (queries > 0) append(name, moesim::absorption(keys, queries, shape, gpu_));
  }
  // An operation by a kernel that no table knows.
  void kernel(std::string_view name, const Kernel& kernel, double flops, double bytes) {
    append(name, roofline({.flops = Flops(flops), .hbm = Bytes(bytes)}, {}, kernel, gpu_));
  }

 private:
  void append(std::string_view name, const Cost& cost) { out_.push_back({name, part_, cost}); }

  Part part_;
  Precision weights_, activations_, kv_cache_;
  const GpuSpec& gpu_;
  std::vector<Operation>& out_;
};

// One layer's attention as a GPU sees it: its slice of the heads.
struct AttentionSlice {
  double heads;
  double kv_heads;     // GQA
  double kv_elements;  // cached per token and layer
  double kv_bytes;
};

AttentionSlice slice_of(const AttentionSpec& a, int tp, Precision cache) {
  const int kv_heads = (a.kv_heads + tp - 1) / tp;
  return {double(a.query_heads) / tp, double(kv_heads), kv_elements(a, tp), kv_bytes(a, cache, tp)};
}

AttentionShape gqa_shape(const AttentionSpec& a, const AttentionSlice& slice) {
  return {.q_heads = slice.heads,
          .kv_heads = slice.kv_heads,
          .key_dim = static_cast<double>(a.head_dim),
          .value_dim = static_cast<double>(a.value_dim())};
}

LatentAttentionShape latent_shape(const AttentionSpec& a, double heads) {
  return {.heads = heads,
          .kv_lora = static_cast<double>(a.kv_lora),
          .qk_nope = static_cast<double>(a.qk_nope),
          .qk_rope = static_cast<double>(a.qk_rope),
          .v_dim = static_cast<double>(a.v_dim)};
}

// One linear layer as a GPU sees it: its slice of the heads, keys and values.
struct LinearSlice {
  double heads, keys, values;
};

LinearSlice slice_of(const LinearAttentionSpec& a, int tp) {
  return {static_cast<double>(a.value_heads) / tp,
          static_cast<double>(a.key_heads) * a.key_dim / tp,
          static_cast<double>(a.value_heads) * a.value_dim / tp};
}

// A fused residual-add RMSNorm reads and writes both streams.
double norm_bytes(const MoeModel& m) { return 4.0 * m.hidden * bf16_bytes; }

// RoPE in place on the rotated part of queries and keys.
double rope_bytes(const MoeModel& m, const AttentionSlice& slice) {
  const AttentionSpec& a = m.attention;
  const double rotated =
      a.is_mla() ? (slice.heads + 1) * a.qk_rope : (slice.heads + slice.kv_heads) * a.head_dim;
  return 2 * rotated * bf16_bytes;
}

// Whether the attention kernel's time holds the write into the KV cache: a table's does.
bool writes_kv_cache(const MoeModel& m, const AttentionSlice& slice, const PrecisionPlan& precision,
                     const GpuSpec& gpu) {
  if (!gpu.tables) return false;
  const AttentionSpec& a = m.attention;
  const AttentionLoad one{.sequences = 1, .queries = 1, .context = 1024, .pairs = 1024};
  if (a.is_mla()) {
    LatentAttentionShape shape = latent_shape(a, slice.heads);
    shape.kv_cache = precision.kv_cache;
    return is_by_table(latent_attention(shape, one, gpu), gpu);
  }
  AttentionShape shape = gqa_shape(a, slice);
  shape.kv_cache = precision.kv_cache;
  return is_by_table(attention(shape, one, gpu), gpu);
}

AttentionLoad decode_load(const AttentionWork& work) {
  return {.sequences = work.decode_batch,
          .queries = work.decode_sequences,
          .context = work.decode_context,
          .pairs = work.decode_pairs};
}

AttentionLoad prefill_load(const AttentionWork& work) {
  return {.sequences = work.prefill_batch,
          .queries = work.prefill_tokens,
          .context = work.prefill_context,
          .pairs = work.prefill_pairs};
}

// DeepSeek-V3.2 (DeepSeek_V3_2.pdf, section 2): every token before is scored, in fp8, by index
// heads that every GPU has all of, and the best are picked from the fp32 scores.
void index_tokens(const AttentionSpec& a, const AttentionWork& work, OperationList& ops) {
  ops.kernel("index_scores", attention_prefill_kernel,
             2.0 * a.index_heads * a.index_dim * work.indexed_pairs,
             work.indexed_keys * index_key_bytes(a));
  ops.memory("index_top_k", work.indexed_pairs * 2 * fp32_bytes);
}

void gqa_core(const AttentionSpec& a, const AttentionSlice& slice, const AttentionWork& work,
              OperationList& ops) {
  AttentionShape shape = gqa_shape(a, slice);
  shape.window = work.window;
  const double query_and_output = slice.heads * (a.head_dim + a.value_dim());
  if (a.has_indexer()) index_tokens(a, work, ops);
  // Scores and weighted values are 2 flops each per head dimension and pair; queries and outputs
  // pass once, keys and values are read once per sequence.
  if (work.decode_sequences > 0) {
    ops.attention("attention_decode", shape, decode_load(work),
                  2 * query_and_output * work.decode_pairs,
                  work.decode_kv_tokens * slice.kv_bytes +
                      work.decode_sequences * query_and_output * bf16_bytes);
  }
  shape.decode = false;
  if (work.prefill_tokens > 0) {
    ops.attention("attention_prefill", shape, prefill_load(work),
                  2 * query_and_output * work.prefill_pairs,
                  work.prefill_kv_tokens * slice.kv_bytes +
                      work.prefill_tokens * query_and_output * bf16_bytes);
  }
}

// DeepSeek-V2 (arXiv:2405.04434) section 2.1 and appendix B. Decode keeps keys and values in the
// latent: kv_b is absorbed into the query and the output, and all heads share one read of the
// latent. Prefill expands the latent of the whole context into keys and values per head.

// Keys are absorbed into the queries, values into the outputs: batched over heads, in bf16.
void mla_absorption(const AttentionSpec& a, double heads, double queries, OperationList& ops) {
  ops.absorption("k_b_absorbed", true, queries, latent_shape(a, heads));
  ops.absorption("v_b_absorbed", false, queries, latent_shape(a, heads));
}

void mla_core(const AttentionSpec& a, const AttentionSlice& slice, const AttentionWork& work,
              OperationList& ops) {
  const double heads = slice.heads;
  const double qk = a.qk_nope + a.qk_rope;
  const double expanded = heads * (a.qk_nope + a.v_dim);
  const double latent = a.kv_lora + a.qk_rope;
  const auto absorbed = [&](std::string_view name, double queries, double pairs,
                            const AttentionLoad& load) {
    const double query_and_output = heads * (latent + a.kv_lora);
    ops.attention(name, latent_shape(a, heads), load, 2 * query_and_output * pairs,
                  load.context * slice.kv_bytes + queries * query_and_output * bf16_bytes);
  };
  if (a.has_indexer()) index_tokens(a, work, ops);
  if (work.decode_sequences > 0) {
    AttentionLoad load = decode_load(work);
    load.context = work.decode_kv_tokens;
    absorbed("attention_decode", work.decode_sequences, work.decode_pairs, load);
  }
  // What an indexer has thinned out is gathered token by token and stays in the latent.
  if (work.prefill_tokens > 0 && work.thinned) {
    const AttentionLoad load{.sequences = work.prefill_tokens,
                             .queries = work.prefill_tokens,
                             .context = work.prefill_pairs,
                             .pairs = work.prefill_pairs};
    mla_absorption(a, heads, work.prefill_tokens, ops);
    absorbed("attention_prefill", work.prefill_tokens, work.prefill_pairs, load);
  } else if (work.prefill_tokens > 0) {
    ops.gemm("kv_b_proj", work.prefill_kv_tokens, expanded, a.kv_lora);
    // Every head's key is its own part and the rotated one that all share.
    ops.memory("join_keys", work.prefill_kv_tokens * heads * qk * 2 * bf16_bytes);
    const double per_head = qk + a.v_dim;
    LatentAttentionShape shape = latent_shape(a, heads);
    shape.decode = false;
    ops.attention("attention_prefill", shape, prefill_load(work),
                  2 * heads * per_head * work.prefill_pairs,
                  (work.prefill_kv_tokens + work.prefill_tokens) * heads * per_head * bf16_bytes);
  }
}

enum class StatePrecision { fp32, bf16 };
constexpr std::array<std::string_view, 2> state_precisions{"fp32", "bf16"};

}  // namespace

std::span<const Key> precision_keys() {
  static constexpr Form precision = form::choice(precision_names);
  static constexpr KeyDefault stored = unset("as the model's files say");
  static constexpr KeyDefault stored_or_bf16 = unset("as the model's files say, or bf16");
  static constexpr Key keys[] = {
      {"experts", precision, stored, "weights of routed experts"},
      {"attention", precision, stored, "weights of attention"},
      {"ffn", precision, unset("as the model's files say; attention's where they say another"),
       "weights of dense FFNs and shared experts"},
      {"kv_cache", precision, stored_or_bf16, "the KV cache"},
      {"activations", precision, stored_or_bf16, "what weights are multiplied with"},
      {"state", form::choice(state_precisions), "fp32", "the state of linear attention"}};
  return keys;
}

PrecisionPlan read_precision(const ConfigNode& node, const PrecisionPlan* stored) {
  return read_object(node, precision_keys, [&](ConfigReader& r) {
    const auto precision = [&](std::string_view key, Precision PrecisionPlan::*member) {
      const Precision fallback = stored != nullptr ? stored->*member : Precision::bf16;
      const auto name = precision_names[static_cast<std::size_t>(fallback)];
      return static_cast<Precision>(r.child_or(key, std::string(name)).choice());
    };
    for (const char* key : {"experts", "attention"}) {
      if (stored == nullptr && !r.has(key)) r.node().fail(fmt::format("\"{}\" is missing", key));
    }
    const Precision attention = precision("attention", &PrecisionPlan::attention);
    // Whoever gives attention another precision than the files do means all other weights.
    const bool as_stored = stored != nullptr && attention == stored->attention;
    const Precision ffn = as_stored ? stored->ffn : attention;
    const auto ffn_name = precision_names[static_cast<std::size_t>(ffn)];
    const auto state = choice<StatePrecision>(r, "state", state_precisions);
    return PrecisionPlan{
        .experts = precision("experts", &PrecisionPlan::experts),
        .attention = attention,
        .kv_cache = precision("kv_cache", &PrecisionPlan::kv_cache),
        .activations = precision("activations", &PrecisionPlan::activations),
        .ffn = static_cast<Precision>(r.child_or("ffn", std::string(ffn_name)).choice()),
        .state_bytes = state == StatePrecision::fp32 ? fp32_bytes : bf16_bytes};
  });
}

std::span<const Key> parallel_keys() {
  static constexpr Form size = form::integer(1, 65'536);
  static constexpr Key keys[] = {
      {"dp", size, "1", "attention ranks, each with requests of its own"},
      {"tp", size, "1", "GPUs that share an attention rank"},
      {"ep", size, unset("dp * tp; 1 if dense"), "GPUs that experts are spread over"},
      {"pp", size, "1", "pipeline stages, each of dp * tp GPUs"}};
  return keys;
}

ParallelPlan read_parallel(const ConfigNode& node, const MoeModel& model) {
  const auto require = [&](bool holds, std::string_view message) {
    if (!holds) node.fail(message);
  };
  return read_object(node, parallel_keys, [&](ConfigReader& r) {
    ParallelPlan plan;
    plan.dp = static_cast<int>(r.integer("dp"));
    plan.tp = static_cast<int>(r.integer("tp"));
    plan.pp = static_cast<int>(r.integer("pp"));
    constexpr std::int64_t most_gpus = 1'000'000;               // of a cluster
    const std::int64_t gpus = std::int64_t{plan.dp} * plan.tp;  // of two numbers below 2^17
    require(gpus <= most_gpus && gpus * plan.pp <= most_gpus,
            fmt::format("dp {} x tp {} x pp {} are more than {} GPUs, the most of a cluster",
                        plan.dp, plan.tp, plan.pp, most_gpus));
    plan.ep = static_cast<int>(r.integer_or("ep", model.experts > 0 ? plan.stage_gpus() : 1));
    const AttentionSpec& a = model.attention;
    require(plan.pp <= std::ssize(model.layers),
            fmt::format("pp {} is more than the model's {} layers", plan.pp, model.layers.size()));
    require(plan.stage_gpus() % plan.ep == 0,
            fmt::format("ep {} does not divide dp * tp = {}", plan.ep, plan.stage_gpus()));
    require(plan.ep <= std::max(1, model.experts),
            fmt::format("ep {} is more than the model's {} experts", plan.ep, model.experts));
    require(model.expert_width % plan.moe_tp() == 0,
            fmt::format("dp * tp / ep = {} does not divide an expert's width of {}", plan.moe_tp(),
                        model.expert_width));
    require(
        a.query_heads % plan.tp == 0,
        fmt::format("tp {} does not divide the model's {} query heads", plan.tp, a.query_heads));
    require(model.local.query_heads % plan.tp == 0,
            fmt::format("tp {} does not divide the {} query heads of the model's local attention",
                        plan.tp, model.local.query_heads));
    require(model.linear.value_heads % plan.tp == 0,
            fmt::format("tp {} does not divide the {} value heads of the model's linear attention",
                        plan.tp, model.linear.value_heads));
    require(a.is_mla() || a.kv_heads % plan.tp == 0 || plan.tp % a.kv_heads == 0,
            fmt::format("tp {} neither divides the model's {} KV heads nor is a multiple of them",
                        plan.tp, a.kv_heads));
    return plan;
  });
}

std::string expert_slice_warning(const MoeModel& model, const ParallelPlan& plan,
                                 const PrecisionPlan& precision) {
  constexpr int block = 128;
  const auto goes = [&](int parts) { return model.expert_width % (parts * block) == 0; };
  if (model.experts == 0 || precision.experts != Precision::fp8_block || plan.moe_tp() == 1 ||
      goes(plan.moe_tp())) {
    return {};
  }
  std::vector<std::string> widths;
  for (int parts = 1; parts <= plan.stage_gpus(); ++parts) {
    if (plan.stage_gpus() % parts == 0 && (parts == 1 || goes(parts))) {
      widths.push_back(
          fmt::format("{} (ep {})", model.expert_width / parts, plan.stage_gpus() / parts));
    }
  }
  return fmt::format(
      "\"parallel\": dp * tp / ep = {} cuts experts into slices of {}; some versions of engines "
      "take "
      "whole blocks of {} alone; such slices: {}",
      plan.moe_tp(), model.expert_width / plan.moe_tp(), block, fmt::join(widths, ", "));
}

AttentionWork attention_work(std::span<const SequenceWork> sequences, const LayerSpec& layer) {
  AttentionWork work{.window = layer.chunked ? 0 : layer.window};
  for (const auto& [new_tokens, context, verifies] : sequences) {
    if (new_tokens == 0) continue;
    const std::int64_t first = context;
    const std::int64_t end = first + new_tokens;
    const auto pairs_of = [&](const LayerSpec& seen) {
      return static_cast<double>(keys_seen_before(end, seen) - keys_seen_before(first, seen));
    };
    // As many pairs as of a sliding window, wherever the tokens stand.
    const LayerSpec seen = layer.sparse_top > 0 ? LayerSpec{.window = layer.sparse_top} : layer;
    const auto keys = static_cast<double>(end - first_seen(first, seen));
    const double pairs = pairs_of(seen);
    work.sequences += 1;
    const double all_pairs = layer.sparse_top > 0 ? pairs_of({}) : pairs;
    work.thinned = work.thinned || pairs < all_pairs;
    if (layer.indexer) {
      work.indexed_keys += static_cast<double>(end);
      work.indexed_pairs += all_pairs;
    }
    if (new_tokens == 1 || verifies) {
      work.decode_sequences += new_tokens;
      work.decode_kv_tokens += keys;
      work.decode_pairs += pairs;
      work.decode_batch += 1;
      work.decode_context += static_cast<double>(end);
    } else {
      work.prefill_tokens += new_tokens;
      work.prefill_kv_tokens += keys;
      work.prefill_pairs += pairs;
      work.prefill_batch += 1;
      work.prefill_context += static_cast<double>(end);
    }
  }
  return work;
}

void attention_input_operations(const ModelShard& shard, double tokens,
                                std::vector<Operation>& out) {
  const auto& [model, plan, precision, gpu] = shard;
  OperationList ops(Part::attention, precision, gpu, out);
  const AttentionSpec& a = model.attention;
  const AttentionSlice slice = slice_of(a, plan.tp, precision.kv_cache);
  // Three kernels, each with its own launch; norms may be part of the all-reduces before them.
  if (!norm_is_in_all_reduce(plan, gpu)) ops.memory("input_norm", tokens * norm_bytes(model));
  if (!fuses(gpu, "rope")) ops.memory("rope", tokens * rope_bytes(model, slice));
  if (!writes_kv_cache(model, slice, precision, gpu))
    ops.memory("kv_cache_write", tokens * slice.kv_bytes);
  ops.memory("index_key_write", tokens * index_key_bytes(a));
  const double query = slice.heads * (a.is_mla() ? a.qk_nope + a.qk_rope : a.head_dim);
  if (a.joint_qk_norm && gpu.tables) {
    // Squares are summed before, and the norm is taken after, the sums of all GPUs are known.
    const double normed = (query + slice.kv_heads * a.head_dim) * bf16_bytes;
    ops.memory("qk_squares", tokens * normed);
    ops.memory("qk_norm", tokens * 2 * normed);
  }
  if (!a.is_mla()) {
    const double gated = a.output_gate ? 2 * query : query;
    const double values = a.values_are_keys ? 0 : a.value_dim();
    ops.gemm("qkv_proj", tokens, gated + slice.kv_heads * (a.head_dim + values) + a.index_dim,
             model.hidden);
  } else if (a.q_lora > 0) {
    ops.gemm("qkv_a_proj", tokens, a.q_lora + slice.kv_elements + a.index_dim, model.hidden);
    ops.memory("latent_norm", tokens * 2 * (a.q_lora + a.kv_lora) * bf16_bytes);
    ops.gemm("q_b_proj", tokens, query, a.q_lora);
  } else {
    ops.gemm("q_kv_a_proj", tokens, query + slice.kv_elements + a.index_dim, model.hidden);
    ops.memory("latent_norm", tokens * 2 * a.kv_lora * bf16_bytes);
  }
  if (a.is_mla() && a.output_gate)
    ops.gemm("gate_proj", tokens, slice.heads * a.v_dim, model.hidden);
  if (a.has_indexer()) {
    ops.gemm("index_q_proj", tokens, static_cast<double>(a.index_heads) * a.index_dim,
             a.q_lora > 0 ? a.q_lora : model.hidden);
    ops.gemm("index_weights_proj", tokens, a.index_heads, model.hidden);
  }
}

void attention_absorption_operations(const ModelShard& shard, double queries,
                                     std::vector<Operation>& out) {
  const auto& [model, plan, precision, gpu] = shard;
  if (!model.attention.is_mla()) return;
  OperationList ops(Part::attention, precision, gpu, out);
  const AttentionSlice slice = slice_of(model.attention, plan.tp, precision.kv_cache);
  mla_absorption(model.attention, slice.heads, queries, ops);
}

void attention_core_operations(const ModelShard& shard, const AttentionWork& work,
                               std::vector<Operation>& out) {
  const auto& [model, plan, precision, gpu] = shard;
  OperationList ops(Part::attention, precision, gpu, out);
  const AttentionSlice slice = slice_of(model.attention, plan.tp, precision.kv_cache);
  if (model.attention.is_mla()) {
    mla_core(model.attention, slice, work, ops);
  } else {
    gqa_core(model.attention, slice, work, ops);
  }
}

void attention_output_operations(const ModelShard& shard, double tokens,
                                 std::vector<Operation>& out) {
  const auto& [model, plan, precision, gpu] = shard;
  OperationList ops(Part::attention, precision, gpu, out);
  const AttentionSpec& a = model.attention;
  const double heads = static_cast<double>(a.query_heads) / plan.tp;
  if (a.output_gate) ops.memory("output_gate", tokens * 3 * heads * a.value_dim() * bf16_bytes);
  ops.gemm("o_proj", tokens, model.hidden, heads * a.value_dim());
  if (!norm_is_in_all_reduce(plan, gpu)) ops.memory("post_norm", tokens * norm_bytes(model));
}

void linear_attention_input_operations(const ModelShard& shard, double tokens,
                                       std::vector<Operation>& out) {
  const auto& [model, plan, precision, gpu] = shard;
  OperationList ops(Part::attention, precision, gpu, out);
  const LinearSlice slice = slice_of(model.linear, plan.tp);
  ops.memory("input_norm", tokens * norm_bytes(model));
  if (model.linear.step_rank > 0) {  // Mamba: channels and their gate; the step, B and C from them
    const double rank = model.linear.step_rank, state = model.linear.key_dim;
    ops.gemm("in_proj", tokens, 2 * slice.values, model.hidden);
    ops.memory("convolution", tokens * 2 * slice.values * bf16_bytes);
    ops.gemm("x_proj", tokens, rank + 2 * state, slice.values);
    ops.gemm("dt_proj", tokens, slice.values, rank);
    return;
  }
  // Queries, keys, values and the output's gate; a decay and a rate for each head.
  const double decay_rank = model.linear.decay_rank, gate_rank = model.linear.gate_rank;
  const double gate = gate_rank > 0 ? gate_rank : slice.values;
  ops.gemm("qkvz_proj", tokens, 2 * slice.keys + slice.values + gate, model.hidden);
  if (gate_rank > 0) ops.gemm("gate_b_proj", tokens, slice.values, gate_rank);
  const double rates = model.linear.delta && decay_rank == 0 ? 2 : 1;
  ops.gemm("ba_proj", tokens, rates * slice.heads, model.hidden);
  if (decay_rank > 0) {  // a decay for each channel
    ops.gemm("decay_a_proj", tokens, decay_rank, model.hidden);
    ops.gemm("decay_b_proj", tokens, slice.keys, decay_rank);
  }
  ops.memory("split_qkvz", tokens * 2 * (2 * slice.keys + 2 * slice.values) * bf16_bytes);
  ops.memory("convolution", tokens * 2 * (2 * slice.keys + slice.values) * bf16_bytes);
}

// In chunks as gated delta nets are computed (arXiv:2412.06464, section 3.3): within a chunk of C
// tokens keys meet keys and queries, their triangle is inverted onto keys and values, and values
// are read out; between chunks each token reads the state twice and writes it once.
void linear_attention_core_operations(const ModelShard& shard, const AttentionWork& work,
                                      std::vector<Operation>& out) {
  const auto& [model, plan, precision, gpu] = shard;
  constexpr double chunk = 64;
  OperationList ops(Part::attention, precision, gpu, out);
  const LinearAttentionSpec& a = model.linear;
  const LinearSlice slice = slice_of(a, plan.tp);
  const LinearState state = linear_state(a, plan.tp);
  const double passed = (2 * slice.keys + 2 * slice.values) * bf16_bytes;
  ops.memory("linear_state",
             work.sequences * 2 *
                     (state.recurrent * precision.state_bytes + state.convolution * bf16_bytes) +
                 work.decode_sequences * passed);
  if (work.prefill_tokens == 0) return;
  const double key = a.key_dim, value = a.value_dim;
  // A state space layer has no triangle and reads the state once (arXiv:2405.21060, section 6);
  // Mamba scans token by token.
  const double scanned = 6 * key * value;
  const double flops = a.delta           ? scanned + 2 * chunk * (3 * key + 2 * value)
                       : a.step_rank > 0 ? scanned
                                         : 4 * key * value + 2 * chunk * (key + value);
  ops.kernel("linear_prefill", attention_prefill_kernel, work.prefill_tokens * slice.heads * flops,
             work.prefill_tokens * passed);
}

void linear_attention_output_operations(const ModelShard& shard, double tokens,
                                        std::vector<Operation>& out) {
  const auto& [model, plan, precision, gpu] = shard;
  OperationList ops(Part::attention, precision, gpu, out);
  const LinearSlice slice = slice_of(model.linear, plan.tp);
  ops.memory("gated_norm", tokens * 3 * slice.values * bf16_bytes);
  ops.gemm("o_proj", tokens, model.hidden, slice.values);
  ops.memory("post_norm", tokens * norm_bytes(model));
}

void attention_operations(const ModelShard& shard, double tokens, const AttentionWork& work,
                          std::vector<Operation>& out) {
  attention_input_operations(shard, tokens, out);
  attention_absorption_operations(shard, work.decode_sequences, out);
  attention_core_operations(shard, work, out);
  attention_output_operations(shard, tokens, out);
}

void dense_ffn_operations(const ModelShard& shard, double tokens, double width, Part part,
                          std::vector<Operation>& out) {
  const auto& [model, plan, precision, gpu] = shard;
  if (width == 0) return;
  OperationList ops(part, precision, gpu, out);
  const double slice = width / plan.tp;
  ops.gemm("gate_up_proj", tokens, 2 * slice, model.hidden);
  ops.memory("swiglu", tokens * 3 * slice * bf16_bytes);
  ops.gemm("down_proj", tokens, model.hidden, slice);
}

void gate_operations(const ModelShard& shard, double tokens, std::vector<Operation>& out) {
  const auto& [model, plan, precision, gpu] = shard;
  OperationList ops(Part::gate, precision, gpu, out);
  ops.bf16_gemm("gate", tokens, model.experts, model.hidden);
  if (model.expert_hidden > 0) {  // into the width of the experts, and what they answer back
    ops.bf16_gemm("latent_down_proj", tokens, model.expert_hidden, model.hidden);
    ops.bf16_gemm("latent_up_proj", tokens, model.hidden, model.expert_hidden);
  }
  if (gpu.tables) return;  // which time expert layers with their top-k
  // fp32 scores in; an id and a weight per choice out.
  ops.memory("top_k",
             tokens * (model.experts * fp32_bytes + model.experts_per_token * 2 * fp32_bytes));
}

void permute_operations(const ModelShard& shard, double copies, std::string_view name,
                        std::vector<Operation>& out) {
  const auto& [model, plan, precision, gpu] = shard;
  OperationList ops(Part::permute, precision, gpu, out);
  ops.memory(name, copies * 2 * model.expert_input() * bytes_per_element(precision.activations));
}

void head_operations(const ModelShard& shard, double tokens, double sampled,
                     std::vector<Operation>& out) {
  const auto& [model, plan, precision, gpu] = shard;
  OperationList ops(Part::other, precision, gpu, out);
  const double vocabulary = static_cast<double>(model.vocabulary) / plan.tp;
  ops.memory("embedding", tokens * 2 * model.hidden * bf16_bytes);
  ops.memory("final_norm", tokens * 2 * model.hidden * bf16_bytes);
  ops.bf16_gemm("lm_head", sampled, vocabulary, model.hidden);
  // Softmax and the draw pass over the fp32 logits of the whole vocabulary twice.
  ops.memory("sampling", sampled * 2 * model.vocabulary * fp32_bytes);
}

}  // namespace moesim
