// SPDX-License-Identifier: Apache-2.0
#include "models/mixers/short_convolution.hpp"

#include <fmt/format.h>

#include "models/mixers/keys.hpp"
#include "models/mixers/shares.hpp"

namespace moesim {

namespace {

// y = W_out (c * conv(b * x)) with b, c, x = W_in h; channels are cut over tp GPUs.
class GatedConvolution final : public MixerOf<ShortConvolution> {
 public:
  using MixerOf::MixerOf;

  bool recurrent() const override { return true; }
  std::string cut_fault(int tp) const override {
    if (a_.hidden % tp == 0) return {};
    return fmt::format("tp {} does not divide the {} channels of the model's convolution", tp,
                       a_.hidden);
  }
  MixerPtr in_layer(const Sight&) const override { return mixer(a_); }

  double parameters(int hidden, const ParallelPlan& plan) const override {
    return channels(plan) * (4.0 * hidden + a_.tokens);
  }
  std::vector<MixerMatrix> matrices(int hidden) const override {
    return {{"in_proj", 3.0 * a_.hidden * hidden}, {"out_proj", double(a_.hidden) * hidden}};
  }
  Kept kept(const ParallelPlan& plan, const PrecisionPlan&) const override {
    return {.state_bytes = channels(plan) * (a_.tokens - 1) * bf16_bytes};
  }

  void input(const MixerShard& shard, double tokens, std::vector<Operation>& out) const override {
    const auto& [hidden, plan, precision, gpu] = shard;
    OperationList ops(Part::attention, precision, gpu, out);
    ops.memory("input_norm", tokens * norm_bytes(hidden));
    ops.gemm("in_proj", tokens, 3 * channels(plan), hidden);
  }
  void core(const MixerShard& shard, const RankSequences& sequences,
            std::vector<Operation>& out) const override {
    double tokens = 0, kept_by = 0;
    for (const SequenceWork& sequence : sequences) {
      tokens += sequence.new_tokens;
      kept_by += sequence.new_tokens > 0 ? 1 : 0;
    }
    OperationList ops(Part::attention, shard.precision, shard.gpu, out);
    ops.memory("convolution", tokens * 4 * channels(shard.plan) * bf16_bytes +
                                  kept_by * 2 * kept(shard.plan, shard.precision).state_bytes);
  }
  void output(const MixerShard& shard, double tokens, std::vector<Operation>& out) const override {
    const auto& [hidden, plan, precision, gpu] = shard;
    OperationList ops(Part::attention, precision, gpu, out);
    ops.gemm("out_proj", tokens, hidden, channels(plan));
    ops.memory("post_norm", tokens * norm_bytes(hidden));
  }

  // Projections in and out; both gates, the convolution.
  Launches launches(bool) const override { return {.products = 2, .others = 3}; }

 private:
  double channels(const ParallelPlan& plan) const { return double(a_.hidden) / plan.tp; }
};

}  // namespace

MixerPtr mixer(const ShortConvolution& a) { return std::make_shared<GatedConvolution>(a); }

ShortConvolution hf_short_convolution(ConfigReader& r, int hidden) {
  return {.hidden = hidden, .tokens = count(r, "conv_L_cache")};
}

std::span<const Key> short_convolution_keys() {
  static constexpr Key keys[] = {
      {"channels", size, unset("another kind"), "short convolution alone: its channels"}};
  return keys;
}

MixerPtr read_short_convolution(ConfigReader& r) {
  return mixer(ShortConvolution{.hidden = count(r, "channels"), .tokens = count(r, "convolution")});
}

}  // namespace moesim
