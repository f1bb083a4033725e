// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "hardware/gpu.hpp"
#include "hardware/tables/scattered.hpp"
#include "hardware/tables/table_file.hpp"

namespace moesim {

/// Place of a call of a kernel among measured calls (mostly logarithms to base two), and a rough
/// time of the call by the data sheet. Interpolated is log(time / rough): the data sheet alone
/// makes that vary slowly. No call takes less than `least_us`. That is its arithmetic at the data
/// sheet's peak, and for attention KV caches that cannot be in the L2 at full bandwidth.
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

/// A coordinate of a call.
struct TableAxis {
  enum Varies {
    with_load,  ///< from step to step; at most three axes of a table
    by_shape,   ///< with the model and its layout
    derived     ///< with other axes
  };
  std::string_view name{};  ///< empty: the table has no such axis
  Varies varies = with_load;
};

/// A column as profiles keep it, where a profile does not keep the source's own.
struct KeptColumn {
  enum Place { of_line, of_point, left_out };
  std::string_view name;
  Place place;
  std::string value{};
};

/// A file of measured calls, <name>.csv or <name>.csv.gz in a profile.
struct MeasuredTable {
  std::string_view name;
  std::array<TableAxis, std::tuple_size_v<Coordinates>> axes;
  std::string_view along;  ///< the column along which a file's lines are series
  /// The samples of one row (DeepEP's rows hold two), measured with this engine on this GPU.
  /// Throws ConfigError if the row lacks a column.
  std::vector<Sample> (*samples)(const TableRow&, const GpuSpec& measured_on, const EngineVersion&);
  /// Part of the names of kernels that compute another layer: they answer for shapes of their own.
  std::string_view other_layer{};
  /// Columns that tell models apart; none: errors of models left out are not measured.
  std::array<std::string_view, 4> model{};
  /// Columns that a profile keeps of a row instead of the source's; null: all columns as they are.
  std::vector<KeptColumn> (*kept)(const TableRow&, const Sample&) = nullptr;

  /// Indices of the axes, ascending.
  std::vector<int> axes_that_vary(TableAxis::Varies) const;
  int axis_count() const;
  bool is_other_layer(std::string_view kernel) const {
    return !other_layer.empty() && kernel.find(other_layer) != kernel.npos;
  }
};

/// Groups of a table that may answer a call.
struct GroupNames {
  std::vector<std::string> names;  ///< the most fitting first
  /// Group whose shares another engine's kernels answer by. It is set where the asked engine was
  /// measured in some of `names`, but not in the foremost; empty: theirs of that group.
  std::string stand_in{};
};

/// The names of one call; or names that last, so that a kernel that every step asks for makes none.
class Groups {
 public:
  Groups(std::initializer_list<std::string> names) : Groups(GroupNames{names}) {}
  Groups(GroupNames own)
      : own_(std::make_unique<const GroupNames>(std::move(own))), names_(own_.get()) {}
  explicit Groups(const GroupNames* lasting) : names_(lasting) {}
  const GroupNames* operator->() const { return names_; }

 private:
  std::unique_ptr<const GroupNames> own_;
  const GroupNames* names_;
};

/// A call, as tables are asked for its time.
struct Question {
  const MeasuredTable& table;
  Groups groups;
  Located place;
};

/// The samples of a row. Throws ConfigError if the row lacks a column or is no kernel's.
std::vector<Sample> samples_of(const MeasuredTable&, const TableRow&, const GpuSpec& measured_on,
                               const EngineVersion&);

}  // namespace moesim
