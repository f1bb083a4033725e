// SPDX-License-Identifier: Apache-2.0
// Can a program add policies of its own without touching the simulator? One file (this one), one
// row each.
#include "sim/serving/simulator.hpp"
#include "tests/support.hpp"

namespace moesim::test_policies {
namespace {

// All tokens of an expert to the replica on the GPU of highest id: the worst habit one can have.
class LastReplica final : public TokenRouter {
 public:
  void route(const RoutingProblem& problem, SlotChoice choice) const override {
    std::fill(choice.tokens_of_slot.begin(), choice.tokens_of_slot.end(), 0);
    for (std::size_t e = 0; e < problem.tokens.size(); ++e) {
      const auto slot = problem.placement.slots_of(static_cast<int>(e)).back();
      choice.tokens_of_slot[static_cast<std::size_t>(slot)] = problem.tokens[e];
    }
  }
  bool needs_global_counts() const override { return false; }
};

TokenRouterFactory make_last_replica(ConfigReader&) {
  return [](const RoutingContext&) { return std::make_unique<LastReplica>(); };
}

// `linear`, from the last GPU to the first.
class Backwards final : public Placer {
 public:
  LayerPlacement place(const PlacementProblem& problem, const LayerStatistics&,
                       int) const override {
    std::vector<std::vector<int>> experts(static_cast<std::size_t>(problem.gpus));
    for (int slot = 0; slot < problem.gpus * problem.slots_per_gpu; ++slot) {
      const int gpu = problem.gpus - 1 - slot / problem.slots_per_gpu;
      experts[static_cast<std::size_t>(gpu)].push_back(slot % problem.experts);
    }
    return {problem.experts, experts};
  }
  bool uses_load() const override { return false; }
};

std::unique_ptr<Placer> make_backwards(ConfigReader&) { return std::make_unique<Backwards>(); }

Policies with_own() {
  Policies policies;
  policies.token_routing.add({"last_replica", "the highest GPU", make_last_replica});
  policies.placement.add({"backwards", "linear, from the last GPU on", make_backwards});
  return policies;
}

Experiment quick(const Policies& policies, const Json& set) {
  const auto file = test::source_dir() / "configs/quick.json";
  Json json = ConfigNode::from_file(file).json();
  json["workload"]["requests"] = 20;
  json["measurement"]["warmup"] = 0;
  json.merge_patch(set);
  TraceLibrary traces;
  return load_experiment(ConfigNode(json, file), traces, policies);
}

TEST_CASE("a program's own placement and token routing run like those that ship") {
  const Json own{{"placement", {{"type", "backwards"}, {"replication", 1.5}}},
                 {"token_routing", {{"prefill", "last_replica"}, {"decode", "last_replica"}}},
                 {"dispatch", {{"prefill", "all_to_all"}, {"decode", "all_to_all"}}}};
  const Report report = run(quick(with_own(), own));
  CHECK(report.document()["metrics"]["completed"] == 20);
  Json even = own;
  even["token_routing"] = {{"prefill", "even"}, {"decode", "even"}};
  const Report reference = run(quick(with_own(), even));
  // Of two replicas it uses one, so it activates no more than the even split in all ...
  const auto mean = [](const Report& r, const char* key) {
    return r.document().at("/experts/by_step_kind/decode"_json_pointer).at(key).get<double>();
  };
  CHECK(mean(report, "activated_mean") < mean(reference, "activated_mean"));
  // ... but its busiest GPU holds more tokens.
  CHECK(mean(report, "max_tokens_mean") > mean(reference, "max_tokens_mean"));
}

TEST_CASE(
    "a charge may be set for a policy of one's own, and the shipped tables know nothing of it") {
  const Json set{
      {"token_routing", {{"decode", "last_replica"}}},
      {"charges",
       {{"token_routing", {{"source", "a test"}, {"last_replica", {{"fixed", "7 us"}}}}}}}};
  const Experiment experiment = quick(with_own(), set);
  CHECK(experiment.decode().charges.routing("last_replica").fixed.count() == 7e-6);
  CHECK_THROWS_AS(quick({}, set), ConfigError);
}

TEST_CASE("every token-routing policy that ships says what it takes, and where that comes from") {
  for (const auto& entry : token_routers().entries()) {
    CAPTURE(entry.name);
    const auto rows = measured_charges();
    const auto row = std::ranges::find(rows, entry.name, &MeasuredCharge::policy);
    REQUIRE(row != rows.end());
    CHECK_FALSE(row->source.empty());
  }
}

TEST_CASE("charges of a config stand in the place of measured ones of the same policy alone") {
  const Experiment experiment = quick(
      {},
      {{"token_routing", {{"decode", "metro"}}},
       {"charges", {{"token_routing", {{"source", "a test"}, {"optimal", {{"fixed", "7 us"}}}}}}}});
  const Charges& charges = experiment.decode().charges;
  CHECK(charges.routing("optimal").fixed.count() == 7e-6);
  CHECK(charges.routing("optimal").per_128_active.count() == 0);
  CHECK(charges.routing("metro").per_128_active.count() == 26e-6);
  CHECK(charges.top_k_of_all_tokens.count() == 3e-6);
  CHECK(remarks_of(experiment).empty());
  CHECK_THAT(charges.source, Catch::StartsWith("a test; the others: METRO"));
}

TEST_CASE("a charge by replicas is that by active experts, times the replicas of each") {
  const auto routing_ms = [](const Json& of_metro) {
    const Json charges = {{"token_routing", {{"source", "a test"}, {"metro", of_metro}}}};
    const Report report = run(quick({}, {{"placement", {{"type", "linear"}, {"replication", 2}}},
                                         {"token_routing", {{"decode", "metro"}}},
                                         {"charges", charges}}));
    return report.document()
        .at("/steps/decode/parts_mean_ms/token_routing"_json_pointer)
        .get<double>();
  };
  const double by_active = routing_ms({{"per_128_active", "128 us"}});
  CHECK(by_active > 1);
  CHECK_THAT(routing_ms({{"per_128_candidates", "64 us"}}), test::WithinRel(by_active, 1e-9));
  // 26 us of 192 replicas.
  const Experiment experiment = quick({}, {{"charges", {{"token_routing", "by_candidates"}}}});
  const RoutingCharge metro = experiment.decode().charges.routing("metro");
  CHECK_THAT(metro.per_128_candidates.count(), test::WithinRel(26e-6 * 128 / 192, 1e-12));
  CHECK(metro.per_128_active.count() == 0);
}

TEST_CASE("a policy of one's own without a charge says so") {
  const Json set{{"token_routing", {{"decode", "last_replica"}}}};
  const std::vector<std::string> remarks = remarks_of(quick(with_own(), set));
  REQUIRE(remarks.size() == 1);
  CHECK_THAT(remarks.front(), Catch::Contains("by \"last_replica\" takes no time"));
  Json none = set;
  none["charges"] = {{"token_routing", "none"}};
  CHECK(remarks_of(quick(with_own(), none)).empty());
}

}  // namespace
}  // namespace moesim::test_policies
