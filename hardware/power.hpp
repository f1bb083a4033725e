// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>

#include "hardware/units.hpp"

namespace moesim {

/// Kernels that draw alike for the same work. A kernel's row (hardware/kernels) names its class.
enum class PowerClass { gemm, experts, attention_decode, attention_prefill, memory, exchanges };
inline constexpr std::array<std::string_view, 6> power_class_names{
    "gemm", "experts", "attention_decode", "attention_prefill", "memory", "exchanges"};

/// Points of a class that were measured, and how far the constants are from them.
struct PowerCalibration {
  int points = 0;
  double median_error = 0;  ///< |predicted / measured - 1| of watts, over the points
  double left_out_error =
      0;  ///< the same of a tenth of the shapes, left out of a fit of the others
};

/// Draw of kernels of one class.
struct PowerConstants {
  Watts floor;            ///< of a kernel that hardly loads the GPU
  double loads = 0;       ///< weight of the share of the HBM's rate; of NVLink's for exchanges
  double arithmetic = 0;  ///< weight of the share of the tensor cores' peak
  double exponent = 1;    ///< below 1: little load draws much
  std::optional<PowerCalibration> calibration{};
};

/// Draw of a GPU. Source of the form: Vidur-Energy (arXiv 2507.11417), which has one class whose
/// load is the MFU; two loads and classes fit measured kernels (hardware/README.md).
struct GpuPower {
  Watts limit;  ///< of the data sheet
  Watts idle;   ///< of a GPU that waits with its clocks up, as engines leave it
  std::array<PowerConstants, power_class_names.size()> classes{};
  std::string source;
  bool by_sibling = false;  ///< constants are another GPU's, scaled by the limits

  const PowerConstants& of(PowerClass kind) const { return classes[at(kind)]; }
  /// Draw of a kernel that uses these shares of the rate of its loads and of the peak:
  ///   floor + (limit - floor) min(1, (loads u_loads + arithmetic u_arithmetic)^exponent)
  /// Shares above 1 count as 1.
  Watts draw(PowerClass, double loads, double arithmetic) const;
};

/// The power of a GPU without measurements: a sibling's. Idle and limit are in proportion; what
/// classes draw above idle is stretched from the one's room above idle to the other's.
GpuPower scaled_to(Watts limit, const GpuPower& sibling);

/// Power that is no GPU's, and what power costs: from an experiment's key "power".
struct SitePower {
  std::optional<Watts> overhead_per_gpu{};  ///< hosts, NICs, switches, fans
  double pue = 1;                           ///< of the building: all power over that of servers
  std::optional<double> dollars_per_kwh{};
};

}  // namespace moesim
