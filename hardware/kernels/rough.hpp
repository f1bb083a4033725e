// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "hardware/kernels/kernel.hpp"

namespace moesim {

/// How tables name a format of weights and activations: bfloat16, fp8, fp8_static, fp8_block,
/// nvfp4, w4a16_mxfp4, w4a8_mxfp4_mxfp8, w4afp8, int4_wo, int8_wo, sq (8-bit integers).
struct Format {
  double weights, activations;  ///< bytes of an element
  Precision multiplied;         ///< whose peak the multiplication can reach
};
/// Format of a name; a name that no table has is fp8.
Format format_of(std::string_view name);

/// The formats that may multiply such weights and activations, the most fitting first; none of
/// int8, which no shipped table has.
std::span<const std::string_view> table_names(Precision weights, Precision activations);
/// Operands of a format; nothing for formats without a roofline (8-bit integers, w4afp8).
std::optional<Operands> operands_of(std::string_view format);
/// The format's name where a row or a points file spells a precision otherwise ("bf16", "fp4").
std::string_view table_name(std::string_view precision);

// Rough times by the data sheet, in microseconds.

inline double log_of(double x) { return std::log2(std::max(x, 1e-3)); }
inline double hbm_us(double bytes, const GpuSpec& gpu) {
  return bytes / gpu.hbm_bandwidth.value() * 1e6;
}
/// Loads pass the L2 as well, and kernels hide only a part of one behind the other. The more HBM a
/// GPU has for its SMs, the smaller the share of it that they use.
inline double loads_us(double bytes, const GpuSpec& gpu) {
  return hbm_us(bytes, gpu) + bytes / gpu.l2_bandwidth.value() * 1e6;
}
inline double flops_us(double flops, Precision multiplied, const GpuSpec& gpu) {
  return flops / gpu.peak(multiplied, multiplied).value() * 1e6;
}
inline double link_us(double bytes, const GpuSpec& gpu) {
  return bytes / gpu.scale_up_bandwidth.value() * 1e6;
}

// What table rows say.

/// Rows of a layer or a product that decode steps have at most.
inline constexpr double most_decode_rows = 512;
/// The tiles of a kernel whose law is a roofline.
inline Tile tile_of(const Kernel& kernel, const GpuSpec& gpu) {
  return {gpu.kernel(kernel).tile_m, gpu.kernel(kernel).tile_n};
}
/// The column "kernel" of a row; "default" where it is empty.
std::string_view kernel_of(const TableRow&);
/// The sample of a row that holds one time, in its column "us".
Sample sample(std::string group, const TableRow&, const Located&);

/// Takes a cost's time from the GPU's tables, for what its HBM and this peak bound otherwise;
/// nothing where no table has the call.
std::optional<Cost> by_tables(const Question&, const Cost&, FlopsPerSecond peak, const Kernel&,
                              const GpuSpec&);

}  // namespace moesim
