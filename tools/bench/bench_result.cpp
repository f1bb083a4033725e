// SPDX-License-Identifier: Apache-2.0
#include "tools/bench/bench_result.hpp"

#include <algorithm>
#include <array>
#include <cmath>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "hardware/find_value.hpp"
#include "hardware/parse_json.hpp"
#include "hardware/text.hpp"
#include "hardware/text_file.hpp"
#include "sim/engines/serving_engine.hpp"
#include "traces/mapped_file.hpp"

namespace moesim {

namespace {

template <class... Values>
[[noreturn]] void refuse(const std::string& where, fmt::format_string<Values...> what,
                         Values&&... values) {
  throw ConfigError(
      one_line(fmt::format("{}: {}", where, fmt::format(what, std::forward<Values>(values)...))));
}

template <class... Values>
void remark(BenchRun& run, fmt::format_string<Values...> what, Values&&... values) {
  run.remarks.push_back(fmt::format(what, std::forward<Values>(values)...));
}

// A number, or a text that is one: "8", "20.0", "inf". A null, which Python's NaN and Infinity have
// become, is none.
std::optional<double> number_in(const Json& json) {
  if (json.is_number()) return json.get<double>();
  if (!json.is_string()) return std::nullopt;
  const auto value = try_number<double>(json.get_ref<const std::string&>());
  return value && !std::isnan(*value) ? value : std::nullopt;
}
std::optional<double> number(const Json& json, const std::string& pointer) {
  const Json* found = find_value(json, pointer);
  return found == nullptr ? std::nullopt : number_in(*found);
}
std::optional<double> first_of(const Json& json, std::initializer_list<const char*> pointers) {
  for (const char* pointer : pointers)
    if (const auto value = number(json, pointer)) return value;
  return std::nullopt;
}

// A value that says nothing: null, or how Python and shells write it.
bool says_nothing(const Json& json) {
  return json.is_null() || (json.is_string() && (json == "" || json == "None" || json == "null"));
}

// ---- a run's load

// A rate as a file has it; infinite where it says that there is none.
std::optional<double> rate_in(const std::string& where, const std::string& key, const Json& json) {
  if (says_nothing(json)) return std::nullopt;
  const auto rate = number_in(json);
  if (!rate || !(*rate > 0))
    refuse(where, "{} is {}; a rate above 0, or \"inf\", is expected", key, json.dump());
  return rate;
}

std::optional<std::int64_t> limit_in(const std::string& where, const std::string& key,
                                     const Json& json) {
  if (says_nothing(json)) return std::nullopt;
  const auto limit = number_in(json);
  constexpr double most = 1e9;
  if (!limit || !(*limit >= 1 && *limit <= most) || *limit != std::floor(*limit))
    refuse(where, "{} is {}; a whole number of at least 1 is expected", key, json.dump());
  return static_cast<std::int64_t>(*limit);
}

[[noreturn]] void refuse_load(const std::string& where, std::string_view why,
                              std::string_view instead) {
  refuse(where, "{}, which cannot be simulated from the file; {}", why, instead);
}

[[noreturn]] void refuse_recorded_times(const std::string& where, std::string_view said) {
  refuse_load(where, fmt::format("its requests came at recorded times ({})", said),
              "run their file as \"arrivals\" of type \"trace\"");
}

BenchLoad load_of_bench_serve(const std::string& where, const Json& result) {
  const auto strategy = result.find("ramp_up_strategy");
  if (strategy != result.end() && !says_nothing(*strategy))
    refuse_load(where, "its rate rises along the run (ramp_up_strategy)", "give runs at one rate");
  BenchLoad load;
  const auto rate = result.find("request_rate");
  if (rate != result.end() && *rate == "trace") refuse_recorded_times(where, "request_rate trace");
  if (rate != result.end()) load.rate = rate_in(where, "request_rate", *rate);
  if (const auto limit = result.find("max_concurrency"); limit != result.end())
    load.in_flight = limit_in(where, "max_concurrency", *limit);
  const bool at_once = load.rate && std::isinf(*load.rate);
  if (at_once) load.rate.reset();
  // vLLM's timed_trace says no more: its requests were never half as many at a time as were sent.
  const auto most = number(result, "/max_concurrent_requests"), sent = number(result, "/completed");
  if (at_once && !load.in_flight && most && sent && 2 * *most < *sent)
    refuse_recorded_times(where,
                          fmt::format("max_concurrent_requests {:.6g} of {:.6g}", *most, *sent));
  if (!load.rate && !load.in_flight && !at_once)
    refuse(where,
           "does not say its load: give it \"max_concurrency\", \"request_rate\", or "
           "\"request_rate\": \"inf\" for all requests at once");
  if (const auto burst = number(result, "/burstiness"); burst && *burst != 1) {
    if (!(*burst > 0)) refuse(where, "burstiness is {}; give a number above 0", *burst);
    constexpr double even = 1e6;  // gaps are equal to a thousandth from here on
    load.gaps = *burst < even ? BenchLoad::Gaps::gamma : BenchLoad::Gaps::constant;
    if (*burst < even) load.burstiness = *burst;
  }
  load.rescaled = result.contains("burstiness");  // vLLM's client scales its gaps, SGLang's not
  return load;
}

// A value under one of these names, of a phase of load.
const Json* under(const Json& phase, std::initializer_list<const char*> names) {
  for (const char* name : names)
    if (const auto found = phase.find(name); found != phase.end() && !says_nothing(*found))
      return &*found;
  return nullptr;
}

bool says_load(const Json& phase) {
  return phase.is_object() && under(phase, {"concurrency", "request_rate", "rate", "type",
                                            "fixed_schedule", "user_centric_rate"}) != nullptr;
}

// A list of AIPerf's phases, at whatever depth its version keeps it.
const Json* phases_in(const Json& json) {
  if (!json.is_object()) return nullptr;
  const auto found = json.find("phases");
  if (found != json.end() && (found->is_array() || found->is_object())) return &*found;
  for (const Json& value : json)
    if (const Json* deeper = phases_in(value)) return deeper;
  return nullptr;
}

// Sender of the load that was measured: AIPerf's phase, or the options of older ones.
Json measured_phase(const std::string& where, const Json& result) {
  const auto config = result.find("input_config");
  if (config == result.end() || !config->is_object()) return Json::object();
  if (const Json* input = find_value(*config, "/input/fixed_schedule"); input && *input == true)
    refuse_recorded_times(where, "fixed_schedule");
  if (const Json* phases = phases_in(*config)) {
    std::vector<Json> measured;
    for (const auto& item : phases->items()) {
      const Json& phase = item.value();
      if (!phase.is_object()) continue;
      const bool warms_up =
          item.key() == "warmup" || text_at(phase, "/name") == "warmup" ||
          text_at(phase, "/kind") == "warmup" ||
          (phase.contains("exclude_from_results") && phase["exclude_from_results"] == true);
      if (!warms_up) measured.push_back(phase);
    }
    if (measured.size() > 1)
      refuse_load(where, fmt::format("the run has {} phases of load", measured.size()),
                  "give a run of one");
    return measured.empty() ? Json::object() : measured.front();
  }
  for (const char* place :
       {"/loadgen", "/load/profiling", "/load", "/perf_analyzer/stimulus", ""}) {
    const Json* phase = find_value(*config, place);
    if (phase == nullptr || !says_load(*phase)) continue;
    Json found = *phase;
    // perf_analyzer, below genai-perf, spaces requests evenly. Its first versions say the load
    // outside of any part.
    const std::string_view part = place;
    if (part.empty() || part.starts_with("/perf_analyzer")) found["type"] = "constant";
    return found;
  }
  return Json::object();
}

BenchLoad load_of_phase(const std::string& where, const Json& phase) {
  BenchLoad load;
  const Json* pattern = under(phase, {"arrival_pattern", "request_rate_mode", "type"});
  const std::string gaps =
      pattern != nullptr && pattern->is_string() ? pattern->get<std::string>() : "";
  const Json* schedule = under(phase, {"fixed_schedule"});
  if (gaps == "fixed_schedule" || (schedule != nullptr && *schedule == true))
    refuse_recorded_times(where, "fixed_schedule");
  if (gaps == "user_centric" || under(phase, {"user_centric_rate"}) != nullptr)
    refuse_load(where, "its users sent requests at times of their own (user_centric)",
                "give a run with a concurrency or a rate");
  for (const char* ramp : {"concurrency_ramp", "concurrency_ramp_duration", "rate_ramp",
                           "request_rate_ramp_duration", "rate_series"})
    if (under(phase, {ramp}) != nullptr)
      refuse_load(where, fmt::format("its load changes along the run ({})", ramp),
                  "give a run of one load");
  if (under(phase, {"prefill_concurrency"}) != nullptr)
    refuse_load(where, "requests that wait for a first token have a limit (prefill_concurrency)",
                "give a run without that limit");
  if (const Json* limit = under(phase, {"concurrency"}))
    load.in_flight = limit_in(where, "concurrency", *limit);
  if (const Json* rate = under(phase, {"request_rate", "rate"})) {
    load.rate = rate_in(where, "request_rate", *rate);
    if (load.rate && std::isinf(*load.rate)) load.rate.reset();
  }
  if (!load.rate && !load.in_flight)
    refuse(where,
           "does not say its load: \"input_config\" has neither a concurrency nor a request rate "
           "where AIPerf and genai-perf write one");
  load.catches_up = false;  // AIPerf's schedule waits for a place
  if (gaps == "constant") load.gaps = BenchLoad::Gaps::constant;
  if (gaps == "gamma") {
    const Json* shape = under(phase, {"arrival_smoothness", "smoothness"});
    const auto smoothness = shape == nullptr ? std::nullopt : number_in(*shape);
    if (smoothness && *smoothness > 0) load.burstiness = *smoothness;
    load.gaps = BenchLoad::Gaps::gamma;
  }
  return load;
}

void remark_load(BenchRun& run) {
  if (!run.load.rate) return;
  if (run.load.gaps == BenchLoad::Gaps::constant)
    remark(run, "requests came at equal gaps (constant), not at random ones");
  if (run.load.gaps == BenchLoad::Gaps::gamma && run.load.burstiness != 1)
    remark(run, "gaps between requests had a burstiness of {:.6g}", run.load.burstiness);
}

// ---- what a run did

// Takes a figure; names those that are no measurement.
void take(BenchRun& run, const std::string& name, const Json& value, double scale,
          std::vector<std::string>& empty) {
  const auto read = number_in(value);
  if (read && *read < 0)
    refuse(run.where, "{} is {}; a benchmark measures no negative figure", name, *read);
  if (read && *read > 0 && std::isfinite(*read))
    run.figures[name] = *read * scale;
  else
    empty.push_back(name);
}

void remark_empty(BenchRun& run, std::vector<std::string> empty) {
  // A request of one token has no time between tokens.
  if (run.output == 1)
    std::erase_if(empty, [](const std::string& name) {
      return name.find("tpot") != name.npos || name.find("itl") != name.npos;
    });
  if (empty.empty()) return;
  remark(run, "not measured, as 0 or no number: {}", fmt::join(empty, ", "));
}

// How many requests were completed, and how long they were on average.
void take_lengths(BenchRun& run, std::optional<double> requests, double prompt, double output) {
  constexpr double most = 1e9;
  if (!requests || (*requests > 0 && prompt + output == 0))
    refuse(run.where,
           "does not say how many requests were completed, and how many tokens their prompts and "
           "outputs had; its load cannot be simulated");
  if (*requests == 0) refuse(run.where, "no request was completed");
  if (!(*requests > 0 && *requests <= most) || *requests != std::floor(*requests))
    refuse(run.where, "{} requests were completed; a whole number above 0 is expected", *requests);
  for (const auto& [tokens, what] : {std::pair{prompt, "prompt"}, {output, "output"}})
    if (!(tokens >= 1 && tokens <= most))
      refuse(run.where, "the mean {} has {:.6g} tokens; at least 1 and at most 1e9 are expected",
             what, tokens);
  run.requests = static_cast<std::int64_t>(*requests);
  run.prompt = prompt;
  run.output = output;
}

void remark_failures(BenchRun& run, std::optional<double> sent, double failed, bool cancelled) {
  if (sent && double(run.requests) > *sent)
    refuse(run.where, "{} requests were completed of {:.0f} that were sent", run.requests, *sent);
  if (failed == 0 && sent) failed = *sent - double(run.requests);
  if (failed > 0)
    remark(run,
           "{:.0f} requests failed beside the {} that were completed: the load was another than "
           "the simulated one",
           failed, run.requests);
  if (cancelled) remark(run, "the benchmark was cancelled before its end");
}

// ---- vllm bench serve, and other engines' benchmarks, which began as copies of it ----

std::string_view name_of_figure(std::string_view name) {
  for (const ServingEngine& engine : serving_engines())
    for (const auto& [theirs, ours] : engine.bench_names)
      if (name == theirs) return ours;
  return name;
}

bool is_figure(std::string_view name) {
  return name.ends_with("_ms") || name.ends_with("_throughput");
}

// Requests had lengths of their own, of which the means are simulated.
void remark_lengths(BenchRun& run, const Json& result) {
  for (const auto& [key, what] : {std::pair{"input_lens", "prompts"}, {"output_lens", "outputs"}}) {
    const auto found = result.find(key);
    if (found == result.end() || !found->is_array() || found->empty()) continue;
    std::vector<double> tokens;
    // Failed requests have an output of 0 tokens.
    for (const Json& length : *found)
      if (const auto value = number_in(length); value && *value > 0) tokens.push_back(*value);
    if (tokens.empty()) continue;
    const auto [least, most] = std::ranges::minmax(tokens);
    if (least == most) continue;
    remark(run, "{} had {:.0f} to {:.0f} tokens; their mean is simulated", what, least, most);
  }
  // Lengths are fixed at 0 with vLLM's client, and at 1 with SGLang's.
  const double fixed = result.contains("burstiness") ? 0 : 1;
  if (const auto ratio = number(result, "/random_range_ratio"); ratio && *ratio != fixed)
    remark(run, "lengths were drawn (random_range_ratio {:.6g}); their means are simulated",
           *ratio);
}

void remark_prefixes(BenchRun& run, std::string_view said) {
  remark(run, "prompts had prefixes in common ({}); those simulated have none", said);
}

void remark_drafts(BenchRun& run, std::optional<double> tokens) {
  if (tokens && *tokens > 1)
    remark(run,
           "the engine drafted, {:.3g} tokens a step on average; give the experiment "
           "\"speculative\" if it has none",
           *tokens);
}

// Number of requests that failed, where it is said or every request has its error, as with SGLang's
// --output-details.
double failed_of(const Json& result) {
  if (const auto failed = number(result, "/failed")) return *failed;
  const auto errors = result.find("errors");
  if (errors == result.end() || !errors->is_array()) return 0;
  return static_cast<double>(std::ranges::count_if(
      *errors, [](const Json& error) { return error.is_string() && error != ""; }));
}

BenchRun of_bench_serve(const std::string& where, const Json& result) {
  BenchRun run{where, {}};
  const auto completed = number(result, "/completed");
  const auto per_request = [&](const char* total) {
    const auto tokens = number(result, total);
    return completed && *completed != 0 && tokens ? *tokens / *completed : 0;
  };
  const auto of_tokens = first_of(result, {"/total_input_tokens", "/total_output_tokens"});
  take_lengths(run, of_tokens || completed == 0.0 ? completed : std::nullopt,
               per_request("/total_input_tokens"), per_request("/total_output_tokens"));
  std::vector<std::string> empty;
  for (const auto& item : result.items()) {
    const std::string name(name_of_figure(item.key()));
    if (is_figure(name) && !item.value().is_structured()) take(run, name, item.value(), 1, empty);
  }
  run.load = load_of_bench_serve(where, result);
  remark_load(run);
  remark_failures(run, number(result, "/num_prompts"), failed_of(result), false);
  remark_lengths(run, result);
  if (text_at(result, "/dataset_name") == "generated-shared-prefix")
    remark_prefixes(run, "generated-shared-prefix");
  // These clients count a gap for each step; the simulator counts one for each token, as SGLang's.
  const auto by_step =
      first_of(result, {"/spec_decode_acceptance_length", "/mean_avg_decoded_tokens_per_iter"});
  remark_drafts(run, by_step ? by_step : number(result, "/accept_length"));
  if (by_step && *by_step > 1 && std::erase_if(run.figures, [](const auto& figure) {
                                   return figure.first.find("_itl_") != figure.first.npos;
                                 }) > 0)
    remark(run, "ITL is left out: this client counts one gap for all tokens of a step");
  remark_empty(run, std::move(empty));
  return run;
}

// ---- genai-perf and AIPerf: {"time_to_first_token": {"unit": "ms", "avg": .., "p50": ..}} ----

constexpr std::array<std::pair<const char*, const char*>, 3> latencies{
    {{"time_to_first_token", "ttft"},
     {"inter_token_latency", "tpot"},  // its mean over a request's tokens: what others call TPOT
     {"request_latency", "e2el"}}};
constexpr std::array<std::pair<const char*, const char*>, 8> statistics{{{"avg", "mean"},
                                                                         {"std", "std"},
                                                                         {"p25", "p25"},
                                                                         {"p50", "median"},
                                                                         {"p75", "p75"},
                                                                         {"p90", "p90"},
                                                                         {"p95", "p95"},
                                                                         {"p99", "p99"}}};
constexpr std::array<std::pair<const char*, const char*>, 3> rates{
    {{"request_throughput", "request_throughput"},
     {"output_token_throughput", "output_throughput"},
     {"total_token_throughput", "total_token_throughput"}}};

double milliseconds_of(const std::string& where, const Json& result, const char* latency) {
  static const std::map<std::string, double, std::less<>> units{{"", 1},
                                                                {"ms", 1},
                                                                {"msec", 1},
                                                                {"millisecond", 1},
                                                                {"milliseconds", 1},
                                                                {"s", 1e3},
                                                                {"sec", 1e3},
                                                                {"secs", 1e3},
                                                                {"second", 1e3},
                                                                {"seconds", 1e3},
                                                                {"us", 1e-3},
                                                                {"microseconds", 1e-3},
                                                                {"ns", 1e-6},
                                                                {"nanoseconds", 1e-6}};
  const std::string unit = text_at(result, fmt::format("/{}/unit", latency));
  if (const auto found = units.find(unit); found != units.end()) return found->second;
  refuse(where, "{} has the unknown unit \"{}\"; ms, s, us and ns are known", latency, unit);
}

BenchRun of_genai_perf(const std::string& where, const Json& result) {
  BenchRun run{where, {}};
  const Json phase = measured_phase(where, result);
  const auto planned = first_of(phase, {"/request_count", "/requests"});
  const auto count = first_of(result, {"/request_count/avg", "/output_sequence_length/count",
                                       "/input_config/request_count"});
  take_lengths(run, count ? count : planned,
               number(result, "/input_sequence_length/avg").value_or(0),
               number(result, "/output_sequence_length/avg").value_or(0));
  std::vector<std::string> empty;
  for (const auto& [theirs, ours] : latencies) {
    const auto found = result.find(theirs);
    if (found == result.end() || !found->is_object()) continue;
    const double scale = milliseconds_of(where, result, theirs);
    for (const auto& [key, name] : statistics) {
      const auto value = found->find(key);
      // A standard deviation of 0 is one.
      if (value != found->end() && !(std::string_view(key) == "std" && *value == 0))
        take(run, fmt::format("{}_{}_ms", name, ours), *value, scale, empty);
    }
  }
  for (const auto& [theirs, ours] : rates)
    if (const Json* value = find_value(result, fmt::format("/{}/avg", theirs)))
      take(run, ours, *value, 1, empty);
  run.load = load_of_phase(where, phase);
  remark_load(run);
  remark_drafts(run, number(result, "/spec_decode_acceptance_length/avg"));
  const Json* cancelled = find_value(result, "/was_cancelled");
  double failed = 0;
  if (const Json* errors = find_value(result, "/error_summary"); errors && errors->is_array())
    for (const Json& error : *errors) failed += number(error, "/count").value_or(0);
  failed = number(result, "/error_request_count/avg").value_or(failed);
  // A run that ends by the clock sends fewer than were planned, without an error.
  remark_failures(run, std::nullopt, failed, cancelled != nullptr && *cancelled == true);
  if (under(phase, {"cancellation", "request_cancellation_rate"}) != nullptr)
    remark(run, "clients cancelled requests on purpose, which is not simulated");
  if (number(result, "/input_config/input/conversation/turn/mean").value_or(1) > 1)
    remark(run,
           "requests were turns of conversations; they are simulated as requests of their own");
  for (const char* at :
       {"/input_config/input/prompt/prefix_prompt", "/input_config/input/prefix_prompt"}) {
    const bool shares = std::ranges::any_of(
        std::array{"length", "shared_system_prompt_length", "user_context_prompt_length"},
        [&](const char* key) {
          return number(result, fmt::format("{}/{}", at, key)).value_or(0) > 0;
        });
    if (shares) remark_prefixes(run, "prefix_prompt");
  }
  const Json* const dataset = find_value(result, "/input_config/input/custom_dataset_type");
  if (dataset != nullptr && (*dataset == "mooncake_trace" || *dataset == "multi_turn"))
    remark_prefixes(run, "custom_dataset_type");
  for (const auto& [key, what] :
       {std::pair{"input_sequence_length", "prompts"}, {"output_sequence_length", "outputs"}}) {
    const auto least = number(result, fmt::format("/{}/min", key)),
               most = number(result, fmt::format("/{}/max", key));
    if (least && most && *least < *most)
      remark(run, "{} had {:.0f} to {:.0f} tokens; their mean is simulated", what, *least, *most);
  }
  remark_empty(run, std::move(empty));
  return run;
}

// ---- files

bool is_nested(const Json& result) {
  return std::ranges::any_of(latencies, [&](const auto& latency) {
    const Json* mean = find_value(result, fmt::format("/{}/avg", latency.first));
    return mean != nullptr && mean->is_number();
  });
}

bool is_flat(const Json& result) {
  for (const auto& item : result.items()) {
    const std::string_view name = name_of_figure(item.key());
    if (item.value().is_structured() || !is_figure(name)) continue;
    for (const std::string_view of : {"_throughput", "_ttft_", "_tpot_", "_itl_", "_e2el_"})
      if (name.find(of) != name.npos) return true;
  }
  return false;
}

// The results in a file: one, or those in lists and objects around them, whose own values (the load
// that a wrapper notes) are theirs too.
void add_runs(const std::string& where, const Json& json, const Json& around,
              std::vector<BenchRun>& runs) {
  if (json.is_object() && json.contains("request_info") && json.contains("performance"))
    refuse(where,
           "is a report of trtllm-bench, which does not say its --concurrency; give the file of "
           "tensorrt_llm.serve.scripts.benchmark_serving --save-result");
  if (json.is_object() && json.contains("timeslices"))
    refuse(where,
           "has slices of one run of AIPerf; give profile_export_aiperf.json, the whole run");
  if (json.is_object() && (is_nested(json) || is_flat(json))) {
    Json result = json;
    for (const auto& item : around.items())
      if (Json& own = result[item.key()]; says_nothing(own)) own = item.value();
    runs.push_back(is_nested(json) ? of_genai_perf(where, result) : of_bench_serve(where, result));
    for (const char* key : {"/model_id", "/input_config/endpoint/model_names/0"})
      if (const std::string name = text_at(result, key); !name.empty()) runs.back().model = name;
    return;
  }
  Json outer = around;
  if (json.is_object())
    for (const auto& item : json.items())
      if (!item.value().is_structured() || item.key() == "input_config")
        outer[item.key()] = item.value();
  for (const auto& item : json.items())
    if (item.value().is_structured())
      add_runs(fmt::format("{}{}/{}", where, where.find(":/") == where.npos ? ":" : "", item.key()),
               item.value(), outer, runs);
}

// Parses results, in which an endless rate, or a burstiness without bounds, stays what it is: of
// Python's Infinity parse_json() makes nothing.
Json parse_results(std::string_view text) {
  std::string said(text);
  for (const std::string_view key : {"\"request_rate\"", "\"burstiness\""})
    for (std::size_t at = said.find(key); at != said.npos; at = said.find(key, at + key.size())) {
      constexpr std::string_view endless = "Infinity";
      const std::size_t value = said.find_first_not_of(" \t\r\n:", at + key.size());
      if (value != said.npos && said.compare(value, endless.size(), endless) == 0)
        said.replace(value, endless.size(), "\"inf\"   ");
    }
  return parse_json(said);
}

void add_runs_of(const std::string& where, const Json& json, std::vector<BenchRun>& runs) {
  const std::size_t before = runs.size();
  add_runs(where, json, Json::object(), runs);
  if (runs.size() == before)
    refuse(where,
           "has no figure such as \"median_tpot_ms\"; files of vllm bench serve --save-result, "
           "SGLang's bench_serving, genai-perf and AIPerf are read");
}

// True if the first of several lines is an object by itself: a result was appended to others.
bool is_lines(std::string_view text) {
  bool whole = false;
  std::size_t lines = 0;
  for_each_line(text, [&](std::size_t, std::string_view line) {
    if (lines++ == 0) {
      try {
        whole = parse_json(line).is_object();
      } catch (const ConfigError&) {
        whole = false;
      }
    }
  });
  return whole && lines > 1;
}

}  // namespace

std::string load_text(const BenchLoad& load) {
  if (!load.rate && !load.in_flight) return "all requests at once";
  const std::string limit = load.in_flight ? fmt::format("{} in flight", *load.in_flight) : "";
  if (!load.rate) return limit;
  constexpr std::array<const char*, 3> gaps{"", " (gamma gaps)", " (equal gaps)"};
  const std::string rate = fmt::format("{:.6g} requests/s{}", *load.rate, gaps[at(load.gaps)]);
  return limit.empty() ? rate : fmt::format("{}, at most {}", rate, limit);
}

std::vector<BenchRun> read_bench(const std::filesystem::path& file) {
  const MappedFile mapped(file);
  const std::string_view text = mapped.text();
  if (file.extension() == ".csv")
    refuse(file.string(), "is CSV; give the .json that AIPerf and genai-perf write with it");
  std::vector<BenchRun> runs;
  const auto parsed = [](const std::string& where, std::string_view results, const char* hint) {
    try {
      return parse_results(results);
    } catch (const ConfigError& error) {
      refuse(where, "{}{}", error.what(), hint);
    }
  };
  if (file.extension() != ".jsonl" && !is_lines(text)) {
    refuse_huge(file, "JSON file");
    add_runs_of(file.string(), parsed(file.string(), text, ""), runs);
    return runs;
  }
  for_each_line(text, [&](std::size_t number, std::string_view line) {
    const std::string where = fmt::format("{}:{}", file.string(), number);
    add_runs_of(where, parsed(where, line, "; each line is one result"), runs);
  });
  if (runs.empty()) refuse(file.string(), "holds no run");
  return runs;
}

Json under_load_of(const BenchRun& run, Json experiment, bool bare) {
  if (bare) experiment.erase("anchor");
  Json& workload = experiment["workload"];
  workload.erase("sessions");
  const BenchLoad& load = run.load;
  if (load.rate) {
    constexpr std::array<const char*, 3> types{"poisson", "gamma", "constant"};
    Json arrivals{{"type", types[at(load.gaps)]}, {"rate", fmt::format("{} /s", *load.rate)}};
    if (load.gaps == BenchLoad::Gaps::gamma) arrivals["burstiness"] = load.burstiness;
    if (load.rescaled) arrivals["rescaled"] = true;
    if (load.in_flight) {
      arrivals["max_concurrency"] = *load.in_flight;
      arrivals["catch_up"] = load.catches_up;
    }
    workload["arrivals"] = arrivals;
  } else {
    workload["arrivals"] = {{"type", "closed_loop"},
                            {"concurrency", load.in_flight.value_or(run.requests)}};
  }
  workload["lengths"] = {{"type", "fixed"},
                         {"prompt", std::llround(run.prompt)},
                         {"output", std::llround(run.output)}};
  workload["requests"] = run.requests;
  return experiment;
}

}  // namespace moesim
