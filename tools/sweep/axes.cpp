// SPDX-License-Identifier: Apache-2.0
#include "tools/sweep/axes.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include <fmt/format.h>

#include "tools/cli/output.hpp"
#include "tools/cli/table.hpp"

namespace moesim {

namespace {

constexpr std::size_t usual_columns = 100;
constexpr std::size_t column_gap = 2;
constexpr std::size_t shortest_cell = 6;

// The last `keys` keys of a pointer: "/token_routing/decode", 1 -> "decode".
std::string_view pointer_end(std::string_view pointer, int keys) {
  std::size_t start = pointer.size();
  for (; keys > 0 && start != 0; --keys) start = pointer.rfind('/', start - 1);
  return pointer.substr(std::min(start + 1, pointer.size()));
}

bool is_unique(std::string_view end, int keys, const std::vector<std::string>& pointers) {
  return std::count_if(pointers.begin(), pointers.end(), [&](const std::string& other) {
           return pointer_end(other, keys) == end;
         }) == 1;
}

std::string unique_end(const std::string& pointer, const std::vector<std::string>& pointers) {
  const auto keys = static_cast<int>(std::count(pointer.begin(), pointer.end(), '/'));
  for (int n = 1; n < keys; ++n) {
    const std::string_view end = pointer_end(pointer, n);
    if (end != "type" && is_unique(end, n, pointers)) return std::string(end);
  }
  return pointer.substr(1);
}

std::string cut(const std::string& cell, std::size_t width) {
  if (cell.size() <= width) return cell;
  std::size_t end = width - 1;
  // Not within a UTF-8 character.
  while (end > 0 && (static_cast<unsigned char>(cell[end]) & 0xC0) == 0x80) --end;
  return cell.substr(0, end) + "~";
}

}  // namespace

std::vector<Axis> named_axes(const std::vector<std::string>& pointers) {
  std::vector<Axis> axes;
  for (const std::string& pointer : pointers)
    axes.push_back({pointer, unique_end(pointer, pointers)});
  return axes;
}

std::vector<Axis> axes_of(const Json& sweep) {
  std::set<std::string> pointers;
  const auto collect = [&](const Json& block) {
    for (const char* key : {"axes", "zip", "set"}) {
      if (!block.contains(key)) continue;
      const Json& values = block.at(key);
      for (const auto& item : values.items()) {
        if (!values.is_object() || !item.key().starts_with('/'))
          throw ConfigError(
              fmt::format("has a sweep whose \"{}\" is not {{\"/pointer\": setting}}", key));
        pointers.insert(item.key());
      }
    }
  };
  collect(sweep);
  if (sweep.contains("blocks")) {
    for (const Json& block : sweep.at("blocks")) collect(block);
  }
  if (sweep.contains("couple")) {
    for (const Json& by_value : sweep.at("couple")) {
      for (const Json& settings : by_value) {
        for (const auto& item : settings.items()) pointers.insert(item.key());
      }
    }
  }
  if (sweep.contains("seeds")) pointers.insert("/seed");
  return named_axes({pointers.begin(), pointers.end()});
}

bool same_setting(const Json& a, const Json& b) {
  if (a == b) return true;
  if (a.is_string() && b.is_object()) return b == Json{{"type", a}};
  return b.is_string() && a.is_object() && a == Json{{"type", b}};
}

std::string setting_text(const Json& value) {
  if (value.is_string()) {
    const auto text = value.get<std::string>();
    return text.ends_with(".json") ? std::filesystem::path(text).stem().string() : text;
  }
  if (!value.is_structured()) return value.dump();
  // The values tell a policy well enough (metro fewest_replicas), a plan needs names (dp8 ep8
  // tp1).
  const bool policy = value.contains("type") || value.is_array();
  std::string text;
  const auto append = [&](const std::string& name, const Json& member) {
    std::string member_text = setting_text(member);
    if (member.is_boolean() && !value.is_array())
      member_text = member.get<bool>() ? name : name + "=false";
    if (!text.empty() && !member_text.empty()) text += ' ';
    text += policy || !member.is_number() ? member_text : name + member_text;
  };
  if (value.contains("type")) append("type", value.at("type"));
  for (const auto& item : value.items()) {
    if (item.key() != "type") append(item.key(), item.value());
  }
  return text;
}

namespace {

// Strips from the cells of a column the words that all begin with, unless all are alike;
// returns these words.
std::string take_common_words(std::vector<std::vector<std::string>>& rows, std::size_t column) {
  if (rows.size() < 2) return "";
  std::string common = rows.front()[column];
  for (const auto& row : rows) {
    const auto differs = std::ranges::mismatch(common, row[column]).in1;
    common.erase(differs, common.end());
  }
  common.erase(common.rfind(' ') == std::string::npos ? 0 : common.rfind(' ') + 1);
  const bool all_alike =
      std::ranges::all_of(rows, [&](const auto& row) { return row[column] == rows[0][column]; });
  if (common.empty() || all_alike) return "";
  for (auto& row : rows) row[column].erase(0, common.size());
  common.pop_back();
  return common;
}

// Numbers the different cells of a column where they would look alike once cut; returns which
// number is which cell, in lines below the table.
std::string number_alike_cells(std::vector<std::vector<std::string>>& rows, std::size_t column,
                               const std::string& head, std::size_t width) {
  std::vector<std::string> cells;
  std::set<std::string> looks;
  for (const auto& row : rows) {
    looks.insert(cut(row[column], width));
    if (std::ranges::find(cells, row[column]) == cells.end()) cells.push_back(row[column]);
  }
  if (looks.size() == cells.size()) return "";
  for (auto& row : rows) {
    const auto cell = std::ranges::find(cells, row[column]);
    row[column] = fmt::format("#{}", cell - cells.begin() + 1);
  }
  std::string text;
  for (std::size_t i = 0; i < cells.size(); ++i)
    text += wrapped(fmt::format("{} #{}: {}", head, i + 1, cells[i]), usual_columns, 4) + "\n";
  return text;
}

// A heading in two lines as even as its words allow: "concurrency" above "_per_rank".
std::vector<std::string> in_two_lines(const std::string& head) {
  std::size_t longer = head.size(), end = head.size();
  for (std::size_t i = head.find_first_of("_/ ", 1); i < head.size();
       i = head.find_first_of("_/ ", i + 1)) {
    if (std::max(i, head.size() - i) < longer) {
      longer = std::max(i, head.size() - i);
      end = i;
    }
  }
  if (end == head.size()) return {head};
  return {head.substr(0, end), head.substr(end)};
}

}  // namespace

std::string narrow_table(std::vector<std::string> head, std::vector<std::vector<std::string>> rows,
                         std::size_t settings) {
  // A narrower output has its columns in blocks (Table) rather than cells cut shorter still.
  const std::size_t columns = std::max(usual_columns, output_columns().value_or(usual_columns));
  std::vector<std::vector<std::string>> lines;  // of the head's cells
  for (const std::string& cell : head) lines.push_back({cell});
  std::vector<std::size_t> widths(head.size());
  const auto measure = [&](std::size_t c) {
    widths[c] = 0;
    for (const std::string& line : lines[c]) widths[c] = std::max(widths[c], line.size());
    for (const auto& row : rows) widths[c] = std::max(widths[c], row[c].size());
  };
  for (std::size_t c = 0; c < head.size(); ++c) measure(c);
  const auto total = [&] {
    return std::accumulate(widths.begin(), widths.end(), column_gap * (widths.size() - 1));
  };
  std::string left_out, common;
  for (std::size_t c = 0; c < settings && total() > columns; ++c) {
    const std::size_t before = widths[c];
    lines[c] = in_two_lines(head[c]);
    measure(c);
    if (widths[c] == before) lines[c] = {head[c]};
  }
  for (std::size_t c = 0; c < settings && total() > columns; ++c) {
    const std::string words = take_common_words(rows, c);
    if (words.empty()) continue;
    common += fmt::format("{}{}: {} ..", common.empty() ? "" : ", ", head[c], words);
    measure(c);
  }
  while (settings > 0 && total() > columns) {
    const auto end = widths.begin() + static_cast<std::ptrdiff_t>(settings);
    const auto widest = std::max_element(widths.begin(), end);
    if (*widest > shortest_cell) {
      --*widest;
      continue;
    }
    --settings;
    left_out += (left_out.empty() ? "" : ", ") + head[settings];
    const auto drop = [&](auto& cells) {
      cells.erase(cells.begin() + static_cast<std::ptrdiff_t>(settings));
    };
    drop(widths);
    drop(head);
    drop(lines);
    for (auto& row : rows) drop(row);
  }
  std::string numbers;
  for (std::size_t c = 0; c < settings; ++c)
    numbers += number_alike_cells(rows, c, head[c], widths[c]);
  const auto fit = [&](std::vector<std::string>& row) {
    for (std::size_t c = 0; c < settings; ++c) row[c] = cut(row[c], widths[c]);
    return row;
  };
  for (std::size_t c = 0; c < head.size(); ++c) {
    std::string& cell = head[c] = "";
    for (const std::string& line : lines[c]) {
      cell += (cell.empty() ? "" : "\n") + (c < settings ? cut(line, widths[c]) : line);
    }
  }
  Table table(head);
  for (auto& row : rows) table.add(fit(row));
  return table.text() + (common.empty() ? "" : fmt::format("({})\n", common)) + numbers +
         (left_out.empty() ? "" : fmt::format("(too wide to show: {})\n", left_out));
}

}  // namespace moesim
