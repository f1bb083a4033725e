// SPDX-License-Identifier: Apache-2.0
#include "models/mixers/latent.hpp"

#include <fmt/format.h>

#include "hardware/kernels/sparse_attention.hpp"
#include "models/mixers/keys.hpp"
#include "models/mixers/shares.hpp"

namespace moesim {

namespace {

// DeepSeek-V2 (arXiv:2405.04434) section 2.1 and appendix B. Decode keeps keys and values in the
// latent. There kv_b is absorbed into the query and the output, and all heads share one read of the
// latent. Prefill expands the latent of the whole context into keys and values per head.
class Latent final : public MixerOf<LatentAttention> {
 public:
  using MixerOf::MixerOf;

  std::string fault() const override { return a_.indexer.fault(); }
  std::string cut_fault(int tp) const override {
    if (a_.query_heads % tp == 0) return {};
    return fmt::format("tp {} does not divide the model's {} query heads", tp, a_.query_heads);
  }
  MixerPtr in_layer(const Sight& sight) const override {
    LatentAttention here = a_;
    here.indexer = a_.indexer.in_layer(sight);
    return mixer(here);
  }
  Sight sight() const override { return {.top = a_.indexer.top, .indexed = a_.indexer.scores()}; }

  CacheHeads cache_heads(int tp) const override {
    return {.kv_heads = 1,
            .queries = double(a_.query_heads) / tp,
            .query_numbers = double(a_.kv_lora + a_.qk_rope),
            .output_numbers = double(a_.kv_lora)};
  }

  // q = W_uq W_dq x, latent = W_dkv x, k and v from the latent, all heads' outputs through W_o.
  // Down projections and an indexer are replicated.
  double parameters(int hidden, const ParallelPlan& plan) const override {
    const double heads = static_cast<double>(a_.query_heads) / plan.tp;
    const double down = static_cast<double>(hidden) * (a_.q_lora + a_.kv_lora + a_.qk_rope);
    const double query = heads * (a_.qk_nope + a_.qk_rope) * query_inputs(hidden);
    const double key_value = heads * (a_.qk_nope + a_.v_dim) * a_.kv_lora;
    const double outputs = (a_.output_gate ? 2 : 1) * heads * a_.v_dim * hidden;
    return down + query + key_value + outputs + a_.indexer.parameters(hidden, query_inputs(hidden));
  }

  std::vector<MixerMatrix> matrices(int hidden) const override {
    const double heads = a_.query_heads, inputs = query_inputs(hidden);
    std::vector<MixerMatrix> all{
        {a_.q_lora > 0 ? "q_b_proj" : "q_proj", heads * (a_.qk_nope + a_.qk_rope) * inputs},
        {"kv_a_proj_with_mqa", double(hidden) * (a_.kv_lora + a_.qk_rope)},
        {"kv_b_proj", heads * (a_.qk_nope + a_.v_dim) * a_.kv_lora},
        {"o_proj", heads * a_.v_dim * hidden}};
    if (a_.q_lora > 0) all.push_back({"q_a_proj", double(hidden) * a_.q_lora});
    if (a_.output_gate) all.push_back({"g_proj", heads * a_.v_dim * hidden});
    if (a_.indexer.scores()) {
      all.push_back({"indexer.wq_b", double(a_.indexer.heads) * a_.indexer.dim * inputs});
      all.push_back({"indexer.wk", double(hidden) * a_.indexer.dim});
      all.push_back({"indexer.weights_proj", double(hidden) * a_.indexer.heads});
    }
    return all;
  }

  // The latent and the key's rotary part. Sparse in fp8 the rotary part stays in bf16 on Hopper,
  // with an fp32 scale for 128 numbers (656 bytes, vLLM's fp8_ds_mla).
  Kept kept(const ParallelPlan&, const PrecisionPlan& precision) const override {
    const double elements = a_.kv_lora + a_.qk_rope;
    const double stored = bytes_per_element(precision.kv_cache);
    const bool scaled = precision.scaled_latent && a_.indexer.top > 0 && stored == 1;
    return {.elements = elements,
            .bytes = scaled ? a_.kv_lora + a_.kv_lora / scaled_together * scale_bytes +
                                  a_.qk_rope * bytes_per_element(Precision::bf16)
                            : elements * stored,
            .index_bytes = a_.indexer.key_bytes(),
            .pieces = a_.indexer.key_bytes() > 0 ? 2. : 1.};
  }

  void input(const MixerShard& shard, double tokens, std::vector<Operation>& out) const override {
    const auto& [hidden, plan, precision, gpu] = shard;
    OperationList ops(Part::attention, precision, gpu, out);
    if (has_block(shard)) {
      ops.memory("input_norm", tokens * norm_bytes(hidden));
      return;
    }
    const LatentAttentionShape shape = shape_of(plan.tp);
    const double latent = a_.kv_lora + a_.qk_rope;
    before_projections(shard, tokens, (shape.heads + 1) * a_.qk_rope, ops);
    if (!writes_kv_cache(shape, precision, gpu))
      ops.memory("kv_cache_write", tokens / plan.dcp * kept(plan, precision).bytes);
    ops.memory("index_key_write", tokens * a_.indexer.key_bytes());
    const double query = shape.heads * (a_.qk_nope + a_.qk_rope);
    if (a_.q_lora > 0) {
      ops.gemm("qkv_a_proj", tokens, a_.q_lora + latent + a_.indexer.dim, hidden);
      ops.memory("latent_norm", tokens * 2 * (a_.q_lora + a_.kv_lora) * bf16_bytes);
      ops.gemm("q_b_proj", tokens, query, a_.q_lora);
    } else {
      ops.gemm("q_kv_a_proj", tokens, query + latent + a_.indexer.dim, hidden);
      ops.memory("latent_norm", tokens * 2 * a_.kv_lora * bf16_bytes);
    }
    if (a_.output_gate) ops.gemm("gate_proj", tokens, shape.heads * a_.v_dim, hidden);
    a_.indexer.project(hidden, query_inputs(hidden), tokens, ops);
  }

  // Keys are absorbed into the queries, values into the outputs: batched over heads, in bf16.
  bool absorbs() const override { return true; }
  void absorption(const MixerShard& shard, double queries,
                  std::vector<Operation>& out) const override {
    if (has_block(shard)) return;
    OperationList ops(Part::attention, shard.precision, shard.gpu, out);
    absorb(shape_of(shard.plan.tp), queries, ops);
  }

  void core(const MixerShard& shard, const RankSequences& sequences,
            std::vector<Operation>& out) const override {
    const auto& [hidden, plan, precision, gpu] = shard;
    const AttentionWork work = attention_work(sequences, sight());
    OperationList ops(Part::attention, precision, gpu, out);
    if (has_block(shard))
      return attention_blocks(block(shard, prompts_of(work)), block(shard, decodes_of(work)),
                              block(shard, least_load(true))->time, ops);
    const LatentAttentionShape shape = shape_of(plan.tp);
    const double kv_bytes = kept(plan, precision).bytes;
    a_.indexer.score(work, ops);
    if (work.decode_sequences > 0) {
      AttentionLoad load = decode_load(work, plan);
      load.context = work.decode_kv_tokens / plan.dcp;
      LatentAttentionShape gathered = shape;
      gathered.heads *= plan.dcp;
      in_the_latent("attention_decode", gathered, load, kv_bytes, ops);
      merge_partial_outputs(cache_heads(plan.tp), plan, work.decode_sequences, ops);
    }
    // What an indexer has thinned out is gathered token by token and stays in the latent.
    if (work.prefill_tokens > 0 && work.thinned) {
      const AttentionLoad load{.sequences = work.prefill_tokens,
                               .queries = work.prefill_tokens,
                               .context = work.prefill_pairs,
                               .pairs = work.prefill_pairs};
      absorb(shape, work.prefill_tokens, ops);
      in_the_latent("attention_prefill", shape, load, kv_bytes, ops);
    } else if (work.prefill_tokens > 0) {
      expanded(shape, work, ops);
    }
  }

  void output(const MixerShard& shard, double tokens, std::vector<Operation>& out) const override {
    if (has_block(shard)) {
      OperationList(Part::attention, shard.precision, shard.gpu, out)
          .memory("post_norm", tokens * norm_bytes(shard.hidden));
      return;
    }
    const double heads = static_cast<double>(a_.query_heads) / shard.plan.tp;
    project_output(shard, tokens, heads * a_.v_dim, a_.output_gate, out);
  }

  // Projections to and from two latents, each with a norm, and keys joined from two parts. The
  // write into the KV cache, attention, the gate and its product.
  Launches launches(bool rope_apart) const override {
    const double gate = a_.output_gate ? 1 : 0;
    return {.products = 4 + gate,
            .others = (rope_apart ? 1 : 0) + 2 + 2 + 1 + gate + a_.indexer.launches()};
  }

 private:
  int query_inputs(int hidden) const { return a_.q_lora > 0 ? a_.q_lora : hidden; }
  LatentAttentionShape shape_of(int tp) const {
    return {.heads = double(a_.query_heads) / tp,
            .kv_lora = static_cast<double>(a_.kv_lora),
            .qk_nope = static_cast<double>(a_.qk_nope),
            .qk_rope = static_cast<double>(a_.qk_rope),
            .v_dim = static_cast<double>(a_.v_dim)};
  }

  // Engines' tables time a block of sparse attention as one.
  std::optional<Cost> block(const MixerShard& shard, const SparseLoad& load) const {
    const auto& [hidden, plan, precision, gpu] = shard;
    return sparse_latent_block({.hidden = static_cast<double>(hidden),
                                .heads = double(a_.query_heads) / plan.tp,
                                .q_lora = static_cast<double>(a_.q_lora),
                                .kv_lora = static_cast<double>(a_.kv_lora),
                                .qk_nope = static_cast<double>(a_.qk_nope),
                                .qk_rope = static_cast<double>(a_.qk_rope),
                                .v_dim = static_cast<double>(a_.v_dim),
                                .index_heads = static_cast<double>(a_.indexer.heads),
                                .index_dim = static_cast<double>(a_.indexer.dim),
                                .latent_bytes = kept(plan, precision).bytes,
                                .key_bytes = a_.indexer.key_bytes()},
                               load, precision.kv_cache, precision.attention, precision.activations,
                               gpu);
  }
  bool has_block(const MixerShard& shard) const {
    return a_.indexer.top > 0 && shard.gpu.tables && block(shard, least_load(true)) &&
           block(shard, least_load(false));
  }

  // True if the attention kernel's time holds the write into the KV cache: a table's does.
  static bool writes_kv_cache(LatentAttentionShape shape, const PrecisionPlan& precision,
                              const GpuSpec& gpu) {
    if (!gpu.tables) return false;
    shape.kv_cache = precision.kv_cache;
    return is_by_table(latent_attention(shape, one_query, gpu), gpu);
  }

  static void absorb(const LatentAttentionShape& shape, double queries, OperationList& ops) {
    ops.absorption("k_b_absorbed", true, queries, shape);
    ops.absorption("v_b_absorbed", false, queries, shape);
  }

  void in_the_latent(std::string_view name, const LatentAttentionShape& shape,
                     const AttentionLoad& load, double kv_bytes, OperationList& ops) const {
    const double latent = a_.kv_lora + a_.qk_rope;
    const double query_and_output = shape.heads * (latent + a_.kv_lora);
    ops.attention(name, shape, load, 2 * query_and_output * load.pairs,
                  load.context * kv_bytes + load.queries * query_and_output * bf16_bytes);
  }

  void expanded(LatentAttentionShape shape, const AttentionWork& work, OperationList& ops) const {
    const double heads = shape.heads;
    const double qk = a_.qk_nope + a_.qk_rope;
    ops.gemm("kv_b_proj", work.prefill_kv_tokens, heads * (a_.qk_nope + a_.v_dim), a_.kv_lora);
    // Every head's key is its own part and the rotated one that all share.
    ops.memory("join_keys", work.prefill_kv_tokens * heads * qk * 2 * bf16_bytes);
    const double per_head = qk + a_.v_dim;
    shape.decode = false;
    ops.attention("attention_prefill", shape, prefill_load(work),
                  2 * heads * per_head * work.prefill_pairs,
                  (work.prefill_kv_tokens + work.prefill_tokens) * heads * per_head * bf16_bytes);
  }
};

}  // namespace

MixerPtr mixer(const LatentAttention& attention) { return std::make_shared<Latent>(attention); }

LatentAttention hf_latent(ConfigReader& r) {
  LatentAttention a;
  a.query_heads = count(r, "num_attention_heads");
  a.q_lora = nullable(r, "q_lora_rank");
  a.kv_lora = count(r, "kv_lora_rank");
  a.qk_nope = count(r, "qk_nope_head_dim");
  a.qk_rope = count(r, "qk_rope_head_dim");
  a.v_dim = count(r, "v_head_dim");
  return a;
}

LatentAttention hf_sparse_latent(ConfigReader& r) {
  LatentAttention a = hf_latent(r);
  a.indexer = {.heads = count(r, "index_n_heads"),
               .dim = count(r, "index_head_dim"),
               .top = count(r, "index_topk")};
  return a;
}

std::span<const Key> latent_keys() {
  static constexpr KeyDefault mla = unset("GQA, without kv_lora");
  static constexpr Key keys[] = {
      query_heads_key,
      {"q_lora", size_or_none, unset("GQA, without a rank"),
       "rank of the queries' projection; GQA: unset for none, MLA: 0 for none"},
      {"kv_lora", size, mla, "MLA: rank of the latent that is cached"},
      {"qk_nope", size, mla, "MLA: a head's dimensions without positions"},
      {"qk_rope", size, mla, "MLA, compressed: a head's dimensions with positions"},
      value_dim_key,
      output_gate_key};
  return keys;
}

MixerPtr read_latent(ConfigReader& r) {
  LatentAttention a;
  a.query_heads = count(r, "query_heads");
  a.q_lora = static_cast<int>(r.integer("q_lora"));
  a.kv_lora = count(r, "kv_lora");
  a.qk_nope = count(r, "qk_nope");
  a.qk_rope = count(r, "qk_rope");
  a.v_dim = count(r, "v_dim");
  a.output_gate = r.flag("output_gate");
  a.indexer = read_indexer(r);
  return mixer(a);
}

}  // namespace moesim
