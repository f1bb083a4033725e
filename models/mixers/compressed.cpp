// SPDX-License-Identifier: Apache-2.0
#include "models/mixers/compressed.hpp"

#include <fmt/format.h>

#include "hardware/kernels/compressed_attention.hpp"
#include "hardware/kernels/hyper_connections.hpp"
#include "models/mixers/keys.hpp"
#include "models/mixers/shares.hpp"

namespace moesim {

namespace {

// DeepSeek-V4 (huggingface/transformers, models/deepseek_v4). Every layer attends to the last
// `window` tokens. In addition it attends to floor(t / 4) entries of which an indexer picks, or to
// all of floor(t / 128) entries, or to none. All heads read the same entries and window.
class Compressed final : public MixerOf<CompressedAttention> {
 public:
  using MixerOf::MixerOf;

  std::string fault() const override {
    if ((a_.sparse_ratio > 0) != a_.indexer.scores())
      return "compressed attention has an indexer where it has a \"sparse_ratio\", else none";
    if (a_.query_heads % a_.output_groups != 0)
      return fmt::format("{} query heads are not {} equal groups of outputs", a_.query_heads,
                         a_.output_groups);
    return a_.indexer.fault();
  }
  std::string cut_fault(int tp) const override {
    if (a_.output_groups % tp == 0) return {};
    return fmt::format("tp {} does not divide the {} groups of the output's projection", tp,
                       a_.output_groups);
  }
  MixerPtr in_layer(const Sight& sight) const override {
    CompressedAttention here = a_;
    here.ratio = sight.ratio;
    return mixer(here);
  }

  double parameters(int hidden, const ParallelPlan& plan) const override {
    return projections(shape_of(hidden, plan, {})) +
           hyper_connection_parameters(hidden, a_.streams);
  }

  // In addition to the entries a sequence keeps a window of the latent. Of each token whose entry
  // is not complete it keeps a key and a score in fp32, of two windows where they overlap.
  Kept kept(const ParallelPlan&, const PrecisionPlan& precision) const override {
    const double entry = entry_bytes(precision);
    Kept kept{.state_bytes = a_.window * entry, .state_tokens = double(a_.window)};
    if (a_.ratio == 0) return kept;
    const double tokens = a_.ratio;
    kept.elements = a_.latent_dim / tokens;
    kept.bytes = entry / tokens;
    kept.tokens_of_entry = a_.ratio;
    kept.pieces = is_thinned() ? 2 : 1;
    const double open = is_thinned() ? 2 * 2.0 : 1;
    kept.state_bytes += open * tokens * 2 * a_.latent_dim * fp32_bytes;
    if (is_thinned()) {
      kept.index_bytes = a_.indexer.key_bytes() / tokens;
      kept.state_bytes += open * tokens * 2 * a_.indexer.dim * fp32_bytes;
    }
    return kept;
  }

  void input(const MixerShard& shard, double tokens, std::vector<Operation>& out) const override {
    const auto& [hidden, plan, precision, gpu] = shard;
    connect("hyper_connections_before", true, shard, tokens, out);
    OperationList ops(Part::attention, precision, gpu, out);
    const CompressedShape shape = shape_of(hidden, plan, precision);
    if (has_block(shape, precision, gpu)) {
      ops.memory("input_norm", tokens * norm_bytes(hidden));
      return;
    }
    before_projections(shard, tokens, (2 * shape.heads + 1) * a_.qk_rope, ops);
    ops.gemm("qkv_a_proj", tokens, a_.q_lora + a_.latent_dim, hidden);
    ops.memory("latent_norm", tokens * 2 * (a_.q_lora + a_.latent_dim) * bf16_bytes);
    ops.gemm("q_b_proj", tokens, shape.heads * a_.latent_dim, a_.q_lora);
    compress(shape, tokens, ops);
  }

  void core(const MixerShard& shard, const RankSequences& sequences,
            std::vector<Operation>& out) const override {
    const auto& [hidden, plan, precision, gpu] = shard;
    OperationList ops(Part::attention, precision, gpu, out);
    const CompressedShape shape = shape_of(hidden, plan, precision);
    CompressedLoad decode{.decode = true, .seen = {}}, prefill{.decode = false, .seen = {}};
    for (const auto& [new_tokens, context, verifies] : sequences) {
      if (new_tokens == 0) continue;
      CompressedLoad& load = new_tokens == 1 || verifies ? decode : prefill;
      const std::int64_t end = context + std::int64_t{new_tokens};
      load.sequences += 1;
      load.queries += new_tokens;
      load.context += static_cast<double>(end);
      load.seen += entries_seen(context, end, shape.window, shape.ratio, shape.top);
    }
    if (has_block(shape, precision, gpu))
      return blocks(shape, decode, prefill, precision, gpu, ops);
    attend("attention_decode", shape, decode, ops);
    attend("attention_prefill", shape, prefill, ops);
  }

  void output(const MixerShard& shard, double tokens, std::vector<Operation>& out) const override {
    const auto& [hidden, plan, precision, gpu] = shard;
    OperationList ops(Part::attention, precision, gpu, out);
    const CompressedShape shape = shape_of(hidden, plan, precision);
    if (!has_block(shape, precision, gpu)) {
      // One product for each group.
      ops.gemm("o_a_proj", tokens * shape.groups, a_.output_lora,
               shape.heads * a_.latent_dim / shape.groups);
      ops.gemm("o_b_proj", tokens, hidden, shape.groups * a_.output_lora);
    }
    ops.memory("post_norm", tokens * norm_bytes(hidden));
    connect("hyper_connections_after", false, shard, tokens, out);
  }

  // Projections to and from two ranks; norms of both, the write into the KV cache, attention. What
  // is compressed has a projection, its state, its pooling. An indexer has its own, and the same
  // for its keys. Streams before and after attention and FFN.
  Launches launches(bool rope_apart) const override {
    const double compressor = a_.ratio > 0 ? 2 : 0;
    return {.products = 4 + (a_.ratio > 0 ? 1.0 : 0) + (is_thinned() ? 1 : 0),
            .others = (rope_apart ? 2 : 0) + 2 + 1 + 1 + compressor +
                      (is_thinned() ? compressor + a_.indexer.launches() : 0) +
                      (a_.streams > 1 ? 4 : 0)};
  }

 private:
  bool is_thinned() const { return a_.ratio > 0 && a_.ratio == a_.sparse_ratio; }

  // In fp8 the part with positions stays in bf16, beside a scale of a byte for 64 numbers, eight
  // bytes in all (584 bytes, vLLM's fp8_ds_mla).
  double entry_bytes(const PrecisionPlan& precision) const {
    constexpr double scales = 8;
    const double stored = bytes_per_element(precision.kv_cache);
    if (stored != 1) return a_.latent_dim * stored;
    return a_.latent_dim - a_.qk_rope + a_.qk_rope * bf16_bytes + scales;
  }

  // Heads and groups of outputs are cut over tp GPUs; latents, compressors and the indexer are not.
  CompressedShape shape_of(int hidden, const ParallelPlan& plan,
                           const PrecisionPlan& precision) const {
    CompressedShape shape{.hidden = static_cast<double>(hidden),
                          .heads = double(a_.query_heads) / plan.tp,
                          .q_lora = static_cast<double>(a_.q_lora),
                          .dim = static_cast<double>(a_.latent_dim),
                          .groups = double(a_.output_groups) / plan.tp,
                          .o_lora = static_cast<double>(a_.output_lora),
                          .window = a_.window,
                          .ratio = a_.ratio,
                          .entry_bytes = entry_bytes(precision)};
    if (!is_thinned()) return shape;
    shape.top = a_.indexer.top;
    shape.index_heads = a_.indexer.heads;
    shape.index_dim = a_.indexer.dim;
    shape.key_bytes = a_.indexer.key_bytes();
    return shape;
  }

  std::optional<Cost> block(const CompressedShape& shape, const CompressedLoad& load,
                            const PrecisionPlan& precision, const GpuSpec& gpu) const {
    return compressed_block(shape, load, precision.kv_cache, precision.attention,
                            precision.activations, gpu);
  }
  static CompressedLoad least(const CompressedShape& shape, bool decode) {
    return {decode, 1, 1, 1, entries_seen(0, 1, shape.window, shape.ratio, shape.top)};
  }
  // True if the engine's tables time the block as one.
  bool has_block(const CompressedShape& shape, const PrecisionPlan& precision,
                 const GpuSpec& gpu) const {
    return gpu.tables && block(shape, least(shape, true), precision, gpu) &&
           block(shape, least(shape, false), precision, gpu);
  }

  void blocks(const CompressedShape& shape, const CompressedLoad& decode,
              const CompressedLoad& prefill, const PrecisionPlan& precision, const GpuSpec& gpu,
              OperationList& ops) const {
    attention_blocks(block(shape, prefill, precision, gpu), block(shape, decode, precision, gpu),
                     block(shape, least(shape, true), precision, gpu)->time, ops);
  }

  // In bf16: keys and gates, the state of tokens whose entry is open, the entry; the same of index
  // keys, beside the indexer's queries.
  void compress(const CompressedShape& shape, double tokens, OperationList& ops) const {
    double written = shape.entry_bytes;
    if (shape.ratio > 0) {
      const double wide = 2 * (shape.thinned() ? 2 : 1) * (shape.dim + shape.index_dim);
      ops.bf16_gemm("compressor_proj", tokens, wide, shape.hidden);
      ops.memory("compressor", tokens * 2 * wide * fp32_bytes);
      written += (shape.entry_bytes + shape.key_bytes) / shape.ratio;
    }
    if (shape.thinned()) a_.indexer.project(int(shape.hidden), a_.q_lora, tokens, ops);
    ops.memory("kv_cache_write", tokens * written);
  }

  void attend(std::string_view name, const CompressedShape& shape, const CompressedLoad& load,
              OperationList& ops) const {
    if (load.sequences == 0) return;
    const BlockWork work = work_of(shape, load);
    const double scores = 2 * shape.index_heads * shape.index_dim * load.seen.scored;
    const double keys = shape.thinned() ? load.seen.keys * shape.key_bytes : 0;
    const double top_k = load.seen.scored * 2 * fp32_bytes;
    if (shape.thinned()) {
      ops.kernel("index_scores", attention_prefill_kernel, scores, keys);
      ops.memory("index_top_k", top_k);
    }
    const bool gathers = load.decode || shape.thinned();
    ops.kernel(name, gathers ? mla_decode_kernel : attention_prefill_kernel, work.flops - scores,
               work.cached - keys + work.moved - top_k);
  }

  void connect(std::string_view name, bool before, const MixerShard& shard, double tokens,
               std::vector<Operation>& out) const {
    if (a_.streams == 1 || tokens <= 0) return;
    OperationList(Part::other, shard.precision, shard.gpu, out)
        .priced(name, hyper_connections(before, tokens, shard.hidden, a_.streams, shard.gpu));
  }
};

}  // namespace

MixerPtr mixer(const CompressedAttention& attention) {
  return std::make_shared<Compressed>(attention);
}

CompressedAttention hf_compressed(ConfigReader& r) {
  return {.query_heads = count(r, "num_attention_heads"),
          .q_lora = count(r, "q_lora_rank"),
          .latent_dim = count(r, "head_dim"),
          .qk_rope = count(r, "qk_rope_head_dim"),
          .output_groups = count(r, "o_groups"),
          .output_lora = count(r, "o_lora_rank"),
          .window = count(r, "sliding_window"),
          .streams = std::max(1, optional(r, "hc_mult", 1)),
          .indexer = {.heads = count(r, "index_n_heads"),
                      .dim = count(r, "index_head_dim"),
                      .top = count(r, "index_topk")}};
}

std::span<const Key> compressed_keys() {
  static constexpr KeyDefault other = unset("another kind, without latent_dim");
  static constexpr Key keys[] = {
      query_heads_key,
      {"latent_dim", size, other, "compressed attention: dimensions of the latent of all heads"},
      {"output_groups", size, other, "compressed: groups of the output's projection"},
      {"output_lora", size, other, "compressed: rank of each group"},
      {"attention_window", size, other, "compressed: tokens that every layer attends to"},
      {"sparse_ratio", size_or_none, "0", "compressed: tokens of an entry that an indexer picks"},
      {"streams", size, "1", "compressed: streams of the hidden state (hyper-connections)"}};
  return keys;
}

MixerPtr read_compressed(ConfigReader& r) {
  return mixer(CompressedAttention{.query_heads = count(r, "query_heads"),
                                   .q_lora = count(r, "q_lora"),
                                   .latent_dim = count(r, "latent_dim"),
                                   .qk_rope = count(r, "qk_rope"),
                                   .output_groups = count(r, "output_groups"),
                                   .output_lora = count(r, "output_lora"),
                                   .window = count(r, "attention_window"),
                                   .sparse_ratio = static_cast<int>(r.integer("sparse_ratio")),
                                   .streams = count(r, "streams"),
                                   .indexer = read_indexer(r)});
}

}  // namespace moesim
