// SPDX-License-Identifier: Apache-2.0
#include "sim/serving/step_time_estimate.hpp"

namespace moesim {

namespace {

// A step with so large a piece of one prompt on every rank.
Seconds prompt_step(const Deployment& e, StepModel& model, RowSource& rows, std::int32_t tokens) {
  StepBatch batch;
  for (std::int32_t r = 0; r < e.parallel.dp; ++r) {
    batch.ranks.emplace_back();
    add_sequence(batch, rows, rows.bind(), Phase::prefill, {tokens, 0}, 0);
  }
  StepCost cost;
  model.price(step_input(e, StepKind::prefill, batch, rows), cost);
  return cost.total;
}

}  // namespace

Seconds prompt_token_time(const Deployment& e) {
  RowSource rows = typical_rows(e);
  StepModel model = step_model(e);
  const std::int32_t tokens = std::max(1, e.scheduler->max_num_batched_tokens());
  return prompt_step(e, model, rows, tokens) / tokens;
}

StepPrice price_steps(const Deployment& e) {
  RowSource rows = typical_rows(e);
  StepModels models(e);
  StepModel& model = models.of(StepKind::prefill);
  StepCost cost;
  const auto seconds = [&](std::int32_t sequences, std::int32_t context) {
    StepBatch batch;
    for (std::int32_t r = 0; r < e.parallel.dp; ++r) {
      batch.ranks.emplace_back();
      for (std::int32_t i = 0; i < sequences; ++i) {
        const Binding binding = rows.bind();
        const std::int64_t place = rows.random_place(binding, Phase::decode);
        add_sequence(batch, rows, binding, Phase::decode, {1, context}, place);
      }
    }
    models.of(StepKind::decode).price(step_input(e, StepKind::decode, batch, rows), cost);
    return cost.total.count();
  };
  StepPrice price;
  std::int32_t sequences = 1;
  for (; sequences < 2 * std::max(2, e.scheduler->max_num_seqs()); sequences *= 2) {
    price.of_tokens.push_back(seconds(sequences, 0));
  }
  constexpr std::int32_t context = 4096;
  const std::int32_t most = sequences / 2;
  price.of_context = (seconds(most, context) - price.of_tokens.back()) / most / context;
  if (!e.scheduler->prices_prompts()) return price;
  // Two figures at least, as lines go between two.
  const std::int32_t budget = std::max(2, e.scheduler->max_num_batched_tokens());
  for (std::int32_t tokens = 1; tokens < 2 * budget; tokens *= 2)
    price.of_prompt.push_back(prompt_step(e, model, rows, tokens).count());
  return price;
}

}  // namespace moesim
