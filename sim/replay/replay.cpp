// SPDX-License-Identifier: Apache-2.0
#include "sim/replay/replay.hpp"

#include <algorithm>
#include <memory>
#include <numeric>

#include <fmt/format.h>
#include <tbb/parallel_for.h>

#include "hardware/rng.hpp"
#include "sim/capacity/capacity.hpp"
#include "sim/expert_memory/expert_memory.hpp"
#include "sim/placement/placement.hpp"
#include "sim/token_routing/token_routing.hpp"

namespace moesim {

namespace {

std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

// Requests that batches may be drawn from, and what was left out of the trace, for messages.
struct Usable {
  std::vector<TraceRequest> requests;
  std::string described;
};

Usable usable_requests(const RoutingTrace& trace, ReplayFit fit) {
  Usable usable;
  const std::size_t first = fit == ReplayFit::half ? 1 : 0;
  const std::size_t stride = fit == ReplayFit::half ? 2 : 1;
  for (std::size_t i = first; i < trace.requests().size(); i += stride) {
    const TraceRequest& request = trace.requests()[i];
    if (!request.has_repetition && request.num_tokens > 0) usable.requests.push_back(request);
  }
  usable.described =
      fmt::format("{} of its {} requests are usable (without repetition{})", usable.requests.size(),
                  trace.requests().size(), fit == ReplayFit::half ? ", odd-numbered" : "");
  return usable;
}

// Trace rows of the sampled batches, [samples][batch].
using BatchRows = std::vector<std::vector<std::int64_t>>;

// Requests in random order, the same again when they run out.
BatchRows rows_of_requests(const Usable& usable, int batch, int samples, Rng rng) {
  std::vector<std::size_t> order(usable.requests.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  BatchRows rows(at(samples));
  for (auto& batch_rows : rows) {
    for (std::size_t drawn = 0; drawn < at(batch); ++drawn) {
      const std::size_t i = drawn % order.size();  // a step of a Fisher-Yates shuffle
      std::swap(order[i], order[i + rng.below(order.size() - i)]);
      const TraceRequest& request = usable.requests[order[i]];
      const auto token = rng.below(static_cast<std::uint64_t>(request.num_tokens));
      batch_rows.push_back(request.row_start + static_cast<std::int64_t>(token));
    }
  }
  return rows;
}

BatchRows distinct_rows(const Usable& usable, int batch, int samples, Rng rng) {
  if (at(batch) > usable.requests.size()) {
    throw ConfigError(
        fmt::format("replay: a batch of {} distinct requests cannot be drawn from the trace: {}; "
                    "the sample \"several\" takes several tokens of each",
                    batch, usable.described));
  }
  return rows_of_requests(usable, batch, samples, rng);
}

BatchRows several_rows(const Usable& usable, int batch, int samples, Rng rng) {
  if (usable.requests.empty()) {
    throw ConfigError(fmt::format("replay: the trace has no usable request: {}", usable.described));
  }
  return rows_of_requests(usable, batch, samples, rng);
}

BatchRows consecutive_rows(const Usable& usable, int batch, int samples, Rng rng) {
  std::vector<std::int64_t> windows_before{0};
  std::int64_t longest = 0;
  for (const TraceRequest& request : usable.requests) {
    const auto windows = std::max<std::int64_t>(request.num_tokens - batch + 1, 0);
    windows_before.push_back(windows_before.back() + windows);
    longest = std::max(longest, request.num_tokens);
  }
  if (windows_before.back() == 0) {
    throw ConfigError(
        fmt::format("replay: no request of the trace has {} consecutive tokens; the longest has "
                    "{}; {}",
                    batch, longest, usable.described));
  }
  BatchRows rows(at(samples));
  for (auto& batch_rows : rows) {
    const auto window =
        static_cast<std::int64_t>(rng.below(static_cast<std::uint64_t>(windows_before.back())));
    const auto after = std::upper_bound(windows_before.begin(), windows_before.end(), window);
    const auto request = at(after - windows_before.begin()) - 1;
    batch_rows.resize(at(batch));
    std::iota(batch_rows.begin(), batch_rows.end(),
              usable.requests[request].row_start + window - windows_before[request]);
  }
  return rows;
}

// The sampled batches: tokens per expert, [samples][layers][experts], and the choices behind them.
class Batches {
 public:
  Batches(const RoutingTrace& trace, BatchRows rows, int gpus, double tokens_per_request)
      : trace_(trace),
        rows_(std::move(rows)),
        layers_(at(trace.layers())),
        experts_(at(trace.num_experts())),
        k_(at(trace.experts_per_token())),
        tokens_(rows_.size() * layers_ * experts_),
        tokens_per_request_(tokens_per_request) {
    trace.visit([&](auto ids) {
      tbb::parallel_for(std::size_t{0}, rows_.size(), [&](std::size_t sample) {
        std::int32_t* const tokens = tokens_.data() + sample * layers_ * experts_;
        for (const std::int64_t row : rows_[sample]) {
          const auto row_ids = ids.subspan(at(row * trace.row_ids()), at(trace.row_ids()));
          for (std::size_t i = 0; i < row_ids.size(); ++i) {
            ++tokens[i / k_ * experts_ + static_cast<std::size_t>(row_ids[i])];
          }
        }
      });
    });
    const std::size_t batch = rows_[0].size();
    for (std::size_t token = 0; token < batch; ++token) {
      source_rank_.push_back(static_cast<std::int32_t>(token * at(gpus) / batch));
    }
  }

  std::size_t samples() const { return rows_.size(); }
  double tokens_per_request() const { return tokens_per_request_; }
  std::span<const std::int32_t> tokens(std::size_t sample, std::size_t layer) const {
    return std::span(tokens_).subspan((sample * layers_ + layer) * experts_, experts_);
  }
  /// `ids` is where the choices are put together.
  TokenRows rows(std::size_t sample, std::size_t layer, std::vector<std::uint16_t>& ids) const {
    ids.clear();
    trace_.visit([&](auto recorded) {
      for (const std::int64_t row : rows_[sample]) {
        const auto chosen = recorded.subspan(at(row * trace_.row_ids()) + layer * k_, k_);
        for (const auto id : chosen) ids.push_back(static_cast<std::uint16_t>(id));
      }
    });
    return {ids, source_rank_};
  }

 private:
  const RoutingTrace& trace_;
  BatchRows rows_;
  std::size_t layers_, experts_, k_;
  std::vector<std::int32_t> tokens_;
  std::vector<std::int32_t> source_rank_;
  double tokens_per_request_;
};

Batches sample_batches(const RoutingTrace& trace, const Usable& usable, int batch,
                       const ReplayConfig& config) {
  const bool consecutive = config.sample == ReplaySample::consecutive;
  // A batch that needs no second token of any request is the same under "several" as under
  // "distinct".
  const auto name = replay_sample_names[consecutive ? 1 : 0];
  const Rng rng(config.seed, fmt::format("replay/{}/{}", name, batch));
  const auto draw = consecutive                               ? consecutive_rows
                    : config.sample == ReplaySample::distinct ? distinct_rows
                                                              : several_rows;
  BatchRows rows = draw(usable, batch, config.sampled_batches, rng);
  const double per_request =
      consecutive ? batch : std::max(1.0, batch / static_cast<double>(usable.requests.size()));
  return {trace, std::move(rows), config.gpus, per_request};
}

// What one routing did over all cases.
struct Score {
  std::int64_t cases = 0, max_activated = 0, max_tokens = 0, above_optimal = 0, above_even = 0;
  double time = 0;  // of one layer, and of layers in order
  CapacityTally capacity{};
  std::int64_t hits = 0, accesses = 0;  // of HBM

  Score& operator+=(const Score& other) {
    cases += other.cases;
    max_activated += other.max_activated;
    max_tokens += other.max_tokens;
    above_optimal += other.above_optimal;
    above_even += other.above_even;
    time += other.time;
    capacity += other.capacity;
    hits += other.hits;
    accesses += other.accesses;
    return *this;
  }
};

// The routings that were asked for, after the two that all are measured against.
constexpr std::size_t even = 0, optimal = 1, asked_for = 2;
using Routers = std::vector<std::unique_ptr<TokenRouter>>;

Routers make_routers(const std::vector<ConfigNode>& routings, const RoutingContext& context) {
  Routers routers;
  for (const char* reference : {"even", "optimal"}) {
    routers.push_back(token_routers().make(ConfigNode(reference, "replay"), context));
  }
  for (const ConfigNode& routing : routings) {
    routers.push_back(token_routers().make(routing, context));
  }
  return routers;
}

// What limits a layer beside its placement.
struct Limits {
  std::unique_ptr<CapacityRule> capacity;
  std::unique_ptr<ExpertMemory> memory;  // null: every slot stands in HBM
  int slots_per_layer = 0;
};

Limits read_limits(const ReplayConfig& config) {
  Limits limits{capacity_rules().make(config.capacity), nullptr, 0};
  if (!config.expert_memory) return limits;
  read_object(config.expert_memory->as_policy(), expert_memory_keys, [&](ConfigReader& reader) {
    limits.memory = expert_memories().make_from(reader);
    limits.slots_per_layer = static_cast<int>(reader.integer("slots_per_layer"));
  });
  return limits;
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

std::vector<Score> score_layer(const LayerPlacement& placement, std::size_t layer,
                               const Routers& routers, const Batches& batches, RooflineTime time,
                               const Limits& limits) {
  RoutingScratch scratch;
  std::vector<std::uint16_t> ids;
  const bool limited = limits.capacity != nullptr;
  LayerChoices choices;
  std::vector<DelayedSelection> backlog;
  std::vector<std::int32_t> tokens;
  std::vector<LayerMemory> memories;
  for (std::size_t i = 0; limits.memory && i < routers.size(); ++i) {
    memories.emplace_back(placement, limits);
  }
  const bool needs_rows =
      limited || std::any_of(routers.begin(), routers.end(),
                             [](const auto& router) { return router->needs_token_rows(); });
  std::vector<std::int32_t> tokens_of_slot(at(placement.slots()));
  std::vector<LayerLoad> loads(routers.size());
  std::vector<Score> scores(routers.size());
  for (std::size_t sample = 0; sample < batches.samples(); ++sample) {
    RoutingProblem problem{
        placement, batches.tokens(sample, layer), static_cast<int>(layer), sample, {}};
    if (needs_rows) problem.rows = batches.rows(sample, layer, ids);
    CapacityTally tally;
    if (limited) {
      choices.ids = ids;
      choices.source_rank.assign(problem.rows.source_rank.begin(), problem.rows.source_rank.end());
      choices.source_gpu = choices.source_rank;
      tokens.resize(problem.tokens.size());
      limit_choices(*limits.capacity, choices, backlog, tokens, tally);
      problem.tokens = tokens;
      problem.rows = {choices.ids, choices.source_rank, choices.dropped};
    }
    for (std::size_t i = 0; i < routers.size(); ++i) {
      routers[i]->route(problem, scratch, tokens_of_slot);
      layer_load(placement, tokens_of_slot, loads[i]);
      scores[i].time += time.busiest(placement, tokens_of_slot);
      scores[i].capacity += tally;
      if (limits.memory) memories[i].run(tokens_of_slot, scores[i]);
    }
    for (std::size_t i = 0; i < routers.size(); ++i) {
      const std::int32_t activated = loads[i].max_activated;
      check(activated >= loads[optimal].max_activated, "a routing beat the exact optimum");
      scores[i] += {1,
                    activated,
                    loads[i].max_tokens,
                    activated > loads[optimal].max_activated ? 1 : 0,
                    activated > loads[even].max_activated ? 1 : 0,
                    0};
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

ReplayRow scored_row(const Score& score, const Score& of_even, const Score& of_optimal) {
  const auto ratio = [](std::int64_t a, std::int64_t b) {
    return static_cast<double>(a) / static_cast<double>(b);
  };
  ReplayRow row;
  row.cases = score.cases;
  row.max_activated_mean = ratio(score.max_activated, score.cases);
  row.max_tokens_mean = ratio(score.max_tokens, score.cases);
  row.time_mean = score.time / static_cast<double>(score.cases);
  row.activated_vs_optimal = ratio(score.max_activated, of_optimal.max_activated);
  row.activated_vs_even = ratio(score.max_activated, of_even.max_activated);
  row.above_optimal = score.above_optimal;
  row.above_even = score.above_even;
  if (score.capacity.dropped > 0) {
    row.dropped = ratio(score.capacity.dropped, score.capacity.selections);
  }
  if (score.accesses > 0) row.hit_rate = ratio(score.hits, score.accesses);
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
  if (config.sampled_batches < 1) throw ConfigError("replay: expected at least 1 sampled batch");
  for (const int batch : config.batches) {
    if (batch < 1) throw ConfigError(fmt::format("replay: a batch of {}; expected >= 1", batch));
  }
}

}  // namespace

std::vector<ReplayRow> replay(const RoutingTrace& trace, const ReplayConfig& config) {
  require_sound(config);
  const Limits limits = read_limits(config);
  const Usable usable = usable_requests(trace, config.fit);
  std::vector<Batches> batches;
  for (const int batch : config.batches) {
    batches.push_back(sample_batches(trace, usable, batch, config));
  }
  std::vector<std::unique_ptr<Placer>> asked;
  for (const ConfigNode& policy : config.placements) asked.push_back(placers().make(policy));
  const bool coactivation = std::any_of(
      asked.begin(), asked.end(), [](const auto& placer) { return placer->uses_coactivation(); });
  const ExpertStatistics seen =
      observe(std::array{&trace}, config.fit == ReplayFit::half, coactivation);

  std::vector<ReplayRow> rows;
  for (std::size_t p = 0; p < asked.size(); ++p) {
    for (const double replication : config.replications) {
      const int slots = slots_for_replication(trace.num_experts(), config.gpus, replication);
      const ExpertPlacement placement = place_all(
          *asked[p], {trace.num_experts(), config.gpus, slots, config.nodes, config.groups}, seen);
      const Routers routers = make_routers(config.routings, {placement, config.time});
      for (std::size_t b = 0; b < batches.size(); ++b) {
        const std::vector<Score> scores =
            score_all(placement, routers, batches[b], config.time, limits);
        for (std::size_t i = 0; i < config.routings.size(); ++i) {
          ReplayRow row = scored_row(scores[asked_for + i], scores[even], scores[optimal]);
          row.placement = label(config.placements[p]);
          row.replication = replication;
          row.replication_effective =
              static_cast<double>(slots) * config.gpus / trace.num_experts();
          row.batch = config.batches[b];
          row.tokens_per_request = batches[b].tokens_per_request();
          row.routing = label(config.routings[i]);
          rows.push_back(std::move(row));
        }
      }
    }
  }
  return rows;
}

OrderedJson to_json(const std::vector<ReplayRow>& rows) {
  OrderedJson list = OrderedJson::array();
  for (const ReplayRow& row : rows) {
    list.push_back({{"placement", row.placement},
                    {"replication", row.replication},
                    {"replication_effective", row.replication_effective},
                    {"batch", row.batch},
                    {"tokens_per_request", row.tokens_per_request},
                    {"routing", row.routing},
                    {"cases", row.cases},
                    {"max_activated_mean", row.max_activated_mean},
                    {"max_tokens_mean", row.max_tokens_mean},
                    {"time_mean", row.time_mean},
                    {"activated_vs_optimal", row.activated_vs_optimal},
                    {"activated_vs_even", row.activated_vs_even},
                    {"dropped", row.dropped},
                    {"hit_rate", row.hit_rate ? OrderedJson(*row.hit_rate) : OrderedJson()},
                    {"above_optimal", row.above_optimal},
                    {"above_even", row.above_even}});
  }
  return {{"rows", list}};
}

}  // namespace moesim
