// SPDX-License-Identifier: Apache-2.0
#include "hardware/roofline.hpp"

#include <algorithm>
#include <cmath>

#include "hardware/kernels/kernel.hpp"

namespace moesim {

namespace {

/// (x^p + y^p)^(1/p), as the greater times (1 + (smaller/greater)^p)^(1/p).
Seconds overlapped(Seconds x, Seconds y, double p) {
  const auto [less, more] = std::minmax(x, y);
  const double ratio = more > Seconds{} ? less / more : 0;
  if (ratio == 0 || p > 15) return more;
  return more * std::pow(1 + std::pow(ratio, p), 1 / p);
}

// True if four bits are widened because the GPU does not multiply them. Constants of nvfp4 are of
// GPUs that do.
bool widens(Precision weights, const GpuSpec& gpu) {
  return weights == Precision::nvfp4 && !gpu.dense_peak.contains(Precision::nvfp4);
}

}  // namespace

Roofline::Roofline(Operands operands, const Kernel& kernel, const GpuSpec& gpu)
    : l2_(gpu.l2_bandwidth),
      smem_(gpu.smem_bandwidth),
      copies_(gpu.hbm_bandwidth),
      peak_(gpu.peak(operands.weights, operands.activations)) {
  const KernelConstants& of_kernel = gpu.kernel(kernel);
  const bool widened = widens(operands.weights, gpu);
  const Precision weights = widened ? Precision::mxfp4 : operands.weights;
  const PrecisionConstants constants = of_kernel.of(weights);
  launch_ = constants.launch;
  overlap_ = constants.overlap;
  hbm_ = gpu.hbm_bandwidth * constants.bandwidth_share;
  const double share = of_kernel.peak_share_of(weights);
  reached_ = peak_ * (widened ? std::min(share, of_kernel.peak_share_of(Precision::bf16)) : share);
  reach_ = of_kernel.reach(operands.weights);
}

Cost Roofline::cost(const Work& work) const {
  if (work.flops.value() + work.hbm.value() + work.l2.value() + work.smem.value() <= 0) return {};
  const Seconds loads = work.hbm / hbm_;
  const Seconds arithmetic = work.flops / reached_;
  Cost cost{.time = overlapped(loads, arithmetic, overlap_),
            .bound = loads > arithmetic ? Resource::hbm : Resource::tensor_core,
            .work = work,
            .evidence = reach_.evidence(work.hbm.value(), work.flops.value()),
            .peak = work.flops > Flops{} ? peak_ : FlopsPerSecond{}};
  const auto at_least = [&cost](Seconds time, Resource resource) {
    if (time <= cost.time) return;
    cost.time = time;
    cost.bound = resource;
  };
  at_least(work.l2 / l2_, Resource::l2);
  at_least(work.smem / smem_, Resource::smem);
  const Seconds copies = work.copied / copies_;
  if (copies > cost.time) cost.bound = Resource::hbm;
  cost.time += copies;
  if (launch_ > cost.time) cost.bound = Resource::launch;
  cost.time += launch_;
  return cost;
}

Cost drawing(Cost cost, const Kernel& kernel, const GpuPower& power, BytesPerSecond hbm) {
  if (cost.time <= Seconds{}) return cost;
  const double arithmetic =
      cost.peak > FlopsPerSecond{} ? cost.work.flops / cost.peak / cost.time : 0;
  cost.draw = power.draw(kernel.power, cost.work.hbm / hbm / cost.time, arithmetic);
  return cost;
}

Cost drawing(Cost cost, const Kernel& kernel, const GpuSpec& gpu) {
  return gpu.power ? drawing(cost, kernel, *gpu.power, gpu.hbm_bandwidth) : cost;
}

Cost unpriced(const Work& work, Operands operands, const GpuSpec& gpu) {
  const bool multiplies = work.flops > Flops{};
  return {.work = work,
          .peak = multiplies ? gpu.peak(operands.weights, operands.activations) : FlopsPerSecond{}};
}

Cost roofline(const Work& work, Operands operands, const Kernel& kernel, const GpuSpec& gpu) {
  return drawing(Roofline(operands, kernel, gpu).cost(work), kernel, gpu);
}

}  // namespace moesim
