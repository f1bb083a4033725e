// SPDX-License-Identifier: Apache-2.0
// Do policies that bring copies for one step bring what their papers say, and is all of it charged?
#include <algorithm>
#include <numeric>

#include <fmt/format.h>

#include "hardware/at.hpp"
#include "hardware/rng.hpp"
#include "models/memory.hpp"
#include "sim/dispatch/token_traffic.hpp"
#include "sim/serving/simulator.hpp"
#include "sim/serving/typical_step.hpp"
#include "sim/step/routed_layer.hpp"
#include "tests/support.hpp"

namespace moesim::test_step_copies {

using namespace moesim::test;

namespace {

using Tokens = std::vector<std::int32_t>;

struct Outcome {
  LayerLoad load;
  std::vector<StepCopy> copies;
  Tokens tokens_of_slot;
  LayerPlacement placement;
};

Outcome route(const Json& policy, const LayerPlacement& placement, const Tokens& tokens,
              int ranks_per_domain = 0, Seconds time_of_copy = {}) {
  const ExpertPlacement placements{placement};
  const auto router = token_routers().make(config(policy.dump()))(
      {placements, {}, {}, ranks_per_domain, time_of_copy});
  RoutedLayer routed;
  LayerLoad load;
  constexpr int layer = 1;  // before the first one nothing is foreseen
  routed.route(*router, {placements[0], tokens, layer, 0, {}}, load);
  return {load,
          {routed.copies().begin(), routed.copies().end()},
          routed.tokens_of_slot(),
          routed.placement()};
}

// "expert>GPU:tokens" of each copy, in order.
std::string brought(const Outcome& outcome) {
  std::string text;
  for (const StepCopy& copy : outcome.copies) {
    text += fmt::format("{}{}>{}:{}", text.empty() ? "" : " ", copy.expert, copy.gpu, copy.tokens);
  }
  return text;
}

LayerPlacement one_each(int gpus) {
  std::vector<std::vector<int>> experts;
  for (int gpu = 0; gpu < gpus; ++gpu) experts.push_back({gpu});
  return {gpus, experts};
}

Json llep(double alpha, int min_tokens, double lambda = 1.3) {
  return {{"type", "llep"}, {"alpha", alpha}, {"min_tokens", min_tokens}, {"lambda", lambda}};
}
Json quota(int min_tokens, int slots = 2) {
  return {{"type", "quota"}, {"min_tokens", min_tokens}, {"slots", slots}};
}

TEST_CASE("llep fills the least loaded GPUs up to alpha times the mean") {
  // 160 tokens on 4 GPUs, 40 in the mean: 60 of GPU 0 are over, and the others have room for 20.
  const Tokens skewed{100, 20, 20, 20};
  CHECK(brought(route(llep(1, 1), one_each(4), skewed)) == "0>1:20 0>2:20 0>3:20");
  CHECK(route(llep(1, 1), one_each(4), skewed).load.tokens == Tokens{40, 40, 40, 40});
  // Up to 50: 50 are over, and two GPUs take 30 and what is left.
  CHECK(brought(route(llep(1.25, 1), one_each(4), skewed)) == "0>1:30 0>2:20");
  // The busiest has 2.5 times the mean.
  CHECK(brought(route(llep(1, 1, 2.5), one_each(4), skewed)).empty());
  CHECK_FALSE(brought(route(llep(1, 1, 2.49), one_each(4), skewed)).empty());
}

TEST_CASE("llep's chunks have the least size, but an expert's last one") {
  const Tokens skewed{100, 20, 20, 20};
  // Chunks of 20 are too small while more than 20 are left.
  CHECK(brought(route(llep(1, 21), one_each(4), skewed)).empty());
  CHECK(brought(route(llep(1.25, 30), one_each(4), skewed)) == "0>1:30 0>2:20");
}

TEST_CASE("quota finds the least load that exports reach") {
  const Tokens skewed{100, 20, 20, 20};
  CHECK(brought(route(quota(1), one_each(4), skewed)) == "0>1:20 0>2:20 0>3:20");
  // With 25 to a copy at least: at 60 tokens a GPU, 40 are over and GPU 1 has room for them. At 59
  // GPU 1 has room for 39, and the last 2 are too few for a copy.
  const Outcome one = route(quota(25), one_each(4), skewed);
  CHECK(brought(one) == "0>1:40");
  CHECK(one.load.tokens == Tokens{60, 60, 20, 20});
  CHECK(brought(route(quota(101), one_each(4), skewed)).empty());
}

TEST_CASE("quota takes the hottest experts of the fullest GPU, and each keeps a token at home") {
  // 120 tokens on two GPUs: 40 of GPU 0 are over, expert 1 has them.
  const LayerPlacement placement(3, {{0, 1}, {2}});
  CHECK(brought(route(quota(1), placement, {40, 60, 20})) == "1>1:40");
  // 20 are over: expert 0 gives all but one of its 20 tokens, expert 1 the last one.
  CHECK(brought(route(quota(1), placement, {20, 20, 0})) == "0>1:19 1>1:1");
}

TEST_CASE("quota stays within an NVLink domain") {
  const Tokens skewed{100, 20, 0, 0};
  const Outcome near = route(quota(1), one_each(4), skewed, 2);
  CHECK(brought(near) == "0>1:40");
  CHECK(near.load.tokens == Tokens{60, 60, 0, 0});
  CHECK(route(quota(1), one_each(4), skewed, 4).load.max_tokens == 30);
}

// A predictor that errs as often as asked.
Json probe(double accuracy, const char* window = nullptr) {
  Json policy{{"type", "probe"}, {"accuracy", accuracy}};
  if (window != nullptr) policy["window"] = window;
  return policy;
}

TEST_CASE("probe makes the copies that arrive within the window: none, one, two") {
  // A copy takes 100 us of a link.
  const Tokens skewed{100, 20, 20, 20};
  const auto copies = [&](const char* window) {
    return brought(route(probe(1, window), one_each(4), skewed, 0, Seconds(100e-6)));
  };
  CHECK(copies("99 us").empty());
  // Half of the 80 that are between GPU 0 and GPU 1; then GPU 0 has sent all that it can.
  CHECK(copies("100 us") == "0>1:40");
  CHECK(copies("199 us") == "0>1:40");
  // GPU 0 has 60 and GPU 2 20; then GPU 1 has 60, 20 of them its own expert's, and GPU 3 20.
  CHECK(copies("200 us") == "0>1:40 0>2:20 1>3:20");
  CHECK(route(probe(1, "200 us"), one_each(4), skewed, 0, Seconds(100e-6)).load.max_tokens == 40);
  // Half of the link: half of the copies.
  Json half = probe(1, "200 us");
  half["link_share"] = 0.5;
  CHECK(brought(route(half, one_each(4), skewed, 0, Seconds(100e-6))) == "0>1:40");
}

TEST_CASE("probe shares out by what it foresaw, right or wrong") {
  // All experts are foreseen as often: no GPU is the fullest by more than chance, so that less is
  // brought than with a predictor that is right.
  const Tokens skewed{4000, 800, 800, 800};
  const std::int32_t right = route(probe(1), one_each(4), skewed).load.max_tokens;
  const std::int32_t often = route(probe(.6), one_each(4), skewed).load.max_tokens;
  const std::int32_t never = route(probe(0), one_each(4), skewed).load.max_tokens;
  CHECK(right == 1600);
  CHECK(often > right);
  CHECK(never > often);
}

struct World {
  LayerPlacement placement;
  Tokens tokens;
};

// 24 experts on 6 GPUs, some of them twice if asked, a few much hotter than others.
World random_world(std::uint64_t seed, bool twice) {
  Rng rng(seed, "test/step_copies");
  std::vector<std::vector<int>> on_gpu(6);
  for (int expert = 0; expert < 24; ++expert) on_gpu[at(expert % 6)].push_back(expert);
  if (twice) {
    for (auto& slots : on_gpu) slots.push_back(static_cast<int>(rng.below(24)));
  }
  Tokens tokens;
  for (int expert = 0; expert < 24; ++expert) {
    const auto most = rng.below(6) == 0 ? 4000 : 300;
    tokens.push_back(static_cast<std::int32_t>(rng.below(static_cast<std::uint64_t>(most))));
  }
  return {LayerPlacement(24, on_gpu), tokens};
}

TEST_CASE("every token is computed once, and copies keep to slots, hosts, sizes and domains") {
  std::size_t copies = 0;
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    CAPTURE(seed);
    const World world = random_world(seed, true);
    const std::int32_t even = route("even", world.placement, world.tokens).load.max_tokens;
    for (const Json& policy : {llep(1.1, 50), quota(50), probe(1), probe(.6)}) {
      CAPTURE(policy.dump());
      const Outcome outcome = route(policy, world.placement, world.tokens, 3);
      Tokens computed(24), of_gpu(6);
      for (int slot = 0; slot < outcome.placement.slots(); ++slot) {
        REQUIRE(outcome.tokens_of_slot[at(slot)] >= 0);
        computed[at(outcome.placement.expert_of_slot(slot))] += outcome.tokens_of_slot[at(slot)];
      }
      REQUIRE(computed == world.tokens);
      if (policy.value("accuracy", 1.0) == 1) REQUIRE(outcome.load.max_tokens <= even);
      for (const StepCopy& copy : outcome.copies) {
        const auto hosts = world.placement.host_gpus_of(copy.expert);
        REQUIRE(std::ranges::find(hosts, copy.gpu) == hosts.end());
        REQUIRE(copy.tokens > 0);
        REQUIRE(++of_gpu[at(copy.gpu)] <= 2);
        if (policy.at("type") == "llep") continue;
        if (policy.at("type") == "quota") REQUIRE(copy.tokens >= 50);
        REQUIRE(std::ranges::any_of(hosts, [&](int gpu) { return gpu / 3 == copy.gpu / 3; }));
      }
      copies += outcome.copies.size();
    }
  }
  CHECK(copies > 200);
}

TEST_CASE("with room enough quota brings every domain to its mean") {
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    CAPTURE(seed);
    const World world = random_world(seed, false);
    const Outcome outcome = route(quota(1, 24), world.placement, world.tokens, 3);
    for (int first : {0, 3}) {
      const auto loads = std::span(outcome.load.tokens).subspan(at(first), 3);
      const std::int32_t all = std::accumulate(loads.begin(), loads.end(), 0);
      REQUIRE(*std::ranges::max_element(loads) == (all + 2) / 3);
    }
  }
}

TEST_CASE("selections fill the copy on their own GPU first, then the others in order") {
  // Expert 0 on GPUs 0 and 1, two tokens each; GPU 1 holds three tokens and GPU 0 one.
  const LayerPlacement placement(1, {{0}, {0}});
  const std::vector<std::uint16_t> ids{0, 0, 0, 0};
  Tokens slots;
  slots_near_first(placement, Tokens{2, 2}, ids, Tokens{0, 1, 1, 1}, {}, slots);
  CHECK(slots == Tokens{0, 1, 1, 0});
  const std::vector<std::uint8_t> dropped{0, 1, 0, 0};
  slots_near_first(placement, Tokens{1, 2}, ids, Tokens{0, 1, 1, 1}, dropped, slots);
  CHECK(slots == Tokens{0, -1, 1, 1});
}

Experiment prefill(const Json& routing, const Json& set = Json::object()) {
  const auto file = source_dir() / "configs/quick.json";
  Json json = ConfigNode::from_file(file).json();
  json["workload"]["requests"] = 20;
  json["measurement"]["warmup"] = 0;
  json["placement"] = {{"type", "linear"}, {"replication", 1}};
  json["token_routing"] = {{"prefill", routing}, {"decode", "even"}};
  json["dispatch"] = {{"prefill", "ids_all_gather"}, {"decode", "all_to_all"}};
  json["charges"] = {{"token_routing", "none"}};
  json.merge_patch(set);
  TraceLibrary traces;
  return load_experiment(ConfigNode(json, file), traces);
}

double seconds_of(const StepCost& cost, Part part) {
  const auto& row = cost.parts[at(part)];
  return std::accumulate(row.begin(), row.end(), 0.0);
}

TEST_CASE("every copy costs an expert's bytes, and the step waits for them") {
  const Experiment experiment = prefill(quota(1));
  const Deployment& e = experiment.decode();
  const StepCost cost = explain_step(e, prefill_step(512)).cost;
  const double bytes = expert_bytes(e.model, e.parallel, e.precision).value() * e.parallel.moe_tp();
  Seconds brought{};
  std::int32_t copies = 0;
  for (const LayerOutcome& layer : cost.layers) {
    REQUIRE((layer.bringing.nvlink + layer.bringing.network).value() == bytes * layer.step_copies);
    brought += layer.bringing.time;
    copies += layer.step_copies;
  }
  REQUIRE(copies > 0);
  CHECK_THAT(seconds_of(cost, Part::rebalancing), WithinRel(brought.count(), 1e-12));
}

TEST_CASE("what probe copies is on the links, and no step waits for it") {
  const Json by_messages{{"dispatch", {{"prefill", "all_to_all"}}}};
  const Experiment experiment = prefill(probe(1), by_messages);
  const Deployment& e = experiment.decode();
  const StepCost cost = explain_step(e, prefill_step(512)).cost;
  const double bytes = expert_bytes(e.model, e.parallel, e.precision).value() * e.parallel.moe_tp();
  std::int32_t copies = 0;
  for (const LayerOutcome& layer : cost.layers) {
    REQUIRE((layer.bringing.nvlink + layer.bringing.network).value() == bytes * layer.step_copies);
    copies += layer.step_copies;
  }
  CHECK(copies > 0);
  CHECK(cost.layers[0].step_copies == 0);
  CHECK(seconds_of(cost, Part::rebalancing) == 0);
  const StepCost even = explain_step(prefill("even", by_messages), prefill_step(512)).cost;
  CHECK(seconds_of(cost, Part::experts) < seconds_of(even, Part::experts));
}

TEST_CASE("where no copy is worth it, quota is the even split") {
  const auto cost = [](const Json& routing) {
    return explain_step(prefill(routing), prefill_step(512)).cost;
  };
  const StepCost none = cost(quota(1000000000));
  CHECK(none.total == cost("even").total);
  CHECK(seconds_of(none, Part::rebalancing) == 0);
  CHECK(cost(quota(1)).total != none.total);
}

TEST_CASE("planning is charged though nothing is replicated") {
  const Json charged{{"charges", {{"token_routing", "measured"}}}};
  const auto cost = [&](const Json& routing, const Json& set) {
    return explain_step(prefill(routing, set), prefill_step(512)).cost;
  };
  const StepCost planned = cost(quota(1000000000), charged);
  const double layers = static_cast<double>(planned.layers.size());
  CHECK_THAT(seconds_of(planned, Part::token_routing), WithinRel(73e-6 * layers, 1e-9));
  CHECK(seconds_of(cost("even", charged), Part::token_routing) == 0);
}

TEST_CASE("the room of copies is counted once, not for each layer") {
  const auto memory = [](const Json& routing) { return prefill(routing).decode().memory; };
  const Experiment experiment = prefill("even");
  const Deployment& e = experiment.decode();
  const Bytes expert = expert_bytes(e.model, e.parallel, e.precision);
  REQUIRE(e.model.moe_layers() > 1);
  CHECK_THAT((memory(quota(1024, 5)).replicas - memory("even").replicas) / expert,
             WithinRel(5.0, 1e-9));
  CHECK_THAT((memory("even").kv - memory(quota(1024, 5)).kv) / expert, WithinRel(5.0, 1e-6));
}

TEST_CASE("the report counts copies and their bytes, and says nothing where there are none") {
  const OrderedJson experts = run(prefill(quota(1))).document()["experts"];
  REQUIRE(experts.contains("step_copies_mean"));
  const Experiment experiment = prefill("even");
  const Deployment& e = experiment.decode();
  const double bytes = expert_bytes(e.model, e.parallel, e.precision).value();
  CHECK_THAT(experts["step_copy_bytes_mean"].get<double>(),
             WithinRel(experts["step_copies_mean"].get<double>() * bytes, 1e-9));
  CHECK_FALSE(run(prefill("even")).document()["experts"].contains("step_copies_mean"));
}

TEST_CASE("copies of a step do not go with experts below HBM") {
  const Json below{{"expert_memory",
                    {{"type", "lru"},
                     {"slots_per_layer", 1},
                     {"host", {{"bandwidth", "50 GB/s"}, {"latency", "10 us"}, {"source", "x"}}}}}};
  CHECK_THAT(config_error([&] { prefill(quota(1), below); }),
             Catch::Matchers::Contains("not modelled with experts below HBM"));
}

}  // namespace

}  // namespace moesim::test_step_copies
