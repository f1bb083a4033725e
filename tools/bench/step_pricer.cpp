// SPDX-License-Identifier: Apache-2.0
#include "tools/bench/step_pricer.hpp"

#include <algorithm>

#include "hardware/at.hpp"
#include "sim/serving/padding.hpp"

namespace moesim {

StepPricer::StepPricer(const Deployment& deployment)
    : deployment_(deployment),
      rows_(deployment.trace, deployment.prefill_trace, deployment.bind_odd_only, deployment.seed,
            deployment.binding),
      speculation_(deployment) {
  if (deployment.sampled) {
    sampler_.emplace(deployment);
  } else {
    models_.emplace(deployment);
  }
  batch_.ranks.resize(at(deployment.parallel.dp));
}

const StepCost& StepPricer::price(std::span<const RankWork> ranks) {
  compose(ranks);
  if (sampler_) {
    sampler_->price(
        rule_, batch_, [&] { return places(ranks); }, cost_);
  } else {
    models_->of(rule_).price(step_input(deployment_, rule_, batch_, rows_), cost_);
    speculation_.clear_tally();
    speculation_.draft(step_input(deployment_, StepKind::decode, batch_, rows_), cost_);
  }
  if (deployment_.two_term) {
    const auto count = static_cast<int>(ranks.size());
    scale_times(cost_, deployment_.two_term->of(batch_, count) / cost_.total);
  }
  if (deployment_.anchored_tpot != 1) scale_times(cost_, deployment_.anchored_tpot);
  now_ += to_duration(cost_.total);
  return cost_;
}

void StepPricer::compose(std::span<const RankWork> ranks) {
  batch_.start = now_;
  batch_.rows.clear();
  std::int64_t prefill = 0, decode = 0;
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    const RankWork& asked = ranks[r];
    RankStep& rank = batch_.ranks[r];
    rank.sequences.clear();
    rank.tokens = rank.sampled = rank.padding = 0;
    rank.dummy = false;
    for (std::size_t i = 0; i < asked.new_tokens.size(); ++i) {
      const std::int32_t tokens = asked.new_tokens[i];
      const bool decodes = asked.decodes(i);
      (decodes ? decode : prefill) += tokens;
      rank.sequences.push_back({tokens, asked.context[i], decodes && tokens > 1});
      rank.tokens += tokens;
      const bool ends = asked.prompt.empty() || asked.context[i] + tokens >= asked.prompt[i];
      rank.sampled += decodes ? tokens : ends ? 1 : 0;
      if (!sampler_) take_rows(asked, i, static_cast<std::int32_t>(r));
    }
    if (rank.tokens > 0) continue;
    // An idle rank runs one token, so that the collectives complete.
    rank = {{{1, 0}}, 1, 0, 0, true};
    if (!sampler_) batch_.rows.push_back(rows_.dummy(static_cast<std::int32_t>(r)));
  }
  kind_ = prefill == 0 ? StepKind::decode : decode == 0 ? StepKind::prefill : StepKind::mixed;
  rule_ = rule_kind(deployment_.mixed, kind_, prefill);
  pad(deployment_, kind_, batch_);
}

// Requests are bound to recordings in the order of their numbers, as those of a run in the order
// of arrival.
const Binding& StepPricer::binding_of(std::size_t request) {
  while (bindings_.size() <= request) bindings_.push_back(rows_.bind());
  return bindings_[request];
}

void StepPricer::take_rows(const RankWork& asked, std::size_t i, std::int32_t rank) {
  const Binding binding = asked.request.empty() ? rows_.bind() : binding_of(at(asked.request[i]));
  const std::int32_t tokens = asked.new_tokens[i], context = asked.context[i];
  RoutingCoverage ignored;
  if (asked.prompt.empty()) {
    const Phase phase = asked.decodes(i) ? Phase::decode : Phase::prefill;
    const std::int64_t place =
        phase == Phase::decode ? rows_.random_place(binding, phase) : context;
    rows_.append(binding, {phase, rank, tokens, place}, batch_.rows, ignored);
    return;
  }
  const std::int32_t of_prompt = std::clamp(asked.prompt[i] - context, 0, tokens);
  if (of_prompt > 0)
    rows_.append(binding, {Phase::prefill, rank, of_prompt, context}, batch_.rows, ignored);
  if (of_prompt < tokens)
    rows_.append(binding,
                 {Phase::decode, rank, tokens - of_prompt, context + of_prompt - asked.prompt[i]},
                 batch_.rows, ignored);
}

// Tokens that were generated before each single token of the step, in its order.
std::span<const std::int32_t> StepPricer::places(std::span<const RankWork> ranks) {
  places_.clear();
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    const RankWork& asked = ranks[r];
    if (batch_.ranks[r].dummy) places_.push_back(0);
    for (std::size_t i = 0; i < asked.new_tokens.size(); ++i) {
      if (asked.new_tokens[i] != 1) continue;
      const std::int64_t place =
          !asked.prompt.empty() ? std::max(0, asked.context[i] - asked.prompt[i])
          : asked.decodes(i)    ? rows_.random_place(rows_.bind(), Phase::decode)
                                : 0;
      places_.push_back(static_cast<std::int32_t>(place));
    }
  }
  return places_;
}

}  // namespace moesim
