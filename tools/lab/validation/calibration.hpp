// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "hardware/gpu.hpp"
#include "hardware/kernels/kernel.hpp"
#include "tools/bench/measured_points.hpp"
#include "tools/bench/predict_operation.hpp"

namespace moesim {

/// An unknown of a fit, positive; bounds are inclusive.
struct Unknown {
  double start, min, max;
};

/// The x that minimises sum of huber(residuals(x)) within the unknowns' bounds: Levenberg-Marquardt
/// on log x, iteratively reweighted, so that a few wild points pull no harder than `huber` (in
/// units of a residual). Pure.
std::vector<double> fit_least_squares(
    std::span<const Unknown>,
    const std::function<std::vector<double>(std::span<const double>)>& residuals,
    double huber = 0.1);

/// A number of a file with three significant digits.
double three_digits(double);

/// Weights by which each octave of these values counts alike, at most `most`: tables hold many
/// small calls, and steps are made of large ones.
std::vector<double> octave_weights(std::span<const double> values, double most);

/// Adds a call to the range of calls that constants are calibrated on.
void widen(Calibration&, double bytes, double flops);

/// The constants of one kernel, fitted.
struct FittedConstants {
  const Kernel* of = nullptr;
  int points = 0;
  double median_error = 0, p90_error = 0;
};

/// Fits the constants of every kernel of `gpu` that `points` measured on a GPU of this file name,
/// at least four times. Writes them into `gpu` with the number of points, the median error and the
/// range. Residuals are log(predicted / measured). Kernels without points stay as they are.
std::vector<FittedConstants> calibrate(std::span<const MeasuredPoint> points,
                                       const std::string& gpu_file, const OperationPredictor&,
                                       GpuSpec& gpu, std::string_view source);

/// The constants as a GPU file writes them.
OrderedJson to_json(const KernelConstants&);
OrderedJson to_json(const CollectiveConstants&);

}  // namespace moesim
