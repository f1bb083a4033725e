// SPDX-License-Identifier: Apache-2.0
#include "tools/sweep/axes.hpp"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "tools/cli/output.hpp"
#include "tools/cli/table.hpp"

namespace moesim {

namespace {

constexpr std::size_t column_gap = 2;

// The last `keys` keys of a pointer: "/token_routing/decode", 1 -> "decode".
std::string_view pointer_end(std::string_view pointer, int keys) {
  std::size_t start = pointer.size();
  for (; keys > 0 && start != 0; --keys) start = pointer.rfind('/', start - 1);
  return pointer.substr(std::min(start + 1, pointer.size()));
}

bool is_unique(std::string_view end, int keys, const std::vector<std::string>& pointers) {
  return std::ranges::count_if(pointers, [&](const std::string& other) {
           return pointer_end(other, keys) == end;
         }) == 1;
}

std::string unique_end(const std::string& pointer, const std::vector<std::string>& pointers) {
  const auto keys = static_cast<int>(std::ranges::count(pointer, '/'));
  for (int n = 1; n < keys; ++n) {
    const std::string_view end = pointer_end(pointer, n);
    if (end != "type" && is_unique(end, n, pointers)) return std::string(end);
  }
  return pointer.substr(1);
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
          throw ConfigError("has a sweep whose \"{}\" is not {{\"/pointer\": setting}}", key);
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

namespace {

// True if a value is what an experiment has as "pools".
bool are_pools(const Json& value) {
  return value.is_object() && value.contains("decode") &&
         std::ranges::all_of(value, [](const Json& pool) { return pool.is_object(); });
}

// "prefill dp2, decode dp4 ep4": of the pools that are told something.
std::string pools_text(const Json& pools) {
  std::string text;
  for (const char* name : {"prefill", "decode"}) {
    const std::string settings = pools.contains(name) ? setting_text(pools.at(name)) : "";
    if (!settings.empty()) text += fmt::format("{}{} {}", text.empty() ? "" : ", ", name, settings);
  }
  return text;
}

// Leaves out of objects without a type the members that are alike in all of them.
void leave_out_shared(const std::vector<Json*>& objects) {
  const auto is_plain = [](const Json* value) {
    return value->is_object() && !value->contains("type");
  };
  if (objects.size() < 2 || !std::ranges::all_of(objects, is_plain)) return;
  std::map<std::string, std::vector<Json*>> members;
  for (Json* object : objects) {
    for (auto& item : object->items()) members[item.key()].push_back(&item.value());
  }
  for (const auto& [key, values] : members) {
    const auto alike = [&first = *values.front()](const Json* value) { return *value == first; };
    if (values.size() == objects.size() && std::ranges::all_of(values, alike)) {
      for (Json* object : objects) object->erase(key);
    } else {
      leave_out_shared(values);
    }
  }
}

}  // namespace

std::string setting_text(const Json& value) {
  if (value.is_string()) {
    const auto text = value.get<std::string>();
    return text.ends_with(".json") ? std::filesystem::path(text).stem().string() : text;
  }
  if (!value.is_structured()) return value.dump();
  if (are_pools(value)) {
    const std::string text = pools_text(value);
    return text.empty() ? "pools" : text;
  }
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

std::map<Json, std::string> texts_apart(const std::set<Json>& values, std::string_view name) {
  std::vector<Json> left(values.begin(), values.end());
  std::vector<Json*> objects;
  bool pools = false;
  for (Json& value : left) {
    pools = pools || are_pools(value);
    if (!value.is_null()) objects.push_back(&value);
  }
  leave_out_shared(objects);
  std::map<Json, std::string> texts;
  std::size_t i = 0;
  for (const Json& value : values) {
    std::string& text = texts[value];
    const Json& rest = left[i++];
    if (value.is_null()) {
      text = pools ? "no pools" : "unset";
    } else if (pools) {
      text = objects.size() > 1 ? pools_text(rest) : "";
      text = text.empty() ? "pools" : "pools: " + text;
    } else {
      text = setting_text(rest);
      if (text.empty()) text = name;
    }
  }
  // Values that would have one text are written out.
  std::set<std::string> different;
  for (const auto& [value, text] : texts) different.insert(text);
  if (different.size() == texts.size()) return texts;
  for (auto& [value, text] : texts) text = value.is_null() ? "unset" : value.dump();
  return texts;
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

// A heading in two lines as even as its words allow: "concurrency" above "_per_rank".
std::string in_two_lines(const std::string& head) {
  std::size_t longer = head.size(), end = head.size();
  for (std::size_t i = head.find_first_of("_/ ", 1); i < head.size();
       i = head.find_first_of("_/ ", i + 1)) {
    if (std::max(i, head.size() - i) < longer) {
      longer = std::max(i, head.size() - i);
      end = i;
    }
  }
  return end == head.size() ? head : head.substr(0, end) + "\n" + head.substr(end);
}

// A table whose first columns are settings, and what was said below it to make it narrower. Nothing
// is cut: what a column loses stands below.
class NarrowTable {
 public:
  NarrowTable(std::vector<std::string> head, std::vector<std::vector<std::string>> rows,
              std::size_t settings)
      : head_(std::move(head)), names_(head_), rows_(std::move(rows)), settings_(settings) {}

  std::size_t settings() const { return settings_; }
  std::size_t width() const {
    std::size_t sum = column_gap * (head_.size() - 1);
    for (std::size_t c = 0; c < head_.size(); ++c) sum += width(c);
    return sum;
  }

  // Breaks a heading where that makes its column narrower.
  void break_head(std::size_t c) {
    const std::size_t before = width(c);
    const std::string head = std::exchange(head_[c], in_two_lines(head_[c]));
    if (width(c) == before) head_[c] = head;
  }

  void take_common(std::size_t c) {
    const std::string words = take_common_words(rows_, c);
    if (!words.empty()) say(fmt::format("{}: {} ..", names_[c], words));
  }

  // Leaves out a column that has the same value in all rows.
  void leave_out_constant(std::size_t c) {
    if (values_of(c).size() != 1) return;
    say(fmt::format("{}: {}", names_[c], rows_.front()[c]));
    drop(c);
  }

  // Leaves out a column behind the settings that has no value in any row.
  void leave_out_empty(std::size_t c) {
    const auto empty = [&](const auto& row) { return row[c] == "-"; };
    if (rows_.empty() || !std::ranges::all_of(rows_, empty)) return;
    erase(c);
  }
  std::size_t columns() const { return head_.size(); }

  // Leaves out a column whose value another one's tells, if that has few values. Of two columns
  // that tell each other the wider one goes: the other is what was varied, or says it in fewer
  // words.
  void leave_out_follower(std::size_t c) {
    constexpr std::size_t few = 8;
    for (std::size_t other = 0; other < settings_; ++other) {
      const std::size_t values = values_of(other).size();
      if (other == c || values == 0 || values > few || !follows(c, other)) continue;
      const bool wider = follows(other, c) && width(other) > width(c);
      leave_out_by(wider ? other : c, wider ? c : other);
      return;
    }
  }

  // Numbers the values of the column that this makes narrower by most. Answers whether there is
  // one.
  bool number_widest() {
    std::size_t widest = settings_, gain = 0;
    for (std::size_t c = 0; c < settings_; ++c) {
      const std::size_t numbered = std::max(head_width(c), number(values_of(c).size()).size());
      if (width(c) > numbered && width(c) - numbered > gain) {
        widest = c;
        gain = width(c) - numbered;
      }
    }
    if (widest == settings_) return false;
    const std::vector<std::string> values = values_of(widest);
    for (std::size_t i = 0; i < values.size(); ++i)
      say(fmt::format("{} {}: {}", names_[widest], number(i + 1), values[i]));
    for (auto& row : rows_) {
      const auto value = std::ranges::find(values, row[widest]);
      row[widest] = number(at(value - values.begin()) + 1);
    }
    return true;
  }

  std::string text() const {
    Table table(head_);
    for (const auto& row : rows_) table.add(row);
    return table.text(output_columns().value_or(usual_columns)) + said_;
  }

 private:
  static std::string number(std::size_t place) { return fmt::format("#{}", place); }

  std::size_t head_width(std::size_t c) const {
    const std::size_t end = head_[c].find('\n');
    return end == std::string::npos ? head_[c].size() : std::max(end, head_[c].size() - end - 1);
  }
  std::size_t width(std::size_t c) const {
    std::size_t widest = head_width(c);
    for (const auto& row : rows_) widest = std::max(widest, row[c].size());
    return widest;
  }

  // In the order of their first rows.
  std::vector<std::string> values_of(std::size_t c) const {
    std::vector<std::string> values;
    for (const auto& row : rows_)
      if (std::ranges::find(values, row[c]) == values.end()) values.push_back(row[c]);
    return values;
  }

  bool follows(std::size_t c, std::size_t other) const {
    std::map<std::string, std::string> value_at;
    return std::ranges::all_of(rows_, [&](const auto& row) {
      return value_at.emplace(row[other], row[c]).first->second == row[c];
    });
  }

  // Leaves out a column and says its value at each of another one.
  void leave_out_by(std::size_t c, std::size_t other) {
    std::string text;
    for (const std::string& value : values_of(other)) {
      const auto row = std::ranges::find(rows_, value, [&](const auto& r) { return r[other]; });
      text += fmt::format("{}{} at {}", text.empty() ? "" : ", ", (*row)[c], value);
    }
    say(fmt::format("{} by {}: {}", names_[c], names_[other], text));
    drop(c);
  }

  // Words longer than a line are broken anywhere.
  void say(std::string line) {
    constexpr std::size_t indent = 4, longest = usual_columns - indent;
    std::size_t word = 0;
    for (std::size_t i = 0; i < line.size(); ++i, ++word) {
      if (line[i] == ' ') word = 0;
      if (word == longest) {
        line.insert(i, " ");
        word = 0;
      }
    }
    said_ += indented(line, indent);
  }

  void drop(std::size_t c) {
    erase(c);
    --settings_;
  }

  void erase(std::size_t c) {
    const auto place = static_cast<std::ptrdiff_t>(c);
    head_.erase(head_.begin() + place);
    names_.erase(names_.begin() + place);
    for (auto& row : rows_) row.erase(row.begin() + place);
  }

  std::vector<std::string> head_, names_;
  std::vector<std::vector<std::string>> rows_;
  std::size_t settings_;
  std::string said_;
};

}  // namespace

std::string narrow_table(std::vector<std::string> head, std::vector<std::vector<std::string>> rows,
                         std::size_t settings) {
  // A narrower output has its columns in blocks (Table).
  const std::size_t columns = std::max(usual_columns, output_columns().value_or(usual_columns));
  NarrowTable table(std::move(head), std::move(rows), settings);
  for (std::size_t c = table.columns(); c > table.settings(); --c) table.leave_out_empty(c - 1);
  const auto too_wide = [&] { return table.width() > columns; };
  for (std::size_t c = 0; c < table.settings() && too_wide(); ++c) table.break_head(c);
  for (std::size_t c = 0; c < table.settings() && too_wide(); ++c) table.take_common(c);
  for (std::size_t c = table.settings(); c > 0 && table.settings() > 1 && too_wide(); --c)
    table.leave_out_constant(c - 1);
  for (std::size_t c = table.settings(); c > 0 && table.settings() > 1 && too_wide(); --c)
    table.leave_out_follower(c - 1);
  while (too_wide() && table.number_widest()) {
  }
  return table.text();
}

}  // namespace moesim
