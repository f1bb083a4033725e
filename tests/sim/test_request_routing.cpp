// SPDX-License-Identifier: Apache-2.0
// Does every router decide as its rule says, to the tie-break?
#include <set>

#include <fmt/format.h>

#include "hardware/rng.hpp"
#include "sim/report/metric_catalogue.hpp"
#include "sim/request_routing/candidate_ranks.hpp"
#include "sim/request_routing/expert_history.hpp"
#include "sim/request_routing/horizon.hpp"
#include "sim/request_routing/request_router.hpp"
#include "sim/request_routing/scores.hpp"
#include "sim/serving/simulator.hpp"
#include "sim/step/two_term.hpp"
#include "tests/support.hpp"
#include "tests/tiny_experiment.hpp"
#include "tests/trace_meta.hpp"
#include "tools/lab/reproduce/router_testbed.hpp"

namespace moesim::test_request_routing {
namespace {

using test::config;
using test::WithinAbs;
using test::WithinRel;

std::unique_ptr<RequestRouter> router(const std::string& json, int ranks, int experts = 1,
                                      int groups = 1) {
  RouterContext context;
  context.ranks = ranks;
  context.experts = experts;
  context.groups = groups;
  return request_routers().make(config(json), context)();
}

// A known answer, or null with a visible warning.
Json oracle(const std::string& name) {
  const auto file = test::shared_dir() / "oracles" / (name + ".json");
  if (!test::has_shared()) {
    WARN("skipped: ../shared is absent");
    return Json::object();
  }
  return ConfigNode::from_file(file).json();
}

// Ranks of these loads, without requests.
std::vector<RankLoad> ranks_of(const std::vector<std::int64_t>& loads) {
  std::vector<RankLoad> ranks;
  for (const std::int64_t load : loads) {
    RankLoad& rank = ranks.emplace_back();
    rank.kv_tokens = load;
    rank.rank = static_cast<std::int32_t>(ranks.size()) - 1;
    rank.seats = 100;
    rank.total_blocks = 1'000'000;
  }
  return ranks;
}

// Ranks of these requests; `requests` must outlive them.
std::vector<RankLoad> ranks_of(const std::vector<std::vector<RankRequest>>& requests) {
  std::vector<std::int64_t> loads;
  for (const auto& on_rank : requests) {
    std::int64_t load = 0;
    for (const RankRequest& r : on_rank) load += r.prompt_tokens + r.generated;
    loads.push_back(load);
  }
  std::vector<RankLoad> ranks = ranks_of(loads);
  for (std::size_t g = 0; g < ranks.size(); ++g) ranks[g].requests = requests[g];
  return ranks;
}

Assignment decide(RequestRouter& router, const std::vector<RankLoad>& ranks, PendingRequest request,
                  std::span<const std::int32_t> finished = {}, std::int64_t publication = 0) {
  std::vector<Assignment> assignments;
  router.route({{}, {&request, 1}, ranks, publication, finished}, assignments);
  return assignments.at(0);
}

PendingRequest prompt(std::int32_t tokens) {
  PendingRequest request;
  request.prompt_tokens = tokens;
  return request;
}

// The workers of oracles 05 and 06, and the output lengths seen before.
struct History {
  std::vector<std::int32_t> outputs;
  std::vector<std::vector<RankRequest>> requests;
  explicit History(const Json& o) : outputs(o["history_outputs"].get<std::vector<std::int32_t>>()) {
    for (const Json& worker : o["workers"]) {
      auto& on_rank = requests.emplace_back();
      for (const Json& r : worker) {
        RankRequest& request = on_rank.emplace_back();
        request.prompt_tokens = r["prompt"];
        request.generated = r["age"];
      }
    }
  }
};

TEST_CASE("a step of all ranks takes as long as the one with the most tokens: known answers") {
  const Json o = oracle("router_01_step_time");
  if (o.empty()) return;
  for (const Json& c : o["cases"]) {
    CHECK(two_term_step(c["a"], c["b"], c["L"].get<std::vector<double>>()) == c["t"]);
  }
}

TEST_CASE("br0 scores a rank by how much less all ranks idle at the barrier: known answers") {
  const Json o = oracle("router_02_br0_fscore");
  if (o.empty()) return;
  for (const Json& c : o["seed_cases"]) CHECK(barrier_gain(c["s"], c["m"], c["G"]) == c["F"]);
  for (const Json& c : o["decisions"]) {
    const auto loads = c["L"].get<std::vector<std::int64_t>>();
    const std::int64_t most = *std::max_element(loads.begin(), loads.end());
    const auto ranks = std::ssize(loads);
    for (std::size_t g = 0; g < loads.size(); ++g)
      CHECK(barrier_gain(c["s"], most - loads[g], ranks) == c["F"][g]);
    const auto br0 = router("\"br0\"", static_cast<int>(ranks));
    const Assignment a = decide(*br0, ranks_of(loads), prompt(c["s"]));
    CHECK(a.rank == c["pick"]);
    CHECK(a.score == c["F"][c["pick"].get<std::size_t>()]);
  }
}

TEST_CASE("a rank is projected to the tokens of requests that are still on it then: known answer") {
  const Json o = oracle("router_03_brh_projection");
  if (o.empty()) return;
  std::vector<std::vector<RankRequest>> requests(2);  // the second rank is empty
  for (const Json& r : o["requests"]) {
    RankRequest& request = requests[0].emplace_back();
    request.prompt_tokens = r["prompt"];
    request.generated = r["done"];
    request.output_tokens = request.generated + r["remaining"].get<std::int32_t>();
  }
  // A request larger than all loads overflows the empty rank by s - L(h).
  constexpr std::int32_t s = 100'000;
  for (const auto& [h, load] : o["load"].items()) {
    const auto brh =
        router(fmt::format(R"({{"type": "brh", "points": [{}], "gamma": 1, "beta": 1}})", h), 2);
    CHECK(s - decide(*brh, ranks_of(requests), prompt(s)).score == load);
  }
}

TEST_CASE("brh sums what a prompt exceeds the projected margins by, discounted: known answer") {
  const Json o = oracle("router_04_brh_penalty");
  if (o.empty()) return;
  // Loads of which the margins are the oracle's.
  HorizonPoints points;
  std::vector<double> loads;
  for (std::size_t k = 0; k < o["A"].size(); ++k) {
    points.h.push_back(o["A"][k]["h"]);
    points.weight.push_back(o["beta"].get<double>() *
                            std::pow(o["gamma"].get<double>(), points.h.back()));
    loads.push_back(5000 - o["A"][k]["margin"].get<double>());
    loads.push_back(5000 - o["B"][k]["margin"].get<double>());
  }
  const auto scores = overflow(points, loads, ranks_of({0, 0}), o["s"], false);
  CHECK_THAT(scores[0], WithinRel(o["total_A"].get<double>(), 1e-14));
  CHECK_THAT(scores[1], WithinRel(o["total_B"].get<double>(), 1e-14));
  CHECK(scores[1] < scores[0]);

  // Every step h = 0..50, rank A of the projection's three requests, B between its four points.
  points = {};
  loads.clear();
  const Json a = oracle("router_03_brh_projection")["load"];
  const auto b = [](int h) {
    const double at[] = {4000, 3900, 3800, 3500}, where[] = {0, 5, 10, 50};
    std::size_t i = h <= 5 ? 0 : h <= 10 ? 1 : 2;
    return at[i] + (at[i + 1] - at[i]) * (h - where[i]) / (where[i + 1] - where[i]);
  };
  for (int h = 0; h <= 50; ++h) {
    points.h.push_back(h);
    points.weight.push_back(8 * std::pow(.9, h));
    loads.push_back(a[std::to_string(h)]);
    loads.push_back(b(h));
  }
  const Json& full = o["full_sum_h0_50"]["B linear between the 4 points"];
  const auto sums = overflow(points, loads, ranks_of({0, 0}), 500, false);
  CHECK_THAT(sums[0], WithinRel(full["A"].get<double>(), 1e-12));
  CHECK_THAT(sums[1], WithinRel(full["B"].get<double>(), 1e-12));
}

TEST_CASE("overflow weighs each moment by how likely the prompt is still there: known answers") {
  const Json o = oracle("router_05_overflow_integral");
  if (o.empty()) return;
  const History history(o);
  const std::vector<RankLoad> ranks = ranks_of(history.requests);
  OutputLengths outputs;
  outputs.catch_up(history.outputs);
  const std::vector<double> survival{1,      7 / 8., 5 / 8., 5 / 8., 1 / 4., 1 / 4.,
                                     1 / 4., 1 / 4., 1 / 8., 1 / 8., 1 / 8., 1 / 8.,
                                     1 / 8., 1 / 8., 1 / 8., 1 / 8., 0};
  HorizonPoints points;
  for (int h = 0; h <= 16; ++h) {
    CHECK(outputs.survival(h) == survival[static_cast<std::size_t>(h)]);
    points.h.push_back(h);
    points.weight.push_back(1);
  }
  const std::vector<double> loads = project_survivors(points.h, ranks, outputs);
  for (std::size_t g = 0; g < 3; ++g) CHECK(loads[g] == o["L0"][g]);
  for (const auto& [s, c] : o["cases"].items()) {
    const auto scores = overflow(survived(points, outputs), loads, ranks, std::stoi(s), true);
    for (std::size_t g = 0; g < 3; ++g)
      CHECK_THAT(scores[g], WithinRel(c["float"][g].get<double>(), 1e-12));
    const auto made = router("\"overflow\"", 3);
    const Assignment a = decide(*made, ranks, prompt(std::stoi(s)), history.outputs);
    CHECK(a.rank == c["pick"]);
    CHECK_THAT(a.score, WithinRel(c["float"][c["pick"].get<std::size_t>()].get<double>(), 1e-12));
  }
}

TEST_CASE("fast_phi takes the integral at few points, by trapezoids: known answer") {
  const Json o = oracle("router_06_fast_phi");
  if (o.empty()) return;
  const History history(o);
  const std::vector<RankLoad> ranks = ranks_of(history.requests);
  OutputLengths outputs;
  outputs.catch_up(history.outputs);
  const HorizonPoints points = trapezoid({0, 2, 2, 4, 8, 15});
  CHECK(points.h == o["points"].get<std::vector<std::int32_t>>());
  CHECK(points.weight == std::vector<double>{1, 2, 3, 5.5, 3.5});
  const auto scores = overflow(survived(points, outputs),
                               project_survivors(points.h, ranks, outputs), ranks, o["s"], true);
  for (std::size_t g = 0; g < 3; ++g)
    CHECK_THAT(scores[g], WithinRel(o["score"][g].get<double>(), 1e-12));
  const auto five = router(R"({"type": "fast_phi", "points": [0, 2, 4, 8, 15]})", 3);
  const Assignment a = decide(*five, ranks, prompt(o["s"]), history.outputs);
  CHECK(a.rank == o["pick"]);
  CHECK_THAT(a.score, WithinRel(scores[1], 1e-14));
  const auto one = router(R"({"type": "fast_phi", "quantiles": []})", 3);
  CHECK(decide(*one, ranks, prompt(o["s"]), history.outputs).score == o["K1"]["score"][1]);
}

TEST_CASE("vllm counts a waiting request four times and a running one once: known answers") {
  const Json o = oracle("router_07_vllm_jsq");
  if (o.empty()) return;
  for (const Json& c : o["cases"]) {
    const auto n = c["counts"].size();
    std::vector<RankLoad> ranks = ranks_of(std::vector<std::int64_t>(n));
    for (std::size_t g = 0; g < n; ++g) {
      ranks[g].published_waiting = c["counts"][g][0];
      ranks[g].published_running = c["counts"][g][1];
    }
    // Any start can be had by turning the ranks; from clients it is ranks * client / clients.
    const std::int64_t clients = c["client_count"];
    const auto start = c["start"].get<std::size_t>();
    std::rotate(ranks.begin(), ranks.begin() + static_cast<std::ptrdiff_t>(start), ranks.end());
    const auto vllm =
        router(fmt::format(R"({{"type": "vllm", "clients": {}}})", clients), static_cast<int>(n));
    const Json sequence = c.contains("sequence") ? c["sequence"] : Json::array({c["pick"]});
    for (std::size_t i = 0; i < sequence.size(); ++i) {
      const Assignment a = decide(*vllm, ranks, prompt(1));
      CHECK(a.rank == sequence[i]);
      if (c.contains("scores")) CHECK(a.score == c["scores"][static_cast<std::size_t>(a.rank)]);
    }
  }
}

TEST_CASE("a vllm front end scans from its own start") {
  std::vector<RankLoad> ranks = ranks_of(std::vector<std::int64_t>(4));
  const auto second = router(R"({"type": "vllm", "clients": 2, "client": 1})", 4);
  CHECK(decide(*second, ranks, prompt(1)).rank == 2);
  CHECK(decide(*second, ranks, prompt(1)).rank == 3);
  // New statistics: what it added itself is forgotten.
  ranks[2].published_waiting = 1;
  CHECK(decide(*second, ranks, prompt(1), {}, 1).rank == 3);
}

TEST_CASE("since 0.26 ties of a vllm front end go to the next rank each time") {
  std::vector<RankLoad> ranks = ranks_of(std::vector<std::int64_t>(3));
  const auto rotating = router(R"({"type": "vllm", "rotate_ties": true})", 3);
  const auto fixed = router(R"({"type": "vllm"})", 3);
  // What was routed before is forgotten with each publication.
  for (int publication = 1; publication <= 4; ++publication) {
    CHECK(decide(*rotating, ranks, prompt(1), {}, publication).rank == (publication - 1) % 3);
    CHECK(decide(*fixed, ranks, prompt(1), {}, publication).rank == 0);
  }
  ranks[0].published_waiting = 1;  // no tie: the least loaded ones
  CHECK(decide(*rotating, ranks, prompt(1), {}, 5).rank == 1);
}

TEST_CASE("dynamo_kv counts a block in a tier as three quarters of one in HBM") {
  // 32 blocks: 8 HBM and 24 in the tier leave 32 - 8 - 18 = 6 on rank 0; 25 in HBM leave 7 on
  // rank 1.
  const std::vector<RankLoad> ranks = ranks_of(std::vector<std::int64_t>(2));
  const std::vector<CacheHit> hits{{.blocks = 8, .loads = 24}, {.blocks = 25}};
  PendingRequest request = prompt(512);
  request.hits = hits;
  const auto pick = [&](const char* options) {
    return decide(*router(fmt::format(R"({{"type": "dynamo_kv"{}}})", options), 2), ranks, request);
  };
  CHECK(pick("").rank == 0);
  CHECK(pick("").score == 6);
  CHECK(pick(R"(, "tier_credit": 0.7)").rank == 1);
  CHECK(pick(R"(, "tier_credit": 0)").score == 7);
  CHECK(pick(R"(, "tier_credit": 1)").score == 0);
}

TEST_CASE("sticky sends a session where its first request went, while the rank is up: by hand") {
  const std::vector<RankLoad> ranks = ranks_of({30, 10, 20});
  const auto sticky = router(R"({"type": "sticky", "ttl": "10 s"})", 3);
  const auto turn = [](std::uint32_t session, Seconds idle = {}) {
    PendingRequest request = prompt(5);
    request.kin = session;
    request.kin_idle = to_duration(idle);
    return request;
  };
  const auto rank_of = [&](const PendingRequest& request, const std::vector<RankLoad>& now) {
    return decide(*sticky, now, request).rank;
  };
  CHECK(rank_of(turn(7), ranks) == 1);  // least_kv
  const std::vector<RankLoad> later = ranks_of({0, 500, 20});
  CHECK(rank_of(turn(7), later) == 1);
  CHECK(rank_of(turn(8), later) == 0);
  CHECK(rank_of(prompt(5), later) == 0);  // of no session
  CHECK(rank_of(turn(7, Seconds(10)), later) == 1);
  CHECK(rank_of(turn(7, Seconds(10.001)), later) == 0);  // its bond has lapsed; now it has another
  CHECK(rank_of(turn(7), ranks_of({900, 0, 0})) == 0);
  // Rank 0 is down, then back: the session stays where it went meanwhile.
  CHECK(rank_of(turn(7), {later[1], later[2]}) == 2);
  CHECK(rank_of(turn(7), later) == 2);
}

TEST_CASE("sticky shows another router one request of each session that has no rank yet") {
  // Round robin would send both requests of session 3 to ranks of their own.
  const auto sticky = router(R"({"type": "sticky", "else": "round_robin"})", 4);
  std::vector<PendingRequest> pending(3, prompt(5));
  pending[0].kin = pending[1].kin = 3;
  pending[2].kin = 4;
  const std::vector<RankLoad> ranks = ranks_of({0, 0, 0, 0});
  std::vector<std::pair<std::uint64_t, std::int32_t>> sent;  // (session, rank)
  while (!pending.empty()) {
    std::vector<Assignment> assignments;
    sticky->route({{}, pending, ranks}, assignments);
    REQUIRE(assignments.size() == 1);
    const auto which = pending.begin() + static_cast<std::ptrdiff_t>(assignments[0].pending);
    sent.emplace_back(*which->kin, assignments[0].rank);
    pending.erase(which);
  }
  CHECK(sent == std::vector<std::pair<std::uint64_t, std::int32_t>>{{3, 0}, {3, 0}, {4, 1}});
  CHECK_THROWS_WITH(router(R"({"type": "sticky", "else": {"type": "sticky"}})", 4),
                    Catch::Contains("a sticky router within another one decides nothing"));
}

TEST_CASE("dynamo_kv weighs uncached prompt blocks against blocks in use: known answer") {
  const Json o = oracle("router_08_dynamo_kv");
  if (o.empty()) return;
  // 512 tokens, 32 blocks: the uncached part is the oracle's prefill, the queues are empty.
  std::vector<RankLoad> ranks = ranks_of(std::vector<std::int64_t>(3));
  std::vector<CacheHit> hits;
  for (std::size_t g = 0; g < 3; ++g) {
    const Json& worker = o["workers"][g];
    ranks[g].blocks = worker["decode_blocks"].get<std::int64_t>() - 32;
    hits.push_back({worker["cached_blocks"], 0});
    REQUIRE(512 - 16 * hits[g].blocks == worker["prefill_tokens"]);
  }
  // Rank 1's blocks: 18 + 32 would be 50.
  PendingRequest request = prompt(512);
  request.blocks = 32;
  request.hits = hits;
  for (const auto& [key, pick] : o["pick"].items()) {
    const auto made =
        router(fmt::format(R"({{"type": "dynamo_kv", "overlap_weight": {}}})", key.substr(2)), 3);
    const Assignment a = decide(*made, ranks, request);
    CHECK(a.rank == pick);
    CHECK(a.score == o["logits"][key][pick.get<std::size_t>()]);
  }
  const auto logits = o["logits"]["w=1"].get<std::vector<double>>();
  for (const double t : {.5, 1.0}) {
    const auto p = dynamo_probabilities(logits, t);
    for (std::size_t g = 0; g < 3; ++g)
      CHECK_THAT(p[g], WithinRel(o["softmax"][fmt::format("w=1,T={}", t)][g].get<double>(), 1e-12));
  }
  CHECK(dynamo_probabilities(std::vector<double>(4, 7), 1) ==
        o["equal"].get<std::vector<double>>());
  // Drawn, not computed: of 3,000 choices at T = 0.5 rank 2 gets 57 %, rank 1 8 %.
  const auto soft = router(R"({"type": "dynamo_kv", "temperature": 0.5})", 3);
  std::vector<int> count(3);
  for (int i = 0; i < 3000; ++i)
    ++count[static_cast<std::size_t>(decide(*soft, ranks, request).rank)];
  for (std::size_t g = 0; g < 3; ++g)
    CHECK_THAT(count[g] / 3000.0, WithinAbs(o["softmax"]["w=1,T=0.5"][g].get<double>(), .03));
  // Ties are drawn (dynamo#9516).
  const auto plain = router(R"({"type": "dynamo_kv"})", 3);
  const std::vector<CacheHit> misses(3);
  request.hits = misses;
  std::vector<int> drawn(3);
  for (int i = 0; i < 300; ++i)
    ++drawn[static_cast<std::size_t>(
        decide(*plain, ranks_of(std::vector<std::int64_t>(3)), request).rank)];
  for (const int times : drawn) CHECK(times > 60);
}

// Equal prompts of 64 blocks that wait on one rank, nothing of them cached.
TEST_CASE("dynamo_kv counts a prompt block once for all requests that wait for it") {
  const auto made = router(R"({"type": "dynamo_kv"})", 1);
  std::vector<BlockHash> hashes(64);
  std::iota(hashes.begin(), hashes.end(), 1);
  const std::vector<CacheHit> nothing(1);
  std::vector<RankRequest> waiting;
  const auto score = [&](std::uint32_t id) {
    std::vector<RankLoad> ranks = ranks_of(std::vector<std::int64_t>(1));
    ranks[0].waiting = std::ssize(waiting);
    ranks[0].blocks = 64 * std::ssize(waiting);
    ranks[0].requests = waiting;
    PendingRequest request = prompt(1024);
    request.id = id;
    request.blocks = 64;
    request.hashes = hashes;
    request.hits = nothing;
    const double logit = decide(*made, ranks, request).score;
    waiting.push_back({id, 1024, 0, 1, 1024});
    return logit;
  };
  // Prefill blocks of all, and 64 blocks that they share.
  CHECK(score(1) == 64 + 64);
  CHECK(score(2) == 2 * 64 + 64);
  CHECK(score(3) == 3 * 64 + 64);
  waiting.clear();  // all have left
  CHECK(score(4) == 64 + 64);
}

TEST_CASE("joint costs a rank by its cache hits, locality and load: known answers") {
  const Json o = oracle("router_09_joint_seed3");
  if (o.empty()) return;
  for (const Json& c : o["cases"]) {
    const auto locality = c["locality"].get<std::vector<double>>();
    const std::vector<RankLoad> ranks = ranks_of(c["load"].get<std::vector<std::int64_t>>());
    std::vector<CacheHit> hits;
    for (std::size_t g = 0; g < 3; ++g) {
      const double hit = c["kv_hit"][g];
      hits.push_back({static_cast<std::int64_t>(hit * c["prompt"].get<double>() / 16), 0});
      const JointTerms terms{c["prompt"], hit, locality[g], c["load"][g].get<double>(),
                             double(std::ranges::max(ranks, {}, &RankLoad::kv_tokens).kv_tokens)};
      CHECK(joint_seed_cost({}, terms, o["num_experts"]) == c["cost"][g]);
    }
    PendingRequest request = prompt(c["prompt"]);
    request.hits = hits;
    request.locality = locality;
    const auto joint = router(R"({"type": "joint", "scale": "seed"})", 3, o["num_experts"]);
    const Assignment a = decide(*joint, ranks, request);
    CHECK(a.rank == c["pick"]);
    CHECK(a.score == c["cost"][c["pick"].get<std::size_t>()]);
  }
}

TEST_CASE("cache_aware follows the longest match unless loads are apart: known answers") {
  const Json o = oracle("router_10_sglang_cache_aware");
  if (o.empty()) return;
  const CacheAwareLimits limits{o["cache_threshold"], o["abs"], o["rel"]};
  CHECK(limits.cache_threshold == CacheAwareLimits{}.cache_threshold);
  CHECK(limits.absolute == CacheAwareLimits{}.absolute);
  CHECK(limits.relative == CacheAwareLimits{}.relative);
  for (const Json& c : o["cases"]) {
    CHECK(cache_aware_choice(limits, c["load"].get<std::vector<std::int64_t>>(),
                             c["match"].get<std::vector<double>>(),
                             c["tree"].get<std::vector<std::int64_t>>()) == c["pick"]);
  }
  // Queues of 3, 1 and 2 requests; nothing matches, and the first tree is the smallest.
  const std::vector<std::int64_t> requests{3, 1, 2}, trees{0, 9, 9};
  const std::vector<double> none(3, 0.);
  CHECK(cache_aware_choice({}, requests, none, trees) == 0);
  CHECK(cache_aware_choice({.miss_by_load = true}, requests, none, trees) == 1);
}

TEST_CASE("least_kv picks the rank that adds least to the spread of loads: known answers") {
  const Json o = oracle("router_11_jsq_load");
  if (o.empty()) return;
  for (const Json& c : o["cases"]) {
    const auto loads = c["L"].get<std::vector<std::int64_t>>();
    const auto least_kv = router("\"least_kv\"", static_cast<int>(loads.size()));
    CHECK(decide(*least_kv, ranks_of(loads), prompt(c["s"])).rank == c["pick"]);
    // The identity: the rank picked is the one that adds least to sum (L - mean)^2.
    const auto growth = [&](std::size_t g) {
      double mean = 0, s = c["s"].get<double>();
      for (const auto load : loads) mean += double(load) / double(loads.size());
      return 2 * s * (double(loads[g]) - mean) + s * s * (1 - 1 / double(loads.size()));
    };
    for (std::size_t g = 0; g < loads.size(); ++g)
      CHECK(growth(c["pick"].get<std::size_t>()) <= growth(g));
  }
}

TEST_CASE("weights by survival and by a discount can choose different ranks: known answers") {
  const Json o = oracle("router_12_survival_vs_discount");
  if (o.empty()) return;
  for (const Json& c : o["cases"]) {
    HorizonPoints survival, discount;
    std::vector<double> loads;
    for (std::size_t k = 0; k < c["points"].size(); ++k) {
      const std::int32_t h = c["points"][k];
      survival.h.push_back(h);
      discount.h.push_back(h);
      survival.weight.push_back(o["seed_S"][std::to_string(h)]);
      discount.weight.push_back(std::pow(.9, h));
      CHECK_THAT(discount.weight.back(),
                 WithinRel(o["gamma_pow"][std::to_string(h)].get<double>(), 1e-12));
      // Margins that no rank has to be 0 for: a third, heavier rank sets the envelope.
      loads.push_back(1e6 - c["margins"]["A"][k].get<double>());
      loads.push_back(1e6 - c["margins"]["B"][k].get<double>());
      loads.push_back(1e6);
    }
    const auto by = [&](const HorizonPoints& points, const char* name) {
      const auto scores = overflow(points, loads, ranks_of({0, 0, 0}), c["s"], true);
      CHECK_THAT(scores[0], WithinRel(c[name]["A"].get<double>(), 1e-12));
      CHECK_THAT(scores[1], WithinRel(c[name]["B"].get<double>(), 1e-12));
      return scores[0] < scores[1] ? "A" : "B";
    };
    CHECK(by(discount, "discount") == c["discount_pick"]);
    CHECK(by(survival, "survival") == c["survival_pick"]);
  }
}

TEST_CASE("br0 one by one decides as least_kv, whatever the loads and the prompt") {
  Rng rng(1, "test/br0");
  const auto br0 = router("\"br0\"", 6), least_kv = router("\"least_kv\"", 6);
  for (int i = 0; i < 2000; ++i) {
    std::vector<std::int64_t> loads(6);
    for (auto& load : loads) load = static_cast<std::int64_t>(rng.below(1 + rng.below(200)));
    const auto s = static_cast<std::int32_t>(1 + rng.below(300));
    REQUIRE(decide(*br0, ranks_of(loads), prompt(s)).rank ==
            decide(*least_kv, ranks_of(loads), prompt(s)).rank);
  }
  // The article's bug: without the tie-break, the first of those that do not overflow.
  const auto bug = router(R"({"type": "br0", "tie_break": "lowest_rank"})", 3);
  CHECK(decide(*bug, ranks_of({500, 400, 1000}), prompt(100)).rank == 0);
}

TEST_CASE("brh with one point is br0, and a request that outlives its prediction stays a step") {
  std::vector<std::vector<RankRequest>> requests(2);
  requests[0] = {{0, 900, 100, 100}};  // its predicted output is already there
  requests[1] = {{1, 700, 100, 500}};
  const auto now = router(R"({"type": "brh", "points": [0]})", 2);
  CHECK(decide(*now, ranks_of(requests), prompt(300)).rank == 1);
  // From the next step on rank 0 is empty, and it stays so: with a far horizon it is preferred.
  const auto ahead = router(R"({"type": "brh", "horizon": 80, "gamma": 1})", 2);
  CHECK(decide(*ahead, ranks_of(requests), prompt(300)).rank == 0);
}

TEST_CASE("by survival a request outlives every horizon until outputs were seen") {
  std::vector<std::vector<RankRequest>> requests(2);  // the second rank is empty
  requests[0] = {{0, 900, 5, 500}};
  constexpr std::int32_t s = 100'000;
  const auto load_ahead = [&](int steps, const std::vector<std::int32_t>& finished) {
    const auto brh =
        router(fmt::format(R"({{"type": "brh", "predictor": "survival", "points": [{}], "gamma": 1,
                                "beta": 1}})",
                           steps),
               2);
    return s - decide(*brh, ranks_of(requests), prompt(s), finished).score;
  };
  CHECK(load_ahead(40, {}) == 905 + 40);
  CHECK(load_ahead(5000, {}) == 905 + 5000);
  // Outputs of 25: 20 more steps. If three of four go on to 45, 35 are expected, whatever the
  // horizon.
  CHECK(load_ahead(19, {25}) == 905 + 19);
  CHECK(load_ahead(20, {25}) == 0);
  CHECK(load_ahead(34, {25, 45, 45, 45}) == 905 + 34);
  CHECK(load_ahead(35, {25, 45, 45, 45}) == 0);
}

TEST_CASE("predictions of a given error are the same each time, and right without one") {
  std::vector<std::vector<RankRequest>> requests(2);
  for (std::uint32_t i = 0; i < 50; ++i) requests[0].push_back({i, 100, 10, 200});
  const auto at = [&](double error) {
    const auto brh = router(
        fmt::format(R"({{"type": "brh", "points": [150], "gamma": 1, "beta": 1, "error": {}}})",
                    error),
        2);
    const double once = decide(*brh, ranks_of(requests), prompt(100'000)).score;
    CHECK(decide(*brh, ranks_of(requests), prompt(100'000)).score == once);
    return std::lround((100'000 - once) / 260);  // requests still there in 150 steps
  };
  CHECK(at(0) == 50);
  CHECK(at(.5) < 45);
  CHECK(at(.5) > 5);
}

TEST_CASE("survival knows nothing beyond the longest output, and quantiles are lengths seen") {
  OutputLengths outputs;
  outputs.catch_up(std::vector<std::int32_t>{10, 20, 30, 40});
  CHECK(outputs.mean() == 25);
  CHECK(outputs.survival(0, 40) == 0);
  CHECK(outputs.survival(5, 30) == 1);
  CHECK(outputs.survival(10, 30) == 0);
  CHECK(outputs.quantile(.25) == 10);
  CHECK(outputs.quantile(.5) == 20);
  CHECK(outputs.quantile(.51) == 30);
  CHECK(outputs.quantile(1) == 40);
  // Age 20: half of those left end at 30, half at 40.
  CHECK(outputs.remaining(20) == 15);
  CHECK(outputs.remaining(40) == 0);
}

TEST_CASE("fast_phi breaks its ties by the drift, and with a large one goes to the lightest") {
  std::vector<std::vector<RankRequest>> requests(3);
  requests[0] = {{0, 5000, 0}};
  requests[1] = {{1, 3000, 0}};
  requests[2] = {{2, 1000, 0}};
  const std::vector<std::int32_t> finished{10, 20, 30};
  const auto drift = router(R"({"type": "fast_phi", "drift": 1})", 3);
  const Assignment a = decide(*drift, ranks_of(requests), prompt(100), finished);
  CHECK(a.rank == 2);
  CHECK(a.score < 0);
}

TEST_CASE("power_of_two never takes the most loaded of distinct loads, and round_robin skips") {
  const auto two = router("\"power_of_two\"", 3);
  std::set<std::int32_t> seen;
  for (int i = 0; i < 100; ++i) seen.insert(decide(*two, ranks_of({5, 9, 7}), prompt(1)).rank);
  CHECK(seen == std::set<std::int32_t>{0, 2});
  CHECK(decide(*router("\"power_of_two\"", 1), ranks_of(std::vector<std::int64_t>{5}), prompt(1))
            .rank == 0);
  const auto turns = router("\"round_robin\"", 3);
  std::vector<RankLoad> ranks = ranks_of({0, 0, 0});
  CHECK(decide(*turns, ranks, prompt(1)).rank == 0);
  ranks.erase(ranks.begin() + 1);  // a rank is gone
  CHECK(decide(*turns, ranks, prompt(1)).rank == 2);
  CHECK(decide(*turns, ranks, prompt(1)).rank == 0);
}

TEST_CASE("front ends take groups in turns of their own, and ranks of a group go in turn") {
  constexpr int groups = 5, of_group = 2, front_ends = 3;
  const auto turns =
      router(R"({"type": "round_robin", "front_ends": 3})", groups * of_group, 1, groups);
  const std::vector<RankLoad> ranks = ranks_of(std::vector<std::int64_t>(groups * of_group, 0));
  std::vector<int> group_of;
  std::array<int, groups> served{};
  for (int i = 0; i < 60; ++i) {
    const int rank = decide(*turns, ranks, prompt(1)).rank;
    group_of.push_back(rank / of_group);
    CHECK(rank % of_group == served[std::size_t(rank / of_group)]++ % of_group);
    if (i >= front_ends)
      CHECK(group_of.back() == (group_of[std::size_t(i - front_ends)] + 1) % groups);
  }
  CHECK(std::ranges::all_of(served, [](int n) { return n == 60 / groups; }));
}

TEST_CASE("central admission waits for a seat and room") {
  std::vector<RankLoad> ranks = ranks_of({10, 20, 30});
  ranks[0].total_blocks = 3;
  PendingRequest request = prompt(64);
  request.blocks = 4;
  const auto central = router(R"({"type": "least_kv", "admission": "central"})", 3);
  ranks[1].seats = 0;
  CHECK(decide(*central, ranks, request).rank == 2);
  ranks[2].blocks = ranks[2].total_blocks - 3;
  std::vector<Assignment> assignments;
  central->route({{}, {&request, 1}, ranks}, assignments);
  CHECK(assignments.empty());
}

// Every subset of `count` sizes, tried.
std::int64_t best_sum(std::span<const std::int64_t> sizes, std::size_t count, std::int64_t margin) {
  std::int64_t below = -1, above = -1;
  for (std::uint32_t set = 0; set < (1U << sizes.size()); ++set) {
    if (static_cast<std::size_t>(std::popcount(set)) != count) continue;
    std::int64_t sum = 0;
    for (std::size_t i = 0; i < sizes.size(); ++i) sum += (set >> i & 1) != 0 ? sizes[i] : 0;
    if (sum <= margin) below = std::max(below, sum);
    if (sum > margin && (above < 0 || sum < above)) above = sum;
  }
  return below >= 0 ? below : above;
}

TEST_CASE("subsets have the largest sum within the margin, else the smallest beyond it") {
  Rng rng(1, "test/subsets");
  for (int i = 0; i < 300; ++i) {
    std::vector<std::int64_t> sizes(1 + rng.below(9));
    for (auto& size : sizes) size = static_cast<std::int64_t>(1 + rng.below(150));
    const std::size_t count = 1 + rng.below(sizes.size());
    const auto margin = static_cast<std::int64_t>(rng.below(600));
    const auto chosen = subset_of(sizes, count, margin);
    REQUIRE(chosen.size() == count);
    REQUIRE(std::set(chosen.begin(), chosen.end()).size() == count);
    std::int64_t sum = 0;
    for (const std::size_t index : chosen) sum += sizes[index];
    REQUIRE(sum == best_sum(sizes, count, margin));
  }
  CHECK(subset_of(std::vector<std::int64_t>{5, 6}, 3, 10).empty());
}

TEST_CASE("from a pool a rank takes what fills it up to the most loaded one") {
  // Seven seats or fewer: subsets. Rank 1 is 700 below rank 0 and has two seats: 300 + 400 fit
  // exactly, neither 500 + 300 nor the first two do.
  std::vector<RankLoad> ranks = ranks_of({1000, 300});
  ranks[0].seats = 0;
  ranks[1].seats = 2;
  std::vector<PendingRequest> pending{prompt(500), prompt(250), prompt(300), prompt(400)};
  const auto pool = router(R"({"type": "br0", "form": "pool"})", 2);
  std::vector<Assignment> assignments;
  pool->route({{}, pending, ranks}, assignments);
  REQUIRE(assignments.size() == 2);
  CHECK(assignments[0].pending == 2);
  CHECK(assignments[1].pending == 3);
  CHECK(assignments[0].rank == 1);
  CHECK(assignments[0].score == 700);
  // Where nothing fits under the envelope the smallest loss goes, so that work is conserved.
  ranks[1].kv_tokens = 990;
  assignments.clear();
  pool->route({{}, pending, ranks}, assignments);
  REQUIRE(!assignments.empty());
  CHECK(assignments[0].pending == 1);
}

TEST_CASE("a pool gives each request once, never more than seats and blocks allow") {
  Rng rng(1, "test/pool");
  for (const char* name :
       {R"({"type": "br0", "form": "pool"})", R"({"type": "brh", "form": "pool"})", R"("bfio")"}) {
    const auto made = router(name, 4);
    for (int i = 0; i < 100; ++i) {
      std::vector<std::int64_t> loads(4);
      for (auto& load : loads) load = static_cast<std::int64_t>(rng.below(3000));
      std::vector<RankLoad> ranks = ranks_of(loads);
      for (RankLoad& rank : ranks) {
        rank.seats = static_cast<std::int64_t>(rng.below(6));
        rank.total_blocks = static_cast<std::int64_t>(rng.below(60));
      }
      std::vector<PendingRequest> pending(1 + rng.below(12));
      for (PendingRequest& request : pending) {
        request.prompt_tokens = static_cast<std::int32_t>(1 + rng.below(400));
        request.blocks = (request.prompt_tokens + 15) / 16;
      }
      std::vector<Assignment> assignments;
      made->route({{}, pending, ranks}, assignments);
      std::set<std::size_t> given;
      for (const Assignment& a : assignments) {
        REQUIRE(given.insert(a.pending).second);
        RankLoad& rank = ranks[static_cast<std::size_t>(a.rank)];
        REQUIRE(--rank.seats >= 0);
        REQUIRE((rank.total_blocks -= pending[a.pending].blocks) >= 0);
      }
      // No request waits that finds a seat and blocks.
      for (std::size_t p = 0; p < pending.size(); ++p) {
        for (const RankLoad& rank : ranks)
          REQUIRE((given.contains(p) || rank.seats == 0 || rank.total_blocks < pending[p].blocks));
      }
    }
  }
}

TEST_CASE("joint in seconds weighs what is cached against what the barrier pays") {
  RouterContext context;
  context.ranks = 2;
  context.prefill_token_s = 1e-5;
  context.kv_token_s = 1e-7;
  context.remote_token_s = 1e-4;
  const auto cost = [&](std::int64_t heavy, double near) {
    const auto joint = request_routers().make(config(R"("joint")"), context)();
    const std::vector<CacheHit> hits{{50, 0}, {0, 0}};
    const std::vector<double> locality{.5, near};
    PendingRequest request = prompt(1600);
    request.hits = hits;
    request.locality = locality;
    return decide(*joint, ranks_of({heavy, 10'000}), request, std::vector<std::int32_t>{100});
  };
  // 800 of 1,600 tokens are cached on rank 0: 8 ms of prefill instead of 16. Its load is 10,000
  // too: 1,600 tokens above the envelope for 100 steps are 16 ms on either, half of the experts'
  // traffic 5 ms.
  CHECK(cost(10'000, .5).rank == 0);
  CHECK_THAT(cost(10'000, .5).score, WithinRel(8e-3 + 5e-3 + 16e-3, 1e-12));
  // A rank 0 that is 2,000 tokens heavier pays 16 ms, rank 1 nothing: 29 against 21 ms.
  CHECK(cost(12'000, .5).rank == 1);
  CHECK_THAT(cost(12'000, .5).score, WithinRel(16e-3 + 5e-3, 1e-12));
  // All experts near on rank 1 save it 5 ms: not enough against 8.
  CHECK(cost(10'000, 1).rank == 0);
}

TEST_CASE("a batch is consolidated so that no rank has more than twice the mean, none is lost") {
  const auto joint = router(R"({"type": "joint", "scale": "seed"})", 4);
  // All 16 prompts are cached on rank 0.
  const std::vector<CacheHit> hits{{4, 0}, {0, 0}, {0, 0}, {0, 0}};
  const std::vector<double> locality(4);
  PendingRequest request = prompt(1000);
  request.hits = hits;
  request.locality = locality;
  const std::vector<PendingRequest> pending(16, request);
  std::vector<RankLoad> ranks = ranks_of({0, 1'000'000, 1'000'000, 1'000'000});
  std::vector<Assignment> assignments;
  joint->route({{}, pending, ranks}, assignments);
  std::vector<int> count(4);
  for (std::size_t i = 0; i < assignments.size(); ++i) {
    CHECK(assignments[i].pending == i);
    ++count[static_cast<std::size_t>(assignments[i].rank)];
  }
  // Mean 4: of 16 rank 0 keeps 1.5 * 4 = 6, its first ones; the last ten go where fewest are.
  CHECK(count == std::vector<int>{6, 4, 3, 3});
  for (std::size_t i = 0; i < 6; ++i) CHECK(assignments[i].rank == 0);
}

// Ranks in EP groups of two, each with one request of its load.
struct TwoGroups {
  std::vector<std::vector<RankRequest>> requests;
  std::vector<RankLoad> ranks;
  explicit TwoGroups(const std::vector<std::int32_t>& loads) {
    for (const std::int32_t load : loads) {
      requests.push_back({{0, load, 0}});
      requests.back().front().output_tokens = 100;
    }
    ranks = ranks_of(requests);
    for (std::size_t g = 0; g < ranks.size(); ++g)
      ranks[g].group = static_cast<std::int32_t>(g / 2);
  }
};

TEST_CASE("who minds the barrier looks at the most loaded rank of the group, not of the fleet") {
  // In one group a prompt of 300 costs nothing except on rank 0, and rank 1 is the lightest.
  // In two it would wait for rank 0 there; in the second group, level at 500, the barrier grows to
  // 800 only.
  const TwoGroups fleet({1000, 100, 500, 500});
  TwoGroups one_group({1000, 100, 500, 500});
  for (RankLoad& rank : one_group.ranks) rank.group = 0;
  RouterContext context;
  context.ranks = 4;
  context.kv_token_s = 1e-7;
  const std::vector<CacheHit> hits(4);
  const std::vector<double> locality(4);
  PendingRequest request = prompt(300);
  request.hits = hits;
  request.locality = locality;
  for (const char* name :
       {R"("br0")", R"("brh")", R"("overflow")", R"({"type": "fast_phi", "quantiles": []})",
        R"({"type": "joint", "kv": 0, "expert": 0})"}) {
    CAPTURE(name);
    const auto pick = [&](const std::vector<RankLoad>& ranks, int groups) {
      context.groups = groups;
      return decide(*request_routers().make(config(name), context)(), ranks, request,
                    std::vector<std::int32_t>{1})
          .rank;
    };
    CHECK(pick(fleet.ranks, 2) == 2);
    CHECK(pick(one_group.ranks, 1) == 1);
  }
}

TEST_CASE("within a group who minds the barrier fills what is below its most loaded rank") {
  // Two groups wait for 1,000: rank 1 has room for 300 below that, ranks 2 and 3 have not;
  // rank 5, the lightest, belongs to a group that waits for 2,000.
  const TwoGroups fleet({1000, 700, 1000, 900, 2000, 100});
  CHECK(decide(*router(R"("br0")", 6), fleet.ranks, prompt(300)).rank == 1);
  CHECK(decide(*router(R"("brh")", 6), fleet.ranks, prompt(300)).rank == 1);
}

TEST_CASE("a pool fills a rank up to the most loaded one of its group") {
  // Rank 3 has two seats and is 300 below its group, 800 below the fleet: there 300 + 500 fit
  // exactly, here 300 alone do.
  for (const char* name :
       {R"({"type": "br0", "form": "pool"})", R"({"type": "brh", "form": "pool", "points": [0]})",
        R"({"type": "bfio", "horizon": 0})"}) {
    CAPTURE(name);
    const auto first = [&](int ranks_of_group) {
      TwoGroups fleet({1000, 900, 500, 200});
      for (RankLoad& rank : fleet.ranks) {
        rank.group = rank.rank / ranks_of_group;
        rank.seats = rank.rank == 3 ? 2 : 0;
      }
      RouterContext context;
      context.ranks = 4;
      context.groups = 4 / ranks_of_group;
      const std::vector<PendingRequest> pending{prompt(250), prompt(300), prompt(500)};
      std::vector<Assignment> assignments;
      request_routers().make(config(name), context)()->route({{}, pending, fleet.ranks},
                                                             assignments);
      return assignments.at(0);
    };
    CHECK(first(2).pending == 1);
    CHECK(first(2).score == 300);
    CHECK(first(4).pending == 1);
    CHECK(first(4).score == 800);
  }
}

// Two layers, 32 experts, one per token; request r has a tag of its own, its rows use experts 16 r
// .. 16 r + 15.
RoutingTrace two_tastes() {
  const TraceMeta meta = test::trace_meta("tastes", 32, 1, {0, 1}, {"prefill", "decode"});
  std::vector<std::uint16_t> ids;
  for (int request = 0; request < 2; ++request) {
    for (int row = 0; row < 33; ++row) {
      for (int layer = 0; layer < 2; ++layer)
        ids.push_back(static_cast<std::uint16_t>(16 * request + row % 16));
    }
  }
  return {meta, {"a", "b"}, {{0, 33, 1, 0}, {33, 33, 1, 1}}, ids};
}

TEST_CASE("expert profiles come from a request with a like prefix, else from all that finished") {
  const RowSource rows(two_tastes(), std::nullopt, false, 1);
  ExpertHistory history(2, 32, 1);
  CHECK(history.predict({}).empty());
  using Ids = std::vector<std::uint64_t>;
  const Ids first{1, 2, 3, 4, 5}, second{1, 2, 3, 4, 6}, other{1, 9, 8, 7, 6};
  const auto hashes = [](const Ids& ids) {
    const PromptIds named = ids_of_blocks(80, 16, ids);
    return prompt_hashes(&named, 0, 80, 16);
  };
  Binding taste;
  taste.request = {1, 1};
  history.record(taste, 32, rows, hashes(first));
  taste.request = {0, 0};
  for (int i = 0; i < 2; ++i) history.record(taste, 32, rows, hashes(other));
  // Four of five blocks are shared with the first: experts 16..31. One is not enough: all, of whom
  // most used 0..15.
  const auto lowest = [](auto experts) {
    return std::ranges::min(experts, {}, &LikelyExpert::expert).expert;
  };
  CHECK(history.predict(hashes(second)).size() == 32);
  CHECK(lowest(history.predict(hashes(second))) == 16);
  CHECK(lowest(history.predict(hashes({1, 30, 31, 32, 33}))) == 0);
  // A known topic counts when no prefix is alike, but only if a request of it has finished.
  CHECK(lowest(history.predict(hashes({1, 30, 31, 32, 33}), 1)) == 16);
  CHECK(lowest(history.predict(hashes({1, 30, 31, 32, 33}), 0)) == 0);
  CHECK(lowest(history.predict(hashes({1, 30, 31, 32, 33}), 2)) == 0);
  CHECK(lowest(history.predict(hashes(second), 0)) == 16);
  // A request's own tokens need no history: taste 1 uses 16..31 from its first token on.
  taste.request = {1, 1};
  const ExpertHistory fresh(2, 32, 1);
  const auto own = fresh.used_by(taste, Phase::decode, 0, 16, rows);
  CHECK(lowest(own) == 16);
  CHECK(own[0].probability == 1.F / 16);
  CHECK(fresh.used_by(taste, Phase::decode, 3, 1, rows)[0] == LikelyExpert{20, 1});
  // Linear placement on four GPUs: 8 experts each. dp 2 x tp 2: rank 1 hosts 16..31.
  std::vector<std::vector<int>> gpus(4);
  for (int e = 0; e < 32; ++e) gpus[static_cast<std::size_t>(e / 8)].push_back(e);
  const ExpertPlacement placement(2, LayerPlacement(32, gpus));
  const ParallelPlan plan{.dp = 2, .tp = 2, .ep = 4};
  CHECK(expert_locality(history.predict(hashes(second)), placement, plan, 1) == 1);
  CHECK(expert_locality(history.predict(hashes(second)), placement, plan, 0) == 0);
  const ParallelPlan wide{.dp = 4, .tp = 1, .ep = 4};
  CHECK(expert_locality(history.predict(hashes(second)), placement, wide, 2) == .5);
}

TEST_CASE("a profile is forgotten after 1,024 others, unless its prompt came again") {
  const RowSource rows(two_tastes(), std::nullopt, false, 1);
  const auto hashes = [](std::uint64_t last) {
    const PromptIds ids = ids_of_blocks(80, 16, std::vector(5, last));
    return prompt_hashes(&ids, 0, 80, 16);
  };
  const auto finish = [&](ExpertHistory& history, std::uint32_t request, std::uint64_t prompt_id) {
    Binding taste;
    taste.request = {request, request};
    history.record(taste, 32, rows, hashes(prompt_id));
  };
  // The first prompt's tokens use experts 16..31, those of all others 0..15.
  const auto expects_second_half = [&](const ExpertHistory& history) {
    return std::ranges::min(history.predict(hashes(0)), {}, &LikelyExpert::expert).expert == 16;
  };
  ExpertHistory once(2, 32, 1), twice(2, 32, 1);
  for (ExpertHistory* history : {&once, &twice}) finish(*history, 1, 0);
  for (std::uint64_t other = 1; other < 1024; ++other) {
    finish(once, 0, other);
    finish(twice, other == 500 ? 1 : 0, other == 500 ? 0 : other);
  }
  CHECK(expects_second_half(once));
  CHECK(expects_second_half(twice));
  for (ExpertHistory* history : {&once, &twice}) finish(*history, 0, 1024);
  CHECK_FALSE(expects_second_half(once));
  CHECK(expects_second_half(twice));
  CHECK(std::ranges::min(once.predict(hashes(1024)), {}, &LikelyExpert::expert).expert == 0);
}

// Every row of the table, and the forms that an option chooses.
std::vector<std::string> all_routers() {
  std::vector<std::string> names{
      R"({"type": "br0", "form": "pool"})", R"({"type": "brh", "form": "pool"})",
      R"({"type": "least_kv", "admission": "central"})", R"({"type": "joint", "scale": "seed"})"};
  for (const std::string_view name : request_routers().names())
    names.push_back(fmt::format("\"{}\"", name));
  return names;
}

Json quick(const Json& changes) {
  Json json = ConfigNode::from_file(test::source_dir() / "configs/quick.json").json();
  json["workload"]["requests"] = 100;
  json["workload"]["lengths"] = {{"type", "lognormal"},
                                 {"prompt", {{"median", 200}, {"sigma", 1}, {"max", 2000}}},
                                 {"output", {{"median", 30}, {"sigma", 1}, {"max", 200}}}};
  json["measurement"]["warmup"] = 0;
  json.merge_patch(changes);
  return json;
}

test::Served run_quick(const Json& changes) {
  static TraceLibrary traces;  // one gating serves all tests
  return test::serve(load_experiment(
      ConfigNode(quick(changes), test::source_dir() / "configs/inline.json"), traces));
}

TEST_CASE("in the simulator br0 gives the bytes of least_kv") {
  const auto routed = [](const char* name) {
    std::vector<std::int32_t> ranks;
    for (const RequestRecord& r : run_quick({{"request_routing", name}}).requests)
      ranks.push_back(r.rank);
    return ranks;
  };
  CHECK(routed("br0") == routed("least_kv"));
}

TEST_CASE("to know topics changes where requests go, unless all have the same one") {
  const auto routed = [](bool topics, const Json& tags) {
    std::vector<std::int32_t> ranks;
    const test::Served report = run_quick(
        {{"request_routing",
          {{"type", "joint"}, {"expert", 1000}, {"experts_from", topics ? "topic" : "history"}}},
         {"workload",
          {{"gating", {{"workloads", tags}}}, {"arrivals", {{"concurrency_per_rank", 2}}}}}});
    for (const RequestRecord& r : report.requests) ranks.push_back(r.rank);
    return ranks;
  };
  const Json one = Json::array({"code"}), four = Json::array({"code", "law", "maths", "chat"});
  CHECK(routed(true, one) == routed(false, one));
  CHECK(routed(true, four) != routed(false, four));
}

TEST_CASE("requests whose own tokens are alike meet on one EP group and read fewer experts") {
  // Two workloads that share few experts, two EP groups; no router is told the tags.
  const auto experiment = [](const Json& router) {
    Json json = test::tiny_experiment({{"instances", 2}, {"request_routing", router}});
    json["workload"]["gating"] = {{"type", "topical"},   {"workloads", {"code", "law"}},
                                  {"workload_sigma", 5}, {"popularity_sigma", 0},
                                  {"topic_sigma", 0},    {"requests", 40},
                                  {"prompt_rows", 20},   {"decode_rows", 30}};
    return test::load(json);
  };
  const auto read_with = [&](const Json& router) {
    const Report report = run(experiment(router));
    return std::ranges::find(report.pool.experts.by_step_kind, "decode",
                             &std::pair<std::string, ExpertKindStats>::first)
        ->second.summary.active_experts_mean;
  };
  const double spread = read_with("round_robin");
  for (const char* own : {"prompt", "first_tokens"}) {
    CHECK(read_with({{"type", "affinity"}, {"experts_from", own}}) < spread - 0.1);
  }
}

TEST_CASE("with statistics never published anew vllm counts only what it routed itself") {
  // An interval beyond the run: the counts stay 0, each request adds 4: ranks in turn.
  const test::Served report = run_quick(
      {{"request_routing", {{"type", "vllm"}, {"interval", "1000 s"}}},
       {"workload",
        {{"requests", 20}, {"arrivals", {{"type", "closed_loop"}, {"concurrency_per_rank", 1}}}}}});
  for (std::size_t i = 0; i < report.requests.size(); ++i)
    CHECK(report.requests[i].rank == static_cast<std::int32_t>(i % 8));
}

TEST_CASE("no request is lost when a rank fails and comes back, whoever routes, caching or not") {
  bool caching = false;
  for (const std::string& name : all_routers()) {
    CAPTURE(name);
    caching = !caching;
    const test::Served report =
        run_quick({{"request_routing", Json::parse(name)},
                   {"workload", {{"requests", 16}, {"arrivals", {{"concurrency_per_rank", 2}}}}},
                   {"kv_cache", {{"prefix_caching", caching}}},
                   {"failures", {{{"at", "0.2 s"}, {"gpu", 2}, {"recovers_after", "0.1 s"}}}}});
    REQUIRE(report.document()["failures"][0]["requests_moved"] > 0);
    for (const RequestRecord& r : report.requests) {
      REQUIRE(r.state == RequestRecord::State::finished);
      REQUIRE(r.generated == r.output_tokens);
      REQUIRE(r.rank >= 0);
    }
  }
}

TEST_CASE("one rank gives the same steps whoever routes, pools included") {
  const Json one{{"parallel", {{"dp", 1}, {"tp", 8}, {"ep", 8}}}};
  std::string first;
  for (const char* name : {"least_kv", "vllm", "overflow", "joint"}) {
    Json changes = one;
    changes["request_routing"] = name;
    const test::Served report = run_quick(changes);
    const std::string steps =
        report.document()["metrics"].dump() + report.document()["steps"].dump();
    if (first.empty()) first = steps;
    CHECK(steps == first);
  }
}

TEST_CASE("one rank is the same run, byte for byte, as no data parallelism named") {
  const auto document = [](const Json& dp) {
    OrderedJson report = run(test::load_tiny({{"parallel", {{"dp", dp}, {"tp", 4}}}})).document();
    report.erase("context");
    return report.dump();
  };
  CHECK(document(1) == document(nullptr));
}

// When the steps of each instance were.
class Steps final : public RunObserver {
 public:
  std::map<int, std::vector<std::pair<Time, Time>>> of;
  void step_ended(const StepRecord& record, Time now) override {
    of[record.instance].emplace_back(record.step.start, now);
  }
};

TEST_CASE("work is conserved: no group stands idle while a request of its own is in the system") {
  Json json = test::tiny_experiment(
      {{"instances", 2},
       {"workload",
        {{"arrivals", {{"type", "poisson"}, {"rate", "2000 /s"}}}, {"lengths", {{"output", 6}}}}}});
  json["workload"]["arrivals"].erase("concurrency");
  for (const std::string& name : all_routers()) {
    CAPTURE(name);
    json["request_routing"] = Json::parse(name);
    Steps steps;
    const test::Served report = test::serve(test::load(json), {&steps});
    int gaps = 0;
    for (const auto& [instance, ran] : steps.of) {
      for (std::size_t i = 1; i < ran.size(); ++i) {
        const Time idle = ran[i - 1].second, again = ran[i].first;
        if (idle == again) continue;
        ++gaps;
        for (const RequestRecord& r : report.requests) {
          REQUIRE((r.instance != instance || r.arrival >= again || r.last_token <= idle));
        }
      }
    }
    CHECK(gaps > 0);
  }
}

// Any step takes 1 ms.
Json with_router_time(const char* each, const Json& set = Json::object()) {
  Json json = test::tiny_experiment(
      {{"two_term_step", {{"a", "0 s"}, {"c", "1 ms"}}}, {"charges", {{"request_routing", each}}}});
  json.merge_patch(set);
  return json;
}

TEST_CASE("a router that takes time decides one by one: known answer for two requests at once") {
  const Json two = {
      {"workload", {{"arrivals", {{"type", "closed_loop"}, {"concurrency", 2}}}, {"requests", 2}}}};
  const test::Served served = test::serve(test::load(with_router_time("5 ms", two)));
  const auto ms = [](Time at) { return to_seconds(at).count() * 1e3; };
  // The first is routed at 5 ms. Steps of 1 ms follow; the second is routed as one ends, at 10 ms.
  CHECK(ms(served.requests[0].begun) == 5);
  CHECK(ms(served.requests[0].first_token) == 6);
  CHECK(ms(served.requests[1].begun) == 10);
  CHECK(ms(served.requests[1].first_token) == 11);
  const OrderedJson report = served.document();
  CHECK_THAT(report["metrics"]["mean_ttft_ms"].get<double>(), WithinRel(8.5, 1e-12));
  const OrderedJson& router = report["request_router"];
  CHECK(router["decisions"] == 2);
  CHECK_THAT(router["mean_wait_ms"].get<double>(), WithinRel(7.5, 1e-12));
  CHECK_THAT(router["most_per_second"].get<double>(), WithinRel(200, 1e-12));
}

TEST_CASE("no rate is above that of a router that takes time, and no request is lost at it") {
  const Json pools = {
      {"pools",
       {{"prefill", {{"instances", 2}}},
        {"decode", {{"scheduling", {{"type", "decode_only"}, {"max_num_seqs", 8}}}}}}}};
  const Json outage = {{"failures", Json::array({{{"gpu", 1}, {"at", "10 ms"}}})}};
  for (const Json& set : {Json::object(), pools, outage}) {
    CAPTURE(set.dump());
    const test::Served served = test::serve(test::load(with_router_time("2 ms", set)));
    CHECK(served.document()["metrics"]["completed"] == 120);
    std::vector<Time> begun;
    for (const RequestRecord& r : served.requests) begun.push_back(r.begun);
    std::ranges::sort(begun);
    for (std::size_t i = 0; i < begun.size(); ++i)
      REQUIRE(to_seconds(begun[i]).count() >= 2e-3 * double(i + 1) - 1e-12);
  }
  // Clients that wait for 30 ms leave a router that 24 of them share at 2 ms each.
  const test::Served left =
      test::serve(test::load(with_router_time("2 ms", {{"workload", {{"timeout", "30 ms"}}}})));
  CHECK(left.document()["metrics"]["timed_out"] == 120);
  // They have left before the last decisions, which are beyond the end.
  CHECK_THAT(left.document()["request_router"]["busy_share"].get<double>(), WithinRel(1., 1e-9));
}

TEST_CASE("a router that takes no time is the same run, byte for byte") {
  Json json = test::tiny_experiment(Json::object());
  OrderedJson without = run(test::load(json)).document();
  json["charges"] = {{"request_routing", "0 us"}};
  OrderedJson with = run(test::load(json)).document();
  for (OrderedJson* report : {&without, &with}) report->erase("context");
  CHECK(with.dump() == without.dump());
  CHECK_FALSE(with.contains("request_router"));
}

TEST_CASE("what a router cannot mean is refused") {
  using Catch::Matchers::Contains;
  const auto refused = [](const std::string& json) {
    return test::config_error([&] { router(json, 4); });
  };
  CHECK_THAT(refused(R"({"type": "bfio", "admission": "central"})"), Contains("admission"));
  CHECK_THAT(refused(R"({"type": "fast_phi", "points": [4, 2]})"), Contains("ascending"));
  CHECK_THAT(refused(R"({"type": "vllm", "clients": 2, "client": 2})"), Contains("client"));
  CHECK_THAT(refused(R"("jsq_load")"), Contains("one of: random"));
}

}  // namespace
}  // namespace moesim::test_request_routing
