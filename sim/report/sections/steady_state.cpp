// SPDX-License-Identifier: Apache-2.0
#include "sim/report/sections/steady_state.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "sim/report/objectives.hpp"
#include "sim/report/sections/requests.hpp"
#include "traces/requests/arrivals.hpp"

namespace moesim {

using enum Better;

Fields<AttainmentAlong> rows_of(const AttainmentAlong*) {
  using S = AttainmentAlong;
  return {{"first_half", &S::first_half, "early requests that met every objective",
           "share of requests"},
          {"second_half", &S::second_half,
           "late requests that met every objective: fewer if a backlog grows", "share of requests"},
          {"standard_error", &S::standard_error, "slo_attainment in ten stretches of the run",
           "share of requests"},
          {"whole_run", &S::whole_run,
           "requests of the whole run that met every objective, warm-up and end included",
           "share of requests"}};
}

Fields<MeasurementStats> rows_of(const MeasurementStats*) {
  using S = MeasurementStats;
  return {
      {"window", &S::window, "measured part of the run: steady, after_warm_up or whole"},
      {"state", &S::state, "is the run steady? stable, unsteady, overloaded, too_short or offline"},
      {"begin_s", &S::begin_s, "when measuring began", "s"},
      {"end_s", &S::end_s, "when it ended", "s"},
      {"offered_request_rate", &S::offered_request_rate,
       "requests that arrive; null in a closed loop", "1/s"},
      {"served_request_rate", &S::served_request_rate, "requests that leave", "1/s", more},
      {"ttft_growth", &S::ttft_growth,
       "growth of TTFT from the first quarter of the requests to the last, 0 if it may be "
       "chance",
       "s/s"},
      {"tpot_growth", &S::tpot_growth, "growth of TPOT, as that of TTFT", "s/s"},
      {if_any, "attainment", &S::attainment, ""}};
}

namespace {

// Seconds of a request that finished.
double ttft_of(const RequestLife& request) {
  return to_seconds(request.first_token - request.arrival).count();
}
double tpot_of(const RequestLife& request) {
  return to_seconds(request.last_token - request.first_token).count() /
         double(request.output_tokens - 1);
}

// The mean of a latency, in seconds, over those of these requests that finished and have it: with
// at least so many output tokens.
double mean_of(double (*latency)(const RequestLife&), int least_tokens,
               std::span<const RequestLife> requests) {
  double sum = 0;
  std::int64_t served = 0;
  for (const RequestLife& request : requests) {
    if (request.state != RequestLife::State::finished || request.output_tokens < least_tokens)
      continue;
    sum += latency(request);
    ++served;
  }
  return ratio(sum, double(served));
}
double mean_ttft(std::span<const RequestLife> requests) { return mean_of(ttft_of, 0, requests); }
double mean_tpot(std::span<const RequestLife> requests) { return mean_of(tpot_of, 2, requests); }

// Share by which more requests arrive than can be served. Of each second between two arrivals that
// share of a second is added to the wait. From the first to the last quarter of the requests.
double queue_growth(std::span<const RequestLife> requests) {
  const std::size_t quarter = requests.size() / 4;
  if (quarter == 0) return 0;
  const auto first = requests.first(quarter), last = requests.last(quarter);
  const double between = to_seconds(last[quarter / 2].arrival - first[quarter / 2].arrival).count();
  return ratio(mean_ttft(last) - mean_ttft(first), between);
}

// True if the wait of the last quarter is at least twice that of the first.
bool doubles(std::span<const RequestLife> requests) {
  const std::size_t quarter = requests.size() / 4;
  return quarter > 0 && mean_ttft(requests.last(quarter)) >= 2 * mean_ttft(requests.first(quarter));
}

// Seconds by which a mean latency grows in a second, from the first quarter of these requests to
// the last. 0 where that may be chance: below three standard errors, by four stretches of each
// quarter.
double growth_of(double (*mean_latency)(std::span<const RequestLife>),
                 std::span<const RequestLife> requests) {
  constexpr std::size_t stretches = 16, of_quarter = stretches / 4;
  constexpr double sure = 3;
  const std::size_t length = requests.size() / stretches;
  if (length == 0) return 0;
  const auto quarter = [&](std::size_t first) {
    double sum = 0, squares = 0;
    for (std::size_t i = first; i < first + of_quarter; ++i) {
      const double latency = mean_latency(requests.subspan(i * length, length));
      sum += latency;
      squares += latency * latency;
    }
    const double mean = sum / of_quarter;
    return std::pair(mean, std::max(0., squares / of_quarter - mean * mean) / (of_quarter - 1));
  };
  const auto [before, variance_before] = quarter(0);
  const auto [after, variance_after] = quarter(stretches - of_quarter);
  if (after - before < sure * std::sqrt(variance_before + variance_after)) return 0;
  const std::size_t half_quarter = length * of_quarter / 2;
  const Duration between =
      requests[requests.size() - half_quarter].arrival - requests[half_quarter].arrival;
  return ratio(after - before, to_seconds(between).count());
}

std::span<const RequestLife> measured_of(std::span<const RequestLife> requests,
                                         const Measured& measured) {
  const auto first = std::ranges::lower_bound(requests, measured.begin, {}, &RequestLife::received);
  const auto last = std::ranges::upper_bound(requests, measured.end, {}, &RequestLife::received);
  return {first, last};
}

// Flags of requests that are owed their objectives, in order of arrival: 1 if all were met.
std::vector<std::uint8_t> met_in_order(const Deployment& e, const Measured& measured,
                                       std::span<const RequestLife> requests) {
  std::vector<std::uint8_t> met;
  for (const RequestLife& request : requests) {
    if (!measured.holds(request) || request.state == RequestLife::State::cancelled) continue;
    const bool finished = request.state == RequestLife::State::finished;
    met.push_back(
        finished &&
        objectives_met(latency_of(request, e.anchored_ttft), e.slo_of(request.of_class)).all());
  }
  return met;
}

// Requests that are near each other meet the SLO together: how far attainment varies is told by
// stretches of the run, not by single requests.
std::optional<AttainmentAlong> attainment_along(const Deployment& e, const Measured& measured,
                                                std::span<const RequestLife> requests) {
  constexpr std::size_t stretches = 10, fewest = 5;  // requests of a stretch
  if (!e.has_objective(&Slo::ttft) && !e.has_objective(&Slo::tpot) && !e.has_objective(&Slo::e2el))
    return std::nullopt;
  const std::vector<std::uint8_t> all = met_in_order(e, measured, requests);
  const std::span<const std::uint8_t> met(all);
  if (met.size() < stretches * fewest) return std::nullopt;
  const auto share = [](std::span<const std::uint8_t> some) {
    return std::accumulate(some.begin(), some.end(), 0.0) / double(some.size());
  };
  const double mean = share(met);
  double squares = 0;
  for (std::size_t i = 0; i < stretches; ++i) {
    const std::size_t from = i * met.size() / stretches, to = (i + 1) * met.size() / stretches;
    squares += std::pow(share(met.subspan(from, to - from)) - mean, 2);
  }
  constexpr Measured whole{Time::min(), Time::max()};
  return AttainmentAlong{share(met.first(met.size() / 2)), share(met.subspan(met.size() / 2)),
                         std::sqrt(squares / double(stretches * (stretches - 1))),
                         share(met_in_order(e, whole, requests))};
}

}  // namespace

// Which part of the run was measured, and whether it is a steady state. Whose clients wait for each
// other (a closed loop) never asks for more than is served. Requests that all wait from the start
// have no steady state: the queue only falls.
MeasurementStats steady_state_of(const Deployment& e, Measurement::Window window,
                                 const Totals& totals, std::span<const RequestLife> requests) {
  using Window = Measurement::Window;
  constexpr double overload = 0.1, rising = 0.005;  // of the rate that is served
  constexpr double behind = 1.02;                   // times what is served arrives, beyond chance
  constexpr std::array<const char*, 3> windows{"steady", "after_warm_up", "whole"};
  const double seconds = to_seconds(totals.end - totals.begin).count();
  const bool closed = e.workload.arrivals->closed_for(e.workload.requests);
  const double growth = closed ? 0 : queue_growth(requests);
  const double arrivals =
      requests.empty() ? 0 : to_seconds(requests.back().arrival - requests.front().arrival).count();
  const double served = ratio(double(totals.completed + totals.abandoned), seconds);
  const double offered = ratio(double(requests.size()) - 1, arrivals);
  // About as many leave as arrive, where a tenth may be chance.
  const bool level = double(totals.completed + totals.abandoned) >= 0.9 * double(totals.arrived);
  const char* state = window == Window::steady && (closed || level) ? "stable" : "unsteady";
  const bool at_once = requests.size() > 1 && arrivals == 0;
  if (window == Window::whole) state = "too_short";
  if (at_once) state = "offline";
  // A quarter of a few requests tells nothing.
  constexpr std::size_t telling = 16;
  const bool grows_slowly = growth > rising && offered > behind * served && doubles(requests);
  if (requests.size() >= telling && (growth > overload || grows_slowly)) state = "overloaded";
  const std::span<const RequestLife> measured = measured_of(requests, {totals.begin, totals.end});
  return {.window = windows[std::size_t(window)],
          .state = state,
          .begin_s = to_seconds(totals.begin).count(),
          .end_s = to_seconds(totals.end).count(),
          .offered_request_rate = closed || at_once ? std::nullopt : std::optional(offered),
          .served_request_rate = served,
          .ttft_growth = closed ? 0 : growth_of(mean_ttft, measured),
          .tpot_growth = growth_of(mean_tpot, measured),
          .attainment = attainment_along(e, {totals.begin, totals.end}, requests)};
}

}  // namespace moesim
