// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "hardware/config.hpp"
#include "hardware/find_value.hpp"
#include "tools/cli/table.hpp"

namespace moesim {

/// An axis of a sweep: where it is in the config, and its name in tables.
struct Axis {
  std::string pointer;
  std::string name;  ///< the shortest end of the pointer that no other axis has: "replication"
};

/// Names for pointers: the last key of each, with the keys before it where that is not unique or
/// says nothing ("type").
std::vector<Axis> named_axes(const std::vector<std::string>& pointers);

/// Everything that a sweep file sets, sorted by pointer. Throws ConfigError, without a file, if
/// that is not written as in a sweep file.
std::vector<Axis> axes_of(const Json& sweep);

/// True if two config values mean the same: equal, or a policy written as "metro" in one and as
/// {"type": "metro"} in the other.
bool same_setting(const Json& a, const Json& b);

/// A config value in a few letters, for table cells: texts bare, files without folder and ending,
/// objects as their values with the type first ({"type": "eplb", "replication": 1.5} is "eplb
/// 1.5"), flags by name ("disjoint", "disjoint=false"), pools by theirs ("prefill dp2, decode
/// dp4").
std::string setting_text(const Json& value);

/// Texts that tell the values of one setting apart: setting_text() without what all objects among
/// them share, e.g. "pools: decode dp8 ep4" beside "no pools". No two are equal.
std::map<Json, std::string> texts_apart(const std::set<Json>& values, std::string_view name);

/// A table without the numbers that no row has, of at most 100 columns, or as wide as a wider
/// output is. To fit, the first `settings` columns are made narrower. Nothing is cut: headings take
/// two lines. Words that all cells begin with, columns with one value and columns that follow from
/// another are written out below. Then values are numbered, those of the widest column first, and
/// written out below. Blocks (Table) hold what is still too wide.
std::string narrow_table(std::vector<std::string> head, std::vector<std::vector<std::string>> rows,
                         std::size_t settings);

/// setting_text() as a cell of a table: "-" where nothing is set, or null.
inline std::string setting_cell(const Json* value) {
  return value == nullptr ? "-" : setting_text(*value);
}
inline std::string setting_cell(const Json& value) {
  return value.is_null() ? "-" : setting_text(value);
}

/// The axes on which some configs differ.
template <class Configs, class ConfigOf = std::identity>
std::vector<Axis> varied(std::vector<Axis> axes, const Configs& configs, ConfigOf config_of = {}) {
  std::erase_if(axes, [&](const Axis& axis) {
    std::set<std::string> values;
    for (const auto& config : configs) {
      const Json* value = find_value(std::invoke(config_of, config), axis.pointer);
      values.insert(value == nullptr ? "" : value->dump());
    }
    return values.size() < 2;
  });
  return axes;
}

}  // namespace moesim
