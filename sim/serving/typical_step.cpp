// SPDX-License-Identifier: Apache-2.0
#include "sim/serving/typical_step.hpp"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>

#include "sim/serving/padding.hpp"
#include "sim/step/step_model.hpp"

namespace moesim {

StepKind StepContent::kind() const {
  if (prompts.empty()) return StepKind::decode;
  return sequences == 0 ? StepKind::prefill : StepKind::mixed;
}

int StepContent::tokens() const {
  int tokens = sequences;
  for (const Prompt& prompt : prompts) tokens += prompt.tokens;
  return tokens;
}

StepContent decode_step(int sequences, int context) {
  return {.sequences = sequences, .context = context};
}

StepContent prefill_step(int prompt_tokens) { return mixed_step(0, 0, prompt_tokens); }

StepContent mixed_step(int sequences, int context, int prompt_tokens) {
  return {.sequences = sequences, .context = context, .prompts = {{.tokens = prompt_tokens}}};
}

namespace {

// A step as the middle of a run meets it: every decoding sequence somewhere in its recording, every
// prompt at its beginning.
StepBatch typical_batch(const ServedModel& deployment, const StepContent& content,
                        RowSource& rows) {
  StepBatch batch;
  for (int r = 0; r < deployment.parallel.dp; ++r) {
    batch.ranks.emplace_back();
    for (const StepContent::Prompt& prompt : content.prompts)
      add_sequence(batch, rows, rows.bind(), Phase::prefill, {prompt.tokens, prompt.prefix}, 0);
    for (int i = 0; i < content.sequences; ++i) {
      const Binding binding = rows.bind();
      const std::int64_t place = rows.random_place(binding, Phase::decode);
      add_sequence(batch, rows, binding, Phase::decode, {1, content.context}, place);
    }
  }
  return batch;
}

ExplainedStep explain_by(const Deployment& deployment, const StepContent& content, int samples,
                         std::optional<LayerRange> layers) {
  check(samples >= 1, "no step to explain");
  StepModels models(deployment);
  RowSource rows = typical_rows(deployment);
  ExplainedStep step;
  const int ranks = deployment.parallel.dp;
  step.summary.decode_tokens = ranks * content.sequences;
  step.summary.prefill_tokens = ranks * content.tokens() - step.summary.decode_tokens;
  step.summary.kind = content.kind();
  step.summary.rule = rule_kind(deployment.mixed, step.summary.kind, step.summary.prefill_tokens);
  StepModel& model = models.of(step.summary.rule);
  for (int sample = 0; sample < samples; ++sample) {
    StepBatch batch = typical_batch(deployment, content, rows);
    // An estimate is a bound, whatever the engine pads.
    if (!layers) pad(deployment, step.summary.kind, batch);
    StepCost cost;
    model.price(step_input(deployment, step.summary.rule, batch, rows, layers), cost,
                sample == 0 ? &step.operations : nullptr);
    step.totals.push_back(cost.total);
    if (sample == 0) step.cost = std::move(cost);
  }
  return step;
}

}  // namespace

ExplainedStep explain_step(const Deployment& deployment, const StepContent& content, int samples) {
  return explain_by(deployment, content, samples, std::nullopt);
}

ExplainedStep estimate_step(const Deployment& deployment, const StepContent& content) {
  // Layers of large steps differ little from each other, and take long.
  constexpr std::int64_t few_tokens = 1 << 16;
  const std::int64_t tokens = std::int64_t{deployment.parallel.dp} * content.tokens();
  const int priced = tokens <= few_tokens ? 8 : 4;
  const int layers = deployment.model.moe_layers();
  const int first = std::max(0, layers - priced) / 2;
  return explain_by(deployment, content, 1, LayerRange{first, std::min(layers, first + priced)});
}

}  // namespace moesim
