// SPDX-License-Identifier: Apache-2.0
// How many drafts are verified, by each rule?
#include "sim/draft_choice/draft_choice.hpp"
#include "tests/support.hpp"
#include "tests/tiny_experiment.hpp"
#include "tests/trace_meta.hpp"

namespace moesim::test_draft_choice {
namespace {

using test::load_tiny;

std::unique_ptr<DraftChoice> policy(const Json& options) {
  return draft_choices().make(ConfigNode(options, "test.json"))();
}

using Counts = std::vector<std::int32_t>;

// Two sequences, up to two drafts of each; experts 0 and 1 on one GPU, 2 and 3 on another one. One
// expert a token: 0, then 2 and 3 of the first sequence; 0, then 1 and 2 of the second.
Counts chosen_by_experts(Seconds read, double acceptance) {
  const RoutingTrace trace(test::trace_meta("four", 4, 1, {0}), {""}, {{0, 3, 0}, {3, 3, 0}},
                           {0, 2, 3, 0, 1, 2});
  const std::vector<std::int64_t> rows{0, 1, 2, 3, 4, 5};
  const ExpertPlacement placement{LayerPlacement(4, {{0, 1}, {2, 3}})};
  const std::vector<double> chances(2, acceptance);
  const auto rule = policy({{"type", "by_experts"}, {"trial_steps", 1}});
  GroupDrafts group{2, chances};
  group.experts.emplace(DraftExperts{trace, rows, placement, read});
  Counts drafts(2, 2);
  rule->choose(group, drafts);
  CHECK(drafts == Counts{0, 0});
  rule->decoded({Seconds(10e-3), 2, 2});
  rule->choose(group, drafts);
  rule->decoded({Seconds(16e-3), 2, 4});  // one draft gains, so that two are tried; 4 ms a token
  rule->choose(group, drafts);
  return drafts;
}

TEST_CASE("by_experts: a draft is worth what it adds to the busiest GPU, by hand") {
  // An expert takes as long as a quarter of a token. The first drafts: 2 adds nothing to the
  // largest count, 1 adds one for half a token. The second ones, 3 and 2, add nothing.
  CHECK(chosen_by_experts(Seconds(1e-3), .5) == Counts{2, 2});
  // An expert takes as long as .3 tokens. Now half a token is worth it, but not a quarter.
  CHECK(chosen_by_experts(Seconds(1.2e-3), .5) == Counts{2, 2});
  // .6 tokens: draft 1 is not worth an expert. Without it, 3 adds one.
  CHECK(chosen_by_experts(Seconds(2.4e-3), .5) == Counts{1, 0});
  CHECK(chosen_by_experts(Seconds(2.4e-3), 0) == Counts{0, 0});
  CHECK(chosen_by_experts(Seconds(2.4e-3), 1) == Counts{2, 2});
}

// Steps in a row: drafts that the policy takes in each, where d drafts take `times[d]` and yield
// `tokens[d]` of a sequence.
Counts steps_of(DraftChoice& rule, int steps, std::vector<double> times, std::vector<int> tokens) {
  Counts taken;
  for (int step = 0; step < steps; ++step) {
    Counts drafts(2, static_cast<std::int32_t>(times.size()) - 1);
    rule.choose({drafts[0], {}}, drafts);
    CHECK(drafts[0] == drafts[1]);
    taken.push_back(drafts[0]);
    const auto d = at(drafts[0]);
    rule.decoded({Seconds(times[d]), 2, 2 * tokens[d]});
  }
  return taken;
}

TEST_CASE("utility: counts are tried until one is worse, and the best is kept") {
  const Json options{{"type", "utility"}, {"trial_steps", 2}, {"set_steps", 3}};
  // Tokens over time: 1, 1.67, 1.5, not tried.
  CHECK(steps_of(*policy(options), 12, {1, 1.2, 2, 2}, {1, 2, 3, 9}) ==
        Counts{0, 0, 1, 1, 2, 2, 1, 1, 1, 0, 0, 1});
  // The most is the best.
  CHECK(steps_of(*policy(options), 8, {1, 1.2, 1.5}, {1, 2, 3}) == Counts{0, 0, 1, 1, 2, 2, 2, 2});
  // None gains: it is asked again after 3 steps, then after 6.
  CHECK(steps_of(*policy(options), 17, {1, 3}, {1, 2}) ==
        Counts{0, 0, 1, 1, 0, 0, 0, 0, 0, 1, 1, 0, 0, 0, 0, 0, 0});
}

OrderedJson alone(const Json& choice, double acceptance) {
  return run(load_tiny({{"speculative",
                         {{"num_speculative_tokens", 3},
                          {"acceptance_rate", acceptance},
                          {"draft", {{"type", "time"}, {"per_token", "0 us"}}},
                          {"choice", choice}}},
                        {"workload", {{"arrivals", {{"concurrency", 1}}}, {"requests", 1}}}}))
      .document();
}

TEST_CASE("a run verifies what its policy chooses") {
  CHECK(alone("by_experts", 0)["speculative"]["num_draft_tokens"] == 0);
  // Four steps without drafts, four with one; then none is taken for 64 steps.
  CHECK(alone("utility", 0)["speculative"]["num_draft_tokens"] == 4);
  // Of one, two and three drafts that hold: 4 + 8 + 12 tokens in twelve steps, then 5 in two.
  const OrderedJson held = alone("utility", 1);
  CHECK(held["steps"]["decode"]["steps"] == 14);
}

}  // namespace
}  // namespace moesim::test_draft_choice
