// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <filesystem>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include "hardware/gpu.hpp"
#include "hardware/tables/measured_table.hpp"
#include "tools/lab/validation/table_laws.hpp"

namespace moesim {

/// Outcome of one table, and how well points that were left out are predicted.
struct CalibratedTable {
  std::string profile;  ///< <engine>-<version>
  const MeasuredTable* table = nullptr;
  std::size_t rows = 0, kept = 0;
  /// Rows of one kind (a group of samples), and what is wrong with how many of them.
  struct Kind {
    std::size_t rows = 0;
    std::size_t impossible = 0;  ///< faster than the data sheet allows
    std::size_t host_bound = 0;  ///< as long whatever the size: times of the host's launches
    std::array<std::size_t, table_law_names.size()> unlawful{};  ///< by the law that they break
    /// A few impossible rows are a clock above the data sheet's; many are times of something else.
    bool is_credible() const { return impossible * 20 <= rows; }
    std::size_t left_out() const {
      return std::accumulate(unlawful.begin(), unlawful.end(), impossible + host_bound);
    }
  };
  std::map<std::string, Kind> kinds;
  struct Errors {
    std::size_t points = 0;
    double median = 0, p90 = 0;  ///< |predicted / measured - 1|
  };
  Errors points;        ///< every tenth row, from all others
  Errors models;        ///< where a table names models: rows of each, from the others'
  Errors carried_over;  ///< every tenth row, from the same engine's on the GPU's sibling
};

/// Reads the tables of a folder with one folder for each <engine>-<version>. Writes their rows
/// below `profiles` in the same layout, as series in gzip (see read_table). Expert tables get the
/// loads of their busiest ranks, so that reading them draws nothing. Next to them errors.csv says
/// how well points left out are predicted, see KernelTables::error(). Tables of other names are
/// left alone, and so are profiles that the folder does not have.
///
/// Left out are rows that are faster than the GPU's peak, or than its HBM where KV caches do not
/// fit the L2. A kind (a precision, caches beyond the L2) with more than one such row in twenty is
/// left out whole: its times are of something else. If such kinds are most of a table, all of it
/// is. Left out are rows of a kernel that the host's launches bound. A fiftieth of its rows takes
/// at least eight times what the smallest ones should, and rows of four times the work take as
/// long. Of such kernels prompts that took still longer are left out too (is_stalled()). Left out
/// are rows that break a law (TableLaw). A file left_out.csv counts them. Throws ConfigError if
/// there is no table or one is malformed.
std::vector<CalibratedTable> calibrate_tables(const std::filesystem::path& tables,
                                              const GpuSpec& measured_on,
                                              const std::filesystem::path& profiles);

}  // namespace moesim
