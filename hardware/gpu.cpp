// SPDX-License-Identifier: Apache-2.0
#include "hardware/gpu.hpp"

#include <algorithm>

#include "hardware/kernels/kernel.hpp"

namespace moesim {

namespace {

/// Bits that a multiplication must carry for values stored like this.
int bits(Precision precision) {
  switch (precision) {
    case Precision::bf16: return 16;
    case Precision::fp8:
    case Precision::fp8_block:
    case Precision::int8: return 8;
    case Precision::mxfp4:
    case Precision::nvfp4:
    case Precision::int4:
    case Precision::int4_g32:
    case Precision::int4_g64: return 4;
  }
  return 16;
}

}  // namespace

double bytes_per_element(Precision precision) {
  switch (precision) {
    case Precision::bf16: return 2;
    case Precision::fp8:
    case Precision::int8: return 1;
    case Precision::fp8_block: return 1 + 4.0 / (128 * 128);
    case Precision::mxfp4: return 0.5 + 1.0 / 32;
    case Precision::nvfp4: return 0.5 + 1.0 / 16;
    case Precision::int4: return 0.5 + 2.0 / 128;
    case Precision::int4_g32: return 0.5 + 2.0 / 32;
    case Precision::int4_g64: return 0.5 + 2.0 / 64;
  }
  return 2;
}

FlopsPerSecond GpuSpec::peak(Precision weights, Precision activations) const {
  // The wider operand decides; what the GPU cannot multiply is widened once more.
  const int needed = std::max(bits(weights), bits(activations));
  if (needed <= 4) {
    if (const auto found = dense_peak.find(Precision::nvfp4); found != dense_peak.end())
      return found->second;
  }
  if (needed <= 8) {
    if (const auto found = dense_peak.find(Precision::fp8); found != dense_peak.end())
      return found->second;
  }
  return dense_peak.at(Precision::bf16);
}

namespace {

// The precision whose kernels are most alike; of bf16 and four bits there is none.
Precision nearest(Precision weights) {
  switch (weights) {
    case Precision::fp8: return Precision::fp8_block;
    case Precision::fp8_block: return Precision::fp8;
    case Precision::int4: return Precision::int4_g32;
    case Precision::int4_g32:
    case Precision::int4_g64: return Precision::int4;
    default: return weights;
  }
}

}  // namespace

double KernelConstants::peak_share_of(Precision weights) const {
  for (const Precision precision : {weights, nearest(weights), Precision::bf16})
    if (const auto found = peak_share.find(precision); found != peak_share.end())
      return found->second;
  return peak_share.begin()->second;
}

PrecisionConstants KernelConstants::of(Precision weights) const {
  for (const Precision precision : {weights, nearest(weights)})
    if (const auto found = by_precision.find(precision); found != by_precision.end())
      return found->second;
  return {launch, bandwidth_share, overlap, copies, held_copies};
}

Reach KernelConstants::reach(Precision weights) const {
  if (!calibration) return {};
  const std::vector<Precision>& known = calibration->precisions;
  if (std::find(known.begin(), known.end(), weights) == known.end())
    return {.beyond = Evidence::extrapolated};
  return {calibration->bytes.max, calibration->flops.max, Evidence::extrapolated};
}

Evidence CollectiveConstants::evidence_for(double bytes) const {
  if (!calibration) return Evidence::unmeasured;
  return bytes <= calibration->bytes.max ? Evidence::calibrated : Evidence::extrapolated;
}

namespace {

template <class Constants>
const Constants& constants_of(const std::map<const Kernel*, Constants>& all, const Kernel& kernel) {
  const auto found = all.find(&kernel.constants());
  if (found != all.end()) return found->second;
  throw ConfigError("\"{}\" has no constants; hardware/families.json needs an entry of that name",
                    kernel.constants().name);
}

}  // namespace

const KernelConstants& GpuSpec::kernel(const Kernel& kernel) const {
  return constants_of(kernels, kernel);
}

const CollectiveConstants& GpuSpec::collective(const Kernel& kernel) const {
  return constants_of(collectives, kernel);
}

}  // namespace moesim
