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

/// Which of several kernels that were measured side by side an engine runs, by table ("experts",
/// "gemm", "attention_decode", ...): part of the kernel's name there, e.g. {"experts",
/// "min_latency"}. Without one the fastest for the work at hand. {"engines", "any"} takes kernels
/// of all engines that were measured on a GPU for as many side by side: what they run comes from
/// the same few libraries, and an engine does not always run the one it was measured with.
/// {"fused", "norm rope"} names small operations that the engine computes inside its larger ones.
using KernelChoice = std::map<std::string, std::string, std::less<>>;

/// The GPU with its kernels priced by measured tables instead of by rooflines alone. A kernel's
/// time is looked for in turn in the engine's tables on this GPU, the engine's on the GPU's
/// sibling, scaled by the data sheets, another engine's on this GPU, another engine's on the
/// sibling; of each engine in the nearest version that has the shape. A kernel found in none keeps
/// its roofline. An empty version is the newest. A GPU without profiles and sibling comes back as
/// it was. Tables are read when a kernel is first asked for, once in a process, and then throw
/// ConfigError if they are malformed.
GpuSpec with_engine(GpuSpec gpu, const EngineVersion& engine, const KernelChoice& = {});

/// The profiles of a GPU, the nearest first: the engine's by distance of versions, then other
/// engines', the newest first.
std::vector<Profile> by_nearness(std::vector<Profile> profiles, const EngineVersion& engine);

/// What tables say of one call: how long it takes, and whether that was measured, interpolated or
/// carried over from a sibling.
struct TableTime {
  Seconds time{};
  Evidence evidence = Evidence::interpolated;
};

/// What times of tables are multiplied by, by the table's name and evidence; 1 unless said.
using TableFactors = std::map<std::string_view, std::array<double, evidence_names.size()>>;

/// The kernels that one question may be answered by.
class Candidates {
 public:
  bool empty() const { return kernels_.empty(); }
  /// Whether they were measured on the sibling.
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

/// Measured times of kernels as functions of the work: what was measured between other points is
/// interpolated in its share of the data sheet's time, see Scattered. Safe to ask from several
/// threads.
class KernelTables {
 public:
  KernelTables(const GpuSpec&, const EngineVersion&, KernelChoice);

  /// Nothing where no table has such a kernel.
  std::optional<TableTime> time(const Question&) const;

  /// What may answer for a shape, for kernels that make more of it than time() does.
  Candidates candidates(const MeasuredTable&, const std::vector<std::string>& groups,
                        const Coordinates& shape) const;
  /// The evidence of an answer `nearest` away from the nearest measured point.
  static Evidence evidence_of(bool of_sibling, double nearest);
  /// A time of such evidence with the factor of its kernel.
  TableTime scaled_time(const MeasuredTable&, TableTime) const;
  /// Whether any table has a kernel of this group that KernelChoice asks for.
  bool has_wanted(const MeasuredTable&, std::string_view group) const;

  /// What `make` made under this name, for all who ask for it.
  template <class Made, class Make>
  std::shared_ptr<const Made> remembered(const std::string& name, Make&& make) const {
    return std::static_pointer_cast<const Made>(remember(
        name,
        [&]() -> std::shared_ptr<const void> { return std::shared_ptr<const Made>(make()); }));
  }

  /// Whether the engine computes a small operation ("norm", "rope", "quantise") inside its
  /// neighbours.
  bool fuses(std::string_view operation) const;

  /// The median error of such an answer, |predicted / measured - 1|: as errors.csv beside the GPU's
  /// profiles tells it, of what is carried over the one beside the sibling's.
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

/// A cost with the time that tables give, but never less than what the data sheet allows, at full
/// bandwidth and peak, for its loads and its arithmetic.
Cost priced(Cost cost, const TableTime& measured, Seconds loads, Seconds arithmetic);

}  // namespace moesim
