// SPDX-License-Identifier: Apache-2.0
// Does the scheduler keep to its target time, without starving anybody?
#include <fmt/format.h>

#include "sim/scheduling/scheduler.hpp"
#include "sim/serving/simulator.hpp"
#include "sim/serving/step_time_estimate.hpp"
#include "tests/support.hpp"
#include "tests/tiny_experiment.hpp"

namespace moesim::test_comm_aware {
namespace {

using test::load_tiny;
using test::WithinRel;

const KvLayout layout{16, Bytes(1), 1, {{1, 0}}};

// 10 ms with one token, 1 ms more for each further one, 1 ms for each 1,000 tokens of context.
const StepPrice price{{.010, .011, .013, .017}, 1e-6};

StepPlan plan(const std::string& target, std::vector<Sequence> running,
              std::vector<Sequence> waiting, std::int64_t free_blocks = 1000) {
  const auto scheduler = schedulers().make(test::config(fmt::format(
      R"({{"type": "comm_aware", "max_num_batched_tokens": 64, "max_num_seqs": 8, "target": "{}",
           "max_skips": 4}})",
      target)));
  StepPlan plan;
  scheduler->plan({running, waiting, free_blocks, layout, 1000, &price}, Turn::any, plan);
  return plan;
}

Sequence decode(double locality, std::int32_t skipped = 0, std::int32_t context = 100) {
  Sequence sequence{0, context + 1, context, 10, 1000};
  sequence.locality = locality;
  sequence.skipped = skipped;
  return sequence;
}

TEST_CASE("prices between and beyond powers of two lie on straight lines") {
  CHECK_THAT(price.time(1, 0).count(), WithinRel(.010, 1e-12));
  CHECK_THAT(price.time(3, 0).count(), WithinRel(.012, 1e-12));
  CHECK_THAT(price.time(16, 2000).count(), WithinRel(.025 + .002, 1e-12));
  CHECK(price.time(0, 0).count() == 0);
}

TEST_CASE("the nearest decodes run, as many as the target allows") {
  // Two tokens with 200 of context take 11.2 ms, three with 300 12.3 ms.
  const std::vector<Sequence> running{decode(.1), decode(.9), decode(.5), decode(.8)};
  CHECK(plan("12 ms", running, {}).running_tokens == std::vector{0, 1, 0, 1});
  CHECK(plan("12.4 ms", running, {}).running_tokens == std::vector{0, 1, 1, 1});
  CHECK(plan("50 ms", running, {}).running_tokens == std::vector{1, 1, 1, 1});
}

TEST_CASE("who was skipped comes before who is near, of equals who came first") {
  // .1 + 4/4 is more than .9.
  CHECK(plan("10.5 ms", {decode(.9), decode(.1, 4)}, {}).running_tokens == std::vector{0, 1});
  CHECK(plan("10.5 ms", {decode(.5), decode(.5)}, {}).running_tokens == std::vector{1, 0});
}

TEST_CASE("one that does not fit is followed by one with a shorter context that does") {
  const std::vector<Sequence> running{decode(.9), decode(.8, 0, 5000), decode(.1)};
  CHECK(plan("12 ms", running, {}).running_tokens == std::vector{1, 0, 1});
}

TEST_CASE("at least one request computes, whatever the target") {
  CHECK(plan("1 us", {decode(.2), decode(.3)}, {}).running_tokens == std::vector{0, 1});
  const Sequence fresh{0, 100, 0, 100, 0};
  CHECK(plan("1 us", {}, {fresh}).admitted_tokens == std::vector{64});
}

TEST_CASE("prompts fill what decodes leave of the target") {
  // Of 17.1 ms a decode with 100 of context takes 10.1; seven more tokens 7 ms.
  const Sequence fresh{0, 100, 0, 100, 0};
  const StepPlan step = plan("17.1000001 ms", {decode(.5)}, {fresh});
  CHECK(step.running_tokens == std::vector{1});
  CHECK(step.admitted_tokens == std::vector{7});
}

TEST_CASE("when only the last in line may run and finds no block, the others go on") {
  Sequence first = decode(.1, 0, 16), last = decode(.9, 0, 16);
  first.blocks = last.blocks = 1;  // both need a second block
  const StepPlan step = plan("1 us", {first, last}, {}, 0);
  CHECK(step.preempted == 1);
  CHECK(step.running_tokens == std::vector{1});
}

TEST_CASE("a target beyond reach of any step is chunked prefill") {
  OrderedJson wide =
      run(load_tiny({{"scheduling", {{"type", "comm_aware"}, {"target", "100 s"}}}})).document();
  OrderedJson chunked = run(load_tiny(Json::object())).document();
  wide.erase("context");
  chunked.erase("context");
  CHECK(wide.dump() == chunked.dump());
}

TEST_CASE("a tight target makes steps shorter, and everybody finishes") {
  const auto slow = run(load_tiny(Json::object()));
  const StepPrice model =
      price_steps(load_tiny({{"scheduling", {{"type", "comm_aware"}}}}).decode());
  CHECK(model.time(4, 100) > model.time(1, 100));
  const std::string target = fmt::format("{} s", model.time(3, 150).count());
  for (const char* router : {"round_robin", "joint"}) {
    for (const char* limit : {target.c_str(), "1 us"}) {
      CAPTURE(router, limit);
      Experiment e = load_tiny({{"scheduling", {{"type", "comm_aware"}, {"target", limit}}},
                                {"request_routing", router}});
      e.decode().memory.kv_blocks = 12;
      const Report report = run(e);
      CHECK(report.document()["metrics"]["completed"] == 120);
      CHECK(report.document()["steps"]["mixed"]["mean_ms"].get<double>() <
            slow.document()["steps"]["mixed"]["mean_ms"].get<double>());
    }
  }
}

}  // namespace
}  // namespace moesim::test_comm_aware
