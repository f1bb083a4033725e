// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <span>
#include <string_view>
#include <vector>

#include "hardware/tables/measured_table.hpp"

namespace moesim {

/// Laws that times of expert layers obey, whatever the kernel. A row that breaks one timed
/// something else than what it says.
enum class TableLaw {
  /// An expert layer that is cut over eight ranks takes less than .9 of the uncut layer's time up
  /// to 64 tokens, and less than .8 of it from 2,048 on. A kernel that breaks it measured all
  /// experts, or all tokens, on one rank: rows of cut layers say nothing.
  cut,
  /// Up to 64 tokens an expert layer of narrow weights takes no longer than 1.25 times the layer in
  /// bf16, which reads twice the bytes or more.
  bytes,
  /// More work takes at least half the time: of two rows of one shape, the one with no less of
  /// anything that steps vary.
  order
};
inline constexpr std::array<std::string_view, 3> table_law_names{"cut", "bytes", "order"};

/// Ranks that the layer of an expert table's row is cut over; 1 in other tables. Throws
/// ConfigError.
double ranks_of_layer(const TableRow&);

/// A row of a table, as the laws see it.
struct LawRow {
  Sample sample;
  double cut = 1;  ///< ranks_of_layer()
};

/// True if the host took still longer to launch a prefill attention block than `limit` us, up to
/// which its launches bound the kernel. The block took over sixteen times what the data sheet
/// allows roughly (others take up to 15.5, DSA on H100). Or it took over six times that, and little
/// more than the limit.
bool is_stalled(const MeasuredTable&, const Sample&, double limit);

/// The rows that break a law, by their index: `broken[law]`, ascending; none of tables of other
/// layers. `rows` are of one table of one profile.
using BrokenLaws = std::array<std::vector<std::size_t>, table_law_names.size()>;
BrokenLaws broken_laws(const MeasuredTable&, std::span<const LawRow> rows);

}  // namespace moesim
