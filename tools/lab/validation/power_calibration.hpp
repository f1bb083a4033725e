// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <filesystem>
#include <string>
#include <vector>

#include "hardware/config.hpp"
#include "hardware/gpu.hpp"

namespace moesim {

/// A kernel whose power was measured: what it asked of the GPU, as shares of the data sheet's
/// rates, and what the GPU drew.
struct PowerPoint {
  PowerClass kind;
  double loads = 0, arithmetic = 0;
  double watts = 0, us = 0;
  std::string shape;  ///< points of one shape are left out together
};

/// Measured kernels of one GPU, and the limit under which it ran.
struct PowerPoints {
  Watts limit{};
  std::vector<PowerPoint> points;
  std::vector<double> watts;  ///< of all rows, also of kernels that no roofline knows
  /// Exchanges of other GPUs, in case the GPU has none: their draw above idle, as a share of the
  /// room between idle and limit.
  std::vector<PowerPoint> exchanges_elsewhere;
};

/// Reads a table of measured power: CSV with columns gpu, engine, version, family, kernel, shape
/// ("m=16 n=4096"), us, watts, limit_watts. Kernels whose work cannot be right, above the data
/// sheet's rates, are left out. `gpu_file` is the GPU's name in hardware/gpus. Throws ConfigError.
PowerPoints read_power_points(const std::filesystem::path& file, const std::string& gpu_file,
                              const GpuSpec&);

/// How far the constants of one class are from the points of a tenth of the shapes, which were left
/// out of the fit.
struct PowerErrors {
  int points = 0, left_out = 0;
  double fitted_median = 0;    ///< of all points, by a fit on all
  double median = 0, p90 = 0;  ///< |predicted / measured - 1|
  double energy = 0;           ///< joules summed over the points, predicted over measured
};

struct FittedPower {
  GpuPower power;
  std::array<PowerErrors, power_class_names.size()> errors{};
  PowerErrors all{};  ///< of this GPU's own points of all classes
};

/// The constants of every class by log(predicted / measured). Idle is what the least hundredth of
/// all rows draw at most. Throws ConfigError where a class has too few points.
FittedPower fit_power(const PowerPoints&);

/// The power as a GPU file writes it.
OrderedJson to_json(const GpuPower&);

}  // namespace moesim
