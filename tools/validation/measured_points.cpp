// SPDX-License-Identifier: Apache-2.0
#include "tools/validation/measured_points.hpp"

#include <charconv>
#include <map>

#include <fmt/format.h>

#include "hardware/config.hpp"
#include "traces/mapped_file.hpp"

namespace moesim {

namespace {

/// Fields of one line; quotes hold commas, and a doubled quote stands for itself.
std::vector<std::string> split(std::string_view line) {
  std::vector<std::string> fields(1);
  bool quoted = false;
  for (std::size_t i = 0; i < line.size(); ++i) {
    const char c = line[i];
    if (c == '"') {
      if (quoted && i + 1 < line.size() && line[i + 1] == '"') {
        fields.back() += line[++i];
      } else {
        quoted = !quoted;
      }
    } else if (c == ',' && !quoted) {
      fields.emplace_back();
    } else if (c != '\r') {
      fields.back() += c;
    }
  }
  return fields;
}

/// A row whose fields are found by the header's names.
class Row {
 public:
  Row(const std::map<std::string, std::size_t, std::less<>>& columns,
      std::vector<std::string> fields, std::string place)
      : columns_(columns), fields_(std::move(fields)), place_(std::move(place)) {}

  std::string text(std::string_view name) const {
    const auto column = columns_.find(name);
    return column == columns_.end() || column->second >= fields_.size() ? std::string()
                                                                        : fields_[column->second];
  }
  double number(std::string_view name) const {
    const std::string field = text(name);
    double value = 0;
    const char* end = field.data() + field.size();
    const bool read = field.empty() || std::from_chars(field.data(), end, value).ptr == end;
    if (!read || !(value >= 0 && value < 1e30))
      throw ConfigError(
          fmt::format("{}: {} \"{}\" is not a number of at least 0", place_, name, field));
    return value;
  }
  int count(std::string_view name) const {
    const double value = number(name);
    if (value > 1e6) throw ConfigError(fmt::format("{}: {} {} is too large", place_, name, value));
    return static_cast<int>(value);
  }

 private:
  const std::map<std::string, std::size_t, std::less<>>& columns_;
  std::vector<std::string> fields_;
  std::string place_;
};

MeasuredPoint to_point(const Row& row) {
  return {.id = row.text("id"),
          .category = row.text("category"),
          .gpu = row.text("gpu"),
          .interconnect = row.text("interconnect"),
          .model = row.text("model"),
          .operation = row.text("op"),
          .precision = row.text("precision"),
          .distribution = row.text("distribution"),
          .metric = row.text("metric"),
          .unit = row.text("unit"),
          .source = row.text("source"),
          .notes = row.text("notes"),
          .gpus = row.count("n_gpu"),
          .nodes = row.count("n_node"),
          .tp = row.count("tp"),
          .ep = row.count("ep"),
          .dp = row.count("dp"),
          .tokens = row.number("tokens"),
          .batch = row.number("batch"),
          .concurrency = row.number("concurrency"),
          .prompt = row.number("isl"),
          .output = row.number("osl"),
          .context = row.number("ctx"),
          .bytes = row.number("bytes"),
          .active_experts = row.number("active_experts_rank"),
          .value = row.number("value")};
}

}  // namespace

std::vector<MeasuredPoint> read_points(const std::filesystem::path& file) {
  std::map<std::string, std::size_t, std::less<>> columns;
  std::vector<MeasuredPoint> points;
  const MappedFile mapped(file);
  for_each_line(mapped.text(), [&](std::size_t number, std::string_view line) {
    const std::string place = fmt::format("{}:{}", file.string(), number);
    if (columns.empty()) {
      for (const std::string& name : split(line)) columns.emplace(name, columns.size());
      for (const char* needed : {"id", "category", "gpu", "metric", "value"}) {
        if (!columns.contains(needed))
          throw ConfigError(
              fmt::format("{}: no column \"{}\"; see hardware/README.md", place, needed));
      }
      return;
    }
    points.push_back(to_point(Row(columns, split(line), place)));
    if (points.back().value <= 0)
      throw ConfigError(fmt::format("{}: the value must be more than 0", place));
  });
  return points;
}

}  // namespace moesim
