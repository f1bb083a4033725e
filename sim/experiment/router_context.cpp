// SPDX-License-Identifier: Apache-2.0
#include "sim/experiment/router_context.hpp"

#include "hardware/kernels/experts.hpp"

namespace moesim {

RouterContext router_context(const Deployment& e) {
  const GpuSpec& gpu = e.cluster.gpu;
  const double tp = e.parallel.tp;
  RouterContext context;
  context.seed = e.seed;
  context.ranks = e.most_instances() * e.parallel.dp;
  context.groups = e.most_instances();
  context.experts = e.model.experts;
  context.block_tokens = e.kv_layout.block_tokens;
  // Two flops for each active weight, at the rate of the grouped GEMM. With loads alike a rank's
  // GPUs do as much for others' tokens as others do for its own.
  const KernelConstants& gemm = gpu.kernel(grouped_gemm_kernel);
  const Flops token(2 * count_parameters(e.model).active);
  const FlopsPerSecond peak = gpu.peak(e.precision.experts, e.precision.activations);
  context.prefill_token_s = (token / (peak * gemm.peak_share_of(e.precision.experts))).count() / tp;
  // A copy of the hidden state to each of k experts and one back, bf16, over one GPU's NVLink.
  const Bytes copies(2.0 * 2 * e.model.expert_input() * e.model.experts_per_token *
                     e.model.moe_layers());
  context.remote_token_s = (copies / gpu.scale_up_bandwidth).count();
  // A rank of the group reads one expert's weights: the mean rank reads its share.
  const Bytes expert = expert_bytes(e.model, e.parallel, e.precision);
  const GpuSpec& holder = e.expert_cluster().gpu;
  const double bandwidth_share =
      holder.kernel(grouped_gemm_kernel).of(e.precision.experts).bandwidth_share;
  context.expert_read_s =
      (expert / (holder.hbm_bandwidth * bandwidth_share)).count() / e.parallel.ep;
  context.kv_token_s =
      (kv_bytes_per_token(e.model, e.parallel, e.precision) / gpu.hbm_bandwidth).count();
  return context;
}

}  // namespace moesim
