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
#include "sim/step/critical_path.hpp"
#include "sim/step/expert_choices.hpp"
#include "sim/step/micro_batches.hpp"
#include "sim/step/rank_costs.hpp"
#include "sim/step/rank_exchanges.hpp"
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
    if (entries_.empty()) entries_.resize(remembered);  // most kernels run in no step
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
  std::vector<Entry> entries_;
};

}  // namespace

// Per-layer work of one thread.
struct StepModel::Worker {
  RoutedLayer routed;
  CopyCounter counter;
  LinkTraffic copies, selections;
  std::array<ExpertCosts, expert_kernels> expert_costs;  // by ExpertKernel
  std::vector<std::int32_t> shared_rank;                 // of each token
  std::vector<std::int32_t> tokens_of_slot;  // of one rank, with the shared expert behind them
};

// Memory that price() reuses from step to step.
struct StepModel::Scratch {
  explicit Scratch(const StepModelSpec& spec)
      : rows(spec.model, spec.plan),
        ranks(beside_slots(spec.model, spec.shared_expert), spec.plan, spec.precision,
              spec.cluster.gpu),
        backlog(at(spec.model.moe_layers())) {}

  StepRows rows;
  RankPrices ranks;
  std::vector<std::vector<DelayedSelection>> backlog;  // [MoE layers]
  tbb::enumerable_thread_specific<Worker> workers;
  StepCost second_half;
};

namespace {

GroupedGemmShape shape_of_experts(const StepModelSpec& spec, ExpertKernel kernel) {
  return {.hidden = static_cast<double>(spec.model.expert_input()),
          .width = static_cast<double>(spec.model.expert_width) / spec.plan.moe_tp(),
          .weights = spec.precision.experts,
          .activations = spec.precision.activations,
          .kernel = kernel,
          .experts = static_cast<double>(spec.model.experts),
          .top_k = static_cast<double>(spec.model.experts_per_token),
          .held = static_cast<double>(spec.model.experts) / spec.plan.ep};
}

// DeepGEMM's masked layout multiplies in fp8 with scales of blocks; engines run it behind DeepEP's
// low-latency kernels. Other formats are priced as whole layers are.
std::optional<GroupedGemm> masked_experts(const StepModelSpec& spec) {
  if (spec.precision.experts != Precision::fp8_block ||
      spec.precision.activations != Precision::fp8_block)
    return std::nullopt;
  return GroupedGemm(shape_of_experts(spec, ExpertKernel::masked), spec.expert_gpu());
}

// A roofline would know nothing of what travels in the kernel.
std::optional<GroupedGemm> mega_moe(const StepModelSpec& spec) {
  if (!spec.mega_moe) return std::nullopt;
  GroupedGemm gemm(shape_of_experts(spec, ExpertKernel::mega_moe), spec.expert_gpu());
  return gemm.measured() ? std::optional(std::move(gemm)) : std::nullopt;
}

}  // namespace

bool has_mega_moe(const StepModelSpec& spec) { return mega_moe(spec).has_value(); }

StepModel::Experts StepModel::experts_of(const StepModelSpec& spec) {
  return {GroupedGemm(shape_of_experts(spec, ExpertKernel::grouped_gemm), spec.expert_gpu()),
          masked_experts(spec), mega_moe(spec)};
}

StepModel::StepModel(StepModelSpec spec, std::vector<RankMemory> memories)
    : spec_(std::move(spec)),
      fabric_(spec_.cluster),
      between_sides_(spec_.ffn_cluster ? joined(*spec_.ffn_cluster, spec_.cluster) : spec_.cluster),
      experts_(experts_of(spec_)),
      memories_(std::move(memories)),
      scratch_(std::make_unique<Scratch>(spec_)) {}

StepModel::~StepModel() = default;
StepModel::StepModel(StepModel&&) noexcept = default;

namespace {

// Constants were fitted on exchanges in which every GPU sends and receives.
void rest_on_no_measurement(CollectiveCost& exchange) {
  if (exchange.evidence == Evidence::calibrated) exchange.evidence = Evidence::extrapolated;
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

// An all-to-all of weights. A copy comes from a GPU that holds the expert, of the same NVLink
// domain if there is one. Of several it is the one that has sent least, then the lowest. UltraEP
// relays an expert of six copies and more through GPUs that have one; here its home sends all.
CollectiveCost StepModel::bring(std::span<const StepCopy> copies,
                                const LayerPlacement& standing) const {
  const int gpus_of_rank = spec_.plan.moe_tp(), first = spec_.plan.first_expert_gpu();
  const double bytes = expert_bytes(spec_.model, spec_.plan, spec_.precision).value();
  TrafficMatrix sent(first + spec_.plan.expert_gpus());
  std::vector<int> copies_from(at(spec_.plan.ep));
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

// Every rank that sends learns how many selections and tokens all ranks have, 8 bytes each
// (sglang#19290).
Seconds StepModel::rank_load_gather() const {
  const int senders = spec_.plan.afd() ? spec_.plan.attention_gpus() : spec_.plan.ep;
  return fabric_.all_reduce(senders, Bytes(16.0 * spec_.plan.ep)).time;
}

// The tokens of one MoE layer after the gate. It refers to the worker's memory.
struct StepModel::LayerRouting {
  RoutingProblem problem;
  const LayerPlacement& placement;           // with the copies that the step brings
  std::span<const std::int32_t> source_gpu;  // [tokens]
  std::span<const std::int32_t> slots;       // of every selection, where they are needed
  bool by_selection;                         // whether exchanges go by them
  bool replicated;
};

StepModel::LayerRouting StepModel::route(int moe_layer, const StepInput& input, std::uint64_t step,
                                         Worker& worker, LayerOutcome& outcome) {
  Scratch& s = *scratch_;
  const PhaseRule& rule = input.rule;
  const LayerPlacement& standing = input.placement[at(moe_layer)];
  const CapacityRule& capacity = *spec_.capacity;
  const std::span<std::int32_t> tokens = s.rows.tokens_of_expert(moe_layer);
  RoutedLayer& routed = worker.routed;

  RoutingProblem asked{standing, tokens, moe_layer, step, {}};
  if (s.rows.kept() == KeptRows::of_each_token)
    asked.rows = {s.rows.ids(moe_layer), s.rows.source_rank()};
  outcome.capacity = {};
  const bool limited = capacity.limits() || rule.keep > 0;
  const RoutingProblem problem =
      rule.keep > 0
          ? routed.keep_active(rule.keep, asked, s.rows.source_gpu(), tokens, outcome.capacity)
      : limited ? routed.limit(capacity, asked, s.rows.source_gpu(), s.backlog[at(moe_layer)],
                               tokens, outcome.capacity)
                : asked;
  const std::span<const std::int32_t> source_gpu =
      limited ? routed.source_gpu() : std::span<const std::int32_t>(s.rows.source_gpu());
  routed.route(*rule.router, problem, outcome.load);
  std::int32_t active = 0;  // in a register
  for (const std::int32_t t : tokens) active += t > 0 ? 1 : 0;
  outcome.active_experts = active;

  outcome.step_copies = static_cast<std::int32_t>(routed.copies().size());
  outcome.bringing = {};
  if (outcome.step_copies > 0) outcome.bringing = bring(routed.copies(), standing);
  if (rule.router->hides_copies()) outcome.bringing.time = {};
  const bool replicated = standing.slots() > standing.experts() || rule.router->step_slots() > 0;
  outcome.routing = spec_.charges.routing(rule.router_name, outcome.active_experts, replicated);
  const bool by_selection = rule.router->needs_token_rows() || limited ||
                            !routed.copies().empty() || shared_experts_travel();
  std::span<const std::int32_t> slots;
  if ((by_selection || spec_.counts_locality) && !problem.rows.ids.empty())
    slots = routed.slot_of_selection(*rule.router, problem);
  outcome.locality = {};
  if (spec_.counts_locality && spec_.plan.exchanges()) {
    outcome.locality =
        locality(routed.placement(), slots, problem.rows.source_rank,
                 std::max(1, fabric_.cluster().scale_up_domain / spec_.plan.moe_tp()));
  }
  return {problem, routed.placement(), source_gpu, slots, by_selection, replicated};
}

// Counts whose tokens each rank computes where the shared expert is a slot.
void StepModel::place_shared(const LayerRouting& routing, Worker& worker,
                             LayerOutcome& outcome) const {
  const SharedExpert& shared = spec_.shared_expert;
  outcome.shared_tokens.assign(shared.is_slot() ? at(spec_.plan.ep) : 0, 0);
  if (!shared.is_slot()) return;
  const std::span<const std::int32_t> source = scratch_->rows.source_rank();
  if (shared.draws()) {
    waterfill(shared, routing.problem, routing.placement, routing.slots, outcome.load.tokens,
              worker.shared_rank, spec_.plan.afd() ? OwnRank::has_none : OwnRank::has_experts);
    outcome.routing += rank_load_gather();
  } else if (spec_.plan.afd()) {
    first_choices(routing.placement, routing.slots, source.size(), worker.shared_rank);
  } else {
    worker.shared_rank.assign(source.begin(), source.end());
  }
  for (const std::int32_t rank : worker.shared_rank) ++outcome.shared_tokens[at(rank)];
}

// True if the shared expert of a token can be on another GPU than its own.
bool StepModel::shared_experts_travel() const {
  return spec_.shared_expert.draws() || (spec_.shared_expert.is_slot() && spec_.plan.afd());
}

// How a layer's tokens travel to their experts and back.
Exchange StepModel::exchange(int moe_layer, const PhaseRule& rule, const LayerRouting& routing,
                             Worker& worker, std::int32_t active) const {
  const ParallelPlan& plan = spec_.plan;
  const StepRows& rows = scratch_->rows;
  Exchange exchange;
  if (!plan.exchanges()) {
    // All GPUs of the one attention rank hold every token: nothing to dispatch, partial sums are
    // reduced.
    if (plan.stage_gpus() > 1) {
      exchange.combine = fabric_.all_reduce(
          plan.stage_gpus(), Bytes(static_cast<double>(rows.tokens()) * spec_.model.hidden * 2));
    }
    return exchange;
  }
  const bool global = rule.router->needs_global_counts();
  DispatchProblem problem{
      between_sides_, rows.tokens_of_gpu(), static_cast<double>(spec_.model.expert_input()),
      static_cast<double>(spec_.model.experts_per_token), static_cast<double>(spec_.model.experts)};
  problem.needs_global_counts = global;
  problem.between_sides = plan.afd();
  if (global && routing.replicated) problem.top_k_of_all_tokens = spec_.charges.top_k_of_all_tokens;
  const int domain = fabric_.cluster().scale_up_domain;
  const auto count = [&](CopyRule copies, LinkTraffic& traffic) {
    const CopyPaths paths{copies, domain, plan.moe_tp(), plan.first_expert_gpu()};
    if (routing.by_selection) {
      worker.counter.count(routing.placement, routing.slots, routing.source_gpu, paths, traffic);
    } else {
      worker.counter.count(
          routing.placement,
          {worker.routed.tokens_of_slot(), active, rows.ids(moe_layer), rows.rows()}, rows.runs(),
          paths, traffic);
    }
    return &traffic;
  };
  if (rule.dispatch->needs_copies()) {
    problem.copies = count(CopyRule::per_gpu, worker.copies);
  }
  if (rule.dispatch->needs_selections()) {
    problem.selections = count(CopyRule::per_selection, worker.selections);
    if (shared_experts_travel()) {
      for (std::size_t token = 0; token < routing.source_gpu.size(); ++token)
        worker.selections.add(routing.source_gpu[token],
                              plan.first_expert_gpu() + worker.shared_rank[token], 1);
    }
  }
  exchange = rule.dispatch->exchange(problem);
  if (plan.afd()) {
    rest_on_no_measurement(exchange.dispatch);
    rest_on_no_measurement(exchange.combine);
  }
  return exchange;
}

// Prices every EP rank's grouped GEMMs.
void StepModel::price_experts(const LayerRouting& routing, Worker& worker,
                              LayerOutcome& outcome) const {
  const int ranks = spec_.plan.ep;
  auto kernel = static_cast<std::size_t>(outcome.exchange.experts);
  if (!experts_[kernel]) {
    check(outcome.exchange.experts != ExpertKernel::mega_moe,
          "a dispatch needs a kernel that was not measured");
    kernel = static_cast<std::size_t>(ExpertKernel::grouped_gemm);
  }
  const GroupedGemm& experts = *experts_[kernel];
  ExpertCosts& costs = worker.expert_costs[kernel];
  // Tables were measured with all tokens of the group at hand. A roofline knows of exchanges that
  // bring a GPU no others than its own experts'.
  const bool held =
      !spec_.plan.exchanges() || outcome.exchange.gathered || spec_.expert_gpu().tables;
  outcome.tokens_held = held ? scratch_->rows.tokens() : 0;
  outcome.experts.resize(at(ranks));
  outcome.useful_rows = outcome.padded_rows = 0;
  const std::vector<std::int32_t>& tokens_of_slot = worker.routed.tokens_of_slot();
  for (int rank = 0; rank < ranks; ++rank) {
    const auto first = at(routing.placement.first_slot(rank));
    std::span<const std::int32_t> of_rank =
        std::span(tokens_of_slot)
            .subspan(first, at(routing.placement.first_slot(rank + 1)) - first);
    if (spec_.shared_expert.is_slot()) {
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
  if (!memories_.empty()) outcome.tokens_of_slot = tokens_of_slot;
}

void StepModel::price_layer(int moe_layer, const StepInput& input, std::uint64_t step,
                            LayerOutcome& outcome) {
  Worker& worker = scratch_->workers.local();
  const LayerRouting routing = route(moe_layer, input, step, worker, outcome);
  place_shared(routing, worker, outcome);
  outcome.exchange = exchange(moe_layer, input.rule, routing, worker, outcome.active_experts);
  outcome.routing += outcome.exchange.top_k;
  price_experts(routing, worker, outcome);
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
    const GroupedGemm& kernel = *experts_.front();
    return kernel.cost(kernel.rows(tokens), held).time;
  };
  const Seconds in_hbm = longest();
  for (int rank = 0; rank < spec_.plan.ep; ++rank) {
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
  return rank.decode_context || std::ranges::all_of(rank.sequences, [](const SequenceWork& work) {
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

StepCost StepModel::price_pipeline(const StepBatch& batch, const PricePass& price) const {
  const std::vector<StepBatch> parts = parts_with_tokens(batch, spec_.plan.pp);
  std::vector<StepCost> costs(parts.size());
  std::vector<std::vector<CollectiveCost>> hops(parts.size());
  for (std::size_t i = 0; i < parts.size(); ++i) {
    price(parts[i], {.number = static_cast<int>(i)}, costs[i]);
    for (int stage = 0; stage < spec_.plan.pp; ++stage) hops[i].push_back(hop(parts[i], stage));
  }
  return join_pipeline(costs, hops, spec_.plan);
}

// The host begins a step once, and no micro-batch hides that: it is charged with the last one.
StepCost StepModel::price_afd(const StepBatch& batch, const PricePass& price) const {
  const std::vector<StepBatch> parts = parts_with_tokens(batch, spec_.plan.micro_batches);
  std::vector<StepCost> costs(parts.size());
  for (std::size_t i = 0; i < parts.size(); ++i) {
    price(parts[i],
          {.number = static_cast<int>(i), .whole = false, .begins = i + 1 == parts.size()},
          costs[i]);
  }
  return join_afd(costs, spec_.plan);
}

bool StepModel::splits(const StepBatch& batch) const {
  return spec_.overlap.two_batch && worth_two_batches(batch, *spec_.overlap.two_batch);
}

void StepModel::price_passes(const StepBatch& batch, const PricePass& price, StepCost& result) {
  if (spec_.plan.pp > 1) {
    result = price_pipeline(batch, price);
  } else if (spec_.plan.afd()) {
    result = price_afd(batch, price);
  } else if (splits(batch)) {
    const std::vector<StepBatch> two = micro_batches(batch, 2);
    price(two[0], {.number = 0, .whole = false}, result);
    price(two[1], {.number = 1, .whole = false, .begins = false}, scratch_->second_half);
    join_interleaved(result, scratch_->second_half);
  } else {
    price(batch, {}, result);
  }
}

void StepModel::price(const StepInput& input, StepCost& result,
                      std::vector<ExplainedOperation>* explain) {
  if (explain != nullptr) explain->clear();
  WaitForExperts wait;
  const auto price_pass = [&](const StepBatch& part, Pass pass, StepCost& cost) {
    price_layers(input.of(part), steps_ + static_cast<std::uint64_t>(pass.number), cost);
    for (int layer = 0; input.layers && layer < spec_.model.moe_layers(); ++layer) {
      const int priced = input.layers->standing_for(layer);
      if (priced != layer) cost.layers[at(layer)] = cost.layers[at(priced)];
    }
    if (!memories_.empty()) {
      wait = [&](int moe_layer, Time now) {
        wait_for_experts(moe_layer, now, input.placement, cost);
      };
    }
    add_up(part, pass, cost, explain, wait);
  };
  price_passes(input.batch, price_pass, result);
  if (explain != nullptr && spec_.plan.pp > 1) explain_pipeline(result, spec_.plan.pp, *explain);
  steps_ += static_cast<std::uint64_t>(std::max({2, spec_.plan.pp, spec_.plan.micro_batches}));
}

void StepModel::price(const StepBatch& batch, const Draw& draw, StepCost& result) {
  const auto price_pass = [&](const StepBatch& part, Pass pass, StepCost& cost) {
    cost.layers.clear();
    cost.tokens_of_expert.clear();
    cost.samples.assign(1, &draw(part));
    add_up(part, pass, cost, nullptr);
  };
  price_passes(batch, price_pass, result);
}

// The hidden states and the residual travel from a stage to the next, bf16, sliced by tp (vLLM
// v0.11, GPUModelRunner with pipeline parallelism). The sampled ids travel from the last to the
// first.
CollectiveCost StepModel::hop(const StepBatch& batch, int stage) const {
  const bool last = stage == spec_.plan.pp - 1;
  double bytes = 0;
  for (const RankStep& rank : batch.ranks) {
    bytes = std::max(bytes, last ? 4.0 * rank.sampled : 2.0 * 2 * rank.tokens * spec_.model.hidden);
  }
  const int gpus = spec_.plan.stage_gpus();
  const int next = last ? 0 : (stage + 1) * gpus;
  return fabric_.send(stage * gpus, next, Bytes(bytes / (last ? 1 : spec_.plan.tp)));
}

// Pricing may need more of a step's rows than how many tokens chose each expert.
KeptRows StepModel::kept_rows(const PhaseRule& rule) const {
  const bool exchanges = spec_.plan.exchanges();
  if (spec_.capacity->limits() || rule.keep > 0 || rule.router->needs_token_rows() ||
      rule.router->step_slots() > 0 || spec_.shared_expert.is_slot() || shared_experts_travel() ||
      (exchanges && spec_.counts_locality))
    return KeptRows::of_each_token;
  const bool follows_copies = rule.dispatch->needs_copies() || rule.dispatch->needs_selections();
  return exchanges && follows_copies ? KeptRows::different : KeptRows::none;
}

// The MoE layers of a batch that are priced by themselves.
void StepModel::price_layers(const StepInput& input, std::uint64_t step, StepCost& result) {
  const PhaseRule& rule = input.rule;
  StepRows& rows = scratch_->rows;
  const int all = spec_.model.moe_layers();
  const LayerRange range = input.layers.value_or(LayerRange{0, all});
  const int layers = range.end - range.first;
  result.samples.clear();
  result.layers.resize(at(all));
  rows.start(input.batch, range.first, range.end, kept_rows(rule));
  const auto price = [&](int first, int last) {
    rows.read(input.rows, first, last);
    for (int layer = first; layer < last; ++layer)
      price_layer(layer, input, step, result.layers[at(layer)]);
  };
  if (rows.tokens() * spec_.model.experts_per_token * layers < ids_worth_threads) {
    price(range.first, range.end);
  } else {
    const auto threads = static_cast<int>(
        tbb::global_control::active_value(tbb::global_control::max_allowed_parallelism));
    const int parts = std::min(layers, threads);
    // TBB orders the parts after all that was done until here, but out of ThreadSanitizer's sight,
    // which would report everything that they read.
    std::atomic<bool> begun = false;
    begun.store(true, std::memory_order_release);
    tbb::parallel_for(0, parts, [&](int part) {
      check(begun.load(std::memory_order_acquire), "a step's parts began before it did");
      price(range.first + layers * part / parts, range.first + layers * (part + 1) / parts);
    });
  }
  rows.hand_over(result.tokens_of_expert);
}

StepSample StepModel::sample(const StepInput& input) {
  const int all = spec_.model.moe_layers();
  const LayerRange priced = input.layers.value_or(LayerRange{0, all});
  StepCost cost;
  price_layers(input, steps_, cost);
  steps_ += 2;
  StepSample result{.moe_layers = all, .priced = priced};
  const auto layers =
      std::span(cost.layers).subspan(at(priced.first), at(priced.end - priced.first));
  result.layers_priced.assign(std::make_move_iterator(layers.begin()),
                              std::make_move_iterator(layers.end()));
  const auto experts = at(spec_.model.experts);
  const auto tokens =
      std::span(cost.tokens_of_expert).subspan(at(priced.first) * experts, layers.size() * experts);
  result.tokens_of_priced.assign(tokens.begin(), tokens.end());
  sum_up(result);
  // All that reads what each rank takes, and a run has thousands of samples.
  if (layers_add_up() && !spec_.overlap.two_batch) {
    for (LayerOutcome& layer : result.layers_priced) layer.experts = {};
  }
  return result;
}

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
    path.experts(layer.experts);
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

// Begins a sum with nothing.
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
  path.experts(outcome.experts);
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
