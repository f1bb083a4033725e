// SPDX-License-Identifier: Apache-2.0
// How much does an expert take, what becomes of the rest, and is every selection accounted for?
#include <cmath>
#include <numeric>

#include "hardware/rng.hpp"
#include "sim/serving/simulator.hpp"
#include "tests/support.hpp"

namespace moesim::test_capacity {
namespace {

using test::WithinAbs;

std::unique_ptr<CapacityRule> rule(const Json& node) {
  return capacity_rules().make(ConfigNode(node, "test"));
}

// Tokens of one rank after the other, `per_rank` on each.
LayerChoices choices_of(std::vector<std::uint16_t> ids, std::size_t k, std::size_t per_rank) {
  LayerChoices choices;
  choices.ids = std::move(ids);
  for (std::size_t t = 0; t < choices.ids.size() / k; ++t) {
    choices.source_rank.push_back(static_cast<std::int32_t>(t / per_rank));
  }
  choices.source_gpu = choices.source_rank;
  return choices;
}

struct Limited {
  LayerChoices choices;
  std::vector<std::int32_t> tokens;
  CapacityTally tally;
};

Limited limit(const Json& node, LayerChoices choices, std::size_t experts,
              std::vector<DelayedSelection>& backlog) {
  Limited limited{std::move(choices), std::vector<std::int32_t>(experts), {}};
  limit_choices(*rule(node), limited.choices, backlog, limited.tokens, limited.tally);
  return limited;
}

Limited limit(const Json& node, LayerChoices choices, std::size_t experts) {
  std::vector<DelayedSelection> backlog;
  return limit(node, std::move(choices), experts, backlog);
}

// k distinct experts for each token, all equally likely.
std::vector<std::uint16_t> uniform_ids(std::size_t tokens, std::size_t k, std::size_t experts,
                                       Rng& rng) {
  std::vector<std::uint16_t> deck(experts), ids;
  std::iota(deck.begin(), deck.end(), std::uint16_t{0});
  for (std::size_t t = 0; t < tokens; ++t) {
    for (std::size_t j = 0; j < k; ++j) {
      std::swap(deck[j], deck[j + rng.below(experts - j)]);
      ids.push_back(deck[j]);
    }
  }
  return ids;
}

// E[(X - C)+] / mu with X ~ Poisson(mu): what uniform routing loses.
double poisson_loss(double mu, std::int32_t capacity) {
  double probability = std::exp(-mu), loss = 0;
  for (int x = 1; x < 400; ++x) {
    probability *= mu / x;
    if (x > capacity) loss += (x - capacity) * probability;
  }
  return loss / mu;
}

TEST_CASE("oracle capacity_factor: capacities, who is dropped, and how much of uniform routing") {
  if (!test::has_shared()) {
    WARN("skipped: ../shared is absent");
    return;
  }
  const Json oracle =
      ConfigNode::from_file(test::shared_dir() / "oracles/capacity_factor.json").json();
  for (const Json& one : oracle.at("cases")) {
    CAPTURE(one.dump());
    CHECK(expert_capacity(std::stod(one.at("cf").get<std::string>()), one.at("k"), one.at("B"),
                          one.at("E")) == one.at("capacity"));
  }

  const Json& fcfs = oracle.at("fcfs");
  std::vector<std::uint16_t> ids;
  for (const Json& token : fcfs.at("assignments")) {
    for (const Json& id : token) ids.push_back(id);
  }
  // C = 3 = ceil(1 * 2 * 6 / 4)
  const Limited limited = limit({{"type", "drop"}, {"factor", 1}}, choices_of(ids, 2, 6), 4);
  Json dropped = Json::array();
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (limited.choices.dropped[i] != 0) dropped.push_back({i / 2, i % 2});
  }
  CHECK(dropped == fcfs.at("dropped_token_slot"));

  const Json& table = oracle.at("poisson_drop_percent");
  const auto means = table.at("mean tokens per expert").get<std::vector<std::size_t>>();
  Rng rng(5, "test/capacity");
  for (const auto& [column, losses] : table.items()) {
    if (column.rfind("cf", 0) != 0) continue;
    const double factor = std::stod(column.substr(2));
    for (std::size_t i = 0; i < means.size(); ++i) {
      CAPTURE(column, means[i]);
      const double expected = losses[i];
      // 1024 experts, top-8: as good as Poisson.
      const std::int32_t capacity = expert_capacity(factor, 8, means[i] * 128, 1024);
      CHECK_THAT(100 * poisson_loss(double(means[i]), capacity), WithinAbs(expected, .00501));
      if (means[i] > 16) continue;
      const Limited drawn =
          limit({{"type", "drop"}, {"factor", factor}},
                choices_of(uniform_ids(means[i] * 128, 8, 1024, rng), 8, 1 << 20), 1024);
      CHECK_THAT(100 * double(drawn.tally.dropped) / double(drawn.tally.selections),
                 WithinAbs(expected, 3));
    }
  }
}

TEST_CASE("a rank's own capacity comes from its own tokens") {
  // 2 ranks of 2 tokens, 4 experts, top-1: C = ceil(1 * 2 / 4) = 1 on each rank, ceil(4 / 4) = 1
  // for all.
  const std::vector<std::uint16_t> ids{0, 0, 0, 1};
  Json drop{{"type", "drop"}, {"factor", 1}};
  CHECK(limit(drop, choices_of(ids, 1, 2), 4).choices.dropped ==
        std::vector<std::uint8_t>{0, 1, 1, 0});
  drop["scope"] = "per_source_rank";
  CHECK(limit(drop, choices_of(ids, 1, 2), 4).choices.dropped ==
        std::vector<std::uint8_t>{0, 1, 0, 0});
}

TEST_CASE("who finds no room goes to the most wanted expert that has some") {
  // Expert 0 is wanted four times, 1 and 3 twice, 2 never.
  const std::vector<std::uint16_t> ids{0, 1, 0, 3, 0, 3, 0, 1};
  const Limited limited = limit({{"type", "reroute"}, {"factor", .5}}, choices_of(ids, 2, 4), 4);
  // C = ceil(.5 * 2 * 4 / 4) = 1: 0 1 | x 3 | x x | x x; rerouted in order: token 1 to 2, then
  // no expert has room.
  CHECK(limited.choices.ids == std::vector<std::uint16_t>{0, 1, 2, 3, 0, 3, 0, 1});
  CHECK(limited.tally.rerouted == 1);
  CHECK(limited.tally.dropped == 4);
  CHECK(limited.tokens == std::vector<std::int32_t>{1, 1, 1, 1});
}

TEST_CASE("more may be dropped of what waited than a small step selects, and is a share of both") {
  std::vector<DelayedSelection> backlog;
  const Json delay{{"type", "delay"}, {"factor", .5}};
  limit(delay, choices_of({0, 0, 0, 0, 0, 0, 0, 0}, 1, 1), 2, backlog);
  const Limited small = limit(delay, choices_of({1}, 1, 1), 2, backlog);
  CHECK(small.tally.selections == 1);
  CHECK(small.tally.waited == 6);  // two of eight had room
  CHECK(small.tally.dropped == 5);
  CHECK(small.tally.decided() == 7);
}

TEST_CASE("a delayed selection comes first in the next step, and only there") {
  // Top-1, 2 experts, C = 1 with two tokens.
  const Json delay{{"type", "delay"}, {"factor", 1}};
  std::vector<DelayedSelection> backlog;
  const Limited first = limit(delay, choices_of({0, 0}, 1, 1), 2, backlog);
  CHECK(first.tally.delayed == 1);
  REQUIRE(backlog.size() == 1);
  CHECK(backlog[0].source_gpu == 1);
  const Limited second = limit(delay, choices_of({0, 1}, 1, 1), 2, backlog);
  // It takes the place of expert 0, so that the first token waits.
  CHECK(second.tally.resumed == 1);
  CHECK(second.tally.delayed == 1);
  CHECK(second.choices.source_gpu == std::vector<std::int32_t>{0, 1, 1});
  CHECK(second.choices.dropped == std::vector<std::uint8_t>{1, 0, 0});
  CHECK(second.tokens == std::vector<std::int32_t>{1, 1});
}

TEST_CASE("a selection that overflows twice is dropped") {
  const Json delay{{"type", "delay"}, {"factor", 1}};
  std::vector<DelayedSelection> backlog{{0, 0, 0}, {0, 0, 0}};
  const Limited limited = limit(delay, choices_of({1, 1}, 1, 1), 2, backlog);
  CHECK(limited.tally.resumed == 1);
  CHECK(limited.tally.dropped == 1);
}

TEST_CASE("every selection runs once, waits or is dropped, and no expert takes more than it may") {
  Rng rng(9, "test/capacity");
  for (const char* type : {"drop", "reroute", "delay"}) {
    for (const char* scope : {"global", "per_source_rank"}) {
      CAPTURE(type, scope);
      std::vector<DelayedSelection> backlog;
      for (int step = 0; step < 30; ++step) {
        const std::size_t tokens = 4 + rng.below(60);
        std::vector<std::uint16_t> ids = uniform_ids(tokens, 4, 16, rng);
        for (std::size_t t = 0; t < tokens; t += 3) ids[t * 4] = 7;  // a hot one
        const auto waiting = std::ssize(backlog);
        const Limited l = limit({{"type", type}, {"factor", 1.2}, {"scope", scope}},
                                choices_of(ids, 4, tokens / 4), 16, backlog);
        const auto ran = std::accumulate(l.tokens.begin(), l.tokens.end(), std::int64_t{0});
        REQUIRE(l.tally.selections == std::ssize(ids));
        REQUIRE(ran + l.tally.dropped + l.tally.delayed == l.tally.selections + waiting);
        REQUIRE(std::ssize(backlog) == l.tally.delayed);
        REQUIRE(l.tally.waited == waiting);
        if (std::string(scope) == "global") {
          const auto capacity = expert_capacity(1.2, 4, tokens, 16);
          REQUIRE(*std::max_element(l.tokens.begin(), l.tokens.end()) <= capacity);
        }
        REQUIRE(std::is_sorted(l.choices.source_gpu.begin(), l.choices.source_gpu.end()));
      }
    }
  }
}

Experiment quick(const Json& set) {
  const auto file = test::source_dir() / "configs/quick.json";
  Json json = ConfigNode::from_file(file).json();
  json["workload"]["requests"] = 24;
  json["workload"]["lengths"] = {{"type", "fixed"}, {"prompt", 64}, {"output", 12}};
  json["workload"]["gating"]["requests"] = 24;
  json["measurement"]["warmup"] = 0;
  json["token_routing"]["decode"] = "even";
  json["dispatch"]["decode"] = "all_to_all";
  json.merge_patch(set);
  TraceLibrary traces;
  return load_experiment(ConfigNode(json, file), traces);
}

TEST_CASE("room for everybody is no capacity at all, for every way to route") {
  for (const char* routing : {"even", "vllm", "trtllm"}) {
    CAPTURE(routing);
    Json set{{"token_routing", {{"decode", routing}}}};
    const OrderedJson dropless = run(quick(set)).document();
    set["capacity"] = {{"type", "drop"}, {"factor", 1000}};
    const OrderedJson roomy = run(quick(set)).document();
    CHECK(roomy["metrics"] == dropless["metrics"]);
    CHECK(roomy["communication"] == dropless["communication"]);
    CHECK(roomy["experts"]["dropped"] == 0);
  }
}

TEST_CASE("dropped selections send no bytes and compute nothing") {
  for (const char* routing : {"even", "vllm"}) {
    for (const char* dispatch : {"all_to_all", "low_latency"}) {
      CAPTURE(routing, dispatch);
      Json set{{"token_routing", {{"decode", routing}}}, {"dispatch", {{"decode", dispatch}}}};
      const OrderedJson whole = run(quick(set)).document();
      set["capacity"] = {{"type", "drop"}, {"factor", .5}};
      const OrderedJson half = run(quick(set)).document();
      CHECK(half["experts"]["dropped"].get<double>() > .4);
      const auto bytes = [](const OrderedJson& report) {
        return report["communication"]["dispatch"]["nvlink_bytes"].get<double>();
      };
      const auto tokens = [](const OrderedJson& report) {
        return report["experts"]["tokens_mean"].get<double>();
      };
      CHECK(bytes(half) < .8 * bytes(whole));
      CHECK(tokens(half) < .6 * tokens(whole));
    }
  }
}

TEST_CASE("the report names the shares of what was dropped, rerouted and delayed") {
  const auto experts = [](const char* type) {
    return run(quick({{"capacity", {{"type", type}, {"factor", 1}}}})).document()["experts"];
  };
  const OrderedJson drop = experts("drop"), reroute = experts("reroute"), delay = experts("delay");
  CHECK(drop["dropped"].get<double>() > 0);
  CHECK(reroute["rerouted"].get<double>() > 0);
  CHECK(reroute["dropped"].get<double>() < drop["dropped"].get<double>());
  CHECK(delay["delayed"].get<double>() > 0);
  CHECK(delay["dropped"].get<double>() < drop["dropped"].get<double>());
}

}  // namespace
}  // namespace moesim::test_capacity
