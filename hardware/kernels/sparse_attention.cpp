// SPDX-License-Identifier: Apache-2.0
#include "hardware/kernels/sparse_attention.hpp"

#include <algorithm>

#include "hardware/kernels/compressed_attention.hpp"

namespace moesim {

namespace {

BlockWork work_of(const SparseLatentShape& s, const SparseLoad& load) {
  constexpr double fp32 = 4, bf16 = 2;
  const double latent = s.kv_lora + s.qk_rope;
  const double indexer =
      s.scores() ? s.q_lora * s.index_heads * s.index_dim + s.hidden * (s.index_heads + s.index_dim)
                 : 0;
  const double scored = s.scores() ? load.scored : 0;
  // Keys of one sequence are read once for all that its queries score.
  const double keys = s.scores() ? load.context * s.key_bytes : 0;
  return {.weights = s.hidden * (s.q_lora + latent) +
                     s.heads * (s.q_lora * (s.qk_nope + s.qk_rope) +
                                s.kv_lora * (s.qk_nope + s.v_dim) + s.v_dim * s.hidden) +
                     indexer,
          .flops = 2 * s.heads * (latent + s.kv_lora) * load.pairs +
                   2 * s.index_heads * s.index_dim * scored,
          .cached = load.pairs * s.latent_bytes + keys,
          .moved = load.queries * s.heads * (latent + s.kv_lora) * bf16 + scored * 2 * fp32};
}

BlockWork work_of(const SparseGroupedShape& s, const SparseLoad& load) {
  constexpr double bf16 = 2;
  // Prompts read a block of keys once for many queries.
  const double read = load.decode ? load.pairs : load.context;
  return {.weights = s.hidden *
                     (2 * s.head_dim * (s.heads + s.kv_heads) + s.index_dim * (s.index_heads + 1)),
          .flops =
              4 * s.heads * s.head_dim * load.pairs + 2 * s.index_heads * s.index_dim * load.scored,
          .cached = read * s.kv_bytes + load.context * s.key_bytes,
          .moved = load.queries * s.heads * 2 * s.head_dim * bf16};
}

constexpr int top_of_measured = 2048;

// The models that the source runs, by name (ai-dynamo/aiconfigurator: DeepSeek-V3.2 and GLM-5;
// their config.json).
SparseLatentShape dsa_shape(const TableRow& row, double kv_bytes) {
  const bool glm = row.text("model").find("GLM") != std::string_view::npos;
  const bool skips = row.text("kernel").find("skip_indexer") != std::string_view::npos;
  return {.hidden = glm ? 6144.0 : 7168.0,
          .heads = row.number("q_heads"),
          .q_lora = glm ? 2048.0 : 1536.0,
          .kv_lora = 512,
          .qk_nope = glm ? 192.0 : 128.0,
          .qk_rope = 64,
          .v_dim = glm ? 256.0 : 128.0,
          .index_heads = skips ? 0.0 : (glm ? 32.0 : 64.0),
          .index_dim = 128,
          .latent_bytes = kv_bytes < 2 ? 656.0 : 1152.0,
          .key_bytes = 132};
}

// Layers that take the choice of another stand apart.
std::string_view kind_of(const SparseLatentShape& shape) { return shape.scores() ? "" : " shared"; }

// A measured block of equal sequences that attend to the best tokens.
SparseLoad load_of(const AttentionBlockCall& call) {
  const auto end = static_cast<std::int64_t>(call.context);
  const auto pairs = [&](int most) {
    return entries_seen(end - static_cast<std::int64_t>(call.queries), end, most, 0, 0).pairs;
  };
  return {.decode = call.decode,
          .sequences = call.batch,
          .queries = call.batch * call.queries,
          .context = call.batch * call.context,
          .pairs = call.batch * pairs(top_of_measured),
          .scored = call.batch * pairs(static_cast<int>(call.context))};
}

template <bool decode>
std::vector<Sample> dsa_samples(const TableRow& row, const GpuSpec& gpu, const EngineVersion&) {
  AttentionBlockCall call = block_call_of(row, decode);
  const SparseLatentShape shape = dsa_shape(row, call.kv_bytes);
  call.hidden = shape.hidden;
  call.work = work_of(shape, load_of(call));
  Sample sample = block_sample(row, call, gpu);
  sample.group += kind_of(shape);
  return {std::move(sample)};
}

// The model that the source runs: 64 query and 4 KV heads of 128, its indexer's keys in bf16.
template <bool decode>
std::vector<Sample> msa_samples(const TableRow& row, const GpuSpec& gpu, const EngineVersion&) {
  AttentionBlockCall call = block_call_of(row, decode);
  constexpr double of_a_group = 16, dim = 128;
  const double kv_heads = std::max(1.0, call.heads / of_a_group);
  const SparseGroupedShape shape{.hidden = 6144,
                                 .heads = call.heads,
                                 .kv_heads = kv_heads,
                                 .head_dim = dim,
                                 .index_heads = 4,
                                 .index_dim = dim,
                                 .kv_bytes = kv_heads * 2 * dim * call.kv_bytes,
                                 .key_bytes = dim * 2};
  call.hidden = shape.hidden;
  call.work = work_of(shape, load_of(call));
  return {block_sample(row, call, gpu)};
}

constexpr MeasuredTable dsa_decode_table =
    block_table(true, "dsa_decode_module", dsa_samples<true>, true);
constexpr MeasuredTable dsa_prefill_table =
    block_table(false, "dsa_prefill_module", dsa_samples<false>, true);

constexpr MeasuredTable msa_decode_table =
    block_table(true, "msa_decode_module", msa_samples<true>);
constexpr MeasuredTable msa_prefill_table =
    block_table(false, "msa_prefill_module", msa_samples<false>);

}  // namespace

constinit const Kernel dsa_decode_kernel = block_kernel(
    dsa_decode_table, "few queries of each sequence in a block of sparse latent attention");
constinit const Kernel dsa_prefill_kernel = block_kernel(
    dsa_prefill_table, "prompts in a block of sparse latent attention, projections included");

constinit const Kernel msa_decode_kernel = block_kernel(
    msa_decode_table,
    "few queries of each sequence in a block of attention over the best blocks of keys");
constinit const Kernel msa_prefill_kernel =
    block_kernel(msa_prefill_table, "prompts in a block of attention over the best blocks of keys");

std::optional<Cost> sparse_latent_block(const SparseLatentShape& shape, const SparseLoad& load,
                                        Precision kv_cache, Precision weights,
                                        Precision activations, const GpuSpec& gpu) {
  if (load.sequences <= 0) return std::nullopt;
  return attention_block(load.decode ? dsa_decode_kernel : dsa_prefill_kernel,
                         block_call(shape, load, work_of(shape, load), kv_cache), weights,
                         activations, gpu, kind_of(shape));
}

std::optional<Cost> sparse_grouped_block(const SparseGroupedShape& shape, const SparseLoad& load,
                                         Precision kv_cache, Precision weights,
                                         Precision activations, const GpuSpec& gpu) {
  if (load.sequences <= 0) return std::nullopt;
  return attention_block(load.decode ? msa_decode_kernel : msa_prefill_kernel,
                         block_call(shape, load, work_of(shape, load), kv_cache), weights,
                         activations, gpu);
}

}  // namespace moesim
