// SPDX-License-Identifier: Apache-2.0
#include "tools/analysis/compare.hpp"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "hardware/parse_json.hpp"
#include "sim/gain/gain.hpp"
#include "tools/analysis/comparable.hpp"
#include "tools/cli/table.hpp"

namespace moesim {

namespace {

using Settings = std::span<const Setting>;

constexpr const char* recording_pointer = "/workload/gating/trace";

// Pointers that both sides name: by whole values or, where all are texts, by the policy's type.
using ComparedPointers = std::map<std::string, bool>;  // pointer -> whole

ComparedPointers compared_pointers(Settings baseline, Settings candidate) {
  ComparedPointers pointers;
  for (const Settings side : {baseline, candidate}) {
    for (const Setting& setting : side)
      pointers[setting.pointer] = pointers[setting.pointer] || !setting.value.is_string();
  }
  return pointers;
}

bool matches(const StoredPoint& point, Settings settings, const ComparedPointers& pointers) {
  return std::ranges::all_of(settings, [&](const Setting& setting) {
    const Json* value = setting_of(point, setting.pointer);
    if (value == nullptr) return setting.value.is_null();
    const bool by_type = !pointers.at(setting.pointer) && value->is_object();
    return by_type ? value->value("type", Json()) == setting.value
                   : same_setting(*value, setting.value);
  });
}

// The config without what is compared.
Json everything_else(const StoredPoint& point, const ComparedPointers& pointers) {
  Json rest = point.config;
  for (const auto& [pointer, whole] : pointers) {
    const Json* value = find_value(rest, pointer);
    if (value == nullptr) continue;
    Json options = !whole && value->is_object() ? *value : Json::object();
    options.erase("type");
    if (options.empty()) {
      erase_at(rest, pointer);
    } else {
      rest[Json::json_pointer(pointer)] = std::move(options);
    }
  }
  return rest;
}

// Pointers that the sweep couples to compared keys.
std::set<std::string> coupled_pointers(const Json& sweep, const ComparedPointers& pointers) {
  std::set<std::string> coupled;
  if (!sweep.contains("couple")) return coupled;
  for (const auto& [pointer, by_value] : sweep.at("couple").items()) {
    if (!pointers.contains(pointer)) continue;
    for (const Json& settings : by_value) {
      for (const auto& item : settings.items()) {
        if (!pointers.contains(item.key())) coupled.insert(item.key());
      }
    }
  }
  return coupled;
}

void add_difference(std::vector<CoupledDifference>& differences, const std::string& pointer,
                    const StoredPoint& baseline, const StoredPoint& candidate) {
  CoupledDifference now{pointer, value_at(baseline.config, pointer),
                        value_at(candidate.config, pointer)};
  if (same_setting(now.baseline, now.candidate)) return;
  const bool known = std::ranges::any_of(differences, [&](const auto& other) {
    return other.pointer == pointer && other.baseline == now.baseline &&
           other.candidate == now.candidate;
  });
  if (!known) differences.push_back(std::move(now));
}

struct Group {
  Json rest;
  std::vector<const StoredPoint*> baseline, candidate;
};

std::string describe(Settings settings) {
  std::string text;
  for (const Setting& setting : settings)
    text += fmt::format(
        "{}{}={}", text.empty() ? "" : " and ", setting.pointer,
        setting.value.is_string() ? setting.value.get<std::string>() : setting.value.dump());
  return text;
}

std::string list(const std::set<std::string>& texts) {
  const std::vector<std::string_view> names(texts.begin(), texts.end());
  return names.empty() ? "nothing" : join_names(names);
}

// Why no point matches one side.
[[noreturn]] void fail_without_match(const StoredSweep& sweep, Settings settings) {
  std::string there;
  for (const Setting& setting : settings) {
    std::set<std::string> values;
    for (const StoredPoint& point : sweep.points) {
      const Json* value = setting_of(point, setting.pointer);
      if (value != nullptr && point.status == PointStatus::done)
        values.insert(setting_text(*value));
    }
    if (values.empty()) {
      std::set<std::string> axes;
      for (const Axis& axis : sweep.axes) axes.insert(axis.pointer);
      throw ConfigError("{}: no finished point has it; the sweep varies {}", setting.pointer,
                        list(axes));
    }
    there += fmt::format("; of {} there is {}", setting.pointer, list(values));
  }
  throw ConfigError("no finished point has {}{}", describe(settings), there);
}

// Text of how the first baseline point differs from the candidate most like it.
std::string differences(const std::vector<Group>& groups) {
  const auto first =
      std::ranges::find_if(groups, [](const Group& group) { return !group.baseline.empty(); });
  std::set<std::string> fewest;
  for (const Group& group : groups) {
    if (group.candidate.empty()) continue;
    std::set<std::string> paths;
    for (const Json& change : Json::diff(first->rest, group.rest)) paths.insert(change.at("path"));
    if (fewest.empty() || paths.size() < fewest.size()) fewest = std::move(paths);
  }
  return list(fewest);
}

const StoredPoint& only(const std::vector<const StoredPoint*>& points, Settings settings) {
  if (points.size() == 1) return *points.front();
  throw ConfigError(
      "{} points have {} and are equal in everything that is not compared ({} and {}); say more "
      "about them",
      points.size(), describe(settings), points[0]->config_hash, points[1]->config_hash);
}

PointPair pair_of(const StoredPoint& baseline, const StoredPoint& candidate) {
  PointPair pair{baseline.config_hash, candidate.config_hash, {}, 0, {}};
  for (std::size_t m = 0; m < compared_metrics.size(); ++m) {
    const std::string pointer(compared_metrics[m].metric->pointer);
    const auto before = report_number(baseline, pointer);
    const auto after = report_number(candidate, pointer);
    if (before && after && *before != 0) pair.ratios[m] = *after / *before;
  }
  return pair;
}

// Logarithms of one metric's ratios: of each recording and seed, by the pair's point.
using BySample = std::map<std::pair<std::string, std::string>, std::map<std::size_t, double>>;

// The mean of each sample over the points, of samples that all points have. Runs of one seed share
// their routing and their arrivals, and so are one sample together, whatever their number.
std::optional<SampledGain> gain_of(const BySample& samples, std::size_t points) {
  std::vector<double> means;
  std::map<std::string, std::size_t> seeds_of;  // by recording
  for (const auto& [sample, ratios] : samples) {
    if (ratios.size() < points) continue;
    double sum = 0;
    for (const auto& [point, ratio] : ratios) sum += ratio;
    means.push_back(sum / double(points));
    ++seeds_of[sample.first];
  }
  if (means.size() < 2) return std::nullopt;
  const bool even = std::ranges::all_of(
      seeds_of, [&](const auto& of) { return of.second == seeds_of.begin()->second; });
  return Worlds(means.size(), even ? seeds_of.size() : 1).mean(means);
}

RatioSummary summarize(const std::vector<PointPair>& pairs, std::size_t metric) {
  const bool more_is_better = compared_metrics[metric].more_is_better();
  RatioSummary summary;
  BySample samples;
  std::set<std::size_t> points;
  double logarithms = 0;
  for (const PointPair& pair : pairs) {
    const auto& ratio = pair.ratios[metric];
    if (!ratio) continue;
    ++summary.pairs;
    const double log = std::log(*ratio);
    logarithms += log;
    samples[pair.sample][pair.point] = log;
    points.insert(pair.point);
    if (log != 0) ++((log > 0) == more_is_better ? summary.wins : summary.losses);
  }
  if (summary.pairs > 0) summary.ratio = std::exp(logarithms / double(summary.pairs));
  if (const std::optional<SampledGain> gain = gain_of(samples, points.size())) {
    summary.interval = std::pair(std::exp(gain->low), std::exp(gain->high));
    summary.p_better = more_is_better ? 1 - gain->p_less : gain->p_less;
  }
  return summary;
}

// The axes on which these configs differ, and each one's values there.
void add_settings(Comparison& comparison, const std::vector<Axis>& axes,
                  const std::vector<const Json*>& rests) {
  for (const Axis& axis : axes) {
    std::vector<Json> values;
    for (const Json* rest : rests) values.push_back(value_at(*rest, axis.pointer));
    const bool one_value =
        std::ranges::all_of(values, [&](const Json& value) { return value == values.front(); });
    if (one_value) continue;
    comparison.axes.push_back(axis);
    for (std::size_t i = 0; i < values.size(); ++i)
      comparison.pairs[i].settings.push_back(std::move(values[i]));
  }
}

// Points with several seeds or recordings, each as one.
void add_points(Comparison& comparison) {
  std::vector<std::vector<PointPair>> pairs_of;
  for (const PointPair& pair : comparison.pairs) {
    pairs_of.resize(std::max(pairs_of.size(), pair.point + 1));
    pairs_of[pair.point].push_back(pair);
  }
  if (std::ranges::all_of(pairs_of, [](const auto& pairs) { return pairs.size() == 1; })) return;
  std::vector<std::size_t> kept;  // axes of points, not of their samples
  for (std::size_t axis = 0; axis < comparison.axes.size(); ++axis) {
    if (std::ranges::all_of(pairs_of, [&](const auto& pairs) {
          return std::ranges::all_of(pairs, [&](const PointPair& pair) {
            return pair.settings[axis] == pairs.front().settings[axis];
          });
        }))
      kept.push_back(axis);
  }
  for (const std::size_t axis : kept) comparison.point_axes.push_back(comparison.axes[axis]);
  for (const std::vector<PointPair>& pairs : pairs_of) {
    PointSummary& point = comparison.points.emplace_back();
    for (const std::size_t axis : kept) point.settings.push_back(pairs.front().settings[axis]);
    for (std::size_t m = 0; m < compared_metrics.size(); ++m) point.ratios[m] = summarize(pairs, m);
  }
}

std::string ratio_text(const std::optional<double>& ratio) {
  return ratio ? fmt::format("{:.3f}", *ratio) : "-";
}

OrderedJson ratio_json(const std::optional<double>& ratio) {
  return ratio ? OrderedJson(*ratio) : OrderedJson();
}

// Adds interval and P of a ratio.
void add_chance(OrderedJson& json, const RatioSummary& of) {
  json["interval"] =
      of.interval ? OrderedJson{of.interval->first, of.interval->second} : OrderedJson();
  json["p_better"] = of.interval ? OrderedJson(of.p_better) : OrderedJson();
}

}  // namespace

Setting parse_setting(std::string_view text) {
  const auto equals = text.find('=');
  std::string pointer(text.substr(0, equals));
  if (pointer.starts_with(std::string(config_in_report) + "/"))
    pointer.erase(0, config_in_report.size());
  try {
    if (equals != std::string_view::npos && !Json::json_pointer(pointer).empty()) {
      const std::string value(text.substr(equals + 1));
      Json parsed = json_or_text(value);
      if (!parsed.is_string()) return {pointer, std::move(parsed)};
      // A text means the type of a policy anyway.
      if (pointer.ends_with("/type")) pointer.resize(pointer.size() - 5);
      return {pointer, std::move(parsed)};
    }
  } catch (const Json::exception&) {
  }
  throw ConfigError("{}: expected /pointer=value, e.g. /token_routing/decode=metro", text);
}

std::vector<Setting> parse_settings(const std::vector<std::string>& texts) {
  std::vector<Setting> settings;
  for (const std::string& text : texts) settings.push_back(parse_setting(text));
  return settings;
}

StoredSweep points_with(const StoredSweep& sweep, Settings settings) {
  const ComparedPointers pointers = compared_pointers(settings, {});
  StoredSweep found{sweep.document, sweep.axes, {}};
  for (const StoredPoint& point : sweep.points) {
    if (point.status == PointStatus::done && matches(point, settings, pointers))
      found.points.push_back(point);
  }
  if (found.points.empty()) fail_without_match(sweep, settings);
  return found;
}

Comparison compare(const StoredSweep& sweep, Settings baseline, Settings candidate) {
  const ComparedPointers pointers = compared_pointers(baseline, candidate);
  const std::set<std::string> coupled = coupled_pointers(sweep.document, pointers);
  ComparedPointers not_paired_by = pointers;
  for (const std::string& pointer : coupled) not_paired_by.emplace(pointer, true);
  Comparison comparison;
  std::vector<Group> groups;
  std::map<std::string, std::size_t> group_of;
  std::size_t matched[2] = {0, 0};
  for (const StoredPoint& point : sweep.points) {
    const bool is_baseline = matches(point, baseline, pointers);
    const bool is_candidate = matches(point, candidate, pointers);
    if (!is_baseline && !is_candidate) continue;
    if (point.status != PointStatus::done) {
      ++comparison.not_done;
      continue;
    }
    Json rest = everything_else(point, not_paired_by);
    const auto [place, is_new] = group_of.emplace(rest.dump(), groups.size());
    if (is_new) groups.push_back({std::move(rest), {}, {}});
    Group& group = groups[place->second];
    if (is_baseline) group.baseline.push_back(&point);
    if (is_candidate) group.candidate.push_back(&point);
    matched[0] += is_baseline ? 1 : 0;
    matched[1] += is_candidate ? 1 : 0;
  }
  if (matched[0] == 0) fail_without_match(sweep, baseline);
  if (matched[1] == 0) fail_without_match(sweep, candidate);

  std::vector<const Json*> rests;
  std::map<std::string, std::size_t> point_of;
  for (const Group& group : groups) {
    if (group.baseline.empty() || group.candidate.empty()) {
      comparison.unpaired += group.baseline.size() + group.candidate.size();
      continue;
    }
    const StoredPoint& before = only(group.baseline, baseline);
    const StoredPoint& after = only(group.candidate, candidate);
    comparison.pairs.push_back(pair_of(before, after));
    for (const std::string& pointer : coupled) {
      add_difference(comparison.coupled, pointer, before, after);
    }
    rests.push_back(&group.rest);
    Json without = group.rest;
    auto& [recording, seed] = comparison.pairs.back().sample;
    seed = without.value("seed", Json()).dump();
    without.erase("seed");
    if (const Json* trace = find_value(without, recording_pointer)) {
      recording = trace->dump();
      erase_at(without, recording_pointer);
    }
    comparison.pairs.back().point = point_of.emplace(without.dump(), point_of.size()).first->second;
  }
  if (rests.empty()) {
    throw ConfigError(
        "{} points have {}, {} have {}, but no two are equal in everything else: those most alike "
        "differ in {}; sweep both sides over the same values there, or name it on both sides",
        matched[0], describe(baseline), matched[1], describe(candidate), differences(groups));
  }
  add_settings(comparison, sweep.axes, rests);
  for (std::size_t m = 0; m < compared_metrics.size(); ++m)
    comparison.summary[m] = summarize(comparison.pairs, m);
  add_points(comparison);
  return comparison;
}

namespace {

// A line for each point, or for each pair where a point has one seed.
std::string ratios_text(const Comparison& comparison) {
  const bool by_point = !comparison.points.empty();
  const std::vector<Axis>& axes = by_point ? comparison.point_axes : comparison.axes;
  std::vector<std::string> head;
  for (const Axis& axis : axes) head.push_back(axis.name);
  for (const ComparedMetric& metric : compared_metrics) head.emplace_back(metric.metric->heading);
  std::vector<std::vector<std::string>> rows;
  const auto begin_row = [&](const std::vector<Json>& settings) -> std::vector<std::string>& {
    auto& row = rows.emplace_back();
    for (const Json& value : settings) row.push_back(setting_cell(value));
    return row;
  };
  if (by_point) {
    for (const PointSummary& point : comparison.points) {
      auto& row = begin_row(point.settings);
      for (const RatioSummary& of : point.ratios)
        row.push_back(ratio_text(of.ratio) +
                      (of.interval ? fmt::format(" ({:.2f})", of.p_better) : ""));
    }
  } else {
    for (const PointPair& pair : comparison.pairs) {
      auto& row = begin_row(pair.settings);
      for (const auto& ratio : pair.ratios) row.push_back(ratio_text(ratio));
    }
  }
  std::string text = narrow_table(std::move(head), std::move(rows), axes.size());
  if (by_point) text += "geometric means over the seeds; (P that the candidate is better)\n";
  return text + "\n";
}

}  // namespace

std::string comparison_text(const Comparison& comparison) {
  bool seeds = false;
  Table summary({"candidate / baseline", "geometric mean", "90 % interval", "P(better)", "better",
                 "worse", "pairs"});
  for (std::size_t m = 0; m < compared_metrics.size(); ++m) {
    const RatioSummary& of = comparison.summary[m];
    summary.add({std::string(compared_metrics[m].name), ratio_text(of.ratio),
                 of.interval
                     ? fmt::format("{:.3f} to {:.3f}", of.interval->first, of.interval->second)
                     : "-",
                 of.interval ? fmt::format("{:.2f}", of.p_better) : "-", std::to_string(of.wins),
                 std::to_string(of.losses), std::to_string(of.pairs)});
    seeds = seeds || of.interval;
  }
  std::string text = ratios_text(comparison) + summary.text();
  for (const CoupledDifference& also : comparison.coupled)
    text += fmt::format("pairs differ in {} too: {} against {}\n", also.pointer.substr(1),
                        also.candidate.is_null() ? "the default" : setting_text(also.candidate),
                        also.baseline.is_null() ? "the default" : setting_text(also.baseline));
  if (!seeds)
    text +=
        "no intervals: these take several seeds or recordings that every point has, \"seeds\": "
        "[1, 2, 3] in the sweep\n";
  if (comparison.unpaired > 0)
    text += fmt::format("{} points have no partner on the other side\n", comparison.unpaired);
  if (comparison.not_done > 0)
    text += fmt::format("{} points have no report\n", comparison.not_done);
  return text;
}

OrderedJson comparison_json(const Comparison& comparison) {
  OrderedJson json{{"pairs", OrderedJson::array()}, {"summary", OrderedJson::object()}};
  for (const PointPair& pair : comparison.pairs) {
    OrderedJson entry{{"baseline", pair.baseline},
                      {"candidate", pair.candidate},
                      {"settings", OrderedJson::object()},
                      {"ratios", OrderedJson::object()}};
    for (std::size_t i = 0; i < pair.settings.size(); ++i)
      entry["settings"][comparison.axes[i].pointer] = pair.settings[i];
    for (std::size_t m = 0; m < compared_metrics.size(); ++m)
      entry["ratios"][std::string(compared_metrics[m].name)] = ratio_json(pair.ratios[m]);
    json["pairs"].push_back(std::move(entry));
  }
  for (std::size_t m = 0; m < compared_metrics.size(); ++m) {
    const RatioSummary& of = comparison.summary[m];
    OrderedJson& entry = json["summary"][std::string(compared_metrics[m].name)];
    entry = {{"ratio", ratio_json(of.ratio)},
             {"pairs", of.pairs},
             {"wins", of.wins},
             {"losses", of.losses}};
    add_chance(entry, of);
  }
  json["points"] = OrderedJson::array();
  for (const PointSummary& point : comparison.points) {
    OrderedJson entry{{"settings", OrderedJson::object()}, {"ratios", OrderedJson::object()}};
    for (std::size_t i = 0; i < point.settings.size(); ++i)
      entry["settings"][comparison.point_axes[i].pointer] = point.settings[i];
    for (std::size_t m = 0; m < compared_metrics.size(); ++m) {
      const RatioSummary& of = point.ratios[m];
      OrderedJson& ratio = entry["ratios"][std::string(compared_metrics[m].name)];
      ratio = {{"ratio", ratio_json(of.ratio)}};
      add_chance(ratio, of);
    }
    json["points"].push_back(std::move(entry));
  }
  json["coupled"] = OrderedJson::array();
  for (const CoupledDifference& also : comparison.coupled)
    json["coupled"].push_back({{"pointer", also.pointer},
                               {"baseline", OrderedJson::parse(also.baseline.dump())},
                               {"candidate", OrderedJson::parse(also.candidate.dump())}});
  json["unpaired"] = comparison.unpaired;
  json["not_done"] = comparison.not_done;
  return json;
}

Limit parse_limit(std::string_view text) {
  const auto trimmed = [](std::string_view part) {
    const auto begin = std::min(part.find_first_not_of(' '), part.size());
    part.remove_prefix(begin);
    return std::string(part.substr(0, part.find_last_not_of(' ') + 1));
  };
  const auto sign = text.find_first_of("<>");
  const std::string number = sign == text.npos ? "" : trimmed(text.substr(sign + 1));
  char* end = nullptr;
  const double bound = std::strtod(number.c_str(), &end);
  if (number.empty() || *end != '\0' || !std::isfinite(bound)) {
    throw ConfigError(
        "--fail-if \"{}\": expected METRIC < NUMBER or METRIC > NUMBER, e.g. "
        "\"total_token_throughput < 0.98\"",
        text);
  }
  const std::string name = trimmed(text.substr(0, sign));
  std::vector<std::string_view> names;
  for (const ComparedMetric& metric : compared_metrics) names.push_back(metric.name);
  const auto found = std::ranges::find(names, name);
  if (found == names.end()) {
    const std::string_view nearest = nearest_name(name, names);
    throw ConfigError("--fail-if \"{}\": unknown metric \"{}\"; {}", text, name,
                      nearest.empty() ? "one of: " + join_names(names)
                                      : fmt::format("did you mean \"{}\"?", nearest));
  }
  return {at(found - names.begin()), text[sign] == '<', bound};
}

std::optional<std::string> violation(const Comparison& comparison, const Limit& limit) {
  const std::string_view name = compared_metrics[limit.metric].name;
  const std::optional<double> ratio = comparison.summary[limit.metric].ratio;
  if (!ratio) {
    throw ConfigError("--fail-if: no pair has {}, so it cannot be judged; name another metric",
                      name);
  }
  if (limit.below ? *ratio >= limit.bound : *ratio <= limit.bound) return std::nullopt;
  return fmt::format("{}: candidate / baseline is {:.4f}, {} {} (geometric mean of {} pairs)", name,
                     *ratio, limit.below ? "<" : ">", limit.bound,
                     comparison.summary[limit.metric].pairs);
}

}  // namespace moesim
