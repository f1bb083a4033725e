// SPDX-License-Identifier: Apache-2.0
// Do the invariants hold on random experiments, and do closed forms come out?
#include <algorithm>
#include <cstdlib>
#include <numeric>
#include <optional>
#include <set>

#include <fmt/format.h>
#include <tbb/global_control.h>
#include <tbb/parallel_for.h>

#include "hardware/rng.hpp"
#include "sim/serving/instance.hpp"
#include "sim/serving/simulator.hpp"
#include "sim/serving/step_time_estimate.hpp"
#include "tests/tiny_experiment.hpp"

namespace moesim::test_laws {
namespace {

using test::WithinRel;

std::string pick(Rng& rng, std::initializer_list<const char*> names) {
  return names.begin()[rng.below(names.size())];
}

// A small model in the zoo's format, a handful of experts and layers.
Json tiny_model(Rng& rng) {
  const int experts = 8 << rng.below(3);
  return {{"name", "tiny"},
          {"source", "made for a test"},
          {"hidden", 512},
          {"vocabulary", 1024},
          {"tied_embeddings", false},
          {"attention", {{"query_heads", 8}, {"kv_heads", 4}, {"head_dim", 64}}},
          {"experts", {{"count", experts}, {"per_token", 1 + rng.below(4)}, {"width", 256}}},
          {"layers", Json::array({{{"repeat", 2 + rng.below(3)},
                                   {"pattern", Json::array({{{"ffn", "moe"}}})}}})}};
}

Json cluster(const char* name = "h100x16") {
  const auto path = test::source_dir() / "hardware/clusters" / fmt::format("{}.json", name);
  Json json = ConfigNode::from_file(path).json();
  json["gpu"] = test::bare_gpu(path.parent_path() / json["gpu"].get<std::string>());
  return json;
}

// Any policy of a table that asks for no option but these: a new row is drawn like the others.
template <class Table>
std::vector<std::string> names_in(const Table& table, std::vector<std::string_view> given = {}) {
  std::vector<std::string> names;
  for (const auto& row : table.entries()) {
    const bool asks = std::ranges::any_of(row.keys(), [&](const Key& key) {
      return key.by_default.kind == KeyDefault::Kind::required &&
             std::ranges::find(given, key.name) == given.end();
    });
    if (!asks) names.emplace_back(row.name);
  }
  return names;
}
template <class Table>
std::string any_of(Rng& rng, const Table& table, std::vector<std::string_view> given = {}) {
  const std::vector<std::string> names = names_in(table, std::move(given));
  return names[rng.below(names.size())];
}

const std::vector<std::string_view> limits{"max_num_batched_tokens", "max_num_seqs"};

// Requests that are turns of sessions, about as long as those that are by themselves.
void ask_in_turns(Json& workload) {
  workload.erase("lengths");
  workload["sessions"] = {{"type", "generated"},
                          {"turns", {{"median", 3}, {"sigma", 1}, {"max", 12}}},
                          {"first", {{"median", 30}, {"sigma", 1}, {"max", 150}}},
                          {"new", {{"median", 10}, {"sigma", 1}, {"max", 60}}},
                          {"output", {{"median", 12}, {"sigma", 1}, {"max", 80}}},
                          {"gap", {{"median", "2 ms"}, {"sigma", 1}}},
                          {"shared_prefix", 20},
                          {"max_context", {{"at", 380}, {"do", "compact"}}}};
}

// A random experiment on any plan of up to 16 GPUs on two nodes, with any policies: some of these
// do not go together.
Json drawn_experiment(std::uint64_t seed, const std::string& stream) {
  Rng rng(seed, stream);
  const Json model = tiny_model(rng);
  const int dp = 1 << rng.below(4), tp = 1 << rng.below(2);
  const int ep = std::min(dp * tp, model["experts"]["count"].get<int>());
  const bool gathers = rng.below(2) == 0;
  const Json decode_dispatch =
      gathers
          ? Json{{"type", "all_gather"}, {"combine", pick(rng, {"all_to_all", "reduce_scatter"})}}
          : Json(pick(rng, {"ids_all_gather", "auto"}));
  Json arrivals = {{"type", "closed_loop"}, {"concurrency", 1 + rng.below(24)}};
  if (rng.below(2) == 0) arrivals = {{"type", "poisson"}, {"rate", "400 /s"}};
  Json world = {
      {"cluster", cluster()},
      {"model", model},
      {"precision", {{"experts", "bf16"}, {"attention", "bf16"}}},
      {"parallel", {{"dp", dp}, {"tp", tp}, {"ep", ep}}},
      {"scheduling",
       {{"type", any_of(rng, schedulers(), limits)},
        {"max_num_batched_tokens", 32 << rng.below(4)},
        {"max_num_seqs", 2 + rng.below(8)}}},
      {"workload",
       {{"arrivals", arrivals},
        {"lengths",
         {{"type", "lognormal"},
          {"prompt", {{"median", 40}, {"sigma", 1}, {"max", 300}}},
          {"output", {{"median", 12}, {"sigma", 1}, {"max", 80}}}}},
        {"gating",
         {{"type", any_of(rng, gatings(), {"requests"})},
          {"requests", 12},
          {"prompt_rows", 10},
          {"decode_rows", 10}}},
        {"classes",
         {{{"name", "urgent"}, {"share", 0.5}, {"slo", {{"ttft", "4 ms"}}}},
          {{"name", "patient"}, {"share", 0.5}, {"priority", 1}}}},
        {"requests", 20 + rng.below(30)}}},
      {"placement",
       {{"type", any_of(rng, placers())},
        {"replication", std::min(1.0 + 0.25 * double(rng.below(4)), double(ep))}}},
      {"token_routing",
       {{"prefill", any_of(rng, token_routers())},
        {"decode", any_of(rng, token_routers())},
        {"mixed", pick(rng, {"prefill", "decode"})}}},
      {"dispatch", {{"prefill", any_of(rng, dispatches())}, {"decode", decode_dispatch}}},
      {"request_routing", any_of(rng, request_routers())},
      {"slo", {{"ttft", "20 ms"}}},
      {"kv_cache",
       {{"block_size", 16}, {"gpu_memory_utilization", 0.9}, {"prefix_caching", seed % 3 == 0}}},
      {"seed", seed}};
  if (seed % 4 == 3) ask_in_turns(world["workload"]);
  return world;
}

Experiment load(const Json& json) {
  TraceLibrary traces;
  return load_experiment(ConfigNode(json, test::source_dir() / "tests" / "laws.json"), traces);
}

// One whose policies go together.
Json random_experiment(std::uint64_t seed) {
  for (int attempt = 0;; ++attempt) {
    Json drawn = drawn_experiment(seed, fmt::format("test/experiment/{}", attempt));
    const std::string refused = test::config_error([&] { load(drawn); });
    if (refused.empty()) return drawn;
    INFO(refused);
    REQUIRE(attempt < 200);
  }
}

std::string document(const Experiment& experiment) { return run(experiment).document().dump(); }

// A cache so small that sequences are preempted: `blocks` per rank.
Experiment cramped(std::uint64_t seed, std::int64_t blocks) {
  Experiment experiment = load(random_experiment(seed));
  experiment.decode().memory.kv_blocks = blocks;
  return experiment;
}

// How many random worlds, and from which seed on: MOESIM_WORLDS and MOESIM_SEED ask for others than
// the few that every run of the tests takes. A failing test prints its seed.
std::uint64_t asked(const char* variable, std::uint64_t otherwise) {
  const char* text = std::getenv(variable);
  return text == nullptr ? otherwise : std::stoull(text);
}
std::vector<std::uint64_t> worlds(std::uint64_t otherwise) {
  std::vector<std::uint64_t> seeds(asked("MOESIM_WORLDS", otherwise));
  std::iota(seeds.begin(), seeds.end(), asked("MOESIM_SEED", 1));
  return seeds;
}

TEST_CASE("laws are tried on every policy that needs no option") {
  std::set<std::string> missing;
  const auto expect = [&](const auto& table, const std::vector<std::string_view>& given = {}) {
    for (const std::string& name : names_in(table, given))
      missing.insert(fmt::format("{} {}", table.kind(), name));
  };
  expect(schedulers(), limits), expect(placers()), expect(request_routers());
  expect(token_routers()), expect(gatings(), {"requests"});
  for (std::uint64_t seed = 1; seed <= 400; ++seed) {
    const Json world = random_experiment(seed);
    missing.erase("scheduling " + world["scheduling"]["type"].get<std::string>());
    missing.erase("placement " + world["placement"]["type"].get<std::string>());
    missing.erase("request_routing " + world["request_routing"].get<std::string>());
    missing.erase("token_routing " + world["token_routing"]["decode"].get<std::string>());
    missing.erase("gating " + world["workload"]["gating"]["type"].get<std::string>());
  }
  CHECK(missing == std::set<std::string>{});
}

TEST_CASE("every request ends in exactly one state and none is lost") {
  for (const std::uint64_t seed : worlds(24)) {
    CAPTURE(seed);
    // 24 blocks hold 384 tokens: the longest request (380) fits, little else beside it.
    const Experiment e = seed % 2 == 0 ? load(random_experiment(seed)) : cramped(seed, 24);
    const test::Served report = test::serve(e);
    REQUIRE(std::ssize(report.requests) == e.decode().workload.requests);
    for (const RequestRecord& r : report.requests) {
      REQUIRE(r.state == RequestRecord::State::finished);
      REQUIRE(r.generated == r.output_tokens);
      REQUIRE(r.arrival <= r.first_token);
      REQUIRE(r.first_token <= r.last_token);
    }
  }
}

TEST_CASE("a request larger than the KV cache is rejected, counted, and holds up nobody") {
  const Experiment e = cramped(3, 4);  // 64 tokens
  const test::Served report = test::serve(e);
  std::int64_t rejected = 0;
  for (const RequestRecord& r : report.requests) {
    const bool fits = r.prompt_tokens + r.output_tokens - 1 <= 64;
    REQUIRE(r.state == (fits ? RequestRecord::State::finished : RequestRecord::State::rejected));
    rejected += fits ? 0 : 1;
  }
  CHECK(rejected > 0);
  CHECK(report.document()["metrics"]["rejected"] == rejected);
}

TEST_CASE("tokens routed are tokens times k, and KV blocks are conserved, in every step") {
  for (const std::uint64_t seed : worlds(24)) {
    CAPTURE(seed);
    const Experiment e = seed % 2 == 0 ? load(random_experiment(seed)) : cramped(seed, 24);
    RowSource rows = typical_rows(e.decode());
    Requests requests;
    std::optional<StepPrice> price;
    if (e.decode().scheduler->needs_price()) price = price_steps(e.decode());
    Instance instance(e.decode(), rows, requests, {.price = price ? &*price : nullptr});
    Rng rng(seed, "test/submit");
    for (std::uint32_t id = 0; id < 30; ++id) {
      RequestRecord& r = requests.add();
      r.prompt_tokens = 1 + static_cast<std::int32_t>(rng.below(200));
      r.output_tokens = 1 + static_cast<std::int32_t>(rng.below(40));
      r.binding = rows.bind();
    }
    for (std::uint32_t id = 0; id < 30; ++id)
      instance.submit(id, id % static_cast<std::uint32_t>(e.decode().parallel.dp));
    Time now{};
    while (const auto length = instance.begin_step(now)) {
      REQUIRE(length->count() > 0);
      REQUIRE(instance.used_blocks() >= 0);
      REQUIRE(instance.used_blocks() <= instance.total_blocks());
      std::int64_t tokens = 0;
      for (const RankStep& rank : instance.batch().ranks) tokens += rank.tokens;
      for (const LayerOutcome& layer : instance.cost().layers) {
        const auto routed =
            std::accumulate(layer.load.tokens.begin(), layer.load.tokens.end(), std::int64_t{0});
        REQUIRE(routed == tokens * e.decode().model.experts_per_token);
      }
      now += to_duration(*length);
      instance.end_step(now);
    }
    REQUIRE(instance.used_blocks() == 0);
  }
}

TEST_CASE("a cramped KV cache preempts, and says so") {
  std::int64_t preemptions = 0;
  for (const std::uint64_t seed : worlds(12)) {
    preemptions += run(cramped(seed, 24)).document()["kv"]["preemptions"].get<std::int64_t>();
  }
  CHECK(preemptions > 0);
}

TEST_CASE("equal experiments give equal bytes, with one thread and with two", "[threads]") {
  for (const std::uint64_t seed : worlds(6)) {
    CAPTURE(seed);
    const Json json = random_experiment(seed);
    std::string one, two;
    {
      const tbb::global_control limit(tbb::global_control::max_allowed_parallelism, 1);
      one = document(load(json));
    }
    {
      const tbb::global_control limit(tbb::global_control::max_allowed_parallelism, 2);
      two = document(load(json));
    }
    REQUIRE(one == two);
  }
}

// The steps of a run: what was priced, and the price.
struct StepLog : RunObserver {
  struct Step {
    StepKind rule;
    StepBatch batch;
    StepCost cost;
    Time start, end;
  };
  std::vector<Step> steps;
  void step_ended(const StepRecord& record, Time now) override {
    steps.push_back({record.step.rule, record.batch, record.cost, record.step.start, now});
  }
};

StepLog log_of(const Experiment& experiment) {
  StepLog log;
  RunObserver* const observer = &log;
  run(experiment, {}, std::span(&observer, 1));
  return log;
}

TEST_CASE("a run is the replay of its own step log") {
  for (const std::uint64_t seed : worlds(12)) {
    CAPTURE(seed);
    const Experiment e = load(random_experiment(seed));
    const RowSource rows(e.decode().trace, e.decode().prefill_trace, e.decode().bind_odd_only,
                         e.decode().seed);
    StepModel model = step_model(e.decode());
    StepCost cost;
    Time last_end{};
    for (const StepLog::Step& step : log_of(e).steps) {
      model.price({step.batch, e.decode().rules.of(step.rule), e.decode().placement, rows}, cost);
      REQUIRE(cost.total == step.cost.total);
      REQUIRE(cost.flops == step.cost.flops);
      REQUIRE(cost.hbm_bytes == step.cost.hbm_bytes);
      REQUIRE(step.end - step.start == to_duration(cost.total));
      REQUIRE(step.start >= last_end);
      last_end = step.end;
    }
  }
}

TEST_CASE("what the GPUs of a domain are called does not matter") {
  for (const std::uint64_t seed : worlds(12)) {
    CAPTURE(seed);
    Json json = random_experiment(seed);
    const int gpus = json["parallel"]["dp"].get<int>();
    json["parallel"] = {{"dp", gpus}, {"tp", 1}, {"ep", gpus}};
    json["cluster"] = cluster("gb200_nvl72");
    json["placement"]["replication"] = 1.0;  // replicas are told apart by their number
    const Experiment e = load(json);
    // So are the GPUs that copies of a step are brought to, where they have equal loads.
    if (std::ranges::any_of(e.decode().rules.by_kind,
                            [](const PhaseRule& rule) { return rule.router->step_slots() > 0; }))
      continue;
    const RowSource rows(e.decode().trace, e.decode().prefill_trace, e.decode().bind_odd_only,
                         e.decode().seed);
    const auto renamed = [gpus](int gpu) { return (gpu + 1) % gpus; };
    ExpertPlacement placement;
    for (const LayerPlacement& layer : e.decode().placement) {
      std::vector<std::vector<int>> experts(static_cast<std::size_t>(gpus));
      for (int slot = 0; slot < layer.slots(); ++slot)
        experts[static_cast<std::size_t>(renamed(layer.gpu_of_slot(slot)))].push_back(
            layer.expert_of_slot(slot));
      placement.emplace_back(layer.experts(), experts);
    }
    const PhaseRules rules = rules_over(e.decode(), placement);
    StepModel model = step_model(e.decode());
    StepCost cost;
    for (const StepLog::Step& step : log_of(e).steps) {
      StepBatch batch = step.batch;
      std::rotate(batch.ranks.begin(), batch.ranks.end() - 1, batch.ranks.end());
      for (RowRange& range : batch.rows) range.rank = renamed(range.rank);
      std::stable_sort(batch.rows.begin(), batch.rows.end(),
                       [](const RowRange& a, const RowRange& b) { return a.rank < b.rank; });
      model.price({batch, rules.of(step.rule), placement, rows}, cost);
      REQUIRE_THAT(cost.total.count(), WithinRel(step.cost.total.count(), 1e-9));
      for (std::size_t l = 0; l < cost.layers.size(); ++l) {
        REQUIRE(cost.layers[l].load.max_tokens == step.cost.layers[l].load.max_tokens);
        REQUIRE(cost.layers[l].load.max_activated == step.cost.layers[l].load.max_activated);
      }
    }
  }
}

// The same world by a clock that runs at half the speed: every time is twice as long, every rate
// half as high.
Experiment at_half_speed(Experiment e) {
  GpuSpec& gpu = e.decode().cluster.gpu;
  LinkSpec& network = e.decode().cluster.network;
  for (BytesPerSecond* rate : {&gpu.hbm_bandwidth, &gpu.l2_bandwidth, &gpu.smem_bandwidth,
                               &gpu.scale_up_bandwidth, &gpu.host_bandwidth, &network.bandwidth})
    *rate = *rate * 0.5;
  for (auto& [precision, peak] : gpu.dense_peak) peak = peak * 0.5;
  for (auto& [family, kernel] : gpu.kernels) {
    kernel.launch *= 2;
    for (auto& [precision, own] : kernel.by_precision) own.launch *= 2;
  }
  for (auto& [kernel, collective] : gpu.collectives)
    for (Seconds* time : {&collective.launch, &collective.per_gpu, &collective.ramp}) *time *= 2;
  network.latency *= 2;
  network.latency_per_doubling *= 2;
  // What is due in twice the time.
  std::vector<Slo*> owed{&e.decode().slo};
  for (RequestClass& one : e.decode().classes) owed.push_back(&one.slo);
  for (Slo* slo : owed) {
    for (std::optional<Seconds>* limit : {&slo->ttft, &slo->tpot, &slo->e2el})
      if (*limit) **limit *= 2;
  }
  return e;
}

TEST_CASE("in a world at half the speed everything takes twice as long, and nothing else changes") {
  for (const std::uint64_t seed : worlds(12)) {
    CAPTURE(seed);
    Json json = random_experiment(seed);
    json["charges"] = {{"token_routing", "none"}};
    // A table knows no other clock.
    json["engine"] = {{"name", "none"}};
    // Times are rounded to picoseconds, which may turn the order of what happens at one moment; a
    // closed loop has no moments but the ends of steps.
    json["workload"]["arrivals"] = {{"type", "closed_loop"}, {"concurrency", 8}};
    if (json["workload"].contains("sessions")) json["workload"]["sessions"]["gap"] = "0 s";
    json["request_routing"] = "round_robin";
    const Experiment e = load(json);
    const OrderedJson fast = run(e).document(), slow = run(at_half_speed(e)).document();
    REQUIRE(slow["experts"]["by_step_kind"] == fast["experts"]["by_step_kind"]);
    REQUIRE(slow["kv"]["preemptions"] == fast["kv"]["preemptions"]);
    for (const char* key :
         {"duration_s", "mean_ttft_ms", "p99_ttft_ms", "mean_tpot_ms", "max_itl_ms"}) {
      if (!fast["metrics"].contains(key) || fast["metrics"][key].is_null()) continue;
      CAPTURE(key);
      REQUIRE_THAT(slow["metrics"][key].get<double>(),
                   WithinRel(2 * fast["metrics"][key].get<double>(), 1e-6));
    }
    REQUIRE_THAT(slow["metrics"]["output_throughput"].get<double>(),
                 WithinRel(fast["metrics"]["output_throughput"].get<double>() / 2, 1e-6));
  }
}

TEST_CASE("steps that several threads read and price are the same on any number of them",
          "[threads]") {
  // 64 choices a token, in prompt steps of 16,384 tokens and decode steps of 1,024.
  const Experiment experiment = test::load_tiny(
      {{"model",
        {{"experts", {{"per_token", 8}}},
         {"layers", Json::array({{{"repeat", 8}, {"pattern", Json::array({{{"ffn", "moe"}}})}}})}}},
       {"scheduling",
        {{"type", "prefill_first"}, {"max_num_batched_tokens", 4096}, {"max_num_seqs", 256}}},
       {"workload",
        {{"arrivals", {{"concurrency", 1024}}},
         {"lengths", {{"output", 4}}},
         {"requests", 1024}}}});
  std::string one;
  for (const std::size_t threads : {std::size_t{1}, std::size_t{2}, std::size_t{3}}) {
    CAPTURE(threads);
    const tbb::global_control limit(tbb::global_control::max_allowed_parallelism, threads);
    const std::string bytes = run(experiment).document().dump();
    if (one.empty()) one = bytes;
    CHECK(bytes == one);
  }
}

TEST_CASE("experiments that are loaded at once share a library's traces", "[threads]") {
  const Json json = random_experiment(2);
  TraceLibrary traces;
  std::vector<std::string> documents(4);
  tbb::parallel_for(std::size_t{0}, documents.size(), [&](std::size_t i) {
    const ConfigNode node(json, test::source_dir() / "tests" / "laws.json");
    documents[i] = document(load_experiment(node, traces));
  });
  for (const std::string& one : documents) CHECK(one == documents.front());
}

TEST_CASE("another seed gives another run") {
  Json json = random_experiment(2);
  const std::string one = document(load(json));
  json["seed"] = 77;
  CHECK(document(load(json)) != one);
}

TEST_CASE("one GPU communicates nothing and never waits at a barrier") {
  Json json = random_experiment(5);
  json["parallel"] = {{"dp", 1}, {"tp", 1}, {"ep", 1}};
  json["placement"]["replication"] = 1.0;
  const OrderedJson report = run(load(json)).document();
  CHECK(report["breakdown"]["exposed_communication_share"] == 0);
  CHECK(report["breakdown"]["barrier_idle_share"] == 0);
  for (const char* kind : {"dispatch", "combine", "tp_all_reduce"}) {
    CHECK(report["communication"][kind]["seconds"] == 0);
    CHECK(report["communication"][kind]["nvlink_bytes"] == 0);
  }
}

TEST_CASE("without replicas every token-routing policy is the same") {
  for (const std::uint64_t seed : worlds(6)) {
    Json json = random_experiment(seed);
    json["placement"]["replication"] = 1.0;
    // Gathered before the gate, every policy also pays the same for dispatch.
    json["dispatch"]["decode"] = {{"type", "all_gather"}};
    std::string even;
    for (const auto& entry : token_routers().entries()) {
      CAPTURE(seed, entry.name);
      json["token_routing"]["decode"] = std::string(entry.name);
      const Experiment experiment = load(json);
      // Those that bring copies for a step have replicas of their own.
      if (experiment.decode().rules.of(StepKind::decode).router->step_slots() > 0) continue;
      OrderedJson report = run(experiment).document();
      report.erase("context");
      if (even.empty()) even = report.dump();
      REQUIRE(report.dump() == even);
    }
  }
}

double length_of_run(const Json& json) {
  double busy = 0;
  const OrderedJson report = run(load(json)).document();
  for (const auto& kind : report["steps"]) {
    if (kind.contains("seconds")) busy += kind["seconds"].get<double>();
  }
  return busy;
}

TEST_CASE("more bandwidth is never slower") {
  for (const std::uint64_t seed : worlds(12)) {
    Json json = random_experiment(seed);
    if (json["workload"].contains("sessions")) continue;
    // Everything at once, so that what is scheduled does not depend on how long steps take; with
    // schedulers that go by deadlines or prices of steps, it does all the same.
    json["workload"]["arrivals"] = {{"type", "closed_loop"}, {"concurrency", 1000}};
    const Experiment experiment = load(json);
    const Scheduler& scheduler = *experiment.decode().scheduler;
    if (scheduler.needs_deadlines() || scheduler.needs_price()) continue;
    const double before = length_of_run(json);
    for (const char* key : {"hbm_bandwidth", "scale_up_bandwidth"}) {
      CAPTURE(seed, key);
      Json faster = json;
      const auto value =
          parse_quantity<BytesPerSecond>(json["cluster"]["gpu"][key].get<std::string>());
      faster["cluster"]["gpu"][key] = fmt::format("{} B/s", value.value() * 2);
      REQUIRE(length_of_run(faster) <= before);
    }
  }
}

TEST_CASE("the breakdown adds up to the time that was spent") {
  for (const std::uint64_t seed : worlds(8)) {
    CAPTURE(seed);
    const OrderedJson breakdown = run(load(random_experiment(seed))).document()["breakdown"];
    const double busy = breakdown["busy_seconds"];
    double parts = 0, resources = 0;
    for (const auto& part : breakdown["parts"]) parts += part["seconds"].get<double>();
    for (const auto& seconds : breakdown["bound_by"]) resources += seconds.get<double>();
    REQUIRE_THAT(parts, WithinRel(busy, 1e-9));
    REQUIRE_THAT(resources, WithinRel(busy, 1e-9));
    REQUIRE(breakdown["barrier_idle_share"] < 1.0);
  }
}

TEST_CASE("a lone request's TTFT is the price of its prefill steps") {
  Json json = random_experiment(4);
  json["scheduling"] = {
      {"type", "chunked_prefill"}, {"max_num_batched_tokens", 64}, {"max_num_seqs", 4}};
  json["workload"]["arrivals"] = {{"type", "constant"}, {"rate", "1 /s"}};
  json["workload"]["lengths"] = {{"type", "fixed"}, {"prompt", 128}, {"output", 3}};
  json["workload"]["requests"] = 1;
  const OrderedJson report = run(load(json)).document();
  // 128 prompt tokens at 64 a step are two steps; two more tokens two decode steps.
  CHECK(report["steps"]["prefill"]["steps"] == 2);
  CHECK(report["steps"]["decode"]["steps"] == 2);
  const double prefill = report["steps"]["prefill"]["seconds"];
  const double decode = report["steps"]["decode"]["seconds"];
  CHECK_THAT(report["metrics"]["mean_ttft_ms"].get<double>(), WithinRel(prefill * 1e3, 1e-6));
  CHECK_THAT(report["metrics"]["mean_tpot_ms"].get<double>(), WithinRel(decode * 1e3 / 2, 1e-6));
}

TEST_CASE("metro never activates more than even on average, optimal never more than metro") {
  Json json = random_experiment(7);
  json["model"]["experts"] = {{"count", 32}, {"per_token", 4}, {"width", 256}};
  json["parallel"] = {{"dp", 8}, {"tp", 1}, {"ep", 8}};
  json["placement"] = {{"type", "eplb"}, {"replication", 1.5}};
  json["dispatch"]["decode"] = {{"type", "all_gather"}};
  json["token_routing"]["mixed"] = "decode";
  json["charges"] = {{"token_routing", "none"}};
  std::map<std::string, double> activated;
  for (const char* policy : {"even", "metro", "optimal"}) {
    json["token_routing"]["decode"] = policy;
    activated[policy] =
        run(load(json)).document()["experts"]["by_step_kind"]["decode"]["max_activated_mean"];
  }
  CHECK(activated["metro"] < activated["even"]);
  CHECK(activated["optimal"] <= activated["metro"]);
}

TEST_CASE("experiments share a trace only when their models have the same shape") {
  Json json = random_experiment(7);
  json["model"]["experts"] = {{"count", 32}, {"per_token", 4}, {"width", 256}};
  json["placement"]["replication"] = 1.0;
  json["parallel"] = {{"dp", 4}, {"tp", 1}, {"ep", 4}};
  Json other = json;
  other["model"]["experts"]["per_token"] = 2;
  TraceLibrary traces;
  const auto node = [](const Json& j) {
    return ConfigNode(j, test::source_dir() / "tests/laws.json");
  };
  CHECK(load_experiment(node(json), traces).decode().trace.experts_per_token() == 4);
  CHECK(load_experiment(node(other), traces).decode().trace.experts_per_token() == 2);
}

TEST_CASE("when every request is rejected there are no latencies, and every objective is missed") {
  Json json = random_experiment(4);
  json["workload"]["lengths"] = {{"type", "fixed"}, {"prompt", 400}, {"output", 2}};
  Experiment e = load(json);
  e.decode().memory.kv_blocks = 4;
  const OrderedJson metrics = run(e).document()["metrics"];
  CHECK(metrics["completed"] == 0);
  CHECK(metrics["rejected"] == e.decode().workload.requests);
  CHECK(metrics["median_tpot_ms"].is_null());
  CHECK(metrics["slo_attainment"] == 0.0);
}

TEST_CASE("a short burst still has a request throughput") {
  Json json = random_experiment(6);
  json["workload"]["arrivals"] = {{"type", "poisson"}, {"rate", "100000 /s"}};
  const OrderedJson metrics = run(load(json)).document()["metrics"];
  const double rate = metrics["request_throughput"], seconds = metrics["duration_s"];
  CHECK_THAT(rate, WithinRel(metrics["completed"].get<double>() / seconds, 1e-9));
}

}  // namespace
}  // namespace moesim::test_laws
