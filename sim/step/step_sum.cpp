// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>

#include "sim/step/critical_path.hpp"
#include "sim/step/rank_exchanges.hpp"
#include "sim/step/step_scratch.hpp"

// Methods of a StepModel that add up a step's time from what its layers take.
namespace moesim {

namespace {

// The whole experts, then the slices of those that are cut.
void multiply(CriticalPath& path, const LayerOutcome& outcome) {
  path.experts(outcome.experts);
  if (outcome.slices.time > Seconds{})
    path.experts(std::vector(outcome.experts.size(), outcome.slices), "sliced_experts");
}

// Copies that a step brings are on the critical path between the gate and the dispatch. Their
// kernels take all SMs [UltraEP]: nothing overlaps them.
void bring_copies(CriticalPath& path, const LayerOutcome& outcome) {
  if (outcome.step_copies == 0) return;
  const CollectiveCost& way = outcome.bringing;
  path.alone("step_copies", Part::rebalancing, {way.time, way.bound, {}, way.evidence},
             (way.nvlink + way.network).value());
}

}  // namespace

// True if nothing overlaps a layer's experts and exchanges, so that a sum tells what layers
// take.
bool StepModel::layers_add_up() const {
  return !spec_.overlap.shared_expert && !spec_.overlap.combine_attention && !spec_.plan.afd();
}

// Sums up what the layers of a sample take if each waits for the one before.
void StepModel::sum_up(StepSample& sample) const {
  const auto layers = static_cast<int>(spec_.model.layers.size());
  sample.stages.resize(at(spec_.plan.pp));
  std::vector<CriticalPath> paths;
  paths.reserve(sample.stages.size());
  for (StepCost& stage : sample.stages) {
    stage.idle.assign(at(spec_.plan.stage_gpus()), 0.0);
    paths.emplace_back(spec_.plan, spec_.cluster.gpu, spec_.expert_gpu(), stage,
                       Explainer(nullptr));
  }
  int moe_layer = 0;
  for (int l = 0; l < layers; ++l) {
    if (!spec_.model.layers[at(l)].moe) continue;
    const LayerOutcome& layer = sample.layer(moe_layer++);
    const auto number = at(spec_.plan.stage_of(l, layers));
    StepCost& stage = sample.stages[number];
    CriticalPath& path = paths[number];
    path.every_rank("token_routing", Part::token_routing,
                    {layer.routing, Resource::launch, {}, Evidence::charged});
    bring_copies(path, layer);
    path.collective({"dispatch", Part::dispatch, layer.exchange.dispatch, stage.dispatch});
    multiply(path, layer);
    path.collective({"combine", Part::combine, layer.exchange.combine, stage.combine});
    const TokenBalance balance = token_balance({&layer, 1});
    sample.balance.max_tokens += balance.max_tokens;
    sample.balance.mean_tokens += balance.mean_tokens;
  }
}

namespace {

// True if a step has no CUDA graph.
bool is_eager(const StepBatch& batch, std::int32_t graph_tokens) {
  return std::ranges::any_of(batch.ranks, [&](const RankStep& rank) {
    return rank.tokens > graph_tokens || !all_decode(rank);
  });
}

}  // namespace

// Adds the time of the host and of the gaps between kernels, and the least time to launch every
// kernel of a step without a graph. Adds what ranks wait for the last of them. The host begins a
// step once, however many micro-batches it has, and no exchange of another one hides that.
void StepModel::charge_host(const StepBatch& batch, int layers, bool begins, CriticalPath& path,
                            const StepCost& result) const {
  std::size_t sequences = 0;
  for (const RankStep& rank : batch.ranks) sequences = std::max(sequences, rank.sequences.size());
  const auto cost_of = [](Seconds time) {
    return Cost{time, Resource::launch, {}, Evidence::charged};
  };
  // With AFD each layer has its own.
  if (!spec_.plan.afd())
    path.every_rank("kernel_gaps", Part::other, cost_of(spec_.charges.per_layer * layers));
  const bool eager = is_eager(batch, spec_.charges.graph_tokens);
  const Seconds launches = spec_.charges.eager_layer * layers;
  if (eager && launches > result.total)
    path.every_rank("eager_launches", Part::other, cost_of(launches - result.total));
  if (spec_.charges.wait_for_last > Seconds{} && (eager || begins))
    path.alone("rank_waits", Part::other,
               cost_of(spec_.charges.wait_for_last * (eager ? layers : 1)));
  path.alone("host_overhead", Part::other,
             cost_of((begins ? spec_.charges.host_overhead : Seconds{}) +
                     spec_.charges.per_sequence * static_cast<double>(sequences)));
}

void StepModel::start_sum(StepCost& result) const {
  result.total = {};
  result.micro_batches = result.passes = 1;
  result.chain.rounds.clear();
  result.afd.reset();
  result.parts = {};
  result.by_evidence = {};
  result.dispatch = result.combine = result.all_reduce = {};
  result.expert_memory = {};
  result.idle.assign(at(spec_.plan.gpus()), 0.0);
  result.flops = result.hbm_bytes = 0;
  result.energy = {};
}

// A MoE layer whose experts are on attention's GPUs, up to where its tokens have arrived.
void StepModel::send_tokens(const Exchange& exchange, const RankCosts& shared_experts,
                            CriticalPath& path, StepCost& result) const {
  const Crossing dispatch{"dispatch", Part::dispatch,         exchange.dispatch, result.dispatch,
                          1,          exchange.dispatch_holds};
  if (!spec_.overlap.shared_expert) {
    path.collective(dispatch);
    return;
  }
  path.start_transfer(dispatch);
  path.add(shared_experts);
  path.barrier();
}

// The rest of that layer: the experts and the way back.
void StepModel::run_experts(const LayerOutcome& outcome, CriticalPath& path,
                            StepCost& result) const {
  multiply(path, outcome);
  const Crossing combine{"combine",
                         Part::combine,
                         outcome.exchange.combine,
                         result.combine,
                         1,
                         outcome.exchange.combine_holds};
  if (spec_.overlap.combine_attention) {
    path.start_transfer(combine);
  } else {
    path.collective(combine);
  }
}

// A MoE layer whose experts are on other GPUs. Shared experts run where attention does, after the
// combine, or with overlap while the tokens are away. `passed` is the micro-batch's time that
// rounds already hold.
void StepModel::pass_other_side(const LayerOutcome& outcome, const RankCosts& shared_experts,
                                CriticalPath& path, StepCost& result, Seconds& passed) const {
  const auto lap = [&] { return result.total - std::exchange(passed, result.total); };
  AfdRound round;
  round.attention = lap();
  if (spec_.overlap.shared_expert) {
    path.add(shared_experts);
    path.barrier();
  }
  round.beside = lap();
  path.collective({"dispatch", Part::dispatch, outcome.exchange.dispatch, result.dispatch});
  round.dispatch = lap();
  path.experts(outcome.experts);
  path.every_rank("kernel_gaps", Part::experts,
                  {spec_.charges.per_layer, Resource::launch, {}, Evidence::charged});
  round.ffn = lap();
  path.collective({"combine", Part::combine, outcome.exchange.combine, result.combine});
  round.combine = lap();
  result.chain.rounds.push_back(round);
}

// The step's time from what its MoE layers took and what every rank computes by itself.
void StepModel::add_up(const StepBatch& batch, Pass pass, StepCost& result,
                       std::vector<ExplainedOperation>* explain, const WaitForExperts& wait) {
  const ParallelPlan& plan = spec_.plan;
  RankPrices& ranks = scratch_->ranks;
  ranks.price(batch);
  // A sample's MoE layers are added up already, if nothing runs beside them.
  const StepSample* const sample = result.samples.empty() ? nullptr : result.samples.front();
  const bool summed = sample != nullptr && (pass.whole || plan.pp > 1) && layers_add_up();
  start_sum(result);
  CriticalPath path(plan, spec_.cluster.gpu, spec_.expert_gpu(), result, Explainer(explain));
  RankExchanges exchanges(fabric_, {spec_.model, plan, spec_.precision, fabric_.cluster().gpu},
                          ranks, batch, result);
  int moe_layer = 0;
  const int layers = ranks.layers();
  Seconds passed{};
  const auto pass_experts = [&](const RankPrices::LayerCosts& costs) {
    const LayerOutcome& outcome = sample ? sample->layer(moe_layer) : result.layers[at(moe_layer)];
    path.every_rank("token_routing", Part::token_routing,
                    {outcome.routing, Resource::launch, {}, Evidence::charged});
    bring_copies(path, outcome);
    if (plan.afd()) {
      pass_other_side(outcome, costs.shared_experts, path, result, passed);
    } else {
      send_tokens(outcome.exchange, costs.shared_experts, path, result);
      if (wait) wait(moe_layer, batch.start + to_duration(result.total));
      run_experts(outcome, path, result);
    }
    ++moe_layer;
  };
  for (int layer = 0; layer < layers; ++layer) {
    const RankPrices::LayerCosts& costs = ranks.layer(layer);
    const Mixer& mixer = ranks.mixer(layer);
    const int stage = plan.stage_of(layer, layers);
    const bool begins_stage = layer == 0 || stage != plan.stage_of(layer - 1, layers);
    if (begins_stage && layer > 0) path.end_stage();
    if (begins_stage && summed) path.add_sum(sample->stages[at(stage)]);
    if (plan.afd())
      path.every_rank("kernel_gaps", Part::other,
                      {spec_.charges.per_layer, Resource::launch, {}, Evidence::charged});
    path.add(costs.before_attention);
    exchanges.join_norms(path, mixer);
    if (!costs.absorption.empty()) path.add(costs.absorption);
    exchanges.gather_keys(path, mixer);
    exchanges.gather_queries(path, mixer);
    path.add(costs.attention);
    exchanges.merge_outputs(path, mixer);
    path.add(costs.before_dispatch);
    exchanges.all_reduce(path);
    if (ranks.is_moe(layer)) {
      path.barrier();
      if (!summed) pass_experts(costs);
      path.add(costs.after_combine);
      if (!spec_.overlap.shared_expert) path.add(costs.shared_experts);
      exchanges.rejoin(path);
      exchanges.gather_decodes(path);
    } else {
      path.add(costs.after_combine);
      exchanges.all_reduce(path);
    }
  }
  path.add(ranks.head());
  exchanges.gather_logits(path, batch);
  path.end_stage();
  charge_host(batch, layers, pass.begins, path, result);
  result.chain.tail = result.total - passed;

  const RankPrices::Sums sums = ranks.sums();
  result.flops += sums.flops;
  result.hbm_bytes += sums.hbm_bytes;
  result.energy.add(sums.energy);
}

}  // namespace moesim
