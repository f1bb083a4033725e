// SPDX-License-Identifier: Apache-2.0
#include <chrono>
#include <thread>

#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <sys/resource.h>
#include <tbb/global_control.h>

#include "sim/simulator.hpp"
#include "tools/experiment_options.hpp"
#include "tools/output.hpp"
#include "tools/table.hpp"
#include "tools/verbs.hpp"

namespace moesim {

namespace {

struct Options {
  ExperimentOptions experiment;
  std::string report, profile, requests;
  bool json = false;
  int threads = 0;
};

// Says how far a long run is: nothing in the first second, then a line every two.
class ProgressLines {
 public:
  void operator()(std::int64_t finished, std::int64_t expected) {
    const auto now = std::chrono::steady_clock::now();
    if (now - last_ < std::chrono::seconds(2)) return;
    last_ = now;
    if (expected > 0) {
      spdlog::info("{} of {} requests finished ({} %)", finished, expected,
                   100 * finished / expected);
    } else {
      spdlog::info("{} requests finished", finished);
    }
  }

 private:
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

std::string number(const OrderedJson& value, int digits = 1) {
  return value.is_null() ? "-" : fmt::format("{:.{}f}", value.get<double>(), digits);
}
std::string percent(const OrderedJson& value) {
  return fmt::format("{:.1f} %", value.get<double>() * 100);
}

std::string summary(const OrderedJson& report) {
  const OrderedJson& m = report["metrics"];
  if (m["completed"] == 0) {
    return fmt::format(
        "no request finished: {} of {} were rejected, because they need more KV blocks than the {} "
        "that a rank has\n",
        m["rejected"].get<std::int64_t>(), m["measured_requests"].get<std::int64_t>(),
        report["kv"]["blocks_per_rank"].get<std::int64_t>());
  }
  std::string text = fmt::format(
      "{} requests finished, {} rejected; {:.1f} s measured\n"
      "throughput   {:.0f} tokens/s with prompts, {:.0f} output; {:.1f} output per GPU; {:.2f} "
      "requests/s\n\n",
      m["completed"].get<std::int64_t>(), m["rejected"].get<std::int64_t>(),
      m["duration_s"].get<double>(), m["total_token_throughput"].get<double>(),
      m["output_throughput"].get<double>(), m["tokens_per_s_per_gpu"].get<double>(),
      m["request_throughput"].get<double>());

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
  return text;
}

std::string requests_csv(const std::vector<RequestRecord>& requests) {
  std::string csv =
      "request,arrival_s,rank,state,prompt_tokens,output_tokens,generated,ttft_ms,e2el_ms,"
      "preemptions,cached_tokens,score,hit_share,locality,load_kv_tokens\n";
  constexpr std::array<std::string_view, 4> states{"waiting", "running", "finished",
                                                   "rejected: exceeds_kv_capacity"};
  for (std::size_t i = 0; i < requests.size(); ++i) {
    const RequestRecord& r = requests[i];
    const bool finished = r.state == RequestRecord::State::finished;
    const auto ms = [&](Time t) {
      return finished ? fmt::format("{:.6f}", to_seconds(t - r.arrival).count() * 1e3) : "";
    };
    csv += fmt::format(
        "{},{:.9f},{},{},{},{},{},{},{},{},{},{},{},{},{}\n", i, to_seconds(r.arrival).count(),
        r.rank, states[static_cast<std::size_t>(r.state)], r.prompt_tokens, r.output_tokens,
        r.generated, ms(r.first_token), ms(r.last_token), r.preemptions, r.cached_tokens,
        r.routing.score, r.routing.hit_share, r.routing.locality, r.routing.load);
  }
  return csv;
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

int run_experiment(const Options& options) {
  const auto threads = static_cast<std::size_t>(
      options.threads > 0 ? options.threads
                          : static_cast<int>(std::thread::hardware_concurrency()));
  const tbb::global_control limit(tbb::global_control::max_allowed_parallelism, threads);
  for (const auto& file : {options.report, options.profile, options.requests}) {
    require_writable(file);
  }
  TraceLibrary traces;
  const Experiment experiment = load_experiment(options.experiment.read(), traces);
  const auto start = std::chrono::steady_clock::now();
  const Report report = run(experiment, ProgressLines());
  const std::chrono::duration<double> wall = std::chrono::steady_clock::now() - start;

  const OrderedJson profile = profile_of(report.work, wall.count());
  spdlog::info("simulated {} steps in {:.2f} s ({:.0f} steps/s, {:.3g} routed ids/s)",
               report.work.steps, wall.count(), profile["steps_per_s"].get<double>(),
               profile["routed_ids_per_s"].get<double>());
  const std::string document = report.document.dump(1) + "\n";
  if (!options.profile.empty()) write_file(options.profile, profile.dump(1) + "\n");
  if (!options.requests.empty()) write_file(options.requests, requests_csv(report.requests));
  if (!options.report.empty()) write_file(options.report, document);
  print(options.json ? document : summary(report.document));
  return 0;
}

}  // namespace

Action setup_run(CLI::App& command) {
  const auto options = std::make_shared<Options>();
  options->experiment.add_to(command);
  command.add_option("-o,--output", options->report, "write the whole report, JSON");
  command.add_flag("--json", options->json, "print the report instead of tables");
  command.add_option("--threads", options->threads, "threads to use (default: all cores)")
      ->check(CLI::PositiveNumber);
  command.add_option("--profile", options->profile,
                     "write the simulator's own time, memory and speed, JSON");
  command.add_option("--requests", options->requests, "write a line per request, CSV");
  return [options] { return run_experiment(*options); };
}

}  // namespace moesim
