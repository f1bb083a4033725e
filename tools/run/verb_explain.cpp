// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <numeric>
#include <optional>

#include <fmt/format.h>

#include "hardware/at.hpp"
#include "sim/report/statistics.hpp"
#include "sim/serving/simulator.hpp"
#include "sim/serving/typical_step.hpp"
#include "tools/cli/experiment_options.hpp"
#include "tools/cli/option_checks.hpp"
#include "tools/cli/output.hpp"
#include "tools/cli/remarks.hpp"
#include "tools/cli/table.hpp"
#include "tools/cli/verbs.hpp"

namespace moesim {

namespace {

struct ExplainOptions {
  ExperimentOptions experiment;
  std::string kind = "decode";
  std::optional<int> sequences, context;
  int prefill_tokens = 0;
  std::vector<std::string> prompts;  // "1000@29000"
  std::string steps;                 // a file
  int samples = 16;
  bool json = false;
};

// --- which steps
// -----------------------------------------------------------------------------------

constexpr Range tokens_of_prompt{1, 1 << 20}, tokens_in_cache{0, 1 << 24};

/// "1000@29000": 1000 tokens of a prompt of which 29000 were computed before. Nothing if it is
/// malformed.
std::optional<StepContent::Prompt> prompt_of(std::string_view text) {
  const auto number = [](std::string_view digits, const Range& range) -> std::optional<int> {
    int value = 0;
    const char* const end = digits.data() + digits.size();
    const auto [rest, error] = std::from_chars(digits.data(), end, value);
    if (error != std::errc{} || rest != end || value < range.min || value > range.max) return {};
    return value;
  };
  const std::size_t sign = text.find('@');
  const auto tokens = number(text.substr(0, sign), tokens_of_prompt);
  const auto prefix = sign == text.npos ? 0 : number(text.substr(sign + 1), tokens_in_cache);
  if (!tokens || !prefix) return std::nullopt;
  return StepContent::Prompt{*tokens, *prefix};
}

std::string refuse_prompt(const std::string& text) {
  if (prompt_of(text)) return "";
  return fmt::format("\"{}\" is not a prompt; expected tokens, or tokens@prefix, as 1000@29000",
                     text);
}

std::span<const Key> prompt_keys() {
  static constexpr Key keys[] = {
      {"tokens", form::integer(tokens_of_prompt), required, "that the step computes"},
      {"prefix", form::integer(tokens_in_cache), "0", "tokens of the prompt computed before"}};
  return keys;
}

std::span<const Key> step_keys() {
  static constexpr Form prompt = form::object(prompt_keys);
  static constexpr Key keys[] = {
      {"sequences", form::integer(0, 1 << 16), "0", "that decode, per rank"},
      {"context", form::integer(tokens_in_cache), "1024", "tokens in the KV cache of each"},
      {"prompts", form::list(prompt), "[]", "of each rank"}};
  return keys;
}

StepContent read_step(const ConfigNode& node) {
  return read_object(node, step_keys, [&](ConfigReader& reader) {
    StepContent content{.sequences = static_cast<int>(reader.integer("sequences")),
                        .context = static_cast<int>(reader.integer("context"))};
    for (const ConfigNode& prompt : reader.child("prompts").list()) {
      content.prompts.push_back(read_object(prompt, prompt_keys, [](ConfigReader& of_prompt) {
        return StepContent::Prompt{static_cast<int>(of_prompt.integer("tokens")),
                                   static_cast<int>(of_prompt.integer("prefix"))};
      }));
    }
    if (content.sequences == 0 && content.prompts.empty())
      node.fail("the step is empty; give sequences or prompts");
    return content;
  });
}

// Tokens of the experiment's own load, summed over its first requests.
struct OwnRequests {
  double prompts = 0, outputs = 0;
  int requests = 0;
};

OwnRequests own_requests(const Deployment& e) {
  constexpr int sample = 512;
  const auto source = e.workload.make(e.seed, e.ranks());
  OwnRequests own;
  for (; own.requests < sample; ++own.requests) {
    const auto next = source->next();
    if (!next) break;
    own.prompts += next->request.prompt_tokens;
    own.outputs += next->request.output_tokens;
    // Later turns follow replies.
    if (e.workload.sessions) source->completed(own.requests, Outcome::finished, next->arrival);
  }
  return own;
}

// Tokens in the KV cache of a request, half of its output generated.
int mean_context(const Deployment& e) {
  const OwnRequests own = own_requests(e);
  return own.requests == 0 ? 0 : static_cast<int>((own.prompts + own.outputs / 2) / own.requests);
}

// Tokens of a prompt beside so many sequences: the mean prompt, cut to what they leave of a step.
int mean_chunk(const Deployment& e, int sequences) {
  const OwnRequests own = own_requests(e);
  const int left = e.scheduler->max_num_batched_tokens() - sequences * (1 + e.speculation.tokens);
  const double mean = own.requests == 0 ? left : std::round(own.prompts / own.requests);
  return std::max(static_cast<int>(std::min<double>(mean, left)), 1);
}

// The experiment, in which MoE layers are drawn from steps alike where that can be.
Experiment quick_experiment(const ConfigNode& config, TraceLibrary& traces) {
  constexpr std::int64_t most = 20'000;
  Json json = config.json();
  Json& requests = json["workload"]["requests"];
  if (requests.is_number_integer()) requests = std::min(requests.get<std::int64_t>(), most);
  if (requests.is_null()) json["workload"].erase("requests");
  try {
    Json sampled = json;
    sampled["fidelity"] = "sampled";
    return load_experiment({std::move(sampled), config.file()}, traces);
  } catch (const ConfigError&) {
    return load_experiment({std::move(json), config.file()}, traces);
  }
}

// Decodes of a rank and step under the experiment's own load; those that fit, at most.
int mean_batch(const ConfigNode& config, TraceLibrary& traces, int context) {
  const Experiment quick = quick_experiment(config, traces);
  const Report report = moesim::run(quick);
  const int most = most_sequences(quick.decode(), context);
  double decodes = 0, steps = 0;
  for (const auto& [kind, of_kind] : report.pool.steps.by_kind) {
    if (kind == "prefill") continue;
    decodes += of_kind.mean_decode_tokens_per_rank * double(of_kind.steps);
    steps += double(of_kind.steps);
  }
  if (steps == 0) return most;
  // A sequence computes its drafts beside its own token.
  const int tokens = 1 + quick.decode().speculation.tokens;
  return std::clamp(static_cast<int>(std::lround(decodes / steps / tokens)), 1, most);
}

// True if the step is the mean batch of the experiment's own load: one is asked for, of no size.
bool of_own_load(const ExplainOptions& options) {
  return options.steps.empty() && !options.sequences && options.kind == "decode";
}

StepContent step_of(const ExplainOptions& options, const ConfigNode& config, TraceLibrary& traces,
                    const Deployment& e) {
  const bool decodes = options.kind != "prefill";
  StepContent content;
  if (decodes) {
    content.context = options.context ? *options.context : mean_context(e);
    content.sequences =
        options.sequences ? *options.sequences : mean_batch(config, traces, content.context);
  }
  if (options.kind == "decode") return content;
  // Without decodes the given context is what prompts continue.
  const int prefix = decodes ? 0 : options.context.value_or(0);
  for (const std::string& text : options.prompts) {
    StepContent::Prompt prompt = *prompt_of(text);
    if (text.find('@') == text.npos) prompt.prefix = prefix;
    content.prompts.push_back(prompt);
  }
  if (content.prompts.empty()) {
    const int tokens = options.prefill_tokens > 0 ? options.prefill_tokens
                       : decodes                  ? mean_chunk(e, content.sequences)
                                                  : e.scheduler->max_num_batched_tokens();
    content.prompts = {{tokens, prefix}};
  }
  return content;
}

std::vector<StepContent> steps_of(const ExplainOptions& options, const ConfigNode& config,
                                  TraceLibrary& traces, const Deployment& e) {
  if (options.steps.empty()) return {step_of(options, config, traces, e)};
  std::vector<StepContent> steps;
  for (const ConfigNode& step : ConfigNode::from_file(options.steps).list())
    steps.push_back(read_step(step));
  return steps;
}

// The pool that computes such steps.
const Deployment& pool_of(const Experiment& experiment, bool prompts, bool decodes) {
  const bool apart = experiment.pools.size() > 1;
  if (apart && prompts && decodes) {
    throw ConfigError(
        "prefill and decode have pools of their own, and no step has both; give --step prefill or "
        "--step decode");
  }
  return apart && prompts ? experiment.pools.front() : experiment.decode();
}

// A remark on a batch that the KV cache cannot hold.
std::string room_text(const StepContent& content, const Deployment& e) {
  if (content.sequences == 0) return "";
  const int most = most_sequences(e, content.context);
  if (content.sequences <= most) return "";
  return paragraph(
      "this step cannot run: {} sequences of {} tokens are more than the KV cache and max_num_seqs "
      "allow; {} at most",
      content.sequences, content.context, most);
}

// --- what they cost
// --------------------------------------------------------------------------------

double intensity(double flops, double bytes) { return bytes > 0 ? flops / bytes : 0; }

/// Share of the data sheet's peak in the operation's own precision; padded rows count.
double peak_share(const ExplainedOperation& op) {
  return op.peak_flops > 0 ? op.flops / op.peak_flops : 0;
}

/// Bytes of the mean GPU: those of a rank send unlike amounts, and a link has two ends.
double link_bytes_of_mean(const ExplainedOperation& op, const ParallelPlan& plan) {
  return op.link_bytes / plan.stage_gpus();
}

/// Share of the bandwidth of the GPU that runs the operation.
double bandwidth_share(const ExplainedOperation& op, const ServedModel& e) {
  const GpuSpec& gpu = op.part == Part::experts ? e.expert_cluster().gpu : e.cluster.gpu;
  return op.seconds > 0 ? op.hbm_bytes / op.seconds / gpu.hbm_bandwidth.value() : 0;
}

/// Flops per byte of HBM at which a GPU is busy with both, at its data-sheet peaks.
double balance(const GpuSpec& gpu, Precision weights, Precision activations) {
  return gpu.peak(weights, activations).value() / gpu.hbm_bandwidth.value();
}

/// Share of the step's time by what its prediction rests on.
std::array<double, evidence_names.size()> shares(const StepCost& cost) {
  std::array<double, evidence_names.size()> shares{};
  for (const auto& part : cost.by_evidence)
    for (std::size_t g = 0; g < shares.size(); ++g) shares[g] += part[g] / cost.total.count();
  return shares;
}

/// Mean over steps alike, and half its 95 % interval, normal: layers and sequences are many.
struct TypicalTime {
  double mean = 0, margin = 0;
};

TypicalTime typical_ms(const ExplainedStep& step) {
  TypicalTime time;
  const auto count = static_cast<double>(step.totals.size());
  for (const Seconds total : step.totals) time.mean += 1e3 * total.count() / count;
  double squares = 0;
  for (const Seconds total : step.totals) squares += std::pow(1e3 * total.count() - time.mean, 2);
  if (count > 1) time.margin = 1.96 * std::sqrt(squares / (count - 1) / count);
  return time;
}

/// The EP rank whose experts end last in most MoE layers, and the layer in which the others wait
/// longest for one. Ties: lowest rank, first layer.
struct HeldUp {
  std::size_t rank = 0, last_in = 0, layers = 0;
  int layer = 0;
  std::size_t layer_rank = 0;
  double wait_ms = 0, activated = 0, tokens = 0, mean_activated = 0, mean_tokens = 0;
};

std::optional<HeldUp> held_up(const ExplainedStep& step, const Deployment& e) {
  const std::vector<LayerOutcome>& layers = step.cost.moe_layers();
  if (layers.empty() || layers.front().experts.size() < 2) return std::nullopt;
  const std::size_t ranks = layers.front().experts.size();
  HeldUp held;
  held.layers = layers.size();
  std::vector<std::size_t> last_in(ranks);
  for (std::size_t l = 0; l < layers.size(); ++l) {
    const LayerOutcome& layer = layers[l];
    const auto last = std::ranges::max_element(layer.experts, {}, &Cost::time);
    const auto rank = static_cast<std::size_t>(last - layer.experts.begin());
    ++last_in[rank];
    const auto mean = [&](const auto& of_rank) {
      return std::accumulate(of_rank.begin(), of_rank.end(), 0.0) / static_cast<double>(ranks);
    };
    double wait_ms = 0;
    for (const Cost& cost : layer.experts) wait_ms += 1e3 * (last->time - cost.time).count();
    wait_ms /= static_cast<double>(ranks);
    if (l > 0 && wait_ms <= held.wait_ms) continue;
    held.layer = e.trace.meta().layer_ids[l];
    held.layer_rank = rank;
    held.wait_ms = wait_ms;
    held.activated = layer.load.activated[rank] + layer.load.sliced;
    held.tokens = layer.load.tokens[rank] + layer.load.sliced_tokens;
    held.mean_activated = mean(layer.load.activated) + layer.load.sliced;
    held.mean_tokens = mean(layer.load.tokens) + layer.load.sliced_tokens;
  }
  const auto most = std::ranges::max_element(last_in);
  held.rank = static_cast<std::size_t>(most - last_in.begin());
  held.last_in = *most;
  return held;
}

std::string held_up_text(const std::optional<HeldUp>& held) {
  if (!held) return "";
  return "\n" +
         paragraph(
             "straggler: EP rank {} is the last with its experts in {} of {} MoE layers. The "
             "longest wait is in layer {}: {:.3f} ms in the mean, for EP rank {}. That rank "
             "activates {:.0f} experts with {:.0f} tokens; the mean rank {:.1f} with {:.1f}",
             held->rank, held->last_in, held->layers, held->layer, held->wait_ms, held->layer_rank,
             held->activated, held->tokens, held->mean_activated, held->mean_tokens);
}

OrderedJson held_up_json(const std::optional<HeldUp>& held) {
  if (!held) return nullptr;
  return {{"rank", held->rank},
          {"last_in_layers", held->last_in},
          {"moe_layers", held->layers},
          {"longest_wait",
           {{"layer", held->layer},
            {"rank", held->layer_rank},
            {"mean_ms", held->wait_ms},
            {"activated", held->activated},
            {"tokens", held->tokens},
            {"mean_activated", held->mean_activated},
            {"mean_tokens", held->mean_tokens}}}};
}

/// Experts of a layer with tokens, mean over the MoE layers of the first step and its alternating
/// micro-batches. Also those of as many tokens under uniform routing; nothing for a dense model.
struct ActiveExperts {
  double mean = 0, uniform = 0;
  int micro_batches = 1;
};

std::optional<ActiveExperts> active_experts(const ExplainedStep& step, const ServedModel& e) {
  const std::vector<LayerOutcome>& layers = step.cost.moe_layers();
  if (layers.empty()) return std::nullopt;
  ActiveExperts active;
  for (const LayerOutcome& layer : layers) active.mean += layer.active_experts;
  active.micro_batches = step.cost.passes;
  const double batches = active.micro_batches;
  active.mean /= batches * static_cast<double>(layers.size());
  active.uniform = uniformly_active(
      e.model.experts, e.model.experts_per_token,
      static_cast<double>(step.summary.decode_tokens + step.summary.prefill_tokens) / batches);
  return active;
}

OrderedJson to_json(const std::optional<ActiveExperts>& active) {
  if (!active) return nullptr;
  return {{"active_experts_mean", active->mean}, {"uniform_experts_mean", active->uniform}};
}

std::string to_text(const std::optional<ActiveExperts>& active, const MoeModel& model) {
  if (!active) return "";
  const std::string of_each =
      active->micro_batches == 1 ? ""
      : active->micro_batches == 2
          ? ", in each of two micro-batches"
          : fmt::format(", in each of {} micro-batches", active->micro_batches);
  return fmt::format("experts active in a layer: {:.1f} of {} (uniform routing: {:.1f}){}\n",
                     active->mean, model.experts, active->uniform, of_each);
}

/// Text of how much of the exchanges is hidden: the table's rows add up to more than the step.
std::string hidden_text(const StepCost& cost) {
  const Seconds hidden = cost.dispatch.hidden + cost.combine.hidden + cost.all_reduce.hidden;
  if (hidden <= Seconds{} || cost.afd) return "";
  return fmt::format(
      "{:.3f} ms of dispatch and {:.3f} ms of combine are hidden beside computation: the rows "
      "below\nadd up to more than the step\n",
      cost.dispatch.hidden.count() * 1e3, cost.combine.hidden.count() * 1e3);
}

/// With AFD the share of the step that each stage works, or has of the critical path.
OrderedJson shares_by_stage(const StepCost& cost, const std::array<Seconds, 4>& times) {
  OrderedJson shares;
  for (std::size_t stage = 0; stage < times.size(); ++stage)
    shares[std::string(afd_stage_names[stage])] = times[stage] / cost.total;
  return shares;
}

OrderedJson afd_json(const StepCost& cost) {
  return {{"micro_batches", cost.micro_batches},
          {"busy", shares_by_stage(cost, cost.afd->busy)},
          {"critical_path", shares_by_stage(cost, cost.afd->critical)}};
}

/// With AFD what each side works, and what the time consists of.
std::string afd_text(const StepCost& cost, const ParallelPlan& plan) {
  if (!cost.afd) return "";
  const auto percents = [&](const std::array<Seconds, 4>& times) {
    std::string text;
    for (std::size_t stage = 0; stage < times.size(); ++stage)
      text += fmt::format("{}{} {:.1f} %", stage == 0 ? "" : ", ", afd_stage_names[stage],
                          100 * (times[stage] / cost.total));
    return text;
  };
  return fmt::format(
      "{} GPUs for attention, {} for experts (ffn), {} micro-batches in flight\n"
      "busy: {}\n"
      "critical path: {}\n"
      "rows below are sums over micro-batches: those of each side add up to what it is busy\n",
      plan.attention_gpus(), plan.ffn_gpus, cost.micro_batches, percents(cost.afd->busy),
      percents(cost.afd->critical));
}

OrderedJson to_json(const ExplainedStep& step, const Deployment& e) {
  const GpuSpec& gpu = e.cluster.gpu;
  const auto share = shares(step.cost);
  const TypicalTime typical = typical_ms(step);
  OrderedJson json{{"kind", step_kind_names[at(step.summary.kind)]},
                   {"total_ms", step.cost.total.count() * 1e3},
                   {"samples", step.totals.size()},
                   {"mean_ms", typical.mean},
                   {"margin_ms", typical.margin},
                   {"flops_per_byte", intensity(step.cost.flops, step.cost.hbm_bytes)},
                   {"gpu_flops_per_byte",
                    {{"bf16", balance(gpu, Precision::bf16, Precision::bf16)},
                     {"experts", balance(e.expert_cluster().gpu, e.precision.experts,
                                         e.precision.activations)}}},
                   {"extrapolated_share", share[at(Evidence::extrapolated)]},
                   {"unmeasured_share", share[at(Evidence::unmeasured)]},
                   {"experts", to_json(active_experts(step, e))},
                   {"held_up_by", held_up_json(held_up(step, e))},
                   {"operations", OrderedJson::array()}};
  if (step.cost.afd) json["afd"] = afd_json(step.cost);
  for (const ExplainedOperation& op : step.operations) {
    json["operations"].push_back({{"operation", op.name},
                                  {"part", part_names[at(op.part)]},
                                  {"bound", resource_names[at(op.bound)]},
                                  {"evidence", evidence_names[at(op.evidence)]},
                                  {"calls", op.calls},
                                  {"seconds", op.seconds},
                                  {"flops", op.flops},
                                  {"flops_per_byte", intensity(op.flops, op.hbm_bytes)},
                                  {"hbm_bytes", op.hbm_bytes},
                                  {"l2_bytes", op.l2_bytes},
                                  {"smem_bytes", op.smem_bytes},
                                  {"link_bytes_mean", link_bytes_of_mean(op, e.parallel)},
                                  {"hbm_share", bandwidth_share(op, e)},
                                  {"peak_share", peak_share(op)}});
    if (gpu.power) json["operations"].back()["joules"] = op.joules;
    if (step.cost.afd)
      json["operations"].back()["side"] = afd_stage_names[at(afd_stage_of(op.part))];
  }
  return json;
}

/// Name of the operation, with its part where another part has one of this name. It says how often
/// it is done where two rows of its part have the name. Marks say what its time rests on.
std::string marked(const ExplainedOperation& op, std::span<const ExplainedOperation> all) {
  constexpr std::array<std::string_view, evidence_names.size()> marks{"",   " *", " ?", " =",
                                                                      " ~", " ^", " +"};
  int rows = 0;  // of its name and part
  bool elsewhere = false;
  for (const ExplainedOperation& other : all) {
    if (other.name != op.name) continue;
    rows += other.part == op.part ? 1 : 0;
    elsewhere = elsewhere || other.part != op.part;
  }
  return fmt::format("{}{}{}{}", elsewhere ? fmt::format("{}.", part_names[at(op.part)]) : "",
                     op.name, rows > 1 ? fmt::format(" ({} x)", op.calls) : "",
                     marks[at(op.evidence)]);
}

/// Legend of the marks, where there are any.
std::string grounds_of(const StepCost& cost) {
  const auto share = shares(cost);
  const double beyond = share[at(Evidence::extrapolated)];
  const double unmeasured = share[at(Evidence::unmeasured)];
  std::string text;
  if (beyond > 0)
    text += fmt::format("* beyond what its constants were fitted on: {:.1f} % of the step\n",
                        100 * beyond);
  if (unmeasured > 0)
    text += fmt::format("? never measured on this GPU, family defaults: {:.1f} % of the step\n",
                        100 * unmeasured);
  constexpr std::array tables{
      std::pair{Evidence::measured, "= measured in a table"},
      std::pair{Evidence::interpolated, "~ between points of a table"},
      std::pair{Evidence::carried_over, "^ carried over from a sibling GPU's table"},
      std::pair{Evidence::charged, "+ no kernel: what \"charges\" say of gaps and the host"}};
  for (const auto& [evidence, meaning] : tables) {
    const double of_step = share[at(evidence)];
    if (of_step > 0) text += fmt::format("{}: {:.1f} % of the step\n", meaning, 100 * of_step);
  }
  return text;
}

/// Legend of the bounds that are no part of a GPU, where an operation has one.
std::string bounds_of(const ExplainedStep& step) {
  constexpr std::array meanings{
      std::pair{Resource::launch, "launch: more than half of the time starts and ends kernels"},
      std::pair{Resource::latency, "latency: messages without bytes would take most of the time"}};
  std::string text;
  for (const auto& [bound, meaning] : meanings) {
    if (std::ranges::find(step.operations, bound, &ExplainedOperation::bound) !=
        step.operations.end())
      text += fmt::format("{}\n", meaning);
  }
  return text;
}

// Which steps have prompts at all, where some are held back.
std::string alignment_text(const Deployment& e) {
  if (e.prefill_alignment.type == "none") return "";
  return paragraph(
      "some steps hold prompts back: {}; `moesim run` says how many, and how long prompts wait",
      e.prefill_alignment.options.dump());
}

// " of 189 decodes and 8192 prompt tokens a rank".
std::string content_text(const ExplainedStep& step, const ServedModel& e) {
  std::string text;
  const auto add = [&](std::int64_t tokens, const char* what) {
    if (tokens > 0)
      text += fmt::format("{} {} {}", text.empty() ? " of" : " and", tokens / e.parallel.dp, what);
  };
  add(step.summary.decode_tokens, "decodes");
  add(step.summary.prefill_tokens, "prompt tokens");
  return text + " a rank";
}

/// A row for each operation; with AFD each says on which side it is.
Table operations_table(const ExplainedStep& step, const Deployment& e) {
  const GpuSpec& gpu = e.cluster.gpu;
  std::vector<std::string> heading{"operation", "ms",      "% time", "bound by", "GFLOP",
                                   "HBM MB",    "link MB", "flop/B", "% HBM",    "% peak"};
  if (gpu.power) heading.emplace_back("mJ");
  if (step.cost.afd) heading.insert(heading.begin() + 1, "side");
  Table table(heading);
  for (const ExplainedOperation& op : step.operations) {
    const auto or_dash = [](double value, const char* format) {
      return value > 0 ? fmt::format(fmt::runtime(format), value) : std::string("-");
    };
    std::vector<std::string> row{marked(op, step.operations),
                                 fmt::format("{:.3f}", op.seconds * 1e3),
                                 fmt::format("{:.1f}", 100 * op.seconds / step.cost.total.count()),
                                 std::string(resource_names[at(op.bound)]),
                                 or_dash(op.flops * 1e-9, "{:.0f}"),
                                 or_dash(op.hbm_bytes * 1e-6, "{:.0f}"),
                                 or_dash(link_bytes_of_mean(op, e.parallel) * 1e-6, "{:.0f}"),
                                 or_dash(intensity(op.flops, op.hbm_bytes), "{:.0f}"),
                                 or_dash(100 * bandwidth_share(op, e), "{:.0f}"),
                                 or_dash(100 * peak_share(op), "{:.0f}")};
    if (gpu.power) row.push_back(or_dash(op.joules * 1e3, "{:.0f}"));
    if (step.cost.afd)
      row.insert(row.begin() + 1, std::string(afd_stage_names[at(afd_stage_of(op.part))]));
    table.add(row);
  }
  return table;
}

/// Text of what loads of KV blocks from tiers take, and who waits for them: no part of a step.
std::string tiers_text(const Deployment& e) {
  constexpr std::array waits{"the request waits, steps go on", "the step waits",
                             "the step waits for the first layer's blocks alone"};
  constexpr double tokens = 1024;
  std::string text;
  for (const KvTierPlan& tier : e.kv_cache.tiers) {
    const double blocks = tokens / e.kv_layout.block_tokens;
    const double pieces = pieces_of_block(tier, e.kv_layout.pieces) * blocks;
    const Bytes bytes = e.kv_layout.block * blocks;
    const Seconds time = tier.latency + bytes / tier.bandwidth + pieces * tier.piece_time;
    const std::string in_pieces =
        tier.piece_time > Seconds(0)
            ? fmt::format(", {:.0f} pieces of {:.3g} us", pieces, 1e6 * tier.piece_time.count())
            : "";
    text += paragraph(
        "tier {}: a load of 1,024 tokens takes {:.3f} ms on the GPU's own link ({:.1f} GB/s{}) "
        "with nothing before it; {}",
        tier.name, 1e3 * time.count(), tier.bandwidth.value() * 1e-9, in_pieces,
        waits[at(e.kv_cache.read)]);
  }
  return text.empty() ? text : "\n" + text;
}

std::string to_text(const ExplainedStep& step, const Deployment& e, bool own_load) {
  const GpuSpec& gpu = e.cluster.gpu;
  const Table table = operations_table(step, e);
  const TypicalTime typical = typical_ms(step);
  const std::string others =
      step.totals.size() == 1
          ? ""
          : fmt::format("{} similar steps take {:.3f} +- {:.3f} ms in the mean\n",
                        step.totals.size(), typical.mean, typical.margin);
  const std::string balances = wrapped(fmt::format(
      "all GPUs do {:.1f} flop/B; {} balances at {:.0f} flop/B in bf16, {}{:.0f} for the experts",
      intensity(step.cost.flops, step.cost.hbm_bytes), gpu.name,
      balance(gpu, Precision::bf16, Precision::bf16),
      e.ffn_cluster ? fmt::format("{} at ", e.ffn_cluster->gpu.name) : "",
      balance(e.expert_cluster().gpu, e.precision.experts, e.precision.activations)));
  const std::string notes = grounds_of(step.cost) + bounds_of(step);
  return fmt::format(
      "one {} step{}{}: {:.3f} ms\n"
      "times and work are those of the slowest rank at each barrier. Link MB are of the mean "
      "GPU\n{}{}{}\n\n{}{}{}",
      step_kind_names[at(step.summary.kind)], content_text(step, e),
      own_load ? " (the mean batch of its own load)" : "", step.cost.total.count() * 1e3, others,
      to_text(active_experts(step, e), e.model) + hidden_text(step.cost) +
          afd_text(step.cost, e.parallel),
      balances, table.text(), held_up_text(held_up(step, e)),
      (notes.empty() ? notes : "\n" + notes) + tiers_text(e) + alignment_text(e));
}

int explain_steps(const ExplainOptions& options) {
  TraceLibrary traces;
  const ConfigNode config = options.experiment.read();
  const Experiment experiment = Remarks().say_of(load_experiment(config, traces));
  const Deployment& asked =
      pool_of(experiment, options.kind != "decode", options.kind != "prefill");
  if (!options.prompts.empty() && options.kind == "decode")
    throw ConfigError(
        "--prompts: a decode step has no prompts; give --step prefill or --step mixed");
  OrderedJson all = OrderedJson::array();
  std::string text;
  for (const StepContent& content : steps_of(options, config, traces, asked)) {
    const Deployment& e = pool_of(experiment, !content.prompts.empty(), content.sequences > 0);
    const ExplainedStep step = explain_step(e, content, options.samples);
    if (options.json) {
      all.push_back(to_json(step, e));
    } else {
      text += (text.empty() ? "" : "\n\n") + room_text(content, e) +
              to_text(step, e, of_own_load(options));
    }
  }
  if (options.json) text = (options.steps.empty() ? all.at(0) : all).dump(1) + "\n";
  print(text);
  return 0;
}

}  // namespace

Action setup_explain(CLI::App& command) {
  const auto options = std::make_shared<ExplainOptions>();
  options->experiment.add_with_deployment(command);
  CLI::Option* const kind =
      option(command, "--step", options->kind, "decode, prefill or mixed (default: decode)",
             CLI::IsMember({"decode", "prefill", "mixed"}));
  CLI::Option* const sequences =
      option(command, "--sequences", options->sequences,
             "decode sequences per rank (default: the mean batch of the config's own load)",
             CLI::Range(1, 1 << 16));
  CLI::Option* const context =
      option(command, "--context", options->context,
             "tokens in the KV cache of each (default: the mean of the config's own load); in a "
             "prefill step, tokens computed before of each prompt (default: 0)",
             CLI::Range(0, 1 << 24));
  CLI::Option* const tokens =
      option(command, "--prefill-tokens", options->prefill_tokens,
             "prompt tokens per rank (default: max_num_batched_tokens; in a mixed step the mean "
             "prompt of the config's own load, at most what decodes leave)",
             CLI::Range(1, 1 << 20));
  CLI::Option* const prompts =
      option(
          command, "--prompts", options->prompts,
          "several prompts of each rank, e.g. 7168,1000@29000: 1000 tokens after a prefix of 29000",
          comma_separated, refuse_prompt)
          ->excludes(tokens);
  option(command, "--steps", options->steps,
         "JSON file, a list of steps to explain: [{\"sequences\": 16, \"context\": 1024, "
         "\"prompts\": [{\"tokens\": 1000, \"prefix\": 29000}]}]")
      ->excludes(kind, sequences, context, tokens, prompts);
  option(command, "--samples", options->samples,
         "similar steps to price for the mean and its interval (default: 16)",
         CLI::Range(1, 1 << 16));
  command.add_flag("--json", options->json, "print JSON instead of a table");
  command.footer(
      "bound by: what takes most of the time. hbm and tensor_core: the bytes or the flops, at the "
      "rates that a kernel reaches. launch: neither of them accounts for half of a kernel's time. "
      "The rest is launch, drain and a GPU that a small batch does not fill. Such a time hardly "
      "falls with fewer bytes or flops.\n"
      "CONFIG's keys, with units and defaults: moesim keys; for editors: moesim keys --schema");
  return [options] { return explain_steps(*options); };
}

}  // namespace moesim
