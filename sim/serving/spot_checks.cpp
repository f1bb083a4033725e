// SPDX-License-Identifier: Apache-2.0
#include "sim/serving/spot_checks.hpp"

#include <bit>
#include <cmath>

namespace moesim {

namespace {

// How many steps a check of this one stands for; 0: it is not checked.
std::uint64_t stands_for(std::uint64_t step) {
  constexpr std::uint64_t first = 16, checks_per_octave = 2;
  const std::uint64_t apart = std::bit_floor(step) / checks_per_octave;
  return step >= first && step % apart == 0 ? apart : 0;
}

}  // namespace

SpotChecks::SpotChecks(const Deployment& deployment)
    : deployment_(deployment),
      rows_(deployment.trace, deployment.prefill_trace, deployment.bind_odd_only,
            deployment.seed ^ fnv1a("spot checks"), deployment.binding),
      models_(deployment) {}

void SpotChecks::step(StepKind rule, const StepBatch& batch, const DecodePlaces& places,
                      Seconds sampled) {
  const std::uint64_t weight = stands_for(++steps_);
  if (weight == 0) return;
  checks_.push_back({static_cast<double>(weight), sampled, price(rule, batch, places())});
}

SpotChecks::Answer SpotChecks::answer() const {
  if (checks_.empty()) return {};
  Answer answer{.checks = std::ssize(checks_)};
  Seconds sampled{}, exact{};
  for (const Check& check : checks_) {
    sampled += check.sampled * check.weight;
    exact += check.exact * check.weight;
    const double error = check.sampled / check.exact - 1;
    if (std::abs(error) > std::abs(answer.worst)) answer.worst = error;
  }
  const double ratio = sampled / exact;
  double squares = 0;
  for (const Check& check : checks_) {
    const double rest = (check.sampled - check.exact * ratio) * check.weight / exact;
    squares += rest * rest;
  }
  answer.error = ratio - 1;
  answer.standard_error = std::sqrt(squares);
  return answer;
}

// Prompts take the rows of their tokens; a request that decodes, that of its place.
Seconds SpotChecks::price(StepKind rule, const StepBatch& batch,
                          std::span<const std::int32_t> places) {
  StepBatch routed = batch;
  routed.rows.clear();
  RoutingCoverage coverage;
  auto place = places.begin();
  for (std::size_t r = 0; r < batch.ranks.size(); ++r) {
    const auto rank = static_cast<std::int32_t>(r);
    for (const SequenceWork& work : batch.ranks[r].sequences) {
      const bool single = work.new_tokens == 1;
      const std::int64_t first = single ? *place++ : work.context_tokens;
      const Phase phase = single ? Phase::decode : Phase::prefill;
      rows_.append(rows_.bind(), {phase, rank, work.new_tokens, first}, routed.rows, coverage);
    }
  }
  models_.of(rule).price(step_input(deployment_, rule, routed, rows_), cost_);
  return cost_.total;
}

}  // namespace moesim
