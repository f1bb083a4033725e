// SPDX-License-Identifier: Apache-2.0
#include <memory>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <spdlog/spdlog.h>

#include "hardware/shipped.hpp"
#include "tools/cli/interrupt.hpp"
#include "tools/cli/launch.hpp"
#include "tools/cli/named_files.hpp"
#include "tools/cli/output.hpp"
#include "tools/cli/progress.hpp"
#include "tools/cli/table.hpp"
#include "tools/cli/trust.hpp"
#include "tools/cli/verbs.hpp"
#include "tools/plan/plan.hpp"
#include "tools/report/page.hpp"
#include "tools/sweep/axes.hpp"
#include "tools/sweep/sweep.hpp"
#include "traces/gating/presets.hpp"

namespace moesim {

namespace {

struct PlanOptions {
  PlanQuestion question;
  std::string model, gpu, cluster, output = "plan", launch;
  int gpus = 8;
  double attainment = .9;
  bool json = false, no_page = false;
};

// "1s" as well as "1 s".
std::string duration(const std::string& option, std::string text) {
  const std::size_t unit = text.find_first_not_of("0123456789.");
  if (unit != std::string::npos && unit > 0 && text[unit] != ' ') text.insert(unit, " ");
  double seconds = 0;
  try {
    seconds = parse_quantity<Seconds>(text).count();
  } catch (const ConfigError& error) {
    throw ConfigError(fmt::format("{}: {}", option, error.what()));
  }
  if (seconds <= 0)
    throw ConfigError(fmt::format("{}: {} is no limit; expected more", option, text));
  return text;
}

PlanSearch read_question(const PlanOptions& options) {
  PlanQuestion question = options.question;
  question.model = anywhere(options.model);
  if (!question.trace.empty()) question.trace = std::filesystem::absolute(question.trace).string();
  if (!question.ttft.empty()) question.ttft = duration("--ttft", question.ttft);
  if (!question.tpot.empty()) question.tpot = duration("--tpot", question.tpot);
  if (question.ttft.empty() && question.tpot.empty())
    throw ConfigError("--ttft, --tpot: without a limit every deployment is good; give one of them");
  if (!options.gpu.empty() && !options.cluster.empty())
    throw ConfigError("--gpu, --cluster: give one of them, not both");
  if (options.gpu.empty() && options.cluster.empty())
    throw ConfigError("needs --gpu NAME --gpus N, or --cluster (moesim list gpus, clusters)");
  std::string remark;
  question.cluster = options.cluster.empty() ? cluster_of(options.gpu, options.gpus, remark)
                                             : anywhere(options.cluster);
  if (!remark.empty()) spdlog::warn("{}", remark);
  const std::filesystem::path here = "plan";
  const ConfigNode model =
      named_or_inline(ConfigNode(question.model, here, "/model"), Shipped::model);
  const ConfigNode cluster =
      named_or_inline(ConfigNode(question.cluster, here, "/cluster"), Shipped::cluster);
  MoeModel read = read_model(model);
  const auto stored = read_stored_precision(model, read);
  if (stored && !stored->doubt.empty()) spdlog::warn("\"precision\": {}", stored->doubt);
  Json base = base_deployment(question, read, stored);
  return {.base = std::move(base),
          .model = std::move(read),
          .cluster = read_cluster(cluster),
          .folder = std::filesystem::path(options.output).parent_path(),
          .store = options.output + ".sqlite",
          .attainment = options.attainment};
}

std::string margin(const SloRun& run, const Metric& metric, const char* limit) {
  const auto left = margin_of(run, limit);
  const std::string text = metric_text(run, metric);
  return left ? fmt::format("{} ({:+.0f} %)", text, 100 * *left) : text;
}

std::string cost(const SloRun& run) {
  const Json* value = find_value(run.report, "/metrics/cost_per_million_output_tokens");
  return value == nullptr || !value->is_number() ? "-"
                                                 : fmt::format("{:.2f}", value->get<double>());
}

std::string table_of(const std::vector<SloRun>& runs) {
  Table table({"", "copies", "routing", "chunk", "seqs", "req/s", "met by", "p90 TTFT ms",
               "p90 TPOT ms", "$/M out"});
  std::string names;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const SloRun& run = runs[i];
    const std::string number = std::to_string(i + 1);
    const Json& scheduling = run.config.at("scheduling");
    const Json& limits = decode_group(run.config).value("scheduling", scheduling);
    const Json* copies = find_value(decode_group(run.config), "/placement/replication");
    if (copies == nullptr) copies = find_value(run.config, "/placement/replication");
    table.add({number, copies == nullptr ? "-" : number_text(copies->get<double>()),
               routing_text(run.config), scheduling.at("max_num_batched_tokens").dump(),
               limits.at("max_num_seqs").dump(), run.rate.substr(0, run.rate.find(' ')),
               fmt::format("{:.0f} %", 100 * run.trial.attainment),
               margin(run, metric("p90_ttft_ms"), "ttft"),
               margin(run, metric("p90_tpot_ms"), "tpot"), cost(run)});
    names += wrapped(fmt::format("{}: {}; nearest limit {}", number, shape_text(run.config),
                                 binding_text(run)),
                     100, 3) +
             "\n";
  }
  return names + "\n" + table.text() +
         "(met by that share of the requests; in brackets what is left to the limit)\n\n";
}

// Of a decode step; null where the run's store does not say.
const Json* decode_experts(const SloRun& run) {
  return find_value(run.report, "/experts/by_step_kind/decode");
}

// "experts active in a layer of a decode step of 1: 83.0 of 128 (uniform routing: 125.9)"
std::string active_text(const SloRun& first, const MoeModel& model) {
  const Json* experts = decode_experts(first);
  if (experts == nullptr) return "";
  return fmt::format(
      "experts active in a layer of a decode step of 1: {:.1f} of {} (uniform routing: {:.1f})\n",
      experts->at("active_experts_mean").get<double>(), model.experts,
      experts->at("uniform_experts_mean").get<double>());
}

OrderedJson to_json(const SloRun& run) {
  OrderedJson json{{"shape", shape_text(run.config)},    {"rate", run.rate},
                   {"goodput", run.trial.goodput},       {"slo_attainment", run.trial.attainment},
                   {"binds", binding_text(run)},         {"config", run.config},
                   {"metrics", run.report.at("metrics")}};
  if (const Json* experts = decode_experts(run)) json["experts"] = *experts;
  for (const char* limit : {"ttft", "tpot"}) {
    if (const auto left = margin_of(run, limit)) json["margins"][limit] = *left;
  }
  return json;
}

OrderedJson to_json(const Plan& plan) {
  OrderedJson json{{"shapes", plan.shapes}, {"fit", plan.fit}, {"runs", plan.runs}};
  json["best"] = OrderedJson::array();
  for (const SloRun& run : plan.best) json["best"].push_back(to_json(run));
  if (!plan.nearest.empty()) json["nearest"] = to_json(plan.nearest.front());
  json["redrawn_rates"] = plan.redrawn;
  if (plan.uniform) json["uniform_routing_rate"] = *plan.uniform;
  return json;
}

std::string rate_or_none(double rate) {
  return rate > 0 ? fmt::format("{:.4g} /s", rate) : "nothing near it";
}

// Whose statistics synthetic routing has: "DeepSeek-V3 and R1 (gating preset deepseek_r1), another
// family".
std::string statistics_of(const MoeModel& model) {
  const auto [preset, of_another_family] = preset_of(model);
  return fmt::format("{} (gating preset {}){}", preset.family, preset.name,
                     of_another_family ? ", another family" : "");
}

// Where more requests are in flight than distinct synthetic ones are served (half of them), some of
// a batch are alike.
std::string repeats_of(const SloRun& first) {
  const Json& metrics = first.report.at("metrics");
  const double in_flight =
      metrics.at("request_throughput").get<double>() * metrics.value("mean_e2el_ms", 0.0) / 1e3;
  const int served = first.config.at("workload").at("gating").at("requests").get<int>() / 2;
  if (in_flight <= served) return "";
  return fmt::format(
      "; {:.0f} requests are in flight and {} distinct synthetic ones are served, so that real "
      "batches may activate more experts",
      in_flight, served);
}

// What the answer hangs on: chance, and routing that nobody recorded.
std::string doubts(const Plan& plan, const MoeModel& model) {
  if (plan.redrawn.empty()) return "";
  std::vector<std::string> rates;
  for (const double rate : plan.redrawn) rates.push_back(rate_or_none(rate));
  std::string text =
      fmt::format("1 under other draws of arrivals and routing bears {}", fmt::join(rates, ", "));
  if (plan.uniform) {
    text += fmt::format(
        "; routing is synthetic, by the statistics of {}: were every expert as likely as any "
        "other, {}; --trace takes recordings",
        statistics_of(model), rate_or_none(*plan.uniform));
    text += repeats_of(plan.best.front());
  }
  return wrapped(text, 100, 2) + "\n";
}

std::string effort_text(const Plan& plan) {
  return fmt::format("{} shapes, of which {} fit in memory; {} runs", plan.shapes, plan.fit,
                     plan.runs);
}

void write_config(const PlanOptions& options, const SloRun& run) {
  Json config = run.config;
  config["measurement"]["expert_counts"] = true;
  write_file(options.output + ".json", config.dump(2) + "\n");
}

void write_page(const PlanOptions& options, const SloRun& answer) {
  PageOptions page;
  page.chosen =
      point_of(answer.config, std::filesystem::path(options.output).parent_path()).config_hash;
  page.base = options.output + ".json";
  write_file(options.output + ".html", store_page(options.output + ".sqlite", page).html);
}

std::string written_text(const PlanOptions& options, bool page) {
  return fmt::format("written: {0}.json (moesim run {0}.json), {0}.sqlite with every run{1}\n",
                     options.output, page ? fmt::format(", {}.html", options.output) : "");
}

int say(const PlanOptions& options, const Plan& plan, const MoeModel& model) {
  const bool met = !plan.best.empty();
  const SloRun& first = met ? plan.best.front() : plan.nearest.front();
  write_config(options, first);
  bool page = !options.no_page;
  try {
    if (page) write_page(options, first);
  } catch (const ConfigError& error) {
    spdlog::warn("no page: {}", error.what());
    page = false;
  }
  if (!met) {
    spdlog::error(
        "no deployment meets the SLO for {:.0f} % of its requests; the nearest, at {}: {}",
        options.attainment * 100, first.rate, latencies_text(first));
  }
  if (options.json) {
    print(to_json(plan).dump(1) + "\n");
  } else {
    print(table_of(met ? plan.best : plan.nearest));
    print(active_text(first, model) + doubts(plan, model) + effort_text(plan) + "\n" +
          written_text(options, page));
    if (!options.launch.empty())
      print("\n" +
            launch_text(options.launch, read_spec({first.config, options.output + ".json"})));
    print(trust_line(first.report, first.config));
  }
  return met ? 0 : exit_limit_not_met;
}

int run(const PlanOptions& options) {
  if (options.output.empty()) throw ConfigError("-o: the files have no name");
  require_stem(options.output);
  for (const char* ending : {".json", ".html"}) require_writable(options.output + ending);
  const PlanSearch search = read_question(options);
  TraceLibrary traces;
  Remarks remarks;
  std::optional<ProgressBar> bounds, progress;
  const InterruptGuard guard("the runs in flight are finished and kept; again to stop at once");
  PlanHooks hooks;
  hooks.stop = InterruptGuard::interrupted;
  hooks.begins = [&](const std::string& stage) {
    progress.reset();
    bounds.emplace("deployments looked at");
    progress.emplace("runs");
    spdlog::info("{}", stage);
  };
  hooks.bounded = [&](std::size_t done, std::size_t total) {
    bounds->update(static_cast<std::int64_t>(done), static_cast<std::int64_t>(total));
  };
  hooks.ran = [&](std::size_t runs) {
    bounds->finish();
    progress->update(static_cast<std::int64_t>(runs), 0);
  };
  const Plan plan = make_plan(search, traces, remarks, hooks);
  progress.reset();
  if (plan.before > 0) spdlog::info("{} runs were done before", plan.before);
  if (plan.stopped) {
    spdlog::warn(
        "stopped after {} runs, which {}.sqlite keeps; the same command goes on from there",
        plan.runs, options.output);
    return exit_interrupted;
  }
  return say(options, plan, search.model);
}

constexpr std::string_view plan_footer =
    R"(Every TP x DP x EP x PP x instances that fills the GPUs, and pools for prefill and decode, is looked
at: memory and the time of its steps rule most out; the others are simulated under the rate that
would make them the best. Of the best, copies of experts, token routing, chunk and limits on
sequences are varied; five are then simulated for longer. Limits are met by --attainment of the
requests. Times in brackets are what is left to the limit. -o NAME writes NAME.json, the best
deployment as an experiment, NAME.sqlite, every run, and NAME.html, a page of them; the same command
goes on where it was stopped. Exit 3 if nothing meets the limits, with the nearest miss.)";

}  // namespace

Action setup_plan(CLI::App& command) {
  const auto options = std::make_shared<PlanOptions>();
  PlanQuestion& question = options->question;
  command.add_option("--model", options->model, model_option)->required();
  command.add_option("--gpu", options->gpu, "a name of moesim list gpus");
  command.add_option("--gpus", options->gpus, "how many of them")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  command.add_option("--cluster", options->cluster, "instead: a file, or a name of list clusters");
  command.add_option("--isl", question.prompt, "tokens of a prompt")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  command.add_option("--osl", question.output, "tokens of an output")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  command.add_option("--ttft", question.ttft, "limit of the time to the first token, e.g. 1s");
  command.add_option("--tpot", question.tpot, "limit of the time per output token, e.g. 50ms");
  command
      .add_option("--attainment", options->attainment,
                  "the share of requests that must meet the limits")
      ->check(CLI::Range(0., 1.))
      ->capture_default_str();
  command.add_option("--trace", question.trace,
                     "a routing trace of the model (default: synthetic gating)");
  std::vector<std::string> engines = names_of_engines();
  engines.emplace_back("none");
  command.add_option("--engine", question.engine, "whose defaults and kernels are taken, or none")
      ->check(CLI::IsMember(engines))
      ->capture_default_str();
  command.add_option("-o,--output", options->output, "name of the files written, without ending")
      ->capture_default_str();
  command.add_flag("--no-page", options->no_page, "write no page");
  add_launch_option(command, options->launch);
  command.add_flag("--json", options->json, "print JSON instead of tables");
  command.footer(std::string(plan_footer));
  return [options] { return run(*options); };
}

}  // namespace moesim
