// SPDX-License-Identifier: Apache-2.0
#include "tools/bench/measured_points.hpp"

#include <array>
#include <cmath>
#include <map>

#include <fmt/format.h>

#include "hardware/config.hpp"
#include "hardware/text.hpp"
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

// A column's name without blanks around it and capitals.
std::string plain(std::string name) {
  std::erase(name, ' ');
  return lower(name);
}

constexpr std::array columns_of_points{"id", "category", "gpu", "metric", "value"};
constexpr std::array columns_apart{"id", "gpu", "engine", "ttft_ms", "tpot_ms"};

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
    const auto value = field.empty() ? std::optional(0.) : try_number<double>(field);
    if (!value || !(*value >= 0 && *value < 1e30))
      throw ConfigError("{}: {} \"{}\" is not a number of at least 0", place_, name, field);
    return *value;
  }
  const std::string& place() const { return place_; }
  int count(std::string_view name) const {
    const double value = number(name);
    if (value > 1e6) throw ConfigError("{}: {} {} is too large", place_, name, value);
    if (value != std::floor(value))
      throw ConfigError("{}: {} {} is not a whole number", place_, name, value);
    return static_cast<int>(value);
  }

 private:
  const std::map<std::string, std::size_t, std::less<>>& columns_;
  std::vector<std::string> fields_;
  std::string place_;
};

MeasuredPoint to_point(const Row& row) {
  return {.place = row.place(),
          .id = row.text("id"),
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
          .value = row.number("value"),
          .fitted = row.text("use") == "calibrate"};
}

WorkerPlan workers_of(const Row& row, const std::string& side) {
  WorkerPlan plan{.workers = row.count(side + "_num_workers"),
                  .batch = row.count(side + "_batch_size"),
                  .tp = row.count(side + "_tp_size"),
                  .dp = row.count(side + "_attention_dp_size"),
                  .ep = row.count(side + "_moe_ep_size")};
  if (plan.ep == 0) plan.ep = plan.tp * plan.dp;
  return plan;
}

/// Time to the first token and time per output token of a deployment.
void add_disaggregated(const Row& row, std::vector<MeasuredPoint>& points) {
  MeasuredPoint point;
  point.place = row.place();
  point.category = "disaggregated";
  point.gpu = row.text("gpu");
  point.model = row.text("model");
  point.operation = fmt::format("disaggregated {} {}", row.text("engine"), row.text("version"));
  const std::string experts = row.text("experts_precision");
  point.precision = experts.empty() ? row.text("precision") : experts;
  point.unit = "ms";
  point.source = row.text("source");
  point.notes = fmt::format("run {}", row.text("measured"));
  point.prompt = row.number("isl");
  point.output = row.number("osl");
  point.prefill = workers_of(row, "prefill");
  point.decode = workers_of(row, "decode");
  const WorkerPlan& decode = point.decode;
  const double in_flight = row.number("concurrency");
  point.concurrency = in_flight > 0 ? in_flight : double(decode.workers) * decode.batch * decode.dp;
  const auto gpus = [](const WorkerPlan& plan) { return plan.workers * plan.tp * plan.dp; };
  point.gpus = gpus(point.prefill) + gpus(decode);
  for (const auto& [metric, column] : {std::pair{"TTFT", "ttft_ms"}, {"TPOT", "tpot_ms"}}) {
    point.id = row.text("id") + (point.metric.empty() ? "-ttft" : "-tpot");
    point.metric = metric;
    point.value = row.number(column);
    points.push_back(point);
  }
}

}  // namespace

std::vector<MeasuredPoint> read_points(const std::filesystem::path& file) {
  std::map<std::string, std::size_t, std::less<>> columns;
  std::vector<MeasuredPoint> points;
  bool apart = false;
  for_each_line(file, [&](std::size_t number, std::string_view line) {
    const std::string place = fmt::format("{}:{}", file.string(), number);
    if (columns.empty()) {
      for (const std::string& name : split(line))
        if (!columns.emplace(plain(name), columns.size()).second)
          throw ConfigError("{}: column \"{}\" is there twice", place, name);
      apart = columns.contains("decode_num_workers");
      for (const char* needed : apart ? columns_apart : columns_of_points) {
        if (!columns.contains(needed))
          throw ConfigError("{}: no column \"{}\"; {}", place, needed,
                            columns.size() == 1 && contains(line, ";")
                                ? "fields are separated by semicolons, where commas are read"
                                : "see hardware/README.md");
      }
      return;
    }
    const Row row(columns, split(line), place);
    if (apart) {
      add_disaggregated(row, points);
    } else {
      points.push_back(to_point(row));
    }
    if (points.back().value <= 0) throw ConfigError("{}: the value must be more than 0", place);
  });
  return points;
}

}  // namespace moesim
