// SPDX-License-Identifier: Apache-2.0
#include "tools/sweep/slo_bound.hpp"

#include <algorithm>
#include <limits>

#include "sim/serving/typical_step.hpp"
#include "traces/sessions/sessions.hpp"

namespace moesim {

namespace {

// Routing of the step that is priced is a sample.
constexpr double slack = 1.05;

struct MeanLengths {
  double prompt = 0, output = 0;  // means
  double computed = 0;            // the mean of a prompt that no cache has
  double long_prompt = 0;         // that of the longest that has to meet the SLO
};

MeanLengths lengths_of(const Deployment& e, double attainment) {
  constexpr int sample = 512;
  const auto source = e.workload.make(e.seed, e.ranks());
  MeanLengths lengths;
  const double cached = e.prefix_caching && e.workload.sessions
                            ? double(e.workload.sessions->rules.shared_prefix)
                            : 0;
  std::vector<double> prompts;
  for (int n = 0; n < sample; ++n) {
    const auto next = source->next();
    if (!next) break;
    prompts.push_back(std::max(1.0, next->request.prompt_tokens - cached));
    lengths.computed += prompts.back();
    lengths.prompt += next->request.prompt_tokens;
    lengths.output += next->request.output_tokens;
  }
  const auto count = static_cast<double>(prompts.size());
  lengths.prompt /= count;
  lengths.computed /= count;
  lengths.output /= count;
  std::ranges::sort(prompts);
  lengths.long_prompt = prompts[static_cast<std::size_t>((count - 1) * attainment)];
  return lengths;
}

// Tokens that a sequence emits in a decode step.
double tokens_per_step(const SpeculationPlan& plan) {
  double tokens = 1, held = 1;
  for (const double acceptance : plan.acceptance) tokens += held *= acceptance;
  return tokens;
}

// The most of rate(batch, time) over batches of 1 .. largest whose steps keep the limit, and the
// time of a batch of one over it. A step's time rises with its batch, nearly in proportion but for
// what it takes at least: a straight line says where to look next.
template <class Time, class Rate>
TuneBound most_of(int largest, double limit, Time&& time_of, Rate&& rate) {
  constexpr double near = .98;  // of the limit is as good as at it
  const double alone = time_of(1);
  if (alone > slack * limit) return {0, alone / limit};
  int met = 1, missed = largest + 1;
  double at_met = alone, at_missed = 0, best = rate(1, alone);
  int looks = 0;
  for (int batch = largest; batch > met;) {
    const double time = time_of(batch);
    if (time <= slack * limit) {
      met = batch;
      at_met = time;
      best = std::max(best, rate(batch, time));
    } else {
      missed = batch;
      at_missed = time;
    }
    if (missed > largest || missed - met < 2 || at_met > near * slack * limit) break;
    // Batches padded to the sizes of CUDA graphs make stairs of it: halves now and then.
    const bool halve = ++looks % 3 == 0;
    const double way = halve ? .5 : (slack * limit - at_met) / (at_missed - at_met);
    batch = std::clamp(met + static_cast<int>(way * (missed - met)), met + 1, missed - 1);
  }
  return {best, alone / limit};
}

double limit_of(const Slo& slo) {
  return slo.tpot ? slo.tpot->count() : std::numeric_limits<double>::infinity();
}

// If runs draw MoE layers from samples, a bound needs no more.
ExplainedStep priced_step(const Deployment& e, const StepContent& content) {
  return e.sampled ? estimate_step(e, content) : explain_step(e, content);
}

// Requests/s that decode steps alone allow. They are ranks b / (step(b) (n - 1)) for the largest
// batch b per rank that keeps the time between tokens. n tokens are generated per request, the
// first by prefill.
TuneBound decode_bound(const Deployment& e, const Slo& slo, const MeanLengths& lengths) {
  if (lengths.output <= 1) return {std::numeric_limits<double>::infinity(), 0};
  const auto context = static_cast<int>(lengths.prompt);
  const double emitted = tokens_per_step(e.speculation);
  const auto gap = [&](int batch) {
    return priced_step(e, decode_step(batch, context)).cost.total.count() / emitted;
  };
  const auto rate = [&](int batch, double time) {
    return e.ranks() * batch / (time * (lengths.output - 1));
  };
  return most_of(most_sequences(e, context), limit_of(slo), gap, rate);
}

// Time of a step where its new tokens are of prompts of `prompt` tokens. Each attends to its own
// tokens only. Left out: one prompt as long as all of them spends more on attention, and the stages
// of a pipeline wait for its later tokens.
double step_seconds(const Deployment& e, const StepContent& content, double prompt) {
  const int prefill = content.tokens() - content.sequences;
  const ExplainedStep step = priced_step(e, content);
  double seconds = step.cost.total.count();
  for (const ExplainedOperation& operation : step.operations) {
    if (prefill <= prompt) continue;
    if (operation.name == "attention_prefill")
      seconds -= operation.seconds * (1 - prompt / prefill);
    if (operation.name == "other_stages") seconds -= operation.seconds;
  }
  return seconds;
}

// Requests/s that prefill steps alone allow: ranks chunk / (step(chunk) prompt).
TuneBound prefill_bound(const Deployment& e, const Slo& slo, const MeanLengths& lengths) {
  const int prompt = std::max(1, static_cast<int>(lengths.computed));
  const int chunk = e.scheduler->max_num_batched_tokens();
  const auto seconds_of = [&](int tokens) {
    return step_seconds(e, prefill_step(tokens), lengths.computed);
  };
  const auto rate = [&](int tokens, double seconds) {
    return e.ranks() * tokens / (seconds * lengths.computed);
  };
  const int one = std::min(chunk, prompt);
  const double of_one = seconds_of(one);
  double best = rate(one, of_one);
  if (chunk > prompt) best = std::max(best, rate(chunk, seconds_of(chunk)));
  double excess = 0;
  if (slo.ttft) {
    const int tokens = std::clamp(static_cast<int>(lengths.long_prompt), 1, chunk);
    // If all prompts are as long, that step is priced already.
    const double seconds = tokens == one && tokens <= lengths.computed
                               ? of_one
                               : step_seconds(e, prefill_step(tokens), tokens);
    excess = seconds / slo.ttft->count();
  }
  return {excess > slack ? 0 : best, excess};
}

// Prompts per decode step of a steady state. A batch of b decodes passes b / (n - 1) requests,
// whose prompts are computed at the same time. Either every step holds its share of them. Or whole
// chunks are computed now and then and the other steps are pure decodes, which activate fewer
// experts. The model decides which is quicker. A bound below `worth` is any number up to it.
double mixed_bound(const Deployment& e, const Slo& slo, const MeanLengths& lengths, double worth) {
  if (lengths.output <= 1 || e.prefix_caching) return std::numeric_limits<double>::infinity();
  const auto context = static_cast<int>(lengths.prompt + lengths.output / 2);
  const double emitted = tokens_per_step(e.speculation);
  const double prompt_per_decode = emitted * lengths.prompt / (lengths.output - 1);
  const int chunk = e.scheduler->max_num_batched_tokens();
  const auto mixed = [&](int batch, int tokens) {
    return step_seconds(e, mixed_step(batch, context, tokens), lengths.prompt);
  };
  const auto gap = [&](int batch) {
    const double tokens = batch * prompt_per_decode;
    double seconds = mixed(batch, std::max(1, static_cast<int>(tokens)));
    const double pure = priced_step(e, decode_step(batch, context)).cost.total.count();
    const int whole = chunk - batch, prompt = std::min(whole, static_cast<int>(lengths.prompt));
    for (const int bunch : {prompt, whole}) {
      if (bunch <= tokens) continue;
      const double share = tokens / bunch;
      seconds = std::min(seconds, (1 - share) * pure + share * mixed(batch, bunch));
    }
    return seconds / emitted;
  };
  const auto rate = [&](int batch, double time) {
    return e.ranks() * batch / (time * (lengths.output - 1));
  };
  const int fitting = static_cast<int>(chunk / (1 + prompt_per_decode));
  const int largest = std::max(1, std::min(most_sequences(e, context), fitting));
  const double limit = limit_of(slo);
  // The batch that serves `worth` in steps as long as the limit. If its steps are longer, a smaller
  // batch serves less: time rises more slowly than the batch.
  const double just = std::ceil(worth * slack * limit * (lengths.output - 1) / e.ranks());
  if (just >= 1 && just <= largest && gap(static_cast<int>(just)) > slack * limit) return worth;
  const TuneBound bound = most_of(largest, limit, gap, rate);
  // Where a batch of one misses the limit, fewer than one decode at a time, which is less.
  return bound.goodput > 0 ? bound.goodput : rate(1, slack * limit);
}

}  // namespace

TuneBound bound_of(const Experiment& experiment, double attainment, MixedSteps mixed) {
  const Deployment& e = experiment.decode();
  if (!e.has_objective(&Slo::tpot) && !e.has_objective(&Slo::ttft) && !e.has_objective(&Slo::e2el))
    throw ConfigError("the experiment has no \"slo\", so goodput has no limits; add one");
  // No request of a class is owed less.
  const Slo slo = e.loosest_slo();
  const MeanLengths lengths = lengths_of(e, attainment);
  // If prefill and decode have pools, each bounds the other's requests.
  const Deployment& prefill = experiment.pools.front();
  const TuneBound p = prefill.scheduler->prompts_arrive_computed()
                          ? TuneBound{std::numeric_limits<double>::infinity(), 0}
                          : prefill_bound(prefill, slo, lengths);
  const TuneBound d = decode_bound(e, slo, lengths);
  double goodput = std::min(p.goodput, d.goodput);
  // Steps of one kind or the other share the time.
  if (goodput > 0 && !experiment.apart() && e.scheduler->separates_phases()) {
    goodput = 1 / (1 / p.goodput + 1 / d.goodput);
  } else if (goodput > mixed.worth / slack && !experiment.apart() && mixed.bound) {
    goodput = std::min(goodput, mixed_bound(e, slo, lengths, mixed.worth / slack));
  }
  TuneBound bound{slack * goodput, std::max(p.excess, d.excess), p.goodput, d.goodput};
  if (slo.ttft) bound.least_ttft = p.excess * slo.ttft->count();
  if (slo.tpot) bound.least_tpot = d.excess * slo.tpot->count();
  return bound;
}

}  // namespace moesim
