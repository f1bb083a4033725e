// SPDX-License-Identifier: Apache-2.0
#include "sim/serving/step_sampler.hpp"

#include <algorithm>
#include <bit>

#include "sim/serving/padding.hpp"

namespace moesim {

namespace {

// Each has many layers; large steps differ little from each other and take long to price.
std::size_t samples_of(std::int64_t tokens) {
  constexpr std::int64_t tokens_of_all = 1 << 13;
  return at(std::clamp<std::int64_t>(tokens_of_all / tokens, 2, 16));
}

// Number of a sample's layers to price: as many as hold about so many tokens together. Layers of
// large steps differ little from each other, and take long.
int layers_priced(std::int64_t tokens, int layers) {
  constexpr std::int64_t tokens_of_layers = 1 << 14;
  constexpr int least = 8;
  return std::min(layers, std::max(least, static_cast<int>(tokens_of_layers / tokens)));
}

// True if steps of a size have come too seldom for another sample. A run passes most sizes once, on
// its way to the load that it keeps.
bool is_rare(std::size_t uses, std::size_t samples) { return uses < 3 * samples * samples; }

std::int32_t share(std::int64_t tokens, int rank, int ranks) {
  return static_cast<std::int32_t>(tokens * (rank + 1) / ranks - tokens * rank / ranks);
}

}  // namespace

StepSampler::StepSampler(const Deployment& deployment)
    : deployment_(deployment),
      rows_(deployment.trace, deployment.prefill_trace, deployment.bind_odd_only,
            deployment.seed ^ fnv1a("sampled fidelity"), deployment.binding),
      models_(deployment),
      rng_(deployment.seed, "sampled fidelity") {
  if (deployment.spot_checks) checks_.emplace(deployment);
}

SampledStats StepSampler::stats() const {
  const SpotChecks::Answer answer = checks_ ? checks_->answer() : SpotChecks::Answer{};
  return {std::ssize(samples_), answer.checks, answer.error, answer.standard_error, answer.worst};
}

void StepSampler::price(StepKind rule, const StepBatch& batch, const DecodePlaces& places,
                        StepCost& cost) {
  Coins coins;
  models_.of(rule).price(
      batch,
      [&](const StepBatch& part) -> const StepSample& { return draw(rule, part, places, coins); },
      cost);
  if (checks_) checks_->step(rule, batch, places, cost.total);
}

// A step like this one, or a micro-batch of one.
const StepSample& StepSampler::draw(StepKind rule, const StepBatch& batch,
                                    const DecodePlaces& places, Coins& coins) {
  std::int64_t decode = 0, prefill = 0, most = 0, prompts = 0;
  for (const RankStep& rank : batch.ranks) {
    if (rank.decode_context) {
      decode += std::ssize(rank.sequences);
      continue;
    }
    const std::int64_t before = prefill;
    for (const SequenceWork& work : rank.sequences) {
      (work.new_tokens == 1 ? decode : prefill) += work.new_tokens;
      prompts += work.new_tokens > 1;
    }
    most = std::max(most, prefill - before);
  }
  const std::int64_t sizes_per_octave = prefill > 0 ? 1 : 8;
  const std::int64_t others = std::max<std::int64_t>(1, std::ssize(batch.ranks) - 1);
  const Key key{rule, on_grid(decode, {sizes_per_octave, 1}, coins.decode),
                on_grid(most, {1, 1}, coins.most),
                on_grid(prefill - most, {1, others}, coins.others)};
  const std::size_t wanted = samples_of(key.tokens());
  auto& [samples, uses] = by_key_[key];
  ++uses;
  const std::size_t which = rng_.below(wanted);
  if (which < samples.size()) return *samples[which];
  if (deployment_.few_samples && is_rare(uses, samples.size()))
    return *samples[rng_.below(samples.size())];
  const auto prompt_tokens = prefill / std::max<std::int64_t>(1, prompts);
  samples.push_back(&sample(key, static_cast<std::int32_t>(prompt_tokens), places()));
  return *samples.back();
}

// Octaves begin at the powers of two of units; below the first octave sizes are exact.
std::int64_t StepSampler::on_grid(std::int64_t size, Grid grid, std::optional<double>& coin) {
  if (size < grid.sizes_per_octave * grid.unit) return size;
  const auto units = static_cast<std::uint64_t>(size / grid.unit);
  const std::int64_t octave = static_cast<std::int64_t>(std::bit_floor(units)) * grid.unit;
  const std::int64_t step = octave / grid.sizes_per_octave;
  const std::int64_t above = (size - octave) % step;
  const auto steps = static_cast<double>(step);
  if (!coin) coin = static_cast<double>(rng_.below(static_cast<std::uint64_t>(step))) / steps;
  const bool up = *coin * steps < static_cast<double>(above);
  return size - above + (up ? step : 0);
}

// Tokens of recorded prompts, so many of each.
void StepSampler::add_prompts(StepBatch& batch, std::int32_t tokens, std::int32_t of_each) {
  while (tokens > 0) {
    const std::int32_t here = std::min(tokens, of_each);
    add_sequence(batch, rows_, rows_.bind(), Phase::prefill, {here, 0}, 0);
    tokens -= here;
  }
}

// `prompt_tokens`: of each prompt.
const StepSample& StepSampler::sample(const Key& key, std::int32_t prompt_tokens,
                                      std::span<const std::int32_t> places) {
  StepBatch batch;
  const int ranks = deployment_.parallel.dp;
  for (int r = 0; r < ranks; ++r) {
    RankStep& rank = batch.ranks.emplace_back();
    const std::int32_t prefill = r == 0 ? static_cast<std::int32_t>(key.most_prefill_tokens)
                                        : share(key.other_prefill_tokens, r - 1, ranks - 1);
    const std::int32_t decode = share(key.decode_tokens, r, ranks);
    add_prompts(batch, prefill, prompt_tokens);
    for (std::int32_t i = 0; i < decode; ++i) {
      const Binding binding = rows_.bind();
      const std::int32_t place = places.empty() ? 0 : places[rng_.below(places.size())];
      add_sequence(batch, rows_, binding, Phase::decode, {1, 0}, place);
    }
    if (rank.tokens > 0) continue;
    rank = {{{1, 0}}, 1, 0, 0, true};
    batch.rows.push_back(rows_.dummy(r));
  }
  if (key.most_prefill_tokens == 0) pad(deployment_, StepKind::decode, batch);
  samples_.push_back(std::make_unique<StepSample>(models_.of(key.rule).sample(
      step_input(deployment_, key.rule, batch, rows_, next_layers(key.tokens())))));
  samples_.back()->number = samples_.size() - 1;
  return *samples_.back();
}

// Samples take the parts of a model in turn.
LayerRange StepSampler::next_layers(std::int64_t tokens) {
  const int layers = deployment_.model.moe_layers();
  const int priced = layers_priced(tokens, layers);
  if (next_layer_ + priced > layers) next_layer_ = next_layer_ < layers ? layers - priced : 0;
  const LayerRange range{next_layer_, next_layer_ + priced};
  next_layer_ = range.end;
  return range;
}

}  // namespace moesim
