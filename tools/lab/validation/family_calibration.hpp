// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <span>
#include <string_view>
#include <tuple>
#include <vector>

#include "hardware/kernels/kernel.hpp"

namespace moesim {

/// A measured call of a kernel, with the kernel whose constants price the call.
struct FamilyCall : RooflineCall {
  const Kernel* kernel = nullptr;
  double us = 0;  ///< of the fastest kernel, and no less than the data sheet allows
};

/// The calls in the tables of a GPU that its rooflines price, of each the fastest kernel of any
/// engine. Left out are calls that no roofline knows, see Kernel::roofline_call. Throws ConfigError
/// if a table is malformed.
std::vector<FamilyCall> family_calls(const GpuSpec&);

struct MeasuredGpu {
  GpuSpec gpu;
  std::vector<FamilyCall> calls;
};

/// Time of a call by the constants of a GPU, over what was measured.
double ratio_of(const FamilyCall&, const GpuSpec&);

/// Calls of one kind: the name of the kernel, the weights, and whether they are of prefill.
using CallKind = std::tuple<std::string_view, Precision, bool>;
/// predicted / measured - 1 of calls, by kind.
using ErrorsByKind = std::map<CallKind, std::vector<double>>;
ErrorsByKind errors_by_kind(std::span<const FamilyCall>, const GpuSpec&);

/// Sum of errors.
struct ErrorSum {
  std::size_t calls = 0;
  double median = 0, p90 = 0;  ///< of |error|
  double bias = 0;             ///< the median with its sign
};
/// There is at least one error.
ErrorSum sum_of(std::vector<double> errors);

using FittedKernels = std::map<const Kernel*, KernelConstants>;

/// The constants of every kernel that the calls are of: launch, overlap, copies and the shares of
/// bandwidth and peak, each precision for itself. Residuals are log(predicted / measured); each
/// octave of time counts alike. Tiles are the first GPU's.
FittedKernels fit_families(std::span<const MeasuredGpu* const>);

/// Writes fitted constants into a GPU, with how far its calls are from them.
void take_families(const FittedKernels&, MeasuredGpu&, std::string_view source);

/// The errors of a GPU's calls by constants that were fitted elsewhere. Left out are calls of
/// precisions that the fit did not find.
ErrorsByKind errors_by_fit(const FittedKernels&, std::span<const FamilyCall>, GpuSpec);

/// The errors of the calls of shapes that were left out of the fit, a fifth of the shapes at a
/// time.
ErrorsByKind errors_of_shapes_left_out(const MeasuredGpu&);

}  // namespace moesim
