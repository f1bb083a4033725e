// SPDX-License-Identifier: Apache-2.0
#include "tools/bench/bench_result.hpp"

#include <algorithm>
#include <array>
#include <cmath>

#include <fmt/format.h>

#include "hardware/find_value.hpp"
#include "hardware/parse_json.hpp"
#include "sim/engines/serving_engine.hpp"
#include "traces/mapped_file.hpp"

namespace moesim {

namespace {

std::optional<double> number(const Json& json, const std::string& pointer) {
  const Json* found = find_value(json, pointer);
  if (found == nullptr || !found->is_number()) return std::nullopt;
  return found->get<double>();
}
std::optional<double> first_of(const Json& json, std::initializer_list<const char*> pointers) {
  for (const char* pointer : pointers)
    if (const auto value = number(json, pointer); value && std::isfinite(*value)) return value;
  return std::nullopt;
}

[[noreturn]] void refuse(const std::string& where, std::string_view what) {
  throw ConfigError(fmt::format("{}: {}", where, what));
}

// ---- vllm bench serve, and other engines' benchmarks, which began as copies of it ----

std::string_view name_of_figure(std::string_view name) {
  for (const ServingEngine& engine : serving_engines())
    for (const auto& [theirs, ours] : engine.bench_names)
      if (name == theirs) return ours;
  return name;
}

void remark_failures(const Json& result, BenchRun& run) {
  const auto sent = number(result, "/num_prompts"), failed = number(result, "/failed");
  if (sent && double(run.requests) < *sent)
    run.remarks.push_back(
        fmt::format("{} of the benchmark's {:.0f} requests were completed", run.requests, *sent));
  if (failed && *failed > 0)
    run.remarks.push_back(fmt::format("{:.0f} requests of the benchmark failed", *failed));
  if (const auto burst = number(result, "/burstiness"); burst && *burst != 1)
    run.remarks.push_back(
        fmt::format("arrivals came with a burstiness of {}; Poisson is simulated", *burst));
}

BenchRun of_bench_serve(const std::string& where, const Json& result) {
  BenchRun run{where, {}};
  for (const auto& item : result.items()) {
    if (!item.value().is_number()) continue;
    const std::string name(name_of_figure(item.key()));
    if (name.ends_with("_ms") || name.ends_with("_throughput"))
      run.figures[name] = item.value().get<double>();
  }
  run.requests = static_cast<std::int64_t>(number(result, "/completed").value_or(0));
  const auto per_request = [&](const char* total) {
    return run.requests > 0 ? number(result, total).value_or(0) / double(run.requests) : 0;
  };
  run.prompt = per_request("/total_input_tokens");
  run.output = per_request("/total_output_tokens");
  run.in_flight = number(result, "/max_concurrency");
  run.rate = first_of(result, {"/request_rate"});  // "inf", or Infinity, is none
  remark_failures(result, run);
  return run;
}

// ---- genai-perf and AIPerf: {"time_to_first_token": {"unit": "ms", "avg": .., "p50": ..}} ----

constexpr std::array<std::pair<const char*, const char*>, 3> latencies{
    {{"time_to_first_token", "ttft"},
     {"inter_token_latency", "tpot"},  // its mean over a request's tokens: what others call TPOT
     {"request_latency", "e2el"}}};
constexpr std::array<std::pair<const char*, const char*>, 5> statistics{
    {{"avg", "mean"}, {"p50", "median"}, {"p90", "p90"}, {"p95", "p95"}, {"p99", "p99"}}};
constexpr std::array<std::pair<const char*, const char*>, 2> rates{
    {{"request_throughput", "request_throughput"},
     {"output_token_throughput", "output_throughput"}}};

double milliseconds_of(const std::string& where, const Json& result, const char* latency) {
  const std::string unit = text_at(result, fmt::format("/{}/unit", latency));
  if (unit.empty() || unit == "ms") return 1;
  if (unit == "s" || unit == "sec") return 1e3;
  if (unit == "us") return 1e-3;
  if (unit == "ns") return 1e-6;
  refuse(where, fmt::format("{} has the unknown unit \"{}\"", latency, unit));
}

BenchRun of_genai_perf(const std::string& where, const Json& result) {
  BenchRun run{where, {}};
  for (const auto& [theirs, ours] : latencies) {
    if (!result.contains(theirs)) continue;
    const double scale = milliseconds_of(where, result, theirs);
    for (const auto& [key, name] : statistics)
      if (const auto value = number(result, fmt::format("/{}/{}", theirs, key)))
        run.figures[fmt::format("{}_{}_ms", name, ours)] = *value * scale;
  }
  for (const auto& [theirs, ours] : rates)
    if (const auto value = number(result, fmt::format("/{}/avg", theirs)))
      run.figures[ours] = *value;
  run.prompt = number(result, "/input_sequence_length/avg").value_or(0);
  run.output = number(result, "/output_sequence_length/avg").value_or(0);
  const auto count = first_of(
      result, {"/request_count/avg", "/output_sequence_length/count", "/input_config/request_count",
               "/input_config/loadgen/request_count", "/input_config/input/num_dataset_entries"});
  run.requests = static_cast<std::int64_t>(count.value_or(0));
  run.in_flight =
      first_of(result, {"/input_config/concurrency", "/input_config/loadgen/concurrency",
                        "/input_config/perf_analyzer/stimulus/concurrency"});
  run.rate = first_of(result, {"/input_config/request_rate", "/input_config/loadgen/request_rate",
                               "/input_config/perf_analyzer/stimulus/request_rate"});
  return run;
}

BenchRun run_of(const std::string& where, const Json& result) {
  if (!result.is_object()) refuse(where, "is not a benchmark result: not a JSON object");
  const bool nested = result.contains("time_to_first_token") || result.contains("request_latency");
  BenchRun run = nested ? of_genai_perf(where, result) : of_bench_serve(where, result);
  if (run.figures.empty())
    refuse(where,
           "has no figure such as \"median_tpot_ms\"; files of vllm bench serve --save-result, "
           "SGLang's bench_serving and genai-perf are read");
  return run;
}

// "20 requests/s", or "64 in flight", which is but a cap where there is a rate.
std::string load_text(const BenchRun& run) {
  if (run.rate) return fmt::format("{:.6g} requests/s", *run.rate);
  if (run.in_flight) return fmt::format("{:.6g} in flight", *run.in_flight);
  return "all requests at once";
}

}  // namespace

std::vector<BenchRun> read_bench(const std::filesystem::path& file) {
  const MappedFile mapped(file);
  const std::string_view text = mapped.text();
  std::vector<BenchRun> runs;
  if (file.extension() != ".jsonl") {
    runs.push_back(run_of(file.string(), ConfigNode::from_file(file).json()));
    return runs;
  }
  std::size_t line = 1;
  for (std::size_t from = 0; from < text.size(); ++line) {
    const std::size_t end = std::min(text.find('\n', from), text.size());
    const std::string where = fmt::format("{}:{}", file.string(), line);
    const std::string_view row = text.substr(from, end - from);
    from = end + 1;
    if (row.find_first_not_of(" \t\r") == row.npos) continue;
    try {
      runs.push_back(run_of(where, parse_json(row)));
    } catch (const ConfigError& error) {
      if (std::string_view(error.what()).starts_with(where)) throw;
      refuse(where, error.what());
    }
  }
  if (runs.empty()) refuse(file.string(), "holds no run");
  return runs;
}

Json under_load_of(const BenchRun& run, Json experiment, bool bare) {
  if (run.requests < 1 || run.prompt < 1 || run.output < 1)
    refuse(run.where,
           "does not say how many requests were completed, and how many tokens their prompts and "
           "outputs had; its load cannot be simulated");
  if (bare) experiment.erase("anchor");
  Json& workload = experiment["workload"];
  if (run.rate)
    workload["arrivals"] = {{"type", "poisson"}, {"rate", fmt::format("{} /s", *run.rate)}};
  else
    workload["arrivals"] = {
        {"type", "closed_loop"},
        {"concurrency", std::llround(std::max(1.0, run.in_flight.value_or(double(run.requests))))}};
  workload["lengths"] = {{"type", "fixed"},
                         {"prompt", std::llround(run.prompt)},
                         {"output", std::llround(run.output)}};
  workload["requests"] = run.requests;
  return experiment;
}

ServingLoad load_of(const BenchRun& run) {
  return {run.rate ? 0 : run.in_flight.value_or(double(run.requests)), run.prompt, run.output};
}

BenchComparison compare_with_bench(const BenchRun& run, const OrderedJson& metrics) {
  BenchComparison comparison{run.where, {}, run.remarks};
  comparison.remarks.insert(
      comparison.remarks.begin(),
      fmt::format("simulated: {}, {} requests, each of {:.0f} and {:.0f} tokens", load_text(run),
                  run.requests, run.prompt, run.output));
  for (const auto& item : metrics.items()) {
    const auto measured = run.figures.find(item.key());
    if (measured != run.figures.end() && measured->second > 0 && item.value().is_number())
      comparison.rows.push_back({item.key(), measured->second, item.value().get<double>()});
  }
  if (comparison.rows.empty())
    refuse(run.where, "has no figure to compare with a report, such as \"median_tpot_ms\"");
  return comparison;
}

}  // namespace moesim
