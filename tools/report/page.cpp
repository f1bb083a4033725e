// SPDX-License-Identifier: Apache-2.0
#include "tools/report/page.hpp"

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <set>

#include <fmt/format.h>

#include "sim/experiment/experiment.hpp"
#include "tools/analysis/comparable.hpp"
#include "tools/analysis/compare.hpp"
#include "tools/cli/trust.hpp"
#include "tools/report/assets.hpp"
#include "tools/report/page_point.hpp"
#include "tools/sweep/sweep.hpp"

namespace moesim {

namespace {

constexpr std::string_view slo_pointer = "/context/config/slo";
constexpr std::size_t most_groups = 12;
constexpr std::size_t most_of_one_axis = 35;  // that colours with symbols tell apart
constexpr std::size_t most_comparisons = 12;
constexpr std::size_t most_load_cells = 400'000;  // about 2 MB of page
constexpr std::size_t most_details = 5'000;       // points with steps and config: some 10 MB
constexpr std::size_t most_turns = 20'000;        // of sessions: about 2 MB of page
constexpr std::size_t most_pairs = 500;           // of a comparison; its summary is over all

// Metrics that a reader of the page can choose as an axis, sort by, and see of a point.
constexpr std::array<const Metric*, 35> page_metrics{
    &metric("tokens_per_s_per_gpu"),
    &metric("total_tokens_per_s_per_gpu"),
    &metric("output_throughput"),
    &metric("total_token_throughput"),
    &metric("request_throughput"),
    &metric("request_goodput"),
    &metric("slo_attainment"),
    &metric("timeout_share"),
    &metric("cancelled_share"),
    &metric("tokens_per_s_per_user"),
    &metric("median_tpot_ms"),
    &metric("mean_tpot_ms"),
    &metric("p90_tpot_ms"),
    &metric("p99_tpot_ms"),
    &metric("median_ttft_ms"),
    &metric("p90_ttft_ms"),
    &metric("p99_ttft_ms"),
    &metric("p99_itl_ms"),
    &metric("median_e2el_ms"),
    &metric("p99_e2el_ms"),
    &metric("decode_tokens_per_s_per_gpu"),
    &metric("decode_step_ms"),
    &metric("prefill_step_ms"),
    &metric("decode_max_activated_mean"),
    &metric("decode_max_tokens_mean"),
    &metric("decode_balancedness"),
    &metric("replication_effective"),
    &metric("exposed_communication_share"),
    &metric("barrier_idle_share"),
    &metric("kv_peak_utilization"),
    &metric("mfu"),
    &metric("mbu"),
    &metric("joules_per_output_token"),
    &metric("watts_per_gpu"),
    &metric("output_tokens_per_s_per_mw"),
};

std::vector<std::string> texts_of(const std::vector<Json>& values) {
  std::vector<std::string> texts;
  for (const Json& value : values) texts.push_back(setting_cell(value));
  return texts;
}

// Texts that tell the values of each group's and each curve's settings apart, by their places.
struct Words {
  std::vector<std::map<Json, std::string>> groups, settings;

  explicit Words(const Pareto& curves)
      : groups(of(curves.group_names, curves.points, &ParetoPoint::group)),
        settings(of(curves.setting_names, curves.points, &ParetoPoint::settings)) {}

  static std::vector<std::map<Json, std::string>> of(const std::vector<std::string>& names,
                                                     const std::vector<ParetoPoint>& points,
                                                     std::vector<Json> ParetoPoint::*member) {
    std::vector<std::map<Json, std::string>> words;
    for (std::size_t i = 0; i < names.size(); ++i) {
      std::set<Json> values;
      for (const ParetoPoint& point : points) values.insert((point.*member)[i]);
      words.push_back(texts_apart(values, name_in_words(names[i])));
    }
    return words;
  }
};

std::vector<std::string> texts_of(const std::vector<Json>& values,
                                  const std::vector<std::map<Json, std::string>>& words) {
  std::vector<std::string> texts;
  for (std::size_t i = 0; i < values.size(); ++i) texts.push_back(words[i].at(values[i]));
  return texts;
}

OrderedJson metrics_of(const StoredPoint& point, const std::vector<std::string>& pointers) {
  OrderedJson metrics = OrderedJson::array();
  for (const std::string& pointer : pointers) {
    const auto number = report_number(point, pointer);
    metrics.push_back(number ? OrderedJson(*number) : OrderedJson());
  }
  return metrics;
}

using Done = std::vector<const StoredPoint*>;

// The only value that points with `chosen` at `by` have at `pointer`, or nothing.
std::optional<Json> implied(const Done& points, const std::string& by, const Json& chosen,
                            const std::string& pointer) {
  std::optional<Json> only;
  for (const StoredPoint* point : points) {
    const Json* value = setting_of(*point, by);
    if (value == nullptr || *value != chosen) continue;
    const Json* other = setting_of(*point, pointer);
    if (other == nullptr || (only && *only != *other)) return std::nullopt;
    only = *other;
  }
  return only;
}

// Compares one value of an axis with another, with what the sweep always changes along with it.
std::optional<OrderedJson> compare_values(const StoredSweep& sweep, const Done& done,
                                          const Axis& axis, const Json& baseline,
                                          const Json& candidate) {
  std::vector<Setting> before{{axis.pointer, baseline}}, after{{axis.pointer, candidate}};
  OrderedJson also = OrderedJson::array();
  for (const Axis& other : sweep.axes) {
    if (other.pointer == axis.pointer) continue;
    const auto with_baseline = implied(done, axis.pointer, baseline, other.pointer);
    const auto with_candidate = implied(done, axis.pointer, candidate, other.pointer);
    if (!with_baseline || !with_candidate || *with_baseline == *with_candidate) continue;
    before.push_back({other.pointer, *with_baseline});
    after.push_back({other.pointer, *with_candidate});
    also.push_back(fmt::format("{} ({} against {})", other.name, setting_text(*with_candidate),
                               setting_text(*with_baseline)));
  }
  try {
    Comparison comparison = compare(sweep, before, after);
    const std::size_t pairs = comparison.pairs.size();
    if (pairs > most_pairs) comparison.pairs.resize(most_pairs);
    OrderedJson json = comparison_json(comparison);
    json["pairs_left_out"] = pairs - comparison.pairs.size();
    OrderedJson names = OrderedJson::array();
    for (const Axis& of_pairs : comparison.axes) names.push_back(of_pairs.name);
    for (std::size_t i = 0; i < comparison.pairs.size(); ++i)
      json["pairs"][i]["settings"] = texts_of(comparison.pairs[i].settings);
    json["settings"] = std::move(names);
    json["also"] = std::move(also);
    json["axis"] = name_in_words(axis.name);
    return json;
  } catch (const ConfigError&) {
    return std::nullopt;  // no two points are equal in everything else: nothing to say
  }
}

// The first value of every grouping axis against each of its others.
OrderedJson comparisons_of(const StoredSweep& sweep, const Done& done,
                           const std::vector<Axis>& by) {
  OrderedJson comparisons = OrderedJson::array();
  for (const Axis& axis : by) {
    std::vector<Json> values;
    for (const StoredPoint* point : done) {
      const Json* value = find_value(point->config, axis.pointer);
      if (value == nullptr) continue;
      if (std::ranges::find(values, *value) == values.end()) values.push_back(*value);
    }
    const auto texts = texts_apart({values.begin(), values.end()}, name_in_words(axis.name));
    for (std::size_t v = 1; v < values.size() && comparisons.size() < most_comparisons; ++v) {
      auto comparison = compare_values(sweep, done, axis, values.front(), values[v]);
      if (!comparison) continue;
      (*comparison)["baseline"] = texts.at(values.front());
      (*comparison)["candidate"] = texts.at(values[v]);
      comparisons.push_back(std::move(*comparison));
    }
  }
  return comparisons;
}

OrderedJson compared_metrics_json() {
  OrderedJson metrics = OrderedJson::array();
  for (const ComparedMetric& metric : compared_metrics)
    metrics.push_back({{"name", metric.name},
                       {"label", metric.metric->label},
                       {"more_is_better", metric.more_is_better()}});
  return metrics;
}

// The objectives that all points share, in ms: what the page's limits begin with.
OrderedJson limits_of(const Done& done) {
  OrderedJson limits = OrderedJson::object();
  for (const char* name : {"ttft", "tpot"}) {
    const std::string pointer = fmt::format("{}/{}", slo_pointer, name);
    const Json* first = find_value(done.front()->report, pointer);
    const bool shared = first != nullptr && std::ranges::all_of(done, [&](const StoredPoint* p) {
                          const Json* value = find_value(p->report, pointer);
                          return value != nullptr && *value == *first;
                        });
    if (shared)
      limits[name] = rounded(ConfigNode(*first, "report").quantity<Seconds>().count() * 1e3, 9);
  }
  return limits;
}

OrderedJson unfinished_of(const StoredSweep& sweep) {
  OrderedJson unfinished = OrderedJson::array();
  for (const StoredPoint& point : sweep.points) {
    if (point.status == PointStatus::done) continue;
    OrderedJson settings = OrderedJson::array();
    for (const Axis& axis : sweep.axes)
      settings.push_back(setting_cell(value_at(point.config, axis.pointer)));
    unfinished.push_back({{"id", point.config_hash},
                          {"status", status_name(point.status)},
                          {"error", point.error},
                          {"settings", settings}});
  }
  return unfinished;
}

OrderedJson names_of(const std::vector<Axis>& axes) {
  OrderedJson names = OrderedJson::array();
  for (const Axis& axis : axes) names.push_back(axis.name);
  return names;
}

struct ShownMetric {
  std::string_view pointer, label, unit;
  bool less_is_better;
};

// The metrics that any point has, and the two asked for.
std::vector<ShownMetric> metrics_shown(const Done& done, const PageOptions& options,
                                       const Pareto& pareto) {
  std::vector<ShownMetric> shown;
  for (const Metric* metric : page_metrics) {
    const bool there = std::ranges::any_of(done, [&](const StoredPoint* point) {
      return report_number(*point, std::string(metric->pointer)).has_value();
    });
    if (!there) continue;
    const ReportKey& key = metric->key();
    shown.push_back({metric->pointer, metric->label, key.unit, key.better == Better::less});
  }
  const auto ensure = [&](const std::string& pointer, const std::string& name, bool less) {
    const bool there = std::ranges::any_of(
        shown, [&](const ShownMetric& metric) { return metric.pointer == pointer; });
    if (!there) shown.push_back({pointer, name, "", less});
  };
  ensure(options.axes.x, pareto.x_name, true);
  ensure(options.axes.y, pareto.y_name, false);
  return shown;
}

const Json& config_in(const StoredPoint& point) {
  static const Json none = Json::object();
  const Json* config = find_value(point.report, std::string(config_in_report));
  return config == nullptr ? none : *config;
}

OrderedJson heading_of(const StoredSweep& sweep, const PageOptions& options, const Pareto& curves,
                       const Done& done) {
  const Json* program = find_value(done.front()->report, "/context/moesim");
  OrderedJson data{{"moesim", program != nullptr ? *program : Json()},
                   {"store", options.store},
                   {"title", curves.title},
                   {"trust", trust_line(sweep)},
                   {"limits", limits_of(done)},
                   {"chosen", options.chosen},
                   {"x", options.axes.x},
                   {"y", options.axes.y}};
  for (const ShownMetric& metric : metrics_shown(done, options, curves))
    data["metrics"].push_back({{"pointer", metric.pointer},
                               {"label", metric.label},
                               {"unit", metric.unit},
                               {"less", metric.less_is_better}});
  data["parts"] = part_names;
  data["axes"] = names_of(sweep.axes);
  for (const auto& [key, names] :
       {std::pair{"by", &curves.group_names}, std::pair{"settings", &curves.setting_names}}) {
    data[key] = OrderedJson::array();
    for (const std::string& name : *names) data[key].push_back(name_in_words(name));
  }
  data["commands_need_a_file"] =
      options.base.empty() && !sweep.document.value("base", Json()).is_string();
  return data;
}

// Finds single points that the page shows, those of the frontier first, as far as a page can hold.
using PointAt = std::function<StoredPoint(const std::string& hash)>;
void add_details(OrderedJson& data, const Pareto& curves, const Json& config,
                 const PointAt& whole_point) {
  std::size_t details = 0, cells = 0, left_out = 0, turns = 0;
  for (const bool on_frontier : {true, false}) {
    for (std::size_t i = 0; i < curves.points.size() && details < most_details; ++i) {
      if (curves.points[i].on_frontier != on_frontier) continue;
      ++details;
      const StoredPoint point = whole_point(curves.points[i].config_hash);
      OrderedJson& shown = data["points"][i];
      shown["parts"] = parts_of(point);
      shown["instances"] = instances_of(point);
      shown["patch"] = Json::diff(config, config_in(point));
      OrderedJson sessions = sessions_of(point);
      if (!sessions.empty() && turns + turns_of(sessions) <= most_turns) {
        turns += turns_of(sessions);
        shown["sessions"] = std::move(sessions);
      }
      OrderedJson loads = loads_of(point);
      if (loads.empty()) continue;
      if (cells + cells_of(loads) > most_load_cells) {
        ++left_out;
        continue;
      }
      cells += cells_of(loads);
      shown["loads"] = std::move(loads);
    }
  }
  data["details_left_out"] = curves.points.size() - details;
  data["loads_left_out"] = left_out;
}

std::size_t count_groups(const StoredSweep& sweep, const std::vector<std::string>& by) {
  std::set<std::vector<std::string>> groups;
  for (const StoredPoint& point : sweep.points) {
    std::vector<std::string> group;
    for (const std::string& pointer : by) {
      const Json* value = setting_of(point, pointer);
      group.push_back(value == nullptr ? "" : value->dump());
    }
    groups.insert(std::move(group));
  }
  return groups.size();
}

bool runs_along_a_curve(const std::string& pointer) {
  constexpr std::array<std::string_view, 5> prefixes{"/workload/arrivals", "/workload/requests",
                                                     "/scheduling/max_", "/parallel", "/seed"};
  return std::ranges::any_of(prefixes,
                             [&](std::string_view prefix) { return pointer.starts_with(prefix); });
}

// True if a number is the same to 1 % in all points under equal loads, or in none.
bool hardly_varies(const StoredSweep& sweep, std::string_view pointer) {
  constexpr double enough = .99;
  std::map<std::vector<Json>, std::pair<double, double>> ranges;
  for (const StoredPoint& point : sweep.points) {
    const auto value = report_number(point, std::string(pointer));
    if (!value) continue;
    std::vector<Json> load;
    for (const Axis& axis : sweep.axes) {
      const Json* set =
          runs_along_a_curve(axis.pointer) ? setting_of(point, axis.pointer) : nullptr;
      load.push_back(set == nullptr ? Json() : *set);
    }
    auto& [least, most] = ranges.try_emplace(std::move(load), *value, *value).first->second;
    least = std::min(least, *value);
    most = std::max(most, *value);
  }
  return std::ranges::all_of(
      ranges, [](const auto& range) { return range.second.first >= enough * range.second.second; });
}

}  // namespace

bool has_objectives(const StoredSweep& sweep) {
  return std::ranges::any_of(sweep.points, [](const StoredPoint& point) {
    const Json* slo = find_value(point.report, std::string(slo_pointer));
    return slo != nullptr && !slo->empty();
  });
}

std::vector<std::string> default_groups(const StoredSweep& sweep) {
  std::vector<std::string> by;
  for (const Axis& axis : sweep.axes) {
    if (!runs_along_a_curve(axis.pointer)) by.push_back(axis.pointer);
  }
  // Implications of a dispatch about a routing policy are the policy's doing: try it first. Pools
  // have their name in any case.
  std::vector<std::string> to_try = by;
  std::stable_partition(to_try.begin(), to_try.end(), [](const std::string& pointer) {
    return pointer.starts_with("/dispatch");
  });
  std::erase(to_try, "/pools");
  const auto without = [&](const std::string& pointer) {
    std::vector<std::string> rest = by;
    std::erase(rest, pointer);
    return rest;
  };
  for (const std::string& pointer : to_try) {
    if (count_groups(sweep, without(pointer)) == count_groups(sweep, by)) by = without(pointer);
  }
  while (count_groups(sweep, by) > (by.size() > 1 ? most_groups : most_of_one_axis)) {
    by = without(*std::ranges::max_element(by, [&](const auto& a, const auto& b) {
      return count_groups(sweep, {a}) < count_groups(sweep, {b});
    }));
  }
  return by;
}

std::vector<std::string> page_pointers(const PageOptions& options) {
  std::vector<std::string> pointers = options.axes.by;
  pointers.insert(pointers.end(), {options.axes.x, options.axes.y, "/model", "/cluster"});
  for (const Metric* metric : page_metrics) pointers.emplace_back(metric->pointer);
  for (const ComparedMetric& compared : compared_metrics)
    pointers.emplace_back(compared.metric->pointer);
  for (const std::string& pointer : trust_pointers()) pointers.push_back(pointer);
  pointers.emplace_back(slo_pointer);
  pointers.emplace_back(state_pointer);
  return pointers;
}

OrderedJson page_data(StoredSweep sweep, const PageOptions& options, const ReportOf& report_of) {
  ParetoAxes axes = options.axes;
  axes.each_seed = true;
  const Pareto curves = pareto(sweep, axes);
  std::map<std::string, StoredPoint*> by_hash;
  Done done;
  for (StoredPoint& point : sweep.points) {
    if (point.status != PointStatus::done) continue;
    done.push_back(&point);
    by_hash[point.config_hash] = &point;
  }
  const PointAt whole_point = [&](const std::string& hash) {
    StoredPoint point = *by_hash.at(hash);
    if (report_of) point.report = report_of(point);
    return point;
  };
  OrderedJson comparisons = comparisons_of(sweep, done, named_axes(options.axes.by));
  OrderedJson data = heading_of(sweep, options, curves, done);
  const Json config = config_in(whole_point(curves.points.front().config_hash));
  data["config"] = config;
  std::vector<std::string> pointers;
  for (const OrderedJson& metric : data["metrics"]) pointers.push_back(metric["pointer"]);
  data["groups"] = OrderedJson::array();
  const Words words(curves);
  const std::vector<Json>* group = nullptr;
  for (const ParetoPoint& curve_point : curves.points) {
    StoredPoint& point = *by_hash.at(curve_point.config_hash);
    if (group == nullptr || *group != curve_point.group) {
      data["groups"].push_back(texts_of(curve_point.group, words.groups));
      group = &curve_point.group;
    }
    data["points"].push_back({{"id", point.config_hash},
                              {"group", data["groups"].size() - 1},
                              {"settings", texts_of(curve_point.settings, words.settings)},
                              {"metrics", metrics_of(point, pointers)},
                              {"state", OrderedJson(value_at(point.report, state_pointer))},
                              {"command", reproduce_command(sweep, point, options.base)}});
    if (report_of) point.report = Json();  // is shown; what follows reads whole ones again
  }
  add_details(data, curves, config, whole_point);
  data["compared"] = compared_metrics_json();
  data["comparisons"] = std::move(comparisons);
  data["unfinished"] = unfinished_of(sweep);
  return data;
}

std::string report_page(const OrderedJson& data) {
  if (assets::echarts_js().empty()) {
    throw ConfigError(
        "this moesim was built without Apache ECharts, which draws the page; in the source tree "
        "run `tools/report/fetch echarts/dist/echarts.min.js` and build again");
  }
  // Nothing in the data may end its script: "<" is written as JSON's escape.
  std::string json;
  for (const char c : data.dump(-1, ' ', false, OrderedJson::error_handler_t::replace))
    json += c == '<' ? std::string("\\u003c") : std::string(1, c);
  const std::map<std::string_view, std::string_view> parts{{"css", assets::page_css()},
                                                           {"js", assets::page_js()},
                                                           {"echarts", assets::echarts_js()},
                                                           {"data", json}};
  // The template's {{names}} stand for the parts.
  std::string page;
  std::string_view rest = assets::page_html();
  for (auto begin = rest.find("{{"); begin != rest.npos; begin = rest.find("{{")) {
    const auto end = rest.find("}}", begin);
    page.append(rest.substr(0, begin)).append(parts.at(rest.substr(begin + 2, end - begin - 2)));
    rest.remove_prefix(end + 2);
  }
  return page.append(rest);
}

StorePage store_page(const std::filesystem::path& file, PageOptions options) {
  const Store store = Store::open(file);
  const bool choose_y = options.axes.y.empty();
  if (choose_y) options.axes.y = ParetoAxes{}.y;
  StoredSweep sweep = read_comparable(store, page_pointers(options));
  if (choose_y && has_objectives(sweep)) options.axes.y = metric("request_goodput").pointer;
  if (const Metric& ttft = metric("p99_ttft_ms");
      choose_y && hardly_varies(sweep, options.axes.y) && !hardly_varies(sweep, ttft.pointer)) {
    options.axes.y = ttft.pointer;
    options.axes.least_y = true;
  }
  if (options.axes.by.empty()) options.axes.by = default_groups(sweep);
  options.store = file.filename().string();
  const std::string points =
      fmt::format("{} of {}", count_by_status(sweep.points), sweep.points.size());
  const auto report_of = [&](const StoredPoint& point) {
    return store.report_of(point.config_hash);
  };
  return {report_page(page_data(std::move(sweep), options, report_of)), points};
}

}  // namespace moesim
