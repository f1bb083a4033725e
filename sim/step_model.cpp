// SPDX-License-Identifier: Apache-2.0
#include "sim/step_model.hpp"

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <unordered_map>

#include <tbb/enumerable_thread_specific.h>
#include <tbb/global_control.h>
#include <tbb/parallel_for.h>

#include "sim/copy_counter.hpp"
#include "sim/critical_path.hpp"
#include "sim/micro_batches.hpp"

namespace moesim {

namespace {

std::size_t at(int i) { return static_cast<std::size_t>(i); }

// Below this many routed ids a step is priced on one thread: handing out work would cost more than
// it saves.
constexpr std::int64_t ids_worth_threads = 1 << 16;

// The costs of grouped GEMMs by their rows: in decode the same few come again from layer to layer
// and from step to step. A place may be taken by other rows.
class ExpertCosts {
 public:
  template <class Price>
  const Cost& of(const GroupedRows& rows, Price&& price) {
    Entry& entry =
        entries_[static_cast<std::size_t>((rows.tokens * 31 + rows.padded) * 31 + rows.slots) %
                 entries_.size()];
    if (entry.rows != rows) entry = {rows, price(rows)};
    return entry.cost;
  }

 private:
  struct Entry {
    GroupedRows rows{};
    Cost cost{};
  };
  std::vector<Entry> entries_ = std::vector<Entry>(1 << 11);
};

// What a rank with so many tokens does in layers of one kind, whatever the sequences that they are
// of.
struct TokenCosts {
  RankCost before_attention, before_dispatch, after_combine, shared;
};
// The same sizes come again from step to step.
using TokenCostsOf = std::unordered_map<std::int32_t, TokenCosts>;
using HeadCostsOf = std::map<std::pair<std::int32_t, std::int32_t>, RankCost>;
constexpr std::size_t sizes_remembered = 2048;

}  // namespace

// Memory that price() reuses from step to step.
struct StepModel::Scratch {
  // Per-layer work of one thread.
  struct Worker {
    RoutingScratch routing;
    std::vector<std::int32_t> tokens_of_slot;
    CopyCounter counter;
    TrafficMatrix copies, selections;
    LayerChoices choices;
    ExpertCosts expert_costs;
  };
  // What all ranks do in layers of one kind, one after the other.
  struct ClassCosts {
    TokenCostsOf of_tokens;
    std::vector<RankCost> attention;  // [ranks]
    RankCosts before_attention, at_attention, before_dispatch, after_combine, shared;
  };

  std::vector<std::int32_t> tokens_of_expert;  // [moe layers, experts]
  std::vector<std::uint16_t> small_counts;     // the same, while they are counted
  std::vector<std::uint16_t> ids;              // [moe layers][tokens, k], when somebody asks
  std::size_t layer_ids = 0;                   // of ids from layer to layer
  std::vector<std::int32_t> source_gpu;        // [tokens]
  std::vector<std::int32_t> source_rank;       // [tokens], EP ranks
  std::vector<double> tokens_of_gpu;           // [gpus]
  std::int64_t tokens = 0;
  bool has_ids = false;
  std::vector<ClassCosts> classes;
  HeadCostsOf head_of;  // tokens, and how many of them are sampled
  RankCosts head;
  std::vector<std::vector<DelayedSelection>> backlog;  // [moe layers]
  tbb::enumerable_thread_specific<Worker> workers;
  StepCost second_half;
};

StepModel::StepModel(const ClusterSpec& cluster, const MoeModel& model, const ParallelPlan& plan,
                     const PrecisionPlan& precision, Charges charges, Overlap overlap,
                     std::shared_ptr<const CapacityRule> capacity, std::vector<RankMemory> memories)
    : fabric_(cluster),
      experts_({static_cast<double>(model.hidden),
                static_cast<double>(model.expert_width) / plan.moe_tp(), precision.experts,
                precision.activations},
               cluster.gpu),
      model_(model),
      plan_(plan),
      precision_(precision),
      charges_(std::move(charges)),
      overlap_(overlap),
      capacity_(std::move(capacity)),
      memories_(std::move(memories)),
      scratch_(std::make_unique<Scratch>()) {
  for (const LayerSpec& layer : model_.layers) {
    const auto found =
        std::find_if(classes_.begin(), classes_.end(),
                     [&](const LayerClass& candidate) { return candidate.spec == layer; });
    class_of_layer_.push_back(static_cast<std::size_t>(found - classes_.begin()));
    if (found == classes_.end()) {
      classes_.push_back({layer, 1});
    } else {
      ++found->layers;
    }
  }
  scratch_->backlog.resize(at(model_.moe_layers()));
}

StepModel::~StepModel() = default;
StepModel::StepModel(StepModel&&) noexcept = default;

std::span<const std::int32_t> StepModel::tokens_of_expert() const {
  return scratch_->tokens_of_expert;
}

// Where the counts and ids of one token's row go.
template <class Count>
struct RowCounts {
  std::size_t layers, k, experts;
  Count* counts;          // [layers, experts]
  std::uint16_t* kept;    // of the token in the first layer; nobody asks: nullptr
  std::size_t layer_ids;  // from there to the next layer

  // K is k where it is known beforehand, else 0.
  template <std::size_t K, class Id>
  void add(const Id* row) const {
    const std::size_t n = K > 0 ? K : k;
    Count* of_layer = counts;
    std::uint16_t* to = kept;
    for (std::size_t layer = 0; layer < layers; ++layer, of_layer += experts, row += n) {
      for (std::size_t j = 0; j < n; ++j) ++of_layer[row[j]];
      if (to == nullptr) continue;
      for (std::size_t j = 0; j < n; ++j) to[j] = static_cast<std::uint16_t>(row[j]);
      to += layer_ids;
    }
  }
};

// A range's rows are as good as anywhere in memory: they are asked for before they are needed.
template <class Id>
void prefetch(const Id* row, std::size_t ids) {
  constexpr std::size_t line = 64 / sizeof(Id);
  for (std::size_t i = 0; i < ids; i += line) __builtin_prefetch(row + i);
}

// Of every token which GPU and which EP rank hold it.
void StepModel::find_sources(const StepBatch& batch) {
  Scratch& s = *scratch_;
  s.tokens = 0;
  for (const RowRange& range : batch.rows) s.tokens += range.count;
  s.source_gpu.resize(static_cast<std::size_t>(s.tokens));
  s.source_rank.resize(static_cast<std::size_t>(s.tokens));
  s.tokens_of_gpu.assign(at(plan_.stage_gpus()), 0.0);
  std::size_t token = 0;
  std::int32_t rank = -1, in_rank = 0;
  for (const RowRange& range : batch.rows) {
    if (range.rank != rank) in_rank = 0;
    rank = range.rank;
    const std::int32_t of_rank = batch.ranks[at(rank)].tokens;
    for (std::int32_t i = 0; i < range.count; ++i, ++in_rank) {
      // With tensor parallelism every GPU of the rank dispatches its share of the tokens.
      const int gpu =
          plan_.tp == 1
              ? rank
              : rank * plan_.tp + static_cast<int>(std::int64_t{in_rank} * plan_.tp / of_rank);
      s.source_gpu[token] = gpu;
      s.source_rank[token++] = gpu / plan_.moe_tp();
      s.tokens_of_gpu[at(gpu)] += 1;
    }
  }
}

// Makes room for what gather() reads.
void StepModel::start_gather(const StepBatch& batch, bool keep_ids) {
  Scratch& s = *scratch_;
  find_sources(batch);
  const auto layers = at(model_.moe_layers());
  const std::size_t selections = static_cast<std::size_t>(s.tokens) * at(model_.experts_per_token);
  const std::size_t cells = layers * at(model_.experts);
  s.tokens_of_expert.assign(cells, 0);
  s.small_counts.assign(selections <= std::numeric_limits<std::uint16_t>::max() ? cells : 0, 0);
  s.has_ids = keep_ids;
  // A stride of a power of two would have all layers share a few lines of the cache.
  s.layer_ids = selections + 32;
  if (keep_ids) s.ids.resize(layers * s.layer_ids);
}

// Reads these layers of the step's trace rows once: the histogram of each and, for routers and
// dispatches that need to know which token goes where, the ids themselves, layer by layer.
void StepModel::gather(const StepBatch& batch, const RowSource& rows, int first_layer,
                       int last_layer) {
  Scratch& s = *scratch_;
  const auto experts = at(model_.experts);
  const auto k = at(model_.experts_per_token);
  const auto first = at(first_layer), layers = at(last_layer) - first;
  const std::size_t row_ids = at(model_.moe_layers()) * k;

  const auto add_rows = [&](auto* counts) {
    RowCounts<std::remove_pointer_t<decltype(counts)>> to{
        layers,     k, experts, counts, s.has_ids ? s.ids.data() + first * s.layer_ids : nullptr,
        s.layer_ids};
    const auto place = [&](const RowRange& range) {
      return static_cast<std::size_t>(range.first_row) * row_ids + first * k;
    };
    for (std::size_t r = 0; r < batch.rows.size(); ++r) {
      constexpr std::size_t ahead = 2;
      if (r + ahead < batch.rows.size()) {
        const RowRange& next = batch.rows[r + ahead];
        rows.trace(next.phase).visit([&](auto ids) {
          prefetch(ids.data() + place(next), layers * k);
        });
      }
      const RowRange& range = batch.rows[r];
      rows.trace(range.phase).visit([&](auto ids) {
        const auto* row = ids.data() + place(range);
        for (std::int32_t i = 0; i < range.count; ++i, row += row_ids) {
          if (k == 8) {
            to.template add<8>(row);
          } else {
            to.template add<0>(row);
          }
          if (s.has_ids) to.kept += k;
        }
      });
    }
  };
  const std::span<std::int32_t> counts =
      std::span(s.tokens_of_expert).subspan(first * experts, layers * experts);
  if (s.small_counts.empty()) {
    add_rows(counts.data());
  } else {
    // Half as wide they stay in the nearest cache.
    const auto small = std::span(s.small_counts).subspan(first * experts, layers * experts);
    add_rows(small.data());
    std::ranges::copy(small, counts.begin());
  }
}

void StepModel::price_moe_layer(int moe_layer, const PhaseRule& rule,
                                const LayerPlacement& placement, std::uint64_t step,
                                LayerOutcome& outcome) {
  Scratch& s = *scratch_;
  Scratch::Worker& worker = s.workers.local();
  const auto experts = at(model_.experts);
  const std::span<std::int32_t> tokens =
      std::span(s.tokens_of_expert).subspan(at(moe_layer) * experts, experts);
  std::span<const std::int32_t> source_gpu(s.source_gpu);

  worker.tokens_of_slot.resize(at(placement.slots()));
  RoutingProblem problem{placement, tokens, moe_layer, step, {}};
  if (s.has_ids) {
    const std::size_t ids = static_cast<std::size_t>(s.tokens) * at(model_.experts_per_token);
    problem.rows = {std::span(s.ids).subspan(at(moe_layer) * s.layer_ids, ids), s.source_rank};
  }
  outcome.capacity = {};
  if (capacity_) {
    LayerChoices& choices = worker.choices;
    choices.ids.assign(problem.rows.ids.begin(), problem.rows.ids.end());
    choices.source_rank = s.source_rank;
    choices.source_gpu = s.source_gpu;
    limit_choices(*capacity_, choices, s.backlog[at(moe_layer)], tokens, outcome.capacity);
    problem.rows = {choices.ids, choices.source_rank, choices.dropped};
    source_gpu = choices.source_gpu;
  }
  rule.router->route(problem, worker.routing, worker.tokens_of_slot);
  layer_load(placement, worker.tokens_of_slot, outcome.load);
  outcome.active_experts = static_cast<std::int32_t>(
      std::count_if(tokens.begin(), tokens.end(), [](std::int32_t t) { return t > 0; }));

  const bool replicated = placement.slots() > placement.experts();
  outcome.routing = charges_.routing(rule.router_name, outcome.active_experts, replicated);

  outcome.exchange = {};
  if (plan_.dp > 1) {
    const bool global = rule.router->needs_global_counts();
    DispatchProblem exchange{fabric_, s.tokens_of_gpu, static_cast<double>(model_.hidden),
                             static_cast<double>(model_.experts_per_token)};
    exchange.needs_global_counts = global;
    if (global && replicated) exchange.top_k_of_all_tokens = charges_.top_k_of_all_tokens;
    const int domain = fabric_.cluster().scale_up_domain;
    const bool has_slots = rule.router->needs_token_rows();
    if (capacity_ && !has_slots) {
      slots_in_order(placement, worker.tokens_of_slot, problem.rows.ids, problem.rows.dropped,
                     worker.routing.slot_of_selection);
    }
    const auto count = [&](CopyRule copies, TrafficMatrix& matrix) {
      if (has_slots || capacity_) {
        worker.counter.count(placement, worker.routing.slot_of_selection, source_gpu,
                             plan_.moe_tp(), domain, copies, matrix);
      } else {
        worker.counter.count(placement, worker.tokens_of_slot, problem.rows.ids, source_gpu,
                             plan_.moe_tp(), domain, copies, matrix);
      }
      return &matrix;
    };
    if (rule.dispatch->needs_copies()) {
      exchange.copies = count(CopyRule::per_gpu, worker.copies);
    }
    if (rule.dispatch->needs_selections()) {
      exchange.selections = count(CopyRule::per_selection, worker.selections);
    }
    outcome.exchange = rule.dispatch->exchange(exchange);
    outcome.routing += outcome.exchange.top_k;
  } else if (plan_.stage_gpus() > 1) {
    // All GPUs of the one attention rank hold every token: nothing to dispatch, partial sums are
    // reduced.
    outcome.exchange.combine = fabric_.all_reduce(
        plan_.stage_gpus(), Bytes(static_cast<double>(s.tokens) * model_.hidden * 2));
  }

  outcome.experts.resize(at(plan_.ep));
  outcome.useful_rows = outcome.padded_rows = 0;
  for (int rank = 0; rank < plan_.ep; ++rank) {
    const auto first = at(placement.first_slot(rank));
    const auto slots = std::span<const std::int32_t>(worker.tokens_of_slot)
                           .subspan(first, at(placement.first_slot(rank + 1)) - first);
    const GroupedRows rows = experts_.rows(slots);
    outcome.experts[at(rank)] =
        worker.expert_costs.of(rows, [&](const GroupedRows& r) { return experts_.cost(r); });
    outcome.useful_rows += rows.tokens;
    outcome.padded_rows += rows.padded;
  }
  if (!memories_.empty()) outcome.tokens_of_slot = worker.tokens_of_slot;
}

// The experts' times with the weights that they wait for, layers in order of time: `now` is when
// this one's tokens have arrived.
void StepModel::wait_for_experts(int moe_layer, Seconds now, const ExpertPlacement& placements,
                                 StepCost& result) {
  std::vector<Cost>& experts = result.layers[at(moe_layer)].experts;
  const auto longest = [&] {
    Seconds time{};
    for (const Cost& cost : experts) time = std::max(time, cost.time);
    return time;
  };
  const auto gemm = [&](std::span<const std::int32_t> tokens) {
    return experts_.cost(experts_.rows(tokens)).time;
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
    cost.time = time;
  }
  result.expert_memory.stall_seconds += (longest() - in_hbm).count();
}

namespace {

bool worth_two_batches(const StepBatch& batch, const TwoBatch& limits) {
  return std::all_of(batch.ranks.begin(), batch.ranks.end(), [&](const RankStep& rank) {
    const bool decode = std::ranges::all_of(
        rank.sequences, [](const SequenceWork& w) { return w.new_tokens == 1 || w.verifies; });
    return rank.tokens > std::max(decode ? limits.decode_tokens : limits.prefill_tokens, 1);
  });
}

}  // namespace

void StepModel::price(const StepBatch& batch, const PhaseRule& rule,
                      const ExpertPlacement& placements, const RowSource& rows, StepCost& result,
                      std::vector<ExplainedOperation>* explain) {
  if (explain != nullptr) explain->clear();
  if (plan_.pp > 1) {
    price_pipeline(batch, rule, placements, rows, result, explain);
  } else if (overlap_.two_batch && worth_two_batches(batch, *overlap_.two_batch)) {
    price_two_batches(batch, rule, placements, rows, result, explain);
  } else {
    price_batch(batch, rule, placements, rows, steps_, result, explain);
  }
  steps_ += static_cast<std::uint64_t>(std::max(2, plan_.pp));
}

void StepModel::price_two_batches(const StepBatch& batch, const PhaseRule& rule,
                                  const ExpertPlacement& placements, const RowSource& rows,
                                  StepCost& result, std::vector<ExplainedOperation>* explain) {
  const std::vector<StepBatch> two = micro_batches(batch, 2);
  price_batch(two[0], rule, placements, rows, steps_, result, explain);
  const std::vector<std::int32_t> of_first = scratch_->tokens_of_expert;
  price_batch(two[1], rule, placements, rows, steps_ + 1, scratch_->second_half, explain);
  for (std::size_t i = 0; i < of_first.size(); ++i) scratch_->tokens_of_expert[i] += of_first[i];
  join_interleaved(result, scratch_->second_half);
}

void StepModel::price_pipeline(const StepBatch& batch, const PhaseRule& rule,
                               const ExpertPlacement& placements, const RowSource& rows,
                               StepCost& result, std::vector<ExplainedOperation>* explain) {
  std::vector<StepCost> costs;
  std::vector<std::vector<CollectiveCost>> hops;
  std::vector<std::int32_t> tokens(scratch_->tokens_of_expert.size());
  for (const StepBatch& part : micro_batches(batch, plan_.pp)) {
    if (part.rows.empty()) continue;
    price_batch(part, rule, placements, rows, steps_ + costs.size(), costs.emplace_back(), explain);
    tokens.resize(scratch_->tokens_of_expert.size());
    for (std::size_t i = 0; i < tokens.size(); ++i) tokens[i] += scratch_->tokens_of_expert[i];
    auto& of_part = hops.emplace_back();
    for (int stage = 0; stage < plan_.pp; ++stage) of_part.push_back(hop(part, stage));
  }
  scratch_->tokens_of_expert = std::move(tokens);
  result = join_pipeline(costs, hops, plan_);
  if (explain == nullptr) return;
  for (ExplainedOperation& row : *explain) {
    row.calls /= plan_.pp;
    for (double* sum : {&row.seconds, &row.flops, &row.hbm_bytes, &row.l2_bytes, &row.smem_bytes,
                        &row.link_bytes, &row.peak_flops}) {
      *sum /= plan_.pp;
    }
  }
  const auto& pipeline = result.parts[static_cast<std::size_t>(Part::pipeline)];
  Cost rest{Seconds(std::accumulate(pipeline.begin(), pipeline.end(), 0.0)), Resource::latency, {}};
  rest.evidence = Evidence::extrapolated;
  Explainer(explain).add("other_stages", Part::pipeline, rest);
}

// From a stage to the next travel the hidden states and the residual, bf16, sliced by tp (vLLM
// v0.11, GPUModelRunner with pipeline parallelism); from the last to the first the sampled ids.
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
  Scratch& s = *scratch_;
  const int moe_layers = model_.moe_layers();
  const bool follows_copies = rule.dispatch->needs_copies() || rule.dispatch->needs_selections();
  start_gather(batch,
               capacity_ || rule.router->needs_token_rows() || (plan_.dp > 1 && follows_copies));
  result.layers.resize(at(moe_layers));
  const auto price_layers = [&](int first, int last) {
    gather(batch, rows, first, last);
    for (int layer = first; layer < last; ++layer) {
      price_moe_layer(layer, rule, placements[at(layer)], step, result.layers[at(layer)]);
    }
  };
  if (s.tokens * model_.experts_per_token * moe_layers < ids_worth_threads) {
    price_layers(0, moe_layers);
  } else {
    const auto threads = static_cast<int>(
        tbb::global_control::active_value(tbb::global_control::max_allowed_parallelism));
    const int parts = std::min(moe_layers, threads);
    tbb::parallel_for(0, parts, [&](int part) {
      price_layers(moe_layers * part / parts, moe_layers * (part + 1) / parts);
    });
  }

  result.sample = nullptr;
  add_up(batch, &placements, result, explain);
}

void StepModel::price(const StepBatch& batch, const StepSample& sample, StepCost& result) {
  result.sample = &sample;
  add_up(batch, nullptr, result, nullptr);
}

// What every rank computes by itself, by class of layer.
void StepModel::price_ranks(const StepBatch& batch) {
  Scratch& s = *scratch_;
  const GpuSpec& gpu = fabric_.cluster().gpu;
  const std::size_t ranks = batch.ranks.size();
  s.classes.resize(classes_.size());
  for (std::size_t c = 0; c < classes_.size(); ++c) {
    const LayerSpec& layer = classes_[c].spec;
    Scratch::ClassCosts& costs = s.classes[c];
    const auto price_tokens = [&](double tokens, TokenCosts& price) {
      const double selections = tokens * model_.experts_per_token / plan_.tp;
      attention_input_operations(model_, plan_, precision_, tokens, gpu,
                                 price.before_attention.operations);
      std::vector<Operation>& before = price.before_dispatch.operations;
      std::vector<Operation>& after = price.after_combine.operations;
      attention_output_operations(model_, plan_, precision_, tokens, gpu, before);
      if (layer.moe) {
        gate_operations(model_, precision_, tokens, gpu, before);
        if (plan_.dp > 1) {
          permute_operations(model_, precision_, selections, "pack", gpu, before);
          permute_operations(model_, precision_, selections, "unpack", gpu, after);
        }
        dense_ffn_operations(model_, plan_, precision_, tokens, model_.shared_width,
                             Part::shared_experts, gpu, price.shared.operations);
      }
      if (!layer.moe || model_.dense_residual) {
        dense_ffn_operations(model_, plan_, precision_, tokens, model_.dense_width, Part::dense_ffn,
                             gpu, after);
      }
      for (RankCost* part :
           {&price.before_attention, &price.before_dispatch, &price.after_combine, &price.shared}) {
        part->add_up();
      }
    };
    if (costs.of_tokens.size() > sizes_remembered) costs.of_tokens.clear();
    for (RankCosts* all : {&costs.before_attention, &costs.at_attention, &costs.before_dispatch,
                           &costs.after_combine, &costs.shared}) {
      all->clear();
    }
    costs.attention.resize(ranks);
    for (std::size_t r = 0; r < ranks; ++r) {
      const RankStep& rank = batch.ranks[r];
      RankCost& attention = costs.attention[r];
      attention.operations.clear();
      attention_core_operations(model_, plan_, precision_, attention_work(rank.sequences, layer),
                                gpu, attention.operations);
      attention.add_up();
      const auto [of_tokens, unseen] = costs.of_tokens.try_emplace(rank.tokens + rank.padding);
      TokenCosts& price = of_tokens->second;
      if (unseen) price_tokens(rank.tokens + rank.padding, price);
      costs.before_attention.push_back(&price.before_attention);
      costs.at_attention.push_back(&attention);
      costs.before_dispatch.push_back(&price.before_dispatch);
      costs.after_combine.push_back(&price.after_combine);
      costs.shared.push_back(&price.shared);
    }
  }
  if (s.head_of.size() > sizes_remembered) s.head_of.clear();
  s.head.clear();
  for (const RankStep& rank : batch.ranks) {
    const std::int32_t tokens = rank.tokens + rank.padding;
    const auto [head, unseen] = s.head_of.try_emplace({tokens, rank.sampled});
    s.head.push_back(&head->second);
    if (!unseen) continue;
    head_operations(model_, plan_, precision_, tokens, rank.sampled, gpu, head->second.operations);
    head->second.add_up();
  }
}

// The step's time from what its MoE layers took and what every rank computes by itself.
void StepModel::add_up(const StepBatch& batch, const ExpertPlacement* placements, StepCost& result,
                       std::vector<ExplainedOperation>* explain) {
  Scratch& s = *scratch_;
  price_ranks(batch);
  std::int32_t most_tokens = 0;
  std::int64_t all_tokens = 0;
  for (const RankStep& rank : batch.ranks) {
    most_tokens = std::max(most_tokens, rank.tokens);
    all_tokens += rank.tokens;
  }

  result.total = {};
  result.two_batches = false;
  result.parts = {};
  result.grounds = {};
  result.dispatch = result.combine = result.all_reduce = {};
  result.expert_memory = {};
  result.idle.assign(at(plan_.gpus()), 0.0);
  result.flops = result.hbm_bytes = 0;
  CriticalPath path(plan_, result, Explainer(explain));
  // The ranks' tensor-parallel groups reduce side by side; each waits for nobody but itself, so the
  // largest sets the time.
  const double activations = double{2} * most_tokens * model_.hidden;
  const CollectiveCost all_reduce = fabric_.all_reduce(plan_.tp, Bytes(activations));
  const std::vector<double> slices(at(plan_.tp), activations / plan_.tp);
  const CollectiveCost all_gather = fabric_.all_gather(slices);
  // What all groups move together, in multiples of what the largest does.
  const double groups = static_cast<double>(all_tokens) / most_tokens;
  // After a dispatch every GPU holds its share of the rank's tokens again, and partial sums of what
  // is sliced by tp.
  const auto rejoin = [&] {
    if (plan_.tp == 1 || plan_.dp == 1) return;
    const bool sliced = model_.shared_width > 0 || model_.dense_residual;
    path.collective(sliced ? "tp_all_reduce" : "tp_all_gather", Part::all_reduce,
                    sliced ? all_reduce : all_gather, result.all_reduce, groups);
  };
  int moe_layer = 0;
  const int layers = static_cast<int>(class_of_layer_.size());
  for (int layer = 0; layer < layers; ++layer) {
    const std::size_t c = class_of_layer_[at(layer)];
    const Scratch::ClassCosts& costs = s.classes[c];
    if (layer > 0 && plan_.stage_of(layer, layers) != plan_.stage_of(layer - 1, layers)) {
      path.end_stage();
    }
    path.add(costs.before_attention);
    path.add(costs.at_attention);
    path.add(costs.before_dispatch);
    if (plan_.tp > 1) {
      path.collective("tp_all_reduce", Part::all_reduce, all_reduce, result.all_reduce, groups);
    }
    if (classes_[c].spec.moe) {
      const LayerOutcome& outcome = result.moe_layers()[at(moe_layer)];
      path.barrier();
      path.everybody("token_routing", Part::token_routing, {outcome.routing, Resource::launch, {}});
      if (overlap_.shared_expert) {
        path.start_transfer("dispatch", Part::dispatch, outcome.exchange.dispatch, result.dispatch);
        path.add(costs.shared);
        path.barrier();
      } else {
        path.collective("dispatch", Part::dispatch, outcome.exchange.dispatch, result.dispatch);
      }
      if (!memories_.empty()) {
        wait_for_experts(moe_layer, batch.start + result.total, *placements, result);
      }
      path.experts(outcome.experts);
      if (overlap_.combine_attention) {
        path.start_transfer("combine", Part::combine, outcome.exchange.combine, result.combine);
      } else {
        path.collective("combine", Part::combine, outcome.exchange.combine, result.combine);
      }
      ++moe_layer;
      path.add(costs.after_combine);
      if (!overlap_.shared_expert) path.add(costs.shared);
      rejoin();
    } else {
      path.add(costs.after_combine);
      if (plan_.tp > 1) {
        path.collective("tp_all_reduce", Part::all_reduce, all_reduce, result.all_reduce, groups);
      }
    }
  }
  path.add(s.head);
  path.end_stage();
  path.everybody("host_overhead", Part::other, {charges_.host_overhead, Resource::launch, {}});

  const auto add_work = [&](const RankCosts& ranks, int times) {
    for (const RankCost* rank : ranks) {
      result.flops += rank->flops.value() * plan_.tp * times;
      result.hbm_bytes += rank->hbm.value() * plan_.tp * times;
    }
  };
  for (std::size_t c = 0; c < classes_.size(); ++c) {
    const Scratch::ClassCosts& costs = s.classes[c];
    for (const RankCosts* all : {&costs.before_attention, &costs.at_attention,
                                 &costs.before_dispatch, &costs.after_combine, &costs.shared}) {
      add_work(*all, classes_[c].layers);
    }
  }
  add_work(s.head, 1);
}

}  // namespace moesim
