// SPDX-License-Identifier: Apache-2.0
#include "sim/replay/replay.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <span>
#include <utility>

#include <fmt/format.h>
#include <tbb/parallel_for.h>

#include "hardware/at.hpp"
#include "hardware/rng.hpp"
#include "hardware/sums.hpp"
#include "sim/capacity/capacity.hpp"
#include "sim/dispatch/token_traffic.hpp"
#include "sim/expert_memory/expert_memory.hpp"
#include "sim/placement/copies_by_gain.hpp"
#include "sim/placement/placement.hpp"
#include "sim/placement/placement_score.hpp"
#include "sim/replay/batches.hpp"
#include "sim/step/routed_layer.hpp"
#include "sim/token_routing/token_routing.hpp"
#include "traces/halves.hpp"

namespace moesim {

namespace {

void require_apart(const RoutingTrace& trace, const ReplayConfig& config) {
  if (!config.score_workloads.empty() && config.fit_workloads.empty()) {
    throw ConfigError(
        "replay: workloads to score on are named, and none to fit on; name both, or fit on half");
  }
  for (const std::string& tag : config.score_workloads) {
    if (!has(trace.workloads(), tag)) {
      throw ConfigError("replay: the trace has no workload \"{}\" to score on", tag);
    }
    if (has(config.fit_workloads, tag)) {
      throw ConfigError(
          "replay: the workload \"{}\" is fitted on and scored on; take it out of one", tag);
    }
  }
}

Observation observation(const Placer& placer, const ReplayConfig& config) {
  Observation what = placer.needs();
  what.workloads = config.fit_workloads;
  what.fitted_half = config.fit_workloads.empty() && config.fit == ReplayFit::half;
  return what;
}

// Tokens per expert of the requests that batches come from, [layers][experts].
std::vector<ExpertLoad> scored_load(const RoutingTrace& trace, const Usable& usable) {
  if (usable.indices.empty()) return {};
  std::vector<ExpertLoad> load;
  const std::vector<std::int64_t> counts = trace.expert_counts(usable.indices);
  for (std::size_t i = 0; i < counts.size(); i += at(trace.num_experts())) {
    const auto layer = std::span(counts).subspan(i, at(trace.num_experts()));
    load.emplace_back(layer.begin(), layer.end());
  }
  return load;
}

// Score of one routing over all cases.
struct Score {
  std::int64_t cases = 0, above_optimal = 0, above_even = 0;
  double max_activated = 0, max_tokens = 0;
  double time = 0;  // of one layer, and of layers in order
  std::int64_t bound = 0;
  CapacityTally capacity{};
  std::int64_t hits = 0, accesses = 0;  // of HBM
  std::int64_t step_copies = 0;
  Locality locality{};
  std::int64_t max_with_shared = 0;
  std::vector<double> of_batch{};  // max_activated, over layers

  Score& operator+=(const Score& other) {
    add_members<&Score::cases, &Score::max_activated, &Score::max_tokens, &Score::above_optimal,
                &Score::above_even, &Score::time, &Score::bound, &Score::capacity, &Score::hits,
                &Score::step_copies, &Score::locality, &Score::max_with_shared, &Score::accesses>(
        *this, other);
    of_batch.resize(other.of_batch.size());
    std::transform(of_batch.begin(), of_batch.end(), other.of_batch.begin(), of_batch.begin(),
                   std::plus<>());
    return *this;
  }
};

// The routings that were asked for, after the two that all are measured against.
constexpr std::size_t even = 0, optimal = 1, asked_for = 2;
using Routers = std::vector<std::unique_ptr<TokenRouter>>;

Routers make_routers(const std::vector<ConfigNode>& routings, const Policies& policies,
                     const RoutingContext& context) {
  Routers routers;
  for (const char* reference : {"even", "optimal"}) {
    routers.push_back(token_routers().make(ConfigNode(reference, "replay"))(context));
  }
  for (const ConfigNode& routing : routings) {
    routers.push_back(policies.token_routing.make(routing)(context));
  }
  return routers;
}

int ranks_of_node(const ReplayConfig& config) {
  return (config.gpus + config.nodes - 1) / config.nodes;
}

// Limits of a layer apart from its placement, and what is counted of it.
struct Limits {
  std::unique_ptr<CapacityRule> capacity;
  std::unique_ptr<ExpertMemory> memory;  // if the config has one
  int slots_per_layer = 0;
  int locality_ranks = 0;                     // of a node, if it is counted who serves near; else 0
  std::optional<SharedExpert> shared_expert;  // if its tokens are counted
  bool by_selection() const { return locality_ranks > 0 || shared_expert.has_value(); }
  bool caches() const { return memory && !memory->resident(); }
};

Limits read_limits(const ReplayConfig& config, const Policies& policies) {
  Limits limits{policies.capacity.make(config.capacity), nullptr, 0,
                config.locality ? ranks_of_node(config) : 0, config.shared_expert};
  if (!config.expert_memory) return limits;
  read_object(config.expert_memory->as_policy(), expert_memory_keys, [&](ConfigReader& reader) {
    limits.memory = policies.expert_memory.make_from(reader);
    limits.slots_per_layer = static_cast<int>(reader.integer("slots_per_layer"));
  });
  return limits;
}

// Experts below HBM are known for standing slots alone.
void require_standing(const Routers& routers, const Limits& limits) {
  if (!limits.caches()) return;
  for (const auto& router : routers) {
    if (router->step_slots() > 0)
      throw ConfigError(
          "replay: a routing that brings copies does not go with experts below HBM; leave out one "
          "of them");
  }
}

// Slices are on no GPU of their own.
void require_whole(const ReplayConfig& config, const ExpertPlacement& placement,
                   const Routers& routers, const Limits& limits) {
  if (placement.front().cut() == 0) return;
  const bool brings =
      std::ranges::any_of(routers, [](const auto& router) { return router->step_slots() > 0; });
  if (brings || limits.by_selection() || config.expert_memory)
    throw ConfigError(
        "replay: cut experts do not go with a routing that brings copies, a shared expert, "
        "locality or experts below HBM; leave out one of them");
}

// The HBM of every GPU in one layer, under one routing.
class LayerMemory {
 public:
  LayerMemory(const LayerPlacement& placement, const Limits& limits) : placement_(placement) {
    for (int gpu = 0; gpu < placement.gpus(); ++gpu) {
      const int slots = placement.first_slot(gpu + 1) - placement.first_slot(gpu);
      caches_.push_back(limits.memory->cache(slots, limits.slots_per_layer));
    }
  }

  void run(std::span<const std::int32_t> tokens_of_slot, Score& score) {
    for (int gpu = 0; gpu < placement_.gpus(); ++gpu) {
      ExpertCache& cache = *caches_[at(gpu)];
      const int first = placement_.first_slot(gpu);
      pinned_.assign(at(placement_.first_slot(gpu + 1) - first), 0);
      misses_.clear();
      for (int slot = 0; at(slot) < pinned_.size(); ++slot) {
        if (tokens_of_slot[at(first + slot)] == 0) continue;
        ++score.accesses;
        cache.use(slot);
        pinned_[at(slot)] = 1;
        if (!cache.holds(slot)) misses_.push_back(slot);
      }
      score.hits += std::count(pinned_.begin(), pinned_.end(), 1) - std::ssize(misses_);
      for (const int slot : misses_) cache.admit(slot, pinned_);
    }
  }

 private:
  const LayerPlacement& placement_;
  std::vector<std::unique_ptr<ExpertCache>> caches_;  // [gpus]
  std::vector<std::uint8_t> pinned_;
  std::vector<int> misses_;
};

// Tokens on the GPU that has most when those of the shared expert count too.
std::int32_t most_with_shared(const SharedExpert& shared, const RoutingProblem& problem,
                              const RoutedLayer& routed, std::span<const std::int32_t> slots,
                              const LayerLoad& load) {
  std::vector<std::int32_t> ranks(problem.rows.source_rank.begin(), problem.rows.source_rank.end());
  if (shared.draws()) waterfill(shared, problem, routed.placement(), slots, load.tokens, ranks);
  std::vector<std::int32_t> tokens = load.tokens;
  for (const std::int32_t rank : ranks) ++tokens[at(rank)];
  return *std::ranges::max_element(tokens);
}

// Adds what a router chose in addition to the load.
void add_choice(const Limits& limits, const TokenRouter& router, const RoutingProblem& problem,
                RoutedLayer& routed, const LayerLoad& load, Score& score) {
  score.step_copies += std::ssize(routed.copies());
  if (!limits.by_selection()) return;
  const auto slots = routed.slot_of_selection(router, problem);
  if (limits.locality_ranks > 0)
    score.locality +=
        locality(routed.placement(), slots, problem.rows.source_rank, limits.locality_ranks);
  if (limits.shared_expert)
    score.max_with_shared += most_with_shared(*limits.shared_expert, problem, routed, slots, load);
}

std::vector<Score> score_layer(const LayerPlacement& placement, std::size_t layer,
                               const Routers& routers, const Batches& batches, RooflineTime time,
                               const Limits& limits) {
  RoutedLayer routed;
  std::vector<std::uint16_t> ids;
  const bool limited = limits.capacity->limits();
  std::vector<DelayedSelection> backlog;
  std::vector<std::int32_t> tokens;
  std::vector<LayerMemory> memories;
  for (std::size_t i = 0; limits.caches() && i < routers.size(); ++i) {
    memories.emplace_back(placement, limits);
  }
  const bool needs_rows = limited || limits.by_selection() ||
                          std::any_of(routers.begin(), routers.end(), [](const auto& router) {
                            return router->needs_token_rows();
                          });
  std::vector<LayerLoad> loads(routers.size());
  std::vector<Score> scores(routers.size());
  for (Score& score : scores) score.of_batch.resize(batches.samples());
  for (std::size_t sample = 0; sample < batches.samples(); ++sample) {
    RoutingProblem asked{
        placement, batches.tokens(sample, layer), static_cast<int>(layer), sample, {}};
    if (needs_rows) asked.rows = batches.rows(sample, layer, ids);
    CapacityTally tally;
    tokens.resize(asked.tokens.size());
    const RoutingProblem problem =
        limited
            ? routed.limit(*limits.capacity, asked, asked.rows.source_rank, backlog, tokens, tally)
            : asked;
    for (std::size_t i = 0; i < routers.size(); ++i) {
      routed.route(*routers[i], problem, loads[i]);
      const std::vector<std::int32_t>& tokens_of_slot = routed.tokens_of_slot();
      scores[i].time += time.busiest(routed.placement(), tokens_of_slot);
      add_choice(limits, *routers[i], problem, routed, loads[i], scores[i]);
      scores[i].capacity += tally;
      if (limits.caches()) memories[i].run(tokens_of_slot, scores[i]);
    }
    const auto active = std::count_if(problem.tokens.begin(), problem.tokens.end(),
                                      [](std::int32_t count) { return count > 0; });
    for (std::size_t i = 0; i < routers.size(); ++i) {
      const std::int32_t activated = loads[i].max_activated;
      check(activated >= loads[optimal].max_activated || routers[i]->step_slots() > 0,
            "a routing beat the exact optimum");
      Score& score = scores[i];
      ++score.cases;
      score.max_activated += loads[i].most_activated();
      score.of_batch[sample] += loads[i].most_activated();
      score.bound += (active + placement.gpus() - 1) / placement.gpus();
      score.max_tokens += loads[i].most_tokens();
      score.above_optimal += activated > loads[optimal].max_activated ? 1 : 0;
      score.above_even += activated > loads[even].max_activated ? 1 : 0;
    }
  }
  return scores;
}

std::vector<Score> score_all(const ExpertPlacement& placement, const Routers& routers,
                             const Batches& batches, RooflineTime time, const Limits& limits) {
  std::vector<std::vector<Score>> of_layer(placement.size());
  tbb::parallel_for(std::size_t{0}, placement.size(), [&](std::size_t layer) {
    of_layer[layer] = score_layer(placement[layer], layer, routers, batches, time, limits);
  });
  std::vector<Score> total(routers.size());
  for (const auto& scores : of_layer) {
    for (std::size_t i = 0; i < total.size(); ++i) total[i] += scores[i];
  }
  return total;
}

// Half the 95 % interval of a mean, normal as there are hundreds of batches; 0 for a single value.
double margin_of_mean(std::span<const double> values, double mean) {
  double squares = 0;
  for (const double value : values) squares += (value - mean) * (value - mean);
  const auto count = static_cast<double>(values.size());
  return count > 1 ? 1.96 * std::sqrt(squares / (count - 1) / count) : 0;
}

// Worlds are as far from each other as drawn recordings, around what was measured: recordings with
// requests twice activate fewer experts in all rows.
SampledGain gain_over_recordings(const ReplayRow& row, const ReplayRow& first) {
  const auto change = [](double a, double b) { return 100 * (a / b - 1); };
  std::vector<double> changes;
  std::ranges::transform(row.activated_of_resample, first.activated_of_resample,
                         std::back_inserter(changes), change);
  const double measured = change(row.max_activated_mean, first.max_activated_mean);
  const double shift = measured - std::accumulate(changes.begin(), changes.end(), 0.0) /
                                      static_cast<double>(changes.size());
  if (std::ranges::minmax(changes).min < std::ranges::minmax(changes).max)
    for (double& one : changes) one += shift;
  return gain_of(measured, std::move(changes));
}

void compare_with_first(std::vector<ReplayRow>& rows) {
  for (ReplayRow& row : rows) {
    const auto alike = [&](auto&&... of) {
      return std::ranges::find_if(rows, [&](const ReplayRow& first) {
        return ((std::invoke(of, first) == std::invoke(of, row)) && ...);
      });
    };
    auto first = alike(&ReplayRow::replication, &ReplayRow::batch, &ReplayRow::routing);
    if (first->placement == row.placement)
      first = alike(&ReplayRow::replication, &ReplayRow::batch, &ReplayRow::placement);
    if (&*first != &row) row.against_first = gain_over_recordings(row, *first);
  }
}

// A slice of an expert that is cut over `cut` GPUs is that part of a slot.
void count_as_whole(ReplayRow& row, int cut) {
  row.placement += fmt::format(", cut in {}", cut);
  for (double* const figure : {&row.max_activated_mean, &row.max_activated_margin, &row.bound_mean,
                               &row.max_tokens_mean, &row.time_mean})
    *figure /= cut;
  if (row.max_tokens_with_shared_mean) *row.max_tokens_with_shared_mean /= cut;
  for (double& figure : row.activated_of_batch) figure /= cut;
}

ReplayConfig cut_over(ReplayConfig config, int cut) {
  config.gpus /= cut;
  config.cuts.clear();
  config.bootstrap = 0;
  config.placements.erase(config.placements.begin() + 1, config.placements.end());
  config.replications = {1};
  config.routings = {ConfigNode("even", "replay")};
  return config;
}

ReplayRow scored_row(const Score& score, const Score& of_even, const Score& of_optimal) {
  const auto ratio = [](auto a, auto b) { return static_cast<double>(a) / static_cast<double>(b); };
  ReplayRow row;
  row.cases = score.cases;
  row.max_activated_mean = ratio(score.max_activated, score.cases);
  row.max_tokens_mean = ratio(score.max_tokens, score.cases);
  const std::int64_t layers = score.cases / std::ssize(score.of_batch);
  for (const double activated : score.of_batch) {
    row.activated_of_batch.push_back(ratio(activated, layers));
  }
  row.max_activated_margin = margin_of_mean(row.activated_of_batch, row.max_activated_mean);
  row.bound_mean = ratio(score.bound, score.cases);
  row.activated_vs_bound = ratio(score.max_activated, score.bound);
  row.time_mean = score.time / static_cast<double>(score.cases);
  row.activated_vs_optimal = ratio(score.max_activated, of_optimal.max_activated);
  row.activated_vs_even = ratio(score.max_activated, of_even.max_activated);
  row.above_optimal = score.above_optimal;
  row.above_even = score.above_even;
  if (score.capacity.dropped > 0) {
    row.dropped = ratio(score.capacity.dropped, score.capacity.selections);
  }
  if (score.accesses > 0) row.hit_rate = ratio(score.hits, score.accesses);
  if (score.max_with_shared > 0)
    row.max_tokens_with_shared_mean = ratio(score.max_with_shared, score.cases);
  if (const Locality& near = score.locality; near.selections > 0) {
    row.own_gpu_share = ratio(near.own_gpu, near.selections);
    row.own_node_share = ratio(near.own_domain, near.selections);
  }
  return row;
}

// A policy's name, and its options where it was given any: name:key=value.
std::string label(const ConfigNode& policy) {
  const Json node = policy.as_policy().json();
  auto text = node.at("type").get<std::string>();
  for (const auto& [key, value] : node.items()) {
    if (key == "type") continue;
    text += fmt::format(":{}={}", key, value.is_string() ? value.get<std::string>() : value.dump());
  }
  return text;
}

void require_sound(const ReplayConfig& config) {
  if (config.gpus < 1) throw ConfigError("replay: expected at least 1 GPU");
  for (const int cut : config.cuts) {
    if (cut < 2 || config.gpus % cut != 0)
      throw ConfigError("replay: experts cut over {} of {} GPUs; expected a divider of {} above 1",
                        cut, config.gpus, config.gpus);
  }
  if (!config.cuts.empty() && config.expert_memory)
    throw ConfigError(
        "replay: cut experts do not go with experts below HBM; leave out one of them");
  if (config.sampled_batches < 1) throw ConfigError("replay: expected at least 1 sampled batch");
  for (const int batch : config.batches) {
    if (batch < 1) throw ConfigError("replay: a batch of {}; expected >= 1", batch);
    if (std::int64_t{batch} * config.sampled_batches > most_sampled_tokens) {
      throw ConfigError(
          "replay: {} batches of {} tokens; expected at most {} tokens in all, that is batches of "
          "at most {}, or fewer of them",
          config.sampled_batches, batch, most_sampled_tokens,
          most_sampled_tokens / config.sampled_batches);
    }
  }
}

// A trace tells which layers of its model have experts. No layer is known to follow the last one.
// A file may have one more, which drafts (MTP).
PlacementProblem placement_problem(const RoutingTrace& trace, const ReplayConfig& config,
                                   double replication) {
  if (replication > config.gpus) {
    throw ConfigError(
        "replay: replication {} is out of range; expected 1 to {}, at which each of {} "
        "GPUs holds every expert. Ask for less, or for more GPUs",
        replication, config.gpus, config.gpus);
  }
  const std::vector<int>& layers = trace.meta().layer_ids;
  return {.experts = trace.num_experts(),
          .gpus = config.gpus,
          .slots_per_gpu = slots_for_replication(trace.num_experts(), config.gpus, replication),
          .nodes = config.nodes,
          .groups = config.groups,
          .moe_layers = layers,
          .model_layers = *std::ranges::max_element(layers) + 1,
          .draft_layers = 1};
}

}  // namespace

std::vector<std::string> remarks_of(const RoutingTrace& trace, const ReplayConfig& config,
                                    const Policies& policies) {
  std::vector<std::string> remarks;
  if (std::string loops = trace.loops_remark("left out"); !loops.empty())
    remarks.push_back(std::move(loops));
  for (const ConfigNode& policy : config.placements) {
    std::string remark =
        policies.placement.make(policy)->remark(placement_problem(trace, config, 1));
    if (!remark.empty()) remarks.push_back(std::move(remark));
  }
  return remarks;
}

namespace {

// A placement, and what its rows have in common.
struct Placed {
  ExpertPlacement experts;
  Routers routers;
  ReplayRow alike;
};

void add_rows(const Placed& placed, const ReplayConfig& config, const std::vector<Batches>& draws,
              const Limits& limits, std::int64_t& done, std::vector<ReplayRow>& rows) {
  const ReplayRow& alike = placed.alike;
  const std::int64_t in_all =
      std::ssize(config.placements) * std::ssize(config.replications) * std::ssize(draws);
  for (std::size_t b = 0; b < draws.size(); ++b) {
    const std::vector<Score> scores =
        score_all(placed.experts, placed.routers, draws[b], config.time, limits);
    config.progress(++done, in_all);
    for (std::size_t i = 0; i < config.routings.size(); ++i) {
      const Score& score = scores[asked_for + i];
      ReplayRow row = scored_row(score, scores[even], scores[optimal]);
      if (placed.routers[asked_for + i]->step_slots() > 0)
        row.step_copies_mean = double(score.step_copies) / double(score.cases);
      row.placement = alike.placement;
      row.replication = alike.replication;
      row.token_imbalance = alike.token_imbalance;
      row.replication_effective = alike.replication_effective;
      row.batch = config.batches[b];
      row.tokens_per_request = draws[b].tokens_per_request();
      row.routing = label(config.routings[i]);
      rows.push_back(std::move(row));
    }
  }
}

}  // namespace

std::vector<ReplayRow> replay(const RoutingTrace& trace, const ReplayConfig& config,
                              const Policies& policies) {
  require_sound(config);
  trace.check_ids();  // of a long trace only some rows were when it was opened
  require_apart(trace, config);
  const Limits limits = read_limits(config, policies);
  const Usable usable = usable_requests(trace, config);
  const std::vector<Batches> draws = draw_batches(trace, config, usable);
  const std::vector<ExpertLoad> scored = scored_load(trace, usable);
  std::vector<std::unique_ptr<Placer>> placers;
  for (const ConfigNode& policy : config.placements)
    placers.push_back(policies.placement.make(policy));
  std::vector<ReplayRow> rows;
  std::int64_t done = 0;
  for (std::size_t p = 0; p < placers.size(); ++p) {
    const Placer& placer = *placers[p];
    const ExpertStatistics seen = observe(std::array{&trace}, observation(placer, config));
    for (const double replication : config.replications) {
      const PlacementProblem problem = placement_problem(trace, config, replication);
      Placed placed{
          config.by_gain ? place_by_gain(placer, problem, seen) : place_all(placer, problem, seen),
          {},
          {}};
      placed.routers =
          make_routers(config.routings, policies,
                       {placed.experts, config.time, seen.load, ranks_of_node(config)});
      require_standing(placed.routers, limits);
      require_whole(config, placed.experts, placed.routers, limits);
      placed.alike.placement = label(config.placements[p]);
      placed.alike.replication = replication;
      placed.alike.token_imbalance = score_placement(placed.experts, scored).imbalance_mean;
      placed.alike.replication_effective =
          static_cast<double>(problem.slots_per_gpu) * config.gpus / trace.num_experts();
      add_rows(placed, config, draws, limits, done, rows);
    }
  }
  for (const int cut : config.cuts) {
    for (ReplayRow& row : replay(trace, cut_over(config, cut), policies)) {
      count_as_whole(row, cut);
      rows.push_back(std::move(row));
    }
  }
  if (config.bootstrap == 0) return rows;
  for (int i = 0; i < config.bootstrap; ++i) {
    Rng rng(config.seed, fmt::format("replay/recording/{}", i));
    ReplayConfig again = config;
    again.bootstrap = 0;
    again.seed = rng.bits();
    again.progress = [](std::int64_t, std::int64_t) {};
    const std::vector<ReplayRow> drawn = replay(drawn_again(trace, rng), again, policies);
    for (std::size_t row = 0; row < rows.size(); ++row)
      rows[row].activated_of_resample.push_back(drawn[row].max_activated_mean);
    config.progress(i + 1, config.bootstrap);
  }
  compare_with_first(rows);
  return rows;
}

OrderedJson to_json(const std::vector<ReplayRow>& rows, bool each_batch) {
  OrderedJson list = OrderedJson::array();
  // Rows have the same keys.
  const bool brings = std::ranges::any_of(
      rows, [](const ReplayRow& row) { return row.step_copies_mean.has_value(); });
  const bool brings_change =
      std::ranges::any_of(rows, [](const ReplayRow& row) { return row.against_first.has_value(); });
  for (const ReplayRow& row : rows) {
    list.push_back({{"placement", row.placement},
                    {"replication", row.replication},
                    {"replication_effective", row.replication_effective},
                    {"batch", row.batch},
                    {"tokens_per_request", row.tokens_per_request},
                    {"routing", row.routing},
                    {"cases", row.cases},
                    {"max_activated_mean", row.max_activated_mean},
                    {"max_activated_margin", row.max_activated_margin},
                    {"bound_mean", row.bound_mean},
                    {"max_tokens_mean", row.max_tokens_mean},
                    {"time_mean", row.time_mean},
                    {"token_imbalance", row.token_imbalance},
                    {"activated_vs_bound", row.activated_vs_bound},
                    {"activated_vs_optimal", row.activated_vs_optimal},
                    {"activated_vs_even", row.activated_vs_even},
                    {"dropped", row.dropped},
                    {"hit_rate", row.hit_rate ? OrderedJson(*row.hit_rate) : OrderedJson()},
                    {"above_optimal", row.above_optimal},
                    {"above_even", row.above_even}});
    if (brings)
      list.back()["step_copies_mean"] =
          row.step_copies_mean ? OrderedJson(*row.step_copies_mean) : OrderedJson();
    if (brings_change) {
      const auto of_gain = [&](double SampledGain::*part) {
        return row.against_first ? OrderedJson((*row.against_first).*part) : OrderedJson();
      };
      list.back()["against_first_percent"] = of_gain(&SampledGain::change);
      list.back()["against_first_low"] = of_gain(&SampledGain::low);
      list.back()["against_first_high"] = of_gain(&SampledGain::high);
      list.back()["p_less"] = of_gain(&SampledGain::p_less);
    }
    if (row.max_tokens_with_shared_mean)
      list.back()["max_tokens_with_shared_mean"] = *row.max_tokens_with_shared_mean;
    if (row.own_gpu_share) {
      list.back()["own_gpu_share"] = *row.own_gpu_share;
      list.back()["own_node_share"] = *row.own_node_share;
    }
    if (each_batch) list.back()["activated_of_batch"] = row.activated_of_batch;
  }
  return {{"rows", list}};
}

}  // namespace moesim
