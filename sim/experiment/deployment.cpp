// SPDX-License-Identifier: Apache-2.0
#include "sim/experiment/deployment.hpp"

#include <algorithm>

#include "sim/experiment/router_context.hpp"
#include "sim/placement/copies_by_gain.hpp"

namespace moesim {

namespace {

void place(Deployment& e, TraceFits& fits) {
  const PlacementSpec& placed = e.placed;
  if (e.model.experts == 0) return;
  if (!placed.from_trace) {
    e.placement = place_unseen(*placed.placer, e.placement_problem, e.model.moe_layers());
    return;
  }
  std::vector<const RoutingTrace*> traces{&e.trace};
  if (e.prefill_trace) traces.push_back(&*e.prefill_trace);
  Observation what = placed.placer->needs();
  what.fitted_half = e.bind_odd_only;
  what.workloads = placed.workloads;
  const auto seen = fits.seen(traces, what);
  const auto make = [&] {
    return placed.by_gain ? place_by_gain(*placed.placer, e.placement_problem, *seen)
                          : place_all(*placed.placer, e.placement_problem, *seen);
  };
  e.placement = placed.key.empty() ? make() : *fits.placement(placed.key, make);
  e.seen = seen->load;
}

RoutingContext routing_context(const Deployment& e, const ExpertPlacement& placement) {
  return {
      placement, expert_time(e), e.seen,
      std::max(1, e.expert_cluster().scale_up_domain / e.parallel.moe_tp()),
      expert_bytes(e.model, e.parallel, e.precision) / e.expert_cluster().gpu.scale_up_bandwidth};
}

// Policies that need the whole group's counts are refused where no dispatch gives them.
void check_counts(const PhaseSpec& phase, const TokenRouter& router, bool exchanges) {
  // With one attention rank every GPU holds every token, and with it every choice.
  const bool counts = phase.dispatch->gives_global_counts() || !exchanges;
  if (!router.needs_global_counts() || counts) return;
  phase.routing.node().fail(
      "\"{}\" needs the top-k choices of the whole group, which this phase's dispatch does not "
      "give; use \"ids_all_gather\" or \"all_gather\" there",
      phase.routing.name());
}

// Copies of a step are priced where the experts are in the HBM of attention's GPUs.
void check_copies(const Deployment& e, const PhaseSpec& phase, const TokenRouter& router) {
  if (router.step_slots() == 0 || (!e.expert_memory && !e.parallel.afd())) return;
  phase.routing.node().fail(
      "\"{}\" brings copies of experts, which is not modelled {}; use another policy",
      phase.routing.name(), e.parallel.afd() ? "with \"ffn_gpus\"" : "with experts below HBM");
}

void make_rules(Deployment& e) {
  const RoutingContext context = routing_context(e, e.placement);
  for (const PhaseSpec& phase : e.phases) {
    std::shared_ptr<const TokenRouter> router = phase.router(context);
    check_counts(phase, *router, e.parallel.exchanges());
    check_copies(e, phase, *router);
    e.rules.by_kind.push_back(
        {std::string(phase.routing.name()), std::move(router), phase.dispatch});
  }
  e.rules.by_kind[at(StepKind::decode)].keep = e.keep_experts;
}

// Lowers max_num_seqs to the sequences whose states have room, as SGLang does.
void seat_states(Deployment& e) {
  const std::int64_t seats = seats_for_states(e);
  if (seats == 0) e.kv_cache.paging.state_slots = 0;
  if (seats == 0 || seats >= e.scheduler->max_num_seqs()) return;
  const ConfigNode given = e.node.child("scheduling");
  Json lowered = given.json();
  lowered["max_num_seqs"] = seats;
  e.scheduler = e.policies->scheduling.make(ConfigNode(lowered, given.file(), given.pointer()));
  const KvPaging& paging = e.kv_cache.paging;
  const std::string why = paging.caches_states()
                              ? fmt::format(
                                    "; each holds {} for the prefix cache (\"kv_cache\": "
                                    "state_slots)",
                                    paging.state_slots)
                              : "";
  e.remarks.push_back(
      fmt::format("\"scheduling\": states of {} sequences have room, so max_num_seqs is {}{}",
                  seats, seats, why));
}

// vLLM captures graphs for all sequences, each with a block for its state (vllm#49064).
void remark_on_state_blocks(Deployment& e) {
  const std::int64_t seats = e.scheduler->max_num_seqs(), blocks = e.memory.kv_blocks;
  if (!e.kv_cache.paging.pages_as_states || !e.model.keeps_state() || seats <= blocks) return;
  e.remarks.push_back(fmt::format(
      "\"scheduling\": max_num_seqs is {}, and {} blocks can hold a state: vLLM does not "
      "start; give at most {}",
      seats, blocks, blocks));
}

}  // namespace

Deployment deploy(const PoolSpec& spec, const Traces& traces) {
  Deployment e{spec, traces.decode, traces.prefill};
  place(e, *traces.fits);
  make_rules(e);
  const Mover mover = mover_of(e);
  e.rebalancer = e.rebalancing.make(rebalancing_context(e, mover));
  if (spec.decode_cut) {
    Deployment cut{*spec.decode_cut, traces.decode, traces.prefill};
    place(cut, *traces.fits);
    make_rules(cut);
    cut.rebalancer = e.rebalancer;
    e.in_decode = std::make_shared<const Deployment>(std::move(cut));
  }
  if (e.kv_cache.paging.state_slots > 0) seat_states(e);
  e.kv_layout = kv_layout_of(e);
  e.kv_held = kv_held_of(e);
  e.memory = memory_budget(e);
  if (e.parallel.afd()) e.ffn_memory = ffn_memory_budget(e);
  remark_on_state_blocks(e);
  check_tiers(e);
  check_outages(e);
  e.request_router = e.request_routing.make(router_context(e));
  return e;
}

bool remembers_agents(const EngineSettings& e) {
  return e.kv_cache.retains() || e.kv_cache.prefetch_lead;
}

int most_sequences(const Deployment& e, int tokens) {
  std::int64_t most = e.scheduler->max_num_seqs();
  if (!e.prefix_caching) {
    most = std::min(most, e.memory.kv_blocks / e.kv_layout.blocks_for(std::max(1, tokens)));
  }
  return static_cast<int>(std::max<std::int64_t>(1, most));
}

RowSource typical_rows(const Deployment& e) {
  return {e.trace, e.prefill_trace, e.bind_odd_only, e.seed};
}

StepModel step_model(const Deployment& e) {
  std::vector<RankMemory> memories;
  for (int rank = 0; e.expert_memory && rank < e.parallel.ep; ++rank) {
    memories.emplace_back(*e.expert_memory, e.placement, rank, e.seen,
                          expert_bytes(e.model, e.parallel, e.precision),
                          e.seed ^ static_cast<std::uint64_t>(rank));
  }
  return StepModel({.cluster = e.cluster,
                    .ffn_cluster = e.ffn_cluster,
                    .model = e.model,
                    .plan = e.parallel,
                    .precision = e.precision,
                    .charges = e.charges,
                    .overlap = e.overlap,
                    .capacity = e.capacity,
                    .shared_expert = e.shared_expert,
                    .counts_locality = e.locality,
                    .mega_moe = fuses_experts(e),
                    .cut_experts = e.placement.empty() ? 0 : e.placement.front().cut()},
                   std::move(memories));
}

StepInput step_input(const Deployment& e, StepKind rule, const StepBatch& batch,
                     const RowSource& rows, std::optional<LayerRange> layers) {
  const Deployment& of = e.of_steps(rule);
  return {batch, of.rules.of(rule), of.placement, rows, layers};
}

StepModels::StepModels(const Deployment& e) : all_(step_model(e)) {
  if (e.in_decode) decode_.emplace(step_model(*e.in_decode));
}

PhaseRules rules_over(const Deployment& e, const ExpertPlacement& placement) {
  PhaseRules rules = e.rules;
  for (std::size_t kind = 0; kind < rules.by_kind.size(); ++kind) {
    rules.by_kind[kind].router = e.phases[kind].router(routing_context(e, placement));
  }
  return rules;
}

}  // namespace moesim
