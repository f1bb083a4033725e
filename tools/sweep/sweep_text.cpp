// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <map>

#include <fmt/format.h>

#include "sim/report/metric_catalogue.hpp"
#include "tools/cli/output.hpp"
#include "tools/cli/trust.hpp"
#include "tools/sweep/sweep.hpp"

namespace moesim {

namespace {

// Columns of a finished sweep's table.
constexpr std::array text_columns{
    &metric("tokens_per_s_per_gpu"),
    &metric("total_token_throughput"),
    &metric("mean_tpot_ms"),
    &metric("median_tpot_ms"),
    &metric("p99_ttft_ms"),
    &metric("decode_max_activated_mean"),
    &metric("joules_per_output_token"),
};

// How many points' rates are not those of a steady state, by why.
std::string unsteady_text(const StoredSweep& sweep) {
  std::map<std::string, std::size_t> points;
  for (const StoredPoint& point : sweep.points) {
    const Json* state = find_value(point.report, state_pointer);
    if (state != nullptr && *state != "stable") ++points[state->get<std::string>()];
  }
  std::string text;
  for (const auto& [state, count] : points)
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", count, state);
  return text.empty() ? ""
                      : paragraph(
                            "not in a steady state: {} (measurement/state of a report; `moesim "
                            "run` says what helps)",
                            text);
}

std::string axes_text(const std::vector<Axis>& axes, const StoredPoint& point) {
  std::string text;
  for (const Axis& axis : axes) {
    const Json* value = find_value(point.config, axis.pointer);
    if (value != nullptr) text += fmt::format("{}={} ", axis.name, setting_text(*value));
  }
  if (!text.empty()) text.pop_back();
  return text.empty() ? point.config_hash : text;
}

}  // namespace

StoredSweep read_for_text(const Store& store) {
  std::vector<std::string> pointers;
  for (const Metric* column : text_columns) pointers.emplace_back(column->pointer);
  for (const std::string& pointer : trust_pointers()) pointers.push_back(pointer);
  pointers.emplace_back(state_pointer);
  return store.read(pointers);
}

OrderedJson sweep_rows(const Store& store) {
  std::vector<std::string> pointers{state_pointer};
  for (const Metric& metric : metric_catalogue) pointers.emplace_back(metric.pointer);
  const StoredSweep sweep = store.read(pointers);
  const auto value = [](const Json* found) { return found == nullptr ? Json() : *found; };
  OrderedJson rows = OrderedJson::array();
  for (const StoredPoint& point : sweep.points) {
    OrderedJson& row = rows.emplace_back(OrderedJson::object());
    row["config_hash"] = point.config_hash;
    row["status"] = std::string(status_name(point.status));
    row["error"] = point.error.empty() ? Json() : Json(point.error);
    row["state"] = value(find_value(point.report, state_pointer));
    for (const Axis& axis : sweep.axes) row[axis.name] = value(setting_of(point, axis.pointer));
    for (const Metric& metric : metric_catalogue)
      row[std::string(metric.name)] = value(find_value(point.report, std::string(metric.pointer)));
  }
  return rows;
}

std::string sweep_text(const StoredSweep& sweep) {
  std::vector<std::string> head;
  for (const Axis& axis : sweep.axes) head.push_back(axis.name);
  for (const Metric* column : text_columns)
    head.push_back(fmt::format("{}{}", column->heading, column->key().unit == "ms" ? " ms" : ""));

  std::vector<std::vector<std::string>> rows;
  std::string others;
  for (const StoredPoint& point : sweep.points) {
    if (point.status != PointStatus::done) {
      const std::string why = point.error.empty() ? "" : ": " + point.error;
      others += indented(
          fmt::format("{}: {}{}", axes_text(sweep.axes, point), status_name(point.status), why), 4);
      continue;
    }
    auto& row = rows.emplace_back();
    for (const Axis& axis : sweep.axes)
      row.push_back(setting_cell(find_value(point.config, axis.pointer)));
    for (const Metric* column : text_columns) {
      const auto number = report_number(point, std::string(column->pointer));
      row.push_back(number ? number_text(*number) : "-");
    }
  }
  const std::string table =
      rows.empty() ? "" : narrow_table(std::move(head), std::move(rows), sweep.axes.size());
  return fmt::format("{}{}{} points: {}\n{}{}", table, table.empty() ? "" : "\n",
                     sweep.points.size(), count_by_status(sweep.points), unsteady_text(sweep),
                     others);
}

std::string trust_line(const StoredSweep& sweep) {
  std::vector<const Json*> reports;
  std::string engine;
  for (const StoredPoint& point : sweep.points) {
    if (point.status != PointStatus::done) continue;
    if (reports.empty()) engine = engine_of(point.config);
    reports.push_back(&point.report);
  }
  return trust_line_over(reports, engine);
}

}  // namespace moesim
