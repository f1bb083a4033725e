// SPDX-License-Identifier: Apache-2.0
#include "tools/analysis/pareto.hpp"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <map>
#include <numeric>
#include <set>
#include <tuple>
#include <utility>

#include <fmt/format.h>

#include "hardware/shipped.hpp"
#include "tools/analysis/comparable.hpp"
#include "tools/cli/output.hpp"

namespace moesim {

namespace {

const Json* value_of(const StoredPoint& point, const std::string& pointer) {
  if (const Json* value = find_value(point.report, pointer)) return value;
  return setting_of(point, pointer);
}

// Setting of a point, though its report may have a section of the same name ("instances", "pools");
// else what the report says.
const Json* setting_or_value_of(const StoredPoint& point, const std::string& pointer) {
  if (const Json* value = setting_of(point, pointer)) return value;
  return find_value(point.report, pointer);
}

// Place where a wrong pointer ends: the last object that it reaches, and what that holds.
std::string what_would_be_right(const Json& report, const std::string& pointer) {
  const Json* holder = &report;
  std::string reached;
  std::string missing;
  std::size_t start = 1;
  for (;;) {
    const auto end = std::min(pointer.find('/', start), pointer.size());
    missing = pointer.substr(start, end - start);
    if (!holder->is_object() || !holder->contains(missing)) break;
    holder = &holder->at(missing);
    reached += '/';
    reached += missing;
    start = end + 1;
  }
  std::vector<std::string> keys;
  if (holder->is_object()) {
    for (const auto& item : holder->items()) keys.push_back(item.key());
  }
  if (keys.empty()) return fmt::format("\"{}\" holds no names", reached);
  const std::vector<std::string_view> names(keys.begin(), keys.end());
  const std::string_view nearest = nearest_name(missing, names);
  if (!nearest.empty()) return fmt::format("did you mean \"{}/{}\"?", reached, nearest);
  return fmt::format("\"{}/..\" has {}", reached, join_names(names));
}

void check_pointer(const std::vector<const StoredPoint*>& points, const std::string& pointer) {
  if (!pointer.starts_with('/')) {
    throw ConfigError(
        "{}: expected a JSON pointer into the report, such as /metrics/median_tpot_ms", pointer);
  }
  const bool found = std::ranges::any_of(
      points, [&](const StoredPoint* point) { return value_of(*point, pointer) != nullptr; });
  if (found) return;
  throw ConfigError("{}: no report has it; {}", pointer,
                    what_would_be_right(points.front()->report, pointer));
}

std::optional<double> number_at(const StoredPoint& point, const std::string& pointer) {
  const Json* value = value_of(point, pointer);
  if (value == nullptr || value->is_null()) return std::nullopt;
  if (!value->is_number()) {
    throw ConfigError("{}: a number is expected, a report has {}", pointer,
                      value->is_structured() ? "an object or a list" : value->dump());
  }
  return value->get<double>();
}

std::vector<Json> values_at(const StoredPoint& point, const std::vector<std::string>& pointers) {
  std::vector<Json> values;
  for (const std::string& pointer : pointers) {
    const Json* value = setting_or_value_of(point, pointer);
    values.push_back(value == nullptr ? Json() : *value);
  }
  return values;
}

std::vector<std::string> names_of(const std::vector<Axis>& axes) {
  std::vector<std::string> names;
  for (const Axis& axis : axes) names.push_back(axis.name);
  return names;
}

// To 40 of a double's 53 bits, one part in 10^12: what differs only by how a sum was rounded is
// equal. The page (report/page.js) does the same.
double without_rounding_errors(double number) {
  int exponent = 0;
  const double fraction = std::frexp(number, &exponent);
  return std::ldexp(std::round(std::ldexp(fraction, 40)), exponent - 40);
}

// Sorted points, group after group.
template <class Points>
auto groups_in(Points& points) {
  std::vector<decltype(std::span(points))> groups;
  for (auto begin = points.begin(); begin != points.end();) {
    const auto end = std::find_if(
        begin, points.end(), [&](const ParetoPoint& point) { return point.group != begin->group; });
    groups.emplace_back(begin, end);
    begin = end;
  }
  return groups;
}

// Marks the frontier of points of one group.
void mark_frontier(std::span<ParetoPoint> group, bool least_y) {
  std::vector<std::pair<double, double>> places;
  std::vector<ParetoPoint*> placed;
  for (ParetoPoint& point : group) {
    if (!point.x || !point.y) continue;
    places.emplace_back(without_rounding_errors(*point.x),
                        without_rounding_errors(least_y ? -*point.y : *point.y));
    placed.push_back(&point);
  }
  const std::vector<bool> best = frontier(places);
  for (std::size_t i = 0; i < placed.size(); ++i) placed[i]->on_frontier = best[i];
}

}  // namespace

std::vector<bool> frontier(std::span<const std::pair<double, double>> points) {
  std::vector<std::size_t> order(points.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::sort(order, [&](std::size_t a, std::size_t b) {
    return std::tuple(points[a].first, -points[a].second) <
           std::tuple(points[b].first, -points[b].second);
  });
  std::vector<bool> best(points.size());
  const std::pair<double, double>* last = nullptr;  // the latest on the frontier: the highest y
  for (const std::size_t i : order) {
    best[i] = last == nullptr || points[i].second > last->second || points[i] == *last;
    if (best[i]) last = &points[i];
  }
  return best;
}

namespace {

// "Median TPOT, ms" where the catalogue knows the key.
std::string label_of(const std::string& pointer, const std::string& name) {
  const auto row = std::ranges::find(metric_catalogue, pointer, &Metric::pointer);
  if (row == metric_catalogue.end()) return name;
  const std::string_view unit = row->key().unit;
  return fmt::format("{}{}{}", row->label, unit.empty() ? "" : ", ", unit);
}

// The "name" of what a config says in place or in a shipped file. Of other files their name without
// folder and ending, or the folder's of HuggingFace's config.json; empty where nothing is said.
std::string name_of(const Json& said, Shipped kind) {
  if (said.is_object()) return text_at(said, "/name");
  if (!said.is_string()) return "";
  const std::filesystem::path path(said.get<std::string>());
  const std::string stem =
      (path.filename() == "config.json" ? path.parent_path().filename() : path.stem()).string();
  const auto file = shipped_file(kind, path.has_parent_path() ? stem : path.string());
  return file ? ConfigNode::from_file(*file).json().value("name", stem) : stem;
}

std::string title_of(const std::vector<const StoredPoint*>& done) {
  // Names are in files, and points have few of these.
  std::set<std::pair<Json, Json>> said;
  for (const StoredPoint* point : done)
    said.emplace(point->config.value("model", Json()), point->config.value("cluster", Json()));
  std::set<std::string> titles;
  for (const auto& [of_model, of_cluster] : said) {
    const std::string model = name_of(of_model, Shipped::model);
    const std::string cluster = name_of(of_cluster, Shipped::cluster);
    titles.insert(model.empty() || cluster.empty() ? "" : fmt::format("{} on {}", model, cluster));
  }
  return titles.size() == 1 ? *titles.begin() : "";
}

}  // namespace

std::string name_in_words(std::string_view name) {
  const std::size_t slash = name.find('/');
  std::string text(name);
  if (slash != name.npos)
    text = fmt::format("{} {}", name.substr(slash + 1), name.substr(0, slash));
  std::ranges::replace(text, '_', ' ');
  std::ranges::replace(text, '/', ' ');
  return text;
}

Pareto pareto(const StoredSweep& sweep, const ParetoAxes& axes) {
  std::vector<const StoredPoint*> done;
  for (const StoredPoint& point : sweep.points) {
    if (point.status == PointStatus::done) done.push_back(&point);
  }
  if (done.empty()) {
    throw ConfigError("the store has no finished point ({}); run its sweep again",
                      count_by_status(sweep.points));
  }
  check_pointer(done, axes.x);
  check_pointer(done, axes.y);
  for (const std::string& pointer : axes.by) check_pointer(done, pointer);

  std::vector<std::string> settings;
  for (const Axis& axis : sweep.axes) {
    const bool grouped = std::ranges::any_of(axes.by, [&](const std::string& by) {
      return by == axis.pointer || by == std::string(config_in_report) + axis.pointer;
    });
    if (!grouped && (axes.each_seed || axis.pointer != seed_pointer))
      settings.push_back(axis.pointer);
  }
  // Named together, so that no two columns have one name.
  std::vector<std::string> columns = axes.by;
  columns.insert(columns.end(), settings.begin(), settings.end());
  columns.insert(columns.end(), {axes.x, axes.y});
  const std::vector<std::string> names = names_of(named_axes(columns));
  const auto first_setting = names.begin() + std::ssize(axes.by);
  Pareto result{{names.begin(), first_setting},
                {first_setting, names.end() - 2},
                names[names.size() - 2],
                names.back(),
                label_of(axes.x, names[names.size() - 2]),
                label_of(axes.y, names.back()),
                title_of(done),
                axes.least_y,
                {}};
  // Runs that differ in their seed alone are one point, their mean: else the luckiest seed of each
  // would make the frontier.
  const auto names_seed = [](const std::string& column) {
    return column == seed_pointer || column == std::string(config_in_report) + seed_pointer;
  };
  const bool by_seed = axes.each_seed || std::ranges::any_of(columns, names_seed);
  std::map<Json, std::size_t> place_of;
  std::vector<std::size_t> runs;  // of each point, those with both numbers
  for (const StoredPoint* point : done) {
    Json settled = point->config;
    if (!by_seed && settled.is_object()) settled.erase("seed");
    const auto [place, is_new] = place_of.try_emplace(std::move(settled), result.points.size());
    if (is_new) {
      result.points.push_back(
          {point->config_hash, values_at(*point, axes.by), values_at(*point, settings), {}, {}, 0});
      runs.push_back(0);
    }
    ParetoPoint& mean = result.points[place->second];
    ++mean.runs;
    const auto x = number_at(*point, axes.x), y = number_at(*point, axes.y);
    if (runs[place->second] == 0 && (is_new || (x && y))) {
      mean.x = x;
      mean.y = y;
    }
    if (!x || !y) continue;
    const auto n = double(++runs[place->second]);
    mean.x = *mean.x + (*x - *mean.x) / n;
    mean.y = *mean.y + (*y - *mean.y) / n;
  }
  // Key of the order: by group, then x; points without x last.
  const auto key = [&](const ParetoPoint& point) {
    return std::tuple(point.group, point.x.value_or(std::numeric_limits<double>::infinity()),
                      (axes.least_y ? 1 : -1) * point.y.value_or(0));
  };
  std::ranges::stable_sort(
      result.points, [&](const ParetoPoint& a, const ParetoPoint& b) { return key(a) < key(b); });
  for (const std::span<ParetoPoint> group : groups_in(result.points))
    mark_frontier(group, axes.least_y);
  return result;
}

std::string group_text(const Pareto& pareto, const ParetoPoint& point) {
  std::string text;
  for (std::size_t i = 0; i < point.group.size(); ++i) {
    const Json& value = point.group[i];
    text += fmt::format("{}{}={}", text.empty() ? "" : ", ", pareto.group_names[i],
                        setting_cell(value));
  }
  return text.empty() ? "all points" : text;
}

std::vector<std::map<Json, std::string>> group_words(const Pareto& pareto) {
  std::vector<std::map<Json, std::string>> words;
  for (std::size_t i = 0; i < pareto.group_names.size(); ++i) {
    std::set<Json> values;
    for (const ParetoPoint& point : pareto.points) values.insert(point.group[i]);
    const std::string name = name_in_words(pareto.group_names[i]);
    auto& texts = words.emplace_back(texts_apart(values, name));
    // A value that could be of any axis has its name before it.
    for (auto& [value, text] : texts) {
      if (value.is_number() || value.is_boolean() || text == "unset") text = name + " " + text;
    }
  }
  return words;
}

std::vector<std::span<const ParetoPoint>> groups_of(const Pareto& pareto) {
  return groups_in(pareto.points);
}

std::string pareto_text(const Pareto& pareto) {
  std::vector<std::string> head = pareto.group_names;
  head.insert(head.end(), pareto.setting_names.begin(), pareto.setting_names.end());
  const std::size_t settings = head.size();
  head.insert(head.end(), {pareto.x_name, pareto.y_name});
  std::vector<std::vector<std::string>> rows;
  for (const ParetoPoint& point : pareto.points) {
    if (!point.on_frontier) continue;
    auto& row = rows.emplace_back();
    for (const auto* values : {&point.group, &point.settings}) {
      for (const Json& value : *values) row.push_back(setting_cell(value));
    }
    row.push_back(number_text(*point.x));
    row.push_back(number_text(*point.y));
  }
  const std::size_t shown = rows.size();
  const bool means =
      std::ranges::any_of(pareto.points, [](const auto& point) { return point.runs > 1; });
  return fmt::format("{}\n{} of {} points are on a frontier (least {}, {} {}){}\n",
                     narrow_table(std::move(head), std::move(rows), settings), shown,
                     pareto.points.size(), pareto.x_name, pareto.least_y ? "least" : "most",
                     pareto.y_name, means ? "; each is the mean over its seeds" : "");
}

OrderedJson pareto_rows(const Pareto& pareto) {
  OrderedJson rows = OrderedJson::array();
  for (const ParetoPoint& point : pareto.points) {
    OrderedJson& row = rows.emplace_back(OrderedJson{{"config_hash", point.config_hash}});
    const auto add = [&](const std::vector<std::string>& names, const std::vector<Json>& values) {
      for (std::size_t i = 0; i < names.size(); ++i) row[names[i]] = values[i];
    };
    const auto number = [](const std::optional<double>& of) { return of ? Json(*of) : Json(); };
    add(pareto.group_names, point.group);
    add(pareto.setting_names, point.settings);
    row[pareto.x_name] = number(point.x);
    row[pareto.y_name] = number(point.y);
    row["on_frontier"] = point.on_frontier ? 1 : 0;
  }
  return rows;
}

}  // namespace moesim
