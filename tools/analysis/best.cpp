// SPDX-License-Identifier: Apache-2.0
#include "tools/analysis/best.hpp"

#include <algorithm>
#include <cmath>
#include <map>

#include <fmt/format.h>

#include "sim/report/metric_catalogue.hpp"
#include "tools/analysis/comparable.hpp"
#include "tools/cli/output.hpp"
#include "tools/cli/table.hpp"

namespace moesim {

namespace {

/// An aspect that a choice moves. With every request in decode, tokens/s = sequences / step. The
/// two columns say whether a value gained by shorter steps or lost by fewer requests.
struct Aspect {
  std::string_view key;
  const Metric* metric;
  std::string pointer() const { return std::string(metric->pointer); }
};
constexpr std::array aspects{
    Aspect{"decode_sequences", &metric("decode_sequences")},
    Aspect{"decode_step", &metric("decode_step_ms")},
    Aspect{"prefill_step", &metric("prefill_step_ms")},
    Aspect{"median_tpot", &metric("median_tpot_ms")},
    Aspect{"kv_bytes", &metric("kv_bytes")},
    Aspect{"preemptions", &metric("preemptions")},  // the last, of which there is no ratio
};

// The mean over an alternative's seeds, of those that have the number.
std::optional<double> mean_of(const Alternative& of, const std::string& pointer) {
  double sum = 0;
  int seeds = 0;
  for (const StoredPoint* point : of.points) {
    const auto number = report_number(*point, pointer);
    if (!number) continue;
    sum += *number;
    ++seeds;
  }
  return seeds == 0 ? std::nullopt : std::optional(sum / seeds);
}

Json without(Json config, const std::string& pointer) {
  if (find_value(config, pointer) != nullptr) erase_at(config, pointer);
  return config;
}

// Standard error of the mean over seeds, squared; 0 where there is one seed.
double variance_of_mean(const Alternative& of, const std::string& pointer) {
  double squares = 0;
  const auto seeds = double(of.points.size());
  if (seeds < 2) return 0;
  for (const StoredPoint* point : of.points)
    squares += std::pow(report_number(*point, pointer).value_or(of.metric) - of.metric, 2);
  return squares / (seeds - 1) / seeds;
}

// True if two values differ by less than their seeds tell, or by less than a thousandth.
bool within_noise(const Alternative& a, const Alternative& b, const std::string& pointer) {
  constexpr double thousandth = 1e-3, errors = 2;
  const double noise =
      errors * std::sqrt(variance_of_mean(a, pointer) + variance_of_mean(b, pointer));
  return std::abs(a.metric - b.metric) <=
         std::max(noise, thousandth * std::max(std::abs(a.metric), std::abs(b.metric)));
}

bool all_tie(const Alternatives& group) {
  return group.values.size() > 1 && std::ranges::all_of(group.values, &Alternative::best);
}

void mark_best(Alternatives& group, const std::string& metric, bool lower_is_better) {
  if (group.values.empty()) return;
  const auto better = [&](const Alternative& a, const Alternative& b) {
    return lower_is_better ? a.metric < b.metric : a.metric > b.metric;
  };
  auto best = group.values.begin();
  for (auto it = best + 1; it != group.values.end(); ++it) {
    if (better(*it, *best)) best = it;
  }
  for (Alternative& value : group.values) value.best = within_noise(value, *best, metric);
}

std::string ratio_text(std::optional<double> value, std::optional<double> first) {
  if (!value || !first || *first == 0) return "-";
  return fmt::format("{:.3f}", *value / *first);
}

std::string name_of(const Alternatives& group, const std::vector<Axis>& axes) {
  std::string name;
  for (std::size_t i = 0; i < axes.size(); ++i)
    name +=
        fmt::format("{}{} {}", i == 0 ? "" : ", ", axes[i].name, setting_text(group.settings[i]));
  return name.empty() ? "all points" : name;
}

// "best replication: 1.0 in 9 of 10 settings, 1.5 in 1 of 10", ties in both.
std::string summary(const BestChoice& choice, const std::string& axis) {
  std::map<Json, std::size_t> wins;
  for (const Alternatives& group : choice.groups) {
    for (const Alternative& value : group.values) wins[value.value] += value.best ? 1 : 0;
  }
  std::string text;
  for (const auto& [value, count] : wins)
    text += fmt::format("{} {} in {} of {}", text.empty() ? "" : ",", setting_text(value), count,
                        choice.groups.size());
  return wrapped(fmt::format("best {}, ties counted for each:{} settings", axis, text)) + "\n\n";
}

}  // namespace

std::vector<std::string> best_pointers() {
  std::vector<std::string> pointers;
  for (const Aspect& aspect : aspects) pointers.push_back(aspect.pointer());
  return pointers;
}

BestChoice best_choice(StoredSweep sweep, std::string over, std::string metric,
                       bool lower_is_better) {
  BestChoice result{std::move(sweep), std::move(over), std::move(metric), lower_is_better, {}, {}};
  std::vector<std::string_view> varied;
  for (const Axis& axis : result.sweep.axes) {
    varied.push_back(axis.pointer);
    if (axis.pointer != result.over && axis.pointer != seed_pointer) result.axes.push_back(axis);
  }
  if (result.over == seed_pointer)
    throw ConfigError("--best /seed: the luckiest seed is no choice; runs are averaged over seeds");
  if (std::ranges::find(varied, result.over) == varied.end()) {
    throw ConfigError("--best {}: the sweep varies {}", result.over,
                      varied.empty() ? "nothing" : join_names(varied));
  }

  std::map<Json, std::size_t> group_of;
  for (const StoredPoint& point : result.sweep.points) {
    Json others = without(without(point.config, result.over), seed_pointer);
    const auto [place, fresh] = group_of.try_emplace(std::move(others), result.groups.size());
    if (fresh) {
      Alternatives& group = result.groups.emplace_back();
      for (const Axis& axis : result.axes)
        group.settings.push_back(value_at(point.config, axis.pointer));
    }
    Alternatives& group = result.groups[place->second];
    const auto number = report_number(point, result.metric);
    if (number) {
      Json value = value_at(point.config, result.over);
      auto alike = std::ranges::find_if(
          group.values, [&](const Alternative& other) { return other.value == value; });
      if (alike == group.values.end()) {
        group.values.push_back({std::move(value), {}, 0});
        alike = group.values.end() - 1;
      }
      alike->points.push_back(&point);
      alike->metric += (*number - alike->metric) / double(alike->points.size());
    } else {
      ++group.without;
    }
  }
  const bool any = std::ranges::any_of(
      result.groups, [](const Alternatives& group) { return !group.values.empty(); });
  if (!any) {
    throw ConfigError("--metric {}: no finished point has this number", result.metric);
  }
  for (Alternatives& group : result.groups) mark_best(group, result.metric, lower_is_better);
  return result;
}

std::string best_text(const BestChoice& choice) {
  const std::string axis = choice.over.substr(choice.over.rfind('/') + 1);
  const std::string metric = choice.metric.substr(choice.metric.rfind('/') + 1);
  std::string text = choice.groups.size() > 1 ? summary(choice, axis) : "";
  for (const Alternatives& group : choice.groups) {
    std::vector<std::string> head{"", axis, metric, "x first"};
    for (const Aspect& aspect : aspects) head.emplace_back(aspect.metric->heading);
    Table table(std::move(head));
    for (const Alternative& value : group.values) {
      std::vector<std::string> row{
          value.best && group.values.size() > 1 && !all_tie(group) ? "*" : "",
          setting_text(value.value), number_text(value.metric),
          ratio_text(value.metric, group.values.front().metric)};
      for (const Aspect& aspect : aspects) {
        const auto mean = mean_of(value, aspect.pointer());
        row.push_back(&aspect != &aspects.back()
                          ? ratio_text(mean, mean_of(group.values.front(), aspect.pointer()))
                      : mean ? number_text(*mean)
                             : "-");
      }
      table.add(std::move(row));
    }
    text += indented(name_of(group, choice.axes), 2) + table.text();
    if (all_tie(group))
      text += fmt::format("all tie in {}; another --metric may tell the values apart\n", metric);
    if (group.without > 0)
      text += fmt::format("{} of its points are not done or lack this number\n", group.without);
    text += "\n";
  }
  text += paragraph(
      "*: best {} at otherwise equal settings; several: they tie, within two standard errors of "
      "the seeds or a thousandth. Columns from \"x first\" on are ratios to the first row. The "
      "ratios are of {}, sequences in a decode step, time of a decode and of a prefill step, "
      "median TPOT, and KV cache. preempted: how often a sequence lost its KV cache and was "
      "computed again.",
      axis, metric);
  return text;
}

OrderedJson best_json(const BestChoice& choice) {
  OrderedJson groups = OrderedJson::array();
  for (const Alternatives& group : choice.groups) {
    OrderedJson settings = OrderedJson::object(), values = OrderedJson::array(),
                tied = OrderedJson::array();
    for (std::size_t i = 0; i < choice.axes.size(); ++i)
      settings[choice.axes[i].pointer] = group.settings[i];
    for (const Alternative& value : group.values) {
      OrderedJson row{{"value", value.value},
                      {"metric", value.metric},
                      {"config_hash", value.points.front()->config_hash}};
      for (const Aspect& aspect : aspects) {
        const auto number = mean_of(value, aspect.pointer());
        row[std::string(aspect.key)] = number ? OrderedJson(*number) : OrderedJson();
      }
      values.push_back(std::move(row));
      if (value.best) tied.emplace_back(value.value);
    }
    groups.push_back({{"settings", std::move(settings)},
                      {"best", tied.size() == 1 ? tied.front() : OrderedJson()},
                      {"tied", tied.size() == 1 ? OrderedJson::array() : tied},
                      {"values", std::move(values)},
                      {"points_without_number", group.without}});
  }
  return {{"over", choice.over}, {"metric", choice.metric}, {"groups", std::move(groups)}};
}

}  // namespace moesim
