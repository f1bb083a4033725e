// SPDX-License-Identifier: Apache-2.0
// Is each part of the event loop exactly right, by hand-worked numbers?
#include <algorithm>
#include <numeric>

#include <fmt/format.h>

#include "hardware/at.hpp"
#include "hardware/kernels/deep_ep.hpp"
#include "hardware/rng.hpp"
#include "sim/dispatch/dispatch.hpp"
#include "sim/report/statistics.hpp"
#include "sim/request_routing/request_router.hpp"
#include "sim/scheduling/scheduler.hpp"
#include "sim/serving/event_queue.hpp"
#include "sim/serving/simulator.hpp"
#include "sim/serving/typical_step.hpp"
#include "sim/token_routing/charges.hpp"
#include "tests/support.hpp"
#include "tests/temporary.hpp"
#include "tests/tiny_experiment.hpp"
#include "tests/trace_meta.hpp"
#include "traces/halves.hpp"
#include "traces/trace_rows.hpp"

namespace moesim::test_sim {
namespace {

using namespace std::chrono_literals;
using test::config;
using test::WithinAbs;
using test::WithinRel;

TEST_CASE("events leave in order of time, ties in order of scheduling") {
  EventQueue queue;
  queue.schedule(Time(20ns), StepEnds{1});
  queue.schedule(Time(10ns), StepEnds{2});
  queue.schedule(Time(10ns), StepEnds{3});
  std::vector<int> order;
  while (const auto event = queue.pop()) {
    order.push_back(std::get<StepEnds>(event->what).instance);
  }
  CHECK(order == std::vector{2, 3, 1});
  CHECK(queue.now() == Time(20ns));
}

TEST_CASE("an event in the past is a bug") {
  EventQueue queue;
  queue.schedule(Time(10ns), RequestArrives{});
  queue.pop();
  CHECK_THROWS_AS(queue.schedule(Time(9ns), RequestArrives{}), std::logic_error);
}

TEST_CASE("a time that is no time never enters the clock") {
  CHECK_THROWS_AS(to_duration(Seconds(-1e-9)), std::logic_error);
  CHECK_THROWS_AS(to_duration(Seconds(std::nan(""))), std::logic_error);
  CHECK_THROWS_AS(to_duration(Seconds(1e9)), std::logic_error);
  CHECK(to_duration(Seconds(13.7e-6)) == Duration(13'700'000));
}

TEST_CASE("percentiles interpolate linearly, as numpy does") {
  // numpy.percentile([1, 2, 3, 4], [50, 90, 99]) = 2.5, 3.7, 3.97; std (population) = 1.1180
  const Summary summary = summarize(std::vector<double>{4, 1, 3, 2});
  CHECK(median({4, 1, 3, 2}) == 2.5);
  CHECK(median({10.5, 11.1}) == (10.5 + 11.1) / 2);
  CHECK(median({3, 1, 2}) == 2);
  CHECK(median({}) == 0);
  CHECK(summary.count == 4);
  CHECK(summary.mean == 2.5);
  CHECK(summary.p50 == 2.5);
  CHECK_THAT(summary.p90, WithinRel(3.7, 1e-12));
  CHECK_THAT(summary.p99, WithinRel(3.97, 1e-12));
  CHECK_THAT(summary.std, WithinRel(1.118033988749895, 1e-12));
  CHECK(summarize(std::vector<double>{}).count == 0);
}

TEST_CASE("weighted samples count as if they were written out") {
  const auto ms = [](double value) { return to_duration(Seconds(value * 1e-3)); };
  const Summary weighted =
      summarize(std::vector<Repeated>{{ms(2), 3}, {ms(1), 2}, {ms(9), 1}, {ms(5), 0}});
  const Summary plain = summarize(std::vector<double>{1, 1, 2, 2, 2, 9});
  CHECK(weighted.count == plain.count);
  CHECK(weighted.mean == plain.mean);
  CHECK(weighted.p90 == plain.p90);
  CHECK(weighted.p99 == plain.p99);
  CHECK(weighted.std == plain.std);
}

TEST_CASE("count histograms are exact below 1,024 and within 0.8 % above") {
  CountHistogram histogram;
  for (int i = 1; i <= 1000; ++i) histogram.add(i);
  CHECK(histogram.quantile(.5) == 500);
  CHECK(histogram.quantile(.99) == 990);
  CHECK(histogram.max() == 1000);
  CHECK(histogram.mean() == 500.5);
  CountHistogram large;
  for (const std::int64_t value : {1'024LL, 5'000LL, 123'456LL, 9'999'999'999LL}) {
    large = {};
    large.add(value);
    CHECK(large.quantile(.5) <= value);
    CHECK_THAT(double(large.quantile(.5)), WithinRel(double(value), .008));
  }
}

TEST_CASE("count histograms of values by the row hold what they hold value by value") {
  Rng rng(3, "test/count_histogram");
  CountHistogram rows, values;
  // More than 65,535 values of one row are counted otherwise, as are repeated ones and large ones.
  for (const int size : {3, 256, 70'000, 40'000, 40'001}) {
    for (const std::int64_t times : {1, 1, 5}) {
      for (const std::int32_t most : {2, 300, 5000}) {
        std::vector<std::int32_t> row(at(size));
        for (std::int32_t& value : row) value = static_cast<std::int32_t>(rng.below(at(most)));
        rows.add(row, times);
        for (const std::int32_t value : row) values.add(value, times);
      }
    }
  }
  CHECK(rows.count() == values.count());
  CHECK(rows.mean() == values.mean());
  CHECK(rows.max() == values.max());
  for (int percent = 0; percent <= 100; ++percent)
    CHECK(rows.quantile(percent / 100.) == values.quantile(percent / 100.));
}

// Blocks of 16 tokens, one group that keeps every token.
const KvLayout layout{16, Bytes(1), 1, {{1, 0}}};

std::unique_ptr<Scheduler> scheduler(const std::string& type, int tokens, int seqs,
                                     int threshold = 0) {
  return schedulers().make(config(fmt::format(
      R"({{"type": "{}", "max_num_batched_tokens": {}, "max_num_seqs": {}, "long_prefill_token_threshold": {}}})",
      type, tokens, seqs, threshold)));
}

StepPlan plan(const Scheduler& scheduler, std::vector<Sequence> running,
              std::vector<Sequence> waiting, std::int64_t free_blocks, Turn turn = Turn::any) {
  StepPlan plan;
  scheduler.plan({running, waiting, free_blocks, layout}, turn, plan);
  return plan;
}

TEST_CASE("chunked prefill serves decodes first and fills the budget with prompt chunks") {
  // Two decodes take 2 of 64 tokens, the running prompt its 30 left, the first waiting one 32 of
  // its 100.
  const Sequence decode{0, 101, 100, 100, 7};
  const Sequence half_done{1, 50, 20, 50, 2};
  const Sequence fresh{2, 100, 0, 100, 0};
  const auto s = scheduler("chunked_prefill", 64, 8);
  const StepPlan step = plan(*s, {decode, decode, half_done}, {fresh, fresh}, 100);
  CHECK(step.running_tokens == std::vector<std::int32_t>{1, 1, 30});
  CHECK(step.admitted_tokens == std::vector<std::int32_t>{32});
  CHECK(step.preempted == 0);
}

TEST_CASE(
    "a prompt is admitted when all of it fits, or on its first chunk where that is asked for") {
  // 100 tokens are 7 blocks, a chunk of 32 is 2.
  const Sequence fresh{2, 100, 0, 100, 0};
  for (const char* type : {"chunked_prefill", "prefill_first"}) {
    const auto s = scheduler(type, 32, 8);
    CHECK(plan(*s, {}, {fresh}, 6).empty());
    CHECK(plan(*s, {}, {fresh}, 7).admitted_tokens == std::vector<std::int32_t>{32});
    const auto eager = schedulers().make(config(fmt::format(
        R"({{"type": "{}", "max_num_batched_tokens": 32, "max_num_seqs": 8, "reserve_full_prompt": false}})",
        type)));
    CHECK(plan(*eager, {}, {fresh}, 1).empty());
    CHECK(plan(*eager, {}, {fresh}, 2).admitted_tokens == std::vector<std::int32_t>{32});
  }
}

TEST_CASE("guaranteed_no_evict admits what all that runs leaves when it ends") {
  // Of 16 tokens of prompt and 33 of output 48 need room: 3 blocks. Two that run hold one each and
  // take four more, so that of 8 free blocks 4 are left: room for one sequence, not for two.
  Sequence runs{0, 17, 16, 16, 1};
  Sequence fresh{2, 16, 0, 16, 0};
  runs.at_end = fresh.at_end = 48;
  for (const char* type : {"chunked_prefill", "prefill_first"}) {
    const auto with = [&](const char* policy) {
      return schedulers().make(config(fmt::format(
          R"({{"type": "{}", "max_num_batched_tokens": 64, "max_num_seqs": 8, "capacity_scheduler_policy": "{}"}})",
          type, policy)));
    };
    const auto guaranteed = with("guaranteed_no_evict");
    CHECK(plan(*guaranteed, {runs, runs}, {fresh, fresh}, 8).admitted_tokens.size() == 1);
    CHECK(plan(*guaranteed, {runs, runs}, {fresh, fresh}, 10).admitted_tokens.size() == 2);
    CHECK(plan(*guaranteed, {runs, runs}, {fresh}, 6).admitted_tokens.empty());
    CHECK(plan(*with("max_utilization"), {runs, runs}, {fresh, fresh}, 8).admitted_tokens.size() ==
          2);
  }
}

TEST_CASE("with guaranteed_no_evict no request is ever preempted, and all are served") {
  const auto serve = [](const char* policy) {
    Json json =
        test::tiny_experiment({{"scheduling", {{"capacity_scheduler_policy", policy}}},
                               {"workload",
                                {{"lengths", {{"type", "fixed"}, {"prompt", 16}, {"output", 33}}},
                                 {"arrivals", {{"type", "closed_loop"}, {"concurrency", 32}}}}}});
    Experiment e = test::load(json);
    e.pools.front().memory.kv_blocks = 10;  // three requests of a rank, not eight
    return test::serve(e);
  };
  const auto preempted = [](const test::Served& report) {
    std::int64_t sum = 0;
    for (const RequestRecord& r : report.requests) sum += r.preemptions;
    return sum;
  };
  const test::Served evicts = serve("max_utilization"), guaranteed = serve("guaranteed_no_evict");
  CHECK(preempted(evicts) > 0);
  CHECK(preempted(guaranteed) == 0);
  for (const RequestRecord& r : guaranteed.requests) REQUIRE(r.generated == 33);
}

TEST_CASE("a long prompt takes at most its threshold, so that others share the step") {
  const Sequence fresh{0, 1000, 0, 1000, 0};
  const auto s = scheduler("chunked_prefill", 64, 8, 20);
  CHECK(plan(*s, {}, {fresh, fresh, fresh, fresh}, 100).admitted_tokens ==
        std::vector<std::int32_t>{20, 20, 20, 4});
}

TEST_CASE("the threshold holds for a prompt that is under way as for a new one") {
  const Sequence half_done{0, 1000, 20, 1000, 2};
  const Sequence nearly_done{1, 50, 45, 50, 3};
  const auto s = scheduler("chunked_prefill", 64, 8, 20);
  CHECK(plan(*s, {half_done, nearly_done, half_done}, {}, 100).running_tokens ==
        std::vector<std::int32_t>{20, 5, 20});
}

TEST_CASE("max_num_seqs limits how many run, not how many wait") {
  const Sequence fresh{0, 8, 0, 8, 0};
  const auto s = scheduler("chunked_prefill", 64, 2);
  CHECK(plan(*s, {}, {fresh, fresh, fresh}, 100).admitted_tokens.size() == 2);
}

TEST_CASE("when blocks run out the last running sequence gives up its own") {
  // Both stand at a block's edge (32 computed of 33): each needs a third block, none is free. The
  // last one is preempted, its two blocks serve the first; nothing new is admitted in such a step.
  const Sequence edge{0, 33, 32, 30, 2};
  const Sequence fresh{2, 8, 0, 8, 0};
  const auto s = scheduler("chunked_prefill", 64, 8);
  const StepPlan step = plan(*s, {edge, edge}, {fresh}, 0);
  CHECK(step.running_tokens == std::vector<std::int32_t>{1});
  CHECK(step.preempted == 1);
  CHECK(step.admitted_tokens.empty());
}

TEST_CASE("a prompt that does not fit the free blocks holds up those behind it") {
  const Sequence large{0, 64, 0, 64, 0};
  const Sequence small{1, 8, 0, 8, 0};
  const auto s = scheduler("chunked_prefill", 64, 8);
  CHECK(plan(*s, {}, {large, small}, 3).empty());
}

TEST_CASE("prefill_first keeps prompts and decodes in steps of their own") {
  const Sequence decode{0, 101, 100, 100, 7};
  const Sequence fresh{1, 10, 0, 10, 0};
  const auto s = scheduler("prefill_first", 64, 8);
  const StepPlan prefill = plan(*s, {decode}, {fresh}, 100, Turn::prefill);
  CHECK(prefill.running_tokens == std::vector<std::int32_t>{0});
  CHECK(prefill.admitted_tokens == std::vector<std::int32_t>{10});
  const StepPlan decodes = plan(*s, {decode}, {fresh}, 100, Turn::decode);
  CHECK(decodes.running_tokens == std::vector<std::int32_t>{1});
  CHECK(decodes.admitted_tokens.empty());
}

TEST_CASE("prefill_first lets what a prefill pool has computed join the batch that decodes") {
  // All but the last token of each is in the KV cache: no step of their own holds the others up.
  const Sequence decode{0, 101, 100, 100, 7};
  const Sequence arrived{1, 11, 10, 10, 0};
  const Sequence fresh{2, 10, 0, 10, 0};
  const auto s = scheduler("prefill_first", 64, 8);
  CHECK(plan(*s, {decode}, {arrived, arrived}, 100, Turn::prefill).empty());
  const StepPlan step = plan(*s, {decode}, {arrived, arrived, fresh}, 100, Turn::decode);
  CHECK(step.running_tokens == std::vector<std::int32_t>{1});
  CHECK(step.admitted_tokens == std::vector<std::int32_t>{1, 1});
  // A prompt that was preempted is computed first; what arrived after it waits its turn.
  const StepPlan again = plan(*s, {decode}, {fresh, arrived}, 100, Turn::prefill);
  CHECK(again.admitted_tokens == std::vector<std::int32_t>{10});
}

TEST_CASE("knowing that every sequence needs one token saves looks, and changes no plan") {
  Rng rng(1, "test/one token each");
  int saved = 0;
  for (int round = 0; round < 2000; ++round) {
    std::vector<Sequence> running, waiting;
    for (std::uint64_t i = rng.below(8); i > 0; --i) {
      const auto computed = static_cast<std::int32_t>(1 + rng.below(100));
      running.push_back({0, computed + 1, computed, 1, (computed + 15) / 16});
    }
    if (rng.below(4) == 0) waiting.push_back({9, 20, 0, 20, 0});
    const auto free_blocks = static_cast<std::int64_t>(rng.below(12));
    const auto s =
        scheduler(rng.below(2) == 0 ? "chunked_prefill" : "prefill_first",
                  static_cast<int>(4 + rng.below(6)), static_cast<int>(4 + rng.below(6)));
    for (const Turn turn : {Turn::prefill, Turn::decode}) {
      StepPlan looked, known;
      RankView rank{running, waiting, free_blocks, layout};
      s->plan(rank, turn, looked);
      rank.needs_one_each = true;
      s->plan(rank, turn, known);
      CHECK(known.running_tokens == looked.running_tokens);
      CHECK(known.admitted_tokens == looked.admitted_tokens);
      CHECK(known.preempted == looked.preempted);
      saved += known.one_each ? 1 : 0;
    }
  }
  CHECK(saved > 500);
}

TEST_CASE("routers choose by load, ties by lowest rank") {
  const std::vector<RankLoad> ranks{{500, 0, 3, 0}, {200, 4, 2, 1}, {200, 0, 5, 2}};
  const auto pick = [&](const char* name) {
    const PendingRequest request{.prompt_tokens = 1};
    std::vector<Assignment> assignments;
    request_routers().make(config(fmt::format("\"{}\"", name)), {.ranks = 3})()->route(
        {{}, {&request, 1}, ranks}, assignments);
    return assignments.at(0).rank;
  };
  CHECK(pick("least_kv") == 1);
  CHECK(pick("jsq") == 0);
  CHECK(pick("round_robin") == 0);
  CHECK(pick("random") < 3);
}

// Two requests of one workload, three rows each: one prompt row, two of decode.
RoutingTrace small_trace(std::vector<std::string> phases, bool synthetic = false) {
  TraceMeta meta;
  meta.model = "small";
  meta.num_experts = 4;
  meta.experts_per_token = 1;
  meta.layer_ids = {0};
  meta.phases = std::move(phases);
  meta.synthetic = synthetic;
  return {meta, {"chat"}, {{0, 3, 1, 0, false}, {3, 3, 1, 0, false}}, {0, 1, 2, 3, 0, 1}};
}

struct Replayed {
  std::vector<std::int64_t> rows;
  RoutingCoverage coverage;
};
Replayed replay(const RowSource& source, Phase phase, std::uint32_t request, std::int64_t first,
                std::int32_t count) {
  std::vector<RowRange> ranges;
  Replayed replayed;
  source.append({{request, request}}, {phase, 0, count, first}, ranges, replayed.coverage);
  for (const RowRange& range : ranges) {
    for (std::int32_t i = 0; i < range.count; ++i) replayed.rows.push_back(range.first_row + i);
  }
  return replayed;
}

TEST_CASE("a request replays its own rows, then those of the next request of its workload") {
  const RowSource source(small_trace({"prefill", "decode"}), std::nullopt, false, 1);
  const Replayed own = replay(source, Phase::decode, 0, 0, 2);
  CHECK(own.rows == std::vector<std::int64_t>{1, 2});
  CHECK(own.coverage.recorded == 2);
  const Replayed beyond = replay(source, Phase::decode, 1, 1, 4);
  CHECK(beyond.rows == std::vector<std::int64_t>{5, 1, 2, 4});
  CHECK(beyond.coverage.recorded == 1);
  CHECK(beyond.coverage.wrapped == 3);
}

TEST_CASE("a phase that was not recorded borrows the bound request's rows") {
  const RowSource source(small_trace({"decode"}), std::nullopt, false, 1);
  const Replayed prompt = replay(source, Phase::prefill, 1, 0, 3);
  CHECK(prompt.rows == std::vector<std::int64_t>{3, 4, 5});
  CHECK(prompt.coverage.borrowed == 3);
  CHECK(prompt.coverage.recorded == 0);
}

TEST_CASE("rows of a generator are counted as synthetic") {
  const RowSource source(small_trace({"prefill", "decode"}, true), std::nullopt, false, 1);
  CHECK(replay(source, Phase::decode, 0, 0, 5).coverage.synthetic == 5);
}

TEST_CASE("a placement fitted on half of the requests is tried on the others alone") {
  RowSource source(small_trace({"prefill", "decode"}), std::nullopt, true, 1);
  for (int i = 0; i < 20; ++i) CHECK(source.bind().request[1] == 1);
}

TEST_CASE("both halves of a trace hold every workload, in whatever order its requests stand") {
  const TraceMeta meta = test::trace_meta("tiny", 2, 1, {0}, {"prefill", "decode"});
  const auto halves = [&](const std::vector<int>& workloads) {
    std::vector<TraceRequest> requests;
    std::vector<std::uint16_t> ids;
    for (const int workload : workloads) {
      requests.push_back({std::ssize(requests), 1, 0, workload, false});
      ids.push_back(0);
    }
    return fitted_half(RoutingTrace(meta, {"a", "b", "c", "d"}, requests, ids));
  };
  // In blocks every even-numbered request, although the second block starts at an odd number.
  CHECK(halves({0, 0, 0, 1, 1, 1}) == std::vector<char>{1, 0, 1, 0, 1, 0});
  // In turn, as synthetic requests take their workloads, no workload stays in one half.
  CHECK(halves({0, 1, 2, 3, 0, 1, 2, 3}) == std::vector<char>{1, 0, 1, 0, 0, 1, 0, 1});
  CHECK(halves({0, 1, 0, 1, 0, 1}) == std::vector<char>{1, 0, 0, 1, 1, 0});
}

TEST_CASE("a request that has run for a while may stand anywhere in its recording") {
  RowSource source(small_trace({"prefill", "decode"}), std::nullopt, false, 1);
  for (const std::uint32_t request : {0U, 1U}) {
    const Binding binding{{request, request}};
    const std::int64_t rows = source.recorded(binding, Phase::decode);
    std::vector<int> seen(static_cast<std::size_t>(rows));
    for (int i = 0; i < 200; ++i) {
      ++seen.at(static_cast<std::size_t>(source.random_place(binding, Phase::decode)));
    }
    CHECK(std::count(seen.begin(), seen.end(), 0) == 0);
  }
}

TEST_CASE("a trace without anything to replay in a phase is refused") {
  const RoutingTrace trace = small_trace({"prefill", "decode"});
  const auto error = [&](const TraceRequest& only, bool other_half) {
    return test::config_error(
        [&] { RowSource(trace.with_requests({only}), std::nullopt, other_half, 1); });
  };
  CHECK(error({0, 3, 1, 0, false}, false).empty());
  CHECK(error({0, 3, 3, 0, false}, false) ==
        "routing trace of small has no request to replay in decode");
  CHECK(error({0, 3, 0, 0, false}, false) ==
        "routing trace of small has no request to replay in prefill");
  CHECK(error({0, 3, 1, 0, false}, true) ==
        "routing trace of small has no request to replay in prefill");
}

// A trace of one request for the model of tiny_experiment: in the phase that was recorded each
// token picks `expert` and the next one, in every layer.
std::string recorded_taste(const test::TemporaryFolder& folder, const std::string& phase,
                           std::uint16_t expert) {
  constexpr std::int64_t rows = 30;
  const TraceMeta meta = test::trace_meta("tiny", 16, 2, {0, 1, 2}, {phase});
  std::vector<std::uint16_t> ids;
  for (int i = 0; i < rows * 3; ++i) {
    ids.push_back(expert);
    ids.push_back(static_cast<std::uint16_t>(expert + 1));
  }
  const std::int64_t prompt_rows = phase == "prefill" ? rows : 0;
  write_trace(RoutingTrace(meta, {phase}, {{0, rows, prompt_rows, 0, false}}, ids), folder / phase);
  return (folder / phase).string();
}

TEST_CASE("with a gating of their own prompt tokens go where it says, all others do not") {
  const test::TemporaryFolder folder;
  Json json = test::tiny_experiment(Json::object());
  json["workload"]["gating"] = {{"type", "recorded"},
                                {"trace", recorded_taste(folder, "decode", 14)}};
  json["workload"]["prefill_gating"] = {{"type", "recorded"},
                                        {"trace", recorded_taste(folder, "prefill", 0)}};
  const OrderedJson report = run(test::load(json)).document();
  // 120 prompts of 20 tokens; of 30 output tokens the last is never fed back.
  std::vector<std::int64_t> prompts(16), outputs(16);
  prompts[0] = prompts[1] = 120 * 20;
  outputs[14] = outputs[15] = 120 * 29;
  const OrderedJson& counts = report["experts"]["tokens_per_expert_by_workload"];
  for (std::size_t layer = 0; layer < 3; ++layer) {
    CHECK(counts["prefill"][layer] == prompts);
    CHECK(counts["decode"][layer] == outputs);
  }
}

TEST_CASE("a step of prompts and decodes runs under the rule that the config names") {
  const auto rule = [](const Json& mixed, StepKind kind, std::int64_t prompt_tokens) {
    const Experiment e = test::load_tiny({{"token_routing", {{"mixed", mixed}}}});
    return rule_kind(e.decode().mixed, kind, prompt_tokens);
  };
  const Json few{{"decode_if_prefill_tokens_at_most", 3}};
  CHECK(rule("prefill", StepKind::mixed, 1) == StepKind::prefill);
  CHECK(rule("decode", StepKind::mixed, 1000) == StepKind::decode);
  CHECK(rule(few, StepKind::mixed, 3) == StepKind::decode);
  CHECK(rule(few, StepKind::mixed, 4) == StepKind::prefill);
  // What is not mixed has its own rule, whatever there is for mixed steps.
  CHECK(rule(few, StepKind::prefill, 1) == StepKind::prefill);
  CHECK(rule("prefill", StepKind::decode, 0) == StepKind::decode);
}

TEST_CASE("mixed steps may have a policy and a dispatch of their own, but no dispatch alone") {
  Json json = test::tiny_experiment({{"token_routing", {{"mixed", "metro"}}}});
  CHECK_THAT(test::refused(json), Catch::Contains("/token_routing/mixed: \"metro\" needs"));
  json["dispatch"]["mixed"] = "all_gather";
  const Experiment e = test::load(json);
  const ExplainedStep step = explain_step(e, mixed_step(2, 100, 8));
  CHECK(step.summary.rule == StepKind::mixed);
  CHECK(e.decode().rules.of(StepKind::mixed).router_name == "metro");
  CHECK(step.cost.layers.front().exchange.name == "all_gather");
  CHECK(explain_step(e, decode_step(2, 100)).cost.layers.front().exchange.name == "all_to_all");
  json["token_routing"]["mixed"] = "decode";
  CHECK_THAT(test::refused(json), Catch::Contains("/dispatch/mixed: no step uses it"));
}

// 40 decode tokens of one request: the first picks experts 0 and 1, as headers do that every answer
// begins with; the others go round the sixteen.
TEST_CASE("a typical step is not one of first tokens, and several are priced alike") {
  const test::TemporaryFolder folder;
  std::vector<std::uint16_t> ids;
  for (int row = 0; row < 40; ++row) {
    for (int layer = 0; layer < 3; ++layer) {
      ids.push_back(static_cast<std::uint16_t>(row == 0 ? 0 : 2 * (row % 7) + 2));
      ids.push_back(static_cast<std::uint16_t>(row == 0 ? 1 : 2 * (row % 7) + 3));
    }
  }
  write_trace(RoutingTrace(test::trace_meta("tiny", 16, 2, {0, 1, 2}, {"decode"}), {"any"},
                           {{0, 40, 0, 0, false}}, ids),
              folder / "trace");
  Json json = test::tiny_experiment(Json::object());
  json["workload"]["gating"] = {{"type", "recorded"}, {"trace", (folder / "trace").string()}};
  const Experiment e = test::load(json);
  // One sequence on each of four ranks: of first tokens alone two experts would be active.
  const ExplainedStep step = explain_step(e, decode_step(1, 100), 5);
  CHECK(step.cost.layers.front().active_experts > 2);
  REQUIRE(step.totals.size() == 5);
  CHECK(step.totals.front() == step.cost.total);
  CHECK(explain_step(e, decode_step(1, 100)).cost.total == step.cost.total);
}

TEST_CASE("a step priced by some of its layers is near the step") {
  const Json deep = Json::array({{{"repeat", 20}, {"pattern", Json::array({{{"ffn", "moe"}}})}}});
  const Experiment e = test::load_tiny({{"model", {{"layers", deep}}}});
  const double all = explain_step(e, decode_step(16, 100)).cost.total.count();
  const ExplainedStep some = estimate_step(e.decode(), decode_step(16, 100));
  CHECK_THAT(some.cost.total.count(), test::WithinRel(all, .05));
  // Eight in the middle, and the others in their place.
  const auto& layers = some.cost.layers;
  REQUIRE(layers.size() == 20);
  for (std::size_t l = 0; l < 20; ++l) {
    const std::size_t from = l >= 6 && l < 14 ? l : 6 + l % 8;
    CHECK(layers[l].load.tokens == layers[from].load.tokens);
  }
  CHECK(layers[6].load.tokens != layers[7].load.tokens);
  // Where there are no more than that, it is the step.
  const Experiment flat = test::load_tiny(Json::object());
  CHECK(estimate_step(flat.decode(), decode_step(16, 100)).cost.total ==
        explain_step(flat, decode_step(16, 100)).cost.total);
}

TEST_CASE("with tp 2 every attention and every dense layer ends in a sum over two GPUs") {
  const Json dense_and_moe = Json::array({{{"ffn", "dense"}}, {{"ffn", "moe"}}});
  const Experiment e =
      test::load_tiny({{"parallel", {{"dp", 2}, {"tp", 2}, {"ep", 4}}},
                       {"model",
                        {{"dense_width", 1024},
                         {"layers", Json::array({{{"repeat", 3}, {"pattern", dense_and_moe}}})}}}});
  const ExplainedStep step = explain_step(e, decode_step(4, 100));
  const auto calls_of = [&](std::string_view name) {
    const auto found = std::ranges::find(step.operations, name, &ExplainedOperation::name);
    return found == step.operations.end() ? 0 : found->calls;
  };
  CHECK(calls_of("tp_all_reduce") == 6 + 3);
  // After its experts a rank's GPUs exchange what each GPU received.
  CHECK(calls_of("tp_all_gather") == 3);
  // 4 tokens of 512 in bf16.
  const CollectiveCost sum = Fabric(e.decode().cluster).all_reduce(2, Bytes(4 * 512 * 2));
  const auto found = std::ranges::find(step.operations, "tp_all_reduce", &ExplainedOperation::name);
  REQUIRE(found != step.operations.end());
  CHECK_THAT(found->seconds, WithinRel(9 * sum.time.count(), 1e-12));
}

// Overrides nothing but what it is there for.
class Departures final : public RunObserver {
 public:
  std::vector<std::uint32_t> left;
  void request_left(std::uint32_t id, const RequestRecord& request) override {
    CHECK_FALSE(request.open());
    left.push_back(id);
  }
};

TEST_CASE("who watches for requests alone sees each of them leave once") {
  Departures departures;
  const std::array<RunObserver*, 1> observers{&departures};
  run(test::load_tiny(Json::object()), {}, observers);
  std::vector<std::uint32_t> all(120);
  std::iota(all.begin(), all.end(), 0U);
  std::ranges::sort(departures.left);
  CHECK(departures.left == all);
}

TEST_CASE("of a request that has finished its life is kept, and the next one takes its place") {
  using State = RequestLife::State;
  Requests requests(4);
  for (const std::int32_t generated : {5, 7, 9}) {
    RequestRecord& r = requests.add();
    r.arrival = Time{Duration{generated}};
    r.generated = r.output_tokens = generated;
    r.prefill = std::make_shared<PrefillRecord>();
  }
  const RequestRecord* const place = &requests[1];
  requests[0].state = State::cancelled;
  requests[1].state = State::finished;
  requests.left(0);
  requests.left(1);
  CHECK(requests.has(0));  // its rank may have yet to drop it
  CHECK_FALSE(requests.has(1));
  CHECK(requests.has(2));
  CHECK(requests.generated_tokens() == 12);
  CHECK(requests.lives()[0].state == State::cancelled);
  CHECK(requests.lives()[1].state == State::finished);
  CHECK(requests.lives()[1].arrival == Time{Duration{7}});
  CHECK(requests.lives()[1].output_tokens == 7);

  const RequestRecord& next = requests.add();
  CHECK(&next == place);
  CHECK(&requests[3] == place);
  CHECK(next.generated == 0);
  CHECK(next.prefill == nullptr);
  CHECK(requests[2].generated == 9);
  CHECK(requests.size() == 4);
}

TEST_CASE("decode_only computes one token per sequence and step, the first output token included") {
  const auto file = test::source_dir() / "configs/quick.json";
  Json json = ConfigNode::from_file(file).json();
  json["scheduling"] = {{"type", "decode_only"}, {"max_num_seqs", 4}};
  json["workload"]["arrivals"]["concurrency_per_rank"] = 4;
  json["workload"]["lengths"] = {{"type", "fixed"}, {"prompt", 100}, {"output", 10}};
  json["workload"]["requests"] = 32;  // 8 ranks x 4: one batch
  json["measurement"]["warmup"] = 0;
  TraceLibrary traces;
  const Report report = run(load_experiment(ConfigNode(json, file), traces));
  const OrderedJson steps = report.document().at("steps");
  CHECK(steps.at("prefill").at("steps") == 0);
  CHECK(steps.at("mixed").at("steps") == 0);
  CHECK(steps.at("decode").at("steps") == 10);
  CHECK(steps.at("decode").at("mean_decode_tokens") == 32);
  const OrderedJson metrics = report.document().at("metrics");
  CHECK(metrics.at("completed") == 32);
  // Nine gaps of a step each follow the first token: TPOT is their mean.
  const double first = metrics.at("median_ttft_ms").get<double>();
  const double mean = steps.at("decode").at("mean_ms").get<double>();
  CHECK_THAT(metrics.at("median_tpot_ms").get<double>(), WithinRel((10 * mean - first) / 9, 1e-6));
}

ClusterSpec two_nodes() {
  return read_cluster(ConfigNode::from_file(test::source_dir() / "hardware/clusters/h100x16.json"));
}

TEST_CASE("all-gather volume counts every token once per other GPU, whatever its experts") {
  const Fabric fabric(two_nodes());
  const std::vector<double> tokens(8, 32.0);
  const auto gather =
      dispatches().make(config(R"({"type": "all_gather", "combine": "reduce_scatter"})"));
  const Exchange exchange = gather->exchange({fabric, tokens, 2048, 8, 128});
  // 8 GPUs x 7 others x 32 tokens x 2048 x 2 B
  CHECK_THAT(exchange.dispatch.nvlink.value(), WithinRel(8.0 * 7 * 32 * 2048 * 2, 1e-12));
  CHECK_THAT(exchange.combine.nvlink.value(), WithinRel(8.0 * 7 * 32 * 2048 * 2, 1e-12));
  CHECK(exchange.dispatch.network.value() == 0);
  CHECK(gather->gives_global_counts());
  CHECK_FALSE(gather->needs_copies());
}

TEST_CASE("an exchange by all-reduces sends twice what gathers do, however uneven the ranks") {
  const Fabric fabric(two_nodes());
  const std::vector<double> tokens{64, 0, 32, 32, 128, 0, 0, 0};
  const auto sums = dispatches().make(config(R"("all_reduce")"));
  const Exchange exchange = sums->exchange({fabric, tokens, 2048, 8, 128});
  // A reduce-scatter and an all-gather of 256 rows over 8 GPUs: 2 x 7 x 256 x 2048 x 2 B.
  CHECK_THAT(exchange.dispatch.nvlink.value(), WithinRel(2.0 * 7 * 256 * 2048 * 2, 1e-12));
  CHECK_THAT(exchange.combine.nvlink.value(), WithinRel(2.0 * 7 * 256 * 2048 * 2, 1e-12));
  CHECK(exchange.gathered);
  CHECK(sums->gives_global_counts());
  CHECK_FALSE(sums->needs_copies());
  const std::vector<double> even(8, 32.0);
  CHECK(sums->exchange({fabric, even, 2048, 8, 128}).dispatch.time == exchange.dispatch.time);
}

TEST_CASE("an all-to-all sends what the copies say, in the precision it was given") {
  const Fabric fabric(two_nodes());
  TrafficMatrix copies(8);
  copies.at(0, 1) = 10;
  copies.at(0, 0) = 99;  // local copies cross no link
  copies.at(5, 2) = 3;
  const LinkTraffic sent(copies, fabric.cluster().scale_up_domain);
  const std::vector<double> tokens(8, 16.0);
  const auto plain = dispatches().make(config(R"("all_to_all")"));
  const Exchange exchange = plain->exchange({fabric, tokens, 7168, 8, 256, &sent});
  CHECK(exchange.dispatch.nvlink.value() == 13 * 7168 * 2);
  CHECK(exchange.combine.nvlink.value() == 13 * 7168 * 2);
  // DeepEP: fp8 out with a 4-byte scale per 128 values, bf16 back.
  const auto fp8 = dispatches().make(config(R"({"type": "all_to_all", "precision": "fp8_block"})"));
  const Exchange narrow = fp8->exchange({fabric, tokens, 7168, 8, 256, &sent});
  CHECK(narrow.dispatch.nvlink.value() == 13 * (7168 + 7168 / 128 * 4));
  CHECK(narrow.combine.nvlink.value() == 13 * 7168 * 2);
}

TEST_CASE("low latency sends a message per selection, with its own kernel's constants") {
  const Fabric fabric(two_nodes());
  TrafficMatrix selections(16);
  selections.at(0, 1) = 10;
  selections.at(0, 9) = 4;  // across nodes: straight, over the network
  const std::vector<double> tokens(16, 8.0);
  const auto dispatch = dispatches().make(config(R"({"type": "low_latency", "precision": "fp8"})"));
  DispatchProblem problem{fabric, tokens, 7168, 8, 256};
  const LinkTraffic sent(selections, fabric.cluster().scale_up_domain);
  problem.selections = &sent;
  const Exchange exchange = dispatch->exchange(problem);
  CHECK(exchange.dispatch.nvlink.value() == 10 * 7168);
  CHECK(exchange.dispatch.network.value() == 4 * 7168);
  CHECK(exchange.combine.network.value() == 4 * 7168 * 2);
  const CollectiveCost expected =
      fabric.all_to_all(selections, low_latency_all_to_all_kernel, 7168);
  CHECK(exchange.dispatch.time == expected.time);
  CHECK_FALSE(dispatch->gives_global_counts());
}

TEST_CASE("one-sided exchanges send a copy per rank, by their own constants or their own table") {
  const auto dispatch = dispatches().make(config(R"({"type": "one_sided", "precision": "nvfp4"})"));
  CHECK(dispatch->within_nvlink());
  CHECK_FALSE(dispatch->gives_global_counts());
  const std::vector<double> tokens(16, 8.0);
  TrafficMatrix copies(16);
  copies.at(0, 1) = 10;
  copies.at(2, 1) = 3;
  const Fabric fabric(two_nodes());
  const LinkTraffic sent(copies, fabric.cluster().scale_up_domain);
  const Exchange exchange = dispatch->exchange({fabric, tokens, 7168, 8, 256, &sent});
  CHECK(exchange.dispatch.nvlink.value() == 13 * 7168 * 0.5625);
  CHECK(exchange.combine.nvlink.value() == 13 * 7168 * 2);
  CHECK(exchange.experts == ExpertKernel::grouped_gemm);
  CHECK(exchange.dispatch_holds.kernels == exchange.dispatch.time);
  // A rack's table: 512 tokens a rank of eight, each with experts on all eight, bf16 on their way
  // back: 105 us of ai-dynamo/aiconfigurator, gb200, trtllm 1.3.0rc10, NVLinkOneSided.
  ClusterSpec rack = read_cluster(
      ConfigNode::from_file(test::source_dir() / "hardware/clusters/gb200_nvl72.json"));
  rack.gpu = with_engine(rack.gpu, {"trtllm", "1.3.0rc20"});
  const std::vector<double> of_eight(8, 512.0);
  const Fabric links(rack);
  const LinkTraffic even(even_traffic(8, 512), rack.scale_up_domain);
  const Exchange measured = dispatch->exchange({links, of_eight, 7168, 8, 256, &even});
  CHECK_THAT(measured.combine.time.count(), WithinRel(105e-6, 0.02));
  CHECK_THAT(measured.dispatch.time.count(), WithinRel(43e-6, 0.02));
  CHECK(measured.combine.evidence == Evidence::measured);
  const Json far{{"parallel", {{"dp", 16}, {"ep", 16}}}, {"dispatch", {{"decode", "one_sided"}}}};
  CHECK_THROWS_WITH(test::load_tiny(far),
                    Catch::Matchers::Contains("16 GPUs of a group in one NVLink domain"));
}

namespace {

// How many of `groups` equal groups of experts hold one of 8 that are drawn from all.
double groups_reached(int groups, int experts) {
  double none = 1;
  const double outside = experts - double(experts) / groups;
  for (int drawn = 0; drawn < 8; ++drawn) none *= (outside - drawn) / (experts - drawn);
  return groups * (1 - none);
}

// NVIDIA's test of Hybrid-EP: 4,096 tokens a GPU, 8 experts on each, hidden 7168.
Exchange tested_hybrid_ep(std::string_view cluster, int gpus, std::string_view precision) {
  const Fabric fabric(read_cluster(ConfigNode::from_file(
      test::source_dir() / fmt::format("hardware/clusters/{}.json", cluster))));
  const int in_domain = fabric.cluster().scale_up_domain, experts = 8 * gpus;
  const double domains = fabric.domain_of(gpus - 1) + 1, tokens = 4096;
  const double ranks = groups_reached(gpus, experts);
  const double of_domain = gpus / domains;
  LinkTraffic copies(gpus, in_domain);
  for (std::vector<double>* near : {&copies.near_out, &copies.near_in})
    std::ranges::fill(*near, tokens * ranks * (of_domain - 1) / of_domain);
  if (domains > 1) {
    const double far = tokens * groups_reached(int(domains), experts) * (domains - 1) / domains;
    for (std::vector<double>* there : {&copies.far_out, &copies.far_in})
      std::ranges::fill(*there, far);
  }
  const std::vector<double> of_gpu(at(gpus), tokens);
  return dispatches()
      .make(config(fmt::format(R"({{"type": "hybrid_ep", "precision": "{}"}})", precision)))
      ->exchange({fabric, of_gpu, 7168, 8, double(experts), &copies});
}

}  // namespace

TEST_CASE("Hybrid-EP's calls take as long as NVIDIA measured, also those not fitted on") {
  // deepseek-ai/DeepEP@41cad94, docs/README_Hybrid-EP.md: GB/s of all copies, those that stay on
  // the GPU or in the node included.
  struct Measured {
    const char* cluster;
    int gpus;
    double fp8, bf16, combine, within;
  };
  for (const auto& [cluster, gpus, fp8, bf16, combine, within] :
       {Measured{"gb200_nvl72", 8, 455.35, 545.71, 568.94, 0.04},
        Measured{"gb200_nvl72", 16, 444.67, 523.48, 521.55, 0.04},
        Measured{"gb200_nvl72", 36, 361.13, 479.02, 447.89, 0.04},
        // Not fitted on, and with 16 SMs.
        Measured{"b200_nvl16", 8, 409.71, 535.94, 530.86, 0.11},
        Measured{"h100x16", 16, 48.26, 54.47, 53.35, 0.05},
        Measured{"h100x32", 32, 42.10, 47.36, 52.53, 0.05}}) {
    CAPTURE(cluster, gpus);
    const Exchange as_fp8 = tested_hybrid_ep(cluster, gpus, "fp8_block");
    const Exchange as_bf16 = tested_hybrid_ep(cluster, gpus, "bf16");
    const bool one_domain = as_fp8.dispatch.network.value() == 0;
    const double copies = 4096 * groups_reached(one_domain ? gpus : gpus / 8, 8 * gpus);
    const auto rate = [&](double bytes, Seconds time) {
      return copies * bytes / time.count() / 1e9;
    };
    CHECK_THAT(rate(7168 * (1 + 4.0 / 128), as_fp8.dispatch.time), WithinRel(fp8, within));
    CHECK_THAT(rate(7168 * 2, as_bf16.dispatch.time), WithinRel(bf16, within));
    CHECK_THAT(rate(7168 * 2, as_bf16.combine.time), WithinRel(combine, within));
  }
}

TEST_CASE(
    "auto is never slower than any dispatch of a network, and gives a router the counts that it "
    "needs") {
  const Fabric fabric(two_nodes());
  for (const double tokens_per_gpu : {1.0, 64.0, 2048.0}) {
    CAPTURE(tokens_per_gpu);
    const std::vector<double> tokens(16, tokens_per_gpu);
    // 8 of 16 GPUs hold a chosen expert of every token: 5.3 copies, 8 selections, evenly.
    TrafficMatrix copies(16), selections(16);
    for (int from = 0; from < 16; ++from) {
      for (int to = 0; to < 16; ++to) {
        copies.at(from, to) = tokens_per_gpu * 5.3 / 16;
        selections.at(from, to) = tokens_per_gpu * 8 / 16;
      }
    }
    const int domain = fabric.cluster().scale_up_domain;
    const LinkTraffic per_gpu(copies, domain), per_expert(selections, domain);
    DispatchProblem problem{fabric, tokens, 7168, 8, 256, &per_gpu, &per_expert};
    problem.top_k_of_all_tokens = Seconds(3e-6);
    const auto automatic = dispatches().make(config(R"("auto")"));
    for (const bool counts : {false, true}) {
      problem.needs_global_counts = counts;
      const Exchange best = automatic->exchange(problem);
      for (const auto& entry : dispatches().entries()) {
        const auto other = dispatches().make(config(fmt::format("\"{}\"", entry.name)));
        // Hybrid-EP is of frameworks that train: no engine can choose it in a layer.
        if (other->within_nvlink() || entry.name == "hybrid_ep") continue;
        if (counts && !other->gives_global_counts()) {
          CHECK(best.name != entry.name);
        } else {
          CHECK(best.total() <= other->exchange(problem).total());
        }
      }
    }
  }
}

TEST_CASE("a run whose requests all leave together is measured whole, not after its warm-up") {
  const OrderedJson metrics =
      run(test::load_tiny({{"workload",
                            {{"requests", 24},
                             {"lengths", {{"type", "fixed"}, {"prompt", 4}, {"output", 8}}}}}}))
          .document()["metrics"];
  CHECK(metrics["completed"] == 24);
  CHECK(metrics["output_throughput"].get<double>() > 0);
  CHECK(metrics["median_tpot_ms"].is_number());
}

TEST_CASE("routing charges follow active experts and vanish without replicas") {
  const Charges measured = read_charges(config("{}"), {});
  const auto of = [&](const char* policy) {
    const RoutingCharge charge = measured.routing(policy);
    return std::pair(charge.fixed.count(), charge.per_128_active.count());
  };
  CHECK(of("metro") == std::pair(0., 26e-6));
  CHECK(of("optimal") == std::pair(10e-6, 26e-6));
  CHECK(of("hybrid") == std::pair(10e-6, 26e-6));
  CHECK(of("token_balanced") == std::pair(100e-6, 0.));
  for (const char* free : {"vllm", "even"}) CHECK(of(free) == std::pair(0., 0.));
  const Charges none = read_charges(config(R"({"token_routing": "none"})"), {});
  CHECK(none.routing("metro").per_128_active.count() == 0);
  // A step of three layers, 4 sequences on each of 4 GPUs: METRO is charged by what is active.
  const auto charged = [](double replication, int metro_us) {
    const Json metro{{"per_128_active", std::to_string(metro_us) + " us"}};
    const Experiment experiment = test::load_tiny(
        {{"placement", {{"replication", replication}}},
         {"token_routing", {{"decode", "metro"}}},
         {"dispatch", {{"decode", "all_gather"}}},
         {"charges",
          {{"token_routing",
            {{"source", "a test"}, {"top_k_of_all_tokens", "0 us"}, {"metro", metro}}}}}});
    const StepCost cost = explain_step(experiment, decode_step(4, 64)).cost;
    const auto& part = cost.parts[static_cast<std::size_t>(Part::token_routing)];
    int active = 0;
    for (const LayerOutcome& layer : cost.layers) active += layer.active_experts;
    return std::pair(std::accumulate(part.begin(), part.end(), 0.), active);
  };
  const auto [seconds, active] = charged(1.5, 128);
  CHECK(active > 0);
  CHECK_THAT(seconds, WithinRel(active * 1e-6, 1e-9));
  CHECK(charged(1, 128).first == 0);
}

}  // namespace

TEST_CASE("data-parallel ranks of a dense model are engines of their own") {
  Json dense{{"parallel", {{"dp", 2}, {"tp", 1}, {"ep", nullptr}}},
             {"model", {{"experts", nullptr}, {"dense_width", 1024}}},
             {"placement", nullptr}};
  dense["model"]["layers"] =
      Json::array({{{"repeat", 3}, {"pattern", Json::array({{{"ffn", "dense"}}})}}});
  Json apart = dense;
  apart["parallel"]["dp"] = 1;
  apart["instances"] = 2;
  const test::Served ranks = test::serve(test::load_tiny(dense)),
                     instances = test::serve(test::load_tiny(apart));
  CHECK(ranks.metrics.tpot.mean == instances.metrics.tpot.mean);
  CHECK(ranks.metrics.ttft.mean == instances.metrics.ttft.mean);
}

TEST_CASE("a closed loop's window is as long as a request, or the whole run is measured") {
  // Of 16 requests the measured ones would be those of one wave.
  for (const int requests : {12, 16, 24, 60}) {
    CAPTURE(requests);
    const test::Served served = test::serve(
        test::load_tiny({{"workload", {{"arrivals", {{"concurrency", 8}}}, {"requests", requests}}},
                         {"measurement", {{"warmup", .1}}}}));
    const Metrics& m = served.metrics;
    // Little's law: no more requests are in flight than clients.
    CHECK(m.request_throughput * m.e2el.mean / 1e3 <= 8 * 1.1);
    CHECK((served.measurement.window == "whole") == (requests <= 16));
  }
}

}  // namespace moesim::test_sim
