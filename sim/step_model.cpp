// SPDX-License-Identifier: Apache-2.0
#include "sim/step_model.hpp"

#include <algorithm>
#include <numeric>

#include <tbb/enumerable_thread_specific.h>
#include <tbb/parallel_for.h>

#include "sim/copy_counter.hpp"

namespace moesim {

namespace {

std::size_t at(int i) { return static_cast<std::size_t>(i); }
std::size_t row_of(Part part) { return static_cast<std::size_t>(part); }
std::size_t column_of(Resource resource) { return static_cast<std::size_t>(resource); }

// Below this many routed ids a step is priced on one thread: handing out work would cost more than
// it saves.
constexpr std::int64_t ids_worth_threads = 1 << 16;

// What stands between two barriers on one rank: its operations in one layer (or head), summed.
struct RankCost {
  std::vector<Operation> operations;
  Seconds total{};

  void add_up() {
    total = Seconds{};
    for (const Operation& operation : operations) total += operation.cost.time;
  }
};

// Collects `explain` rows: equal names with equal bounds and grounds are one row.
class Explainer {
 public:
  explicit Explainer(std::vector<ExplainedOperation>* rows) : rows_(rows) {}
  void add(std::string_view name, Part part, const Cost& cost, double link_bytes = 0) {
    if (rows_ == nullptr || cost.time.count() == 0) return;
    const auto same = [&](const ExplainedOperation& row) {
      return row.name == name && row.part == part && row.bound == cost.bound &&
             row.evidence == cost.evidence;
    };
    auto row = std::find_if(rows_->begin(), rows_->end(), same);
    if (row == rows_->end()) {
      rows_->push_back({name, part, cost.bound, cost.evidence});
      row = rows_->end() - 1;
    }
    ++row->calls;
    row->seconds += cost.time.count();
    row->flops += cost.work.flops.value();
    row->hbm_bytes += cost.work.hbm.value();
    row->l2_bytes += cost.work.l2.value();
    row->smem_bytes += cost.work.smem.value();
    row->link_bytes += link_bytes;
  }

 private:
  std::vector<ExplainedOperation>* rows_;
};

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
  };

  std::vector<std::int32_t> tokens_of_expert;  // [moe layers, experts]
  std::vector<std::uint16_t> ids;              // [moe layers, tokens, k], when somebody asks
  std::vector<std::int32_t> source_gpu;        // [tokens]
  std::vector<std::int32_t> source_rank;       // [tokens], EP ranks
  std::vector<double> tokens_of_gpu;           // [gpus]
  std::int64_t tokens = 0;
  bool has_ids = false;
  std::vector<std::vector<RankCost>> before;  // [class][rank]: attention .. gate and packing
  std::vector<std::vector<RankCost>> after;   // [class][rank]: unpacking, dense parts
  std::vector<std::vector<RankCost>> shared;  // [class][rank]: shared experts
  std::vector<RankCost> head;                 // [rank]
  std::vector<std::vector<DelayedSelection>> backlog;  // [moe layers]
  tbb::enumerable_thread_specific<Worker> workers;
  StepCost second_half;
};

StepModel::StepModel(const ClusterSpec& cluster, const MoeModel& model, const ParallelPlan& plan,
                     const PrecisionPlan& precision, Charges charges, Overlap overlap,
                     std::shared_ptr<const CapacityRule> capacity, std::vector<RankMemory> memories)
    : fabric_(cluster),
      model_(model),
      plan_(plan),
      precision_(precision),
      charges_(std::move(charges)),
      overlap_(overlap),
      capacity_(capacity && capacity->limits() ? std::move(capacity) : nullptr),
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

// Reads the step's trace rows once: the histogram of every layer and, for routers and dispatches
// that need to know which token goes where, the ids themselves, layer by layer.
void StepModel::gather(const StepBatch& batch, const RowSource& rows, bool keep_ids) {
  Scratch& s = *scratch_;
  const auto layers = at(model_.moe_layers());
  const auto experts = at(model_.experts);
  const auto k = at(model_.experts_per_token);
  s.tokens_of_expert.assign(layers * experts, 0);
  s.tokens = 0;
  for (const RowRange& range : batch.rows) s.tokens += range.count;
  const auto tokens = static_cast<std::size_t>(s.tokens);
  s.source_gpu.resize(tokens);
  s.source_rank.resize(tokens);
  s.tokens_of_gpu.assign(at(plan_.gpus()), 0.0);
  s.has_ids = keep_ids;
  if (keep_ids) s.ids.resize(layers * tokens * k);

  std::size_t token = 0;
  std::int32_t rank = -1, in_rank = 0;
  for (const RowRange& range : batch.rows) {
    if (range.rank != rank) in_rank = 0;
    rank = range.rank;
    const std::size_t first_token = token;
    for (std::int32_t i = 0; i < range.count; ++i, ++in_rank) {
      // With tensor parallelism every GPU of the rank dispatches its share of the tokens.
      const std::int32_t of_rank = batch.ranks[at(rank)].tokens;
      const int gpu =
          rank * plan_.tp + static_cast<int>(std::int64_t{in_rank} * plan_.tp / of_rank);
      s.source_gpu[token] = gpu;
      s.source_rank[token++] = gpu / plan_.moe_tp();
      s.tokens_of_gpu[at(gpu)] += 1;
    }
    const RoutingTrace& trace = rows.trace(range.phase);
    const auto row_ids = static_cast<std::size_t>(trace.row_ids());
    trace.visit([&](auto ids) {
      const auto* row = ids.data() + static_cast<std::size_t>(range.first_row) * row_ids;
      for (std::size_t t = first_token; t < token; ++t) {
        for (std::size_t layer = 0; layer < layers; ++layer) {
          std::int32_t* counts = s.tokens_of_expert.data() + layer * experts;
          std::uint16_t* kept = keep_ids ? s.ids.data() + (layer * tokens + t) * k : nullptr;
          for (std::size_t j = 0; j < k; ++j) {
            const auto id = static_cast<std::size_t>(*row++);
            ++counts[id];
            if (kept != nullptr) kept[j] = static_cast<std::uint16_t>(id);
          }
        }
      }
    });
  }
}

Cost StepModel::expert_ffn(std::span<const std::int32_t> tokens_of_slot) const {
  return grouped_gemm({tokens_of_slot, static_cast<double>(model_.hidden),
                       static_cast<double>(model_.expert_width) / plan_.moe_tp(),
                       precision_.experts, precision_.activations},
                      fabric_.cluster().gpu);
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
    const std::size_t layer_ids = static_cast<std::size_t>(s.tokens) * at(model_.experts_per_token);
    problem.rows = {std::span(s.ids).subspan(at(moe_layer) * layer_ids, layer_ids), s.source_rank};
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
  } else if (plan_.gpus() > 1) {
    // All GPUs of the one attention rank hold every token: nothing to dispatch, partial sums are
    // reduced.
    outcome.exchange.combine =
        fabric_.all_reduce(plan_.gpus(), Bytes(static_cast<double>(s.tokens) * model_.hidden * 2));
  }

  const int tile = fabric_.cluster().gpu.kernel(KernelFamily::grouped_gemm).tile_m;
  outcome.experts.resize(at(plan_.ep));
  outcome.useful_rows = outcome.padded_rows = 0;
  for (int rank = 0; rank < plan_.ep; ++rank) {
    const auto first = at(placement.first_slot(rank));
    const auto slots = std::span<const std::int32_t>(worker.tokens_of_slot)
                           .subspan(first, at(placement.first_slot(rank + 1)) - first);
    outcome.experts[at(rank)] = expert_ffn(slots);
    for (const std::int32_t t : slots) {
      outcome.useful_rows += t;
      outcome.padded_rows += padded_rows(t, tile);
    }
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
  const auto gemm = [&](std::span<const std::int32_t> tokens) { return expert_ffn(tokens).time; };
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

// Walks the layers of a step, adding up the critical path barrier by barrier.
class CriticalPath {
 public:
  CriticalPath(const ParallelPlan& plan, StepCost& cost, Explainer explainer)
      : plan_(plan), cost_(cost), explainer_(explainer), since_barrier_(at(plan.dp)) {
    cost_.segments.clear();
  }

  /// Every rank does its own work; nobody waits yet.
  void add(const std::vector<RankCost>& ranks) {
    for (std::size_t r = 0; r < ranks.size(); ++r) since_barrier_[r] += ranks[r].total;
    pending_.push_back(&ranks);
  }

  /// All ranks wait for the slowest.
  void barrier() {
    const auto slowest = static_cast<std::size_t>(
        std::max_element(since_barrier_.begin(), since_barrier_.end()) - since_barrier_.begin());
    const Seconds longest = since_barrier_[slowest];
    for (const auto* ranks : pending_) {
      for (const Operation& operation : (*ranks)[slowest].operations) {
        charge(operation.part, operation.cost);
        explainer_.add(operation.name, operation.part, operation.cost);
      }
    }
    for (int gpu = 0; gpu < plan_.gpus(); ++gpu) {
      cost_.idle[at(gpu)] += (longest - since_barrier_[at(gpu / plan_.tp)]).count();
    }
    spend(false, longest);
    finish_transfer(longest);
    pending_.clear();
    std::fill(since_barrier_.begin(), since_barrier_.end(), Seconds{});
  }

  /// Something that every GPU computes for the same time.
  void everybody(std::string_view name, Part part, const Cost& cost) {
    charge(part, cost);
    explainer_.add(name, part, cost);
    spend(false, cost.time);
  }

  /// A transfer that everybody waits for. One that is still under way ends before it.
  void collective(std::string_view name, Part part, const CollectiveCost& collective,
                  Traffic& traffic, double copies = 1) {
    start_transfer(name, part, collective, traffic, copies);
    finish_transfer({});
  }

  /// A transfer beside what is computed up to the next barrier, which it then must have reached.
  void start_transfer(std::string_view name, Part part, const CollectiveCost& collective,
                      Traffic& traffic, double copies = 1) {
    finish_transfer({});
    traffic.seconds += collective.time.count();
    traffic.nvlink_bytes += collective.nvlink.value() * copies;
    traffic.network_bytes += collective.network.value() * copies;
    transfer_ = {part, {collective.time, collective.bound, {}, collective.evidence}, &traffic};
    explainer_.add(name, part, transfer_.cost,
                   (collective.nvlink + collective.network).value() * copies);
  }

  /// Expert ranks work beside each other and wait for the slowest.
  void experts(const std::vector<Cost>& ranks) {
    const Cost& slowest = *std::max_element(
        ranks.begin(), ranks.end(), [](const Cost& a, const Cost& b) { return a.time < b.time; });
    charge(Part::experts, slowest);
    explainer_.add("expert_ffn", Part::experts, slowest);
    for (int gpu = 0; gpu < plan_.gpus(); ++gpu) {
      cost_.idle[at(gpu)] += (slowest.time - ranks[at(gpu / plan_.moe_tp())].time).count();
    }
    spend(false, slowest.time);
    for (const Cost& rank : ranks) {
      cost_.flops += rank.work.flops.value() * plan_.moe_tp();
      cost_.hbm_bytes += rank.work.hbm.value() * plan_.moe_tp();
    }
  }

 private:
  struct Transfer {
    Part part = Part::dispatch;
    Cost cost;
    Traffic* traffic = nullptr;  // none under way: nullptr
  };

  // The transfer under way has run beside `computed`; the rest is waited for.
  void finish_transfer(Seconds computed) {
    if (transfer_.traffic == nullptr) return;
    const Seconds hidden = std::min(computed, transfer_.cost.time);
    transfer_.traffic->hidden += hidden.count();
    transfer_.cost.time -= hidden;
    charge(transfer_.part, transfer_.cost);
    spend(true, transfer_.cost.time);
    transfer_.traffic = nullptr;
  }

  void charge(Part part, const Cost& cost) {
    cost_.parts[row_of(part)][column_of(cost.bound)] += cost.time.count();
    cost_.grounds[row_of(part)][static_cast<std::size_t>(cost.evidence)] += cost.time.count();
  }

  void spend(bool on_link, Seconds time) {
    cost_.total += time;
    std::vector<Segment>& segments = cost_.segments;
    if (segments.empty() || segments.back().on_link != on_link) segments.push_back({on_link, 0});
    segments.back().seconds += time.count();
  }

  const ParallelPlan& plan_;
  StepCost& cost_;
  Explainer explainer_;
  std::vector<Seconds> since_barrier_;
  std::vector<const std::vector<RankCost>*> pending_;
  Transfer transfer_;
};

// The step's sequences in two halves: on every rank the first half of its tokens, and the others. A
// prompt chunk may be cut in two; its second piece then has the first in its context.
std::array<StepBatch, 2> halves(const StepBatch& batch) {
  std::array<StepBatch, 2> two;
  std::vector<std::int32_t> first_tokens;
  for (const RankStep& rank : batch.ranks) {
    const std::int32_t in_first = (rank.tokens + 1) / 2;
    first_tokens.push_back(in_first);
    RankStep& a = two[0].ranks.emplace_back();
    RankStep& b = two[1].ranks.emplace_back();
    for (const SequenceWork& work : rank.sequences) {
      const std::int32_t here = std::clamp(in_first - a.tokens, 0, work.new_tokens);
      if (here > 0) a.sequences.push_back({here, work.context_tokens, work.verifies});
      if (here < work.new_tokens) {
        b.sequences.push_back({work.new_tokens - here, work.context_tokens + here, work.verifies});
      }
      a.tokens += here;
      b.tokens += work.new_tokens - here;
    }
    a.sampled = static_cast<std::int32_t>(std::int64_t{rank.sampled} * a.tokens / rank.tokens);
    b.sampled = rank.sampled - a.sampled;
    a.padding = (rank.padding + 1) / 2;
    b.padding = rank.padding / 2;
  }
  for (const RowRange& range : batch.rows) {
    std::int32_t& left = first_tokens[at(range.rank)];
    const std::int32_t here = std::min(left, range.count);
    left -= here;
    if (here > 0) two[0].rows.push_back({range.phase, range.rank, here, range.first_row});
    if (here < range.count) {
      two[1].rows.push_back({range.phase, range.rank, range.count - here, range.first_row + here});
    }
  }
  return two;
}

bool worth_two_batches(const StepBatch& batch, const TwoBatch& limits) {
  return std::all_of(batch.ranks.begin(), batch.ranks.end(), [&](const RankStep& rank) {
    const bool decode = std::ranges::all_of(
        rank.sequences, [](const SequenceWork& w) { return w.new_tokens == 1 || w.verifies; });
    return rank.tokens > std::max(decode ? limits.decode_tokens : limits.prefill_tokens, 1);
  });
}

void add(Traffic& sum, const Traffic& other) {
  sum.seconds += other.seconds;
  sum.hidden += other.hidden;
  sum.nvlink_bytes += other.nvlink_bytes;
  sum.network_bytes += other.network_bytes;
}

void add(CollectiveCost& sum, const CollectiveCost& other) {
  sum.time += other.time;
  sum.nvlink += other.nvlink;
  sum.network += other.network;
}

// An expert that both micro-batches activate is read twice, hence counted twice.
void add(LayerOutcome& sum, const LayerOutcome& other) {
  sum.load.max_activated = sum.load.max_tokens = 0;
  for (std::size_t rank = 0; rank < sum.load.tokens.size(); ++rank) {
    sum.load.activated[rank] += other.load.activated[rank];
    sum.load.tokens[rank] += other.load.tokens[rank];
    sum.load.max_activated = std::max(sum.load.max_activated, sum.load.activated[rank]);
    sum.load.max_tokens = std::max(sum.load.max_tokens, sum.load.tokens[rank]);
    sum.experts[rank].time += other.experts[rank].time;
  }
  sum.active_experts += other.active_experts;
  sum.routing += other.routing;
  add(sum.exchange.dispatch, other.exchange.dispatch);
  add(sum.exchange.combine, other.exchange.combine);
  sum.useful_rows += other.useful_rows;
  sum.padded_rows += other.padded_rows;
}

// Two micro-batches that share a compute and a link stream. All that computes is on the critical
// path; of the links what remains of the total is exposed, dispatch, combine and all-reduce in
// proportion to their times.
void join(StepCost& sum, const StepCost& other) {
  double computed = 0, on_links = 0;
  for (const StepCost* half : {&std::as_const(sum), &other}) {
    for (const Segment& segment : half->segments) {
      (segment.on_link ? on_links : computed) += segment.seconds;
    }
  }
  const double total = interleaved_seconds(sum.segments, other.segments);
  const double exposed = on_links > 0 ? std::max(0.0, total - computed) / on_links : 0;
  for (std::size_t part = 0; part < sum.parts.size(); ++part) {
    const bool link = part == row_of(Part::dispatch) || part == row_of(Part::combine) ||
                      part == row_of(Part::all_reduce);
    for (std::size_t resource = 0; resource < sum.parts[part].size(); ++resource) {
      double& seconds = sum.parts[part][resource];
      seconds += other.parts[part][resource];
      if (link) seconds *= exposed;
    }
    for (std::size_t ground = 0; ground < sum.grounds[part].size(); ++ground) {
      double& seconds = sum.grounds[part][ground];
      seconds += other.grounds[part][ground];
      if (link) seconds *= exposed;
    }
  }
  for (Traffic StepCost::*kind : {&StepCost::dispatch, &StepCost::combine, &StepCost::all_reduce}) {
    Traffic& traffic = sum.*kind;
    add(traffic, other.*kind);
    traffic.hidden += (traffic.seconds - traffic.hidden) * (1 - exposed);
  }
  for (std::size_t gpu = 0; gpu < sum.idle.size(); ++gpu) sum.idle[gpu] += other.idle[gpu];
  sum.flops += other.flops;
  sum.hbm_bytes += other.hbm_bytes;
  for (std::size_t l = 0; l < sum.layers.size(); ++l) add(sum.layers[l], other.layers[l]);
  sum.total = Seconds(total);
  sum.two_batches = true;
}

}  // namespace

void StepModel::price(const StepBatch& batch, const PhaseRule& rule,
                      const ExpertPlacement& placements, const RowSource& rows, StepCost& result,
                      std::vector<ExplainedOperation>* explain) {
  if (explain != nullptr) explain->clear();
  const std::uint64_t step = steps_;
  steps_ += 2;
  if (!overlap_.two_batch || !worth_two_batches(batch, *overlap_.two_batch)) {
    price_batch(batch, rule, placements, rows, step, result, explain);
    return;
  }
  const std::array<StepBatch, 2> two = halves(batch);
  price_batch(two[0], rule, placements, rows, step, result, explain);
  const std::vector<std::int32_t> of_first = scratch_->tokens_of_expert;
  price_batch(two[1], rule, placements, rows, step + 1, scratch_->second_half, explain);
  for (std::size_t i = 0; i < of_first.size(); ++i) scratch_->tokens_of_expert[i] += of_first[i];
  join(result, scratch_->second_half);
}

void StepModel::price_batch(const StepBatch& batch, const PhaseRule& rule,
                            const ExpertPlacement& placements, const RowSource& rows,
                            std::uint64_t step, StepCost& result,
                            std::vector<ExplainedOperation>* explain) {
  Scratch& s = *scratch_;
  const GpuSpec& gpu = fabric_.cluster().gpu;
  const int moe_layers = model_.moe_layers();

  const bool follows_copies = rule.dispatch->needs_copies() || rule.dispatch->needs_selections();
  gather(batch, rows,
         capacity_ || rule.router->needs_token_rows() || (plan_.dp > 1 && follows_copies));
  result.layers.resize(at(moe_layers));
  const auto price_layer = [&](int layer) {
    price_moe_layer(layer, rule, placements[at(layer)], step, result.layers[at(layer)]);
  };
  if (s.tokens * model_.experts_per_token * moe_layers < ids_worth_threads) {
    for (int layer = 0; layer < moe_layers; ++layer) price_layer(layer);
  } else {
    tbb::parallel_for(0, moe_layers, price_layer);
  }

  // What every rank does by itself, per class of layer.
  s.before.resize(classes_.size());
  s.after.resize(classes_.size());
  s.shared.resize(classes_.size());
  s.head.resize(batch.ranks.size());
  std::int32_t most_tokens = 0;
  for (const RankStep& rank : batch.ranks) most_tokens = std::max(most_tokens, rank.tokens);
  for (std::size_t c = 0; c < classes_.size(); ++c) {
    const LayerSpec& layer = classes_[c].spec;
    s.before[c].resize(batch.ranks.size());
    s.after[c].resize(batch.ranks.size());
    s.shared[c].resize(batch.ranks.size());
    for (std::size_t r = 0; r < batch.ranks.size(); ++r) {
      const RankStep& rank = batch.ranks[r];
      const double tokens = rank.tokens + rank.padding;
      const double selections = tokens * model_.experts_per_token / plan_.tp;
      RankCost& before = s.before[c][r];
      RankCost& after = s.after[c][r];
      RankCost& shared = s.shared[c][r];
      before.operations.clear();
      after.operations.clear();
      shared.operations.clear();
      attention_operations(model_, plan_, precision_, tokens, attention_work(rank.sequences, layer),
                           gpu, before.operations);
      if (layer.moe) {
        gate_operations(model_, precision_, tokens, gpu, before.operations);
        if (plan_.dp > 1) {
          permute_operations(model_, precision_, selections, "pack", gpu, before.operations);
          permute_operations(model_, precision_, selections, "unpack", gpu, after.operations);
        }
        if (model_.shared_width > 0) {
          dense_ffn_operations(model_, plan_, precision_, tokens, model_.shared_width,
                               Part::shared_experts, gpu, shared.operations);
        }
      }
      if (!layer.moe || model_.dense_residual) {
        dense_ffn_operations(model_, plan_, precision_, tokens, model_.dense_width, Part::dense_ffn,
                             gpu, after.operations);
      }
      before.add_up();
      after.add_up();
      shared.add_up();
    }
  }
  for (std::size_t r = 0; r < batch.ranks.size(); ++r) {
    s.head[r].operations.clear();
    head_operations(model_, plan_, precision_, batch.ranks[r].tokens + batch.ranks[r].padding,
                    batch.ranks[r].sampled, gpu, s.head[r].operations);
    s.head[r].add_up();
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
  const double groups = static_cast<double>(s.tokens) / most_tokens;
  // After a dispatch every GPU holds its share of the rank's tokens again, and partial sums of what
  // is sliced by tp.
  const auto rejoin = [&] {
    if (plan_.tp == 1 || plan_.dp == 1) return;
    const bool sliced = model_.shared_width > 0 || model_.dense_residual;
    path.collective(sliced ? "tp_all_reduce" : "tp_all_gather", Part::all_reduce,
                    sliced ? all_reduce : all_gather, result.all_reduce, groups);
  };
  int moe_layer = 0;
  for (const std::size_t c : class_of_layer_) {
    path.add(s.before[c]);
    if (plan_.tp > 1) {
      path.collective("tp_all_reduce", Part::all_reduce, all_reduce, result.all_reduce, groups);
    }
    if (classes_[c].spec.moe) {
      const LayerOutcome& outcome = result.layers[at(moe_layer)];
      path.barrier();
      path.everybody("token_routing", Part::token_routing, {outcome.routing, Resource::launch, {}});
      if (overlap_.shared_expert) {
        path.start_transfer("dispatch", Part::dispatch, outcome.exchange.dispatch, result.dispatch);
        path.add(s.shared[c]);
        path.barrier();
      } else {
        path.collective("dispatch", Part::dispatch, outcome.exchange.dispatch, result.dispatch);
      }
      if (!memories_.empty()) {
        wait_for_experts(moe_layer, batch.start + result.total, placements, result);
      }
      path.experts(outcome.experts);
      if (overlap_.combine_attention) {
        path.start_transfer("combine", Part::combine, outcome.exchange.combine, result.combine);
      } else {
        path.collective("combine", Part::combine, outcome.exchange.combine, result.combine);
      }
      ++moe_layer;
      path.add(s.after[c]);
      if (!overlap_.shared_expert) path.add(s.shared[c]);
      rejoin();
    } else {
      path.add(s.after[c]);
      if (plan_.tp > 1) {
        path.collective("tp_all_reduce", Part::all_reduce, all_reduce, result.all_reduce, groups);
      }
    }
  }
  path.add(s.head);
  path.barrier();
  path.everybody("host_overhead", Part::other, {charges_.host_overhead, Resource::launch, {}});

  const auto add_work = [&](const std::vector<RankCost>& ranks, int times) {
    for (const RankCost& rank : ranks) {
      for (const Operation& operation : rank.operations) {
        result.flops += operation.cost.work.flops.value() * plan_.tp * times;
        result.hbm_bytes += operation.cost.work.hbm.value() * plan_.tp * times;
      }
    }
  };
  for (std::size_t c = 0; c < classes_.size(); ++c) {
    add_work(s.before[c], classes_[c].layers);
    add_work(s.after[c], classes_[c].layers);
    add_work(s.shared[c], classes_[c].layers);
  }
  add_work(s.head, 1);
}

}  // namespace moesim
