// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "hardware/config.hpp"
#include "sim/report/report.hpp"

namespace moesim {

/// Level of a key of an experiment: what a first config sets, what most users set, all others.
enum class KeyLevel { basic, usual, expert };

/// A key under its JSON pointer, or a group of keys that another pointer has in the same form.
struct KeyRow {
  std::string pointer;       ///< "/parallel/tp"; of a repeated group "/ffn_cluster/..."
  const Key* key = nullptr;  ///< null for a repeated group
  std::string as{};          ///< where the group's keys are listed: "/cluster"
  KeyLevel level = KeyLevel::expert;
};

/// Names under which a pointer shows a key: "*" is NAME or POLICY, "/*" a JSON pointer.
std::string shown_name(const Key&);

/// Rows of all keys of an experiment: basic ones in the order of a first config, then the others
/// in the order of their table.
std::vector<KeyRow> experiment_rows();

/// Rows of a table and of the tables below it, each table once.
std::vector<KeyRow> rows_of(std::span<const Key>, const std::string& above);

/// Rows of a report. Groups that repeat another group with the same units and meanings are one row,
/// whose pointer ends in "/..." and whose meaning is "as /GROUP/...".
std::vector<ReportKey> folded(const std::vector<ReportKey>&);

}  // namespace moesim
