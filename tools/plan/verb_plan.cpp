// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <map>
#include <memory>
#include <numeric>
#include <type_traits>

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include "hardware/shipped.hpp"
#include "sim/experiment/pools.hpp"
#include "sim/placement/placement.hpp"
#include "tools/cli/interrupt.hpp"
#include "tools/cli/launch.hpp"
#include "tools/cli/named_files.hpp"
#include "tools/cli/option_checks.hpp"
#include "tools/cli/output.hpp"
#include "tools/cli/progress.hpp"
#include "tools/cli/serving_options.hpp"
#include "tools/cli/table.hpp"
#include "tools/cli/trust.hpp"
#include "tools/cli/verbs.hpp"
#include "tools/plan/lost_gpu.hpp"
#include "tools/plan/plan.hpp"
#include "tools/plan/plan_page.hpp"
#include "tools/plan/scaling.hpp"
#include "tools/plan/session_answer.hpp"
#include "tools/plan/stages.hpp"
#include "tools/sweep/axes.hpp"
#include "tools/sweep/session_options.hpp"
#include "tools/sweep/sweep.hpp"
#include "traces/gating/presets.hpp"

namespace moesim {

namespace {

struct PlanOptions {
  ServingQuestion question;
  std::string model, cluster, output, launch, prompt = "1000", generated = "200", anchor, prefix,
                                              fail;
  double prefix_hit = 0;
  std::vector<std::string> gpu;  // several: a plan for each
  std::vector<int> gpus{8};
  double attainment = .9;
  double price = 0;  // dollars per GPU and hour; 0: the GPU file's
  int drafts = 0;
  double acceptance = .7;
  bool json = false, no_page = false;
  std::string layouts = "usual", by = "rate";
  std::string sessions, host_memory = "256 GB";  // of a node; 0: no tier is asked
  SessionOptions session_limits;
};

Layouts layouts_of(const PlanOptions& options) {
  return options.layouts == "all" ? Layouts::all : Layouts::usual;
}

bool ranks_by_energy(const PlanOptions& options) { return options.by == "energy"; }

// Keeps the runs of a search that writes no files.
class TemporaryStore {
 public:
  TemporaryStore() {
    std::string name = (std::filesystem::temp_directory_path() / "moesim-plan-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr)
      throw ConfigError(fmt::format("{}: cannot be created; set TMPDIR to a folder", name));
    folder_ = name;
  }
  ~TemporaryStore() {
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }
  TemporaryStore(const TemporaryStore&) = delete;
  TemporaryStore& operator=(const TemporaryStore&) = delete;

  std::filesystem::path path() const { return folder_ / "plan.sqlite"; }

 private:
  std::filesystem::path folder_;
};

// Question about one cluster.
struct Asked {
  PlanSearch search;
  std::string cluster;                            // "16 x h200"
  std::string output;                             // name of the files, without ending; empty: none
  std::shared_ptr<const TemporaryStore> scratch;  // where no file is kept
  std::optional<Price> price;

  bool keeps() const { return !output.empty(); }
  std::filesystem::path store() const {
    return keeps() ? std::filesystem::path(output + ".sqlite") : scratch->path();
  }
  std::string config_file() const { return keeps() ? output + ".json" : experiment_file; }
  ExperimentSpec spec_of(const SloRun& run) const { return read_spec({run.config, config_file()}); }
};

ServingQuestion read_question(const PlanOptions& options) {
  ServingQuestion question = options.question;
  question.model = anywhere(options.model);
  if (const std::string remark = settle_checkpoint(question); !remark.empty())
    spdlog::info("{}", remark);
  question.prompt = tokens_of_option("--isl", options.prompt);
  question.output = tokens_of_option("--osl", options.generated);
  if (options.prefix_hit > 0)
    question.prefix = static_cast<int>(std::lround(options.prefix_hit * question.prompt));
  if (!options.prefix.empty()) question.prefix = tokens_of_option("--prefix", options.prefix);
  if (question.prefix >= question.prompt && question.prefix > 0) {
    throw ConfigError(fmt::format("--prefix: {} tokens leave none of a prompt of {} to compute",
                                  question.prefix, question.prompt));
  }
  if (!question.trace.empty()) question.trace = std::filesystem::absolute(question.trace).string();
  if (!question.ttft.empty()) question.ttft = duration_of("--ttft", question.ttft);
  if (!question.tpot.empty()) question.tpot = duration_of("--tpot", question.tpot);
  if (options.sessions.empty() && options.session_limits.any())
    throw ConfigError("--ttft-first, --ttft-later, --session-p90: limits of --sessions");
  if (question.ttft.empty() && question.tpot.empty() && !options.session_limits.any())
    throw ConfigError(
        "--ttft, --tpot: both are missing. Give one or both: plan ranks deployments by the rate "
        "within these limits");
  if (options.gpu.empty() && options.cluster.empty())
    throw ConfigError("needs --gpu NAME --gpus N, or --cluster (moesim list gpus, clusters)");
  if (!options.gpu.empty() && !options.cluster.empty())
    throw ConfigError("--gpu, --cluster: give one of them, not both");
  if (!options.cluster.empty() && options.gpus.size() > 1)
    throw ConfigError("--gpus: a cluster has its number of GPUs; give --gpu NAME instead");
  return question;
}

// The name of the files without an ending that one of them gets.
std::string stem_of(const std::filesystem::path& name) {
  const std::filesystem::path ending = name.extension();
  const bool known = ending == ".json" || ending == ".html" || ending == ".sqlite";
  return (known ? name.parent_path() / name.stem() : name).string();
}

// GPUs of one kind, "" where a cluster is named.
struct Gpus {
  std::string kind;
  int count;
};

// Places that a plan is made for: each number of each kind.
std::vector<Gpus> places_of(const PlanOptions& options) {
  std::vector<Gpus> places;
  for (const int count : options.gpus) {
    for (const std::string& kind : options.gpu) places.push_back({kind, count});
    if (options.gpu.empty()) places.push_back({"", count});
  }
  return places;
}

Asked ask(const PlanOptions& options, ServingQuestion question, const Gpus& gpus) {
  std::string remark;
  question.cluster = options.cluster.empty() ? cluster_of(gpus.kind, gpus.count, remark)
                                             : anywhere(options.cluster);
  if (!remark.empty()) spdlog::warn("{}", remark);
  const std::filesystem::path here = experiment_file;
  const ConfigNode model =
      named_or_inline(ConfigNode(question.model, here, "/model"), Shipped::model);
  const ConfigNode cluster =
      named_or_inline(ConfigNode(question.cluster, here, "/cluster"), Shipped::cluster);
  MoeModel read = read_model(model);
  const auto stored = read_stored_precision(model, read);
  Json base = base_deployment(question, read, stored);
  if (options.drafts > 0)
    base["speculative"] = {{"num_speculative_tokens", options.drafts},
                           {"acceptance_rate", options.acceptance}};
  if (!options.anchor.empty()) base["anchor"] = std::filesystem::absolute(options.anchor).string();
  if (!options.sessions.empty())
    base = session_deployment(std::move(base), sessions_of_option(options.sessions));
  Asked asked;
  asked.output = stem_of(options.output);
  if (!asked.keeps()) asked.scratch = std::make_shared<TemporaryStore>();
  if (asked.keeps() && options.gpu.size() > 1) asked.output += "-" + gpus.kind;
  if (asked.keeps() && options.gpus.size() > 1) asked.output += fmt::format("-{}", gpus.count);
  asked.search = {.base = std::move(base),
                  .model = std::move(read),
                  .cluster = read_cluster(cluster),
                  .folder = std::filesystem::path(asked.output).parent_path(),
                  .store = asked.store(),
                  .attainment = options.attainment,
                  .layouts = layouts_of(options)};
  asked.price = asked.search.cluster.gpu.price;
  if (options.price > 0) asked.price = Price{options.price, "--price"};
  asked.cluster =
      fmt::format("{} x {}", asked.search.cluster.gpus(), asked.search.cluster.gpu.name);
  if (ranks_by_energy(options) && !asked.search.cluster.gpu.power)
    throw ConfigError(
        fmt::format("--by energy: the draw of {} is not known; the GPU's file has no \"power\" "
                    "(moesim-lab calibrate --power)",
                    asked.search.cluster.gpu.name));
  if (!asked.keeps()) return asked;
  require_stem(asked.output);
  for (const char* ending : {".json", ".html"}) require_writable(asked.output + ending);
  return asked;
}

std::string margin(const SloRun& run, const Metric& metric, const char* limit) {
  const auto left = margin_of(run, limit);
  const std::string text = metric_text(run, metric);
  if (!left) return text;
  if (*left < -1) return fmt::format("{} ({:.3g} x)", text, 1 - *left);
  return fmt::format("{} ({:+.0f} %)", text, 100 * *left);
}

// Joules of the GPUs for an output token; nothing where that is not known.
std::optional<double> joules(const SloRun& run) {
  return found_number(run.report, std::string(metric("joules_per_output_token").pointer));
}

std::string joules_text(const SloRun& run) {
  const auto value = joules(run);
  return value ? fmt::format("{:.3g}", *value) : "-";
}

// Dollars per million output tokens; "-" where no price is known.
std::string cost(const SloRun& run, const Asked& asked) {
  const double output = number_at(run.report, "/metrics/output_throughput", 0);
  if (!asked.price || output <= 0) return "-";
  constexpr double seconds_per_hour = 3600;
  return fmt::format("{:.2f}", asked.price->dollars_per_hour * asked.search.cluster.gpus() /
                                   seconds_per_hour / output * 1e6);
}

std::string price_text(const Asked& asked) {
  if (!asked.price) return "no price of this GPU is known; --price gives one\n";
  return paragraph("price: ${:.2f} per GPU-hour ({})", asked.price->dollars_per_hour,
                   asked.price->source);
}

std::string rate_or_dash(const std::vector<std::optional<double>>& rates, std::size_t i) {
  return i < rates.size() && rates[i] ? fmt::format("{:.4g}", *rates[i]) : "-";
}

// Slots per expert: an EP group has as many slots on each rank.
double copies_of(const PlannedDeployment& chosen, int experts) {
  const int ranks = chosen.decode.parallel.ep;
  return double(ranks) * slots_for_replication(experts, ranks, chosen.replication) / experts;
}

int gpus_of(const PlannedDeployment& chosen) {
  const auto of_group = [](const PlannedGroup& group) {
    return group.instances * group.parallel.gpus();
  };
  return of_group(chosen.decode) + (chosen.prefill ? of_group(*chosen.prefill) : 0);
}

// "1", "1 and 2", "1, 2 and 4"
std::string numbers_text(const std::vector<std::size_t>& rows) {
  std::string text;
  for (std::size_t i = 0; i < rows.size(); ++i)
    text += (i == 0 ? "" : i + 1 == rows.size() ? " and " : ", ") + std::to_string(rows[i] + 1);
  return text;
}

// The pool that binds a deployment of two: "decode pool (dp4 ep4)"; "" where that is not known.
std::string binding_pool(const SloRun& run) {
  const PlannedDeployment chosen = choices_of(run);
  const std::string limit = limit_text(run), shape = chosen.shape();
  const std::string_view between = ", decode ";
  const std::size_t at = shape.find(between);
  if (!chosen.apart() || at == shape.npos) return "";
  if (limit == "TPOT")
    return fmt::format("decode pool ({}, {})", shape.substr(at + between.size()), chosen.routing());
  constexpr std::string_view first = "prefill ";
  return limit == "TTFT"
             ? fmt::format("prefill pool ({})", shape.substr(first.size(), at - first.size()))
             : "";
}

// Rows whose loads are no further apart than the search tells; none but the first: empty.
std::string tied_text(const std::vector<SloRun>& runs) {
  constexpr double step = 1.0165;  // loads of the search are 1.6 % apart
  std::vector<std::size_t> equal;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    if (runs[i].per_second() * step >= runs.front().per_second()) equal.push_back(i);
  }
  return equal.size() < 2 ? ""
                          : fmt::format(
                                "{} tie: their loads are at most a step of 1.6 % apart, which the "
                                "search cannot tell from a difference",
                                numbers_text(equal));
}

// Common properties of several rows, once for all of them: a pool that binds, and ties.
std::string shared_text(const std::vector<SloRun>& runs) {
  std::map<std::string, std::vector<std::size_t>> by_pool;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    if (const std::string pool = binding_pool(runs[i]); !pool.empty()) by_pool[pool].push_back(i);
  }
  std::string text;
  for (const auto& [pool, rows] : by_pool) {
    if (rows.size() > 1) text += paragraph("{}: the same {} binds", numbers_text(rows), pool);
  }
  if (const std::string tied = tied_text(runs); !tied.empty()) text += paragraph(tied);
  return text;
}

AnswerTable table_of(const std::vector<SloRun>& runs, const Plan& plan, const Asked& asked,
                     bool by_energy) {
  AnswerTable table;
  table.head = {"copies",
                "routing",
                "chunk",
                "seqs",
                "req/s",
                "met",
                "+5 %",
                "uniform",
                "p90 TTFT ms",
                "p90 TPOT ms",
                by_energy ? "J/token" : "$/M"};
  const bool dense = asked.search.model.experts == 0;
  const bool drafts = choices_in(asked.search.base).drafts > 0;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const SloRun& run = runs[i];
    const PlannedDeployment chosen = choices_of(run);
    const int gpus = gpus_of(chosen), all = asked.search.cluster.gpus();
    const std::string busy = busy_text(run);
    table.add(
        fmt::format("{}{}{}", chosen.shape(),
                    gpus < all ? fmt::format(", {} of {} GPUs", gpus, all) : "",
                    drafts ? ", " + chosen.drafts_text() : ""),
        fmt::format("{} binds{}", limit_text(run), busy.empty() ? "" : "; " + busy),
        {dense ? "-" : number_text(copies_of(chosen, asked.search.model.experts)), chosen.routing(),
         std::to_string(chosen.chunk), std::to_string(chosen.sequences),
         run.rate.substr(0, run.rate.find(' ')), percent(run.trial.attainment, 0),
         run.heavier ? percent(run.heavier->attainment, 0) : "-", rate_or_dash(plan.uniform, i),
         margin(run, metric("p90_ttft_ms"), "ttft"), margin(run, metric("p90_tpot_ms"), "tpot"),
         by_energy ? joules_text(run) : cost(run, asked)});
  }
  return table;
}

// Legend of what ranks the rows, and what their columns say.
std::string legend(bool by_energy) {
  const std::string ranked =
      by_energy ? "Ranked by J/token, of the deployments that sustain most requests. req/s: the "
                  "heaviest load that lasts in a steady state. "
                : "Ranked by req/s: the heaviest load that lasts in a steady state. ";
  return paragraph(
      ranked +
      "The best ran under three seeds of arrivals and routing, and so did the best of the other "
      "kind unless it sustains less than half. The others ran under one. met: requests within the "
      "limits, in the mean of the seeds. Latencies are of the first seed; another one may set the "
      "load. +5 %: met under 5 % more load, the least of the seeds that ran under it. " +
      (by_energy ? "J/token: what the GPUs draw, over output tokens. "
                 : "$/M: a million output tokens. ") +
      "In brackets: what is left to the limit.");
}

// The best of each kind side by side.
std::string kinds_text(const Plan& plan) {
  const auto best_of = [&](bool apart) {
    const auto run = best_of_kind(plan.best, apart);
    return run == plan.best.end()
               ? std::string("none that fits meets the limits")
               : fmt::format("{} req/s ({})", run->rate.substr(0, run->rate.find(' ')),
                             run - plan.best.begin() + 1);
  };
  return fmt::format("best aggregated: {}; best disaggregated: {}\n", best_of(false),
                     best_of(true));
}

// The least that a request alone gets, where nothing keeps the limits.
std::string least_text(const Plan& plan) {
  std::string text;
  const auto add = [&](const char* name, const std::optional<Plan::Least>& least) {
    if (!least) return;
    text += fmt::format("least {} possible: {} ms ({})\n", name, number_text(1e3 * least->seconds),
                        least->shape);
  };
  add("TTFT", plan.least_ttft);
  add("TPOT", plan.least_tpot);
  return text;
}

// Experts of a decode step; null where the run's store does not say.
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

OrderedJson binds_json(const SloRun& run) {
  OrderedJson json{{"limit", limit_text(run)}};
  if (const auto busy = busy_part(run)) {
    json["part"] = busy->part;
    json["share"] = busy->share;
    json["bound_by"] = busy->bound_by;
  }
  return json;
}

OrderedJson to_json(const SloRun& run) {
  OrderedJson json{{"shape", choices_of(run).shape()},
                   {"rate", run.per_second()},
                   {"state", state_of(run)},
                   {"seeds", run.draws},
                   {"goodput", run.per_second() * run.trial.attainment},
                   {"slo_attainment", run.trial.attainment},
                   {"binds", binds_json(run)},
                   {"config", run.config},
                   {"metrics", run.report.at("metrics")}};
  if (run.heavier)
    json["heavier"] = {{"more", run.heavier->more},
                       {"slo_attainment", run.heavier->attainment},
                       {"binds", run.heavier->binds}};
  if (const Json* experts = decode_experts(run)) json["experts"] = *experts;
  if (run.report.contains("energy")) json["energy"] = run.report.at("energy");
  for (const char* limit : {"ttft", "tpot"}) {
    if (const auto left = margin_of(run, limit)) json["margins"][limit] = *left;
  }
  return json;
}

OrderedJson to_json(const Plan& plan, const Asked& asked) {
  OrderedJson json{
      {"cluster", asked.cluster}, {"shapes", plan.shapes}, {"fit", plan.fit}, {"runs", plan.runs}};
  json["best"] = OrderedJson::array();
  for (std::size_t i = 0; i < plan.best.size(); ++i) {
    OrderedJson& run = json["best"].emplace_back(to_json(plan.best[i]));
    if (i < plan.uniform.size() && plan.uniform[i]) run["uniform_routing_rate"] = *plan.uniform[i];
  }
  if (!plan.nearest.empty()) json["nearest"] = to_json(plan.nearest.front());
  const auto add = [&](const char* key, const std::optional<Plan::Least>& least) {
    if (least) json[key] = {{"seconds", least->seconds}, {"shape", least->shape}};
  };
  add("least_ttft", plan.least_ttft);
  add("least_tpot", plan.least_tpot);
  return json;
}

// Whose statistics synthetic routing has: "DeepSeek-V3 and R1 (gating preset deepseek_r1), another
// family".
std::string statistics_of(const MoeModel& model) {
  const auto [preset, of_another_family] = preset_of(model);
  return fmt::format("{} (gating preset {}){}", preset.family, preset.name,
                     of_another_family ? ", another family" : "");
}

// Remark: with more requests in flight than distinct synthetic ones are served (half of them), some
// of a batch are equal.
std::string repeats_of(const SloRun& first) {
  const Json& metrics = first.report.at("metrics");
  const double in_flight =
      metrics.at("request_throughput").get<double>() * metrics.value("mean_e2el_ms", 0.0) / 1e3;
  const int served = first.config.at("workload").at("gating").at("requests").get<int>() / 2;
  if (in_flight <= served) return "";
  return fmt::format(
      " {:.0f} requests are in flight and {} distinct synthetic ones are served: real batches may "
      "activate more experts.",
      in_flight, served);
}

// Routing that nobody recorded.
std::string doubts(const Plan& plan, const MoeModel& model) {
  const bool tried =
      std::ranges::any_of(plan.uniform, [](const auto& rate) { return rate.has_value(); });
  if (!tried) return "";
  return paragraph(
      "Routing is synthetic, by the statistics of {}. uniform: the load sustained if every expert "
      "is as likely as any other. --trace takes recordings.{}",
      statistics_of(model), repeats_of(plan.best.front()));
}

void write_config(const Asked& asked, const SloRun& run) {
  if (!asked.keeps()) return;
  Json config = run.config;
  config["measurement"]["expert_counts"] = true;
  write_file(asked.config_file(), config.dump(2) + "\n");
}

// Whose commands start a deployment of the question.
std::string launched_by(const ServingQuestion& question) {
  return question.engine == "none" ? ServingQuestion().engine : question.engine;
}

// Writes the page, if one is wanted. Whether it did.
bool write_page(const PlanOptions& options, const Asked& asked, PlanPage page) {
  if (!asked.keeps() || options.no_page) return false;
  page.title = fmt::format("{} on {}", asked.search.model.name, asked.cluster);
  page.engine = launched_by(options.question);
  page.store = asked.store();
  page.attainment = options.attainment;
  try {
    for (const SloRun& run : page.runs)
      page.launch.push_back(launch_text(page.engine, asked.spec_of(run)));
    write_file(asked.output + ".html", plan_page(page));
    return true;
  } catch (const ConfigError& error) {
    spdlog::warn("no page: {}", error.what());
    return false;
  }
}

std::string written_text(const Asked& asked, bool page) {
  if (!asked.keeps())
    return "nothing is written; -o NAME keeps the deployment, every run and a page of the answer\n";
  return fmt::format("written: {0}.json (moesim run {0}.json), {0}.sqlite with every run{1}\n",
                     asked.output, page ? fmt::format(", {}.html", asked.output) : "");
}

// In which precisions the weights and the KV cache are taken to be.
std::string assumed_precision(const SloRun& run, const Asked& asked) {
  return precision_text(asked.spec_of(run).pools.back().precision);
}

// " TTFT within 1 s, TPOT within 50 ms"
std::string limits_text(std::initializer_list<std::pair<const char*, const std::string&>> limits) {
  std::string text;
  for (const auto& [name, limit] : limits) {
    if (!limit.empty())
      text += fmt::format("{} {} within {}", text.empty() ? "" : ",", name, limit);
  }
  return text;
}

std::string question_text(const PlanOptions& options, const ServingQuestion& question,
                          const Asked& asked, const SloRun& run) {
  const std::string prefix =
      question.prefix > 0
          ? fmt::format(" ({} of them a prefix of all prompts, in the KV cache)", question.prefix)
          : "";
  return wrapped(fmt::format("{} ({}) on {}, {} tokens in{}, {} out;{} for {} of the requests",
                             asked.search.model.name, assumed_precision(run, asked), asked.cluster,
                             question.prompt, prefix, question.output,
                             limits_text({{"TTFT", question.ttft}, {"TPOT", question.tpot}}),
                             percent(options.attainment, 0)));
}

// Layout of the pool that decodes, as anchors name it.
std::string anchored_layout(const PoolSpec& pool) {
  return layout_text(pool.parallel, pool.instances);
}

OrderedJson anchor_json(const PoolSpec& pool) {
  const auto fit = [](const AnchorFit& of, double factor) {
    return OrderedJson{{"runs", of.runs}, {"factor", factor}, {"leave_one_out", of.leave_one_out}};
  };
  return {{"deployment", pool.anchor->deployment},
          {"layouts", pool.anchor->layouts},
          {"tpot", fit(pool.anchor->tpot, pool.anchored_tpot)},
          {"ttft", fit(pool.anchor->ttft, pool.anchored_tpot * pool.anchored_ttft)},
          {"of_another_layout", !pool.anchor->holds_at(anchored_layout(pool))}};
}

// Text of what corrects the first deployment: empty without an anchor.
std::string anchored_text(const Asked& asked, const SloRun& first) {
  if (!first.config.contains("anchor")) return "";
  const ExperimentSpec spec = asked.spec_of(first);
  const PoolSpec& pool = spec.pools.back();
  std::string text =
      anchor_line(*pool.anchor, pool.anchored_tpot, pool.anchored_tpot * pool.anchored_ttft);
  if (!pool.anchor->holds_at(anchored_layout(pool)))
    text += paragraph(
        "ANOTHER LAYOUT: the anchor was not measured at {}, so its errors may not hold there",
        anchored_layout(pool));
  return text;
}

std::string to_text(const LostGpu& lost, const SloRun& first) {
  const std::string gpu =
      fmt::format("without GPU {}{}", lost.gpu, lost.pool.empty() ? "" : " of the decode pool");
  if (!lost.refused.empty())
    return paragraph("{} the deployment cannot run: {}", gpu, lost.refused);
  return paragraph(
      "{}: {} req/s within the limits for {} of the requests ({:+.0f} %). The engine stops for "
      "{:.2f} s when the GPU is lost; other GPUs load {:.0f} slots of experts",
      gpu, number_text(lost.per_second), percent(lost.attainment, 0),
      100 * (lost.per_second / first.per_second() - 1), lost.stopped_seconds, lost.experts_lost);
}

OrderedJson to_json(const LostGpu& lost) {
  if (!lost.refused.empty()) return {{"gpu", lost.gpu}, {"refused", lost.refused}};
  return {{"gpu", lost.gpu},
          {"rate", lost.per_second},
          {"slo_attainment", lost.attainment},
          {"stopped_seconds", lost.stopped_seconds},
          {"experts_lost", lost.experts_lost}};
}

// Answers as JSON: of one plan itself, of several a list.
using Answers = std::vector<OrderedJson>;

void print_json(const Answers& answers) {
  if (answers.empty()) return;
  print((answers.size() == 1 ? answers.front() : OrderedJson(answers)).dump(1) + "\n");
}

const SloRun& first_of(const PlanFound& found) {
  return found.best.empty() ? found.nearest.front() : found.best.front();
}

// Words on a search, for requests or for sessions.
struct Said {
  std::string question, unit, notes, missed;
  AnswerTable table;
  OrderedJson json;
};

int say(const PlanOptions& options, const Asked& asked, const PlanFound& found, const Said& said,
        Answers& answers) {
  const bool met = !found.best.empty();
  const SloRun& first = first_of(found);
  write_config(asked, first);
  const bool page = write_page(
      options, asked,
      {.question = said.question,
       .result = met ? fmt::format("{} {}: {}. {}", number_text(first.per_second()), said.unit,
                                   said.table.shapes.front(), tied_text(found.best))
                     : "No deployment meets the limits; this one misses them by least.",
       .notes = said.notes,
       .table = said.table,
       .runs = met ? found.best : found.nearest,
       .sessions = !options.sessions.empty()});
  if (!met) spdlog::error("{}", said.missed);
  if (options.json) {
    answers.push_back(said.json);
  } else {
    print(fmt::format("{}\n\n{}\n{}{} shapes, of which {} fit in memory; {} runs\n{}",
                      said.question, said.table.text(), said.notes, found.shapes, found.fit,
                      found.runs, written_text(asked, page)));
    print(anchored_text(asked, first));
    print(trust_line(first.report, first.config));
    // Last, so that the commands can be copied to the end.
    if (!options.launch.empty()) print("\n" + launch_text(options.launch, asked.spec_of(first)));
  }
  return met ? 0 : exit_limit_not_met;
}

int say_requests(const PlanOptions& options, const ServingQuestion& question, const Asked& asked,
                 const Plan& plan, Answers& answers) {
  const bool met = !plan.best.empty(), by_energy = ranks_by_energy(options);
  const SloRun& first = first_of(plan);
  const MoeModel& model = asked.search.model;
  Said said{.question = question_text(options, question, asked, first),
            .unit = "req/s",
            .notes = met ? shared_text(plan.best) + kinds_text(plan) + legend(by_energy)
                         : least_text(plan),
            .missed = fmt::format("no deployment meets the SLO for {} of its requests; the "
                                  "nearest, at {}: {}, met by {}, {}",
                                  percent(options.attainment, 0), first.rate, latencies_text(first),
                                  percent(first.trial.attainment, 0), state_of(first)),
            .table = table_of(met ? plan.best : plan.nearest, plan, asked, by_energy),
            .json = to_json(plan, asked)};
  const Json choices = scores_of_choices({options.gpu}, {question.engine});
  said.notes +=
      active_text(first, model) + doubts(plan, model) + choices_text(choices) + price_text(asked);
  if (!choices.empty()) said.json["choices"] = choices;
  if (met && !options.fail.empty()) {
    TraceLibrary traces;
    const LostGpu lost = without_gpu(first.config, asked.search.folder, lost_gpu_of(options.fail),
                                     first.per_second(), options.attainment, traces);
    said.notes += to_text(lost, first);
    said.json["fail"] = to_json(lost);
  }
  if (first.config.contains("anchor"))
    said.json["anchor"] = anchor_json(asked.spec_of(first).pools.back());
  if (asked.price)
    said.json["price"] = {{"dollars_per_gpu_hour", asked.price->dollars_per_hour},
                          {"source", asked.price->source}};
  return say(options, asked, plan, said, answers);
}

// Shows how far a search is.
class PlanProgress {
 public:
  /// `where` is said before each stage: "16 x H200, ".
  explicit PlanProgress(std::string where) : where_(std::move(where)) {}
  PlanHooks hooks() {
    PlanHooks hooks;
    hooks.stop = InterruptGuard::interrupted;
    hooks.begins = [this](const std::string& stage) {
      runs_.reset();
      bounds_.emplace("deployments looked at");
      runs_.emplace("runs");
      const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start_;
      spdlog::info("{:.0f} s, {}stage {}", elapsed.count(), where_, stage);
    };
    hooks.bounded = [this](std::size_t done, std::size_t total) { bounds_->hook()(done, total); };
    hooks.ran = [this](std::size_t runs) {
      bounds_->finish();
      runs_->update(static_cast<std::int64_t>(runs), 0);
    };
    return hooks;
  }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  std::string where_;
  std::optional<ProgressBar> bounds_, runs_;
};

// The best first by joules of an output token; those whose power is not known last, as they were.
void rank_by_energy(Plan& plan) {
  std::vector<std::size_t> order(plan.best.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  constexpr double unknown = std::numeric_limits<double>::infinity();
  std::ranges::stable_sort(order, {},
                           [&](std::size_t i) { return joules(plan.best[i]).value_or(unknown); });
  const auto ranked = [&](const auto& values) {
    std::remove_cvref_t<decltype(values)> sorted;
    for (const std::size_t i : order) sorted.push_back(values[i]);
    return sorted;
  };
  plan.uniform.resize(plan.best.size());
  plan.best = ranked(plan.best);
  plan.uniform = ranked(plan.uniform);
}

// Searches by make(traces, remarks, hooks). A search that is refused leaves no store without runs.
template <class Make>
auto searched(const PlanOptions& options, const Asked& asked, Make&& make) {
  const std::filesystem::path& store = asked.search.store;
  TraceLibrary traces;
  Remarks remarks;
  // The plan's GPUs stand before its stages, where there are several plans.
  PlanProgress progress(places_of(options).size() > 1 ? asked.cluster + ", " : "");
  std::error_code none;
  const bool is_new = !std::filesystem::exists(store, none);
  try {
    return make(traces, remarks, progress.hooks());
  } catch (const ConfigError&) {
    if (is_new && runs_in(store) == 0) std::filesystem::remove(store, none);
    throw;
  }
}

// How requests/s grow with GPUs, or differ by their kind.
std::string scaling_text(const std::vector<Asked>& asked, const std::vector<Plan>& plans) {
  Table table({"GPUs", "req/s", "per GPU", "$/M out", "shape"});
  std::map<std::string, ScaledRun> by_kind;  // the latest of each
  std::string reasons;
  for (std::size_t i = 0; i < plans.size(); ++i) {
    const int gpus = asked[i].search.cluster.gpus();
    if (plans[i].best.empty()) {
      table.add({asked[i].cluster, "-", "-", "-", "none meets the limits"});
      continue;
    }
    const SloRun& best = plans[i].best.front();
    table.add({asked[i].cluster, number_text(best.per_second()),
               number_text(best.per_second() / gpus), cost(best, asked[i]),
               choices_of(best).shape()});
    const ScaledRun more{&best, asked[i].cluster, gpus, asked[i].search.folder};
    if (auto& fewer = by_kind[asked[i].search.cluster.gpu.name]; fewer.run != nullptr)
      reasons += superlinear_text(std::exchange(fewer, more), more);
    else
      fewer = more;
  }
  const auto unlike = [&](const Asked& one) {
    return one.price && asked.front().price && one.price->source != asked.front().price->source;
  };
  const bool sources = std::ranges::any_of(asked, unlike);
  return "\n" + table.text() + reasons +
         (sources ? "prices are of unlike providers; --price sets one price for all\n" : "");
}

// Limits of turns: --ttft is that of each kind that has none of its own. The looser one is that of
// any turn.
SessionLimits limits_of(const PlanOptions& options, ServingQuestion& question) {
  SessionLimits limits = options.session_limits.read();
  if (question.ttft.empty() && limits.first_ttft && limits.later_ttft) {
    const bool first = *limits.first_ttft > *limits.later_ttft;
    const SessionOptions& texts = options.session_limits;
    question.ttft = first ? duration_of("--ttft-first", texts.ttft_first)
                          : duration_of("--ttft-later", texts.ttft_later);
  } else if (!question.ttft.empty()) {
    const auto all = parse_quantity<Seconds>(question.ttft);
    for (std::optional<Seconds>* limit : {&limits.first_ttft, &limits.later_ttft}) {
      if (!*limit) *limit = all;
    }
    if (std::max(*limits.first_ttft, *limits.later_ttft) > all)
      throw ConfigError("--ttft: the limit of any turn is below that of some turns");
  }
  return limits;
}

std::string session_question(const PlanOptions& options, const Asked& asked, const TurnMeans& means,
                             const SloRun& run) {
  const ServingQuestion& question = options.question;
  const SessionOptions& of_sessions = options.session_limits;
  return wrapped(fmt::format(
      "{} ({}) on {}, sessions of {}: {:.0f} turns of {:.0f} tokens in, {:.0f} of them new, {:.0f} "
      "out, {} s between turns;{}",
      asked.search.model.name, assumed_precision(run, asked), asked.cluster, options.sessions,
      means.turns, means.prompt, means.computed, means.output, number_text(means.gap),
      limits_text({{"TTFT", question.ttft},
                   {"TTFT of first turns", of_sessions.ttft_first},
                   {"TTFT of later turns", of_sessions.ttft_later},
                   {"TPOT", question.tpot},
                   {"a session", of_sessions.completion}})));
}

int say_sessions(const PlanOptions& options, const Asked& asked, const SessionPlanned& plan,
                 Answers& answers) {
  if (plan.best.empty() && plan.nearest.empty()) {
    spdlog::error("no deployment serves a single session within the limits");
    return exit_limit_not_met;
  }
  const SloRun& first = first_of(plan);
  const int gpus = asked.search.cluster.gpus();
  const double rejected = number_at(first.report, "/metrics/rejected", 0);
  OrderedJson json{{"cluster", asked.cluster}};
  json.update(session_json(plan, gpus));
  return say(
      options, asked, plan,
      {.question = session_question(options, asked, plan.means, first),
       .unit = "sessions at a time",
       .notes = session_notes(plan, options.host_memory) + price_text(asked),
       .missed = fmt::format(
           "no deployment meets the limits; the nearest, with {}: {}, met by {}, {}{}", first.rate,
           latencies_text(first), percent(first.trial.attainment, 0), state_of(first),
           rejected > 0
               ? fmt::format("; {:.0f} turns were rejected, and so missed the limits", rejected)
               : ""),
       .table = session_table(plan, gpus),
       .json = std::move(json)},
      answers);
}

// Says what was done before. Whether the search was stopped, which is said as well.
bool was_stopped(const PlanFound& plan, const Asked& asked) {
  if (plan.before > 0) spdlog::info("{} runs were done before", plan.before);
  if (plan.stopped && asked.keeps())
    spdlog::warn(
        "stopped: {}.sqlite keeps the {} runs so far; the same command continues from there",
        asked.output, runs_in(asked.search.store));
  else if (plan.stopped)
    spdlog::warn("stopped: no run is kept; with -o NAME the same command continues");
  return plan.stopped;
}

int run_sessions(const PlanOptions& options) {
  ServingQuestion question = read_question(options);
  const SessionLimits limits = limits_of(options, question);
  const bool asks_tier = parse_quantity<Bytes>(options.host_memory) > Bytes(0);
  const InterruptGuard guard("the runs in flight are finished; again to stop at once");
  int code = 0;
  Answers answers;
  for (const Gpus& gpus : places_of(options)) {
    const Asked asked = ask(options, question, gpus);
    const SessionPlanned plan = searched(
        options, asked, [&](TraceLibrary& traces, Remarks& remarks, const PlanHooks& hooks) {
          return make_session_plan({.plan = asked.search,
                                    .limits = limits,
                                    .host_memory = asks_tier ? options.host_memory : ""},
                                   traces, remarks, hooks);
        });
    if (was_stopped(plan, asked)) return exit_interrupted;
    code = std::max(code, say_sessions(options, asked, plan, answers));
  }
  if (options.json) print_json(answers);
  return code;
}

int run_requests(const PlanOptions& options) {
  const ServingQuestion question = read_question(options);
  if (!options.fail.empty()) lost_gpu_of(options.fail);  // refused before the search
  const InterruptGuard guard("the runs in flight are finished; again to stop at once");
  std::vector<Asked> asked;
  for (const Gpus& gpus : places_of(options)) asked.push_back(ask(options, question, gpus));
  std::vector<Plan> plans;
  Answers answers;
  int code = 0;
  for (const Asked& one : asked) {
    Plan& plan = plans.emplace_back(
        searched(options, one, [&](TraceLibrary& traces, Remarks& remarks, const PlanHooks& hooks) {
          return make_plan(one.search, traces, remarks, hooks);
        }));
    if (ranks_by_energy(options)) rank_by_energy(plan);
    if (was_stopped(plan, one)) return exit_interrupted;
    if (plans.size() > 1 && !options.json) print("\n");
    code = std::max(code, say_requests(options, question, one, plan, answers));
  }
  if (options.json)
    print_json(answers);
  else if (plans.size() > 1)
    print(scaling_text(asked, plans));
  return code;
}

int run(const PlanOptions& options) {
  return options.sessions.empty() ? run_requests(options) : run_sessions(options);
}

constexpr std::string_view plan_footer =
    R"(The search covers every TP x DP x EP x PP x instances that fills the GPUs, and pools for prefill and
decode. Memory and step-time bounds exclude many deployments. The rest are simulated at the lowest
rate at which they could still win. Then copies of experts, token routing, chunk and limits on
sequences of the best are varied. Five deployments are simulated from a warm start over more than
twenty lifetimes of a request, under three seeds. The answer is the heaviest load that lasts. The
answer is one step of 1.6 % less if 5 % more load exceeds the capacity or meets the limits for few
requests. The share of requests that must meet the limits is --attainment.
With --sessions the load is how many sessions are alive at a time. Each deployment is then run for
some turns of each session, and the best with host memory below its KV cache as well.
With -o NAME three files are written: NAME.json (the best deployment, an experiment), NAME.sqlite
(every run) and NAME.html (a page of the answer). The same command then continues a stopped search.
Without -o the answer is only printed. Exit 3 if no deployment meets the limits, with the nearest miss.)";

// Adds options of what is served, and on what.
void add_hardware(CLI::App& command, PlanOptions& options) {
  option(command, "--model", options.model, model_option, mandatory);
  option(command, "--gpu", options.gpu,
         "a name of moesim list gpus; several, comma-separated: a plan for each", comma_separated);
  option(command, "--gpus", options.gpus,
         "number of GPUs; several numbers: a plan for each, and how it scales", comma_separated,
         CLI::Range(1, 1024), default_shown);
  command.add_option("--cluster", options.cluster,
                     "instead of --gpu and --gpus: a file, or a name of moesim list clusters");
}

// Adds options of what users send, and of their limits.
void add_load(CLI::App& command, PlanOptions& options) {
  ServingQuestion& question = options.question;
  add_length_options(command, options.prompt, options.generated);
  option(command, "--sessions", options.sessions,
         "sessions instead of --isl and --osl: chat, coding, codex, or a session file")
      ->excludes(command.get_option("--isl"), command.get_option("--osl"));
  CLI::Option* const prefix =
      option(command, "--prefix", options.prefix,
             "tokens of --isl with which all prompts begin: KV caches keep the prefix")
          ->excludes("--sessions");
  option(command, "--prefix-hit", options.prefix_hit,
         "the same as a share of --isl, e.g. .6: tokens of prompts that are cached",
         a_number(0, .999))
      ->excludes("--sessions", prefix);
  command.add_option("--ttft", question.ttft, "limit of the time to the first token, e.g. 1s");
  command.add_option("--tpot", question.tpot, "limit of the time per output token, e.g. 50ms");
  options.session_limits.add_to(command);
  option(command, "--host-memory", options.host_memory,
         "host memory of a node, whose worth as a KV tier --sessions tells; 0 B: not asked",
         default_shown);
  option(command, "--attainment", options.attainment,
         "the share of requests that must meet the limits", a_share(), default_shown);
}

// Adds options of the engine.
void add_engine(CLI::App& command, PlanOptions& options) {
  ServingQuestion& question = options.question;
  option(command, "--drafts", options.drafts,
         "speculative tokens of a sequence and step, the most to try; 0: no speculation",
         CLI::Range(0, 64), default_shown);
  option(command, "--acceptance", options.acceptance, "the share of draft tokens that are accepted",
         a_number(0, 1), default_shown);
  add_engine_options(command, question);
}

// How the answer is found and given.
void add_answer(CLI::App& command, PlanOptions& options) {
  ServingQuestion& question = options.question;
  option(command, "--fail", options.fail,
         "gpu=N: the load that the best deployment sustains when this GPU is lost")
      ->excludes("--sessions");
  command.add_option("--anchor", options.anchor, "measured runs, as `bench --anchor` writes");
  option(command, "--price", options.price,
         "dollars per GPU and hour (default: that of the GPU's file)", a_number(0, 1e6));
  option(command, "--seed", question.seed, "seed of arrivals and synthetic routing", a_seed(),
         default_shown);
  option(command, "--layouts", options.layouts,
         "usual, or all: also PCP, DCP, MegaMoE, experts cut over some GPUs, GPUs for experts "
         "alone (AFD)",
         CLI::IsMember({"usual", "all"}), default_shown);
  option(command, "--by", options.by,
         "rate: most requests/s first; energy: of the best, fewest joules a token first",
         CLI::IsMember({"rate", "energy"}), default_shown);
  command.add_option("-o,--output", options.output,
                     "name of the files to write, without ending (default: none is written)");
  command.add_flag("--no-page", options.no_page, "write no page");
  add_launch_option(command, options.launch);
  command.add_flag("--json", options.json, "print JSON instead of tables");
}

}  // namespace

Action setup_plan(CLI::App& command) {
  const auto options = std::make_shared<PlanOptions>();
  const auto add = [&](const char* heading, void (*group)(CLI::App&, PlanOptions&)) {
    const std::size_t before = command.get_options().size();
    group(command, *options);
    const auto all = command.get_options([](CLI::Option*) { return true; });
    for (CLI::Option* option : std::span(all).subspan(before)) option->group(heading);
  };
  add("Model and GPUs", add_hardware);
  add("Load and limits", add_load);
  add("Engine", add_engine);
  add("Search and answer", add_answer);
  command.footer(std::string(plan_footer));
  return [options] { return run(*options); };
}

}  // namespace moesim
