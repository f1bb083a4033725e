// SPDX-License-Identifier: Apache-2.0
#include "models/mixers/delta_net.hpp"

#include "hardware/kernels/linear_attention.hpp"
#include "models/mixers/keys.hpp"
#include "models/mixers/shares.hpp"

namespace moesim {

namespace {

class GatedDeltaNet final : public MixerOf<DeltaNet> {
 public:
  using MixerOf::MixerOf;

  bool recurrent() const override { return true; }
  std::string cut_fault(int tp) const override { return recurrent_cut_fault(a_.heads, tp); }
  MixerPtr in_layer(const Sight&) const override { return mixer(a_); }

  // Queries, keys, values and the output's gate; a decay and a rate for each head; the convolution
  // over queries, keys and values; the output.
  double parameters(int hidden, const ParallelPlan& plan) const override {
    const auto [heads, keys, values] = slice_of(a_.heads, plan.tp);
    const double decay = a_.decay_rank * (hidden + keys);
    const double gate = a_.gate_rank > 0 ? a_.gate_rank * (hidden + values) : hidden * values;
    return hidden * (2 * keys + values + rates() * heads) + decay + gate +
           (2 * keys + values) * a_.heads.convolution + 2 * heads + a_.heads.value_dim +
           values * hidden;
  }

  // Qwen's names, or those of Kimi Delta Attention.
  std::vector<MixerMatrix> matrices(int hidden) const override {
    const auto [heads, keys, values] = slice_of(a_.heads, 1);
    if (a_.decay_rank == 0)
      return {{"in_proj_qkv", hidden * (2 * keys + values)},
              {"in_proj_z", hidden * values},
              {"in_proj_b", hidden * heads},
              {"in_proj_a", hidden * heads},
              {"out_proj", values * hidden}};
    std::vector<MixerMatrix> all{{"q_proj", hidden * keys},
                                 {"k_proj", hidden * keys},
                                 {"v_proj", hidden * values},
                                 {"b_proj", hidden * heads},
                                 {"f_a_proj", double(hidden) * a_.decay_rank},
                                 {"f_b_proj", a_.decay_rank * keys},
                                 {"o_proj", values * hidden}};
    if (a_.gate_rank == 0) {
      all.push_back({"g_proj", hidden * values});
    } else {
      all.push_back({"g_a_proj", double(hidden) * a_.gate_rank});
      all.push_back({"g_b_proj", a_.gate_rank * values});
    }
    return all;
  }

  Kept kept(const ParallelPlan& plan, const PrecisionPlan& precision) const override {
    const auto [heads, keys, values] = slice_of(a_.heads, plan.tp);
    return {.state_bytes = recurrent_state_bytes(a_.heads, 2 * keys + values, plan, precision)};
  }

  void input(const MixerShard& shard, double tokens, std::vector<Operation>& out) const override {
    const auto& [hidden, plan, precision, gpu] = shard;
    OperationList ops(Part::attention, precision, gpu, out);
    const auto [heads, keys, values] = slice_of(a_.heads, plan.tp);
    ops.memory("input_norm", tokens * norm_bytes(hidden));
    const double gate = a_.gate_rank > 0 ? a_.gate_rank : values;
    ops.gemm("qkvz_proj", tokens, 2 * keys + values + gate, hidden);
    if (a_.gate_rank > 0) ops.gemm("gate_b_proj", tokens, values, a_.gate_rank);
    ops.gemm("ba_proj", tokens, rates() * heads, hidden);
    if (a_.decay_rank > 0) {  // a decay for each channel
      ops.gemm("decay_a_proj", tokens, a_.decay_rank, hidden);
      ops.gemm("decay_b_proj", tokens, keys, a_.decay_rank);
    }
    ops.memory("split_qkvz", tokens * 2 * (2 * keys + 2 * values) * bf16_bytes);
    if (!has_table(shard)) ops.memory("convolution", tokens * 2 * (2 * keys + values) * bf16_bytes);
  }

  // Computes in chunks as gated delta nets do (arXiv:2412.06464, section 3.3). Within a chunk of C
  // tokens keys meet keys and queries, their triangle is inverted onto keys and values, and values
  // are read out. Between chunks each token reads the state twice and writes it once.
  void core(const MixerShard& shard, const RankSequences& sequences,
            std::vector<Operation>& out) const override {
    if (has_table(shard)) return by_table(shard, sequences, out);
    const double key = a_.heads.key_dim, value = a_.heads.value_dim;
    const double flops = 6 * key * value + 2 * recurrent_chunk * (3 * key + 2 * value);
    recurrent_core(shard, a_.heads, kept(shard.plan, shard.precision).state_bytes, flops, sequences,
                   out);
  }

  void output(const MixerShard& shard, double tokens, std::vector<Operation>& out) const override {
    recurrent_output(shard, a_.heads, tokens, out);
  }

  // Launches of the delta rule in chunks: cumulated gates, products of keys, their solution and
  // weights, states, outputs. Before are convolution, gates and two norms, behind a norm.
  Launches launches(bool) const override {
    const double low_ranks = (a_.decay_rank > 0 ? 2 : 0) + (a_.gate_rank > 0 ? 1 : 0);
    return {.products = 3 + low_ranks, .others = 6 + 4 + 1};
  }

 private:
  LinearAttentionCall call(const MixerShard& shard, bool decode, double sequences,
                           double tokens) const {
    return {.by_channel = a_.decay_rank > 0,
            .decode = decode,
            .sequences = sequences,
            .tokens = tokens,
            .key_heads = double(a_.heads.key_heads) / shard.plan.tp,
            .value_heads = double(a_.heads.value_heads) / shard.plan.tp,
            .key_dim = static_cast<double>(a_.heads.key_dim),
            .value_dim = static_cast<double>(a_.heads.value_dim)};
  }
  // True if the engine's tables time the rule and the convolution.
  bool has_table(const MixerShard& shard) const {
    if (!shard.gpu.tables) return false;
    for (const bool decode : {true, false}) {
      LinearAttentionCall one = call(shard, decode, 1, 1);
      if (!linear_attention(one, shard.gpu)) return false;
      one.convolution = true;
      if (!linear_attention(one, shard.gpu)) return false;
    }
    return true;
  }
  void by_table(const MixerShard& shard, const RankSequences& sequences,
                std::vector<Operation>& out) const {
    const AttentionWork work = attention_work(sequences, {});
    OperationList ops(Part::attention, shard.precision, shard.gpu, out);
    const auto add = [&](std::string_view convolution, std::string_view rule,
                         LinearAttentionCall part) {
      if (part.tokens <= 0) return;
      ops.priced(rule, *linear_attention(part, shard.gpu));
      part.convolution = true;
      ops.priced(convolution, *linear_attention(part, shard.gpu));
    };
    add("convolution_decode", "linear_decode",
        call(shard, true, work.decode_batch, work.decode_sequences));
    add("convolution_prefill", "linear_prefill",
        call(shard, false, work.prefill_batch, work.prefill_tokens));
  }

  double rates() const { return a_.decay_rank == 0 ? 2 : 1; }
};

}  // namespace

MixerPtr mixer(const DeltaNet& net) { return std::make_shared<GatedDeltaNet>(net); }

DeltaNet hf_qwen_delta_net(ConfigReader& r) {
  return {.heads = {.key_heads = count(r, "linear_num_key_heads"),
                    .key_dim = count(r, "linear_key_head_dim"),
                    .value_heads = count(r, "linear_num_value_heads"),
                    .value_dim = count(r, "linear_value_head_dim"),
                    .convolution = count(r, "linear_conv_kernel_dim")}};
}

DeltaNet hf_kimi_delta_net(ConfigReader& r) {
  const int heads = count(r, "num_heads"), dim = count(r, "head_dim");
  return {.heads = {.key_heads = heads,
                    .key_dim = dim,
                    .value_heads = heads,
                    .value_dim = dim,
                    .convolution = count(r, "short_conv_kernel_size")},
          .decay_rank = dim,
          .gate_rank = flagged(r, "use_full_rank_gate") ? 0 : dim};
}

std::span<const Key> delta_net_keys() {
  static constexpr Key keys[] = {
      {"decay_rank", size_or_none, "0", "rank of the decay's projection; 0: a decay for each head"},
      {"gate_rank", size_or_none, "0", "rank of the output gate's projection; 0: full"}};
  return keys;
}

MixerPtr read_delta_net(ConfigReader& r) {
  const RecurrentHeads heads = read_recurrent_heads(r);
  return mixer(DeltaNet{.heads = heads,
                        .decay_rank = static_cast<int>(r.integer("decay_rank")),
                        .gate_rank = static_cast<int>(r.integer("gate_rank"))});
}

}  // namespace moesim
