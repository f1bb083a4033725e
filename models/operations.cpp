// SPDX-License-Identifier: Apache-2.0
#include "models/operations.hpp"

#include <algorithm>

#include "hardware/kernels/gemm.hpp"
#include "hardware/kernels/quantise.hpp"
#include "hardware/tables/kernel_tables.hpp"

namespace moesim {

namespace {

// A product by a table without the quantisation that the table includes: scales that are known
// beforehand let the kernel before write its output as multiplied.
Cost without_quantisation(Cost product, double m, double n, double k, Precision activations,
                          const GpuSpec& gpu) {
  const Seconds bytes = product.work.hbm / gpu.hbm_bandwidth;
  const Seconds multiplications = Flops(2 * m * n * k) / product.peak;
  const Seconds alone = product.time - quantise(m, k, activations, gpu).time;
  product.time = std::max({alone, bytes, multiplications});
  return drawing(product, gemm_kernel, gpu);
}

}  // namespace

bool is_by_table(const Cost& cost, const GpuSpec& gpu) {
  return gpu.tables && cost.evidence != Evidence::calibrated &&
         cost.evidence != Evidence::unmeasured;
}

bool fuses(const GpuSpec& gpu, std::string_view operation) {
  return gpu.tables && gpu.tables->fuses(operation);
}

bool norm_is_in_all_reduce(const ParallelPlan& plan, const GpuSpec& gpu) {
  return plan.tp > 1 && fuses(gpu, "norm");
}

OperationList::OperationList(Part part, const PrecisionPlan& precision, const GpuSpec& gpu,
                             std::vector<Operation>& out)
    : part_(part),
      weights_(part == Part::attention ? precision.attention : precision.ffn),
      activations_(weights_ == Precision::bf16 ? Precision::bf16 : precision.activations),
      kv_cache_(precision.kv_cache),
      gpu_(gpu),
      out_(out) {}

void OperationList::gemm(std::string_view name, double m, double n, double k) {
  if (m <= 0) return;
  const double stored = bytes_per_element(activations_);
  Cost product = moesim::gemm(m, n, k, weights_, activations_, gpu_);
  const bool scales_known = activations_ == Precision::fp8 || activations_ == Precision::nvfp4;
  const bool fused = scales_known && fuses(gpu_, "quantise");
  if (is_by_table(product, gpu_)) {
    if (fused) product = without_quantisation(product, m, n, k, activations_, gpu_);
  } else if (stored < bf16_bytes && !fused) {
    memory("quantise", m * k * (bf16_bytes + stored));
  }
  priced(name, product);
}

void OperationList::bf16_gemm(std::string_view name, double m, double n, double k) {
  if (m > 0) priced(name, moesim::gemm(m, n, k, Precision::bf16, Precision::bf16, gpu_));
}

void OperationList::memory(std::string_view name, double bytes) {
  if (bytes > 0) priced(name, memory_op(Bytes(bytes), gpu_));
}

void OperationList::attention(std::string_view name, AttentionShape shape, AttentionLoad load,
                              double flops, double bytes) {
  shape.kv_cache = kv_cache_;
  load.work = {.flops = Flops(flops), .hbm = Bytes(bytes)};
  priced(name, moesim::attention(shape, load, gpu_));
}

void OperationList::attention(std::string_view name, LatentAttentionShape shape, AttentionLoad load,
                              double flops, double bytes) {
  shape.kv_cache = kv_cache_;
  load.work = {.flops = Flops(flops), .hbm = Bytes(bytes)};
  priced(name, latent_attention(shape, load, gpu_));
}

void OperationList::absorption(std::string_view name, bool keys, double queries,
                               const LatentAttentionShape& shape) {
  if (queries > 0) priced(name, moesim::absorption(keys, queries, shape, gpu_));
}

void OperationList::kernel(std::string_view name, const Kernel& kernel, double flops,
                           double bytes) {
  priced(name, roofline({.flops = Flops(flops), .hbm = Bytes(bytes)}, {}, kernel, gpu_));
}

}  // namespace moesim
