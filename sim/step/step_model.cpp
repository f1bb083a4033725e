// SPDX-License-Identifier: Apache-2.0
#include "sim/step/step_model.hpp"

#include <algorithm>
#include <atomic>
#include <numeric>
#include <utility>

#include <tbb/global_control.h>
#include <tbb/parallel_for.h>

#include "hardware/at.hpp"
#include "sim/dispatch/token_traffic.hpp"
#include "sim/step/micro_batches.hpp"
#include "sim/step/step_scratch.hpp"

namespace moesim {

namespace {

// Below this many routed ids a step is priced on one thread: handing out work would cost more than
// it saves.
constexpr std::int64_t ids_worth_threads = 1 << 16;

GroupedGemmShape shape_of_experts(const StepModelSpec& spec, ExpertKernel kernel) {
  return {.hidden = static_cast<double>(spec.model.expert_input()),
          .width = static_cast<double>(spec.model.expert_width) / spec.plan.moe_tp(),
          .weights = spec.precision.experts,
          .activations = spec.precision.activations,
          .kernel = kernel,
          .experts = static_cast<double>(spec.model.experts),
          .top_k = static_cast<double>(spec.model.experts_per_token),
          .held = static_cast<double>(spec.model.experts - spec.cut_experts) / spec.plan.ep};
}

// A call of its own, beside that of the whole experts.
std::optional<GroupedGemm> sliced_experts(const StepModelSpec& spec) {
  if (spec.cut_experts == 0) return std::nullopt;
  GroupedGemmShape shape = shape_of_experts(spec, ExpertKernel::grouped_gemm);
  shape.width /= spec.plan.ep;
  shape.held = spec.cut_experts;
  return GroupedGemm(shape, spec.expert_gpu());
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

// Rows that pad a captured graph, for each token of the step. Engines route them too: dummy
// requests (TensorRT-LLM), stale tokens (vLLM).
double padding_per_token(const StepBatch& batch) {
  std::int64_t tokens = 0, padding = 0;
  for (const RankStep& rank : batch.ranks) tokens += rank.tokens, padding += rank.padding;
  return tokens > 0 ? double(padding) / double(tokens) : 0;
}

// Adds padding to the slots that have tokens, in proportion, and returns how many rows these are.
std::int64_t add_padding(std::span<std::int32_t> tokens_of_slot, double per_token) {
  std::int64_t added = 0;
  double due = 0;
  for (std::int32_t& tokens : tokens_of_slot) {
    due += tokens * per_token;
    const auto rows = static_cast<std::int32_t>(due);
    tokens += rows, added += rows, due -= rows;
  }
  return added;
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
      slices_(sliced_experts(spec_)),
      memories_(std::move(memories)),
      scratch_(std::make_unique<Scratch>(spec_)) {}

StepModel::~StepModel() = default;
StepModel::StepModel(StepModel&&) noexcept = default;

namespace {

// Constants were fitted on exchanges in which every GPU sends and receives.
void rest_on_no_measurement(CollectiveCost& exchange) {
  if (exchange.evidence == Evidence::calibrated) exchange.evidence = Evidence::extrapolated;
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

namespace {

// Time of a decision about so many active experts, which are those with tokens.
Seconds decision_time(const RoutingCharge& charge, int active, const LayerPlacement& placement,
                      std::span<const std::int32_t> tokens) {
  Seconds time = charge.fixed + charge.per_128_active * (active / 128.0);
  if (charge.per_128_candidates == Seconds{}) return time;
  std::size_t candidates = 0;
  for (std::size_t e = 0; e < tokens.size(); ++e)
    if (tokens[e] > 0) candidates += placement.slots_of(static_cast<int>(e)).size();
  return time + charge.per_128_candidates * (double(candidates) / 128.0);
}

}  // namespace

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
  const bool replicated =
      standing.whole_slots() > standing.experts() || rule.router->step_slots() > 0;
  outcome.routing =
      replicated ? decision_time(spec_.charges.routing(rule.router_name), active, standing, tokens)
                 : Seconds{};
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
void StepModel::price_experts(const LayerRouting& routing, double padding, Worker& worker,
                              LayerOutcome& outcome) const {
  const int ranks = spec_.plan.ep;
  auto kernel = at(outcome.exchange.experts);
  if (!experts_[kernel]) {
    check(outcome.exchange.experts != ExpertKernel::mega_moe,
          "a dispatch needs a kernel that was not measured");
    kernel = at(ExpertKernel::grouped_gemm);
  }
  const GroupedGemm& experts = *experts_[kernel];
  ExpertCosts& costs = worker.expert_costs[kernel];
  // Tables were measured with all tokens of the group at hand. A roofline knows of exchanges that
  // bring a GPU no others than its own experts'.
  const bool held =
      !spec_.plan.exchanges() || outcome.exchange.gathered || spec_.expert_gpu().tables;
  outcome.tokens_held =
      held ? std::llround(static_cast<double>(scratch_->rows.tokens()) * (1 + padding)) : 0;
  outcome.experts.resize(at(ranks));
  outcome.useful_rows = outcome.padded_rows = 0;
  const std::vector<std::int32_t>& tokens_of_slot = worker.routed.tokens_of_slot();
  for (int rank = 0; rank < ranks; ++rank) {
    const auto first = at(routing.placement.first_slot(rank));
    std::span<const std::int32_t> of_rank =
        std::span(tokens_of_slot).subspan(first, at(routing.placement.first_slice(rank)) - first);
    std::int64_t added = 0;
    if (spec_.shared_expert.is_slot() || padding > 0) {
      worker.tokens_of_slot.assign(of_rank.begin(), of_rank.end());
      if (spec_.shared_expert.is_slot())
        worker.tokens_of_slot.push_back(outcome.shared_tokens[at(rank)]);
      added = add_padding(worker.tokens_of_slot, padding);
      of_rank = worker.tokens_of_slot;
    }
    const GroupedRows rows = experts.rows(of_rank);
    outcome.experts[at(rank)] = costs.of(rows, outcome.tokens_held, [&](const GroupedRows& r) {
      return experts.cost(r, static_cast<double>(outcome.tokens_held));
    });
    outcome.useful_rows += rows.tokens - added;
    outcome.padded_rows += rows.padded;
  }
  check(routing.placement.cut() == spec_.cut_experts, "another number of experts is cut");
  outcome.slices = {};
  if (slices_) {
    const auto first = at(routing.placement.first_slice(0));
    const GroupedRows rows =
        slices_->rows(std::span(tokens_of_slot).subspan(first, at(spec_.cut_experts)));
    outcome.slices = slices_->cost(rows, static_cast<double>(outcome.tokens_held));
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
  price_experts(routing, padding_per_token(input.batch), worker, outcome);
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
  const auto& pipeline = step.parts[at(Part::pipeline)];
  Cost rest{Seconds(std::accumulate(pipeline.begin(), pipeline.end(), 0.0)), Resource::latency, {}};
  rest.evidence = Evidence::extrapolated;
  Explainer(&rows).add("other_stages", Part::pipeline, rest);
}

// Micro-batches of which some rank has tokens.
std::vector<StepBatch> parts_with_tokens(const StepBatch& batch, int count,
                                         Cut cut = Cut::anywhere) {
  std::vector<StepBatch> parts = micro_batches(batch, count, cut);
  std::erase_if(parts, [](const StepBatch& part) {
    return std::ranges::all_of(part.ranks, [](const RankStep& rank) { return rank.tokens == 0; });
  });
  return parts;
}

}  // namespace

StepCost StepModel::price_pipeline(const StepBatch& batch, const PricePass& price) const {
  // Engines cut a prompt into chunks alone: pieces stand for chunks that follow each other.
  const Cut cut = batch.fills_pipeline ? Cut::between_sequences : Cut::anywhere;
  const std::vector<StepBatch> parts = parts_with_tokens(batch, spec_.plan.pp, cut);
  std::vector<StepCost> costs(parts.size());
  std::vector<std::vector<CollectiveCost>> hops(parts.size());
  for (std::size_t i = 0; i < parts.size(); ++i) {
    price(parts[i], {.number = static_cast<int>(i)}, costs[i]);
    for (int stage = 0; stage < spec_.plan.pp; ++stage) hops[i].push_back(hop(parts[i], stage));
  }
  return join_pipeline(costs, hops, spec_.plan, batch.fills_pipeline);
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

}  // namespace moesim
