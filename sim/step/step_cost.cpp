// SPDX-License-Identifier: Apache-2.0
#include "sim/step/step_cost.hpp"

#include <algorithm>
#include <numeric>

#include "hardware/sums.hpp"

namespace moesim {

namespace {

template <typename Table>
void add_scaled(Table& sum, const Table& more, double scale) {
  for (std::size_t row = 0; row < sum.size(); ++row) {
    for (std::size_t i = 0; i < sum[row].size(); ++i) sum[row][i] += more[row][i] * scale;
  }
}

void add(CollectiveCost& sum, const CollectiveCost& other) {
  sum.time += other.time;
  sum.nvlink += other.nvlink;
  sum.network += other.network;
}

void add(LayerOutcome& sum, const LayerOutcome& other) {
  sum.load.max_activated = sum.load.max_tokens = 0;
  for (std::size_t rank = 0; rank < sum.load.tokens.size(); ++rank) {
    sum.load.activated[rank] += other.load.activated[rank];
    sum.load.tokens[rank] += other.load.tokens[rank];
    sum.load.max_activated = std::max(sum.load.max_activated, sum.load.activated[rank]);
    sum.load.max_tokens = std::max(sum.load.max_tokens, sum.load.tokens[rank]);
  }
  sum.load.sliced += other.load.sliced;
  sum.load.sliced_tokens += other.load.sliced_tokens;
  for (std::size_t rank = 0; rank < sum.shared_tokens.size(); ++rank)
    sum.shared_tokens[rank] += other.shared_tokens[rank];
  sum.locality += other.locality;
  sum.active_experts += other.active_experts;
  sum.routing += other.routing;
  sum.step_copies += other.step_copies;
  add(sum.bringing, other.bringing);
  add(sum.exchange.dispatch, other.exchange.dispatch);
  add(sum.exchange.combine, other.exchange.combine);
  sum.useful_rows += other.useful_rows;
  sum.padded_rows += other.padded_rows;
}

}  // namespace

void Energy::add(const Energy& more, double times, PartSet some) {
  some.for_each([&](std::size_t part) { joules[part] += more.joules[part] * times; });
  computing += more.computing * times;
  computing_experts += more.computing_experts * times;
}

void Energy::add(Part part, const Cost& cost, double gpus) {
  if (cost.draw <= Watts{}) return;
  joules[at(part)] += cost.draw.value() * cost.time.count() * gpus;
  const double seconds = cost.time.count() * gpus;
  computing += seconds;
  if (part == Part::experts) computing_experts += seconds;
}

void add_layers(std::vector<LayerOutcome>& sum, std::span<const LayerOutcome> more) {
  for (std::size_t l = 0; l < sum.size(); ++l) add(sum[l], more[l]);
}

std::vector<LayerOutcome> StepSample::layers() const {
  std::vector<LayerOutcome> all;
  all.reserve(at(moe_layers));
  for (int l = 0; l < moe_layers; ++l) all.push_back(layer(l));
  return all;
}

std::vector<std::int32_t> StepSample::tokens_of_expert() const {
  if (moe_layers == 0) return {};
  const std::size_t experts = tokens_of_priced.size() / layers_priced.size();
  std::vector<std::int32_t> all;
  all.reserve(at(moe_layers) * experts);
  for (int l = 0; l < moe_layers; ++l) {
    const auto of_layer = std::span(tokens_of_priced).subspan(place_of(l) * experts, experts);
    all.insert(all.end(), of_layer.begin(), of_layer.end());
  }
  return all;
}

std::vector<LayerOutcome> StepCost::moe_layers() const {
  if (samples.empty()) return layers;
  std::vector<LayerOutcome> sum = samples.front()->layers();
  for (const StepSample* sample : std::span(samples).subspan(1)) add_layers(sum, sample->layers());
  return sum;
}

TokenBalance StepCost::token_balance() const {
  if (samples.empty()) return moesim::token_balance(layers);
  if (samples.size() == 1) return samples.front()->balance;
  TokenBalance sum;
  for (int l = 0; l < samples.front()->moe_layers; ++l) {
    const std::size_t ranks = samples.front()->layer(l).load.tokens.size();
    std::int64_t most = 0, all = 0;
    double sliced = 0;
    for (const StepSample* sample : samples) sliced += sample->layer(l).load.sliced_tokens;
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      std::int64_t tokens = 0;
      for (const StepSample* sample : samples) tokens += sample->layer(l).load.tokens[rank];
      most = std::max(most, tokens);
      all += tokens;
    }
    sum.max_tokens += double(most) + sliced;
    if (ranks > 0) sum.mean_tokens += double(all) / double(ranks) + sliced;
  }
  return sum;
}

void add_sequence(StepBatch& batch, const RowSource& rows, const Binding& binding, Phase phase,
                  SequenceWork work, std::int64_t first_row) {
  RankStep& rank = batch.ranks.back();
  RoutingCoverage ignored;
  const auto number = static_cast<std::int32_t>(batch.ranks.size() - 1);
  rows.append(binding, {phase, number, work.new_tokens, first_row}, batch.rows, ignored);
  rank.sequences.push_back(work);
  rank.tokens += work.new_tokens;
  ++rank.sampled;
}

TokenBalance token_balance(std::span<const LayerOutcome> layers) {
  TokenBalance sum;
  for (const LayerOutcome& layer : layers) {
    const std::vector<std::int32_t>& tokens = layer.load.tokens;
    sum.max_tokens += layer.load.most_tokens();
    if (tokens.empty()) continue;
    sum.mean_tokens += std::accumulate(tokens.begin(), tokens.end(), 0.0) / double(tokens.size()) +
                       layer.load.sliced_tokens;
  }
  return sum;
}

Traffic& Traffic::operator+=(const Traffic& other) {
  return add_members<&Traffic::time, &Traffic::hidden, &Traffic::nvlink, &Traffic::network>(*this,
                                                                                            other);
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
  sum.energy.add(more.energy);
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
  for (double& joules : step.energy.joules) joules *= factor;
  step.energy.computing *= factor;
  step.energy.computing_experts *= factor;
  for (Traffic* traffic : {&step.dispatch, &step.combine, &step.all_reduce}) {
    traffic->time *= factor;
    traffic->hidden *= factor;
  }
  for (double& seconds : step.idle) seconds *= factor;
  for (Segment& segment : step.segments) segment.seconds *= factor;
  for (Seconds& stage : step.stages) stage *= factor;
  if (!step.afd) return;
  step.afd->total *= factor;
  step.afd->stalls *= factor;
  for (auto* times : {&step.afd->busy, &step.afd->critical})
    for (Seconds& seconds : *times) seconds *= factor;
}

}  // namespace moesim
