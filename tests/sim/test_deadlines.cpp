// SPDX-License-Identifier: Apache-2.0
// Do classes of requests get what they are owed, and do schedulers go by priorities and deadlines?
#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

#include <fmt/format.h>

#include "hardware/rng.hpp"
#include "sim/report/slo_watch.hpp"
#include "sim/scheduling/deadline_order.hpp"
#include "sim/serving/instance.hpp"
#include "sim/serving/simulator.hpp"
#include "sim/serving/step_time_estimate.hpp"
#include "tests/support.hpp"
#include "tests/temporary.hpp"
#include "tests/tiny_experiment.hpp"

namespace moesim::test_deadlines {
namespace {

using test::load_tiny;
using test::tiny_experiment;
using test::WithinRel;

// A token takes 1 ms, alone or in a piece of a prompt; a decode step takes no time.
StepPrice price_of_prompts() {
  StepPrice price{{0, 0}, 0, {}};
  for (int tokens = 1; tokens <= 64; tokens *= 2) price.of_prompt.push_back(1e-3 * tokens);
  return price;
}
const StepPrice price = price_of_prompts();

Time at(double ms) { return Time(to_duration(Seconds(ms * 1e-3))); }

// A request that waits, by number in order of arrival.
Sequence prompt(std::uint32_t request, std::int32_t tokens, double due_ms,
                std::uint32_t topic = 0) {
  Sequence sequence{request, tokens, 0, tokens, 0};
  sequence.deadline = at(due_ms);
  sequence.topic = topic;
  return sequence;
}

std::unique_ptr<Scheduler> scheduler(const std::string& type, const std::string& options = "") {
  return schedulers().make(test::config(fmt::format(
      R"({{"type": "{}", "max_num_batched_tokens": 64, "max_num_seqs": 8{}}})", type, options)));
}
const char* const all_slack = R"(, "slack_share": 1)";

std::vector<std::uint32_t> order(const Scheduler& scheduler, std::vector<Sequence> waiting,
                                 double now_ms = 0, std::vector<std::int32_t> running = {}) {
  const QueueView queue{at(now_ms), {}, &price, running, {}};
  scheduler.order_waiting(queue, waiting);
  std::vector<std::uint32_t> requests;
  for (const Sequence& sequence : waiting) requests.push_back(sequence.request);
  return requests;
}

using Order = std::vector<std::uint32_t>;

// One server that computes prompts one after the other, each to its end. Which first tokens come
// too late? `passed` counts how often the first of the queue is not the one that is due first.
struct Served {
  std::vector<std::uint32_t> late;
  int passed = 0;
};
Served serve_alone(const Scheduler& scheduler, std::vector<Sequence> waiting) {
  Served served;
  std::vector<std::int32_t> ran(4);
  for (Time now{}; !waiting.empty();) {
    scheduler.order_waiting({now, {}, &price, ran, {}}, waiting);
    const Sequence next = waiting.front();
    if (next.deadline > std::ranges::min(waiting, {}, &Sequence::deadline).deadline)
      ++served.passed;
    waiting.erase(waiting.begin());
    now += to_duration(price.prompt_time(next.tokens, 64));
    if (now > next.deadline) served.late.push_back(next.request);
    ++ran[next.topic];
  }
  return served;
}

// ---- the order of a queue

TEST_CASE("a prompt's time is that of its pieces") {
  CHECK_THAT(price.prompt_time(10, 64).count(), WithinRel(.010, 1e-12));
  CHECK_THAT(price.prompt_time(150, 64).count(), WithinRel(.150, 1e-12));
  // Pieces of 48 tokens: two of them, and 4 more tokens.
  CHECK_THAT(price.prompt_time(100, 48).count(), WithinRel(.100, 1e-12));
  CHECK(price.prompt_time(0, 64).count() == 0);
}

TEST_CASE(
    "of three prompts of 10 ms, due in 31, 21 and 11 ms, only first come first served is late") {
  const std::vector<Sequence> waiting{prompt(0, 10, 31), prompt(1, 10, 21), prompt(2, 10, 11)};
  CHECK(serve_alone(*scheduler("chunked_prefill"), waiting).late == Order{2});
  for (const char* type : {"earliest_deadline", "expert_groups"}) {
    CHECK(order(*scheduler(type), waiting) == Order{2, 1, 0});
    CHECK(serve_alone(*scheduler(type), waiting).late.empty());
  }
}

TEST_CASE("who cannot be in time any more goes behind those who can, by arrival") {
  // At 5 ms the first and the last have 8 and 6 ms left for prompts of 10 ms.
  const std::vector<Sequence> waiting{prompt(0, 10, 13), prompt(1, 10, 40), prompt(2, 10, 16),
                                      prompt(3, 10, 11)};
  for (const char* type : {"earliest_deadline", "expert_groups"}) {
    CHECK(order(*scheduler(type), waiting, 5) == Order{2, 1, 0, 3});
    CHECK(order(*scheduler(type), waiting, 0) == Order{3, 0, 2, 1});
  }
}

TEST_CASE("equal deadlines are served by arrival, and clients that have a token before all") {
  Sequence preempted = prompt(7, 10, 1);
  preempted.tokens = 12;
  const std::vector<Sequence> waiting{prompt(4, 10, 90), prompt(3, 10, 90), preempted};
  CHECK(order(*scheduler("earliest_deadline"), waiting, 5) == Order{7, 3, 4});
}

TEST_CASE("priority serves lower values first, equals by arrival, and preempts in reverse") {
  Sequence first = prompt(5, 10, 0), second = prompt(6, 10, 0), third = prompt(7, 10, 0);
  first.priority = 2;
  third.priority = -1;
  const auto by_priority = scheduler("priority");
  CHECK(order(*by_priority, {first, second, third}) == Order{7, 6, 5});
  CHECK(by_priority->keeps_longer(third, first));
  CHECK(by_priority->keeps_longer(second, first));
  CHECK(!by_priority->keeps_longer(first, second));
  first.priority = 0;
  CHECK(by_priority->keeps_longer(first, second));
}

TEST_CASE("a group passes those whose slack allows it") {
  // Most that run have topic 1. A full step takes 64 ms. Request 0 would end after 10 ms: due in
  // 94 ms it has 20 ms of slack, which two prompts of 10 ms may use.
  const auto groups = scheduler("expert_groups", all_slack);
  const auto queue = [&](double due) {
    return std::vector{prompt(0, 10, due, 0), prompt(1, 10, 300, 1), prompt(2, 10, 301, 0),
                       prompt(3, 10, 302, 1), prompt(4, 10, 303, 1)};
  };
  CHECK(order(*groups, queue(94.001), 0, {2, 3}) == Order{1, 3, 0, 2, 4});
  CHECK(order(*groups, queue(93.999), 0, {2, 3}) == Order{1, 0, 2, 3, 4});
  CHECK(order(*groups, queue(83), 0, {2, 3}) == Order{0, 1, 2, 3, 4});
  // A tenth of 200 ms is as much; with nothing running the first of the queue has the topic.
  CHECK(order(*scheduler("expert_groups"), queue(274.001), 0, {2, 3}) == Order{1, 3, 0, 2, 4});
  CHECK(order(*groups, queue(400), 0) == Order{1, 3, 4, 2, 0});
  CHECK(order(*scheduler("earliest_deadline"), queue(94.001), 0, {2, 3}) == Order{0, 1, 2, 3, 4});
}

TEST_CASE("a group waits for seats as for prompts") {
  // All eight seats are taken, and one becomes free each 50 ms: request 0 ends after 60 ms, and has
  // 50 ms of slack where it is due in 174 ms.
  const auto groups = scheduler("expert_groups", all_slack);
  const std::vector<Sequence> running(8, Sequence{9, 11, 10, 10, 1});
  const auto first = [&](double due) {
    std::vector<Sequence> waiting{prompt(0, 10, due, 0), prompt(1, 10, 900, 1)};
    const std::vector<std::int32_t> topics{0, 8};
    groups->order_waiting({Time{}, running, &price, topics, Seconds(.050)}, waiting);
    return waiting.front().request;
  };
  CHECK(first(174.001) == 1);
  CHECK(first(173.999) == 0);
}

// ---- laws on one server

TEST_CASE("on one server no group makes a request late that earliest_deadline serves in time") {
  Rng rng(1, "test/deadlines");
  const auto edf = scheduler("earliest_deadline");
  const auto groups = scheduler("expert_groups", all_slack);
  int feasible = 0, grouped = 0, late_by_arrival = 0;
  for (int set = 0; set < 2000; ++set) {
    std::vector<Sequence> waiting;
    const auto size = static_cast<std::uint32_t>(2 + rng.below(12));
    for (std::uint32_t i = 0; i < size; ++i) {
      waiting.push_back(prompt(i, 1 + static_cast<std::int32_t>(rng.below(60)),
                               double(20 + rng.below(800)),
                               static_cast<std::uint32_t>(rng.below(4))));
    }
    if (!serve_alone(*edf, waiting).late.empty()) continue;
    ++feasible;
    const Served served = serve_alone(*groups, waiting);
    REQUIRE(served.late.empty());
    grouped += served.passed > 0 ? 1 : 0;
    late_by_arrival += serve_alone(*scheduler("chunked_prefill"), waiting).late.empty() ? 0 : 1;
  }
  CHECK(feasible > 500);
  CHECK(grouped > 100);
  CHECK(late_by_arrival > 100);
}

// ---- in the engine

// Classes of equal shares with these deadlines, in ms.
Json due_classes(const std::vector<double>& due_ms) {
  Json classes = Json::array();
  for (std::size_t i = 0; i < due_ms.size(); ++i) {
    classes.push_back({{"name", fmt::format("c{}", i)},
                       {"share", 1.0 / double(due_ms.size())},
                       {"slo", {{"ttft", fmt::format("{:.9f} ms", due_ms[i])}}}});
  }
  return classes;
}

Json on_one_gpu(const std::string& type, const std::vector<double>& due_ms, int seqs = 8) {
  return tiny_experiment(
      {{"parallel", {{"dp", 1}, {"tp", 1}, {"ep", 1}}},
       {"placement", "linear"},
       {"scheduling", {{"type", type}, {"max_num_batched_tokens", 64}, {"max_num_seqs", seqs}}},
       {"workload", {{"classes", due_classes(due_ms)}}}});
}

struct Asked {
  std::uint8_t of_class = 0;
  std::int32_t prompt = 64, output = 1;
};

void submit(Instance& instance, RowSource& rows, Requests& requests,
            const std::vector<Asked>& asked) {
  for (const Asked& one : asked) {
    RequestRecord& request = requests.add();
    request.prompt_tokens = one.prompt;
    request.output_tokens = one.output;
    request.of_class = one.of_class;
    request.binding = rows.bind();
  }
  for (std::uint32_t id = 0; id < asked.size(); ++id) instance.submit(id, 0);
}

void run_to_end(Instance& instance) {
  Time now{};
  while (const auto length = instance.begin_step(now)) {
    now += to_duration(*length);
    instance.end_step(now);
  }
}

// When first tokens come, in ms, of requests that all arrive at the start.
std::vector<double> first_tokens(const Json& json, const std::vector<Asked>& asked) {
  const Experiment experiment = test::load(json);
  const Deployment& e = experiment.decode();
  RowSource rows(e.trace, e.prefill_trace, e.bind_odd_only, e.seed);
  Requests requests;
  std::optional<StepPrice> steps;
  if (e.scheduler->needs_price()) steps = price_steps(e);
  Instance instance(e, rows, requests, {.price = steps ? &*steps : nullptr});
  submit(instance, rows, requests, asked);
  run_to_end(instance);
  std::vector<double> ms;
  for (std::uint32_t id = 0; id < asked.size(); ++id)
    ms.push_back(to_seconds(requests[id].first_token.time_since_epoch()).count() * 1e3);
  return ms;
}

TEST_CASE("of three prompts of one step each, earliest_deadline serves all in time, FIFO two") {
  const std::vector<Asked> asked{{0}, {1}, {2}};
  const double step = first_tokens(on_one_gpu("chunked_prefill", {1, 1, 1}), asked).back() / 3;
  const std::vector<double> due{3.3 * step, 2.3 * step, 1.3 * step};
  const auto late = [&](const char* type) {
    const std::vector<double> tokens = first_tokens(on_one_gpu(type, due), asked);
    Order ids;
    for (std::uint32_t id = 0; id < 3; ++id)
      if (tokens[id] > due[id]) ids.push_back(id);
    return ids;
  };
  CHECK(late("chunked_prefill") == Order{2});
  CHECK(late("earliest_deadline").empty());
  CHECK(late("expert_groups").empty());
}

TEST_CASE("in the engine, too, what earliest_deadline serves in time no group makes late") {
  Rng rng(1, "test/sets");
  const double step = first_tokens(on_one_gpu("chunked_prefill", {1}), {{0}}).front();
  const std::vector<double> due{4 * step, 12 * step, 40 * step, 160 * step};
  int feasible = 0, differ = 0;
  for (int set = 0; set < 60; ++set) {
    std::vector<Asked> asked(3 + rng.below(14));
    for (Asked& one : asked) {
      one = {static_cast<std::uint8_t>(rng.below(4)), 1 + static_cast<std::int32_t>(rng.below(120)),
             1 + static_cast<std::int32_t>(rng.below(20))};
    }
    const auto misses = [&](const std::vector<double>& tokens) {
      std::size_t late = 0;
      for (std::size_t i = 0; i < asked.size(); ++i)
        late += tokens[i] > due[static_cast<std::size_t>(asked[i].of_class)] ? 1U : 0U;
      return late;
    };
    const auto alone = first_tokens(on_one_gpu("earliest_deadline", due, 3), asked);
    if (misses(alone) > 0) continue;
    ++feasible;
    const auto grouped = first_tokens(on_one_gpu("expert_groups", due, 3), asked);
    CAPTURE(set);
    CHECK(misses(grouped) == 0);
    differ += grouped != alone ? 1 : 0;
  }
  CHECK(feasible > 10);
  CHECK(differ > 5);
}

Json with_priorities(const std::string& type) {
  return tiny_experiment(
      {{"scheduling", {{"type", type}}},
       {"workload",
        {{"arrivals", {{"type", "poisson"}, {"rate", "60000 /s"}, {"concurrency", nullptr}}},
         {"requests", 400},
         {"classes",
          {{{"name", "first"}, {"share", 0.3}},
           {{"name", "then"}, {"share", 0.3}, {"priority", 1}},
           {{"name", "last"}, {"share", 0.4}, {"priority", 2}}}}}}});
}

// Pairs on one rank of which the one of higher priority came first and began later.
int overtaken(const Json& json) {
  const test::Served served = test::serve(test::load(json));
  int pairs = 0;
  for (const RequestRecord& a : served.requests) {
    for (const RequestRecord& b : served.requests) {
      if (a.rank == b.rank && a.of_class < b.of_class && a.received <= b.received)
        pairs += a.begun > b.begun ? 1 : 0;
    }
  }
  return pairs;
}

// Pairs of which the one of higher priority came later and began first.
int overtaking(const Json& json) {
  const test::Served served = test::serve(test::load(json));
  int pairs = 0;
  for (const RequestRecord& a : served.requests) {
    for (const RequestRecord& b : served.requests) {
      if (a.rank == b.rank && a.of_class < b.of_class && a.received > b.received)
        pairs += a.begun < b.begun ? 1 : 0;
    }
  }
  return pairs;
}

TEST_CASE("a request of high priority never waits behind one of low priority that came later") {
  CHECK(overtaken(with_priorities("priority")) == 0);
  CHECK(overtaking(with_priorities("priority")) > 100);
  CHECK(overtaking(with_priorities("chunked_prefill")) == 0);
}

TEST_CASE("where blocks run out, who has the lowest priority gives up its own") {
  // Five blocks hold two prompts of two blocks each, but not what both generate. The request that
  // came first has the lower priority.
  const auto preempted = [](const char* type) {
    Json json = on_one_gpu(type, {1, 1});
    json["workload"]["classes"][0]["priority"] = 1;
    Experiment experiment = test::load(json);
    experiment.decode().memory.kv_blocks = 5;
    const Deployment& e = experiment.decode();
    RowSource rows(e.trace, e.prefill_trace, e.bind_odd_only, e.seed);
    Requests requests;
    Instance instance(e, rows, requests);
    submit(instance, rows, requests, {{0, 20, 30}, {1, 20, 30}});
    run_to_end(instance);
    return std::pair(requests[0].preemptions, requests[1].preemptions);
  };
  CHECK(preempted("chunked_prefill") == std::pair(0, 1));
  CHECK(preempted("priority") == std::pair(1, 0));
}

// ---- classes

TEST_CASE("classes are drawn by their shares, and none draws nothing") {
  const std::vector<RequestClass> classes{{"a", .5, 0, {}}, {"b", .2, 0, {}}, {"c", .3, 0, {}}};
  Rng rng(1, "test/classes"), untouched(1, "test/classes");
  CHECK(draw_class({}, rng) == 0);
  CHECK(rng.bits() == untouched.bits());
  std::array<int, 3> drawn{};
  for (int i = 0; i < 100'000; ++i) ++drawn[draw_class(classes, rng)];
  CHECK(std::abs(drawn[0] - 50'000) < 500);
  CHECK(std::abs(drawn[1] - 20'000) < 400);
  CHECK(std::abs(drawn[2] - 30'000) < 450);
}

TEST_CASE("a class changes nothing that is drawn but itself") {
  const Json slo = {{"slo", {{"ttft", "2 ms"}, {"tpot", "1 ms"}}}};
  Json classes = slo;
  classes["workload"]["classes"] = {{{"name", "a"}, {"share", 0.25}},
                                    {{"name", "b"}, {"share", 0.75}, {"priority", 3}}};
  OrderedJson without = run(load_tiny(slo)).document();
  OrderedJson with = run(load_tiny(classes)).document();
  CHECK(!without.contains("classes"));
  REQUIRE(with.contains("classes"));
  with.erase("classes");
  with.erase("context");
  without.erase("context");
  CHECK(with.dump() == without.dump());
}

Json two_slos() {
  return {
      {"workload",
       {{"arrivals", {{"type", "poisson"}, {"rate", "60000 /s"}, {"concurrency", nullptr}}},
        {"requests", 400},
        {"classes",
         {{{"name", "tight"}, {"share", 0.5}, {"slo", {{"ttft", "2 ms"}}}},
          {{"name", "loose"}, {"share", 0.5}, {"slo", {{"ttft", "25 ms"}, {"tpot", "1 s"}}}}}}}}};
}

TEST_CASE("requests and goodput of the classes sum to those of all, each by its own objectives") {
  const test::Served served = test::serve(load_tiny(two_slos()));
  const OrderedJson report = served.document();
  const OrderedJson& metrics = report["metrics"];
  const OrderedJson& tight = report["classes"]["tight"];
  const OrderedJson& loose = report["classes"]["loose"];
  CHECK(tight["requests"].get<int>() + loose["requests"].get<int>() ==
        metrics["measured_requests"]);
  CHECK_THAT(tight["request_goodput"].get<double>() + loose["request_goodput"].get<double>(),
             WithinRel(metrics["request_goodput"].get<double>(), 1e-9));
  std::array<double, 2> met{}, all{};
  for (const RequestRecord& request : served.requests) {
    ++all[request.of_class];
    const double ms = to_seconds(request.first_token - request.arrival).count() * 1e3;
    met[request.of_class] += ms <= (request.of_class == 0 ? 2 : 25) ? 1 : 0;
  }
  REQUIRE(all[0] + all[1] == metrics["measured_requests"].get<double>());
  CHECK(met[0] < met[1]);
  CHECK(met[0] > 0);
  CHECK_THAT(tight["attainment"]["ttft"].get<double>(), WithinRel(met[0] / all[0], 1e-12));
  CHECK_THAT(loose["attainment"]["ttft"].get<double>(), WithinRel(met[1] / all[1], 1e-12));
  CHECK(!tight["attainment"].contains("tpot"));
  CHECK(loose["attainment"]["tpot"] == 1);
  CHECK_THAT(metrics["attainment"]["ttft"].get<double>(),
             WithinRel((met[0] + met[1]) / (all[0] + all[1]), 1e-12));
}

TEST_CASE("a run of classes is given up only where it misses what its classes are owed") {
  const Experiment e = load_tiny(two_slos());
  const double attained = run(e).document()["metrics"]["slo_attainment"];
  const auto given_up = [&](double attainment) {
    SloWatch watch(e, attainment);
    RunObserver* const observer = &watch;
    try {
      run(e, {}, std::span(&observer, 1));
    } catch (const SloMissed&) {
      return true;
    }
    return false;
  };
  CHECK(!given_up(attained - .01));
  CHECK(given_up(attained + .05));
}

TEST_CASE("all turns of a session are of one class") {
  Json json = two_slos();
  json["workload"]["lengths"] = nullptr;
  json["workload"]["sessions"] = {{"type", "generated"},
                                  {"turns", {{"median", 4}, {"sigma", 0.5}, {"max", 8}}},
                                  {"first", {{"median", 30}, {"sigma", 1}, {"max", 60}}},
                                  {"new", {{"median", 10}, {"sigma", 1}, {"max", 30}}},
                                  {"output", {{"median", 12}, {"sigma", 1}, {"max", 30}}},
                                  {"gap", {{"median", "1 ms"}, {"sigma", 1}}}};
  std::map<std::uint32_t, std::uint8_t> of_session;
  std::array<int, 2> turns{};
  for (const RequestRecord& request : test::serve(load_tiny(json)).requests) {
    REQUIRE(request.turn);
    const auto [seen, first] = of_session.try_emplace(request.turn->session, request.of_class);
    REQUIRE(seen->second == request.of_class);
    ++turns[request.of_class];
  }
  CHECK(turns[0] > 0);
  CHECK(turns[1] > 0);
}

TEST_CASE("with no slack to use, expert_groups is earliest_deadline") {
  Json json = two_slos();
  json["scheduling"] = {{"type", "earliest_deadline"}};
  OrderedJson alone = run(load_tiny(json)).document();
  json["scheduling"] = {{"type", "expert_groups"}, {"slack_share", 0}};
  OrderedJson grouped = run(load_tiny(json)).document();
  alone.erase("context");
  grouped.erase("context");
  CHECK(alone.dump() == grouped.dump());
}

// A load in which a file says of which class each row is.
Json recorded_classes(const test::TemporaryFile& file, const Json& classes,
                      const char* kind = "arrivals") {
  Json set{{"workload", {{"lengths", nullptr}, {"classes", classes}, {"requests", nullptr}}}};
  set["workload"][kind] = {{"type", kind == std::string("sessions") ? "recorded" : "trace"},
                           {"concurrency", nullptr},
                           {"file", file.path().string()}};
  if (kind == std::string("sessions")) set["workload"][kind].erase("concurrency");
  return set;
}

TEST_CASE("recorded requests are of the classes that their file names") {
  const Json classes{{{"name", "batch"}, {"priority", 1}}, {{"name", "interactive"}}};
  const std::vector<std::uint8_t> expected{1, 0, 0, 1};
  const auto of_file = [&](const char* name, const std::string& text) {
    const test::TemporaryFile file(name, text);
    std::vector<std::uint8_t> of;
    for (const RequestRecord& request :
         test::serve(load_tiny(recorded_classes(file, classes))).requests)
      of.push_back(request.of_class);
    return of;
  };
  CHECK(of_file("classes.csv",
                "arrival_s,class,prompt_tokens,output_tokens\n0,interactive,20,3\n"
                "1,batch,20,3\n2,batch,20,3\n3,interactive,20,3\n") == expected);
  std::string lines;
  for (int i = 0; i < 4; ++i)
    lines +=
        fmt::format(R"({{"timestamp": {}, "input_length": 20, "output_length": 3, "class": "{}"}})"
                    "\n",
                    1000 * i, expected[std::size_t(i)] == 1 ? "interactive" : "batch");
  CHECK(of_file("classes.jsonl", lines) == expected);
}

TEST_CASE("all turns of a recorded session are of the class of its first row") {
  std::string lines;
  const auto row = [&](const char* session, const char* more) {
    lines += fmt::format(
        R"({{"session_id": "{}", "input_length": 20, "output_length": 3, "timestamp": {}{}}})"
        "\n",
        session, 1000 * std::ranges::count(lines, '\n'), more);
  };
  row("a", R"(, "class": "fast")");
  row("b", R"(, "class": "slow")");
  row("a", "");
  row("b", R"(, "class": "slow")");
  const test::TemporaryFile file("sessions.jsonl", lines);
  Json set = recorded_classes(file, {{{"name", "slow"}}, {{"name", "fast"}}}, "sessions");
  set["workload"]["sessions"]["row_tokens"] = "whole";
  set["workload"]["arrivals"] = nullptr;
  const test::Served served = test::serve(load_tiny(set));
  REQUIRE(served.requests.size() == 4);
  for (const RequestRecord& request : served.requests)
    CHECK(request.of_class == (request.turn->session == 0 ? 1 : 0));
}

TEST_CASE("what a run wrote of classes is replayed, each request in its class") {
  const Json classes{{{"name", "a"}, {"share", .25}}, {{"name", "b"}, {"share", .75}}};
  const test::Served drawn = test::serve(load_tiny({{"workload", {{"classes", classes}}}}));
  std::string rows = "arrival_s,prompt_tokens,output_tokens,class\n";
  for (const RequestRecord& request : drawn.requests)
    rows +=
        fmt::format("{:.9f},{},{},{}\n", to_seconds(request.arrival).count(), request.prompt_tokens,
                    request.output_tokens, request.of_class == 0 ? "a" : "b");
  const test::TemporaryFile file("run.csv", rows);
  const test::Served again =
      test::serve(load_tiny(recorded_classes(file, {{{"name", "b"}}, {{"name", "a"}}})));
  REQUIRE(again.requests.size() == drawn.requests.size());
  for (std::size_t i = 0; i < drawn.requests.size(); ++i)
    REQUIRE(again.requests[i].of_class == 1 - drawn.requests[i].of_class);
  // Shares are drawn, whatever the file says.
  const auto drawn_anew = test::serve(load_tiny(recorded_classes(file, classes))).requests;
  CHECK(std::ranges::count(drawn_anew, 0, &RequestRecord::of_class) > 0);
}

TEST_CASE("classes that a file cannot give are refused in one line") {
  const auto why = [](const std::string& text, const Json& classes) {
    const test::TemporaryFile file("classes.csv", text);
    return test::refused(tiny_experiment(recorded_classes(file, classes)));
  };
  const std::string rows = "arrival_s,prompt_tokens,output_tokens,class\n0,20,3,a\n1,20,3,b\n";
  const Json a_and_b{{{"name", "a"}}, {{"name", "b"}}};
  CHECK(why(rows, a_and_b).empty());
  CHECK_THAT(why(rows, {{{"name", "a"}}}),
             Catch::Contains(
                 "/workload/classes: recorded requests are of class \"b\"; the classes are a"));
  CHECK_THAT(why(rows + "2,20,3,\n", a_and_b),
             Catch::Contains("recorded requests are of class \"\"; the classes are a, b"));
  CHECK_THAT(why("arrival_s,prompt_tokens,output_tokens\n0,20,3\n", a_and_b),
             Catch::Contains("/workload/classes: no class has a \"share\", and no file"));
  CHECK_THAT(why(rows, {{{"name", "a"}, {"share", 1}}, {{"name", "b"}}}),
             Catch::Contains("/workload/classes: class \"b\" has no \"share\""));
}

TEST_CASE("what classes and deadlines cannot be is said in one line") {
  const auto why = [](const Json& set) { return test::refused(tiny_experiment(set)); };
  const auto classes = [&](const Json& list) { return why({{"workload", {{"classes", list}}}}); };
  using Catch::Matchers::Contains;
  CHECK_THAT(classes({{{"name", "a"}, {"share", 1}, {"slo", {{"ttft", "-1 s"}}}}}),
             Contains("/workload/classes/0/slo/ttft: \"-1 s\" is negative"));
  CHECK_THAT(classes({{{"name", "a"}, {"share", 1}, {"slo", {{"ttft", "0 s"}}}}}),
             Contains("/workload/classes/0/slo/ttft: must be above zero"));
  CHECK_THAT(classes({{{"name", "a"}, {"share", 0.5}}, {{"name", "b"}, {"share", 0.4}}}),
             Contains("/workload/classes: the shares of all classes sum to 0.9, not to 1"));
  CHECK_THAT(classes({{{"name", "a"}, {"share", 0.5}}, {{"name", "a"}, {"share", 0.5}}}),
             Contains("/workload/classes/1/name: \"a\" is the name of two classes"));
  CHECK_THAT(classes({{{"name", "a"}, {"share", 1}, {"prioritiy", 1}}}),
             Contains("prioritiy") && Contains("priority"));
  for (const char* type : {"earliest_deadline", "expert_groups"}) {
    CHECK_THAT(why({{"scheduling", {{"type", type}}}}),
               Contains("/scheduling: ") && Contains(type) && Contains("requests have no such"));
    CHECK_THAT(why({{"scheduling", {{"type", type}}},
                    {"workload",
                     {{"classes",
                       {{{"name", "a"}, {"share", 0.5}, {"slo", {{"ttft", "1 s"}}}},
                        {{"name", "b"}, {"share", 0.5}, {"slo", {{"tpot", "1 s"}}}}}}}}}),
               Contains("class \"b\" has no such objective"));
    CHECK(why({{"scheduling", {{"type", type}}}, {"slo", {{"ttft", "1 s"}}}}).empty());
  }
}

}  // namespace
}  // namespace moesim::test_deadlines
