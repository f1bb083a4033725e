// SPDX-License-Identifier: Apache-2.0
#include "sim/step/step_model.hpp"

#include <algorithm>
#include <atomic>
#include <numeric>
#include <utility>

#include <tbb/enumerable_thread_specific.h>
#include <tbb/global_control.h>
#include <tbb/parallel_for.h>

#include "hardware/at.hpp"
#include "sim/dispatch/token_traffic.hpp"
#include "sim/step/context_parallel.hpp"
#include "sim/step/critical_path.hpp"
#include "sim/step/expert_choices.hpp"
#include "sim/step/micro_batches.hpp"
#include "sim/step/rank_costs.hpp"
#include "sim/step/routed_layer.hpp"

namespace moesim {

namespace {

// Below this many routed ids a step is priced on one thread: handing out work would cost more than
// it saves.
constexpr std::int64_t ids_worth_threads = 1 << 16;

// The costs of grouped GEMMs by their rows: in decode the same few come again from layer to layer
// and from step to step. A place may be taken by other rows.
class ExpertCosts {
 public:
  template <class Price>
  const Cost& of(const GroupedRows& rows, std::int64_t tokens, Price&& price) {
    Entry& entry =
        entries_[static_cast<std::size_t>((rows.tokens * 31 + rows.padded) * 31 + rows.slots) %
                 remembered];
    if (entry.rows != rows || entry.tokens != tokens) entry = {rows, tokens, price(rows)};
    return entry.cost;
  }

 private:
  struct Entry {
    GroupedRows rows{};
    std::int64_t tokens = 0;  // of the whole group
    Cost cost{};
  };
  static constexpr std::size_t remembered = 1 << 11;
  std::vector<Entry> entries_ = std::vector<Entry>(remembered);
};

}  // namespace

// Memory that price() reuses from step to step.
struct StepModel::Scratch {
  Scratch(const ClusterSpec& cluster, const MoeModel& model, const ParallelPlan& plan,
          const PrecisionPlan& precision)
      : rows(model, plan), ranks(model, plan, precision, cluster.gpu) {}

  // Per-layer work of one thread.
  struct Worker {
    RoutedLayer routed;
    CopyCounter counter;
    LinkTraffic copies, selections;
    ExpertCosts expert_costs, masked_costs;
    std::vector<std::int32_t> shared_rank;     // of each token
    std::vector<std::int32_t> tokens_of_slot;  // of one rank, with the shared expert behind them
  };
  StepRows rows;
  RankPrices ranks;
  std::vector<std::vector<DelayedSelection>> backlog;  // [moe layers]
  tbb::enumerable_thread_specific<Worker> workers;
  StepCost second_half;
};

namespace {

GroupedGemmShape shape_of_experts(const MoeModel& model, const ParallelPlan& plan,
                                  const PrecisionPlan& precision, bool masked) {
  return {.hidden = static_cast<double>(model.expert_input()),
          .width = static_cast<double>(model.expert_width) / plan.moe_tp(),
          .weights = precision.experts,
          .activations = precision.activations,
          .masked = masked,
          .experts = static_cast<double>(model.experts),
          .top_k = static_cast<double>(model.experts_per_token),
          .held = static_cast<double>(model.experts) / plan.ep};
}

// DeepGEMM's masked layout multiplies in fp8 with scales of blocks; engines run it behind DeepEP's
// low-latency kernels. Other formats are priced as whole layers are.
std::optional<GroupedGemm> masked_experts(const ClusterSpec& cluster, const MoeModel& model,
                                          const ParallelPlan& plan,
                                          const PrecisionPlan& precision) {
  if (precision.experts != Precision::fp8_block || precision.activations != Precision::fp8_block)
    return std::nullopt;
  return GroupedGemm(shape_of_experts(model, plan, precision, /*masked=*/true), cluster.gpu);
}

}  // namespace

StepModel::StepModel(const ClusterSpec& cluster, const MoeModel& model, const ParallelPlan& plan,
                     const PrecisionPlan& precision, Charges charges, Overlap overlap,
                     std::shared_ptr<const CapacityRule> capacity, std::vector<RankMemory> memories,
                     SharedExpert shared)
    : fabric_(cluster),
      experts_(shape_of_experts(model, plan, precision, /*masked=*/false), cluster.gpu),
      masked_experts_(masked_experts(cluster, model, plan, precision)),
      model_(model),
      plan_(plan),
      precision_(precision),
      charges_(std::move(charges)),
      overlap_(overlap),
      capacity_(std::move(capacity)),
      memories_(std::move(memories)),
      shared_(shared),
      priced_{0, model.moe_layers()},
      scratch_(std::make_unique<Scratch>(cluster, beside_slots(model, shared), plan, precision)) {
  scratch_->backlog.resize(at(model_.moe_layers()));
}

StepModel::~StepModel() = default;
StepModel::StepModel(StepModel&&) noexcept = default;

std::span<const std::int32_t> StepModel::tokens_of_expert() const {
  return scratch_->rows.tokens_of_expert();
}

namespace {

// Constants were fitted on exchanges in which every GPU sends and receives.
void rest_on_no_measurement(CollectiveCost& exchange) {
  if (exchange.evidence == Evidence::calibrated) exchange.evidence = Evidence::extrapolated;
}

// What a step brings is on the critical path between the gate and the dispatch, and its kernels
// take all SMs [UltraEP]: nothing runs beside it.
void bring_copies(CriticalPath& path, const LayerOutcome& outcome) {
  if (outcome.step_copies == 0) return;
  const CollectiveCost& way = outcome.bringing;
  path.every_rank("step_copies", Part::rebalancing, {way.time, way.bound, {}, way.evidence},
                  (way.nvlink + way.network).value());
}

}  // namespace

// An all-to-all of weights. A copy comes from a GPU that holds the expert: one of the same NVLink
// domain if there is one, of several the one that has sent least, the lowest. UltraEP relays an
// expert of six copies and more through GPUs that have one already; here its home sends all.
CollectiveCost StepModel::bring(std::span<const StepCopy> copies,
                                const LayerPlacement& standing) const {
  const int gpus_of_rank = plan_.moe_tp(), first = plan_.first_expert_gpu();
  const double bytes = expert_bytes(model_, plan_, precision_).value();
  TrafficMatrix sent(first + plan_.expert_gpus());
  std::vector<int> copies_from(at(plan_.ep));
  for (const StepCopy& copy : copies) {
    const auto domain = [&](int rank) { return fabric_.domain_of(first + rank * gpus_of_rank); };
    const int from =
        *std::ranges::min_element(standing.host_gpus_of(copy.expert), {}, [&](std::int32_t rank) {
          return std::pair(domain(rank) != domain(copy.gpu), copies_from[at(rank)]);
        });
    ++copies_from[at(from)];
    for (int i = 0; i < gpus_of_rank; ++i)
      sent.at(first + from * gpus_of_rank + i, first + copy.gpu * gpus_of_rank + i) += bytes;
  }
  CollectiveCost cost = fabric_.all_to_all(sent);
  rest_on_no_measurement(cost);
  return cost;
}

// Every rank learns how many selections and tokens all ranks have, 8 bytes each (sglang#19290).
Seconds StepModel::rank_load_gather() const {
  return fabric_.all_reduce(plan_.ep, Bytes(16.0 * plan_.ep)).time;
}

void StepModel::price_moe_layer(int moe_layer, const PhaseRule& rule,
                                const LayerPlacement& standing, std::uint64_t step,
                                LayerOutcome& outcome) {
  Scratch& s = *scratch_;
  Scratch::Worker& worker = s.workers.local();
  const std::span<std::int32_t> tokens = s.rows.tokens_of_expert(moe_layer);
  RoutedLayer& routed = worker.routed;

  RoutingProblem asked{standing, tokens, moe_layer, step, {}};
  if (s.rows.has_ids()) asked.rows = {s.rows.ids(moe_layer), s.rows.source_rank()};
  outcome.capacity = {};
  const bool limited = capacity_->limits() || rule.keep > 0;
  const RoutingProblem problem =
      rule.keep > 0
          ? routed.keep_active(rule.keep, asked, s.rows.source_gpu(), tokens, outcome.capacity)
      : limited ? routed.limit(*capacity_, asked, s.rows.source_gpu(), s.backlog[at(moe_layer)],
                               tokens, outcome.capacity)
                : asked;
  const std::span<const std::int32_t> source_gpu =
      limited ? routed.source_gpu() : std::span<const std::int32_t>(s.rows.source_gpu());
  routed.route(*rule.router, problem, outcome.load);
  std::int32_t active = 0;  // in a register
  for (const std::int32_t t : tokens) active += t > 0 ? 1 : 0;
  outcome.active_experts = active;

  const LayerPlacement& placement = routed.placement();
  outcome.step_copies = static_cast<std::int32_t>(routed.copies().size());
  outcome.bringing = {};
  if (outcome.step_copies > 0) outcome.bringing = bring(routed.copies(), standing);
  if (rule.router->hides_copies()) outcome.bringing.time = {};
  const bool replicated = standing.slots() > standing.experts() || rule.router->step_slots() > 0;
  outcome.routing = charges_.routing(rule.router_name, outcome.active_experts, replicated);
  const bool by_selection =
      rule.router->needs_token_rows() || limited || !routed.copies().empty() || shared_.draws();
  std::span<const std::int32_t> slots;
  if ((by_selection || counts_locality_) && s.rows.has_ids())
    slots = routed.slot_of_selection(*rule.router, problem);
  outcome.locality = {};
  if (counts_locality_ && plan_.exchanges()) {
    outcome.locality = locality(placement, slots, problem.rows.source_rank,
                                std::max(1, fabric_.cluster().scale_up_domain / plan_.moe_tp()));
  }

  outcome.shared_tokens.assign(shared_.is_slot() ? at(plan_.ep) : 0, 0);
  if (shared_.draws()) {
    waterfill(shared_, problem, placement, slots, outcome.load.tokens, worker.shared_rank);
    for (const std::int32_t rank : worker.shared_rank) ++outcome.shared_tokens[at(rank)];
    outcome.routing += rank_load_gather();
  } else if (shared_.is_slot()) {
    for (const std::int32_t rank : s.rows.source_rank()) ++outcome.shared_tokens[at(rank)];
  }

  outcome.exchange = {};
  if (plan_.exchanges()) {
    const bool global = rule.router->needs_global_counts();
    DispatchProblem exchange{
        fabric_, s.rows.tokens_of_gpu(), static_cast<double>(model_.expert_input()),
        static_cast<double>(model_.experts_per_token), static_cast<double>(model_.experts)};
    exchange.needs_global_counts = global;
    exchange.between_sides = plan_.afd();
    if (global && replicated) exchange.top_k_of_all_tokens = charges_.top_k_of_all_tokens;
    const int domain = fabric_.cluster().scale_up_domain;
    const auto count = [&](CopyRule copies, LinkTraffic& traffic) {
      const CopyPaths paths{copies, domain, plan_.moe_tp(), plan_.first_expert_gpu()};
      if (by_selection) {
        worker.counter.count(placement, slots, source_gpu, paths, traffic);
      } else {
        worker.counter.count(placement, routed.tokens_of_slot(), outcome.active_experts,
                             problem.rows.ids, source_gpu, paths, traffic);
      }
      return &traffic;
    };
    if (rule.dispatch->needs_copies()) {
      exchange.copies = count(CopyRule::per_gpu, worker.copies);
    }
    if (rule.dispatch->needs_selections()) {
      exchange.selections = count(CopyRule::per_selection, worker.selections);
      for (std::size_t token = 0; shared_.draws() && token < source_gpu.size(); ++token)
        worker.selections.add(source_gpu[token], worker.shared_rank[token], 1);
    }
    outcome.exchange = rule.dispatch->exchange(exchange);
    if (plan_.afd()) {
      rest_on_no_measurement(outcome.exchange.dispatch);
      rest_on_no_measurement(outcome.exchange.combine);
    }
    outcome.routing += outcome.exchange.top_k;
  } else if (plan_.stage_gpus() > 1) {
    // All GPUs of the one attention rank hold every token: nothing to dispatch, partial sums are
    // reduced.
    outcome.exchange.combine = fabric_.all_reduce(
        plan_.stage_gpus(), Bytes(static_cast<double>(s.rows.tokens()) * model_.hidden * 2));
  }

  const bool masked = outcome.exchange.by_expert && masked_experts_;
  const GroupedGemm& experts = masked ? *masked_experts_ : experts_;
  ExpertCosts& costs = masked ? worker.masked_costs : worker.expert_costs;
  // Tables were measured with all tokens of the group at hand. A roofline knows of exchanges that
  // bring a GPU no others than its own experts'.
  const bool held = plan_.dp == 1 || outcome.exchange.gathered || fabric_.cluster().gpu.tables;
  outcome.tokens_held = held ? s.rows.tokens() : 0;
  outcome.experts.resize(at(plan_.ep));
  outcome.useful_rows = outcome.padded_rows = 0;
  for (int rank = 0; rank < plan_.ep; ++rank) {
    const auto first = at(placement.first_slot(rank));
    std::span<const std::int32_t> of_rank =
        std::span<const std::int32_t>(routed.tokens_of_slot())
            .subspan(first, at(placement.first_slot(rank + 1)) - first);
    if (shared_.is_slot()) {
      worker.tokens_of_slot.assign(of_rank.begin(), of_rank.end());
      worker.tokens_of_slot.push_back(outcome.shared_tokens[at(rank)]);
      of_rank = worker.tokens_of_slot;
    }
    const GroupedRows rows = experts.rows(of_rank);
    outcome.experts[at(rank)] = costs.of(rows, outcome.tokens_held, [&](const GroupedRows& r) {
      return experts.cost(r, static_cast<double>(outcome.tokens_held));
    });
    outcome.useful_rows += rows.tokens;
    outcome.padded_rows += rows.padded;
  }
  if (!memories_.empty()) outcome.tokens_of_slot = routed.tokens_of_slot();
}

// Adds the waiting for weights to the experts' times. Called layer by layer in order of time: `now`
// is when the layer's tokens have arrived.
void StepModel::wait_for_experts(int moe_layer, Time now, const ExpertPlacement& placements,
                                 StepCost& result) {
  std::vector<Cost>& experts = result.layers[at(moe_layer)].experts;
  const auto longest = [&] {
    Seconds time{};
    for (const Cost& cost : experts) time = std::max(time, cost.time);
    return time;
  };
  const auto gemm = [&](std::span<const std::int32_t> tokens) {
    const auto held = static_cast<double>(result.layers[at(moe_layer)].tokens_held);
    return experts_.cost(experts_.rows(tokens), held).time;
  };
  const Seconds in_hbm = longest();
  for (int rank = 0; rank < plan_.ep; ++rank) {
    const auto tokens_of = [&](int layer) {
      const LayerPlacement& placement = placements[at(layer)];
      const auto first = at(placement.first_slot(rank));
      return std::span<const std::int32_t>(result.layers[at(layer)].tokens_of_slot)
          .subspan(first, at(placement.first_slot(rank + 1)) - first);
    };
    Cost& cost = experts[at(rank)];
    const Seconds time =
        memories_[at(rank)].run(moe_layer, now, tokens_of, gemm, result.expert_memory);
    if (time > 2 * cost.time) cost.bound = Resource::host_link;
    // Meanwhile it waits for weights.
    if (const auto& power = fabric_.cluster().gpu.power; power && time > cost.time)
      cost.draw = power->idle + (cost.draw - power->idle) * (cost.time / time);
    cost.time = time;
  }
  result.expert_memory.stall += longest() - in_hbm;
}

namespace {

bool all_decode(const RankStep& rank) {
  return std::ranges::all_of(rank.sequences, [](const SequenceWork& work) {
    return work.new_tokens == 1 || work.verifies;
  });
}

bool worth_two_batches(const StepBatch& batch, const TwoBatch& limits) {
  return std::all_of(batch.ranks.begin(), batch.ranks.end(), [&](const RankStep& rank) {
    return rank.tokens >
           std::max(all_decode(rank) ? limits.decode_tokens : limits.prefill_tokens, 1);
  });
}

// Turns operations of all micro-batches in all stages into those of the mean stage, and adds the
// rest of a round.
void explain_pipeline(const StepCost& step, int stages, std::vector<ExplainedOperation>& rows) {
  for (ExplainedOperation& row : rows) {
    row.calls /= stages;
    for (double* sum : {&row.seconds, &row.flops, &row.hbm_bytes, &row.l2_bytes, &row.smem_bytes,
                        &row.link_bytes, &row.peak_flops, &row.joules}) {
      *sum /= stages;
    }
  }
  const auto& pipeline = step.parts[static_cast<std::size_t>(Part::pipeline)];
  Cost rest{Seconds(std::accumulate(pipeline.begin(), pipeline.end(), 0.0)), Resource::latency, {}};
  rest.evidence = Evidence::extrapolated;
  Explainer(&rows).add("other_stages", Part::pipeline, rest);
}

// Micro-batches of which some rank has tokens.
std::vector<StepBatch> parts_with_tokens(const StepBatch& batch, int count) {
  std::vector<StepBatch> parts = micro_batches(batch, count);
  std::erase_if(parts, [](const StepBatch& part) {
    return std::ranges::all_of(part.ranks, [](const RankStep& rank) { return rank.tokens == 0; });
  });
  return parts;
}

}  // namespace

// `price` gives the cost of a micro-batch: the `number`th, whose tokens per expert it leaves in the
// scratch.
template <class PricePart>
std::vector<StepCost> StepModel::price_parts(std::span<const StepBatch> parts, PricePart&& price) {
  std::vector<StepCost> costs;
  std::vector<std::int32_t>& of_part = scratch_->rows.tokens_of_expert();
  std::vector<std::int32_t> tokens;
  for (const StepBatch& part : parts) {
    price(part, costs.size(), costs.emplace_back());
    if (!costs.back().samples.empty()) continue;
    tokens.resize(of_part.size());
    for (std::size_t i = 0; i < tokens.size(); ++i) tokens[i] += of_part[i];
  }
  of_part = std::move(tokens);
  return costs;
}

template <class PricePart>
StepCost StepModel::price_pipeline(const StepBatch& batch, PricePart&& price) {
  const std::vector<StepBatch> parts = parts_with_tokens(batch, plan_.pp);
  const std::vector<StepCost> costs = price_parts(parts, price);
  std::vector<std::vector<CollectiveCost>> hops;
  for (const StepBatch& part : parts) {
    auto& hops_of_part = hops.emplace_back();
    for (int stage = 0; stage < plan_.pp; ++stage) hops_of_part.push_back(hop(part, stage));
  }
  return join_pipeline(costs, hops, plan_);
}

// The host begins a step once, and no micro-batch hides that: it is charged with the last one.
template <class PricePart>
StepCost StepModel::price_afd(const StepBatch& batch, PricePart&& price) {
  const std::vector<StepBatch> parts = parts_with_tokens(batch, plan_.micro_batches);
  const auto pass_of = [&](std::size_t number) {
    return number + 1 == parts.size() ? Pass::first_part : Pass::later_part;
  };
  return join_afd(
      price_parts(parts, [&](const StepBatch& part, std::size_t number,
                             StepCost& cost) { price(part, number, pass_of(number), cost); }),
      plan_);
}

void StepModel::price(const StepBatch& batch, const PhaseRule& rule,
                      const ExpertPlacement& placements, const RowSource& rows, StepCost& result,
                      std::vector<ExplainedOperation>* explain) {
  if (explain != nullptr) explain->clear();
  if (plan_.pp > 1) {
    const auto price = [&](const StepBatch& part, std::size_t number, StepCost& cost) {
      price_batch(part, rule, placements, rows, steps_ + number, cost, explain);
    };
    result = price_pipeline(batch, price);
    if (explain != nullptr) explain_pipeline(result, plan_.pp, *explain);
  } else if (plan_.afd()) {
    result =
        price_afd(batch, [&](const StepBatch& part, std::size_t number, Pass pass, StepCost& cost) {
          price_layers_of(part, rule, placements, rows, steps_ + number, cost);
          add_up(part, &placements, cost, explain, pass);
        });
  } else if (splits(batch)) {
    price_two_batches(
        batch,
        [&](const StepBatch& half, bool first, StepCost& cost) {
          price_layers_of(half, rule, placements, rows, steps_ + (first ? 0 : 1), cost);
          add_up(half, &placements, cost, explain, first ? Pass::first_part : Pass::later_part);
        },
        result);
  } else {
    price_batch(batch, rule, placements, rows, steps_, result, explain);
  }
  steps_ += static_cast<std::uint64_t>(std::max({2, plan_.pp, plan_.micro_batches}));
}

bool StepModel::splits(const StepBatch& batch) const {
  return overlap_.two_batch && worth_two_batches(batch, *overlap_.two_batch);
}

// `price` gives the cost of a half, whose tokens per expert it leaves in the scratch.
template <class PricePart>
void StepModel::price_two_batches(const StepBatch& batch, PricePart&& price, StepCost& result) {
  const std::vector<StepBatch> two = micro_batches(batch, 2);
  price(two[0], true, result);
  std::vector<std::int32_t>& tokens = scratch_->rows.tokens_of_expert();
  const std::vector<std::int32_t> of_first =
      result.samples.empty() ? tokens : std::vector<std::int32_t>();
  price(two[1], false, scratch_->second_half);
  for (std::size_t i = 0; i < of_first.size(); ++i) tokens[i] += of_first[i];
  join_interleaved(result, scratch_->second_half);
}

// The hidden states and the residual travel from a stage to the next, bf16, sliced by tp (vLLM
// v0.11, GPUModelRunner with pipeline parallelism); the sampled ids travel from the last to the
// first.
CollectiveCost StepModel::hop(const StepBatch& batch, int stage) const {
  const bool last = stage == plan_.pp - 1;
  double bytes = 0;
  for (const RankStep& rank : batch.ranks) {
    bytes = std::max(bytes, last ? 4.0 * rank.sampled : 2.0 * 2 * rank.tokens * model_.hidden);
  }
  const int gpus = plan_.stage_gpus();
  const int next = last ? 0 : (stage + 1) * gpus;
  return fabric_.send(stage * gpus, next, Bytes(bytes / (last ? 1 : plan_.tp)));
}

void StepModel::price_batch(const StepBatch& batch, const PhaseRule& rule,
                            const ExpertPlacement& placements, const RowSource& rows,
                            std::uint64_t step, StepCost& result,
                            std::vector<ExplainedOperation>* explain) {
  price_layers_of(batch, rule, placements, rows, step, result);
  add_up(batch, &placements, result, explain);
}

// The MoE layers of a batch; those that are not priced take the costs of others.
void StepModel::price_layers_of(const StepBatch& batch, const PhaseRule& rule,
                                const ExpertPlacement& placements, const RowSource& rows,
                                std::uint64_t step, StepCost& result) {
  result.layers.resize(at(model_.moe_layers()));
  price_layers(batch, rule, placements, rows, step, priced_, result.layers);
  for (int layer = 0; layer < model_.moe_layers(); ++layer) {
    const int priced = priced_.standing_for(layer);
    if (priced != layer) result.layers[at(layer)] = result.layers[at(priced)];
  }
  result.samples.clear();
}

void StepModel::price_layers(const StepBatch& batch, const PhaseRule& rule,
                             const ExpertPlacement& placements, const RowSource& rows,
                             std::uint64_t step, LayerRange range,
                             std::vector<LayerOutcome>& outcomes) {
  Scratch& s = *scratch_;
  const int layers = range.end - range.first;
  const bool follows_copies = rule.dispatch->needs_copies() || rule.dispatch->needs_selections();
  s.rows.start(batch, range.first, range.end,
               capacity_->limits() || rule.keep > 0 || rule.router->needs_token_rows() ||
                   shared_.draws() || (plan_.exchanges() && (follows_copies || counts_locality_)));
  const auto price = [&](int first, int last) {
    s.rows.read(rows, first, last);
    for (int layer = first; layer < last; ++layer) {
      price_moe_layer(layer, rule, placements[at(layer)], step, outcomes[at(layer)]);
    }
  };
  if (s.rows.tokens() * model_.experts_per_token * layers < ids_worth_threads) {
    price(range.first, range.end);
    return;
  }
  const auto threads = static_cast<int>(
      tbb::global_control::active_value(tbb::global_control::max_allowed_parallelism));
  const int parts = std::min(layers, threads);
  // TBB sees to it that the parts come after what was done until here, but out of ThreadSanitizer's
  // sight, which would report everything that they read.
  std::atomic<bool> begun = false;
  begun.store(true, std::memory_order_release);
  tbb::parallel_for(0, parts, [&](int part) {
    check(begun.load(std::memory_order_acquire), "a step's parts began before it did");
    price(range.first + layers * part / parts, range.first + layers * (part + 1) / parts);
  });
}

StepSample StepModel::sample(const StepBatch& batch, const PhaseRule& rule,
                             const ExpertPlacement& placements, const RowSource& rows,
                             LayerRange priced) {
  std::vector<LayerOutcome> layers(at(model_.moe_layers()));
  price_layers(batch, rule, placements, rows, steps_, priced, layers);
  steps_ += 2;
  StepSample result{.moe_layers = model_.moe_layers(), .priced = priced};
  result.layers_priced.assign(std::make_move_iterator(layers.begin() + priced.first),
                              std::make_move_iterator(layers.begin() + priced.end));
  const auto experts = at(model_.experts);
  const auto tokens = tokens_of_expert().subspan(at(priced.first) * experts,
                                                 at(priced.end - priced.first) * experts);
  result.tokens_of_priced.assign(tokens.begin(), tokens.end());
  sum_up(result);
  return result;
}

// What the layers of a sample take if each waits for the one before.
void StepModel::sum_up(StepSample& sample) const {
  const auto layers = static_cast<int>(model_.layers.size());
  sample.stages.resize(at(plan_.pp));
  std::vector<CriticalPath> paths;
  paths.reserve(sample.stages.size());
  for (StepCost& stage : sample.stages) {
    stage.idle.assign(at(plan_.stage_gpus()), 0.0);
    paths.emplace_back(plan_, fabric_.cluster().gpu, stage, Explainer(nullptr));
  }
  int moe_layer = 0;
  for (int l = 0; l < layers; ++l) {
    if (!model_.layers[at(l)].moe) continue;
    const LayerOutcome& layer = sample.layer(moe_layer++);
    const auto number = at(plan_.stage_of(l, layers));
    StepCost& stage = sample.stages[number];
    CriticalPath& path = paths[number];
    path.every_rank("token_routing", Part::token_routing, {layer.routing, Resource::launch, {}});
    bring_copies(path, layer);
    path.collective("dispatch", Part::dispatch, layer.exchange.dispatch, stage.dispatch);
    path.experts(layer.experts);
    path.collective("combine", Part::combine, layer.exchange.combine, stage.combine);
    const TokenBalance balance = token_balance({&layer, 1});
    sample.balance.max_tokens += balance.max_tokens;
    sample.balance.mean_tokens += balance.mean_tokens;
  }
}

void StepModel::price(const StepBatch& batch, const Draw& draw, StepCost& result) {
  const auto price_pass = [&](const StepBatch& part, Pass pass, StepCost& cost) {
    cost.layers.clear();
    cost.samples.assign(1, &draw(part));
    add_up(part, nullptr, cost, nullptr, pass);
  };
  if (plan_.pp > 1) {
    result = price_pipeline(batch, [&](const StepBatch& part, std::size_t, StepCost& cost) {
      price_pass(part, Pass::first_part, cost);
    });
  } else if (plan_.afd()) {
    result = price_afd(batch, [&](const StepBatch& part, std::size_t, Pass pass, StepCost& cost) {
      price_pass(part, pass, cost);
    });
  } else if (splits(batch)) {
    price_two_batches(
        batch,
        [&](const StepBatch& half, bool first, StepCost& cost) {
          price_pass(half, first ? Pass::first_part : Pass::later_part, cost);
        },
        result);
  } else {
    price_pass(batch, Pass::step, result);
  }
}

// Every GPU of a tensor-parallel group has the logits of its share of the vocabulary, in bf16, and
// needs all of them to sample (vLLM, LogitsProcessor; SGLang, logits_processor.py).
CollectiveCost StepModel::logits_gather(const StepBatch& batch) const {
  double sampled = 0;
  for (const RankStep& rank : batch.ranks) sampled = std::max(sampled, double(rank.sampled));
  const std::vector<double> slices(at(plan_.tp), 2.0 * sampled * model_.vocabulary / plan_.tp);
  return fabric_.all_gather(slices);
}

namespace {

// Whether a step has no CUDA graph.
bool is_eager(const StepBatch& batch, std::int32_t graph_tokens) {
  return std::ranges::any_of(batch.ranks, [&](const RankStep& rank) {
    return rank.tokens > graph_tokens || !all_decode(rank);
  });
}

}  // namespace

// What the host and the gaps between kernels add, and what it takes at least to launch every kernel
// of a step that has no graph. The host begins a step once, however many micro-batches it has.
void StepModel::charge_host(const StepBatch& batch, int layers, bool begins, CriticalPath& path,
                            const StepCost& result) const {
  std::size_t sequences = 0;
  for (const RankStep& rank : batch.ranks) sequences = std::max(sequences, rank.sequences.size());
  const auto charge = [&](std::string_view name, Seconds time) {
    path.every_rank(name, Part::other, {time, Resource::launch, {}});
  };
  // With AFD each layer has its own.
  if (!plan_.afd()) charge("kernel_gaps", charges_.per_layer * layers);
  const Seconds launches = charges_.eager_layer * layers;
  if (launches > result.total && is_eager(batch, charges_.graph_tokens)) {
    charge("eager_launches", launches - result.total);
  }
  charge("host_overhead", (begins ? charges_.host_overhead : Seconds{}) +
                              charges_.per_sequence * static_cast<double>(sequences));
}

// Begins a sum with nothing.
void StepModel::start_sum(StepCost& result) const {
  result.total = {};
  result.micro_batches = 1;
  result.chain.rounds.clear();
  result.afd.reset();
  result.parts = {};
  result.by_evidence = {};
  result.dispatch = result.combine = result.all_reduce = {};
  result.expert_memory = {};
  result.idle.assign(at(plan_.gpus()), 0.0);
  result.flops = result.hbm_bytes = 0;
  result.energy = {};
}

// A MoE layer whose experts are on attention's GPUs. `wait` is called when tokens have arrived.
template <class Wait>
void StepModel::pass_experts(const LayerOutcome& outcome, const RankCosts& shared_experts,
                             CriticalPath& path, StepCost& result, Wait&& wait) const {
  const Exchange& exchange = outcome.exchange;
  if (overlap_.shared_expert) {
    path.start_transfer("dispatch", Part::dispatch, exchange.dispatch, result.dispatch, 1,
                        exchange.dispatch_holds);
    path.add(shared_experts);
    path.barrier();
  } else {
    path.collective("dispatch", Part::dispatch, exchange.dispatch, result.dispatch, 1,
                    exchange.dispatch_holds);
  }
  wait();
  path.experts(outcome.experts);
  if (overlap_.combine_attention) {
    path.start_transfer("combine", Part::combine, exchange.combine, result.combine, 1,
                        exchange.combine_holds);
  } else {
    path.collective("combine", Part::combine, exchange.combine, result.combine, 1,
                    exchange.combine_holds);
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
  if (overlap_.shared_expert) {
    path.add(shared_experts);
    path.barrier();
  }
  round.beside = lap();
  path.collective("dispatch", Part::dispatch, outcome.exchange.dispatch, result.dispatch);
  round.dispatch = lap();
  path.experts(outcome.experts);
  round.ffn = lap();
  path.collective("combine", Part::combine, outcome.exchange.combine, result.combine);
  round.combine = lap();
  result.chain.rounds.push_back(round);
}

// The step's time from what its MoE layers took and what every rank computes by itself.
void StepModel::add_up(const StepBatch& batch, const ExpertPlacement* placements, StepCost& result,
                       std::vector<ExplainedOperation>* explain, Pass pass) {
  RankPrices& ranks = scratch_->ranks;
  ranks.price(batch);
  std::int32_t most_tokens = 0;
  std::int64_t all_tokens = 0;
  for (const RankStep& rank : batch.ranks) {
    most_tokens = std::max(most_tokens, rank.tokens);
    all_tokens += rank.tokens;
  }

  // A sample's MoE layers are added up already, if nothing runs beside them.
  const StepSample* const sample = result.samples.empty() ? nullptr : result.samples.front();
  const bool summed = sample != nullptr && (pass == Pass::step || plan_.pp > 1) &&
                      !overlap_.shared_expert && !overlap_.combine_attention && !plan_.afd();
  start_sum(result);
  CriticalPath path(plan_, fabric_.cluster().gpu, result, Explainer(explain));
  // The ranks' tensor-parallel groups reduce side by side, each by itself, so the largest sets the
  // time.
  const double activations = double{2} * most_tokens * model_.hidden;
  const CollectiveCost all_reduce = fabric_.all_reduce(plan_.tp, Bytes(activations));
  const std::vector<double> slices(at(plan_.tp), activations / plan_.tp);
  const CollectiveCost all_gather = fabric_.all_gather(slices);
  // Norms of queries and of keys, in fp32.
  const bool sums_squares = ranks.any_joint_norm() && plan_.tp > 1 && fabric_.cluster().gpu.tables;
  const CollectiveCost squares =
      sums_squares ? fabric_.all_reduce(plan_.tp, Bytes(8.0 * most_tokens)) : CollectiveCost{};
  // What all groups move together, in multiples of what the largest does.
  const double groups = static_cast<double>(all_tokens) / most_tokens;
  // After a dispatch every GPU holds its share of the rank's tokens again, and partial sums of what
  // is sliced by tp.
  const auto rejoin = [&] {
    if (plan_.tp == 1 || !plan_.exchanges()) return;
    const bool sliced = model_.shared_width > 0 || model_.dense_residual;
    path.collective(sliced ? "tp_all_reduce" : "tp_all_gather", Part::all_reduce,
                    sliced ? all_reduce : all_gather, result.all_reduce, groups);
  };
  // With DCP queries reach every part of the cache before attention, and its partial outputs find
  // together behind it. Layers with the same mixer exchange alike.
  const RankPrices::CacheReads &most = ranks.most_reads(), &all = ranks.all_reads();
  const double groups_of_rank = static_cast<double>(plan_.tp) / plan_.dcp;
  const Mixer* striped = nullptr;
  StripeExchange stripes;
  const auto exchange_stripes = [&](const Mixer& mixer) {
    if (&mixer == striped) return;
    striped = &mixer;
    stripes = stripe_exchange(
        fabric_, plan_, mixer.cache_heads(plan_.tp),
        {.queries = most.queries,
         .context = Bytes(most.prompt_context * mixer.kept(plan_, precision_).bytes)});
  };
  const auto exchange = [&](std::string_view name, const CollectiveCost& cost,
                            double RankPrices::CacheReads::*of) {
    if (most.*of == 0) return;
    path.collective(name, Part::all_reduce, cost, result.all_reduce,
                    groups_of_rank * (all.*of) / (most.*of));
  };
  int moe_layer = 0;
  const int layers = ranks.layers();
  Seconds passed{};
  for (int layer = 0; layer < layers; ++layer) {
    const RankPrices::LayerCosts& costs = ranks.layer(layer);
    const int stage = plan_.stage_of(layer, layers);
    const bool begins_stage = layer == 0 || stage != plan_.stage_of(layer - 1, layers);
    if (begins_stage && layer > 0) path.end_stage();
    if (begins_stage && summed) path.add_sum(sample->stages[at(stage)]);
    if (plan_.afd())
      path.every_rank("kernel_gaps", Part::other, {charges_.per_layer, Resource::launch, {}});
    path.add(costs.before_attention);
    if (sums_squares && ranks.mixer(layer).joint_norm())
      path.collective("qk_norm_all_reduce", Part::all_reduce, squares, result.all_reduce, groups);
    if (!costs.absorption.empty()) path.add(costs.absorption);
    if (plan_.dcp > 1) {
      exchange_stripes(ranks.mixer(layer));
      exchange("dcp_gather_queries", stripes.queries, &RankPrices::CacheReads::queries);
      exchange("dcp_gather_context", stripes.context, &RankPrices::CacheReads::prompt_context);
    }
    path.add(costs.attention);
    if (plan_.dcp > 1) {
      exchange("dcp_gather_lse", stripes.log_sum_exps, &RankPrices::CacheReads::queries);
      exchange("dcp_merge_outputs", stripes.outputs, &RankPrices::CacheReads::queries);
    }
    path.add(costs.before_dispatch);
    if (plan_.tp > 1) {
      path.collective("tp_all_reduce", Part::all_reduce, all_reduce, result.all_reduce, groups);
    }
    if (ranks.is_moe(layer)) {
      path.barrier();
      if (summed) {
        path.add(costs.after_combine);
        path.add(costs.shared_experts);
        rejoin();
        continue;
      }
      const LayerOutcome& outcome =
          sample ? sample->layer(moe_layer) : result.layers[at(moe_layer)];
      path.every_rank("token_routing", Part::token_routing,
                      {outcome.routing, Resource::launch, {}});
      bring_copies(path, outcome);
      if (plan_.afd()) {
        pass_other_side(outcome, costs.shared_experts, path, result, passed);
      } else {
        pass_experts(outcome, costs.shared_experts, path, result, [&] {
          if (memories_.empty()) return;
          const Time arrived = batch.start + to_duration(result.total);
          wait_for_experts(moe_layer, arrived, *placements, result);
        });
      }
      ++moe_layer;
      path.add(costs.after_combine);
      if (!overlap_.shared_expert) path.add(costs.shared_experts);
      rejoin();
    } else {
      path.add(costs.after_combine);
      if (plan_.tp > 1) {
        path.collective("tp_all_reduce", Part::all_reduce, all_reduce, result.all_reduce, groups);
      }
    }
  }
  path.add(ranks.head());
  if (plan_.tp > 1) {
    path.collective("logits_all_gather", Part::other, logits_gather(batch), result.all_reduce,
                    groups);
  }
  path.end_stage();
  charge_host(batch, layers, pass != Pass::later_part, path, result);
  result.chain.tail = result.total - passed;

  const RankPrices::Sums sums = ranks.sums();
  result.flops += sums.flops;
  result.hbm_bytes += sums.hbm_bytes;
  result.energy.add(sums.energy);
}

}  // namespace moesim
