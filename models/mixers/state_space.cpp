// SPDX-License-Identifier: Apache-2.0
#include "models/mixers/state_space.hpp"

#include "models/mixers/keys.hpp"
#include "models/mixers/shares.hpp"

namespace moesim {

namespace {

// Mamba-2, and whoever is like it.
class StateSpaceLayer : public MixerOf<StateSpace> {
 public:
  using MixerOf::MixerOf;

  bool recurrent() const override { return true; }
  std::string cut_fault(int tp) const override { return recurrent_cut_fault(a_.heads, tp); }
  MixerPtr in_layer(const Sight&) const override { return mixer(a_); }

  // Queries, keys, values and the output's gate; a step for each head; the convolution over
  // queries, keys and values; the output.
  double parameters(int hidden, const ParallelPlan& plan) const override {
    const auto [heads, keys, values] = slice_of(a_.heads, plan.tp);
    return hidden * (2 * keys + values + heads) + hidden * values +
           (2 * keys + values) * a_.heads.convolution + 2 * heads + a_.heads.value_dim +
           values * hidden;
  }

  // Mamba-2's names, or lightning attention's, which has no convolution.
  std::vector<MixerMatrix> matrices(int hidden) const override {
    const auto [heads, keys, values] = slice_of(a_.heads, 1);
    if (a_.heads.convolution > 0)
      return {{"in_proj", hidden * (2 * keys + 2 * values + heads)}, {"out_proj", values * hidden}};
    return {{"qkv_proj", hidden * (2 * keys + values)},
            {"output_gate", hidden * values},
            {"out_proj", values * hidden}};
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
    ops.gemm("qkvz_proj", tokens, 2 * keys + values + values, hidden);
    ops.gemm("ba_proj", tokens, heads, hidden);
    ops.memory("split_qkvz", tokens * 2 * (2 * keys + 2 * values) * bf16_bytes);
    ops.memory("convolution", tokens * 2 * (2 * keys + values) * bf16_bytes);
  }

  void core(const MixerShard& shard, const RankSequences& sequences,
            std::vector<Operation>& out) const override {
    recurrent_core(shard, a_.heads, kept(shard.plan, shard.precision).state_bytes, flops(),
                   sequences, out);
  }

  void output(const MixerShard& shard, double tokens, std::vector<Operation>& out) const override {
    recurrent_output(shard, a_.heads, tokens, out);
  }

  // Mamba-2's chunks: cumulated steps, states, their passing, products, scan; before them the
  // convolution, behind them a norm.
  Launches launches(bool) const override { return {.products = 2, .others = 5 + 1 + 1}; }

 protected:
  // It has no triangle of keys, and reads the state once (arXiv:2405.21060, section 6).
  virtual double flops() const {
    const double key = a_.heads.key_dim, value = a_.heads.value_dim;
    return 4 * key * value + 2 * recurrent_chunk * (key + value);
  }
};

class Mamba final : public StateSpaceLayer {
 public:
  using StateSpaceLayer::StateSpaceLayer;

  // Channels and their gate; the step, B and C from the channels; the step's own projection. Then a
  // decay for each number of the state, the convolution over channels, and the output.
  double parameters(int hidden, const ParallelPlan& plan) const override {
    const double values = slice_of(a_.heads, plan.tp).values;
    return hidden * 2 * values + values * (a_.step_rank + 2.0 * a_.heads.key_dim) +
           a_.step_rank * values + values * a_.heads.key_dim + values * a_.heads.convolution +
           values * hidden;
  }

  std::vector<MixerMatrix> matrices(int hidden) const override {
    const double values = slice_of(a_.heads, 1).values;
    return {{"in_proj", hidden * 2 * values},
            {"x_proj", values * (a_.step_rank + 2.0 * a_.heads.key_dim)},
            {"dt_proj", a_.step_rank * values},
            {"out_proj", values * hidden}};
  }

  Kept kept(const ParallelPlan& plan, const PrecisionPlan& precision) const override {
    const double values = slice_of(a_.heads, plan.tp).values;
    return {.state_bytes = recurrent_state_bytes(a_.heads, values, plan, precision)};
  }

  void input(const MixerShard& shard, double tokens, std::vector<Operation>& out) const override {
    const auto& [hidden, plan, precision, gpu] = shard;
    OperationList ops(Part::attention, precision, gpu, out);
    const double values = slice_of(a_.heads, plan.tp).values;
    const double rank = a_.step_rank, state = a_.heads.key_dim;
    ops.memory("input_norm", tokens * norm_bytes(hidden));
    ops.gemm("in_proj", tokens, 2 * values, hidden);
    ops.memory("convolution", tokens * 2 * values * bf16_bytes);
    ops.gemm("x_proj", tokens, rank + 2 * state, values);
    ops.gemm("dt_proj", tokens, values, rank);
  }

 private:
  // Token by token.
  double flops() const override {
    return 6 * double(a_.heads.key_dim) * double(a_.heads.value_dim);
  }
};

}  // namespace

MixerPtr mixer(const StateSpace& layer) {
  if (layer.step_rank > 0) return std::make_shared<Mamba>(layer);
  return std::make_shared<StateSpaceLayer>(layer);
}

StateSpace hf_lightning(ConfigReader& r, int hidden) {
  const int heads = count(r, "num_attention_heads");
  const int dim = optional(r, "head_dim", hidden / heads);
  return {.heads = {.key_heads = heads,
                    .key_dim = dim,
                    .value_heads = heads,
                    .value_dim = dim,
                    .convolution = 1}};
}

StateSpace hf_granite_mamba(ConfigReader& r, int hidden) {
  const int heads = count(r, "mamba_n_heads");
  return {.heads = {.key_heads = optional(r, "mamba_n_groups", 1),
                    .key_dim = count(r, "mamba_d_state"),
                    .value_heads = heads,
                    .value_dim = optional(r, "mamba_expand", 2) * hidden / heads,
                    .convolution = optional(r, "mamba_d_conv", 4)}};
}

StateSpace hf_nemotron_mamba(ConfigReader& r) {
  return {.heads = {.key_heads = count(r, "n_groups"),
                    .key_dim = count(r, "ssm_state_size"),
                    .value_heads = count(r, "mamba_num_heads"),
                    .value_dim = count(r, "mamba_head_dim"),
                    .convolution = count(r, "conv_kernel")}};
}

StateSpace hf_jamba_mamba(ConfigReader& r, int hidden) {
  return {.heads = {.key_heads = 1,
                    .key_dim = optional(r, "mamba_d_state", 16),
                    .value_heads = optional(r, "mamba_expand", 2) * hidden,
                    .value_dim = 1,
                    .convolution = optional(r, "mamba_d_conv", 4)},
          .step_rank = optional(r, "mamba_dt_rank", (hidden + 15) / 16)};
}

std::span<const Key> state_space_keys() {
  static constexpr Key keys[] = {
      {"step_rank", size_or_none, "0", "Mamba: rank of the step's projection; 0: not Mamba"}};
  return keys;
}

MixerPtr read_state_space(ConfigReader& r) {
  const RecurrentHeads heads = read_recurrent_heads(r);
  return mixer(StateSpace{.heads = heads, .step_rank = static_cast<int>(r.integer("step_rank"))});
}

}  // namespace moesim
