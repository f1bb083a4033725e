// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "hardware/kernels/tiles.hpp"
#include "hardware/tables/measured_table.hpp"

namespace moesim {

class Fabric;
struct CollectiveCost;

/// The formula that prices a kernel without tables. It says which constants a GPU file gives.
enum class Law {
  none,      ///< no formula: tables alone know the kernel
  roofline,  ///< KernelConstants, under "kernels"
  links      ///< CollectiveConstants, under "collectives"
};

/// A measured call, as a roofline is asked for it. Calibration fits constants on such calls.
struct RooflineCall {
  Operands operands;
  bool prefill = false;  ///< more than 512 rows at once, or prompts
  std::string shape;     ///< the model's: calls of one are left out together
  TiledWork work;
  /// Bytes of a pass over the rows of an expert layer, and over all rows that the GPU holds.
  double copied = 0, held_copied = 0;
};

/// Which measured points (MeasuredPoint) time a kernel: those of the category whose operation
/// contains the word. A row without a word takes what no other row of the category takes.
struct PointWords {
  std::string_view category{}, word{};
};

/// A kernel: a file in hardware/kernels and a row in kernels(). A kernel's file declares its call
/// (a struct of arguments), the price of the call, and `ask`: the call as a question to its table.
struct Kernel {
  std::string_view name;     ///< also the key of its constants in GPU files
  std::string_view summary;  ///< the operation and its arguments, in one line
  Law law = Law::none;
  const Kernel* constants_of = nullptr;  ///< whose constants price it; null: its own
  const MeasuredTable* table = nullptr;  ///< several kernels may share one; null: no table
  PointWords points{};
  PowerClass power = PowerClass::memory;  ///< what it draws is fitted together with kernels alike
  /// Law::roofline: the call that a row of the table measured; nothing where the roofline does not
  /// know such a call. Null: the constants are not fitted on the table. Throws ConfigError.
  std::optional<RooflineCall> (*roofline_call)(const TableRow&, const GpuSpec&,
                                               const EngineVersion&) = nullptr;
  /// Law::links: the kernel between the first `gpus` GPUs; bytes as nccl-tests counts them.
  CollectiveCost (*collective)(const Fabric&, int gpus, Bytes) = nullptr;

  /// The kernel whose constants price this one.
  const Kernel& constants() const { return constants_of == nullptr ? *this : *constants_of; }
  /// True if GPU files may give constants of this law under the kernel's name.
  bool has_own(Law of) const { return law == of && constants_of == nullptr; }
};

/// The rows: every kernel there is.
std::span<const Kernel* const> kernels();
/// Their tables, each once, in the order of the rows.
std::span<const MeasuredTable* const> measured_tables();
/// The kernel that measured points of this category and operation time; null: none.
const Kernel* kernel_timed_by(std::string_view category, std::string_view operation);

}  // namespace moesim
