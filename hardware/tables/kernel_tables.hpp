// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "hardware/gpu.hpp"
#include "hardware/roofline.hpp"
#include "hardware/tables/measured_table.hpp"

namespace moesim {

/// Choice of the kernel that an engine runs among several measured ones, by table ("experts",
/// "gemm", "attention_decode", ...). It is part of the kernel's name there, e.g. {"experts",
/// "min_latency"}. Without one the fastest for the work at hand counts. With {"engines", "any"}
/// kernels of all engines that were measured on a GPU count. What they run comes from the same few
/// libraries, and an engine does not always run the one it was measured with. The choice {"fused",
/// "norm rope"} names small operations inside an engine's larger ones.
using KernelChoice = std::map<std::string, std::string, std::less<>>;

/// Returns the GPU with its kernels priced by measured tables instead of by rooflines alone. A
/// kernel's time is looked for in this order: the engine's tables on this GPU, and those on the
/// GPU's sibling, scaled by the data sheets. Then come another engine's on this GPU and on the
/// sibling. Each engine answers in the nearest version that has the shape. A kernel found in none
/// keeps its roofline. An empty version is the newest. A GPU without profiles and sibling comes
/// back as it was. Tables are read when a kernel is first asked for, once in a process, and then
/// throw ConfigError if they are malformed.
GpuSpec with_engine(GpuSpec gpu, const EngineVersion& engine, const KernelChoice& = {});

/// The profiles of a GPU, the nearest first: the engine's by distance of versions, then other
/// engines', the newest first.
std::vector<Profile> by_nearness(std::vector<Profile> profiles, const EngineVersion& engine);

/// Time of one call by tables. Says whether that was measured, interpolated or carried over from a
/// sibling.
struct TableTime {
  Seconds time{};
  Evidence evidence = Evidence::interpolated;
};

/// Factors of times of tables, by the table's name and evidence; 1 unless said.
using TableFactors = std::map<std::string_view, std::array<double, evidence_names.size()>>;

/// The kernels that one question may be answered by.
class Candidates {
 public:
  bool empty() const { return kernels_.empty(); }
  /// True if they were measured on the sibling.
  bool of_sibling() const { return of_sibling_; }
  /// The share of the fastest kernel at a place; there must be a kernel.
  Scattered::Guess at(const Coordinates& place) const;
  /// The coordinates at which any kernel was measured on an axis, ascending.
  std::vector<double> ticks(int axis) const;

 private:
  friend class KernelTables;
  struct Kernel {
    Scattered shares;
    double apart;  // from the shape, on its axes
    /// How the shares differ in a version of which only a few were measured; null: not at all.
    std::shared_ptr<const Scattered> change;
    Scattered::Guess at(const Coordinates& place) const;
  };
  std::vector<Kernel> kernels_;
  bool of_sibling_ = false;
};

/// Measured times of kernels as functions of the work. What was measured between other points is
/// interpolated in its share of the data sheet's time, see Scattered. Safe to ask from several
/// threads.
class KernelTables {
 public:
  KernelTables(const GpuSpec&, const EngineVersion&, KernelChoice);

  /// Nothing where no table has such a kernel.
  std::optional<TableTime> time(const Question&) const;

  /// Candidates that may answer for a shape, for kernels that make more of it than time() does.
  Candidates candidates(const MeasuredTable&, const std::vector<std::string>& groups,
                        const Coordinates& shape) const;
  /// The evidence of an answer `nearest` away from the nearest measured point.
  static Evidence evidence_of(bool of_sibling, double nearest);
  /// A time of such evidence with the factor of its kernel.
  TableTime scaled_time(const MeasuredTable&, TableTime) const;
  /// True if any table has a kernel of this group that KernelChoice asks for.
  bool has_wanted(const MeasuredTable&, std::string_view group) const;

  /// Returns what `make` made under this name, for all who ask for it.
  template <class Made, class Make>
  std::shared_ptr<const Made> remembered(const std::string& name, Make&& make) const {
    return std::static_pointer_cast<const Made>(remember(
        name,
        [&]() -> std::shared_ptr<const void> { return std::shared_ptr<const Made>(make()); }));
  }

  /// True if the engine computes a small operation ("norm", "rope", "quantise") inside its
  /// neighbours.
  bool fuses(std::string_view operation) const;

  /// The rate that the engine's GEMMs in blocks of fp8 reach for prompts, where its kernel is not
  /// the one in the tables; 0: as tables say.
  FlopsPerSecond prompt_gemms() const;
  /// The same of attention of prompts, which models with sinks need a kernel of their own for.
  FlopsPerSecond prompt_attention() const;

  /// Median error of such an answer, |predicted / measured - 1|, by errors.csv next to the GPU's
  /// profiles. For what is carried over it is by the file next to the sibling's.
  double error(const MeasuredTable&, Evidence) const;

  /// The GPU that is priced, without tables.
  const GpuSpec& gpu() const;

 private:
  struct State;
  friend std::shared_ptr<const KernelTables> scaled(const KernelTables&, const TableFactors&);
  std::shared_ptr<const void> remember(
      const std::string& name, const std::function<std::shared_ptr<const void>()>& make) const;

  std::shared_ptr<const State> state_;
  TableFactors factors_;
};

/// These tables with their times multiplied, e.g. by what they may be wrong by. What was read is
/// shared.
std::shared_ptr<const KernelTables> scaled(const KernelTables&, const TableFactors&);

/// Cost with the time that tables give. It is never less than what the data sheet allows, at full
/// bandwidth and peak, for its loads and its arithmetic.
Cost priced(Cost cost, const TableTime& measured, Seconds loads, Seconds arithmetic);

}  // namespace moesim
