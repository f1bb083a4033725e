// SPDX-License-Identifier: Apache-2.0
#include "sim/step/step_cost.hpp"

#include <numeric>

namespace moesim {

namespace {

template <typename Table>
void add_scaled(Table& sum, const Table& more, double scale) {
  for (std::size_t row = 0; row < sum.size(); ++row) {
    for (std::size_t i = 0; i < sum[row].size(); ++i) sum[row][i] += more[row][i] * scale;
  }
}

}  // namespace

void add_sequence(StepBatch& batch, const RowSource& rows, const Binding& binding, Phase phase,
                  SequenceWork work, std::int64_t first_row) {
  RankStep& rank = batch.ranks.back();
  RoutingCoverage ignored;
  rows.append(binding, phase, first_row, work.new_tokens,
              static_cast<std::int32_t>(batch.ranks.size() - 1), batch.rows, ignored);
  rank.sequences.push_back(work);
  rank.tokens += work.new_tokens;
  ++rank.sampled;
}

TokenBalance token_balance(std::span<const LayerOutcome> layers) {
  TokenBalance sum;
  for (const LayerOutcome& layer : layers) {
    const std::vector<std::int32_t>& tokens = layer.load.tokens;
    sum.max_tokens += layer.load.max_tokens;
    if (tokens.empty()) continue;
    sum.mean_tokens += std::accumulate(tokens.begin(), tokens.end(), 0.0) / double(tokens.size());
  }
  return sum;
}

Traffic& Traffic::operator+=(const Traffic& other) {
  time += other.time;
  hidden += other.hidden;
  nvlink += other.nvlink;
  network += other.network;
  return *this;
}

void add_times(StepCost& sum, const StepCost& more, double scale) {
  add_scaled(sum.parts, more.parts, scale);
  add_scaled(sum.by_evidence, more.by_evidence, scale);
}

void add_traffic(StepCost& sum, const StepCost& more) {
  sum.dispatch += more.dispatch;
  sum.combine += more.combine;
  sum.all_reduce += more.all_reduce;
}

void add_work(StepCost& sum, const StepCost& more) {
  sum.flops += more.flops;
  sum.hbm_bytes += more.hbm_bytes;
  for (std::size_t gpu = 0; gpu < sum.idle.size(); ++gpu) sum.idle[gpu] += more.idle[gpu];
}

void scale_times(StepCost& step, double factor) {
  step.total *= factor;
  const auto scale_rows = [&](auto& rows) {
    for (auto& row : rows)
      for (double& seconds : row) seconds *= factor;
  };
  scale_rows(step.parts);
  scale_rows(step.by_evidence);
  for (Traffic* traffic : {&step.dispatch, &step.combine, &step.all_reduce}) {
    traffic->time *= factor;
    traffic->hidden *= factor;
  }
  for (double& seconds : step.idle) seconds *= factor;
  for (Segment& segment : step.segments) segment.seconds *= factor;
  for (Seconds& stage : step.stages) stage *= factor;
}

}  // namespace moesim
