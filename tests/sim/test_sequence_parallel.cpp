// SPDX-License-Identifier: Apache-2.0
// Without sequence parallelism every GPU of a rank sends all tokens of the rank to their experts.
#include <numeric>

#include "sim/serving/simulator.hpp"
#include "sim/serving/typical_step.hpp"
#include "tests/step_parts.hpp"
#include "tests/tiny_experiment.hpp"

namespace moesim::test_sequence_parallel {
namespace {

using Catch::Matchers::Contains;
using test::refused;
using test::seconds_of;
using test::WithinRel;

// Two ranks of `tp` GPUs.
Json ranks(int tp, bool sequence_parallel, const Json& set = Json::object()) {
  Json plan{{"dp", 2}, {"tp", tp}, {"ep", nullptr}};
  if (!sequence_parallel) plan["moe_sequence_parallel"] = false;
  Json json = test::tiny_experiment(
      {{"parallel", plan}, {"placement", {{"type", "linear"}, {"replication", 1}}}});
  json.merge_patch(set);
  return json;
}

StepCost step_of(const Json& json) {
  return explain_step(test::load(json), decode_step(8, 256)).cost;
}

double selections(const StepCost& cost) {
  double sum = 0;
  for (const LayerOutcome& layer : cost.layers)
    sum += std::accumulate(layer.load.tokens.begin(), layer.load.tokens.end(), 0.0);
  return sum;
}

double sent(const Traffic& traffic) { return (traffic.nvlink + traffic.network).value(); }

TEST_CASE("experts compute every copy, and attention what it does otherwise") {
  for (const int tp : {2, 4}) {
    CAPTURE(tp);
    const StepCost shares = step_of(ranks(tp, true)), all = step_of(ranks(tp, false));
    // 2 ranks of 8 sequences, top 2, 3 layers.
    CHECK(selections(shares) == 2 * 8 * 2 * 3);
    CHECK(selections(all) == tp * selections(shares));
    CHECK(seconds_of(all, Part::attention) == seconds_of(shares, Part::attention));
    CHECK(seconds_of(all, Part::gate) == seconds_of(shares, Part::gate));
    CHECK(seconds_of(all, Part::experts) >= seconds_of(shares, Part::experts));
  }
}

TEST_CASE("a gather brings every token of each GPU to all others") {
  const Json both_ways{{"type", "all_gather"}, {"combine", "reduce_scatter"}};
  const Json gather{{"dispatch", {{"prefill", both_ways}, {"decode", both_ways}}}};
  for (const int tp : {2, 4}) {
    CAPTURE(tp);
    const StepCost shares = step_of(ranks(tp, true, gather));
    const StepCost all = step_of(ranks(tp, false, gather));
    CHECK_THAT(sent(all.dispatch), WithinRel(tp * sent(shares.dispatch), 1e-12));
    CHECK_THAT(sent(all.combine), WithinRel(tp * sent(shares.combine), 1e-12));
    // 16 tokens of 512 numbers in bf16, tp times, to 2 tp - 1 other GPUs, in 3 layers.
    CHECK_THAT(sent(all.dispatch), WithinRel(16.0 * 512 * 2 * tp * (2 * tp - 1) * 3, 1e-12));
  }
}

TEST_CASE("nothing is gathered within a rank after the experts") {
  const StepCost shares = step_of(ranks(2, true)), all = step_of(ranks(2, false));
  // Each of two GPUs gets the half that it lacks of its rank's 8 tokens, in 3 layers and 2 ranks.
  CHECK_THAT(sent(shares.all_reduce) - sent(all.all_reduce),
             WithinRel(8.0 * 512 * 2 * 3 * 2, 1e-12));
  // A shared expert that is cut is still summed up.
  Json model = test::tiny_experiment({})["model"];
  model["experts"]["shared_width"] = 256;
  const Json with_shared{{"model", model}};
  CHECK(sent(step_of(ranks(2, true, with_shared)).all_reduce) ==
        sent(step_of(ranks(2, false, with_shared)).all_reduce));
}

TEST_CASE("buffers have room for every copy") {
  const auto buffers = [](bool sequence_parallel) {
    return test::load(ranks(4, sequence_parallel)).decode().memory.buffers.value();
  };
  CHECK(buffers(false) > buffers(true));
}

TEST_CASE("a run keeps every request, and sampled steps take as long as exact ones") {
  const auto served = [](const char* fidelity) {
    return run(test::load(ranks(2, false, {{"fidelity", fidelity}}))).metrics;
  };
  const Metrics exact = served("exact"), sampled = served("sampled");
  CHECK(exact.completed == 120);
  CHECK(sampled.completed == 120);
  CHECK_THAT(sampled.tpot.mean, WithinRel(exact.tpot.mean, 0.01));
}

TEST_CASE("where no token is sent twice the key is refused") {
  CHECK(refused(ranks(2, false)).empty());
  CHECK_THAT(refused(ranks(1, false)),
             Contains("/parallel/moe_sequence_parallel") && Contains("a rank has one GPU"));
  CHECK_THAT(refused(ranks(2, false, {{"parallel", {{"dp", 1}}}})),
             Contains("tokens of one attention rank are not sent"));
  CHECK_THAT(refused(ranks(4, false, {{"parallel", {{"pcp", 2}}}})),
             Contains("leave out \"pcp\" or this"));
}

}  // namespace
}  // namespace moesim::test_sequence_parallel
