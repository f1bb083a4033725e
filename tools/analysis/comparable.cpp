// SPDX-License-Identifier: Apache-2.0
#include "tools/analysis/comparable.hpp"

#include <algorithm>

#include <fmt/ranges.h>
#include <spdlog/spdlog.h>

#include "hardware/at.hpp"
#include "hardware/find_value.hpp"
#include "tools/sweep/sweep.hpp"

namespace moesim {

namespace {

constexpr const char* offered_rate = "/measurement/offered_request_rate";
constexpr const char* served_rate = "/measurement/served_request_rate";

bool drains_a_queue(const StoredPoint& point) {
  constexpr double chance = 1.1;  // as many leave as arrive, but for that
  if (text_at(point.report, state_pointer) != "unsteady") return false;
  const double offered = number_at(point.report, offered_rate, 0);
  return offered > 0 && number_at(point.report, served_rate, 0) > chance * offered;
}

}  // namespace

void erase_at(Json& config, const std::string& pointer) {
  const Json::json_pointer place(pointer);
  Json& holder = config.at(place.parent_pointer());
  if (holder.is_array()) {
    holder.at(at(std::stoul(place.back()))) = nullptr;
  } else {
    holder.erase(place.back());
  }
}

StoredSweep read_comparable(const Store& store, std::vector<std::string> pointers) {
  pointers.insert(pointers.end(), {state_pointer, offered_rate, served_rate});
  StoredSweep sweep = store.read(pointers);
  if (std::ranges::all_of(sweep.points, drains_a_queue)) return sweep;  // nothing else to compare
  const std::size_t out = std::erase_if(sweep.points, drains_a_queue);
  if (out > 0)
    spdlog::warn(
        "{} of {} points are left out: measured after the last arrival too, they serve more than "
        "is offered, from a queue that drains; give these loads more requests",
        out, out + sweep.points.size());
  return sweep;
}

std::string axes_text(const Store& store) {
  constexpr std::size_t most_values = 4;
  const StoredSweep sweep = store.read();
  std::string text;
  for (const Axis& axis : sweep.axes) {
    std::vector<std::string> values;
    for (const StoredPoint& point : sweep.points) {
      const Json* value = setting_of(point, axis.pointer);
      std::string shown = value == nullptr ? "unset" : setting_text(*value);
      if (std::ranges::find(values, shown) == values.end()) values.push_back(std::move(shown));
    }
    if (values.size() < 2) continue;
    if (values.size() > most_values) values = {values[0], values[1], values[2], "..."};
    text +=
        fmt::format("{}{} ({})", text.empty() ? "" : ", ", axis.pointer, fmt::join(values, ", "));
  }
  return text.empty() ? "nothing" : text;
}

}  // namespace moesim
