// SPDX-License-Identifier: Apache-2.0
#include "models/mixers/grouped.hpp"

#include <fmt/format.h>

#include "models/mixers/keys.hpp"
#include "models/mixers/shares.hpp"

namespace moesim {

namespace {

class Grouped final : public MixerOf<GroupedAttention> {
 public:
  using MixerOf::MixerOf;

  std::string fault() const override {
    if (a_.kv_heads == 0 || a_.query_heads % a_.kv_heads != 0)
      return fmt::format("{} query heads do not share {} KV heads evenly", a_.query_heads,
                         a_.kv_heads);
    if (a_.head_dim == 0) return "the attention's head dimension is 0";
    return a_.indexer.fault();
  }

  std::string cut_fault(int tp) const override {
    if (a_.query_heads % tp != 0)
      return fmt::format("tp {} does not divide the model's {} query heads", tp, a_.query_heads);
    if (a_.kv_heads % tp != 0 && tp % a_.kv_heads != 0) {
      return fmt::format("tp {} neither divides the model's {} KV heads nor is a multiple of them",
                         tp, a_.kv_heads);
    }
    return {};
  }

  MixerPtr in_layer(const Sight& sight) const override {
    GroupedAttention here = a_;
    here.window = sight.window;
    here.chunked = sight.chunked;
    here.indexer = a_.indexer.in_layer(sight);
    return mixer(here);
  }

  Sight sight() const override {
    return {a_.window, a_.chunked, a_.indexer.top, a_.indexer.scores()};
  }

  CacheHeads cache_heads(int tp) const override {
    return {.kv_heads = a_.kv_heads,
            .queries = double(a_.query_heads) / tp,
            .query_numbers = double(a_.head_dim),
            .output_numbers = double(a_.value_dim())};
  }

  double parameters(int hidden, const ParallelPlan& plan) const override {
    const double heads = static_cast<double>(a_.query_heads) / plan.tp;
    const double queries = heads * (a_.output_gate ? 2 : 1) * a_.head_dim;
    const double inputs = a_.q_lora > 0 ? a_.q_lora : hidden;
    return inputs * queries + double(hidden) * a_.q_lora +
           hidden *
               (heads * a_.value_dim() + kv_heads(plan.tp) * (a_.head_dim + projected_values())) +
           a_.indexer.parameters(hidden, hidden);
  }

  std::vector<MixerMatrix> matrices(int hidden) const override {
    const double queries = double(a_.query_heads) * (a_.output_gate ? 2 : 1) * a_.head_dim;
    std::vector<MixerMatrix> all{{"k_proj", double(hidden) * a_.kv_heads * a_.head_dim},
                                 {"v_proj", double(hidden) * a_.kv_heads * projected_values()},
                                 {"o_proj", double(hidden) * a_.query_heads * a_.value_dim()}};
    if (a_.q_lora > 0) all.push_back({"wq", a_.q_lora * queries});
    all.push_back({"q_proj", double(hidden) * (a_.q_lora > 0 ? a_.q_lora : queries)});
    if (a_.indexer.scores()) {
      all.push_back({"index_q_proj", double(hidden) * a_.indexer.heads * a_.indexer.dim});
      all.push_back({"index_k_proj", double(hidden) * a_.indexer.dim});
    }
    return all;
  }

  // A slice of the KV heads, at least one (replicated beyond).
  Kept kept(const ParallelPlan& plan, const PrecisionPlan& precision) const override {
    const double elements = static_cast<double>(kv_heads(plan.tp)) * (a_.head_dim + a_.value_dim());
    return {.elements = elements,
            .bytes = elements * bytes_per_element(precision.kv_cache),
            .index_bytes = a_.indexer.key_bytes(),
            .pieces = a_.indexer.key_bytes() > 0 ? 3. : 2.};
  }

  void input(const MixerShard& shard, double tokens, std::vector<Operation>& out) const override {
    const auto& [hidden, plan, precision, gpu] = shard;
    OperationList ops(Part::attention, precision, gpu, out);
    if (has_block(shard)) {
      ops.memory("input_norm", tokens * norm_bytes(hidden));
      return;
    }
    const AttentionShape shape = shape_of(plan.tp);
    const double query = shape.q_heads * a_.head_dim;
    const double keys = shape.kv_heads * a_.head_dim;
    const double rotated = (shape.q_heads + shape.kv_heads) * a_.head_dim;
    before_projections(shard, tokens, rotated, ops);
    if (!writes_kv_cache(shape, precision, gpu))
      ops.memory("kv_cache_write", tokens / plan.dcp * kept(plan, precision).bytes);
    ops.memory("index_key_write", tokens * a_.indexer.key_bytes());
    if (a_.joint_qk_norm && gpu.tables) {
      // Squares are summed before, and the norm is taken after, the sums of all GPUs are known.
      const double normed = (query + keys) * bf16_bytes;
      ops.memory("qk_squares", tokens * normed);
      ops.memory("qk_norm", tokens * 2 * normed);
    }
    const double gated = a_.output_gate ? 2 * query : query;
    const double keys_and_values =
        shape.kv_heads * (a_.head_dim + projected_values()) + a_.indexer.dim;
    if (a_.q_lora > 0) {
      ops.gemm("qkv_a_proj", tokens, a_.q_lora + keys_and_values, hidden);
      ops.memory("latent_norm", tokens * 2 * a_.q_lora * bf16_bytes);
      ops.gemm("q_b_proj", tokens, gated, a_.q_lora);
    } else {
      ops.gemm("qkv_proj", tokens, gated + keys_and_values, hidden);
    }
    a_.indexer.project(hidden, hidden, tokens, ops);
  }

  // Scores and weighted values are 2 flops each per head dimension and pair; queries and outputs
  // pass once, keys and values are read once per sequence.
  void core(const MixerShard& shard, const RankSequences& sequences,
            std::vector<Operation>& out) const override {
    const auto& [hidden, plan, precision, gpu] = shard;
    const AttentionWork work = attention_work(sequences, sight());
    OperationList ops(Part::attention, precision, gpu, out);
    if (has_block(shard))
      return attention_blocks(block(shard, prompts_of(work)), block(shard, decodes_of(work)),
                              block(shard, least_load(true))->time, ops);
    AttentionShape shape = shape_of(plan.tp);
    shape.window = work.window;
    const double kv_bytes = kept(plan, precision).bytes;
    const double query_and_output = shape.q_heads * (a_.head_dim + a_.value_dim());
    a_.indexer.score(work, ops);
    if (work.decode_sequences > 0) {
      // With DCP the heads of all GPUs that share the cache meet each one's part of it.
      AttentionShape gathered = shape;
      gathered.q_heads *= plan.dcp;
      const double gathered_numbers = plan.dcp * query_and_output;
      ops.attention("attention_decode", gathered, decode_load(work, plan),
                    2 * query_and_output * work.decode_pairs,
                    work.decode_kv_tokens / plan.dcp * kv_bytes +
                        work.decode_sequences * gathered_numbers * bf16_bytes);
      merge_partial_outputs(cache_heads(plan.tp), plan, work.decode_sequences, ops);
    }
    shape.decode = false;
    if (work.prefill_tokens > 0) {
      ops.attention(
          "attention_prefill", shape, prefill_load(work), 2 * query_and_output * work.prefill_pairs,
          work.prefill_kv_tokens * kv_bytes + work.prefill_tokens * query_and_output * bf16_bytes);
    }
  }

  void output(const MixerShard& shard, double tokens, std::vector<Operation>& out) const override {
    if (has_block(shard)) {
      OperationList(Part::attention, shard.precision, shard.gpu, out)
          .memory("post_norm", tokens * norm_bytes(shard.hidden));
      return;
    }
    const double heads = static_cast<double>(a_.query_heads) / shard.plan.tp;
    project_output(shard, tokens, heads * a_.value_dim(), a_.output_gate, out);
  }

  bool joint_norm() const override { return a_.joint_qk_norm; }

  // Projections in and out; the write into the KV cache, attention; queries' and keys' squares,
  // their sum over GPUs, the norm.
  Launches launches(bool rope_apart) const override {
    const double rank = a_.q_lora > 0 ? 1 : 0;
    return {.products = 2 + rank,
            .others = (rope_apart ? 1 : 0) + 2 + rank + (a_.joint_qk_norm ? 3 : 0) +
                      a_.indexer.launches()};
  }

 private:
  int kv_heads(int tp) const { return (a_.kv_heads + tp - 1) / tp; }
  double projected_values() const { return a_.values_are_keys ? 0 : a_.value_dim(); }
  AttentionShape shape_of(int tp) const {
    return {.q_heads = double(a_.query_heads) / tp,
            .kv_heads = double(kv_heads(tp)),
            .key_dim = static_cast<double>(a_.head_dim),
            .value_dim = static_cast<double>(a_.value_dim())};
  }

  // Engines' tables time a block of sparse attention as one.
  std::optional<Cost> block(const MixerShard& shard, const SparseLoad& load) const {
    const auto& [hidden, plan, precision, gpu] = shard;
    return sparse_grouped_block({.hidden = static_cast<double>(hidden),
                                 .heads = double(a_.query_heads) / plan.tp,
                                 .kv_heads = double(kv_heads(plan.tp)),
                                 .head_dim = static_cast<double>(a_.head_dim),
                                 .index_heads = static_cast<double>(a_.indexer.heads),
                                 .index_dim = static_cast<double>(a_.indexer.dim),
                                 .kv_bytes = kept(plan, precision).bytes,
                                 .key_bytes = a_.indexer.key_bytes()},
                                load, precision.kv_cache, precision.attention,
                                precision.activations, gpu);
  }
  bool has_block(const MixerShard& shard) const {
    return a_.indexer.scores() && shard.gpu.tables && block(shard, least_load(true)) &&
           block(shard, least_load(false));
  }

  // True if the attention kernel's time holds the write into the KV cache: a table's does.
  static bool writes_kv_cache(AttentionShape shape, const PrecisionPlan& precision,
                              const GpuSpec& gpu) {
    if (!gpu.tables) return false;
    shape.kv_cache = precision.kv_cache;
    return is_by_table(attention(shape, one_query, gpu), gpu);
  }
};

}  // namespace

MixerPtr mixer(const GroupedAttention& attention) { return std::make_shared<Grouped>(attention); }

GroupedAttention hf_grouped(ConfigReader& r, int hidden) {
  GroupedAttention a;
  a.query_heads = count(r, "num_attention_heads");
  a.kv_heads = optional(r, "num_key_value_heads", a.query_heads);
  a.head_dim = optional(r, "head_dim", hidden / a.query_heads);
  return a;
}

std::span<const Key> grouped_keys() {
  static constexpr KeyDefault gqa = unset("MLA, with kv_lora");
  static constexpr Key keys[] = {
      query_heads_key,
      {"kv_heads", size, gqa, "GQA: key and value heads"},
      {"head_dim", size, gqa, "GQA: dimension of a head"},
      value_dim_key,
      output_gate_key,
      {"joint_qk_norm", form::flag, "false", "GQA: queries and keys are normed over all heads"},
      {"values_are_keys", form::flag, "false", "GQA: values are not projected (Gemma 4)"}};
  return keys;
}

MixerPtr read_grouped(ConfigReader& r) {
  GroupedAttention a;
  a.query_heads = count(r, "query_heads");
  if (r.has("q_lora")) a.q_lora = static_cast<int>(r.integer("q_lora"));
  a.kv_heads = count(r, "kv_heads");
  a.head_dim = count(r, "head_dim");
  if (r.has("v_dim")) a.v_dim = count(r, "v_dim");
  a.joint_qk_norm = r.flag("joint_qk_norm");
  a.values_are_keys = r.flag("values_are_keys");
  a.output_gate = r.flag("output_gate");
  a.indexer = read_indexer(r);
  return mixer(a);
}

}  // namespace moesim
