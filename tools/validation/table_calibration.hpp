// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <map>
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
  std::size_t left_out = 0;  ///< impossible rows, and all rows of kinds that are not credible
  /// Rows of one kind (a group of samples), and how many are faster than the data sheet allows.
  struct Kind {
    std::size_t rows = 0, impossible = 0;
    /// A few such rows are a clock above the data sheet's; many are times of something else.
    bool is_credible() const { return impossible * 20 <= rows; }
  };
  std::map<std::string, Kind> kinds;
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
/// Rows that are faster than the GPU's peak, or than its HBM where KV caches do not fit the L2, are
/// left out; where they are more than one in twenty of a kind (a precision, caches beyond the L2),
/// all of that kind, whose times are of something else; where such kinds are most of a table, all
/// of it. impossible.csv beside errors.csv says which.
/// Throws ConfigError if there is no table or one is malformed.
std::vector<CalibratedTable> calibrate_tables(const std::filesystem::path& tables,
                                              const GpuSpec& measured_on,
                                              const std::filesystem::path& profiles,
                                              double tolerance);

}  // namespace moesim
