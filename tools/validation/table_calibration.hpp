// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "hardware/gpu.hpp"
#include "hardware/tables/calls.hpp"

namespace moesim {

/// What became of one table, and how well points that were left out are predicted.
struct CalibratedTable {
  std::string profile;  ///< <engine>-<version>
  TableFamily family{};
  std::size_t rows = 0, kept = 0;
  std::size_t impossible = 0;  ///< rows faster than the data sheet's peak, which are left out
  struct Errors {
    std::size_t points = 0;
    double median = 0, p90 = 0;  ///< |predicted / measured - 1|
  };
  Errors points;   ///< every tenth row, from all others
  Errors thinned;  ///< the same rows, from what thinning keeps of the others
  Errors models;   ///< experts: each model's rows, from the other models'
};

/// Reads the tables of a folder with one folder for each <engine>-<version>, leaves out rows that
/// the others predict within `tolerance` (|predicted / measured - 1|), and writes what is kept
/// below `profiles` in the same layout, as series (see read_table), with the loads of expert
/// tables' busiest ranks, so that reading them draws nothing; errors.csv beside them says how well
/// points left out are predicted, see KernelTables::error(). Files of other names are left alone.
/// Rows whose arithmetic would be faster than the GPU's peak are left out, and where they are more
/// than one in twenty the whole table (its times are of something else): nothing of it is kept.
/// Throws ConfigError if there is no table or one is malformed.
std::vector<CalibratedTable> calibrate_tables(const std::filesystem::path& tables,
                                              const GpuSpec& measured_on,
                                              const std::filesystem::path& profiles,
                                              double tolerance);

}  // namespace moesim
