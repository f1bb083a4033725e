// SPDX-License-Identifier: Apache-2.0
#include "tools/validation/bench_result.hpp"

#include <cmath>
#include <optional>

#include <fmt/format.h>

namespace moesim {

namespace {

// Rates of both results that give the tokens of a mean request: its outputs, and all.
constexpr std::string_view served_requests = "request_throughput";
struct Length {
  std::string_view name, rate;
};
constexpr Length lengths[]{{"output tokens of a request", "output_throughput"},
                           {"tokens of a request", "total_token_throughput"}};

template <class Object>
std::optional<double> number(const Object& object, std::string_view key) {
  const auto found = object.find(std::string(key));
  if (found == object.end() || !found->is_number()) return std::nullopt;
  return found->template get<double>();
}

template <class Object>
std::optional<double> tokens_of_request(const Object& figures, std::string_view rate) {
  const auto tokens = number(figures, rate), served = number(figures, served_requests);
  if (!tokens || !served || *served <= 0) return std::nullopt;
  return *tokens / *served;
}

// "20 requests/s", or "64 in flight", which is but a cap where there is a rate; nothing where it is
// not said.
std::string load_text(std::optional<double> in_flight, std::optional<double> rate) {
  if (rate && std::isfinite(*rate)) return fmt::format("{:.6g} requests/s", *rate);
  return in_flight ? fmt::format("{:.6g} in flight", *in_flight) : "";
}

// Where the two were asked for different loads.
std::optional<std::string> other_load(const Json& bench, const Json& arrivals) {
  const std::string measured =
      load_text(number(bench, "max_concurrency"), number(bench, "request_rate"));
  std::optional<double> rate;
  if (arrivals.contains("rate") && arrivals.at("rate").is_string())
    rate = parse_quantity<PerSecond>(arrivals.at("rate").get<std::string>()).value();
  const std::string simulated = load_text(number(arrivals, "concurrency"), rate);
  if (measured.empty() || simulated.empty() || measured == simulated) return std::nullopt;
  return fmt::format("the loads differ: {} measured, {} simulated", measured, simulated);
}

}  // namespace

BenchComparison compare_with_bench(const ConfigNode& bench, const OrderedJson& metrics,
                                   const Json& arrivals) {
  constexpr double most_apart = 0.05;
  if (!bench.json().is_object()) bench.fail("is no result of vllm bench serve: no JSON object");
  BenchComparison comparison;
  for (const auto& item : metrics.items()) {
    const std::string& name = item.key();
    if (!name.ends_with("_ms") && !name.ends_with("_throughput")) continue;
    const auto measured = number(bench.json(), name), predicted = number(metrics, name);
    if (measured && predicted && *measured > 0)
      comparison.rows.push_back({name, *measured, *predicted});
  }
  if (comparison.rows.empty())
    bench.fail(
        "has no figure of vllm bench serve, such as \"median_tpot_ms\"; was it run with "
        "--save-result?");
  for (const Length& length : lengths) {
    const auto there = tokens_of_request(bench.json(), length.rate);
    const auto here = tokens_of_request(metrics, length.rate);
    if (there && here && std::abs(*here / *there - 1) > most_apart)
      comparison.remarks.push_back(
          fmt::format("the workloads differ: {:.0f} {} measured, {:.0f} simulated", *there,
                      length.name, *here));
  }
  if (auto remark = other_load(bench.json(), arrivals)) comparison.remarks.push_back(*remark);
  const auto sent = number(bench.json(), "num_prompts"), done = number(bench.json(), "completed");
  if (sent && done && *done < *sent)
    comparison.remarks.push_back(
        fmt::format("{:.0f} of the benchmark's {:.0f} requests were completed", *done, *sent));
  if (const auto failed = number(bench.json(), "failed"); failed && *failed > 0)
    comparison.remarks.push_back(fmt::format("{:.0f} requests of the benchmark failed", *failed));
  return comparison;
}

}  // namespace moesim
