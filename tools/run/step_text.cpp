// SPDX-License-Identifier: Apache-2.0
#include "tools/run/step_text.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <optional>

#include <fmt/format.h>

#include "hardware/at.hpp"
#include "sim/report/statistics.hpp"
#include "tools/cli/output.hpp"
#include "tools/cli/table.hpp"

namespace moesim {

namespace {

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
    const auto rank = at(last - layer.experts.begin());
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
  held.rank = at(most - last_in.begin());
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

}  // namespace

OrderedJson step_json(const ExplainedStep& step, const Deployment& e) {
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

std::string step_text(const ExplainedStep& step, const Deployment& e, bool own_load) {
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

}  // namespace moesim
