// SPDX-License-Identifier: Apache-2.0
#include "sim/experiment/experiment.hpp"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "hardware/kernel_tables.hpp"
#include "hardware/shipped.hpp"
#include "models/quantization.hpp"
#include "sim/experiment/does_not_fit.hpp"
#include "sim/experiment/engine.hpp"
#include "sim/experiment/pools.hpp"
#include "sim/experiment/router_context.hpp"
#include "traces/requests/arrivals.hpp"
#include "traces/requests/lengths.hpp"

namespace moesim {

namespace {

std::vector<std::string> texts(const ConfigNode& node) {
  std::vector<std::string> texts;
  for (const ConfigNode& text : node.list()) texts.push_back(text.text());
  return texts;
}

std::span<const Key> binding_keys() {
  static constexpr std::array<std::string_view, 2> types{"random", "by_workload"};
  static constexpr Form tags = form::list(form::text);
  static constexpr Key keys[] = {{"type", form::choice(types), required, "the order of recordings"},
                                 {"phases", form::list(tags), otherwise("random: none"),
                                  "by_workload: tags of each of equally long phases"}};
  return keys;
}

BindingOrder read_binding(const ConfigNode& node, std::int64_t requests) {
  return read_object(node.as_policy(), binding_keys, [&](ConfigReader& reader) {
    BindingOrder order;
    if (reader.choice("type") == 0) return order;
    order.requests = requests;
    const ConfigNode phases = reader.child("phases");
    for (const ConfigNode& tags : phases.list()) order.phases.push_back(texts(tags));
    if (order.phases.empty()) phases.fail("needs at least one list of workload tags");
    return order;
  });
}

std::span<const Key> load_keys() {
  static constexpr std::array<std::string_view, 2> sources{"trace", "none"};
  static constexpr Key keys[] = {
      {"from", form::choice(sources), "trace", "what the placement has seen"},
      {"disjoint", form::flag, "false",
       "it sees half of the requests of every workload, the others run"},
      {"workloads", form::list(form::text), otherwise("all"), "tags of the requests that it sees"}};
  return keys;
}

std::span<const Key> placement_keys() {
  static constexpr Key keys[] = {
      {"replication", form::number(non_negative), "1", "expert slots over experts, 1 to the GPUs"},
      {"strict", form::flag, "false", "refuse a replication that does not fill GPUs evenly"},
      {"load", form::object(load_keys), "{}", "the load that it goes by"}};
  return keys;
}

// What the experiment says, or what the model's files do.
PrecisionPlan read_precision(ConfigReader& reader, const ConfigNode& model,
                             std::vector<std::string>& remarks) {
  const std::optional<StoredPrecision> stored = read_stored_precision(model);
  if (!reader.optional("precision") && !stored) {
    reader.node().fail(fmt::format("\"precision\" is missing, and {} does not say it",
                                   model.file().filename().string()));
  }
  const ConfigNode node = reader.child_or("precision", Json::object());
  const PrecisionPlan plan = read_precision(node, stored ? &stored->plan : nullptr);
  if (stored && stored->quantised &&
      (plan.experts != stored->plan.experts || plan.attention != stored->plan.attention)) {
    remarks.push_back(
        fmt::format("\"precision\" says {}; the model's weights are stored as {} ({})",
                    precision_text(plan), precision_text(stored->plan), stored->said_by));
  }
  return plan;
}

void add_remark(Experiment& experiment, std::string remark) {
  if (!remark.empty()) experiment.remarks.push_back(std::move(remark));
}

// A dense model has no experts to place; the policy's options are held to its table all the same.
void place_nothing(ConfigReader& reader, const Policies& policies) {
  reader.number("replication", {1, 1});
  reader.flag("strict");
  read_object(reader.child("load"), load_keys, [](ConfigReader& load) {
    load.choice("from"), load.flag("disjoint"), load.optional("workloads");
  });
  policies.placement.make_from(reader);
}

void read_placement(const ConfigNode& node, Experiment& experiment) {
  read_object(node.as_policy(), placement_keys, [&](ConfigReader& reader) {
    const int experts = experiment.model.experts;
    const int ranks = experiment.parallel.ep;
    if (experts == 0) return place_nothing(reader, *experiment.policies);
    experiment.replication = reader.number("replication", {1.0, double(ranks)});
    const bool strict = reader.flag("strict");

    PlacementProblem& problem = experiment.placement_problem;
    problem.experts = experts;
    problem.gpus = ranks;
    problem.slots_per_gpu = slots_for_replication(experts, ranks, experiment.replication);
    problem.groups = experiment.model.expert_groups;
    problem.model_layers = static_cast<int>(experiment.model.layers.size());
    for (int layer = 0; layer < problem.model_layers; ++layer) {
      if (experiment.model.layers[static_cast<std::size_t>(layer)].moe) {
        problem.moe_layers.push_back(layer);
      }
    }
    const int domain = experiment.cluster.scale_up_domain;
    problem.nodes = (experiment.parallel.stage_gpus() + domain - 1) / domain;
    experiment.replication_effective = double(problem.slots_per_gpu) * ranks / experts;
    if (strict && std::abs(experiment.replication_effective - experiment.replication) > 1e-9) {
      reader.child("replication")
          .fail(fmt::format(
              "{} x {} experts does not fill {} GPUs evenly; the next ratio that does "
              "is {}, or leave \"strict\" out",
              experiment.replication, experts, ranks, experiment.replication_effective));
    }

    std::vector<const RoutingTrace*> seen{&experiment.trace};
    if (experiment.prefill_trace) seen.push_back(&*experiment.prefill_trace);
    bool from_trace = true;
    std::vector<std::string> workloads;
    read_object(reader.child("load"), load_keys, [&](ConfigReader& load) {
      from_trace = load.choice("from") == 0;
      experiment.bind_odd_only = load.flag("disjoint");
      if (load.has("workloads")) workloads = texts(load.child("workloads"));
    });
    const auto placer = experiment.policies->placement.make_from(reader);
    add_remark(experiment, placer->remark(problem));
    if (!from_trace) {
      experiment.placement = place_unseen(*placer, problem, experiment.model.moe_layers());
      return;
    }
    Observation what = placer->needs();
    what.fitted_half = experiment.bind_odd_only;
    what.workloads = std::move(workloads);
    ExpertStatistics statistics = observe(seen, what);
    experiment.placement = place_all(*placer, problem, statistics);
    experiment.seen = std::move(statistics.load);
  });
}

// What a slot's weights and a token's arithmetic take on one GPU, at the rates its grouped GEMM
// reaches: 2 flops for each of an expert's parameters, no padding.
RooflineTime expert_time(const MoeModel& model, const ParallelPlan& plan,
                         const PrecisionPlan& precision, const GpuSpec& gpu) {
  const KernelConstants& kernel = gpu.kernel(KernelFamily::grouped_gemm);
  const Flops token(2 * expert_parameters(model) / plan.moe_tp());
  return {
      (expert_bytes(model, plan, precision) / (gpu.hbm_bandwidth * kernel.bandwidth_share)).count(),
      (token / (gpu.peak(precision.experts, precision.activations) *
                kernel.peak_share_of(precision.experts)))
          .count()};
}

std::shared_ptr<const TokenRouter> make_router(const Experiment& e, const ConfigNode& routing,
                                               const ExpertPlacement& placement) {
  return e.policies->token_routing.make(
      routing, {placement, expert_time(e.model, e.parallel, e.precision, e.cluster.gpu), e.seen});
}

// One phase's rule. Policies that need the whole group's counts are refused where no dispatch gives
// them.
PhaseRule phase_rule(const ConfigNode& routing, std::shared_ptr<const Dispatch> dispatch,
                     const Experiment& experiment) {
  PhaseRule rule{routing, "", make_router(experiment, routing, experiment.placement),
                 std::move(dispatch)};
  rule.router_name = routing.as_policy().json().at("type").get<std::string>();
  // With one attention rank every GPU holds every token, and with it every choice.
  const bool counts = rule.dispatch->gives_global_counts() || experiment.parallel.dp == 1;
  if (rule.router->needs_global_counts() && !counts) {
    routing.fail(fmt::format(
        "\"{}\" needs the top-k choices of the whole group, which this phase's dispatch does not "
        "give; use \"ids_all_gather\" or \"all_gather\" there",
        rule.router_name));
  }
  return rule;
}

// A token that leaves its GPU carries activations there and back in bf16, on the slowest link that
// the group uses; what one such token adds to all of them is the time of one link over their
// number.
double token_seconds(const Experiment& e) {
  const bool by_choice = e.parallel.dp > 1 && e.rules.of(StepKind::decode).dispatch->needs_copies();
  if (!by_choice) return 0;
  const bool far = e.parallel.stage_gpus() > e.cluster.scale_up_domain;
  const BytesPerSecond link = far ? e.cluster.network.bandwidth * e.cluster.network.bandwidth_share
                                  : e.cluster.gpu.scale_up_bandwidth;
  return (Bytes(4.0 * e.model.hidden) / link).count() / e.parallel.stage_gpus();
}

RebalancingContext rebalancing_context(const Experiment& e, const Mover& mover) {
  return {e.policies->placement,
          e.placement_problem,
          e.model.moe_layers(),
          mover,
          expert_time(e.model, e.parallel, e.precision, e.cluster.gpu),
          token_seconds(e),
          e.parallel.dp};
}

std::span<const Key> dispatch_keys() {
  static constexpr Form dispatch = form::policy("dispatch");
  static constexpr Key keys[] = {
      {"prefill", dispatch, required, "of steps with prompt tokens"},
      {"decode", dispatch, required, "of steps without"},
      {"mixed", dispatch, otherwise("prefill's"), "where token_routing/mixed is a policy"}};
  return keys;
}

std::span<const Key> decode_if_few_keys() {
  static constexpr Key keys[] = {{"decode_if_prefill_tokens_at_most", form::integer(non_negative),
                                  required,
                                  "prompt tokens of the group up to which decode's holds"}};
  return keys;
}

std::span<const Key> token_routing_keys() {
  static constexpr std::array<std::string_view, 2> phases{"prefill", "decode"};
  static constexpr Form router = form::policy("token_routing");
  static constexpr Form few = form::object(decode_if_few_keys).or_a(router);
  static constexpr Key keys[] = {
      {"prefill", router, required, "of steps with prompt tokens"},
      {"decode", router, required, "of steps without"},
      {"mixed", form::choice(phases).or_a(few), "prefill", "of steps with both: whose rule"}};
  return keys;
}

void read_rules(ConfigReader& reader, Experiment& experiment) {
  std::array<std::shared_ptr<const Dispatch>, 3> dispatch;  // prefill, decode, mixed
  read_object(reader.child("dispatch"), dispatch_keys, [&](ConfigReader& d) {
    dispatch[0] = experiment.policies->dispatch.make(d.child("prefill"));
    dispatch[1] = experiment.policies->dispatch.make(d.child("decode"));
    dispatch[2] =
        d.has("mixed")
            ? std::shared_ptr<const Dispatch>(experiment.policies->dispatch.make(d.child("mixed")))
            : dispatch[0];
  });
  const bool dispatch_mixed = reader.node().json().at("dispatch").contains("mixed");
  read_object(reader.child("token_routing"), token_routing_keys, [&](ConfigReader& routing) {
    std::vector<PhaseRule>& rules = experiment.rules.by_kind;
    rules.push_back(phase_rule(routing.child("prefill"), dispatch[0], experiment));
    rules.push_back(phase_rule(routing.child("decode"), dispatch[1], experiment));
    const ConfigNode mixed = routing.child("mixed");
    if (mixed.json() == "prefill" || mixed.json() == "decode") {
      experiment.mixed.kind =
          mixed.text() == "prefill" ? MixedRule::Kind::prefill : MixedRule::Kind::decode;
    } else if (mixed.json().is_object() && !mixed.json().contains("type")) {
      experiment.mixed.kind = MixedRule::Kind::decode_if_few;
      experiment.mixed.prefill_tokens_at_most = read_object(
          mixed, decode_if_few_keys,
          [](ConfigReader& few) { return few.integer("decode_if_prefill_tokens_at_most"); });
    } else {
      experiment.mixed.kind = MixedRule::Kind::own;
      rules.push_back(phase_rule(mixed, dispatch[2], experiment));
    }
  });
  if (dispatch_mixed && experiment.mixed.kind != MixedRule::Kind::own) {
    reader.child("dispatch")
        .child("mixed")
        .fail("no step uses it: \"token_routing\" names no policy of its own for mixed steps");
  }
}

// Options of the policy beside those of how weights move.
void read_rebalancing(Experiment& e) {
  read_object(e.rebalancing.as_policy(), rebalancing_keys, [&](ConfigReader& reader) {
    e.movement = read_movement(reader);
    const Mover mover = mover_of(e);
    e.policies->rebalancing.make_from(reader, rebalancing_context(e, mover));
  });
}

// Slots of the GPU that has the most over all layers, per layer. A placement from a file may fill
// GPUs and layers unequally.
double slots_of_fullest_gpu(const ExpertPlacement& placement) {
  if (placement.empty()) return 0;
  std::int64_t most = 0;
  for (int gpu = 0; gpu < placement.front().gpus(); ++gpu) {
    std::int64_t slots = 0;
    for (const LayerPlacement& layer : placement) {
      slots += layer.first_slot(gpu + 1) - layer.first_slot(gpu);
    }
    most = std::max(most, slots);
  }
  return double(most) / double(placement.size());
}

// The most tokens of one rank in a step under a rule. A decode step has one per sequence, and its
// drafts.
double most_tokens(const Experiment& e, StepKind rule) {
  const double seats = e.scheduler->max_num_seqs() * (1.0 + e.speculation.tokens);
  const bool prompts = rule != StepKind::decode || e.mixed.kind == MixedRule::Kind::decode;
  const double few = e.mixed.kind == MixedRule::Kind::decode_if_few
                         ? static_cast<double>(e.mixed.prefill_tokens_at_most)
                         : 0;
  return std::min<double>(e.buffer_tokens, prompts ? e.buffer_tokens : seats + few);
}

// Rows that a GPU's expert buffers hold: those of the rule whose dispatch needs most.
double buffer_rows(const Experiment& e) {
  double most = 0;
  for (std::size_t kind = 0; kind < e.rules.by_kind.size(); ++kind) {
    const double tokens = most_tokens(e, static_cast<StepKind>(kind));
    most = std::max(
        most, e.rules.by_kind[kind].dispatch->buffer_rows(tokens, e.parallel.dp, e.model.experts));
  }
  return most;
}

// What an MTP module adds beside routed experts: a layer like the last one, and the projection of
// two hidden states to one.
Bytes module_bytes(const Experiment& e) {
  MoeModel larger = e.model;
  larger.layers.push_back(larger.layers.back());
  const double projection = 2.0 * e.model.hidden * e.model.hidden / e.parallel.tp;
  return non_expert_bytes(larger, e.parallel, e.precision) -
         non_expert_bytes(e.model, e.parallel, e.precision) +
         Bytes(projection * bytes_per_element(e.precision.attention));
}

// As [vLLM] profiles its memory: kv = hbm * utilisation - weights - expert slots - buffers. The
// buffers: activations of the group's tokens on their way out and back (the most that can reach one
// GPU, or for which low-latency kernels keep room), the rank's own working activations, and the
// logits of its sampled tokens in fp32.
MemoryBudget budget(const Experiment& e, double utilization) {
  MemoryBudget memory;
  // An MTP module is a layer more; what stands below HBM is of the model's own layers.
  const bool moe_module = e.speculation.has_module() && e.model.layers.back().moe;
  const double layers = moe_layers_of_stage(e.model, e.parallel) + (moe_module ? 1 : 0);
  const Bytes expert = expert_bytes(e.model, e.parallel, e.precision);
  const std::unique_ptr<Rebalancer> rebalancer = make_rebalancer(e, mover_of(e));
  double slots = slots_of_fullest_gpu(e.placement) + (rebalancer ? rebalancer->free_slots() : 0);
  if (e.expert_memory) slots = e.expert_memory->slots_in_hbm(slots * layers, layers) / layers;
  const double base_slots = std::min(double(e.model.experts) / e.parallel.ep, slots);
  const double rank_tokens = e.scheduler->max_num_batched_tokens();
  memory.capacity = e.cluster.gpu.hbm_capacity;
  memory.usable = memory.capacity * utilization;
  memory.weights = non_expert_bytes(e.model, e.parallel, e.precision);
  if (e.speculation.has_module()) memory.weights += module_bytes(e);
  memory.experts = expert * (layers * base_slots);
  memory.replicas = expert * (layers * (slots - base_slots));
  memory.buffers =
      Bytes(2 * buffer_rows(e) * e.model.expert_input() * 2 + 4 * rank_tokens * e.model.hidden * 2 +
            4.0 * e.scheduler->max_num_seqs() * (1 + e.speculation.tokens) * e.model.vocabulary /
                e.parallel.tp);
  memory.rebalance_buffer = expert * (rebalancer ? rebalancer->buffer_slots() : 0);
  memory.buffers += memory.rebalance_buffer;
  memory.kv = memory.usable - memory.weights - memory.experts - memory.replicas - memory.buffers;
  memory.kv_blocks =
      static_cast<std::int64_t>(std::max(0.0, std::floor(memory.kv / e.kv_layout.block)));
  return memory;
}

// What needs the routing of the step's own tokens.
void check_sampled(const ConfigNode& node, const Experiment& e) {
  const auto refuse = [&](bool present, std::string_view what) {
    if (present) node.fail(fmt::format("\"sampled\" is not modelled with {}; use \"exact\"", what));
  };
  refuse(e.overlap.two_batch.has_value(), "overlap two_batch");
  refuse(e.parallel.pp > 1, "pipeline stages");
  refuse(e.expert_memory.has_value(), "expert_memory");
  refuse(!e.failures.outages.empty(), "failures");
  refuse(e.capacity != nullptr, "a capacity rule");
  refuse(e.speculation.tokens > 0, "speculative");
  refuse(e.rebalancing.as_policy().child("type").text() != "none", "rebalancing");
}

// What a pipeline is not modelled with.
void check_pipeline(const ConfigNode& node, const Experiment& e) {
  const ParallelPlan& plan = e.parallel;
  if (plan.pp == 1) return;
  const int domain = e.cluster.scale_up_domain, stage = plan.stage_gpus();
  if (domain % stage != 0 && stage % domain != 0) {
    node.fail(
        fmt::format("pipeline stages of dp * tp = {} GPUs do not line up with NVLink domains "
                    "of {}; one must divide the other",
                    stage, domain));
  }
  const auto refuse = [&](bool present, std::string_view what, std::string_view instead) {
    if (present)
      node.fail(fmt::format("{} is not modelled with pp {}; use {}", what, plan.pp, instead));
  };
  refuse(e.overlap.two_batch.has_value(), "overlap two_batch", "another overlap");
  refuse(e.expert_memory.has_value(), "expert_memory", R"("resident")");
  refuse(e.speculation.tokens > 0, "speculative", "none");
  refuse(e.rebalancing.as_policy().child("type").text() != "none", "rebalancing", R"("none")");
}

void check_memory(const ConfigNode& node, const MemoryBudget& memory) {
  if (memory.kv_blocks > 0) return;
  const auto gb = [](Bytes bytes) { return bytes.value() / 1e9; };
  throw DoesNotFit(fmt::format(
      "{}:{}: the model does not fit: {:.1f} GB missing per GPU ({:.1f} GB usable; weights {:.1f}, "
      "experts {:.1f}, replicas {:.1f}, buffers {:.1f}); use more GPUs, fewer replicas or a "
      "narrower precision",
      node.file().string(), node.pointer(), -gb(memory.kv), gb(memory.usable), gb(memory.weights),
      gb(memory.experts), gb(memory.replicas), gb(memory.buffers)));
}

std::span<const Key> background_keys() {
  static constexpr Form share = form::number(0, 0.99);
  static constexpr Key keys[] = {{"nvlink", share, "0", "of NVLink that other tenants take"},
                                 {"network", share, "0", "of the network"}};
  return keys;
}

void take_background(const ConfigNode& node, ClusterSpec& cluster) {
  read_object(node, background_keys, [&](ConfigReader& reader) {
    const auto left = [&](const char* level) { return 1 - reader.number(level); };
    cluster.gpu.scale_up_bandwidth = cluster.gpu.scale_up_bandwidth * left("nvlink");
    cluster.network.bandwidth = cluster.network.bandwidth * left("network");
  });
}

std::span<const Key> cuda_graph_keys() {
  static constexpr std::array<std::string_view, 4> names{"powers_of_two", "vllm", "sglang",
                                                         "trtllm"};
  static constexpr Form size = form::integer(1, 1 << 20);
  static constexpr Form list = form::list(size);
  static constexpr Key keys[] = {
      {"sizes", form::choice(names).or_a(list), required, "decode batches that have a graph"},
      {"max", size, "512", "the largest"}};
  return keys;
}

// Sizes that engines capture, from the smallest on: vLLM 0.11 (vllm/config/compilation.py), SGLang
// 0.5.9 (python/sglang/srt/server_args.py), TensorRT-LLM 1.0 (tensorrt_llm/llmapi/llm_args.py).
std::int32_t next_size(std::size_t rule, std::int32_t size) {
  if (rule == 0 || size < 4) return 2 * size;
  if (rule == 3 && size >= 128) return 2 * size;
  if (size < 256) return rule == 2 && size < 16 ? size + 4 : size / 8 * 8 + 8;
  return rule == 2 && size >= 512 ? size + 32 : size + 16;
}

// Batches larger than any run without padding.
std::vector<std::int32_t> read_graph_sizes(const ConfigNode& node) {
  return read_object(node, cuda_graph_keys, [](ConfigReader& reader) {
    std::vector<std::int32_t> sizes;
    if (reader.child("sizes").json().is_array()) {
      for (const ConfigNode& size : reader.child("sizes").list()) {
        sizes.push_back(static_cast<std::int32_t>(size.integer()));
      }
      if (sizes.empty()) reader.child("sizes").fail("no size; leave \"cuda_graph\" out for none");
      std::sort(sizes.begin(), sizes.end());
      return sizes;
    }
    const std::size_t rule = reader.choice("sizes");
    const auto largest = static_cast<std::int32_t>(reader.integer("max"));
    for (std::int32_t size = 1; size <= largest; size = next_size(rule, size)) {
      sizes.push_back(size);
    }
    // Engines capture the limit itself too.
    if (rule > 0 && sizes.back() < largest) sizes.push_back(largest);
    return sizes;
  });
}

// A cache below HBM knows slots by their number: they must stay where they are.
void refuse_moving_cached_experts(const Experiment& e) {
  if (!e.expert_memory) return;
  const bool fails = !e.failures.outages.empty();
  if (fails || e.rebalancing.as_policy().json().at("type") != "none") {
    e.rebalancing.fail(
        "experts below HBM do not move; leave out this and \"failures\", or \"expert_memory\"");
  }
}

// Groups alike: each in domains of its own, or with others of its kind in one.
int read_instances(const ConfigNode& node, const Experiment& e) {
  const int gpus = e.parallel.gpus();
  const int domain = e.cluster.scale_up_domain;
  const auto instances = static_cast<int>(node.integer());
  if (instances * gpus > e.cluster.gpus()) {
    node.fail(fmt::format("{} instances of {} GPUs take {}, but {} has {}; {} fit", instances, gpus,
                          instances * gpus, e.cluster.name, e.cluster.gpus(),
                          e.cluster.gpus() / gpus));
  }
  if (instances > 1 && gpus % domain != 0 && domain % gpus != 0) {
    node.fail(fmt::format(
        "instances of {} GPUs would not all lie alike in NVLink domains of {}; use a divisor or a "
        "multiple of it",
        gpus, domain));
  }
  return instances;
}

std::span<const Key> draft_keys() {
  static constexpr std::array<std::string_view, 2> types{"mtp", "time"};
  static constexpr Key keys[] = {
      {"type", form::choice(types), required, "a layer of the model drafts, or it takes a time"},
      {"per_token", form::time, otherwise("mtp: priced"), "time: of a pass, for one draft"}};
  return keys;
}

std::span<const Key> speculative_keys() {
  static constexpr Key keys[] = {
      {"num_speculative_tokens", form::integer(0, 64), required, "drafts of a sequence and step"},
      {"acceptance_rate", form::number(0, 1), required, "of a draft when those before it hold"},
      {"draft", form::typed_object(draft_keys), "mtp", "where drafts come from"}};
  return keys;
}

SpeculationPlan read_speculation(const ConfigNode& node, const Scheduler& scheduler) {
  return read_object(node, speculative_keys, [&](ConfigReader& reader) {
    SpeculationPlan plan;
    plan.tokens = static_cast<std::int32_t>(reader.integer("num_speculative_tokens"));
    plan.acceptance = reader.number("acceptance_rate");
    read_object(reader.child("draft").as_policy(), draft_keys, [&](ConfigReader& draft) {
      plan.mtp = draft.choice("type") == 0;
      if (!plan.mtp) plan.draft_time = draft.quantity<Seconds>("per_token");
    });
    const std::int64_t verified = std::int64_t{scheduler.max_num_seqs()} * (1 + plan.tokens);
    if (plan.tokens > 0 && scheduler.max_num_batched_tokens() < verified) {
      reader.child("num_speculative_tokens")
          .fail(fmt::format("a step verifies up to max_num_seqs x {} = {} tokens, more than its "
                            "max_num_batched_tokens of {}",
                            1 + plan.tokens, verified, scheduler.max_num_batched_tokens()));
    }
    return plan;
  });
}

std::span<const Key> api_server_keys() {
  static constexpr Key keys[] = {
      {"latency", form::time, "0 us", "of a request on its way to the engine"},
      {"first_chunk", form::integer(1, 1 << 20), "1", "tokens that a client is first shown"},
      {"receive_interval", form::integer(1, 1 << 20), "1",
       "decode steps after which new requests are looked for"},
      {"admission_steps", form::integer(0, 1 << 20), "0",
       "steps from then on until they are scheduled"}};
  return keys;
}

ApiServer read_api_server(const ConfigNode& node) {
  return read_object(node, api_server_keys, [](ConfigReader& reader) {
    return ApiServer{
        .latency = reader.quantity<Seconds>("latency"),
        .first_chunk = static_cast<std::int32_t>(reader.integer("first_chunk")),
        .receive_interval = static_cast<std::int32_t>(reader.integer("receive_interval")),
        .admission_steps = static_cast<std::int32_t>(reader.integer("admission_steps"))};
  });
}

// Corrections for the load that the workload names; of a load that it does not, those at their
// center.
void read_anchor_of(ConfigReader& reader, Experiment& e) {
  if (!reader.has("anchor")) return;
  const ConfigNode anchor = reader.child("anchor");
  const bool named = anchor.json().is_string();
  e.anchor = read_anchor(named ? ConfigNode::from_file(anchor.relative(anchor.text())) : anchor);
  const Json& workload = reader.node().json().at("workload");
  const auto stated = [&](const char* pointer) {
    const Json::json_pointer place(pointer);
    return workload.contains(place) && workload.at(place).is_number()
               ? workload.at(place).get<double>()
               : 0.0;
  };
  const ServingLoad load{stated("/arrivals/concurrency"), stated("/lengths/prompt"),
                         stated("/lengths/output")};
  e.anchored_tpot = e.anchor->tpot.at(load);
  e.anchored_ttft = e.anchor->ttft.runs > 0 ? e.anchor->ttft.at(load) / e.anchored_tpot : 1;
}

std::span<const Key> slo_keys() {
  static constexpr Standard any = otherwise("no limit");
  static constexpr Key keys[] = {{"ttft", form::time, any, "from arrival to the first token"},
                                 {"tpot", form::time, any, "per output token after the first"},
                                 {"e2el", form::time, any, "from arrival to the last token"}};
  return keys;
}

Slo read_slo(const ConfigNode& node) {
  return read_object(node, slo_keys, [](ConfigReader& reader) {
    Slo slo;
    if (reader.has("ttft")) slo.ttft = reader.quantity<Seconds>("ttft");
    if (reader.has("tpot")) slo.tpot = reader.quantity<Seconds>("tpot");
    if (reader.has("e2el")) slo.e2el = reader.quantity<Seconds>("e2el");
    return slo;
  });
}

std::span<const Key> workload_keys() {
  static constexpr Form gating = form::policy("gating");
  static constexpr Key keys[] = {
      {"arrivals", form::policy("arrivals"), required, "when requests come"},
      {"lengths", form::policy("lengths"), otherwise("the arrivals'"), "of prompts and outputs"},
      {"requests", form::integer(1, 1e9), otherwise("all of the trace"), "how many there are"},
      {"gating", gating, required, "which experts tokens choose"},
      {"prefill_gating", gating, otherwise("gating"), "which experts prompt tokens choose"},
      {"binding", form::typed_object(binding_keys), "random", "which recording a request replays"},
      {"timeout", form::time, otherwise("no limit"),
       "clients leave: from arrival to the last token"},
      {"ttft_timeout", form::time, otherwise("no limit"), "clients leave: to the first token"},
      {"cancellation", form::object(cancellation_keys), otherwise("none"),
       "clients that just leave"}};
  return keys;
}

std::span<const Key> expert_buffers_keys() {
  static constexpr Key keys[] = {{"tokens_per_rank", form::integer(1, 1 << 24),
                                  otherwise("max_num_batched_tokens"),
                                  "of a step, for which dispatch buffers have room"}};
  return keys;
}

std::span<const Key> kv_cache_keys() {
  static constexpr Key keys[] = {
      {"block_size", form::integer(1, 4096), "16", "tokens of a block"},
      {"gpu_memory_utilization", form::number(0.01, 1), "0.9", "of HBM that is used at all"},
      {"free_gpu_memory_fraction", form::number(0.01, 1), otherwise("not used"),
       "instead: of what all else leaves of HBM (TensorRT-LLM)"},
      {"prefix_caching", form::flag, "false", "blocks of finished prompts are found again"}};
  return keys;
}

std::span<const Key> measurement_keys() {
  static constexpr Key keys[] = {
      {"warmup", form::number(0, 0.9), "0", "of the requests, before measuring starts"},
      {"hot_rank_threshold", form::number(1, 1e9), "2", "max/mean above which a step is counted"},
      {"expert_counts", form::flag, "true", "the report has tokens per layer and expert"}};
  return keys;
}

}  // namespace

std::span<const Key> experiment_keys() {
  static constexpr std::array<std::string_view, 2> fidelities{"exact", "sampled"};
  static constexpr Form inline_cluster = form::object(cluster_keys);
  static constexpr Form foreign_model = form::foreign(hf_model_marks);
  static constexpr Form inline_model = form::object(model_keys).or_a(foreign_model);
  static constexpr Form inline_anchor = form::object(anchor_keys);
  static constexpr Form overlap = form::typed_object(overlap_keys);
  static constexpr Form overlaps = form::list(overlap);
  static constexpr Form outage = form::object(outage_keys);
  static constexpr Form outages = form::list(outage);
  static constexpr Key keys[] = {
      {"engine", form::object(engine_keys), otherwise("none: every key is one's own"),
       "a preset for what is not said"},
      {"parallel", form::object(parallel_keys), required, "GPUs of an EP group"},
      {"instances", form::integer(1, 1 << 16), otherwise("1"), "EP groups alike behind one router"},
      {"precision", form::object(precision_keys), otherwise("as the model's files say"),
       "of weights, KV cache, activations"},
      {"scheduling", form::policy("scheduling"), required, "what a step computes"},
      {"token_routing", form::object(token_routing_keys), required, "which replica serves a token"},
      {"dispatch", form::object(dispatch_keys), required, "how tokens reach experts and return"},
      {"placement", form::policy("placement", placement_keys), "linear", "which GPU has an expert"},
      {"rebalancing", form::policy("rebalancing", rebalancing_keys), "none", "when experts move"},
      {"request_routing", form::policy("request_routing"), "least_kv", "which rank has a request"},
      {"charges", form::object(charges_keys), "{}", "time that no kernel model gives"},
      {"capacity", form::policy("capacity"), "dropless", "bounds of an expert's tokens"},
      {"expert_memory", form::policy("expert_memory", expert_memory_keys), "resident",
       "which experts HBM holds"},
      {"expert_buffers", form::object(expert_buffers_keys), "{}", "room for dispatched tokens"},
      {"overlap", overlap.or_a(overlaps), "none", "communication beside computation"},
      {"speculative", form::object(speculative_keys), otherwise("none"), "drafts"},
      {"kv_cache", form::object(kv_cache_keys), "{}", "KV cache"},
      {"api_server", form::object(api_server_keys), "{}", "between clients and the engine"},
      {"cuda_graph", form::object(cuda_graph_keys), otherwise("no padding"), "captured batches"},
      {"background", form::object(background_keys), "{}", "what other tenants take of the links"},
      {"failures", form::object(failures_keys).or_a(outages), "[]", "GPUs that stop"},
      {"fidelity", form::choice(fidelities), "exact", "route every token, or draw from samples"},

      {"anchor", form::file.or_a(inline_anchor), otherwise("none"),
       "what calibrate --serving wrote of measured runs"},

      {"cluster", form::file.or_a(inline_cluster), required, "a file, or a name of list clusters"},
      {"model", form::file.or_a(inline_model), required,
       "a file or folder of HuggingFace's, or a name of list models"},
      {"workload", form::object(workload_keys), required, "requests"},
      {"pools", form::object(pools_keys), otherwise("one for both"), "prefill and decode apart"},
      {"kv_transfer", form::object(kv_transfer_keys), "{}", "between pools"},
      {"slo", form::object(slo_keys), "{}", "objectives that goodput counts"},
      {"measurement", form::object(measurement_keys), "{}", "what the report is of"},
      {"seed", form::integer(0, 9e15), "1", "of everything random"},
      {"$schema", form::text, otherwise("none"), "where an editor finds the schema; not read"}};
  return keys;
}

// What one EP group has stands before what all share, of which the cluster is first.
std::span<const Key> group_keys() {
  const auto keys = experiment_keys();
  const auto shared = std::ranges::find(keys, "cluster", &Key::name);
  return keys.first(static_cast<std::size_t>(shared - keys.begin()));
}

PolicyRows Policies::rows() const {
  PolicyRows all;
  const auto add = [&](const auto& registry) { all[registry.kind()] = registry.rows(); };
  add(placement), add(token_routing), add(dispatch), add(capacity), add(expert_memory);
  add(prefetch), add(scheduling), add(request_routing), add(rebalancing);
  add(gatings()), add(request_arrivals()), add(request_lengths());
  return all;
}

namespace {

// Of a dense model, none of whose layers looks at it: one request of a prompt and an output token.
RoutingTrace no_routing(const MoeModel& model) {
  TraceMeta meta;
  meta.model = model.name;
  meta.num_experts = meta.experts_per_token = 1;
  meta.layer_ids = {0};
  meta.synthetic = true;
  return RoutingTrace(std::move(meta), {"none"}, {{0, 2, 1, 0}}, {0, 0});
}

}  // namespace

RoutingTrace TraceLibrary::get(const ConfigNode& gating, const MoeModel& model,
                               std::uint64_t seed) {
  std::string layers;
  for (const LayerSpec& layer : model.layers) layers += layer.moe ? 'm' : '-';
  // Everything that a gating can read.
  const std::string key =
      fmt::format("{}\n{}\n{} {} {} {} {} {}\n{}", gating.file().parent_path().string(),
                  gating.json().dump(), model.name, model.experts, model.experts_per_token,
                  model.expert_groups, model.groups_per_token, seed, layers);
  // Constructing the gating records its options in the resolved config, also when the trace is at
  // hand.
  const auto maker = gatings().make(gating);
  if (model.experts == 0) return no_routing(model);
  Entry* entry = nullptr;
  {
    const std::lock_guard lock(mutex_);
    entry = &traces_[key];
  }
  std::call_once(entry->made, [&] { entry->trace = maker->trace(model, seed); });
  return *entry->trace;
}

// METRO is for decode [METRO]; what a step does that holds both is the config's choice.
StepKind rule_kind(const MixedRule& mixed, StepKind kind, std::int64_t prefill_tokens) {
  if (kind != StepKind::mixed) return kind;
  switch (mixed.kind) {
    case MixedRule::Kind::prefill: return StepKind::prefill;
    case MixedRule::Kind::decode: return StepKind::decode;
    case MixedRule::Kind::decode_if_few:
      return prefill_tokens <= mixed.prefill_tokens_at_most ? StepKind::decode : StepKind::prefill;
    case MixedRule::Kind::own: break;
  }
  return StepKind::mixed;
}

StepModel step_model(const Experiment& e) {
  std::vector<RankMemory> memories;
  for (int rank = 0; e.expert_memory && rank < e.parallel.ep; ++rank) {
    memories.emplace_back(*e.expert_memory, e.placement, rank, e.seen,
                          expert_bytes(e.model, e.parallel, e.precision),
                          e.seed ^ static_cast<std::uint64_t>(rank));
  }
  return {e.cluster, e.model,   e.parallel, e.precision,
          e.charges, e.overlap, e.capacity, std::move(memories)};
}

PhaseRules rules_over(const Experiment& experiment, const ExpertPlacement& placement) {
  PhaseRules rules = experiment.rules;
  for (PhaseRule& rule : rules.by_kind) {
    rule.router = make_router(experiment, rule.routing, placement);
  }
  return rules;
}

Mover mover_of(const Experiment& e) {
  return {e.cluster, e.parallel, expert_bytes(e.model, e.parallel, e.precision),
          e.movement.sources};
}

std::unique_ptr<Rebalancer> make_rebalancer(const Experiment& e, const Mover& mover) {
  return read_object(e.rebalancing.as_policy(), rebalancing_keys, [&](ConfigReader& reader) {
    read_movement(reader);
    return e.policies->rebalancing.make_from(reader, rebalancing_context(e, mover));
  });
}

std::vector<const Experiment*> groups_of(const Experiment& e) {
  std::vector<const Experiment*> groups;
  const auto add = [&](const Experiment& pool) {
    groups.insert(groups.end(), static_cast<std::size_t>(pool.instances), &pool);
  };
  if (e.pools) add(e.pools->prefill);
  add(e.pools ? e.pools->decode : e);
  return groups;
}

int gpus_of(const Experiment& e) {
  int gpus = 0;
  for (const Experiment* group : groups_of(e)) gpus += group->parallel.gpus();
  return gpus;
}

std::vector<std::string> remarks_of(const Experiment& e) {
  std::vector<std::string> remarks;
  for (const Experiment* group : groups_of(e)) {
    for (const std::string& remark : group->remarks) {
      if (std::ranges::find(remarks, remark) == remarks.end()) remarks.push_back(remark);
    }
  }
  return remarks;
}

Experiment load_experiment(const ConfigNode& node, TraceLibrary& library,
                           const Policies& policies) {
  if (node.json().is_object() && node.json().contains("pools")) {
    return load_pools(node, library, policies);
  }
  const ConfigNode whole = with_preset(node);
  return read_object(whole, experiment_keys, [&](ConfigReader& reader) {
    const ConfigNode cluster_node = reader.child("cluster");
    ClusterSpec cluster = read_cluster(named_or_inline(cluster_node, Shipped::cluster));
    if (reader.optional("engine")) {
      const Engine engine = read_engine(reader.child("engine"));
      KernelChoice kernels{{"engines", "any"}};
      if (!engine.expert_kernel.empty()) kernels["experts"] = engine.expert_kernel;
      cluster.gpu = with_engine(std::move(cluster.gpu), {engine.name, engine.version}, kernels);
    }
    const ConfigNode model_node = named_or_inline(reader.child("model"), Shipped::model);
    MoeModel model = read_model(model_node);
    const auto seed = static_cast<std::uint64_t>(reader.integer("seed"));

    const ConfigNode workload_node = reader.child("workload");
    ConfigReader workload_reader(workload_node, workload_keys);
    RequestWorkload workload = read_workload(workload_reader);
    RoutingTrace trace = library.get(workload_reader.child("gating"), model, seed);
    std::optional<RoutingTrace> prefill_trace;
    if (workload_reader.has("prefill_gating")) {
      prefill_trace = library.get(workload_reader.child("prefill_gating"), model, seed);
    }
    const BindingOrder binding = read_binding(workload_reader.child("binding"), workload.requests);
    workload_reader.finish();

    std::vector<std::string> remarks;
    Experiment e{.cluster = std::move(cluster),
                 .model = std::move(model),
                 .precision = read_precision(reader, model_node, remarks),
                 .workload = std::move(workload),
                 .trace = std::move(trace),
                 .prefill_trace = std::move(prefill_trace),
                 .binding = binding,
                 .request_routing = reader.child("request_routing"),
                 .rebalancing = reader.child("rebalancing")};
    e.seed = seed;
    e.remarks = std::move(remarks);
    e.policies = std::make_shared<const Policies>(policies);
    take_background(reader.child("background"), e.cluster);
    const ConfigNode parallel = reader.child("parallel");
    e.parallel = read_parallel(parallel, e.model);
    if (e.parallel.gpus() > e.cluster.gpus()) {
      parallel.fail(fmt::format("{} = {} GPUs, but {} has {}",
                                e.parallel.pp > 1 ? "dp * tp * pp" : "dp * tp", e.parallel.gpus(),
                                e.cluster.name, e.cluster.gpus()));
    }
    if (reader.optional("instances")) e.instances = read_instances(reader.child("instances"), e);
    e.scheduler = policies.scheduling.make(reader.child("scheduling"));
    if (reader.optional("speculative")) {
      e.speculation = read_speculation(reader.child("speculative"), *e.scheduler);
    }
    read_placement(reader.child("placement"), e);
    read_rules(reader, e);
    e.charges = read_charges(reader.child("charges"), policies.token_routing.names());
    e.capacity = policies.capacity.make(reader.child("capacity"));
    e.expert_memory = read_expert_memory(reader.child("expert_memory"), policies.expert_memory,
                                         policies.prefetch);
    read_object(reader.child("expert_buffers"), expert_buffers_keys, [&](ConfigReader& buffers) {
      const std::int32_t most = e.scheduler->max_num_batched_tokens();
      e.buffer_tokens =
          static_cast<std::int32_t>(buffers.integer_or("tokens_per_rank", most, {1, double(most)}));
    });
    read_rebalancing(e);
    e.failures = read_failures(reader.child("failures"), policies.placement, e.cluster, e.parallel,
                               e.placement_problem, e.instances);
    refuse_moving_cached_experts(e);
    read_object(reader.child("kv_cache"), kv_cache_keys, [&](ConfigReader& kv) {
      const auto block_size = static_cast<int>(kv.integer("block_size"));
      e.kv_layout = kv_layout(e.model, e.parallel, e.precision, block_size);
      if (e.speculation.has_module()) {
        const double layers = double(e.model.layers.size());
        e.kv_layout.block = e.kv_layout.block * ((layers + 1) / layers);
      }
      e.memory = budget(e, kv.number("gpu_memory_utilization"));
      if (kv.optional("free_gpu_memory_fraction")) {
        MemoryBudget all = budget(e, 1);
        all.kv = all.kv * kv.number("free_gpu_memory_fraction");
        all.kv_blocks = static_cast<std::int64_t>(std::floor(all.kv / e.kv_layout.block));
        e.memory = all;
      }
      e.prefix_caching = kv.flag("prefix_caching");
      const bool windows = e.kv_layout.groups.size() > 1 || e.kv_layout.groups.front().window > 0 ||
                           e.kv_layout.state_blocks > 0;
      if (e.prefix_caching && windows) {
        kv.child("prefix_caching")
            .fail(fmt::format("is not modelled for the attention windows and states of {}",
                              e.model.name));
      }
    });
    check_memory(parallel, e.memory);
    policies.request_routing.make(e.request_routing, router_context(e));
    const ConfigNode overlap = reader.child("overlap");
    e.overlap = read_overlap(overlap);
    if (e.overlap.two_batch && e.expert_memory) {
      overlap.fail("two_batch is not modelled with experts below HBM; leave one of them out");
    }
    check_pipeline(parallel, e);
    e.sampled = reader.choice("fidelity") == 1;
    if (e.sampled) check_sampled(reader.child("fidelity"), e);
    if (reader.has("cuda_graph")) e.graph_sizes = read_graph_sizes(reader.child("cuda_graph"));
    if (!e.graph_sizes.empty()) e.charges.graph_tokens = e.graph_sizes.back();
    e.api_server = read_api_server(reader.child("api_server"));
    read_anchor_of(reader, e);
    if (reader.optional("engine")) {
      const Engine engine = read_engine(reader.child("engine"));
      e.engine = engine.version.empty() ? engine.name : engine.name + " " + engine.version;
    }
    e.slo = read_slo(reader.child("slo"));
    read_object(reader.child("measurement"), measurement_keys, [&](ConfigReader& measurement) {
      e.warmup = measurement.number("warmup");
      e.hot_rank_threshold = measurement.number("hot_rank_threshold");
      e.expert_counts = measurement.flag("expert_counts");
    });
    reader.optional("$schema");
    reader.finish();
    e.config = whole.resolved().at(Json::json_pointer(whole.pointer()));
    return e;
  });
}

}  // namespace moesim
