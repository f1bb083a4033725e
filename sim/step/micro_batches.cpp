// SPDX-License-Identifier: Apache-2.0
#include "sim/step/micro_batches.hpp"

#include <algorithm>
#include <functional>
#include <numeric>
#include <utility>

#include "hardware/at.hpp"

namespace moesim {

namespace {

std::size_t row_of(Part part) { return at(part); }

void add_micro_batch(StepCost& sum, const StepCost& other) {
  add_work(sum, other);
  add_layers(sum.layers, other.layers);
  std::ranges::transform(sum.tokens_of_expert, other.tokens_of_expert, sum.tokens_of_expert.begin(),
                         std::plus());
  sum.samples.insert(sum.samples.end(), other.samples.begin(), other.samples.end());
}

std::int32_t share(std::int32_t all, std::int32_t tokens, std::int32_t of) {
  return static_cast<std::int32_t>(std::int64_t{all} * tokens / of);
}

}  // namespace

std::vector<StepBatch> micro_batches(const StepBatch& batch, int count, Cut cut) {
  std::vector<StepBatch> parts(at(count));
  const auto end_of = [&](std::int32_t all, int i) { return (all * (i + 1) + count - 1) / count; };
  // The tokens of each rank that parts 0 .. i hold together, [ranks][parts].
  std::vector<std::vector<std::int32_t>> ends;
  for (const RankStep& rank : batch.ranks) {
    std::vector<std::int32_t>& of_rank = ends.emplace_back();
    for (int i = 0; i < count; ++i) of_rank.push_back(end_of(rank.tokens, i));
    if (cut == Cut::anywhere) continue;
    std::int32_t passed = 0;
    for (const SequenceWork& work : rank.sequences) {
      const std::int32_t before = std::exchange(passed, passed + work.new_tokens);
      for (std::int32_t& end : of_rank)
        if (end > before && end < passed) end = passed;
    }
  }
  for (StepBatch& part : parts) {
    part.start = batch.start;
    part.ranks.resize(batch.ranks.size());
  }
  for (std::size_t r = 0; r < batch.ranks.size(); ++r) {
    const RankStep& rank = batch.ranks[r];
    int i = 0;
    std::int32_t passed = 0;
    for (SequenceWork work : rank.sequences) {
      while (work.new_tokens > 0) {
        const std::int32_t here = std::min(ends[r][at(i)] - passed, work.new_tokens);
        if (here > 0)
          parts[at(i)].ranks[r].sequences.push_back({here, work.context_tokens, work.verifies});
        parts[at(i)].ranks[r].tokens += here;
        work.new_tokens -= here;
        work.context_tokens += here;
        passed += here;
        if (passed == ends[r][at(i)]) ++i;
      }
    }
    std::int32_t sampled = 0, padding = 0;
    for (i = 0; i < count; ++i) {
      RankStep& part = parts[at(i)].ranks[r];
      const std::int32_t until = ends[r][at(i)];
      part.sampled = share(rank.sampled, until, rank.tokens) - sampled;
      part.padding = share(rank.padding, until, rank.tokens) - padding;
      sampled += part.sampled;
      padding += part.padding;
    }
  }
  std::vector<std::int32_t> passed(batch.ranks.size());
  for (RowRange range : batch.rows) {
    std::int32_t& before = passed[at(range.rank)];
    for (int i = 0; range.count > 0; ++i) {
      const std::int32_t here = std::min(ends[at(range.rank)][at(i)] - before, range.count);
      if (here <= 0) continue;
      parts[at(i)].rows.push_back({range.phase, range.rank, here, range.first_row});
      before += here;
      range.first_row += here;
      range.count -= here;
    }
  }
  return parts;
}

void join_interleaved(StepCost& sum, const StepCost& other) {
  const auto crosses_links = [](std::size_t part) {
    return part == row_of(Part::dispatch) || part == row_of(Part::combine) ||
           part == row_of(Part::all_reduce);
  };
  double computed = 0, on_links = 0;
  for (const StepCost* half : {&std::as_const(sum), &other}) {
    for (std::size_t part = 0; part < half->parts.size(); ++part) {
      const auto& row = half->parts[part];
      (crosses_links(part) ? on_links : computed) += std::accumulate(row.begin(), row.end(), 0.0);
    }
  }
  // Work of other parts has the GPU for itself, so `total` has all of it.
  const double total = interleaved_seconds(sum.segments, other.segments);
  const double exposed = on_links > 0 ? std::max(0.0, total - computed) / on_links : 0;
  const auto hide = [&](Traffic& traffic, const Traffic& more, Part part) {
    traffic += more;
    for (const StepCost* half : {&std::as_const(sum), &other}) {
      const auto& row = half->parts[row_of(part)];
      traffic.hidden += Seconds(std::accumulate(row.begin(), row.end(), 0.0) * (1 - exposed));
    }
  };
  hide(sum.dispatch, other.dispatch, Part::dispatch);
  hide(sum.combine, other.combine, Part::combine);
  hide(sum.all_reduce, other.all_reduce, Part::all_reduce);
  for (std::size_t part = 0; part < sum.parts.size(); ++part) {
    const bool link = crosses_links(part);
    for (std::size_t resource = 0; resource < sum.parts[part].size(); ++resource) {
      double& seconds = sum.parts[part][resource];
      seconds += other.parts[part][resource];
      if (link) seconds *= exposed;
    }
    for (std::size_t ground = 0; ground < sum.by_evidence[part].size(); ++ground) {
      double& seconds = sum.by_evidence[part][ground];
      seconds += other.by_evidence[part][ground];
      if (link) seconds *= exposed;
    }
  }
  add_micro_batch(sum, other);
  sum.total = Seconds(total);
  sum.micro_batches = sum.passes = 2;
}

namespace {

// The share of a stage's work that is on the critical path.
double critical_share(const AfdTimes& times, AfdStage stage) {
  const Seconds busy = times.busy_of(stage);
  return busy > Seconds{} ? times.critical_of(stage) / busy : 0;
}

}  // namespace

StepCost join_afd(std::span<const StepCost> micro_batches, const ParallelPlan& plan) {
  std::vector<AfdChain> chains;
  for (const StepCost& cost : micro_batches) chains.push_back(cost.chain);
  StepCost step = micro_batches.front();
  for (const StepCost& other : micro_batches.subspan(1)) {
    add_micro_batch(step, other);
    add_traffic(step, other);
    add_times(step, other);
  }
  const AfdTimes times = pass_afd(chains);
  for (std::size_t part = 0; part < step.parts.size(); ++part) {
    const double share = critical_share(times, afd_stage_of(static_cast<Part>(part)));
    for (double& seconds : step.parts[part]) seconds *= share;
    for (double& seconds : step.by_evidence[part]) seconds *= share;
  }
  const auto hide = [&](Traffic& traffic, AfdStage stage) {
    traffic.hidden = traffic.time * (1 - critical_share(times, stage));
  };
  hide(step.dispatch, AfdStage::dispatch);
  hide(step.combine, AfdStage::combine);
  hide(step.all_reduce, AfdStage::attention);
  for (int gpu = 0; gpu < plan.gpus(); ++gpu) {
    const AfdStage side = plan.expert_rank(gpu) ? AfdStage::ffn : AfdStage::attention;
    step.idle[at(gpu)] += (times.total - times.busy_of(side)).count();
  }
  step.total = times.total;
  step.segments = {{false, step.total.count()}};
  step.micro_batches = step.passes = static_cast<int>(micro_batches.size());
  step.chain = {};
  step.afd = times;
  return step;
}

namespace {

// When the last of the micro-batches is back after so many rounds of a pipeline that was empty.
Seconds end_of_rounds(std::span<const std::vector<Seconds>> stages,
                      std::span<const std::vector<Seconds>> hops, int rounds) {
  std::vector<Seconds> free(stages.front().size());
  std::vector<Seconds> back(stages.size());
  for (int round = 0; round < rounds; ++round) {
    for (std::size_t m = 0; m < stages.size(); ++m) {
      Seconds ready = back[m];
      for (std::size_t s = 0; s < free.size(); ++s) {
        free[s] = std::max(ready, free[s]) + stages[m][s];
        ready = free[s] + hops[m][s];
      }
      back[m] = ready;
    }
  }
  return back.back();
}

}  // namespace

Seconds pipeline_period(std::span<const std::vector<Seconds>> stages,
                        std::span<const std::vector<Seconds>> hops) {
  // The rounds of a max-plus system become periodic after a few; the mean is over those after.
  constexpr int settled = 16, measured = 16;
  return (end_of_rounds(stages, hops, settled + measured) - end_of_rounds(stages, hops, settled)) /
         measured;
}

Seconds first_round(std::span<const std::vector<Seconds>> stages,
                    std::span<const std::vector<Seconds>> hops) {
  return end_of_rounds(stages, hops, 1);
}

StepCost join_pipeline(std::span<const StepCost> micro_batches,
                       std::span<const std::vector<CollectiveCost>> hops, const ParallelPlan& plan,
                       bool first) {
  std::vector<std::vector<Seconds>> stages, ways;
  for (std::size_t m = 0; m < micro_batches.size(); ++m) {
    const StepCost& cost = micro_batches[m];
    stages.push_back(cost.stages);
    std::vector<Seconds>& way = ways.emplace_back();
    for (const CollectiveCost& hop : hops[m]) way.push_back(hop.time);
    way.back() += cost.total - std::accumulate(cost.stages.begin(), cost.stages.end(), Seconds{});
  }
  StepCost step = micro_batches.front();
  step.total = first ? first_round(stages, ways) : pipeline_period(stages, ways);
  step.passes = static_cast<int>(micro_batches.size());
  for (const StepCost& other : micro_batches.subspan(1)) {
    add_micro_batch(step, other);
    add_traffic(step, other);
  }
  for (auto kind : {&StepCost::dispatch, &StepCost::combine, &StepCost::all_reduce}) {
    (step.*kind).time /= plan.pp;
    (step.*kind).hidden /= plan.pp;
  }

  const double mean = 1.0 / plan.pp;
  step.parts = {};
  step.by_evidence = {};
  Seconds charged{};
  auto& pipeline = step.parts[row_of(Part::pipeline)];
  for (std::size_t m = 0; m < micro_batches.size(); ++m) {
    add_times(step, micro_batches[m], mean);
    charged += micro_batches[m].total * mean;
    for (const CollectiveCost& hop : hops[m]) {
      pipeline[at(hop.bound)] += hop.time.count() * mean;
      charged += hop.time * mean;
    }
  }
  const double waiting = std::max(0.0, (step.total - charged).count());
  pipeline[at(Resource::latency)] += waiting;
  // There is no measurement of a pipeline of these stages.
  step.by_evidence[row_of(Part::pipeline)][at(Evidence::extrapolated)] +=
      std::accumulate(pipeline.begin(), pipeline.end(), 0.0);

  const int stage_gpus = plan.stage_gpus();
  for (int gpu = 0; gpu < plan.gpus(); ++gpu) {
    Seconds busy{};
    for (const StepCost& cost : micro_batches) busy += cost.stages[at(gpu / stage_gpus)];
    step.idle[at(gpu)] += (step.total - busy).count();
  }
  step.segments = {{false, step.total.count()}};
  return step;
}

}  // namespace moesim
