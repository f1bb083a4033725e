// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "hardware/gpu.hpp"
#include "hardware/tables/scattered.hpp"
#include "hardware/tables/table_file.hpp"

namespace moesim {

/// Where a call of a kernel stands among measured calls (mostly logarithms to base two), and a
/// rough time of the call by the data sheet. What is interpolated is log(time / rough): the data
/// sheet alone makes that vary slowly. No call takes less than `least_us`: its arithmetic at the
/// data sheet's peak and, of attention, the KV caches that cannot be in the L2 at full bandwidth.
struct Located {
  Coordinates at{};
  double rough_us = 0, least_us = 0;
  /// The call has dimensions that no row has, e.g. heads of another width: the rough time carries
  /// a row's time over to the call.
  bool other_dimensions = false;
};

/// A measured call. Samples of one group are of one kind (precision, KV cache, ...), and those of
/// one kernel in a group make one map.
struct Sample {
  std::string group, kernel;
  Located place;
  double us = 0;
  double value() const;  ///< log(us / rough)
};

/// What tables know of a kernel: a row of measured_kernels() (hardware/kernels/rows.hpp).
struct MeasuredKernel {
  std::string_view name;   ///< and of the files that hold its rows, <name>.csv.gz
  int axes;                ///< coordinates of a call, at most eight
  std::vector<int> shape;  ///< axes that a model and a layout fix ...
  std::vector<int> load;   ///< ... and those that vary from step to step, at most three
  std::string_view along;  ///< the column along which a file's lines are series
  /// The samples of one row (DeepEP's rows hold two), measured with this engine on this GPU.
  /// Throws ConfigError if the row lacks a column.
  std::vector<Sample> (*samples)(const TableRow&, const GpuSpec& measured_on, const EngineVersion&);
};

/// A call, as tables are asked for its time.
struct Question {
  const MeasuredKernel& kernel;
  std::vector<std::string> groups;  ///< that may answer, the most fitting first
  Located place;
};

/// The samples of a row. Throws ConfigError if the row lacks a column or is no kernel's.
std::vector<Sample> samples_of(const MeasuredKernel&, const TableRow&, const GpuSpec& measured_on,
                               const EngineVersion&);

}  // namespace moesim
