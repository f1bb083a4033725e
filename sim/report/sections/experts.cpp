// SPDX-License-Identifier: Apache-2.0
#include "sim/report/sections/experts.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "hardware/at.hpp"
#include "sim/report/measurement.hpp"

namespace moesim {

using enum Better;

namespace {

// [](histogram) of the value that so large a share does not exceed.
auto quantile(double share) {
  return [share](const CountHistogram& counts) { return counts.quantile(share); };
}

}  // namespace

Fields<CountHistogram> rows_of(const CountHistogram*) {
  using S = CountHistogram;
  return {{"mean", &S::mean, "mean"},
          {"p50", quantile(.50), "median"},
          {"p95", quantile(.95), "95th percentile"},
          {"p99", quantile(.99), "99th percentile"},
          {"max", &S::max, "largest"}};
}

Fields<RankDistribution> rows_of(const RankDistribution*) {
  using S = RankDistribution;
  return {{merged, &S::steps},
          {"total_by_rank", &S::total_by_rank, "sum over the steps, [EP rank]"}};
}

Fields<ExpertLayerStats> rows_of(const ExpertLayerStats*) {
  using S = ExpertLayerStats;
  return {{"layer", &S::layer, "number of the layer in the model"},
          {"rank_activated", &S::rank_activated,
           "activated whole experts of an EP rank in a step: over (rank, step)"},
          {"rank_tokens", &S::rank_tokens,
           "tokens of whole experts of an EP rank in a step: over (rank, step)"},
          {"expert_tokens", &S::expert_tokens,
           "tokens of a logical expert in a step: over (expert, step)"}};
}

Fields<ExpertSummary> rows_of(const ExpertSummary*) {
  using S = ExpertSummary;
  return {
      {"max_activated_mean", &S::max_activated_mean,
       "activated experts of the busiest EP rank, mean over (layer, step)", "", less},
      {"activated_mean", &S::activated_mean, "activated experts of an EP rank", "", less},
      {"active_experts_mean", &S::active_experts_mean, "logical experts with tokens"},
      {"uniform_experts_mean", &S::uniform_experts_mean,
       "logical experts that as many tokens would have under uniform routing, experts x "
       "(1 - (1 - k / experts)^tokens)"},
      {"max_tokens_mean", &S::max_tokens_mean, "expert tokens of the busiest EP rank", "", less},
      {"tokens_mean", &S::tokens_mean, "expert tokens of an EP rank"},
      {"balancedness", &S::balancedness, "tokens_mean / max_tokens_mean", "mean/max", more},
      {"imbalance", &S::imbalance, "max_tokens_mean / tokens_mean", "max/mean", less},
      {"cv", &S::cv, "coefficient of variation of tokens over EP ranks", "", less},
      {"gemm_occupancy", &S::gemm_occupancy, "rows of padded GEMMs that hold tokens",
       "share of rows", more},
      {if_any, "imbalance_with_shared", &S::imbalance_with_shared,
       "imbalance when tokens of the shared expert count too", "max/mean", less},
      {if_any, "own_gpu_share", &S::own_gpu_share,
       "selections that the EP rank of their token serves", "share of selections", more},
      {if_any, "own_domain_share", &S::own_domain_share,
       "selections served within the NVLink domain of their token", "share of selections", more},
      {if_any, "step_copies_mean", &S::step_copies_mean,
       "copies of experts that a step brings for a layer", "", less},
      {if_any, "step_copy_bytes_mean", &S::step_copy_bytes_mean, "what these send over links", "B",
       less},
      {"hot_rank_events",
       Fields<S>{{"layer_steps", &S::hot_layer_steps,
                  "(layer, step) pairs whose busiest rank had more than hot_rank_threshold times "
                  "the mean tokens",
                  "", less},
                 {"worst", &S::hottest, "largest ratio seen", "max/mean", less}}}};
}

Fields<ExpertKindStats> rows_of(const ExpertKindStats*) {
  using S = ExpertKindStats;
  return {{merged, &S::summary}, {if_any, "layers", &S::layers, ""}};
}

Fields<HottestRank> rows_of(const HottestRank*) {
  using S = HottestRank;
  return {{"time_s", &S::time_s, "when the step ended", "s"},
          {"layer", &S::layer, "number of the layer in the model"},
          {"rank", &S::rank, "EP rank"},
          {"ratio", &S::ratio, "its tokens over the mean of all ranks", "max/mean", less}};
}

Fields<ExpertStats> rows_of(const ExpertStats*) {
  using S = ExpertStats;
  return {
      {merged, &S::summary},
      {"by_step_kind/KIND", &S::by_step_kind, ""},
      {"replicas", &S::replicas, "physical experts of a layer beyond the logical ones"},
      {"replication_effective", &S::replication_effective,
       "physical over logical experts, as the slots came out", "", less},
      {"dropped", &S::dropped, "selections of the gate that no expert ran", "share of selections",
       less},
      {"rerouted", &S::rerouted, "selections that another expert ran", "share of selections", less},
      {"delayed", &S::delayed, "selections left for the next step, of all of the gate", "", less},
      {"hot_rank_threshold", &S::hot_rank_threshold, "measurement/hot_rank_threshold", "max/mean"},
      {if_any, "hottest_ranks", &S::hottest_ranks, ""},
      {if_any, "tokens_per_expert_by_workload/WORKLOAD", &S::tokens_per_expert_by_workload,
       "[layer][logical expert] tokens of the whole run, by workload tag"}};
}

namespace {

constexpr std::size_t hot_ranks_kept = 20;

// Into a list in order of ratio; of equals the earlier one stays first.
void keep_worst(std::vector<HotRank>& worst, const HotRank& event) {
  if (worst.size() == hot_ranks_kept && worst.back().ratio >= event.ratio) return;
  const auto place = std::find_if(worst.begin(), worst.end(),
                                  [&](const HotRank& other) { return other.ratio < event.ratio; });
  worst.insert(place, event);
  if (worst.size() > hot_ranks_kept) worst.pop_back();
}

// Sums of EP ranks in one layer of a step.
struct RankSums {
  double ranks = 0, activated = 0, tokens = 0, squares = 0;
  double mean() const { return tokens / ranks; }
  double variation() const {
    return std::sqrt(std::max(0.0, squares / ranks - mean() * mean())) / mean();
  }
};

RankSums add_ranks(const LayerLoad& load, std::int64_t steps, ExpertTotals::Layer& layer) {
  layer.tokens_of_rank.resize(load.tokens.size());
  layer.activated_of_rank.resize(load.tokens.size());
  RankSums sums{.ranks = static_cast<double>(load.tokens.size())};
  for (std::size_t rank = 0; rank < load.tokens.size(); ++rank) {
    const double tokens = load.tokens[rank] + load.sliced_tokens;
    sums.activated += load.activated[rank] + load.sliced;
    sums.tokens += tokens;
    sums.squares += tokens * tokens;
    layer.tokens_of_rank[rank] += load.tokens[rank] * steps;
    layer.activated_of_rank[rank] += load.activated[rank] * steps;
  }
  layer.rank_tokens.add(load.tokens, steps);
  layer.rank_activated.add(load.activated, steps);
  return sums;
}

// With a shared expert that is a slot: adds the rows of each rank, those of the shared expert
// included.
void add_shared_rows(const LayerOutcome& outcome, double times, ExpertTotals& totals) {
  if (outcome.shared_tokens.empty()) return;
  double most = 0, sum = 0;
  for (std::size_t rank = 0; rank < outcome.shared_tokens.size(); ++rank) {
    const double rows = double(outcome.load.tokens[rank]) + outcome.shared_tokens[rank];
    most = std::max(most, rows);
    sum += rows;
  }
  totals.max_rows += most * times;
  totals.mean_rows += sum / static_cast<double>(outcome.shared_tokens.size()) * times;
}

ExpertSummary expert_summary(const ExpertTotals& totals) {
  const double n = totals.layer_steps;
  const auto if_any = [&](double sum) { return sum > 0 ? std::optional(sum / n) : std::nullopt; };
  const auto near = [&](std::int64_t selections) {
    return totals.locality.selections > 0
               ? std::optional(ratio(double(selections), double(totals.locality.selections)))
               : std::nullopt;
  };
  return {.max_activated_mean = ratio(totals.max_activated, n),
          .activated_mean = ratio(totals.mean_activated, n),
          .active_experts_mean = ratio(totals.active_experts, n),
          .uniform_experts_mean = ratio(totals.uniformly_active, n),
          .max_tokens_mean = ratio(totals.max_tokens, n),
          .tokens_mean = ratio(totals.mean_tokens, n),
          .balancedness = ratio(totals.mean_tokens, totals.max_tokens),
          .imbalance = ratio(totals.max_tokens, totals.mean_tokens),
          .cv = ratio(totals.cv, n),
          .gemm_occupancy = ratio(totals.useful_rows, totals.padded_rows),
          .imbalance_with_shared = totals.max_rows > 0
                                       ? std::optional(totals.max_rows / totals.mean_rows)
                                       : std::nullopt,
          .own_gpu_share = near(totals.locality.own_gpu),
          .own_domain_share = near(totals.locality.own_domain),
          .step_copies_mean = if_any(totals.step_copies),
          .step_copy_bytes_mean = if_any(totals.step_copy_bytes),
          .hot_layer_steps = totals.hot_layer_steps,
          .hottest = totals.hottest};
}

ExpertTotals sum(const std::array<ExpertTotals, 3>& kinds) {
  ExpertTotals all;
  using S = ExpertTotals;
  for (const S& part : kinds) {
    add_members<&S::layer_steps, &S::max_activated, &S::mean_activated, &S::max_tokens,
                &S::mean_tokens, &S::cv, &S::active_experts, &S::uniformly_active, &S::useful_rows,
                &S::padded_rows, &S::max_rows, &S::mean_rows, &S::locality, &S::step_copies,
                &S::step_copy_bytes, &S::capacity, &S::hot_layer_steps>(all, part);
    all.hottest = std::max(all.hottest, part.hottest);
  }
  return all;
}

// Tokens per expert over the whole run, [workload tag][layer][expert]: what was replayed, row by
// row.
Named<ExpertCounts> expert_counts(const Deployment& e, const Measurement& measurement) {
  std::map<std::string, ExpertCounts> counts;
  const auto layers = at(e.model.moe_layers());
  const auto experts = at(e.model.experts);
  const auto k = at(e.model.experts_per_token);
  for (const Phase phase : {Phase::prefill, Phase::decode}) {
    const RoutingTrace& trace =
        phase == Phase::prefill && e.prefill_trace ? *e.prefill_trace : e.trace;
    const std::vector<std::uint32_t>& uses = measurement.row_uses(phase);
    trace.visit([&](auto ids) {
      for (const TraceRequest& request : trace.requests()) {
        auto& tag = counts[trace.workloads()[at(request.workload)]];
        tag.resize(layers, std::vector<std::int64_t>(experts));
        for (std::int64_t r = request.row_start; r < request.row_start + request.num_tokens; ++r) {
          const auto row = at(r);
          if (uses[row] == 0) continue;
          const auto* id = ids.data() + row * layers * k;
          for (std::size_t l = 0; l < layers; ++l) {
            for (std::size_t j = 0; j < k; ++j) tag[l][at(*id++)] += uses[row];
          }
        }
      }
    });
  }
  return {counts.begin(), counts.end()};
}

ExpertKindStats expert_kind_of(const Deployment& e, const ExpertTotals& totals) {
  ExpertKindStats kind{expert_summary(totals), {}};
  for (std::size_t l = 0; l < totals.layers.size(); ++l) {
    const ExpertTotals::Layer& layer = totals.layers[l];
    kind.layers.push_back({e.trace.meta().layer_ids[l],
                           {layer.rank_activated, layer.activated_of_rank},
                           {layer.rank_tokens, layer.tokens_of_rank},
                           layer.expert_tokens});
  }
  return kind;
}

}  // namespace

void ExpertSum::add_layers(const Deployment& e, StepKind kind, const LayersDone& done,
                           std::int64_t steps, std::optional<Time> now) {
  ExpertTotals& totals = by_kind[at(kind)];
  const MoeModel& model = e.model;
  const auto experts = at(model.experts);
  const auto times = static_cast<double>(steps);
  totals.layers.resize(done.layers.size());
  for (std::size_t l = 0; l < done.layers.size(); ++l) {
    const LayerOutcome& outcome = done.layers[l];
    const LayerLoad& load = outcome.load;
    ExpertTotals::Layer& layer = totals.layers[l];
    const RankSums sums = add_ranks(load, steps, layer);
    const auto tokens_of_layer = done.tokens_of_expert.subspan(l * experts, experts);
    layer.expert_tokens.add(tokens_of_layer, steps);
    // Selections are whole numbers, of which several are added at a time.
    const auto selections = static_cast<double>(
        std::accumulate(tokens_of_layer.begin(), tokens_of_layer.end(), std::int64_t{0}));
    const double ratio = load.most_tokens() / sums.mean();
    const bool hot = ratio > e.hot_rank_threshold;
    totals.layer_steps += times;
    totals.max_activated += load.most_activated() * times;
    totals.mean_activated += sums.activated / sums.ranks * times;
    totals.max_tokens += load.most_tokens() * times;
    totals.mean_tokens += sums.mean() * times;
    totals.cv += sums.variation() * times;
    totals.active_experts += outcome.active_experts * times;
    totals.uniformly_active +=
        done.passes *
        uniformly_active(model.experts, model.experts_per_token,
                         selections / model.experts_per_token / done.passes) *
        times;
    totals.useful_rows += static_cast<double>(outcome.useful_rows) * times;
    totals.padded_rows += static_cast<double>(outcome.padded_rows) * times;
    add_shared_rows(outcome, times, totals);
    totals.step_copies += outcome.step_copies * times;
    totals.step_copy_bytes += (outcome.bringing.nvlink + outcome.bringing.network).value() * times;
    for (std::int64_t Locality::*count :
         {&Locality::selections, &Locality::own_gpu, &Locality::own_domain})
      totals.locality.*count += outcome.locality.*count * steps;
    totals.capacity += outcome.capacity;
    totals.hot_layer_steps += hot ? steps : 0;
    totals.hottest = std::max(totals.hottest, ratio);
    if (hot && now) {
      const auto busiest = std::max_element(load.tokens.begin(), load.tokens.end());
      keep_worst(hot_ranks, {*now, static_cast<std::int32_t>(l),
                             static_cast<std::int32_t>(busiest - load.tokens.begin()), ratio});
    }
  }
}

ExpertStats experts_of(const Deployment& e, const ExpertSum& totals,
                       const Measurement& measurement) {
  const ExpertTotals all = sum(totals.by_kind);
  ExpertStats experts;
  experts.summary = expert_summary(all);
  for (std::size_t kind = 0; kind < 3; ++kind) {
    const ExpertTotals& part = totals.by_kind[kind];
    if (part.layer_steps == 0) continue;
    experts.by_step_kind.emplace_back(step_kind_names[kind], expert_kind_of(e, part));
  }
  if (!e.placement.empty()) {
    experts.replicas = e.placement.front().whole_slots() - e.placement.front().experts();
  }
  experts.replication_effective = e.replication_effective;
  // Shares are of the selections that the gate made.
  const auto share = [&](std::int64_t selections) {
    return ratio(double(selections), double(all.capacity.selections));
  };
  // A selection is dropped in the step after the gate's: the gate's own may be few by then.
  experts.dropped = ratio(double(all.capacity.dropped), double(all.capacity.decided()));
  experts.rerouted = share(all.capacity.rerouted);
  experts.delayed = share(all.capacity.delayed);
  experts.hot_rank_threshold = e.hot_rank_threshold;
  for (const HotRank& hot : totals.hot_ranks) {
    experts.hottest_ranks.push_back(
        {to_seconds(hot.at).count(), e.trace.meta().layer_ids[at(hot.layer)], hot.rank, hot.ratio});
  }
  if (e.expert_counts) experts.tokens_per_expert_by_workload = expert_counts(e, measurement);
  return experts;
}

}  // namespace moesim
