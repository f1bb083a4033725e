// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>
#include <numeric>
#include <thread>

#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <sys/resource.h>
#include <tbb/global_control.h>

#include "sim/serving/simulator.hpp"
#include "tools/cli/experiment_options.hpp"
#include "tools/cli/output.hpp"
#include "tools/cli/progress.hpp"
#include "tools/cli/remarks.hpp"
#include "tools/cli/table.hpp"
#include "tools/cli/trust.hpp"
#include "tools/cli/verbs.hpp"
#include "tools/plan/launch.hpp"
#include "tools/run/intervals.hpp"
#include "tools/run/run_csv.hpp"
#include "tools/run/timeline.hpp"

namespace moesim {

namespace {

struct Options {
  ExperimentOptions experiment;
  std::string report, profile, requests, steps, timeline, launch;
  bool json = false, intervals = false;
  int threads = 0;
};

std::string number(const OrderedJson& value, int digits = 1) {
  return value.is_null() ? "-" : fmt::format("{:.{}f}", value.get<double>(), digits);
}
std::string percent(const OrderedJson& value) {
  return fmt::format("{:.1f} %", value.get<double>() * 100);
}

// What moved and what stopped, when anything did.
std::string events_of(const OrderedJson& report) {
  std::string text;
  const OrderedJson& moved = report["rebalancing"];
  if (moved["count"] > 0) {
    const double bytes =
        moved["bytes"]["nvlink"].get<double>() + moved["bytes"]["network"].get<double>();
    text += wrapped(fmt::format("rebalanced {} times: {} layers, {:.1f} GB; engine stopped for "
                                "{:.3f} s, steps slowed by {:.3f} s",
                                moved["count"].get<std::int64_t>(),
                                moved["layers_switched"].get<std::int64_t>(), bytes / 1e9,
                                moved["stall_seconds"].get<double>(),
                                moved["slowdown_seconds"].get<double>())) +
            "\n";
  }
  for (const OrderedJson& outage : report["failures"]) {
    text += wrapped(fmt::format(
                "{} stopped at {:.3f} s{}: {} requests moved, {} experts lost, engine stopped for "
                "{:.3f} s",
                outage["what"].get<std::string>(), outage["at_s"].get<double>(),
                outage["recovered_at_s"].is_null()
                    ? ""
                    : fmt::format(", back at {:.3f} s", outage["recovered_at_s"].get<double>()),
                outage["requests_moved"].get<std::int64_t>(),
                outage["experts_lost"].get<std::int64_t>(),
                outage["stopped_seconds"].get<double>() +
                    outage["stopped_again_seconds"].get<double>())) +
            "\n";
  }
  return text;
}

// How far metrics vary between runs that could as well be true, when that was asked for.
std::string bands_of(const OrderedJson& report) {
  if (!report.contains("intervals")) return "";
  const OrderedJson& intervals = report["intervals"];
  Table table({fmt::format("{} of {} runs within", percent(intervals["share"]),
                           intervals["runs"].get<int>()),
               "low", "median", "high"});
  for (const auto& [name, band] : intervals["metrics"].items()) {
    if (band.is_null()) continue;
    table.add({name, number(band["low"], 2), number(band["median"], 2), number(band["high"], 2)});
  }
  return "\n" + table.text();
}

// A line per EP group, where there are several.
std::string groups_of(const OrderedJson& report) {
  const bool pools = report.contains("pools");
  if (!pools && !report.contains("instances")) return "";
  Table table({"group", "steps", "mean ms", "busy", "output tokens", "KV mean", "peak", "hits"});
  const auto add = [&](const std::string& name, const OrderedJson& instances) {
    for (const OrderedJson& group : instances) {
      table.add({fmt::format("{} {}", name, group["instance"].get<int>()),
                 fmt::format("{}", group["steps"].get<std::int64_t>()),
                 number(group["mean_step_ms"], 3), percent(group["utilization"]),
                 fmt::format("{}", group["output_tokens"].get<std::int64_t>()),
                 percent(group["kv_mean_utilization"]), percent(group["kv_peak_utilization"]),
                 percent(group["prefix_hit_rate"])});
    }
  };
  if (!pools) {
    add("instance", report["instances"]);
    return "\n" + table.text();
  }
  for (const char* pool : {"prefill", "decode"}) add(pool, report["pools"][pool]["instances"]);
  const OrderedJson& kv = report["pools"]["kv_transfer"];
  return fmt::format(
      "what stands above this line is of the decode pool, but for throughput and latency\n\n{}"
      "KV caches sent over {}: {}, {:.1f} GB; {} ms each, {} of them after the first token\n",
      table.text(), kv["level"].get<std::string>(), kv["transfers"].get<std::int64_t>(),
      kv["bytes"].get<double>() / 1e9, number(kv["mean_ms"], 2), number(kv["mean_exposed_ms"], 2));
}

std::string abandoned(const OrderedJson& metrics) {
  if (!metrics.contains("timed_out")) return "";
  return fmt::format(", {} timed out, {} cancelled", metrics["timed_out"].get<std::int64_t>(),
                     metrics["cancelled"].get<std::int64_t>());
}

// Whether throughput is that of a steady state, and how much was asked for.
std::string state_of(const OrderedJson& measurement) {
  const OrderedJson& offered = measurement["offered_request_rate"];
  std::string text = fmt::format(
      "{}, served {} /s: ",
      offered.is_null() ? "closed loop" : fmt::format("offered {} /s", number(offered, 2)),
      number(measurement["served_request_rate"], 2));
  const OrderedJson& state = measurement["state"];
  if (state == "stable") text += "STABLE";
  if (state == "overloaded") text += "OVERLOADED, the wait for a first token grows and grows";
  if (state == "unsteady") {
    text +=
        "NO STEADY STATE, fewer requests leave than arrive between warm-up and last arrival; use "
        "more requests";
  }
  if (state == "too_short") {
    text +=
        "RUN TOO SHORT, after the warm-up not every group takes several steps; rates are of the "
        "whole run with its ramps; use more requests";
  }
  return wrapped(text) + "\n";
}

// Who met the objectives, where the experiment has some.
std::string slo_of(const OrderedJson& report) {
  const OrderedJson& slo = report["context"]["config"]["slo"];
  const OrderedJson& m = report["metrics"];
  if (slo.empty() || m["slo_attainment"].is_null()) return "";
  std::string limits;
  for (const auto& [name, limit] : slo.items()) {
    std::string upper = name == "e2el" ? "E2E" : name == "tpot" ? "TPOT" : "TTFT";
    limits += fmt::format("{}{} {}", limits.empty() ? "" : ", ", upper, limit.get<std::string>());
  }
  return fmt::format("SLO ({}) met by {} of the requests; goodput {} requests/s\n", limits,
                     percent(m["slo_attainment"]), number(m["request_goodput"], 2));
}

// The GPU for which the others wait most: the one that waits least itself.
std::string last_gpu(const OrderedJson& report) {
  const OrderedJson& idle = report["breakdown"]["barrier_idle_seconds_per_gpu"];
  const double busy = report["breakdown"]["busy_seconds"];
  if (idle.size() < 2 || busy <= 0) return "";
  std::size_t last = 0;
  double mean = 0;
  for (std::size_t gpu = 0; gpu < idle.size(); ++gpu) {
    if (idle[gpu] < idle[last]) last = gpu;
    mean += idle[gpu].get<double>() / double(idle.size());
  }
  constexpr double worth_saying = .001;  // of the time
  if (mean < worth_saying * busy) return "";
  return fmt::format(
      "GPU {} holds the others up most: it waits {:.1f} % of the time at barriers, they {:.1f} %",
      last, 100 * idle[last].get<double>() / busy, 100 * mean / busy);
}

// The step kind that takes the most steps.
std::string usual_kind(const OrderedJson& kinds) {
  for (const char* kind : {"decode", "mixed"}) {
    if (kinds.contains(kind)) return kind;
  }
  return "prefill";
}

// The layer and EP rank that activates most beside the mean rank of the layer.
std::string hottest_layer(const OrderedJson& report) {
  const OrderedJson& kinds = report["experts"]["by_step_kind"];
  const std::string kind = usual_kind(kinds);
  if (!kinds.contains(kind) || !kinds[kind].contains("layers")) return "";
  const double steps = report["steps"][kind]["steps"];
  double worst = 1;
  std::string text;
  for (const OrderedJson& layer : kinds[kind]["layers"]) {
    const auto activated = layer["rank_activated"]["total_by_rank"].get<std::vector<double>>();
    const auto tokens = layer["rank_tokens"]["total_by_rank"].get<std::vector<double>>();
    const auto most = std::ranges::max_element(activated);
    const double mean = std::accumulate(activated.begin(), activated.end(), 0.0) /
                        static_cast<double>(activated.size());
    if (mean <= 0 || *most / mean <= worst) continue;
    worst = *most / mean;
    const auto rank = most - activated.begin();
    text = fmt::format(
        "; in layer {} EP rank {} activates {:.1f} experts in a {} step for {:.0f} tokens, the "
        "mean rank {:.1f}",
        layer["layer"].get<int>(), rank, *most / steps, kind,
        tokens[static_cast<std::size_t>(rank)] / steps, mean / steps);
  }
  return text;
}

std::string holds_up(const OrderedJson& report) {
  const std::string last = last_gpu(report);
  return last.empty() ? "" : wrapped(last + hottest_layer(report)) + "\n";
}

std::string summary(const OrderedJson& report) {
  const OrderedJson& m = report["metrics"];
  if (m["completed"] == 0 && m.contains("timed_out")) {
    return fmt::format("no request finished: {} rejected{}\n", m["rejected"].get<std::int64_t>(),
                       abandoned(m));
  }
  if (m["completed"] == 0) {
    return fmt::format(
        "no request finished: {} of {} were rejected, because they need more KV blocks than the {} "
        "that a rank has\n",
        m["rejected"].get<std::int64_t>(), m["measured_requests"].get<std::int64_t>(),
        report["kv"]["blocks_per_rank"].get<std::int64_t>());
  }
  std::string text = fmt::format(
      "{} requests finished, {} rejected{}; {:.1f} s measured\n"
      "throughput   {:.0f} tokens/s with prompts, {:.0f} output; {:.1f} output per GPU; {:.2f} "
      "requests/s\n{}\n",
      m["completed"].get<std::int64_t>(), m["rejected"].get<std::int64_t>(), abandoned(m),
      m["duration_s"].get<double>(), m["total_token_throughput"].get<double>(),
      m["output_throughput"].get<double>(), m["tokens_per_s_per_gpu"].get<double>(),
      m["request_throughput"].get<double>(), state_of(report["measurement"]) + slo_of(report));

  Table latency({"latency, ms", "mean", "median", "p90", "p99"});
  for (const std::string name : {"ttft", "tpot", "itl", "e2el"}) {
    const auto at = [&](const std::string& statistic) {
      return number(m[statistic + "_" + name + "_ms"], 2);
    };
    latency.add({name, at("mean"), at("median"), at("p90"), at("p99")});
  }
  text += latency.text() + "\n";

  Table steps({"steps", "count", "mean ms", "time", "decodes/rank", "max activated", "max tokens",
               "balance"});
  for (const auto& [kind, experts] : report["experts"]["by_step_kind"].items()) {
    const OrderedJson& step = report["steps"][kind];
    steps.add({kind, fmt::format("{}", step["steps"].get<std::int64_t>()),
               number(step["mean_ms"], 3), percent(step["share_of_time"]),
               number(step["mean_decode_tokens_per_rank"]),
               number(experts["max_activated_mean"], 2), number(experts["max_tokens_mean"]),
               number(experts["balancedness"], 3)});
  }
  text += steps.text() + "\n";

  std::string parts;
  for (const auto& [part, entry] : report["breakdown"]["parts"].items()) {
    if (entry["share"].get<double>() < .005) continue;
    parts += fmt::format("{}{} {}", parts.empty() ? "" : ", ", part, percent(entry["share"]));
  }
  text += wrapped("time goes to " + parts) + "\n";
  text += fmt::format(
      "barriers idle {}, KV cache {} used, peak {}; routing rows recorded {} (decode)\n",
      percent(report["breakdown"]["barrier_idle_share"]), percent(report["kv"]["mean_utilization"]),
      percent(report["kv"]["peak_utilization"]),
      percent(report["routing_coverage"]["decode"]["recorded"]));
  text += holds_up(report);
  const OrderedJson& memory = report["expert_memory"];
  if (memory["type"] != "resident") {
    text +=
        fmt::format("experts: {} of runs found them in HBM; layers waited {} s for the others\n",
                    percent(memory["hit_rate"]), number(memory["stall_seconds"], 2));
  }
  const OrderedJson& experts = report["experts"];
  if (experts["dropped"] != 0 || experts["rerouted"] != 0 || experts["delayed"] != 0) {
    text +=
        fmt::format("selections dropped {}, rerouted {}, delayed {}\n", percent(experts["dropped"]),
                    percent(experts["rerouted"]), percent(experts["delayed"]));
  }
  const auto cut = report["expert_buffers"]["steps_cut"].get<std::int64_t>();
  if (cut > 0) text += fmt::format("{} steps were made smaller: expert buffers were full\n", cut);
  text += groups_of(report);
  text += events_of(report);
  if (!m["cost_per_million_output_tokens"].is_null()) {
    text += fmt::format("a million output tokens cost {} dollars\n",
                        number(m["cost_per_million_output_tokens"], 2));
  }
  return text + bands_of(report);
}

std::string trust_of(const OrderedJson& report, const Experiment& e) {
  return trust_line({{"breakdown", Json(report["breakdown"])}}, e.config);
}

// Nobody was served: a script should not take that for a result.
bool all_rejected(const OrderedJson& metrics) {
  return metrics["rejected"] > 0 && metrics["completed"] == 0 &&
         metrics.value("timed_out", 0) + metrics.value("cancelled", 0) == 0;
}

OrderedJson profile_of(const SimulatorWork& work, double wall) {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) { return double(t.tv_sec) + double(t.tv_usec) * 1e-6; };
  return {{"wall_s", wall},
          {"cpu_s", seconds(usage.ru_utime) + seconds(usage.ru_stime)},
          {"peak_rss_mb", double(usage.ru_maxrss) / 1024},
          {"steps", work.steps},
          {"steps_per_s", double(work.steps) / wall},
          {"routed_ids_per_s", double(work.routed_ids) / wall},
          {"generated_tokens_per_s", double(work.generated_tokens) / wall}};
}

OrderedJson intervals_of(const ConfigNode& config) {
  constexpr int runs = 16;
  ProgressBar progress("runs");
  return intervals(config, runs, [&](int finished) { progress.update(finished, runs); });
}

// An option that names a file to write, and the file; empty if not asked for.
struct NamedOutput {
  std::string_view option;
  std::string file;
};

// Refuses two options that name one file, of which the later would overwrite the earlier.
void require_different(std::initializer_list<NamedOutput> files) {
  const auto same = [](const std::string& a, const std::string& b) {
    std::error_code ignored;
    return a == b || std::filesystem::equivalent(a, b, ignored) ||
           std::filesystem::weakly_canonical(a, ignored) ==
               std::filesystem::weakly_canonical(b, ignored);
  };
  for (auto one = files.begin(); one != files.end(); ++one) {
    for (auto other = files.begin(); other != one; ++other) {
      if (one->file.empty() || !same(one->file, other->file)) continue;
      throw ConfigError(fmt::format("{} and {} name one file, {}; name two", other->option,
                                    one->option, one->file));
    }
  }
}

int run_experiment(const Options& options) {
  const auto threads = static_cast<std::size_t>(
      options.threads > 0 ? options.threads
                          : static_cast<int>(std::thread::hardware_concurrency()));
  const tbb::global_control limit(tbb::global_control::max_allowed_parallelism, threads);
  for (const auto& file : {options.report, options.profile, options.requests}) {
    require_writable(file);
  }
  require_different({{"-o", options.report},
                     {"--profile", options.profile},
                     {"--requests", options.requests},
                     {"--steps", options.steps},
                     {"--timeline", options.timeline}});
  TraceLibrary traces;
  const ConfigNode config = options.experiment.read();
  const Experiment experiment = Remarks().say_of(load_experiment(config, traces));
  std::optional<Timeline> timeline;
  std::optional<StepsCsv> steps;
  RequestLog requests;
  std::vector<RunObserver*> observers;
  if (!options.timeline.empty() && experiment.parallel.pp > 1) {
    throw ConfigError(
        "--timeline: a GPU of a pipeline has several micro-batches in a step, which "
        "lanes do not show; use --steps, or \"pp\": 1");
  }
  if (!options.timeline.empty()) {
    observers.push_back(&timeline.emplace(options.timeline, experiment));
  }
  if (!options.steps.empty()) observers.push_back(&steps.emplace(options.steps));
  if (!options.requests.empty()) observers.push_back(&requests);
  const auto start = std::chrono::steady_clock::now();
  ProgressBar progress("requests");
  Report report = run(
      experiment,
      [&](std::int64_t finished, std::int64_t expected) { progress.update(finished, expected); },
      observers);
  progress.finish();
  const std::chrono::duration<double> wall = std::chrono::steady_clock::now() - start;

  const OrderedJson profile = profile_of(report.work, wall.count());
  spdlog::info("simulated {} steps in {:.2f} s ({:.0f} steps/s, {:.3g} routed ids/s)",
               report.work.steps, wall.count(), profile["steps_per_s"].get<double>(),
               profile["routed_ids_per_s"].get<double>());
  if (options.intervals) report.document["intervals"] = intervals_of(config);
  const std::string document = report.document.dump(1) + "\n";
  if (!options.profile.empty()) write_file(options.profile, profile.dump(1) + "\n");
  if (!options.requests.empty()) write_file(options.requests, requests_csv(requests.requests()));
  if (timeline) timeline->finish();
  if (steps) steps->finish();
  if (!options.report.empty()) write_file(options.report, document);
  print(options.json ? document : summary(report.document) + trust_of(report.document, experiment));
  if (!options.launch.empty()) print("\n" + launch_text(options.launch, experiment.config));
  return all_rejected(report.document["metrics"]) ? 3 : 0;
}

}  // namespace

Action setup_run(CLI::App& command) {
  const auto options = std::make_shared<Options>();
  options->experiment.add_to(command);
  command.add_option("-o,--output", options->report, "write the whole report, JSON");
  command.add_flag("--json", options->json, "print the report instead of tables");
  command.add_flag("--intervals", options->intervals,
                   "run 16 times more with constants, seeds and recorded requests drawn again, and "
                   "say how far the results vary");
  add_launch_option(command, options->launch);
  command.add_option("--threads", options->threads, "threads to use (default: all cores)")
      ->check(CLI::PositiveNumber);
  command.add_option("--profile", options->profile,
                     "write the simulator's own time, memory and speed, JSON");
  command.add_option("--requests", options->requests, "write a line per request, CSV");
  command.add_option("--steps", options->steps, "write a line per step, CSV");
  command.add_option("--timeline", options->timeline,
                     "write steps, GPU lanes and requests as a trace that Perfetto opens, JSON");
  return [options] { return run_experiment(*options); };
}

}  // namespace moesim
