// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>
#include <cmath>
#include <deque>
#include <memory>

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include "hardware/shipped.hpp"
#include "sim/experiment/pools.hpp"
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
#include "tools/plan/answer.hpp"
#include "tools/plan/lost_gpu.hpp"
#include "tools/plan/request_answer.hpp"
#include "tools/plan/scaling.hpp"
#include "tools/plan/session_answer.hpp"
#include "tools/plan/stages.hpp"
#include "tools/sweep/session_options.hpp"
#include "tools/sweep/sweep.hpp"

namespace moesim {

namespace {

struct PlanOptions {
  ServingQuestion question;
  AnswerOptions answer;
  std::string model, cluster, output, prompt = "1000", generated = "200", anchor, prefix, fail;
  double prefix_hit = 0;
  std::vector<std::string> gpu;  // several: a plan for each
  std::vector<int> gpus{8};
  double price = 0;  // dollars per GPU and hour; 0: the GPU file's
  int drafts = 0;
  double acceptance = .7;
  std::string layouts = "usual", by = "rate";
  std::string sessions, host_memory = "256 GB";  // of a node; 0: no tier is asked
  SessionOptions session_limits;
};

Layouts layouts_of(const PlanOptions& options) {
  return options.layouts == "all" ? Layouts::all : Layouts::usual;
}

bool ranks_by_energy(const PlanOptions& options) { return options.by == "energy"; }

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
    throw ConfigError("--prefix: {} tokens leave none of a prompt of {} to compute",
                      question.prefix, question.prompt);
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
  if (!asked.keeps()) asked.scratch = temporary_folder();
  if (asked.keeps() && options.gpu.size() > 1) asked.output += "-" + gpus.kind;
  if (asked.keeps() && options.gpus.size() > 1) asked.output += fmt::format("-{}", gpus.count);
  PrecisionPlan precision = stored ? stored->plan : PrecisionPlan{};
  if (base.contains("precision"))
    precision = read_precision(ConfigNode(base.at("precision"), here, "/precision"), &precision);
  asked.search = {.base = std::move(base),
                  .model = std::move(read),
                  .precision = precision,
                  .cluster = read_cluster(cluster),
                  .folder = std::filesystem::path(asked.output).parent_path(),
                  .store = asked.store(),
                  .attainment = options.answer.attainment,
                  .layouts = layouts_of(options)};
  GpuSpec& gpu = asked.search.cluster.gpu;
  if (options.price > 0) gpu.price = Price{options.price, "--price"};
  if (ranks_by_energy(options) && !gpu.power)
    throw ConfigError(
        "--by energy: the draw of {} is not known; the GPU's file has no \"power\" "
        "(moesim-lab calibrate --power)",
        gpu.name);
  if (!asked.keeps()) return asked;
  require_stem(asked.output);
  for (const char* ending : {".json", ".html"}) require_writable(asked.output + ending);
  return asked;
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
                             asked.search.model.name, assumed_precision(run, asked),
                             asked.cluster(), question.prompt, prefix, question.output,
                             limits_text({{"TTFT", question.ttft}, {"TPOT", question.tpot}}),
                             percent(options.answer.attainment, 0)));
}

bool say_requests(const PlanOptions& options, const ServingQuestion& question, const Asked& asked,
                  const Plan& plan, Answers& answers) {
  const bool met = !plan.best.empty(), by_energy = ranks_by_energy(options);
  const SloRun& first = first_of(plan);
  const std::optional<Price>& price = asked.search.cluster.gpu.price;
  Said said{.page = {.question = question_text(options, question, asked, first),
                     .notes = request_notes(plan, asked.search.model, by_energy),
                     .table = request_table(plan, asked.search, by_energy),
                     .engine = options.question.engine},
            .unit = "req/s",
            .missed = fmt::format("no deployment meets the SLO for {} of its requests; the "
                                  "nearest, at {}: {}, met by {}, {}",
                                  percent(options.answer.attainment, 0), first.rate,
                                  latencies_text(first), percent(first.trial.attainment, 0),
                                  state_of(first)),
            .json = request_json(plan, asked.search)};
  const Json choices = scores_of_choices({options.gpu}, {question.engine});
  said.page.notes += choices_text(choices) + price_text(price);
  if (!choices.empty()) said.json["choices"] = choices;
  if (met && !options.fail.empty()) {
    TraceLibrary traces;
    const LostGpu lost = without_gpu(first.config, asked.search.folder, lost_gpu_of(options.fail),
                                     first.per_second(), options.answer.attainment, traces);
    said.page.notes += lost_gpu_text(lost, first.per_second());
    said.json["fail"] = lost_gpu_json(lost);
  }
  if (first.config.contains("anchor"))
    said.json["anchor"] = anchor_json(asked.spec_of(first).pools.back());
  if (price)
    said.json["price"] = {{"dollars_per_gpu_hour", price->dollars_per_hour},
                          {"source", price->source}};
  return give_answer(options.answer, asked, plan, said, answers);
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

// Searches by make(traces, remarks, hooks). A search that is refused leaves no store without runs.
// Of several clusters one that is refused is told, and has no plan.
template <class Make>
auto searched(const PlanOptions& options, const Asked& asked, Make&& make) {
  using Found =
      std::optional<std::invoke_result_t<Make&, TraceLibrary&, Remarks&, const PlanHooks&>>;
  const bool several = places_of(options).size() > 1;
  const std::filesystem::path& store = asked.search.store;
  TraceLibrary traces;
  Remarks remarks;
  // The plan's GPUs stand before its stages, where there are several plans.
  PlanProgress progress(several ? asked.cluster() + ", " : "");
  std::error_code none;
  const bool is_new = !std::filesystem::exists(store, none);
  try {
    return Found(make(traces, remarks, progress.hooks()));
  } catch (const ConfigError& refused) {
    if (is_new && runs_in(store) == 0) std::filesystem::remove(store, none);
    if (!several) throw;
    spdlog::warn("{} GPUs: {}", asked.search.cluster.gpus(), refused.what());
    return Found();
  }
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
      asked.search.model.name, assumed_precision(run, asked), asked.cluster(), options.sessions,
      means.turns, means.prompt, means.computed, means.output, number_text(means.gap),
      limits_text({{"TTFT", question.ttft},
                   {"TTFT of first turns", of_sessions.ttft_first},
                   {"TTFT of later turns", of_sessions.ttft_later},
                   {"TPOT", question.tpot},
                   {"a session", of_sessions.completion}})));
}

bool say_sessions(const PlanOptions& options, const Asked& asked, const SessionPlanned& plan,
                  Answers& answers) {
  if (plan.best.empty() && plan.nearest.empty()) {
    spdlog::error("no deployment serves a single session within the limits");
    return false;
  }
  const SloRun& first = first_of(plan);
  const int gpus = asked.search.cluster.gpus();
  const double rejected = number_at(first.report, "/metrics/rejected", 0);
  OrderedJson json{{"cluster", asked.cluster()}};
  json.update(session_json(plan, gpus));
  return give_answer(
      options.answer, asked, plan,
      {.page = {.question = session_question(options, asked, plan.means, first),
                .notes = session_notes(plan, options.host_memory) +
                         price_text(asked.search.cluster.gpu.price),
                .table = session_table(plan, gpus),
                .engine = options.question.engine,
                .sessions = true},
       .unit = "sessions at a time",
       .missed = fmt::format(
           "no deployment meets the limits; the nearest, with {}: {}, met by {}, {}{}", first.rate,
           latencies_text(first), percent(first.trial.attainment, 0), state_of(first),
           rejected > 0
               ? fmt::format("; {:.0f} turns were rejected, and so missed the limits", rejected)
               : ""),
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
  bool met = true;
  Answers answers;
  for (const Gpus& gpus : places_of(options)) {
    const Asked asked = ask(options, question, gpus);
    const std::optional<SessionPlanned> plan = searched(
        options, asked, [&](TraceLibrary& traces, Remarks& remarks, const PlanHooks& hooks) {
          return make_session_plan({.plan = asked.search,
                                    .limits = limits,
                                    .host_memory = asks_tier ? options.host_memory : ""},
                                   traces, remarks, hooks);
        });
    if (plan && was_stopped(*plan, asked)) return exit_interrupted;
    met = plan && say_sessions(options, asked, *plan, answers) && met;
  }
  if (options.answer.json) print_json(answers);
  return met ? 0 : exit_limit_not_met;
}

int run_requests(const PlanOptions& options) {
  const ServingQuestion question = read_question(options);
  if (!options.fail.empty()) lost_gpu_of(options.fail);  // refused before the search
  const InterruptGuard guard("the runs in flight are finished; again to stop at once");
  std::vector<Asked> asked;
  for (const Gpus& gpus : places_of(options)) asked.push_back(ask(options, question, gpus));
  std::deque<Plan> plans;
  std::vector<ScaledPlan> scaled;
  Answers answers;
  bool met = true;
  for (const Asked& one : asked) {
    std::optional<Plan> found =
        searched(options, one, [&](TraceLibrary& traces, Remarks& remarks, const PlanHooks& hooks) {
          return make_plan(one.search, traces, remarks, hooks);
        });
    met = met && found;
    if (!found) continue;
    Plan& plan = plans.emplace_back(*std::move(found));
    if (ranks_by_energy(options)) rank_by_energy(plan);
    if (was_stopped(plan, one)) return exit_interrupted;
    if (plans.size() > 1 && !options.answer.json) print("\n");
    met = say_requests(options, question, one, plan, answers) && met;
    scaled.push_back({one.search, plan});
  }
  if (plans.empty()) return exit_limit_not_met;
  if (options.answer.json)
    print_json(answers);
  else if (plans.size() > 1)
    print(scaling_text(scaled));
  return met ? 0 : exit_limit_not_met;
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
  command
      .add_option("--cluster", options.cluster,
                  "instead of --gpu and --gpus: a file, or a name of moesim list clusters")
      ->excludes("--gpus");
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
  option(command, "--attainment", options.answer.attainment,
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
  command.add_flag("--no-page", options.answer.no_page, "write no page");
  add_launch_option(command, options.answer.launch);
  command.add_flag("--json", options.answer.json, "print JSON instead of tables");
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
