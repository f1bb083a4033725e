// SPDX-License-Identifier: Apache-2.0
#include "tools/report/page_point.hpp"

#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "hardware/quoting.hpp"
#include "sim/experiment/experiment.hpp"

namespace moesim {

namespace {

constexpr std::array<std::string_view, 7> instance_columns{
    "mean_step_ms",        "utilization",     "barrier_idle_share", "output_tokens",
    "kv_mean_utilization", "prefix_hit_rate", "preemptions"};
constexpr std::size_t most_instances = 64;

// Means per step of what one layer's ranks do, appended.
void append_means(OrderedJson& cells, const Json& layer, const char* what, double steps) {
  for (const Json& total : layer.at(what).at("total_by_rank"))
    cells.push_back(rounded(total.get<double>() / steps, 4));
}

// Text as --set reads it: a text that is no JSON means itself.
std::string override_text(const Json& value) {
  if (!value.is_string()) return value.dump();
  const auto text = value.get<std::string>();
  return Json::accept(text) ? value.dump() : text;
}

}  // namespace

OrderedJson rounded(double value, int digits) {
  return std::stod(fmt::format("{:.{}g}", value, digits));
}

OrderedJson parts_of(const StoredPoint& point) {
  OrderedJson kinds = OrderedJson::object();
  const auto add = [&](const std::string& steps, const std::string& title) {
    for (const std::string_view kind : step_kind_names) {
      const std::string of_kind = fmt::format("{}/{}", steps, kind);
      const Json* parts = find_value(point.report, of_kind + "/parts_mean_ms");
      if (parts == nullptr || report_number(point, of_kind + "/steps").value_or(0) == 0) continue;
      OrderedJson& row = kinds[title + std::string(kind)] = OrderedJson::array();
      for (const std::string_view part : part_names)
        row.push_back(rounded(parts->value(std::string(part), 0.0), 5));
    }
  };
  add("/steps", "");
  add("/pools/prefill/steps", "prefill pool: ");
  return kinds;
}

OrderedJson instances_of(const StoredPoint& point) {
  OrderedJson rows = OrderedJson::array();
  const auto add = [&](const std::string& pointer, std::string_view pool) {
    const Json* instances = find_value(point.report, pointer);
    if (instances == nullptr) return;
    for (const Json& instance : *instances) {
      if (rows.size() == most_instances) return;
      OrderedJson row{pool, instance.at("instance").get<int>()};
      for (const std::string_view column : instance_columns)
        row.push_back(rounded(instance.at(std::string(column)).get<double>(), 5));
      rows.push_back(std::move(row));
    }
  };
  add("/pools/prefill/instances", "prefill");
  add("/pools/decode/instances", "decode");
  add("/instances", "");
  return rows;
}

OrderedJson loads_of(const StoredPoint& point) {
  OrderedJson kinds = OrderedJson::object();
  const Json* by_kind = find_value(point.report, "/experts/by_step_kind");
  if (by_kind == nullptr) return kinds;
  for (const auto& [kind, experts] : by_kind->items()) {
    const Json* layers = find_value(experts, "/layers");
    const double steps = report_number(point, fmt::format("/steps/{}/steps", kind)).value_or(0);
    if (layers == nullptr || steps == 0) continue;
    if (find_value(experts, "/layers/0/rank_tokens/total_by_rank") == nullptr) continue;
    OrderedJson& load = kinds[kind];
    load = {{"layers", OrderedJson::array()},
            {"activated", OrderedJson::array()},
            {"tokens", OrderedJson::array()}};
    for (const Json& layer : *layers) {
      load["layers"].push_back(layer.at("layer").get<int>());
      append_means(load["activated"], layer, "rank_activated", steps);
      append_means(load["tokens"], layer, "rank_tokens", steps);
    }
    for (const char* name :
         {"max_activated_mean", "activated_mean", "max_tokens_mean", "tokens_mean"}) {
      load[name] = rounded(experts.at(name).get<double>(), 5);
    }
  }
  return kinds;
}

std::size_t cells_of(const OrderedJson& loads) {
  std::size_t cells = 0;
  for (const auto& load : loads) cells += load["activated"].size() + load["tokens"].size();
  return cells;
}

OrderedJson sessions_of(const StoredPoint& point) {
  OrderedJson sessions = OrderedJson::object();
  const Json* slowest = find_value(point.report, "/sessions/slowest");
  const Json* over_time = find_value(point.report, "/turns/over_time");
  if (slowest == nullptr || over_time == nullptr) return sessions;
  for (const Json& span : *over_time) {
    const auto loaded = span.value("loaded_tokens", std::int64_t{0});
    sessions["over_time"].push_back({span.at("begin_s"), span.at("end_s"),
                                     span.at("queried_tokens"),
                                     span.at("hit_tokens").get<std::int64_t>() - loaded, loaded});
  }
  sessions["slowest"] = OrderedJson::array();
  for (const Json& session : *slowest) {
    OrderedJson row{{"session", session.at("session")},
                    {"begun_s", session.at("begun_s")},
                    {"ended_s", session.at("ended_s")},
                    {"turns", OrderedJson::array()}};
    for (const Json& turn : session.at("turns")) {
      const double begun = turn.at("begun_s");
      row["turns"].push_back({turn.at("agent"), turn.at("turn"), turn.at("sent_s"),
                              begun - turn.value("loading_s", 0.0), begun, turn.at("first_token_s"),
                              turn.at("last_token_s"), turn.at("prompt_tokens"),
                              turn.at("output_tokens")});
    }
    sessions["slowest"].push_back(std::move(row));
  }
  return sessions;
}

std::size_t turns_of(const OrderedJson& sessions) {
  std::size_t turns = 0;
  for (const OrderedJson& session : sessions.at("slowest")) turns += session.at("turns").size();
  return turns;
}

std::string reproduce_command(const StoredSweep& sweep, const StoredPoint& point,
                              const std::string& base) {
  const Json* named = find_value(sweep.document, "/base");
  std::string file = base;
  if (file.empty() && named != nullptr && named->is_string()) file = named->get<std::string>();
  // An experiment that stands in the sweep itself has no file: the page shows it, to be saved.
  if (file.empty()) return fmt::format("moesim run {}.json", point.config_hash);
  std::string command = "moesim run " + in_shell(file);
  std::vector<std::string> set;  // sorted by pointer: what holds others comes before them
  for (const Axis& axis : axes_of(sweep.document)) {
    const bool within_another = std::ranges::any_of(
        set, [&](const std::string& outer) { return axis.pointer.starts_with(outer + "/"); });
    const Json* value = find_value(point.config, axis.pointer);
    if (within_another || value == nullptr) continue;
    set.push_back(axis.pointer);
    command += " --set " + in_shell(axis.pointer + "=" + override_text(*value));
  }
  return command;
}

}  // namespace moesim
