// SPDX-License-Identifier: Apache-2.0
// Rows that several prompts replay are read once. Does a step say the same of all tokens?
#include "sim/step/expert_choices.hpp"
#include "tests/support.hpp"
#include "tests/tiny_experiment.hpp"

namespace moesim::test_expert_choices {
namespace {

// What a step says of its tokens, in their order.
struct Told {
  std::vector<std::int32_t> tokens_of_expert, source;
  std::vector<std::uint16_t> ids;  // [layers, tokens, k]
  std::vector<double> tokens_of_gpu;
  bool operator==(const Told&) const = default;
};

Told told(const Deployment& d, const StepBatch& batch, const RowSource& source, KeptRows kept) {
  const int layers = d.model.moe_layers();
  const auto k = at(d.model.experts_per_token);
  StepRows rows(d.model, d.parallel);
  // Again in the same memory, as in a run.
  for (int time = 0; time < 2; ++time) {
    rows.start(batch, 0, layers, kept);
    rows.read(source, 0, layers);
  }
  Told told;
  told.tokens_of_gpu = rows.tokens_of_gpu();
  for (const TokenRun& run : rows.runs())
    told.source.insert(told.source.end(), at(run.rows), run.gpu);
  CHECK(std::ssize(told.source) == rows.tokens());
  if (kept == KeptRows::of_each_token) {
    CHECK(rows.source_gpu() == told.source);
    CHECK(rows.rows() == at(rows.tokens()));
  }
  for (int layer = 0; layer < layers; ++layer) {
    for (const TokenRun& run : rows.runs()) {
      const auto ids = rows.ids(layer).subspan(run.first_row * k, at(run.rows) * k);
      told.ids.insert(told.ids.end(), ids.begin(), ids.end());
    }
  }
  rows.hand_over(told.tokens_of_expert);
  return told;
}

TEST_CASE("a step whose prompts share rows is told as one that reads every token's row") {
  const bool shares = GENERATE(true, false);  // of a rank's tokens, or all of them on each GPU
  Experiment e = test::load_tiny(
      {{"parallel", {{"dp", 2}, {"tp", 4}, {"ep", 8}}},
       {"workload", {{"gating", {{"requests", 6}, {"prompt_rows", 5}, {"decode_rows", 7}}}}}});
  Deployment& d = e.pools.front();
  d.parallel.moe_sequence_parallel = shares;
  RowSource source(d.trace, d.prefill_trace, d.bind_odd_only, d.seed);
  StepBatch batch;
  for (int rank = 0; rank < d.parallel.dp; ++rank) {
    batch.ranks.emplace_back();
    // Between decodes, so that those before and after are told apart; more than a byte counts.
    for (const int prompt : {0, 700, 0, 1, 0, 33, 400}) {
      const Binding binding = source.bind();
      if (prompt > 0)
        add_sequence(batch, source, binding, Phase::prefill, {prompt, 0}, 0);
      else
        add_sequence(batch, source, binding, Phase::decode, {1, 90}, 3);
    }
  }
  const Told each = told(d, batch, source, KeptRows::of_each_token);
  CHECK(told(d, batch, source, KeptRows::different) == each);

  StepRows rows(d.model, d.parallel);
  rows.start(batch, 0, d.model.moe_layers(), KeptRows::different);
  CHECK(rows.rows() < at(rows.tokens()) / 4);
  std::vector<std::int32_t> alone;
  rows.start(batch, 0, d.model.moe_layers(), KeptRows::none);
  rows.read(source, 0, d.model.moe_layers());
  rows.hand_over(alone);
  CHECK(alone == each.tokens_of_expert);
}

}  // namespace
}  // namespace moesim::test_expert_choices
