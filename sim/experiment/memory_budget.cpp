// SPDX-License-Identifier: Apache-2.0
#include "sim/experiment/memory_budget.hpp"

#include <algorithm>
#include <array>
#include <cmath>

#include <fmt/format.h>

#include "hardware/at.hpp"
#include "sim/experiment/deployment.hpp"
#include "sim/experiment/does_not_fit.hpp"
#include "sim/placement/live_ranks.hpp"

namespace moesim {

namespace {

// Slots of the GPU that has the most over all layers, per layer. A placement from a file may fill
// GPUs and layers unequally.
double slots_of_fullest_gpu(const ExpertPlacement& placement) {
  if (placement.empty()) return 0;
  double most = 0;
  for (int gpu = 0; gpu < placement.front().gpus(); ++gpu) {
    double slots = 0;
    for (const LayerPlacement& layer : placement) slots += layer.whole_slots(gpu);
    most = std::max(most, slots);
  }
  return most / double(placement.size());
}

// The most tokens of one rank in a step under a rule. A decode step has one per sequence, and its
// drafts.
double most_tokens(const Deployment& e, StepKind rule) {
  const double seats = e.scheduler->max_num_seqs() * (1.0 + e.speculation.tokens);
  const bool prompts = rule != StepKind::decode || e.mixed.kind == MixedRule::Kind::decode;
  const double few = e.mixed.kind == MixedRule::Kind::decode_if_few
                         ? static_cast<double>(e.mixed.prefill_tokens_at_most)
                         : 0;
  return std::min<double>(e.buffer_tokens, prompts ? e.buffer_tokens : seats + few);
}

// Bytes of a row of expert buffers, which are there twice.
double row_bytes(const Deployment& e) { return e.model.expert_input() * 2.0; }

// Without an engine kernels are thought of that have no such limit.
void check_buffers(const Deployment& e, const Dispatch& dispatch, double rows) {
  const Bytes needed(2 * rows * row_bytes(e)), limit = dispatch.buffer_limit();
  if (limit <= Bytes(0) || needed < limit || e.engine.empty()) return;
  constexpr double gib = 1 << 30;
  throw ConfigError(
      "{}:{}/dispatch: low-latency buffers for the tokens of a step take {:.1f} GiB; DeepEP "
      "allocates less than {:.0f} GiB; give fewer tokens as \"expert_buffers/tokens_per_rank\" or "
      "\"scheduling/max_num_batched_tokens\"",
      e.node.file().string(), e.node.pointer(), needed.value() / gib, limit.value() / gib);
}

// Rows that a GPU's expert buffers hold: those of the rule whose dispatch needs most.
double buffer_rows(const Deployment& e) {
  const double slots = slots_of_fullest_gpu(e.placement) * e.parallel.ep;
  double most = 0;
  for (std::size_t kind = 0; kind < e.phases.size(); ++kind) {
    const double tokens = most_tokens(e, static_cast<StepKind>(kind)) * e.parallel.times_sent();
    // With AFD as if the tokens came from as many ranks as there are for experts.
    const double ranks = e.parallel.afd() ? e.parallel.ep : e.parallel.dp;
    const Dispatch& dispatch = *e.phases[kind].dispatch;
    const double rows = dispatch.buffer_rows(tokens * e.parallel.dp / ranks, ranks, slots);
    check_buffers(e, dispatch, rows);
    most = std::max(most, rows);
  }
  return most;
}

// Rows that a GPU of attention sends to the experts' GPUs in a step at most, each to all that can
// hold one of its experts.
double rows_sent(const Deployment& e) {
  double most = 0;
  for (std::size_t kind = 0; kind < e.phases.size(); ++kind)
    most = std::max(most, most_tokens(e, static_cast<StepKind>(kind)));
  return most * e.parallel.times_sent() / e.parallel.tp *
         std::min(e.model.experts_per_token, e.parallel.expert_gpus());
}

// Room for copies that steps bring, in slots: of the rule that needs most, the same in all layers.
double step_slots(const Deployment& e) {
  int most = 0;
  for (const PhaseRule& rule : e.rules.by_kind) most = std::max(most, rule.router->step_slots());
  return most;
}

// Bytes of an embedding and a head in bf16. With attention DP each GPU has the whole embedding, as
// SGLang's is without TP then.
double draft_embeddings(const Deployment& e, const MoeModel& model) {
  if (!e.kv_cache.draft_embeddings) return 0;
  const double slice = 1.0 / (e.parallel.dp * e.parallel.tp);
  return 2.0 * model.vocabulary * model.hidden * (slice + (e.parallel.dp > 1 ? 1 : slice));
}

// Bytes that an MTP module adds to a model, without routed experts: a layer like the last one, and
// the projection of two hidden states to one. Some engines load embeddings again.
Bytes module_bytes(const Deployment& e, const MoeModel& model) {
  MoeModel larger = model;
  larger.layers.push_back(larger.layers.back());
  const double projection = 2.0 * model.hidden * model.hidden / e.parallel.tp;
  return non_expert_bytes(larger, e.parallel, e.precision) -
         non_expert_bytes(model, e.parallel, e.precision) +
         Bytes(projection * bytes_per_weight(e.precision.attention, e.precision.attention_shares) +
               draft_embeddings(e, model));
}

// Adds memory of decode steps that cut experts otherwise: a second set of weights, or room for the
// next layer while weights move.
void add_decode_cut(const Deployment& e, double layers, MemoryBudget& memory) {
  const Deployment& cut = *e.in_decode;
  const double slots = slots_of_fullest_gpu(cut.placement);
  const Bytes layer = expert_bytes(cut.model, cut.parallel, cut.precision) * slots;
  const bool twice = e.parallel.decode_weights == DecodeWeights::twice;
  const double row = row_bytes(e);
  memory.buffers = std::max(memory.buffers, Bytes(2 * buffer_rows(cut) * row));
  if (twice)
    memory.experts += layer * layers;
  else
    memory.buffers += layer;
}

// Memory as [vLLM] profiles it: kv = hbm * utilisation - weights - expert slots - buffers. Buffers
// hold activations of the group's tokens on their way: the most that can reach one GPU, or for
// which low-latency kernels keep room. They also hold the rank's own working activations, copies of
// the logits of its sampled tokens in fp32, and what the engine's process has besides. With AFD
// each role has its part of this.
MemoryBudget budget(const Deployment& e, double utilization, GpuRole role) {
  MemoryBudget memory;
  // An MTP module is a layer more; what stands below HBM is of the model's own layers.
  const bool moe_module = e.speculation.has_module() && e.model.layers.back().moe;
  const double layers = moe_layers_of_stage(e.model, e.parallel) + (moe_module ? 1 : 0);
  const Bytes expert = expert_bytes(e.model, e.parallel, e.precision);
  const std::unique_ptr<Rebalancer> rebalancer = e.rebalancer();
  const double row = row_bytes(e);
  const ClusterSpec& cluster = role == GpuRole::ffn ? e.expert_cluster() : e.cluster;
  memory.capacity = cluster.gpu.hbm_capacity;
  memory.usable = memory.capacity * utilization;
  if (role != GpuRole::attention) {
    double slots = slots_of_fullest_gpu(e.placement) + rebalancer->free_slots();
    if (e.expert_memory) slots = e.expert_memory->slots_in_hbm(slots * layers, layers) / layers;
    const double base_slots = std::min(double(e.model.experts) / e.parallel.ep, slots);
    memory.experts = expert * (layers * base_slots);
    memory.replicas = expert * (layers * (slots - base_slots) + step_slots(e));
    memory.rebalance_buffer = expert * rebalancer->buffer_slots();
    memory.buffers = Bytes(2 * buffer_rows(e) * row);
    if (e.in_decode) add_decode_cut(e, layers, memory);
  }
  // With AFD a shared expert that is a slot stands with the routed ones.
  if (role == GpuRole::ffn && e.shared_expert.is_slot()) memory.weights = expert * layers;
  if (role != GpuRole::ffn) {
    const double rank_tokens = e.scheduler->max_num_batched_tokens();
    const MoeModel model =
        role == GpuRole::attention ? beside_slots(e.model, e.shared_expert) : e.model;
    memory.weights = non_expert_bytes(model, e.parallel, e.precision);
    if (e.speculation.has_module()) memory.weights += module_bytes(e, model);
    if (role == GpuRole::attention) memory.buffers = Bytes(2 * rows_sent(e) * row);
    memory.buffers += Bytes(4 * rank_tokens * e.model.hidden * 2);
    // An engine that profiles its sampler does so with one draft, a fifth more.
    const std::optional<double>& copies = e.kv_cache.logits_copies;
    const double drafts = copies ? std::min(.2, .2 * e.speculation.tokens) : e.speculation.tokens;
    memory.buffers += Bytes(4.0 * e.scheduler->max_num_seqs() * (1 + drafts) * e.model.vocabulary *
                            copies.value_or(1.0 / e.parallel.tp));
  }
  memory.buffers += memory.rebalance_buffer + e.kv_cache.process_memory;
  memory.kv = memory.usable - memory.weights - memory.experts - memory.replicas - memory.buffers;
  return memory;
}

// Over so many GPUs weights and experts of a group would fit, were all of a GPU's memory sliced.
int gpus_that_hold(const MemoryBudget& memory, const ParallelPlan& plan) {
  return static_cast<int>(std::ceil(plan.gpus() * ((memory.usable - memory.kv) / memory.usable)));
}

void check_memory(const Deployment& e, const MemoryBudget& memory, GpuRole role) {
  if (role == GpuRole::ffn ? memory.kv >= Bytes(0) : memory.kv_blocks > 0) return;
  const auto gb = [](Bytes bytes) { return bytes.value() / 1e9; };
  constexpr std::array of_role{"GPU", "GPU of attention", "GPU of the experts"};
  const std::array<std::string, 3> more{
      fmt::format("GPUs (about {} like these for an instance), fewer replicas",
                  std::max(gpus_that_hold(memory, e.parallel), e.parallel.gpus() + 1)),
      "GPUs for attention, smaller steps", "\"ffn_gpus\", fewer replicas"};
  throw DoesNotFit(
      fmt::format(
          "{}:{}/parallel: the model does not fit: {:.1f} GB missing per {} ({:.1f} GB usable; "
          "weights {:.1f}, experts {:.1f}, replicas {:.1f}, buffers {:.1f}); use more {} or a "
          "narrower precision",
          e.node.file().string(), e.node.pointer(), -gb(memory.kv), of_role[at(role)],
          gb(memory.usable), gb(memory.weights), gb(memory.experts), gb(memory.replicas),
          gb(memory.buffers), more[at(role)]),
      memory.kv * -1.0);
}

// Before states that have room of their own.
MemoryBudget before_states(const Deployment& e) {
  const GpuRole role = e.parallel.afd() ? GpuRole::attention : GpuRole::both;
  const std::optional<double>& share_of_rest = e.kv_cache.free_gpu_memory_fraction;
  MemoryBudget memory = budget(e, share_of_rest ? 1 : e.kv_cache.gpu_memory_utilization, role);
  if (share_of_rest) memory.kv = memory.kv * *share_of_rest;
  return memory;
}

// States that fit the share of what is left that SGLang gives them, with those between the tokens
// of a verified draft (kv_cache_configurator.py, _handle_max_mamba_cache).
struct StatePool {
  std::int64_t states = 0;
  Bytes each{};
  int between = 0;  // of a sequence
};

StatePool state_pool(const Deployment& e, Bytes rest) {
  constexpr double of_tokens = .9;  // mamba_full_memory_ratio
  const Bytes each = state_bytes(e.model, e.parallel, e.precision);
  const int between = e.speculation.tokens > 0 ? e.speculation.tokens + 1 : 0;
  const double with_those = 1 + double(between) / e.kv_cache.paging.state_slots;
  const double states = rest * (of_tokens / (1 + of_tokens)) / (each * with_those);
  return {static_cast<std::int64_t>(std::clamp(states, 0., 1e9)), each, between};
}

// SGLang makes as many states as sequences may run if each has one alone.
Bytes bytes_for_states(const Deployment& e, Bytes rest) {
  const StatePool pool = state_pool(e, rest);
  const std::int64_t seats = e.scheduler->max_num_seqs();
  const std::int64_t states = e.kv_cache.paging.caches_states() ? pool.states : seats;
  return pool.each * double(states + pool.between * seats);
}

}  // namespace

std::int64_t seats_for_states(const Deployment& e) {
  return state_pool(e, before_states(e).kv).states / e.kv_cache.paging.state_slots;
}

MemoryBudget memory_budget(const Deployment& e) {
  const GpuRole role = e.parallel.afd() ? GpuRole::attention : GpuRole::both;
  MemoryBudget memory = before_states(e);
  if (e.kv_cache.paging.state_slots > 0) {
    const Bytes states = bytes_for_states(e, memory.kv);
    memory.buffers += states;
    memory.kv -= states;
  }
  memory.kv_blocks =
      static_cast<std::int64_t>(std::max(0.0, std::floor(memory.kv / e.kv_layout.block)));
  check_memory(e, memory, role);
  return memory;
}

MemoryBudget ffn_memory_budget(const Deployment& e) {
  const bool all = e.kv_cache.free_gpu_memory_fraction.has_value();
  MemoryBudget memory = budget(e, all ? 1 : e.kv_cache.gpu_memory_utilization, GpuRole::ffn);
  check_memory(e, memory, GpuRole::ffn);
  return memory;
}

std::int64_t kv_blocks_for_experts(const Deployment& e, std::ptrdiff_t live) {
  if (live == 0 || e.model.experts == 0) return 0;
  const int room = e.placement_problem.slots_per_gpu + e.rebalancer()->free_slots();
  const int missing = slots_on_live(e.placement_problem, live) - room;
  if (missing <= 0) return 0;
  const bool moe_module = e.speculation.has_module() && e.model.layers.back().moe;
  const Bytes experts = expert_bytes(e.model, e.parallel, e.precision) *
                        double(missing * (e.model.moe_layers() + (moe_module ? 1 : 0)));
  return static_cast<std::int64_t>(std::ceil(experts / e.kv_layout.block));
}

void check_outages(const Deployment& e) {
  for (const Outage& outage : e.failures.outages) {
    std::vector<char> live(at(e.parallel.ep), 1);
    for (const Outage& other : e.failures.outages) {
      const bool lasts = !other.recovers_after || other.at + *other.recovers_after > outage.at;
      if (other.instance != outage.instance || other.at > outage.at || !lasts) continue;
      for (const int rank : other.ep_ranks) live[at(rank)] = 0;
    }
    const auto ranks = std::ranges::count(live, 1);
    const std::int64_t needed = kv_blocks_for_experts(e, ranks);
    if (needed < e.memory.kv_blocks) continue;
    throw DoesNotFit(
        fmt::format(
            "{}:{}/failures: without {} {} slots are left for {} experts, and each rank would give "
            "up {} KV blocks for the others but has {}; use a replication of at least {:.3g}, more "
            "GPUs or a narrower precision",
            e.node.file().string(), e.node.pointer(), outage.what,
            ranks * e.placement_problem.slots_per_gpu, e.model.experts, needed, e.memory.kv_blocks,
            double(e.parallel.ep) / double(ranks)),
        e.kv_layout.block * double(needed - e.memory.kv_blocks));
  }
}

int ranks_of_tier(const ServedModel& e, const KvTierPlan& tier) {
  switch (tier.per) {
    case TierScope::rank: return 1;
    case TierScope::node: return e.cluster.gpus_per_node / e.parallel.rank_gpus();
    case TierScope::cluster: break;
  }
  return e.instances * e.parallel.dp;
}

std::int64_t tier_blocks(const Deployment& e, const KvTierPlan& tier, int ranks) {
  const double blocks = tier.of_hbm
                            ? *tier.of_hbm * double(e.memory.kv_blocks) * ranks
                            : tier.capacity / (e.kv_layout.block * double(e.parallel.rank_gpus()));
  return static_cast<std::int64_t>(std::min(std::floor(blocks), 9e15));
}

void check_tiers(const Deployment& e) {
  for (const KvTierPlan& tier : e.kv_cache.tiers) {
    if (tier_blocks(e, tier, 1) > 0) continue;
    const Bytes block = e.kv_layout.block * double(e.parallel.rank_gpus());
    throw ConfigError(
        "{}:{}/kv_cache/tiers/{}/capacity: holds less than one KV block of {:.3g} MB; give at "
        "least that, or 0 B for no tier",
        e.node.file().string(), e.node.pointer(), tier.place, block.value() / 1e6);
  }
}

}  // namespace moesim
