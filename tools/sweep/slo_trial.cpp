// SPDX-License-Identifier: Apache-2.0
#include "tools/sweep/slo_trial.hpp"

#include <algorithm>
#include <limits>
#include <optional>
#include <vector>

#include <fmt/format.h>

#include "sim/report/metric_catalogue.hpp"
#include "tools/cli/table.hpp"
#include "tools/sweep/axes.hpp"
#include "tools/sweep/sweep.hpp"

namespace moesim {

namespace {

struct Limit {
  const char* name;
  const Metric* metric;
  std::string_view key;
};
constexpr Limit limits[] = {{"TPOT", &metric("p90_tpot_ms"), "tpot"},
                            {"TTFT", &metric("p90_ttft_ms"), "ttft"},
                            {"E2E", &metric("p90_e2el_ms"), "e2el"}};

std::optional<double> number_of(const Json& report, const Metric& metric) {
  return found_number(report, std::string(metric.pointer));
}

std::optional<double> limit_ms(const Json& config, std::string_view key) {
  const Json* value = find_value(config, fmt::format("/slo/{}", key));
  if (value == nullptr || !value->is_string()) return std::nullopt;
  return 1000 * parse_quantity<Seconds>(value->get<std::string>()).count();
}

std::string state_in(const Json& report) { return text_at(report, state_pointer); }

// True if the time to the first token grows so fast that it will miss its limit in a run twice as
// long. No further: queues near the capacity take tens of seconds to reach their mean, and then
// stay.
bool grows_beyond(const Json& report, const std::optional<double>& limit_ms) {
  constexpr double later = 1;  // run lengths from now
  const auto growth = found_number(report, "/measurement/ttft_growth");
  const auto p90 = number_of(report, metric("p90_ttft_ms"));
  const auto seconds = found_number(report, "/metrics/duration_s");
  if (!growth || !p90 || !seconds || !limit_ms) return false;
  return *growth > 0 && *p90 + 1e3 * *growth * later * *seconds > *limit_ms;
}

// A limit on sessions, and where a report has what it limits; seconds are `per_second` of its unit.
struct SessionLimit {
  const char* name;
  std::optional<Seconds> SessionLimits::*most;
  const char* pointer;
  double per_second;
};
constexpr SessionLimit session_limits[] = {
    {"TTFT of first turns", &SessionLimits::first_ttft, "/turns/first/p90_ttft_ms", 1e3},
    {"TTFT of later turns", &SessionLimits::later_ttft, "/turns/later/p90_ttft_ms", 1e3},
    {"time of a session", &SessionLimits::completion, "/sessions/p90_completion_s", 1}};

// A latency of a run over its limit, above 1 where it is missed.
struct Excess {
  const char* name;
  double over;
};

// Excesses of the p90s that have a limit. Turns of a kind that the run has none of are in time.
std::vector<Excess> excesses_of(const Json& config, const Json& report,
                                const SessionLimits& of_sessions) {
  std::vector<Excess> all;
  for (const Limit& limit : limits) {
    const auto most = limit_ms(config, limit.key);
    const auto found = number_of(report, *limit.metric);
    if (most && found) all.push_back({limit.name, *found / *most});
  }
  for (const SessionLimit& limit : session_limits) {
    const auto most = of_sessions.*limit.most;
    const auto found = found_number(report, limit.pointer);
    if (most && found) all.push_back({limit.name, *found / (limit.per_second * most->count())});
    // Sessions of which none ended in the run took longer than the run.
    if (of_sessions.completion && limit.most == &SessionLimits::completion && !found)
      all.push_back({limit.name, std::numeric_limits<double>::infinity()});
  }
  return all;
}

// True if the limits on sessions are kept.
bool sessions_in_time(const Json& report, const SessionLimits& of_sessions) {
  return std::ranges::none_of(excesses_of({}, report, of_sessions),
                              [](const Excess& excess) { return excess.over > 1; });
}

// True if a run shows the proof in addition to its attainment.
bool shows(const Json& config, const Json& report, Proof proof, double attainment) {
  const std::string state = state_in(report);
  if (proof == Proof::attained) {
    // Measured requests of an unsteady run may be its end alone, when few are left.
    const auto whole = found_number(report, "/measurement/attainment/whole_run");
    return state != "overloaded" && (state == "stable" || !whole || *whole >= attainment);
  }
  if (state != "stable") return false;
  if (proof == Proof::steady) return true;
  const Json* along = find_value(report, "/measurement/attainment");
  if (along == nullptr) return false;
  constexpr double by_chance_below = 2;  // standard errors
  const double error = along->at("standard_error");
  return along->at("second_half").get<double>() + by_chance_below * error >= attainment &&
         !grows_beyond(report, limit_ms(config, "ttft"));
}

// Returns capacity where a backlog grows; else the latency that fewest requests keep.
std::string lack_of_requests(const Json& report) {
  if (state_in(report) == "overloaded") return "capacity";
  std::string name;
  double least = 2;
  for (const Limit& limit : limits) {
    const auto met = found_number(report, fmt::format("/metrics/attainment/{}", limit.key));
    if (!met || *met >= least) continue;
    least = *met;
    name = limit.name;
  }
  return name;
}

}  // namespace

Trial trial_of(const Json& config, const Json& report, double rate, const SloSearch& search) {
  const auto met = number_of(report, metric("slo_attainment"));
  const auto throughput = number_of(report, metric("request_throughput"));
  Trial trial;
  trial.excess = std::numeric_limits<double>::infinity();
  if (!throughput || (!met && !search.sessions)) return trial;
  trial.attainment = met.value_or(1);
  trial.goodput = (search.sessions ? rate : std::min(*throughput, rate)) * trial.attainment;
  trial.lasts = shows(config, report, search.proof, search.attainment);
  trial.meets = trial.lasts && trial.attainment >= search.attainment &&
                sessions_in_time(report, search.session_limits);
  if (trial.meets && search.by_load) trial.goodput = rate;
  trial.excess = 0;
  for (const Excess& excess : excesses_of(config, report, search.session_limits))
    trial.excess = std::max(trial.excess, excess.over);
  return trial;
}

std::string lack_of(const SloRun& run, const SloSearch& search) {
  if (!search.sessions || state_in(run.report) == "overloaded") return lack_of_requests(run.report);
  const auto all = excesses_of(run.config, run.report, search.session_limits);
  const auto most = std::ranges::max_element(all, {}, &Excess::over);
  return most == all.end() ? "" : most->name;
}

std::string state_of(const SloRun& run) { return state_in(run.report); }

std::string metric_text(const SloRun& run, const Metric& metric) {
  const auto value = number_of(run.report, metric);
  return value ? number_text(*value) : "-";
}

std::optional<double> margin_of(const SloRun& run, std::string_view limit) {
  const auto row = std::ranges::find(limits, limit, &Limit::key);
  const auto most = limit_ms(run.config, row->key);
  const auto found = number_of(run.report, *row->metric);
  return most && found ? std::optional(1 - *found / *most) : std::nullopt;
}

std::string latencies_text(const SloRun& run) {
  std::string text;
  for (const Limit& limit : limits) {
    const auto most = limit_ms(run.config, limit.key);
    const auto found = number_of(run.report, *limit.metric);
    if (!most) continue;
    text += fmt::format("{}{} {} ms (limit {} ms)", text.empty() ? "" : ", ", limit.name,
                        found ? number_text(*found) : "-", number_text(*most));
  }
  return text;
}

}  // namespace moesim
