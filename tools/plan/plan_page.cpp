// SPDX-License-Identifier: Apache-2.0
#include "tools/plan/plan_page.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "tools/report/page.hpp"
#include "tools/sweep/store.hpp"

namespace moesim {

namespace {

// Pointer to the load of a run as a number.
constexpr const char* load_pointer = "/plan/load";
// Settings by which the page names a run: its row's name, and its load.
constexpr const char* layout_setting = "/layout";
constexpr const char* load_setting = "/load";

// A deployment whatever its load, its length and its seed.
Json place_of(Json config) {
  config["workload"].erase("requests");
  config["workload"].erase("arrivals");
  config["measurement"].erase("expert_counts");
  config.erase("seed");
  return config;
}

double load_of(const Json& config) {
  const Json* rate = find_value(config, rate_pointer);
  return rate != nullptr ? std::stod(rate->get<std::string>())
                         : find_value(config, lanes_pointer)->get<double>();
}

// The runs of the table's deployments. One that was given up shows how many had met the limits.
StoredSweep runs_of(const PlanPage& page) {
  std::vector<Json> places;
  for (const SloRun& run : page.runs) places.push_back(place_of(run.config));
  StoredSweep sweep;
  sweep.document = Json::object();
  sweep.axes = {{layout_setting, "layout"}, {load_setting, "load"}, {"/seed", "seed"}};
  for (const StoreRow& row : Store::open(page.store).rows()) {
    StoredPoint point{row.config_hash, Json::parse(row.config), row.status, row.error, {}};
    const auto place = std::ranges::find(places, place_of(point.config));
    if (place == places.end() || row.report.empty()) continue;
    point.report = Json::parse(row.report);
    if (const Json* attained = find_value(point.report, "/given_up/attained")) {
      point.report = {{"metrics", {{"slo_attainment", *attained}}},
                      {"measurement", {{"state", "given_up"}}},
                      {"context", {{"config", point.config}}}};
      point.status = PointStatus::done;
    }
    if (point.status != PointStatus::done) continue;
    const auto number = at(place - places.begin());
    const double load = load_of(point.config);
    point.report[Json::json_pointer(load_pointer)] = load;
    point.config[Json::json_pointer(load_setting)] = load;
    point.config[Json::json_pointer(layout_setting)] =
        fmt::format("{}: {}", number + 1, page.table.shapes[number]);
    sweep.points.push_back(std::move(point));
  }
  // Whole reports first: the page takes what all share from one of them.
  std::stable_partition(sweep.points.begin(), sweep.points.end(), [](const StoredPoint& point) {
    return point.report.at("metrics").size() > 1;
  });
  return sweep;
}

OrderedJson answer_of(const PlanPage& page, const std::vector<std::string>& ids) {
  OrderedJson answer{{"question", page.question},     {"result", page.result},
                     {"notes", page.notes},           {"engine", page.engine},
                     {"attainment", page.attainment}, {"head", page.table.head}};
  for (std::size_t i = 0; i < page.table.rows.size(); ++i)
    answer["rows"].push_back({{"id", ids[i]},
                              {"name", page.table.shapes[i]},
                              {"remark", page.table.remarks[i]},
                              {"cells", page.table.rows[i]},
                              {"launch", page.launch[i]}});
  return answer;
}

}  // namespace

std::string plan_page(const PlanPage& page) {
  PageOptions options;
  options.axes = {.x = load_pointer,
                  .y = std::string(metric("slo_attainment").pointer),
                  .by = {layout_setting}};
  options.store = page.store.filename().string();
  StoredSweep sweep = runs_of(page);
  std::vector<std::string> ids(page.runs.size());
  for (const StoredPoint& point : sweep.points) {
    Json config = point.config;
    config.erase("layout");
    config.erase("load");
    for (std::size_t i = 0; i < ids.size(); ++i) {
      if (config == page.runs[i].config) ids[i] = point.config_hash;
    }
  }
  options.chosen = ids.front();
  OrderedJson data = page_data(std::move(sweep), options);
  data["title"] = page.title;
  data["answer"] = answer_of(page, ids);
  for (OrderedJson& metric : data["metrics"]) {
    if (metric["pointer"] != load_pointer) continue;
    metric["label"] = "Load";
    metric["unit"] = page.sessions ? "sessions alive" : "requests/s";
    metric["less"] = false;
  }
  for (OrderedJson& point : data["points"]) point.erase("loads");
  return report_page(data);
}

}  // namespace moesim
