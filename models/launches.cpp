// SPDX-License-Identifier: Apache-2.0
#include "models/launches.hpp"

#include "hardware/tables/kernel_tables.hpp"

namespace moesim {

namespace {

// Kernels of a layer in a model that is served in one way.
class LaunchCount {
 public:
  LaunchCount(const MoeModel& model, const ParallelPlan& plan, const PrecisionPlan& precision,
              const Fusions& fusions)
      : model_(model), plan_(plan), precision_(precision), fusions_(fusions) {}

  double of(const LayerSpec& layer) const {
    const bool dense = layer.has_dense_ffn() || (layer.moe && model_.dense_residual);
    return norms(layer) +
           with_quantisation(layer.mixer->launches(!fusions_.rope), precision_.attention) +
           (layer.moe ? experts() : 0) + (dense ? gated_ffn() : 0) + exchanges(layer);
  }

 private:
  double norms(const LayerSpec& layer) const {
    if (fusions_.norm && plan_.slices() > 1) return 0;
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

  double gated_ffn() const {
    return with_quantisation({.products = 2, .others = 1}, precision_.ffn);
  }

  // Router, top-k, sorting by expert in three, activation, weighted sum; shared experts are added.
  double experts() const {
    const double routed = with_quantisation({.products = 2, .others = 7}, precision_.experts);
    return routed + (model_.shared_width > 0 ? gated_ffn() + 1 : 0);
  }

  // All-reduces behind the mixer and the FFN; packing, dispatch, combine and unpacking; what DCP
  // exchanges.
  double exchanges(const LayerSpec& layer) const {
    const double reduces = plan_.slices() > 1 ? (layer.ffn ? 2 : 1) : 0;
    const double gathers = plan_.pcp > 1 ? 1 : 0;
    return reduces + gathers + (layer.moe && plan_.exchanges() ? 4 : 0) + merges(layer);
  }

  // Queries, log-sum-exps and outputs, or the latter two together; and the kernel that weighs.
  double merges(const LayerSpec& layer) const {
    if (plan_.dcp == 1 || layer.mixer->cache_heads(plan_.tp).kv_heads == 0) return 0;
    return plan_.dcp_merge == DcpMerge::reduce_scatter ? 4 : 3;
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
