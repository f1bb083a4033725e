// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "hardware/gpu.hpp"
#include "hardware/kernels/tiles.hpp"

namespace moesim {

/// One measured call of a kernel family, as its roofline is asked for it.
struct FamilyCall {
  KernelFamily family = KernelFamily::gemm;
  Operands operands;
  bool prefill = false;  ///< more than 512 rows at once, or prompts
  std::string shape;     ///< the model's: calls of one are left out together
  TiledWork work;
  /// Bytes of a pass over the rows of an expert layer, and over all rows that the GPU holds.
  double copied = 0, held_copied = 0;
  double us = 0;  ///< of the fastest kernel, and no less than the data sheet allows
};

/// The calls in the tables of a GPU that its rooflines price, of each the fastest kernel of any
/// engine. Left out are caches and windows that no roofline knows: multiplied in eight bits, or
/// hidden. Throws ConfigError if a table is malformed.
std::vector<FamilyCall> family_calls(const GpuSpec&);

struct MeasuredGpu {
  GpuSpec gpu;
  std::vector<FamilyCall> calls;
};

/// What the constants of a GPU make of a call, over what was measured.
double ratio_of(const FamilyCall&, const GpuSpec&);

/// How far predictions are from calls of one kind.
struct FamilyErrors {
  KernelFamily family = KernelFamily::gemm;
  Precision precision = Precision::bf16;
  bool prefill = false;
  std::size_t calls = 0;
  double median = 0, p90 = 0;  ///< |predicted / measured - 1|
  double bias = 0;             ///< the median of predicted / measured - 1
};
std::vector<FamilyErrors> family_errors(std::span<const FamilyCall>, const GpuSpec&);

/// The constants of every kernel family that the calls are of: launch, overlap, copies and the
/// shares of bandwidth and peak, each precision for itself. Residuals are log(predicted /
/// measured); each octave of time counts alike. Tiles are the first GPU's.
std::map<KernelFamily, KernelConstants> fit_families(std::span<const MeasuredGpu* const>);

/// Writes fitted constants into a GPU, with how far its calls are from them.
void take_families(const std::map<KernelFamily, KernelConstants>&, MeasuredGpu&,
                   std::string_view source);

/// |predicted / measured - 1| of the calls of shapes that were left out of the fit, a fifth of the
/// shapes at a time.
using FamilyErrorsLeftOut =
    std::map<std::tuple<KernelFamily, Precision, bool>, std::vector<double>>;
FamilyErrorsLeftOut errors_of_shapes_left_out(const MeasuredGpu&);

}  // namespace moesim
