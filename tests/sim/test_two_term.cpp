// SPDX-License-Identifier: Apache-2.0
// Do steps by two terms take what the formula says, and nothing else?
#include "sim/step/two_term.hpp"
#include "tests/tiny_experiment.hpp"

namespace moesim::test_two_term {
namespace {

using test::WithinRel;

TEST_CASE("two terms go by the fullest and the mean of the ranks that are up") {
  StepBatch batch;
  batch.ranks.resize(3);
  batch.ranks[0] = {{{10, 0}, {1, 19}}, 11};
  batch.ranks[1] = {{{1, 0}}, 1, 0, 0, true};  // a dummy has no KV
  const TwoTermStep terms{Seconds(2), Seconds(.5), Seconds(7)};
  // L = 30, 0 and, of a rank that is down or idle, 0.
  CHECK(terms.of(batch, 3).count() == 2 * 30 + .5 * 10 + 7);
  CHECK(terms.of(batch, 2).count() == 2 * 30 + .5 * 15 + 7);
}

TEST_CASE("one request alone: known answer") {
  const auto set = [](const char* a, const char* b, const char* c) {
    return Json{{"two_term_step", {{"a", a}, {"b", b}, {"c", c}}},
                {"workload",
                 {{"arrivals", {{"type", "closed_loop"}, {"concurrency", 1}}},
                  {"lengths", {{"type", "fixed"}, {"prompt", 20}, {"output", 3}}},
                  {"requests", 1}}}};
  };
  const test::Served served = test::serve(test::load_tiny(set("1 ms", "400 us", "1 ms")));
  // Steps have 20, 21 and 22 tokens on one of four ranks: 20 + 0.4 x 20 / 4 + 1 ms, and so on.
  CHECK(served.requests[0].first_token == Time(to_duration(Seconds(.023))));
  CHECK(served.requests[0].last_token == Time(to_duration(Seconds(.0723))));
  const OrderedJson breakdown = served.document()["breakdown"];
  CHECK_THAT(breakdown["busy_seconds"].get<double>(), WithinRel(.0723, 1e-9));
  CHECK_THAT(test::refused(test::tiny_experiment({{"two_term_step", {{"b", "1 us"}}}})),
             Catch::Contains("/two_term_step: \"a\" is missing"));
  Json drafts = set("1 ms", "0 s", "0 s");
  drafts["speculative"] = {{"num_speculative_tokens", 2}, {"acceptance_rate", 0.7}};
  CHECK_THAT(
      test::refused(test::tiny_experiment(drafts)),
      Catch::Contains("/speculative: \"speculative\" is not modelled with \"two_term_step\""));
}

TEST_CASE("whatever kernels and links would take, two terms take the same") {
  Json set = {{"two_term_step", {{"a", "10 us"}, {"b", "5 us"}}}};
  const test::Served fast = test::serve(test::load_tiny(set));
  set["background"] = {{"nvlink", 0.9}};
  set["charges"] = {{"host_overhead", "10 ms"}};
  const test::Served slow = test::serve(test::load_tiny(set));
  REQUIRE(fast.requests.size() == slow.requests.size());
  for (std::size_t i = 0; i < fast.requests.size(); ++i)
    REQUIRE(fast.requests[i].last_token == slow.requests[i].last_token);
  // Steps shorter than reading takes are no use of the memory above its bandwidth.
  set["two_term_step"] = {{"a", "1 ns"}};
  CHECK(run(test::load_tiny(set)).document()["metrics"]["mbu"] == 0.0);
}

}  // namespace
}  // namespace moesim::test_two_term
