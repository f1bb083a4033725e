// SPDX-License-Identifier: Apache-2.0
// Do experts move when they should, at the price they should, and does none get lost?
#include <map>
#include <numeric>
#include <set>

#include <fmt/format.h>

#include "hardware/rng.hpp"
#include "sim/placement/placement_score.hpp"
#include "sim/rebalancing/load_window.hpp"
#include "sim/rebalancing/migration.hpp"
#include "sim/rebalancing/relocation.hpp"
#include "sim/serving/simulator.hpp"
#include "tests/support.hpp"
#include "tests/tiny_experiment.hpp"
#include "tests/trace_meta.hpp"

namespace moesim::test_rebalancing {
namespace {

using test::config_error;
using test::load_tiny;
using test::WithinAbs;
using test::WithinRel;

OrderedJson report_of(const Json& set) { return run(load_tiny(set)).document(); }

std::vector<std::vector<double>> slots_sent(const LayerMovement& moved) {
  std::vector<std::vector<double>> rows;
  for (int from = 0; from < moved.sent.gpus(); ++from) {
    auto& row = rows.emplace_back();
    for (int to = 0; to < moved.sent.gpus(); ++to) row.push_back(moved.sent.at(from, to));
  }
  return rows;
}

LayerPlacement random_placement(std::uint64_t seed) {
  TraceLibrary traces;
  PlacementProblem problem{16, 4, 6, 1, 1};
  const auto placer = placers().make(ConfigNode(Json{{"type", "random"}, {"seed", seed}}, "test"));
  return placer->place(problem, ExpertLoad(16), 0);
}

TEST_CASE("equal maps move nothing, whatever the rule") {
  for (std::uint64_t seed = 1; seed <= 8; ++seed) {
    const LayerPlacement map = random_placement(seed);
    for (const SourceRule rule : {SourceRule::sglang, SourceRule::vllm}) {
      const LayerMovement moved = movement(map, map, rule, 2);
      CHECK(slots_sent(moved) == std::vector(4, std::vector<double>(4)));
      CHECK(moved.copied == std::vector<int>(4));
      CHECK(moved.reloaded == std::vector<int>(4));
    }
  }
}

TEST_CASE("every slot that changes is sent, copied on its GPU, or was there") {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    const LayerPlacement from = random_placement(seed), to = random_placement(seed + 100);
    int changed = 0, kept = 0;
    for (int slot = 0; slot < to.slots(); ++slot) {
      changed += from.expert_of_slot(slot) != to.expert_of_slot(slot) ? 1 : 0;
    }
    const LayerPlacement arranged = keep_slots(from, to);
    for (int slot = 0; slot < to.slots(); ++slot) {
      kept += from.expert_of_slot(slot) == arranged.expert_of_slot(slot) ? 1 : 0;
    }
    for (const SourceRule rule : {SourceRule::sglang, SourceRule::vllm}) {
      const LayerMovement moved = movement(from, to, rule, 2);
      double all = std::accumulate(moved.copied.begin(), moved.copied.end(), 0.0);
      for (const auto& row : slots_sent(moved)) all += std::accumulate(row.begin(), row.end(), 0.0);
      CHECK(all == changed);
    }
    // In their old slots experts that stay need no copy: what is left comes from elsewhere.
    const LayerMovement moved = movement(from, arranged, SourceRule::vllm, 2);
    CHECK(moved.copied == std::vector<int>(4));
    CHECK(kept >= to.slots() - changed);
  }
}

TEST_CASE("sources by SGLang's rule: neighbours first, shared in chunks") {
  // Domains of two ranks. Expert 0 stands on ranks 0 and 2 and shall stand everywhere: each has a
  // holder beside it.
  const LayerPlacement from(4, {{0, 1}, {1, 2}, {0, 3}, {3, 2}});
  const LayerPlacement to(4, {{0, 1}, {0, 2}, {0, 3}, {0, 2}});
  CHECK(slots_sent(movement(from, to, SourceRule::sglang, 2)) ==
        std::vector<std::vector<double>>{{0, 1, 0, 0}, {0, 0, 0, 0}, {0, 0, 0, 1}, {0, 0, 0, 0}});
  // On rank 0 alone it goes to its neighbour and, from there being no other, across.
  const LayerPlacement alone(4, {{0, 1}, {1, 2}, {1, 3}, {3, 2}});
  CHECK(slots_sent(movement(alone, to, SourceRule::sglang, 2)) ==
        std::vector<std::vector<double>>{{0, 1, 1, 1}, {0, 0, 0, 0}, {0, 0, 0, 0}, {0, 0, 0, 0}});
}

TEST_CASE("two holders share five receivers: 3 and 2 in SGLang, 2 and 2 and a remainder in vLLM") {
  const LayerPlacement from(2, {{0}, {0}, {1}, {1}, {1}, {1}, {1}});
  const LayerPlacement to(2, {{1}, {0}, {0}, {0}, {0}, {0}, {0}});
  const auto sent = [&](SourceRule rule) { return slots_sent(movement(from, to, rule, 8)); };
  using Row = std::vector<double>;
  CHECK(sent(SourceRule::sglang)[0] == Row{0, 0, 1, 1, 1, 0, 0});
  CHECK(sent(SourceRule::sglang)[1] == Row{0, 0, 0, 0, 0, 1, 1});
  CHECK(sent(SourceRule::vllm)[0] == Row{0, 0, 1, 1, 0, 0, 1});
  CHECK(sent(SourceRule::vllm)[1] == Row{0, 0, 0, 0, 1, 1, 0});
  // Expert 1 goes to rank 0: its first holder is rank 2.
  CHECK(sent(SourceRule::sglang)[2][0] == 1);
}

TEST_CASE("a second slot of a GPU takes what the first received, a dead rank gives nothing") {
  const LayerPlacement from(2, {{0, 0}, {1, 1}, {1, 1}});
  const LayerPlacement to(2, {{1, 1}, {0, 1}, {1, 1}});
  const LayerMovement moved = movement(from, to, SourceRule::sglang, 4);
  CHECK(slots_sent(moved)[1] == std::vector<double>{1, 0, 0});
  CHECK(slots_sent(moved)[0] == std::vector<double>{0, 1, 0});
  CHECK(moved.copied == std::vector{1, 0, 0});
  const std::vector<char> live{0, 1, 1};
  const LayerMovement reloaded = movement(from, to, SourceRule::sglang, 4, live);
  CHECK(reloaded.reloaded == std::vector{0, 1, 0});
}

TEST_CASE("experts that stay keep their slots, newcomers fill the rest in order") {
  const LayerPlacement from(6, {{0, 1, 2}, {3, 4, 5}});
  const LayerPlacement to(6, {{2, 5, 0}, {1, 3, 4}});
  const LayerPlacement kept = keep_slots(from, to);
  CHECK(kept == LayerPlacement(6, {{0, 5, 2}, {3, 4, 1}}));
}

TEST_CASE("moving takes the busiest rank's bytes over the link and twice over HBM") {
  const Experiment e = load_tiny(Json::object());
  const Bytes w(8e6);
  const Mover mover(e.decode().cluster, e.decode().parallel, w, SourceRule::sglang);
  const LayerPlacement from(4, {{0}, {1}, {2}, {3}});
  CHECK(mover.cost(from, from).time.count() == 0);
  // Two ranks swap: 8 MB each way, between two GPUs of one domain.
  const MoveCost cost = mover.cost(from, LayerPlacement(4, {{1}, {0}, {2}, {3}}));
  CHECK(cost.nvlink.value() == 16e6);
  CHECK(cost.network.value() == 0);
  TrafficMatrix bytes(4);
  bytes.at(0, 1) = bytes.at(1, 0) = 8e6;
  const Seconds links = Fabric(e.decode().cluster).all_to_all(bytes).time;
  const Seconds copy = Bytes(16e6) / e.decode().cluster.gpu.hbm_bandwidth;
  CHECK_THAT(cost.time.count(), WithinRel((links + copy).count(), 1e-12));
}

TEST_CASE("a window forgets its oldest step") {
  LoadWindow window(2, 1, 3);
  CHECK(window.loads() == std::vector<ExpertLoad>{{0, 0, 0}});
  window.add(std::vector{1, 2, 3});
  window.add(std::vector{10, 0, 0});
  CHECK(window.loads() == std::vector<ExpertLoad>{{11, 2, 3}});
  window.add(std::vector{0, 5, 0});
  CHECK(window.loads() == std::vector<ExpertLoad>{{10, 5, 0}});
  window.add(std::vector{0, 0, 7});
  CHECK(window.loads() == std::vector<ExpertLoad>{{0, 5, 7}});
}

// A relocation that has taken up one layer's swap of two 80 MB experts between four GPUs.
struct Underway {
  explicit Underway(bool synchronous, double link_share = 0.5) : relocation(link_share) {
    const Experiment e = load_tiny(Json::object());
    const Mover mover(e.decode().cluster, e.decode().parallel, Bytes(80e6), SourceRule::sglang);
    const ExpertPlacement now{LayerPlacement(4, {{0}, {1}, {2}, {3}})};
    const LayerPlacement next(4, {{1}, {0}, {2}, {3}});
    time = mover.cost(now[0], next).time;
    bound = mover.cost(now[0], next).bound;
    const RowSource rows(e.decode().trace, std::nullopt, false, 1);
    RebalancePlan plan;
    plan.synchronous = synchronous;
    plan.changes.push_back({0, next});
    relocation.start(plan, {0, Time{}, {}, {}, {}, rows, now, {}}, mover);
  }
  // A step of `length` moves' lengths, of which `linked` wait for NVLink.
  StepCost step(double length, double linked) const {
    StepCost cost;
    cost.total = time * length;
    cost.parts[static_cast<std::size_t>(Part::dispatch)]
              [static_cast<std::size_t>(Resource::nvlink)] = (time * linked).count();
    return cost;
  }
  Relocation relocation;
  Seconds time{};
  Resource bound{};
};

TEST_CASE("a synchronous move lengthens the step by all it takes") {
  Underway u(true);
  StepCost cost = u.step(1, 0.5);
  u.relocation.beside(cost);
  CHECK(cost.total == u.time);
  u.relocation.stall(cost);
  CHECK_THAT(cost.total / u.time, WithinRel(2.0, 1e-12));
  CHECK(u.relocation.take_arrived().size() == 1);
  CHECK_FALSE(u.relocation.busy());
  CHECK(u.relocation.log().stalled == u.time);
}

TEST_CASE("beside a step a move goes on at full rate while it computes, and shares its link") {
  Underway u(false);
  REQUIRE(u.bound == Resource::nvlink);
  // A step of 0.4 T, half on the link, with half the link: the 0.2 T become 0.4 T, of which the
  // move gets 0.2 T of progress beside 0.2 T while the step computes.
  StepCost first = u.step(0.4, 0.2);
  u.relocation.beside(first);
  CHECK_THAT(first.total / u.time, WithinRel(0.6, 1e-12));
  CHECK(u.relocation.take_arrived().empty());
  // 0.6 T are left; of a step of 1.2 T, a quarter on the link, with progress 0.9 + 0.3 = 1.2 T they
  // are half: so is the slowdown, 0.15 T.
  StepCost second = u.step(1.2, 0.3);
  u.relocation.beside(second);
  CHECK_THAT(second.total / u.time, WithinRel(1.35, 1e-12));
  CHECK(u.relocation.take_arrived().size() == 1);
  CHECK_FALSE(u.relocation.busy());
  CHECK_THAT(u.relocation.log().slowdown / u.time, WithinRel(0.35, 1e-12));
  CHECK(u.relocation.log().stalled.count() == 0);
}

TEST_CASE("an idle engine leaves the links to the move, and what is cancelled never arrives") {
  Underway u(false);
  u.relocation.pass(u.time * 0.5);
  CHECK(u.relocation.take_arrived().empty());
  u.relocation.pass(u.time * 0.5);
  CHECK(u.relocation.take_arrived().size() == 1);
  Underway cancelled(false);
  cancelled.relocation.cancel();
  CHECK_FALSE(cancelled.relocation.busy());
  cancelled.relocation.pass(Seconds(1));
  CHECK(cancelled.relocation.take_arrived().empty());
}

const std::vector<Json> moving_policies{
    {{"type", "eplb_periodic"}, {"step_interval", 20}, {"window_size", 20}},
    {{"type", "eplb_periodic"},
     {"step_interval", 20},
     {"layers_per_chunk", 1},
     {"planning", "1 ms"}},
    {{"type", "eplb_async"},
     {"step_interval", 20},
     {"planning", "50 us"},
     {"placement", "eplb_distinct"},
     {"movement", {{"sources", "vllm"}}}},
    {{"type", "migrate"}, {"interval", "2 ms"}, {"horizon", "1 s"}, {"min_saving", "0 s"}},
    {{"type", "migrate"},
     {"interval", "2 ms"},
     {"horizon", "1 s"},
     {"popularity", {{"by", "request"}}}},
    {{"type", "migrate"},
     {"interval", "2 ms"},
     {"horizon", "1 s"},
     {"popularity", {{"window_size", 16}}}}};

TEST_CASE("with weights on the move every request finishes and the breakdown adds up") {
  for (const Json& policy : moving_policies) {
    CAPTURE(policy.dump());
    const OrderedJson report = report_of({{"rebalancing", policy}});
    CHECK(report["metrics"]["completed"] == 120);
    const OrderedJson& moved = report["rebalancing"];
    CHECK(moved["count"] > 0);
    CHECK(moved["layers_switched"] >= moved["count"]);
    CHECK(moved["bytes"]["nvlink"] > 0.0);
    const OrderedJson& breakdown = report["breakdown"];
    double parts = 0, resources = 0, charged = 0;
    for (const auto& part : breakdown["parts"]) parts += part["seconds"].get<double>();
    for (const auto& seconds : breakdown["bound_by"]) resources += seconds.get<double>();
    CHECK_THAT(parts, WithinRel(breakdown["busy_seconds"].get<double>(), 1e-9));
    CHECK_THAT(resources, WithinRel(breakdown["busy_seconds"].get<double>(), 1e-9));
    // What the run was charged over time is what was stalled for and slowed down by.
    std::int64_t steps = 0;
    for (const auto& bucket : report["over_time"]) {
      charged += bucket["rebalancing_seconds"].get<double>();
      steps += bucket["steps"].get<std::int64_t>();
    }
    CHECK_THAT(charged, WithinAbs(moved["stall_seconds"].get<double>() +
                                      moved["slowdown_seconds"].get<double>(),
                                  1e-12));
    std::int64_t counted = 0;
    for (const char* kind : {"prefill", "decode", "mixed"}) {
      counted += report["steps"][kind]["steps"].get<std::int64_t>();
    }
    CHECK(steps >= counted);
    // The resolved config runs again, to the same bytes.
    TraceLibrary traces;
    const ConfigNode again(report["context"]["config"], test::source_dir() / "tests/again.json");
    CHECK(run(load_experiment(again, traces)).document().dump() == report.dump());
  }
}

TEST_CASE("only steps that stall are longer for it, and the same placement later is the same run") {
  const OrderedJson none = report_of(Json::object());
  CHECK(none["rebalancing"]["count"] == 0);
  CHECK(none["breakdown"]["parts"]["rebalancing"]["seconds"] == 0.0);
  // A plan that never falls due changes nothing but the memory its buffer takes.
  OrderedJson never =
      report_of({{"rebalancing", {{"type", "eplb_periodic"}, {"first_after", 1000000}}}});
  CHECK(never["metrics"] == none["metrics"]);
}

TEST_CASE(
    "the first placement comes after a quarter of the interval, the next ones after all of it") {
  const OrderedJson report =
      report_of({{"rebalancing", {{"type", "eplb_periodic"}, {"step_interval", 40}}}});
  std::vector<std::int64_t> steps;
  for (const auto& event : report["rebalancing"]["events"]) steps.push_back(event["step"]);
  REQUIRE(steps.size() >= 3);
  // The counter starts at three quarters: the 10th step (number 9), then every 40th.
  CHECK(steps[0] == 9);
  CHECK(steps[1] == 49);
  CHECK(steps[2] == 89);
}

TEST_CASE("a periodic plan balances what its window saw, and thresholds keep it from moving") {
  const Json policy{{"type", "eplb_periodic"}, {"step_interval", 40}};
  const OrderedJson moved = report_of({{"rebalancing", policy}})["rebalancing"];
  CHECK(moved["events"][0]["imbalance_after"] < moved["events"][0]["imbalance_before"]);
  const Json thresholds{{"min_gain", 1}, {"utilization_threshold", 0}};
  for (const auto& [key, value] : thresholds.items()) {
    Json strict = policy;
    strict[key] = value;
    const OrderedJson kept = report_of({{"rebalancing", strict}})["rebalancing"];
    CHECK(kept["count"] == 0);
    CHECK(kept["declined"] > 0);
    CHECK(kept["bytes"]["nvlink"] == 0.0);
  }
}

TEST_CASE("moving layer by layer stalls as long in all as moving at once, but not in one step") {
  Json policy{{"type", "eplb_periodic"}, {"step_interval", 400}};
  const OrderedJson at_once = report_of({{"rebalancing", policy}})["rebalancing"];
  policy["layers_per_chunk"] = 1;
  const OrderedJson in_chunks = report_of({{"rebalancing", policy}})["rebalancing"];
  REQUIRE(at_once["count"] == 1);
  CHECK(in_chunks["layers_switched"] == 3);
  CHECK_THAT(in_chunks["stall_seconds"].get<double>(),
             WithinRel(at_once["stall_seconds"].get<double>(), 1e-12));
}

TEST_CASE("the rebalance buffer and free slots come out of the KV cache") {
  const Experiment none = load_tiny(Json::object());
  const Experiment periodic = load_tiny({{"rebalancing", {{"type", "eplb_periodic"}}}});
  const Experiment migrate =
      load_tiny({{"rebalancing", {{"type", "migrate"}, {"free_slots", 3}, {"max_actions", 5}}}});
  const Bytes w =
      expert_bytes(none.decode().model, none.decode().parallel, none.decode().precision);
  // 16 experts x 1.5 on 4 GPUs are 6 slots, one layer of which is staged; 3 layers.
  CHECK(periodic.decode().memory.rebalance_buffer == w * 6);
  CHECK_THAT((none.decode().memory.kv - periodic.decode().memory.kv) / w, WithinRel(6.0, 1e-9));
  CHECK(periodic.decode().memory.kv_blocks < none.decode().memory.kv_blocks);
  CHECK_THAT((none.decode().memory.kv - migrate.decode().memory.kv) / w,
             WithinRel(3.0 * 3 + 5, 1e-9));
}

TEST_CASE("rebalancing options that make no sense are refused") {
  const auto refused = [](const Json& policy) {
    return config_error([&] { load_tiny({{"rebalancing", policy}}); });
  };
  CHECK_THAT(refused({{"type", "eplb_periodic"}, {"placement", "linear"}}),
             Catch::Contains("does not use the observed tokens per expert"));
  CHECK_THAT(refused({{"type", "eplb_periodic"}, {"interval", 3}}), Catch::Contains("interval"));
  CHECK_THAT(refused({{"type", "migrate"}, {"interval", "0 s"}}),
             Catch::Contains("more than zero"));
  CHECK_THAT(refused({{"type", "eplb_async"}, {"movement", {{"sources", "any"}}}}),
             Catch::Contains("sglang"));
}

TEST_CASE("a program's own rebalancer decides like those that ship") {
  // Every expert one GPU to the right, once.
  class Rotate final : public Rebalancer {
   public:
    std::optional<RebalancePlan> after_step(const StepSeen& seen) override {
      if (seen.step != 5) return std::nullopt;
      const LayerPlacement& now = seen.placement[0];
      std::vector<std::vector<int>> experts(static_cast<std::size_t>(now.gpus()));
      for (int slot = 0; slot < now.slots(); ++slot) {
        experts[static_cast<std::size_t>((now.gpu_of_slot(slot) + 1) % now.gpus())].push_back(
            now.expert_of_slot(slot));
      }
      RebalancePlan plan;
      plan.changes.push_back({0, {now.experts(), experts}});
      return plan;
    }
    int buffer_slots() const override { return 0; }
  };
  Policies policies;
  policies.rebalancing.add(
      {"rotate", "once round", [](ConfigReader&, const RebalancingContext&) -> RebalancerFactory {
         return copies_of(Rotate());
       }});
  TraceLibrary traces;
  const Experiment e =
      load_experiment(ConfigNode(test::tiny_experiment({{"rebalancing", "rotate"}}),
                                 test::source_dir() / "tests/own.json"),
                      traces, policies);
  const OrderedJson moved = run(e).document()["rebalancing"];
  CHECK(moved["count"] == 1);
  CHECK(moved["layers_switched"] == 1);
}

// --- migration

LayerDemand demand_of(int ranks, int experts, Rng& rng) {
  LayerDemand demand{ranks, experts, {}};
  for (int i = 0; i < ranks * experts; ++i) demand.rates.push_back(rng.uniform());
  return demand;
}

TEST_CASE("migrations lose no expert, overfill no GPU and never put two copies on one") {
  Rng rng(1, "test/migration");
  const MigrationLimits limits{7, 3};
  const std::vector<char> all(4, 1);
  LayerPlacement map = random_placement(3);
  int done = 0;
  for (int round = 0; round < 60; ++round) {
    const LayerDemand demand = demand_of(4, 16, rng);
    const auto found = candidates({0, map, demand, all}, all, 5, limits);
    if (found.empty()) continue;
    const Migration m = found[rng.below(found.size())];
    REQUIRE(allows(map, m, limits, all));
    const int slots = map.slots();
    map = after(map, m);  // the constructor refuses a lost expert
    ++done;
    const int change = m.kind == Migration::Kind::swap        ? 0
                       : m.kind == Migration::Kind::replicate ? 1
                                                              : -1;
    REQUIRE(map.slots() == slots + change);
    for (int gpu = 0; gpu < 4; ++gpu) REQUIRE(map.first_slot(gpu + 1) - map.first_slot(gpu) <= 7);
    for (int e = 0; e < 16; ++e) REQUIRE(map.slots_of(e).size() == map.hosts_of(e).size());
    REQUIRE_FALSE(allows(map, m, limits, all));  // a plan does not outlive its execution
  }
  CHECK(done > 40);
}

TEST_CASE("what a layer is expected to take, by hand") {
  // Two GPUs, two experts, 3 and 1 tokens a step, all asked for on GPU 0. Weights take 1 s, tokens
  // 0.1 s, a token elsewhere 0.01 s.
  const LayerDemand demand{2, 2, {3, 1, 0, 0}};
  const RooflineTime time{1, 0.1};
  const LayerPlacement apart(2, {{0}, {1}});
  // GPU 0: 1 - exp(-3) active slots; the token of expert 1 travels.
  CHECK_THAT(expected_seconds(apart, demand, time, 0.01),
             WithinRel(1 - std::exp(-3) + 0.01, 1e-12));
  // Expert 0 on both: 1.5 tokens each; GPU 1 has (1 - exp(-1.5)) + (1 - exp(-1)) slots active; 1.5
  // + 1 tokens travel.
  const LayerPlacement both(2, {{0}, {1, 0}});
  CHECK_THAT(expected_seconds(both, demand, time, 0.01),
             WithinRel(2 - std::exp(-1.5) - std::exp(-1) + 0.025, 1e-12));
}

TEST_CASE("a replica is refused without a free slot, a fourth copy, and on a rank that is down") {
  const LayerPlacement map(4, {{0, 1}, {0, 2}, {0, 3}, {3}});
  const std::vector<char> all(4, 1);
  const auto replicate = [](int expert, int target) {
    return Migration{Migration::Kind::replicate, 0, expert, target};
  };
  CHECK(allows(map, replicate(1, 3), {2, 3}, all));
  CHECK_FALSE(allows(map, replicate(1, 1), {2, 3}, all));  // full
  CHECK_FALSE(allows(map, replicate(0, 3), {2, 3}, all));  // three copies already
  CHECK_FALSE(allows(map, replicate(3, 3), {2, 3}, all));  // there already
  CHECK_FALSE(allows(map, replicate(1, 3), {2, 3}, std::vector<char>{1, 1, 1, 0}));
  CHECK_FALSE(allows(map, {Migration::Kind::drop, 0, 1, 0}, {2, 3}, all));  // its last copy
  CHECK(allows(map, {Migration::Kind::swap, 0, 2, 0, 1, 1}, {2, 3}, all));
  CHECK_FALSE(allows(map, {Migration::Kind::swap, 0, 2, 0, 1, 0}, {2, 3}, all));  // 0 is on 1 too
}

TEST_CASE("a cycle moves at most so many experts, and one that moved is left alone a while") {
  const auto events = [](const Json& options) {
    Json policy{{"type", "migrate"}, {"interval", "2 ms"}, {"horizon", "1 s"}};
    policy.update(options);
    return report_of({{"rebalancing", policy}})["rebalancing"];
  };
  const OrderedJson two = events({{"max_actions", 1}});
  for (const auto& event : two["events"]) CHECK(event["layers"] == 1);
  const OrderedJson cold = events({{"cooldown", "1000 s"}, {"max_actions", 1000}});
  const OrderedJson warm = events({{"cooldown", "0 s"}, {"max_actions", 1000}});
  CHECK(cold["layers_switched"] < warm["layers_switched"]);
  // Nothing is worth a move that must pay off at once.
  CHECK(events({{"horizon", "1 us"}})["count"] == 0);
}

TEST_CASE("popularity: the mean per step, decayed or over a window, split by shared GPUs") {
  // Two experts, one layer, k = 1; request 0 picks expert 0, request 1 expert 1.
  const TraceMeta meta = test::trace_meta("tiny", 2, 1, {0});
  const RoutingTrace trace(meta, {"w"}, {{0, 4, 0, 0}, {4, 4, 0, 0}}, {0, 0, 0, 0, 1, 1, 1, 1});
  const RowSource rows(trace, std::nullopt, false, 1);
  const ExpertPlacement placement;
  const auto add = [&](Popularity& popularity, std::int64_t step,
                       const std::vector<RowRange>& ranges, const std::vector<std::uint32_t>& ids) {
    popularity.add({step, Time{}, {}, ranges, ids, rows, placement, {}});
  };
  const RowRange zero{Phase::decode, 0, 2, 0}, one{Phase::decode, 1, 1, 4};
  Popularity ema({PopularityOptions::By::rank, 0.5, 0}, 2, 4, 1, 2);
  add(ema, 0, {zero, one}, {7, 8});
  add(ema, 1, {one}, {8});
  // Weights 1/2 and 1 of 3/2: rank 0 asks (2 * 1/3) for expert 0, rank 1 once a step for expert 1.
  // DP rank 0 is EP ranks 0 and 1.
  const LayerDemand demand = ema.demand()[0];
  CHECK_THAT(demand.at(0, 0), WithinRel(1.0 / 3, 1e-12));
  CHECK_THAT(demand.at(1, 0), WithinRel(1.0 / 3, 1e-12));
  CHECK(demand.at(2, 0) == 0);
  CHECK_THAT(demand.at(3, 1), WithinRel(0.5, 1e-12));
  CHECK_THAT(demand.total()[1], WithinRel(1.0, 1e-12));

  Popularity window({PopularityOptions::By::rank, 0.5, 2}, 2, 2, 1, 2);
  add(window, 0, {zero}, {7});
  add(window, 1, {one}, {8});
  add(window, 2, {one}, {8});  // the first step is forgotten
  CHECK(window.demand()[0].at(0, 0) == 0);
  CHECK(window.demand()[0].at(1, 1) == 1);

  Popularity profiles({PopularityOptions::By::request, 0.5, 0}, 2, 2, 1, 2);
  add(profiles, 0, {zero, one}, {7, 8});
  CHECK(profiles.demand()[0].at(0, 0) == 1);  // its history, one token a step
  add(profiles, 1, {one}, {8});
  CHECK(profiles.demand()[0].at(0, 0) == 0);  // request 7 is gone
  add(profiles, 2, {{Phase::decode, 0, 1, 0}}, {StepSeen::no_request});
  CHECK(profiles.demand()[0].at(1, 1) == 0);  // and dummies ask for nothing
}

TEST_CASE("however long a history is, a step weighs what its age says") {
  // Weights grow by 1000 a step: a double would overflow in the 103rd.
  const TraceMeta meta = test::trace_meta("tiny", 2, 1, {0});
  const RoutingTrace trace(meta, {"w"}, {{0, 1, 0, 0}, {1, 1, 0, 0}}, {0, 1});
  const RowSource rows(trace, std::nullopt, false, 1);
  const ExpertPlacement placement;
  constexpr double decay = 0.001;
  Popularity popularity({PopularityOptions::By::rank, decay, 0}, 1, 1, 1, 2);
  const std::vector<std::uint32_t> ids{7};
  double weight = 0;
  std::array<double, 2> asked{};
  for (int step = 0; step < 200; ++step) {
    CAPTURE(step);
    const int expert = step % 3 == 0 ? 0 : 1;
    const std::vector<RowRange> ranges{{Phase::decode, 0, 1, expert}};
    popularity.add({step, Time{}, {}, ranges, ids, rows, placement, {}});
    for (double& tokens : asked) tokens *= decay;
    asked[static_cast<std::size_t>(expert)] += 1;
    weight = weight * decay + 1;
    const LayerDemand demand = popularity.demand()[0];
    REQUIRE_THAT(demand.at(0, 0), WithinRel(asked[0] / weight, 1e-9));
    REQUIRE_THAT(demand.at(0, 1), WithinRel(asked[1] / weight, 1e-9));
  }
}

// --- drift

TEST_CASE("requests replay phase after phase of workload tags, equally many in each") {
  const TraceMeta meta = test::trace_meta("tiny", 4, 1, {0}, {"prefill", "decode"});
  const RoutingTrace trace(meta, {"law", "maths", "history"},
                           {{0, 2, 1, 0}, {2, 2, 1, 1}, {4, 2, 1, 2}, {6, 2, 1, 1}},
                           {0, 0, 1, 1, 2, 2, 3, 3});
  RowSource source(trace, std::nullopt, false, 1, {{{"maths"}, {"law", "history"}}, 8});
  std::vector<std::uint32_t> bound;
  for (int i = 0; i < 9; ++i) bound.push_back(source.bind().request[1]);
  for (std::size_t i = 0; i < 4; ++i) CHECK((bound[i] == 1 || bound[i] == 3));
  for (std::size_t i = 4; i < 9; ++i) CHECK((bound[i] == 0 || bound[i] == 2));
  CHECK_THAT(config_error([&] {
               RowSource(trace, std::nullopt, false, 1, {{{"physics"}}, 8});
             }),
             Catch::Contains("physics") && Catch::Contains("it has: law, maths, history"));
}

TEST_CASE("bound by session, all turns replay recordings of the first one's workload tag") {
  const TraceMeta meta = test::trace_meta("tiny", 4, 1, {0}, {"prefill", "decode"});
  const RoutingTrace trace(meta, {"law", "maths", "history"},
                           {{0, 2, 1, 0}, {2, 2, 1, 1}, {4, 2, 1, 2}, {6, 2, 1, 1}},
                           {0, 0, 1, 1, 2, 2, 3, 3});
  RowSource source(trace, std::nullopt, false, 1, {{}, 0, true});
  std::map<std::uint32_t, std::set<std::uint32_t>> tags, recordings;
  for (std::uint32_t turn = 0; turn < 40; ++turn) {
    for (std::uint32_t session = 0; session < 20; ++session) {
      const Binding binding = source.bind(session);
      tags[session].insert(source.workload(binding));
      recordings[session].insert(binding.request[1]);
      CHECK(binding.request[0] == binding.request[1]);
    }
  }
  std::set<std::uint32_t> seen;
  for (const auto& [session, own] : tags) {
    REQUIRE(own.size() == 1);
    seen.insert(*own.begin());
    CHECK(recordings[session].size() == (*own.begin() == 1 ? 2 : 1));
  }
  CHECK(seen.size() == 3);
  // Requests of no session, and other bindings, have no such bond.
  RowSource random(trace, std::nullopt, false, 1);
  std::set<std::uint32_t> of_random;
  for (int i = 0; i < 40; ++i) of_random.insert(random.workload(random.bind(7)));
  CHECK(of_random.size() == 3);
}

TEST_CASE("a placement fitted on one workload's requests sees only their tokens") {
  const TraceMeta meta = test::trace_meta("tiny", 2, 1, {0}, {"prefill", "decode"});
  const RoutingTrace trace(meta, {"law", "maths"}, {{0, 2, 1, 0}, {2, 2, 1, 1}}, {0, 0, 1, 1});
  Observation maths, none;
  maths.workloads = {"maths"};
  none.workloads = {"physics"};
  CHECK(observe(std::array{&trace}, maths).load == std::vector<ExpertLoad>{{0, 2}});
  CHECK(observe(std::array{&trace}).load == std::vector<ExpertLoad>{{2, 2}});
  CHECK_THROWS_AS(observe(std::array{&trace}, none), ConfigError);
}

TEST_CASE("a placement that is to have seen nothing is the linear one, also by EPLB") {
  const auto placed = [](const char* type, const char* from) {
    return load_tiny({{"placement", {{"type", type}, {"load", {{"from", from}}}}}});
  };
  const ExpertPlacement linear = placed("linear", "trace").decode().placement;
  CHECK(placed("eplb", "none").decode().placement == linear);
  CHECK(placed("eplb", "trace").decode().placement != linear);
  CHECK(placed("eplb", "none").decode().seen.empty());
}

TEST_CASE("on drifting gpt-oss traffic a placement that follows beats one that does not") {
  if (!test::has_shared()) {
    WARN("skipped: ../shared is absent");
    return;
  }
  const auto file = test::source_dir() / "configs/drift_gpt_oss.json";
  const auto imbalance_of = [&](const Json& policy) {
    Json json = ConfigNode::from_file(file).json();
    json["workload"]["requests"] = 500;
    json["workload"]["arrivals"]["concurrency_per_rank"] = 8;
    json["workload"]["lengths"]["output"] = 64;
    json["rebalancing"] = policy;
    TraceLibrary traces;
    const OrderedJson report = run(load_experiment(ConfigNode(json, file), traces)).document();
    return report["experts"]["imbalance"].get<double>();
  };
  const double stale = imbalance_of("none");
  const Json often{{"step_interval", 40}, {"window_size", 40}};
  for (const char* type : {"eplb_periodic", "eplb_async"}) {
    Json policy = often;
    policy["type"] = type;
    CHECK(imbalance_of(policy) < stale);
  }
}

}  // namespace
TEST_CASE("dummies of idle ranks take nothing off the load that a rebalancer sees") {
  // Fewer requests than ranks, and tokens that a capacity or a reselection takes off their experts.
  for (const Json& rule :
       {Json{{"capacity", {{"type", "drop"}, {"factor", 1.25}}}},
        Json{{"expert_reselection", {{"keep", 1}}}, {"dispatch", {{"decode", "all_gather"}}}}}) {
    Json set{
        {"workload", {{"arrivals", {{"concurrency", 2}}}, {"requests", 6}}},
        {"rebalancing", {{"type", "eplb_periodic"}, {"step_interval", 3}, {"window_size", 2}}}};
    set.merge_patch(rule);
    CHECK(test::serve(load_tiny(set)).requests.size() == 6);
  }
}

}  // namespace moesim::test_rebalancing
