// SPDX-License-Identifier: Apache-2.0
#include "models/launches.hpp"

#include "hardware/tables/kernel_tables.hpp"

namespace moesim {

namespace {

// Beside the products, whose inputs may be quantised.
struct Launches {
  double products = 0, others = 0;
};

// Kernels of a layer in a model that is served in one way.
class LaunchCount {
 public:
  LaunchCount(const MoeModel& model, const ParallelPlan& plan, const PrecisionPlan& precision,
              const Fusions& fusions)
      : model_(model), plan_(plan), precision_(precision), fusions_(fusions) {}

  double of(const LayerSpec& layer) const {
    const bool dense = layer.has_dense_ffn() || (layer.moe && model_.dense_residual);
    return norms(layer) + mixer(layer) + (layer.moe ? experts() : 0) + (dense ? gated_ffn() : 0) +
           exchanges(layer);
  }

 private:
  double norms(const LayerSpec& layer) const {
    if (fusions_.norm && plan_.tp > 1) return 0;
    return layer.ffn ? 2 : 1;
  }

  // Narrow activations are quantised by a kernel before each product.
  double with_quantisation(const Launches& launches, Precision weights) const {
    const Precision activations = precision_.activations;
    const bool narrow = weights != Precision::bf16 && bytes_per_element(activations) < 2;
    const bool scales_known = activations == Precision::fp8 || activations == Precision::nvfp4;
    const bool alone = narrow && !(fusions_.quantise && scales_known);
    return launches.others + launches.products * (alone ? 2 : 1);
  }

  double mixer(const LayerSpec& layer) const {
    if (layer.linear) return linear_mixer();
    const AttentionSpec a = model_.attention_of(layer);
    const double rope = fusions_.rope ? 0 : 1;
    // Write into the KV cache, attention.
    Launches launches{.products = 2, .others = rope + 2};
    // Projections to and from two latents, each with a norm, and keys joined from two parts.
    if (a.is_mla()) launches = {.products = 4, .others = rope + 2 + 2 + 1};
    if (a.is_mla() && a.output_gate) launches = {launches.products + 1, launches.others + 1};
    // Queries' and keys' squares, their sum over GPUs, the norm.
    if (a.joint_qk_norm) launches.others += 3;
    // Projections, norm, RoPE and quantisation of two, scores, the choice of the best.
    if (a.has_indexer()) launches.others += 8;
    return with_quantisation(launches, precision_.attention);
  }

  // The delta rule in chunks: cumulated gates, products of keys, their solution, what it weighs,
  // states, outputs; before them convolution, gates and two norms, behind them a norm. Mamba-2's
  // chunks: cumulated steps, states, their passing, products, scan.
  double linear_mixer() const {
    const LinearAttentionSpec& a = model_.linear;
    const double low_ranks = (a.decay_rank > 0 ? 2 : 0) + (a.gate_rank > 0 ? 1 : 0);
    if (a.delta) {
      return with_quantisation({.products = 3 + low_ranks, .others = 6 + 4 + 1},
                               precision_.attention);
    }
    return with_quantisation({.products = 2, .others = 5 + 1 + 1}, precision_.attention);
  }

  double gated_ffn() const {
    return with_quantisation({.products = 2, .others = 1}, precision_.ffn);
  }

  // Router, top-k, sorting by expert in three, activation, weighted sum; shared experts are added.
  double experts() const {
    const double routed = with_quantisation({.products = 2, .others = 7}, precision_.experts);
    return routed + (model_.shared_width > 0 ? gated_ffn() + 1 : 0);
  }

  // All-reduces behind the mixer and the FFN; packing, dispatch, combine and unpacking.
  double exchanges(const LayerSpec& layer) const {
    const double reduces = plan_.tp > 1 ? (layer.ffn ? 2 : 1) : 0;
    return reduces + (layer.moe && plan_.dp > 1 ? 4 : 0);
  }

  const MoeModel& model_;
  const ParallelPlan& plan_;
  const PrecisionPlan& precision_;
  Fusions fusions_;
};

}  // namespace

Fusions fusions_where(const std::function<bool(std::string_view)>& fused) {
  return {fused("norm"), fused("rope"), fused("quantise")};
}

Fusions fusions_of(const GpuSpec& gpu) {
  return fusions_where(
      [&](std::string_view name) { return gpu.tables && gpu.tables->fuses(name); });
}

double kernel_launches(const MoeModel& model, const ParallelPlan& plan,
                       const PrecisionPlan& precision, const Fusions& fusions) {
  const LaunchCount count(model, plan, precision, fusions);
  double launches = 0;
  for (const LayerSpec& layer : model.layers) launches += count.of(layer);
  return launches;
}

}  // namespace moesim
