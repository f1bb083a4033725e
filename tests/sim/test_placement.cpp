// SPDX-License-Identifier: Apache-2.0
// Does every placement put the experts where its source puts them, and nothing where it must not?
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <numeric>
#include <set>

#include <fmt/format.h>

#include "hardware/rng.hpp"
#include "sim/placement/batch_matching.hpp"
#include "sim/placement/copies_by_gain.hpp"
#include "sim/placement/placement_score.hpp"
#include "sim/placement/policies/eplb.hpp"
#include "sim/placement/replicas.hpp"
#include "sim/token_routing/min_exp.hpp"
#include "tests/support.hpp"
#include "traces/trace_statistics.hpp"

namespace moesim::test_placement {

using namespace moesim::test;

namespace {

using Slots = std::vector<int>;

std::unique_ptr<Placer> placer(const std::string& policy) {
  return placers().make(config(policy.starts_with('{') ? policy : fmt::format("\"{}\"", policy)));
}

using GpuSlots = std::vector<Slots>;  // [GPU][slot] -> expert

GpuSlots by_gpu(const LayerPlacement& placement) {
  GpuSlots gpus(static_cast<std::size_t>(placement.gpus()));
  for (int slot = 0; slot < placement.slots(); ++slot) {
    gpus[static_cast<std::size_t>(placement.gpu_of_slot(slot))].push_back(
        placement.expert_of_slot(slot));
  }
  return gpus;
}

Slots slots_of(const LayerPlacement& placement) {
  Slots experts;
  for (int slot = 0; slot < placement.slots(); ++slot) {
    experts.push_back(placement.expert_of_slot(slot));
  }
  return experts;
}

Slots place(const std::string& name, PlacementProblem problem) {
  const ExpertLoad load(static_cast<std::size_t>(problem.experts), 1.0);
  return slots_of(placer(name)->place(problem, load, 0));
}

std::vector<int> to_vector(std::span<const std::int32_t> values) {
  return {values.begin(), values.end()};
}

ExpertLoad random_load(Rng& rng, int experts) {
  ExpertLoad load;
  for (int i = 0; i < experts; ++i) load.push_back(static_cast<double>(rng.below(10000)));
  return load;
}

std::vector<std::int64_t> random_coactivation(Rng& rng, int experts) {
  const auto n = static_cast<std::size_t>(experts);
  std::vector<std::int64_t> counts(n * n);
  for (std::size_t a = 0; a < n; ++a) {
    for (std::size_t b = 0; b < a; ++b) {
      counts[a * n + b] = counts[b * n + a] = static_cast<std::int64_t>(rng.below(1000));
    }
  }
  return counts;
}

// What random batches activate: every expert with a probability of its own.
std::vector<BatchExperts> random_batches(Rng& rng, int experts, int count) {
  std::vector<double> probability;
  for (int e = 0; e < experts; ++e) probability.push_back(rng.uniform());
  std::vector<BatchExperts> batches(static_cast<std::size_t>(count));
  for (BatchExperts& batch : batches) {
    for (int e = 0; e < experts; ++e) {
      if (rng.uniform() < probability[static_cast<std::size_t>(e)]) {
        batch.push_back(static_cast<std::uint16_t>(e));
      }
    }
  }
  return batches;
}

// The least maximum of activated experts over the GPUs, by the exact router.
int least_activated(const LayerPlacement& placement, const BatchExperts& batch) {
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(placement.experts()));
  for (const auto expert : batch) tokens[expert] = 1;
  MinExp::Workspace workspace;
  MinExp(placement).assign(placement, tokens, workspace);
  return *std::max_element(workspace.active_on_gpu.begin(), workspace.active_on_gpu.end());
}

std::vector<int> copies_of(const LayerPlacement& placement) {
  std::vector<int> copies;
  for (int expert = 0; expert < placement.experts(); ++expert) {
    copies.push_back(static_cast<int>(placement.slots_of(expert).size()));
  }
  return copies;
}

// Most copies of one expert in any of `blocks` equal blocks of GPUs.
int most_in_a_block(const LayerPlacement& placement, int expert, int blocks) {
  std::vector<int> held(static_cast<std::size_t>(blocks));
  for (const int slot : placement.slots_of(expert)) {
    ++held[static_cast<std::size_t>(placement.gpu_of_slot(slot) * blocks / placement.gpus())];
  }
  return *std::max_element(held.begin(), held.end());
}

std::vector<std::filesystem::path> oracles(const std::string& prefix) {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(shared_dir() / "oracles")) {
    if (entry.path().filename().string().starts_with(prefix)) files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace

TEST_CASE("a placement knows an expert's slots, and its first slot on each GPU") {
  // GPU 0 holds expert 0 twice: two slots, one host.
  const LayerPlacement placement(3, {{0, 0, 1}, {2, 0}});
  CHECK(placement.experts() == 3);
  CHECK(placement.gpus() == 2);
  CHECK(placement.slots() == 5);
  CHECK(placement.first_slot(1) == 3);
  CHECK(placement.first_slot(2) == 5);
  CHECK(placement.gpu_of_slot(2) == 0);
  CHECK(placement.expert_of_slot(3) == 2);
  CHECK(to_vector(placement.slots_of(0)) == Slots{0, 1, 4});
  CHECK(to_vector(placement.hosts_of(0)) == Slots{0, 4});
  CHECK(to_vector(placement.hosts_of(2)) == Slots{3});
}

TEST_CASE("a placement that loses an expert or holds an unknown one is refused") {
  CHECK_THROWS_WITH(LayerPlacement(3, {{0, 1}, {1, 0}}), "expert 2 has no slot");
  CHECK_THROWS_WITH(LayerPlacement(2, {{0, 1}, {2}}), "GPU 1 holds expert 2; expected 0 to 1");
  CHECK_THROWS_AS(LayerPlacement(2, {{0, -1, 1}}), std::invalid_argument);
}

TEST_CASE("a replication ratio is rounded up to whole slots per GPU") {
  CHECK(slots_for_replication(128, 8, 1.0) == 16);
  CHECK(slots_for_replication(128, 8, 1.125) == 18);
  CHECK(slots_for_replication(256, 16, 1.5) == 24);
  CHECK(slots_for_replication(160, 16, 1.1) == 11);  // 1.1 * 160 is a hair above 176 in binary
  CHECK(slots_for_replication(32, 8, 1.1) == 5);     // 4.4
  CHECK(slots_for_replication(10, 4, 1.0) == 3);
  CHECK(config_error([] { slots_for_replication(8, 4, 0.9); }) ==
        "replication 0.9 is out of range; expected at least 1 (one slot per expert) and at most 4 "
        "(every expert on every GPU)");
  CHECK_THROWS_AS(slots_for_replication(8, 4, std::nan("")), ConfigError);
}

TEST_CASE("linear puts experts in blocks, and redundant slots start again at expert 0") {
  CHECK(place("linear", {4, 2, 2}) == Slots{0, 1, 2, 3});
  CHECK(place("linear", {4, 2, 3}) == Slots{0, 1, 2, 3, 0, 1});
  CHECK(place("linear", {5, 2, 3}) == Slots{0, 1, 2, 3, 4, 0});
}

TEST_CASE("round_robin puts expert e on GPU e mod G, and a copy never beside its original") {
  CHECK(place("round_robin", {4, 2, 2}) == Slots{0, 2, 1, 3});
  // The second lap starts one GPU further: the copy of 0 on GPU 1, of 1 on GPU 0.
  CHECK(place("round_robin", {4, 2, 3}) == Slots{0, 2, 1, 1, 3, 0});
  // 5 experts on 2 GPUs: the sixth slot is GPU 1's anyway.
  CHECK(place("round_robin", {5, 2, 3}) == Slots{0, 2, 4, 1, 3, 0});
}

TEST_CASE("EPLB replicates the hottest expert and packs by load") {
  // Loads 90 10 10 10 on 2 GPUs x 3 slots. The fifth and sixth slot go to expert 0 (90, then 45);
  // 30 each on three slots. By load: 30 -> GPU 0, 30 -> GPU 1, 30 -> GPU 0 (tie), 10 -> GPU 1 (40),
  // 10 -> GPU 1 (50), and expert 3 to what is left, GPU 0.
  const EplbMap map = eplb({4, 2, 3}, ExpertLoad{90, 10, 10, 10});
  CHECK(map.phy2log == Slots{0, 0, 3, 0, 1, 2});
  CHECK(map.logcnt == Slots{3, 1, 1, 1});
  CHECK(map.log2phy == std::vector<Slots>{{0, 3, 1}, {4}, {5}, {2}});
}

TEST_CASE("EPLB matches DeepSeek's, slot for slot") {
  if (!has_shared()) {
    WARN("skipped: ../shared is absent");
    return;
  }
  for (const auto& file : oracles("eplb_")) {
    DYNAMIC_SECTION(file.filename().string()) {
      const Json oracle = ConfigNode::from_file(file).json();
      const Json& input = oracle.at("input");
      const Json& output = oracle.at("output");
      const int gpus = input.at("num_gpus");
      const auto layers = input.at("weight").get<std::vector<ExpertLoad>>();
      for (std::size_t layer = 0; layer < layers.size(); ++layer) {
        const PlacementProblem problem{static_cast<int>(layers[layer].size()), gpus,
                                       input.at("num_replicas").get<int>() / gpus,
                                       input.at("num_nodes"), input.at("num_groups")};
        const EplbMap map = eplb(problem, layers[layer]);
        auto log2phy = output.at("log2phy").at(layer).get<std::vector<Slots>>();
        for (Slots& slots : log2phy) std::erase(slots, -1);
        CHECK(map.phy2log == output.at("phy2log").at(layer).get<Slots>());
        CHECK(map.log2phy == log2phy);
        CHECK(map.logcnt == output.at("logcnt").at(layer).get<Slots>());
      }
    }
  }
}

TEST_CASE("every placer gives every expert a slot and every GPU as many, on random problems") {
  Rng rng(1, "test/placement");
  const std::set<std::string> with_duplicates{"linear", "round_robin", "eplb"};
  for (int round = 0; round < 50; ++round) {
    const int nodes = 1 << rng.below(3);
    const int groups = 1 << rng.below(4);
    const int gpus = nodes * static_cast<int>(1 + rng.below(4));
    const int experts = groups * gpus * static_cast<int>(1 + rng.below(4));
    const int slots = experts / gpus + static_cast<int>(rng.below(4));
    const PlacementProblem problem{experts, gpus, slots, nodes, groups};
    const ExpertLoad load = random_load(rng, experts);
    const std::vector<std::int64_t> coactivation = random_coactivation(rng, experts);
    const std::vector<BatchExperts> batches = random_batches(rng, experts, 10);
    for (const auto& entry : placers().entries()) {
      // The one has no placement of its own, the other no copies.
      if (entry.name == "from_file" || entry.name == "cut_coldest") continue;
      CAPTURE(entry.name, experts, gpus, slots, nodes, groups);
      const auto place = placer(std::string(entry.name));
      const LayerPlacement layer = place->place(problem, {load, coactivation, batches}, round);
      CHECK(layer.experts() == experts);
      CHECK(layer.slots() == gpus * slots);
      for (int gpu = 0; gpu < gpus; ++gpu) CHECK(layer.first_slot(gpu) == gpu * slots);
      CHECK(layer == place->place(problem, {load, coactivation, batches}, round));
      if (with_duplicates.contains(std::string(entry.name)) || slots > experts) continue;
      // Its experts stay on nodes, which may then have more slots than experts.
      if (entry.name == "joint" && groups % nodes == 0 && slots > experts / nodes) continue;
      for (int expert = 0; expert < experts; ++expert) {
        CHECK(layer.slots_of(expert).size() == layer.hosts_of(expert).size());
      }
    }
  }
}

TEST_CASE("hierarchical EPLB keeps each expert group, and all copies from it, on one node") {
  Rng rng(2, "test/placement");
  const PlacementProblem problem{64, 8, 12, 2, 8};
  const LayerPlacement layer = placer("eplb")->place(problem, random_load(rng, 64), 0);
  for (int group = 0; group < 8; ++group) {
    const int node = layer.gpu_of_slot(layer.slots_of(group * 8)[0]) / 4;
    for (int expert = group * 8; expert < group * 8 + 8; ++expert) {
      for (const int slot : layer.slots_of(expert)) CHECK(layer.gpu_of_slot(slot) / 4 == node);
    }
  }
}

TEST_CASE("nodes that do not divide the groups make EPLB go over all GPUs at once") {
  Rng rng(3, "test/placement");
  const ExpertLoad load = random_load(rng, 16);
  CHECK(eplb({16, 4, 6, 3, 4}, load).phy2log == eplb({16, 4, 6, 1, 1}, load).phy2log);
}

TEST_CASE("a placement without a solution is refused with what would be right") {
  const auto error = [](PlacementProblem problem, ExpertLoad load) {
    return config_error([&] { placer("eplb")->place(problem, load, 0); });
  };
  CHECK(error({4, 2, 1}, ExpertLoad(4)) ==
        "1 slots on each of 2 GPUs cannot hold 4 experts; expected at least 2 slots per GPU");
  CHECK(error({4, 2, 2}, ExpertLoad(3)) == "the load has 3 experts; expected 4");
  CHECK(error({2, 2, 1}, {1, std::nan("")}) ==
        "the load of expert 1 is nan; expected a finite number >= 0");
  CHECK(error({2, 2, 1}, {-1, 0}) == "the load of expert 0 is -1; expected a finite number >= 0");
  CHECK(error({6, 2, 3, 1, 4}, ExpertLoad(6)) ==
        "eplb: 4 expert groups do not divide 6 experts evenly");
  CHECK(error({6, 3, 2, 2, 2}, ExpertLoad(6)) == "eplb: 2 nodes do not divide 3 GPUs evenly");
  CHECK(error({0, 2, 3}, {}) == "placement of 0 experts on 2 GPUs; expected at least 1 of each");
  CHECK(error({4, 2, 2, 0, 1}, ExpertLoad(4)) ==
        "placement over 0 nodes and 1 expert groups; expected at least 1 of each");
  CHECK(error({4, 2, 2, 1, 0}, ExpertLoad(4)) ==
        "placement over 1 nodes and 0 expert groups; expected at least 1 of each");
}

TEST_CASE("before anything was seen, who goes by load gives way to the linear map") {
  const PlacementProblem problem{4, 2, 3};
  const auto slots = [&](const std::string& name) {
    return slots_of(place_unseen(*placer(name), problem, 2).at(1));
  };
  CHECK(slots("eplb") == place("linear", problem));
  CHECK(slots("coactivation") == place("linear", problem));
  CHECK(slots("flat") == place("linear", problem));
  CHECK(slots("round_robin") == place("round_robin", problem));
  CHECK(slots("random") == slots_of(placer("random")->place(problem, ExpertLoad(4), 1)));
}

TEST_CASE("copies go to the largest load per copy, at most one to a GPU while others have fewer") {
  // 100 10 9 on 2 GPUs x 3 slots: expert 0 gets its second copy; then it is on both GPUs, so 10 and
  // then 9 get theirs.
  CHECK(copies_by_load({3, 2, 3}, ExpertLoad{100, 10, 9}) == std::vector{2, 2, 2});
  // Nothing seen: no expert gets a third copy before all have a second.
  CHECK(copies_by_load({4, 4, 2}, ExpertLoad(4)) == std::vector{2, 2, 2, 2});
  CHECK(copies_by_load({4, 4, 2}, ExpertLoad{8, 1, 1, 1}) == std::vector{4, 2, 1, 1});
  // More slots than experts x GPUs: the limit gives way. 3, then 1.5; then 1 and 1, to the fewer.
  CHECK(copies_by_load({2, 1, 5}, ExpertLoad{3, 1}) == std::vector{3, 2});
}

TEST_CASE("dealing apart makes room where only the GPUs that hold an expert are open") {
  // In this order GPU 0 takes 1 2, GPU 1 takes 3 (heavy). Copies of 0 come last: one to GPU 1, and
  // GPU 0 is full, so an expert of GPU 0 moves to GPU 1's last slot: 1 or 2, alike; the first does.
  const std::vector<double> weight{1, 1, 1, 9};
  CHECK(deal_apart(std::vector{3, 1, 2, 1, 0, 0}, weight, 2) == GpuSlots{{3, 1, 0}, {1, 2, 0}});
  CHECK(deal_apart(std::vector{3, 1, 2, 0, 2, 0}, std::vector<double>{1, 1, 1, 30}, 2) ==
        GpuSlots{{3, 2, 0}, {1, 2, 0}});
}

TEST_CASE("eplb_distinct puts no copy beside another where EPLB does") {
  // As EPLB above: 90 10 10 10 on 2 GPUs x 3 slots. Expert 0 has at most 2 copies here (45 each),
  // the sixth slot goes to expert 1 (5 each). By load: 45 -> GPU 0, 45 -> GPU 1, then 10 -> GPU 0
  // (tie), 10 -> GPU 1, and expert 1 once on each.
  const LayerPlacement layer =
      placer("eplb_distinct")->place({4, 2, 3}, ExpertLoad{90, 10, 10, 10}, 0);
  CHECK(by_gpu(layer) == GpuSlots{{0, 2, 1}, {0, 3, 1}});
}

TEST_CASE("eplb_distinct spreads the copies of an expert over failure domains") {
  // Without domains the two copies of the hot experts may share a node; with them they may not.
  Rng rng(4, "test/placement");
  const auto over_nodes = placer(R"({"type": "eplb_distinct", "failure_domains": 4})");
  for (int round = 0; round < 20; ++round) {
    const int slots = 8 + static_cast<int>(rng.below(8));
    const PlacementProblem problem{64, 8, slots};
    const ExpertLoad load = random_load(rng, 64);
    const LayerPlacement layer = over_nodes->place(problem, load, 0);
    CHECK(copies_of(layer) == copies_by_load(problem, load));
    for (int expert = 0; expert < 64; ++expert) {
      const auto copies = static_cast<int>(layer.slots_of(expert).size());
      CHECK(most_in_a_block(layer, expert, 4) <= (copies + 3) / 4);
      CHECK(layer.hosts_of(expert).size() == layer.slots_of(expert).size());
    }
  }
  CHECK(config_error([&] {
          over_nodes->place({4, 6, 1}, ExpertLoad(4), 0);
        }) == "eplb_distinct: 4 failure domains do not divide 6 GPUs evenly");
}

TEST_CASE("flat gives the hottest experts one more copy each before any gets a third") {
  const LayerPlacement layer = placer("flat")->place({4, 3, 2}, ExpertLoad{900, 10, 20, 10}, 0);
  CHECK(copies_of(layer) == std::vector{2, 1, 2, 1});
  // 450 -> GPU 0, 450 -> GPU 1; the halves of expert 2 and the 10s all weigh 10, in order of
  // expert: 1 -> GPU 2, 2 -> GPU 2, 2 -> GPU 0 (tie), 3 -> GPU 1.
  CHECK(by_gpu(layer) == GpuSlots{{0, 2}, {0, 3}, {1, 2}});
}

TEST_CASE("with two copies of all over two domains no half takes an expert with it") {
  const auto over_halves = placer(R"({"type": "flat", "failure_domains": 2})");
  // By load per copy expert 0 would have all further copies, and others none to spare.
  const LayerPlacement layer =
      over_halves->place({8, 4, 4}, ExpertLoad{90, 1, 1, 1, 1, 1, 1, 1}, 0);
  for (int expert = 0; expert < 8; ++expert) {
    std::array<int, 2> copies{};
    for (const std::int32_t slot : layer.slots_of(expert))
      ++copies.at(static_cast<std::size_t>(layer.gpu_of_slot(slot) / 2));
    CHECK(copies == std::array{1, 1});
  }
  CHECK_THAT(config_error([&] {
               over_halves->place({4, 5, 1}, ExpertLoad(4), 0);
             }),
             Catch::Contains("flat: 2 failure domains do not divide 5 GPUs evenly"));
}

TEST_CASE("random deals differently for every layer and seed, and the same for the same") {
  const PlacementProblem problem{64, 8, 12};
  const auto dealt = [&](int seed, int layer) {
    return placer(fmt::format(R"({{"type": "random", "seed": {}}})", seed))
        ->place(problem, ExpertLoad(64), layer);
  };
  CHECK(dealt(1, 0) == dealt(1, 0));
  CHECK(dealt(1, 0) != dealt(1, 1));
  CHECK(dealt(1, 0) != dealt(2, 0));
  const std::vector<int> copies = copies_of(dealt(1, 0));
  CHECK(std::count(copies.begin(), copies.end(), 2) == 32);
  CHECK(std::count(copies.begin(), copies.end(), 1) == 32);
}

TEST_CASE("coactivation brings experts together that tokens pick together") {
  // Equal loads; tokens pick 0 with 3 and 1 with 2. LPT deals 0 2 | 1 3, so no pair stands
  // together; one swap brings both together.
  const std::vector<std::int64_t> together{0, 1, 1, 9,  //
                                           1, 0, 9, 1,  //
                                           1, 9, 0, 1,  //
                                           9, 1, 1, 0};
  const ExpertLoad load{10, 10, 10, 10};
  const LayerPlacement layer = placer("coactivation")->place({4, 2, 2}, {load, together}, 0);
  CHECK(layer.gpu_of_slot(layer.slots_of(0)[0]) == layer.gpu_of_slot(layer.slots_of(3)[0]));
  CHECK(layer.gpu_of_slot(layer.slots_of(1)[0]) == layer.gpu_of_slot(layer.slots_of(2)[0]));
  CHECK(config_error([&] {
          placer("coactivation")->place({4, 2, 2}, load, 0);
        }) ==
        "coactivation needs the experts that tokens choose together; a load does not hold these; "
        "give a routing trace");
}

TEST_CASE("coactivation keeps loads within its slack, or within those it started from") {
  Rng rng(5, "test/placement");
  for (const double slack : {0.0, 0.1, 0.5}) {
    const PlacementProblem problem{48, 8, 8};
    const ExpertLoad load = random_load(rng, 48);
    const auto policy = fmt::format(R"({{"type": "coactivation", "load_slack": {}}})", slack);
    const auto coactivation = random_coactivation(rng, 48);
    const auto imbalance = [&](const LayerPlacement& layer) {
      return score_placement({layer}, std::array{load}).imbalance_worst;
    };
    const double start = imbalance(placer("eplb_distinct")->place(problem, load, 0));
    CHECK(imbalance(placer(policy)->place(problem, {load, coactivation}, 0)) <=
          std::max(start, 1 + slack) + 1e-9);
  }
}

TEST_CASE("co-activation counts are the pairs of a token's experts") {
  TraceMeta meta;
  meta.num_experts = 3;
  meta.experts_per_token = 2;
  meta.layer_ids = {0, 1};
  // Two requests of one and two tokens. Layer 0: 01, 12, 12; layer 1: 02, 02, 20.
  const RoutingTrace trace(meta, {"any"}, {{0, 1, 0, 0, false}, {1, 2, 0, 0, false}},
                           {0, 1, 0, 2, 1, 2, 0, 2, 1, 2, 2, 0});
  CHECK(coactivation_counts(trace) ==
        std::vector<std::int64_t>{0, 1, 0, 1, 0, 2, 0, 2, 0, 0, 0, 3, 0, 0, 0, 3, 0, 0});
  const std::vector<std::size_t> first{0};
  CHECK(coactivation_counts(trace, first) ==
        std::vector<std::int64_t>{0, 1, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0});

  // Both requests of two traces, and the even-numbered one of one.
  Observation pairs;
  pairs.coactivation = true;
  const ExpertStatistics both = observe(std::array{&trace, &trace}, pairs);
  CHECK(both.load == std::vector<ExpertLoad>{{2, 6, 4}, {6, 0, 6}});
  CHECK(both.coactivation[1] == 2);
  Observation half;
  half.fitted_half = true;
  const ExpertStatistics even = observe(std::array{&trace}, half);
  CHECK(even.load == std::vector<ExpertLoad>{{1, 1, 0}, {1, 0, 1}});
  CHECK(even.coactivation.empty());
  CHECK(even.batches.empty());
  CHECK(both.layer(1).coactivation[2] == 6);
}

namespace {

// GPUs that a token's experts stand on, mean over layers and the odd-numbered requests' tokens; of
// a placement without redundancy.
double gpus_per_token(const RoutingTrace& trace, const ExpertPlacement& placement) {
  std::int64_t gpus = 0, tokens = 0;
  trace.visit([&](auto ids) {
    const auto k = static_cast<std::size_t>(trace.experts_per_token());
    for (std::size_t r = 1; r < trace.requests().size(); r += 2) {
      const TraceRequest& request = trace.requests()[r];
      tokens += request.num_tokens;
      for (std::int64_t i = 0; i < request.num_tokens * trace.layers(); ++i) {
        const auto layer = static_cast<std::size_t>(i % trace.layers());
        const auto first = static_cast<std::size_t>(request.row_start * trace.layers() + i) * k;
        std::uint64_t touched = 0;
        for (const auto expert : ids.subspan(first, k)) {
          const int slot = placement[layer].hosts_of(static_cast<int>(expert))[0];
          touched |= std::uint64_t{1} << placement[layer].gpu_of_slot(slot);
        }
        gpus += std::popcount(touched);
      }
    }
  });
  return static_cast<double>(gpus) / static_cast<double>(tokens * trace.layers());
}

}  // namespace

TEST_CASE("coactivation has tokens of gpt-oss visit fewer GPUs than linear does") {
  const auto directory = shared_dir() / "data" / "routing" / "gpt-oss-20b";
  if (!std::filesystem::exists(directory)) {
    WARN("skipped: ../shared/data/routing/gpt-oss-20b is absent");
    return;
  }
  // Fitted on even-numbered requests, tried on the odd ones.
  const RoutingTrace trace = RoutingTrace::open(directory);
  Observation half;
  half.fitted_half = half.coactivation = true;
  const ExpertStatistics seen = observe(std::array{&trace}, half);
  for (const int gpus : {4, 8}) {
    const PlacementProblem problem{32, gpus, 32 / gpus};
    const auto touched = [&](const std::string& policy) {
      return gpus_per_token(trace, place_all(*placer(policy), problem, seen));
    };
    const double linear = touched("linear"), eplb = touched("eplb_distinct");
    const double together = touched("coactivation");
    CHECK(together < 0.95 * linear);
    CHECK(together < 0.95 * eplb);
  }
}

TEST_CASE("sampled batches hold what tokens of distinct requests picked, decode tokens alone") {
  // Two requests of a prompt token and two decode tokens each, top-1 of 4 experts, one layer. The
  // prompts pick expert 3, the first request's decode tokens 0, the second's 1 and 2.
  TraceMeta meta;
  meta.num_experts = 4;
  meta.experts_per_token = 1;
  meta.layer_ids = {0};
  meta.phases = {"prefill", "decode"};
  const RoutingTrace trace(meta, {"any"}, {{0, 3, 1, 0, false}, {3, 3, 1, 0, false}},
                           {3, 0, 0, 3, 1, 2});
  Observation what;
  what.sample = {50, {2}, 1};
  const ExpertStatistics seen = observe(std::array{&trace}, what);
  REQUIRE(seen.batches.size() == 1);
  REQUIRE(seen.layer(0).batches.size() == 50);
  for (const BatchExperts& batch : seen.batches[0]) {
    CHECK((batch == BatchExperts{0, 1} || batch == BatchExperts{0, 2}));
  }
  // As many tokens as give an expert 1, 2 and 4 in the mean: 4, 8 and 16.
  what.sample = {3, {}, 1};
  CHECK(observe(std::array{&trace}, what).batches[0].size() == 9);
  // The prompts' rows where no decode was recorded.
  meta.phases = {"prefill"};
  const RoutingTrace prompts(meta, {"any"}, {{0, 1, 1, 0, false}}, {3, 0, 0, 3, 1, 2});
  what.sample = {2, {1}, 1};
  CHECK(observe(std::array{&prompts}, what).batches[0] == std::vector<BatchExperts>{{3}, {3}});
}

TEST_CASE("the least maximum of batches follows copies that move, and moves that are undone") {
  Rng rng(6, "test/placement");
  for (int round = 0; round < 30; ++round) {
    const int gpus = 2 + static_cast<int>(rng.below(7));
    const int experts = gpus * static_cast<int>(1 + rng.below(5));
    const PlacementProblem problem{experts, gpus, experts / gpus + 1};
    if (problem.slots_per_gpu > experts) continue;
    const std::vector<BatchExperts> batches = random_batches(rng, experts, 20);
    CopyTable table(experts,
                    by_gpu(placer("eplb_distinct")->place(problem, random_load(rng, experts), 0)));
    BatchMatching matching(table, batches);
    const auto exact = [&] {
      const LayerPlacement now(experts, table.experts_on_gpu());
      for (std::size_t b = 0; b < batches.size(); ++b) {
        CHECK(matching.activated(b) == least_activated(now, batches[b]));
        CHECK(matching.activated(b) >= matching.bound(b));
      }
    };
    exact();
    for (int move = 0; move < 20; ++move) {
      const int gpu = static_cast<int>(rng.below(static_cast<std::uint64_t>(gpus)));
      const int slot =
          static_cast<int>(rng.below(static_cast<std::uint64_t>(problem.slots_per_gpu)));
      const int expert = static_cast<int>(rng.below(static_cast<std::uint64_t>(experts)));
      const int held = table.on_gpu(gpu)[static_cast<std::size_t>(slot)];
      if (table.holds(gpu, expert) || table.hosts_of(held).size() < 2) continue;
      const double before = matching.mean_value();
      table.replace(gpu, slot, expert);
      matching.adapt(std::array{held, expert});
      exact();
      if (rng.below(2) == 0) continue;
      table.replace(gpu, slot, held);
      matching.undo();
      CHECK(matching.mean_value() == before);
      exact();
    }
  }
}

TEST_CASE("joint puts experts apart that batches activate together") {
  // Batches activate 0 and 1, or 2 and 3, each two of four experts of one load. EPLB's order by
  // load, ties by lowest id, puts 0 and 2 on GPU 0: nothing to gain there. With batches {0, 2} and
  // {1, 3} it activates two on one GPU; joint one on each.
  const ExpertLoad load{10, 10, 10, 10};
  const std::vector<BatchExperts> batches{{0, 2}, {1, 3}};
  const LayerPlacement eplb = placer("eplb")->place({4, 2, 2}, load, 0);
  const LayerPlacement joint = placer("joint")->place({4, 2, 2}, {load, {}, batches}, 0);
  for (const BatchExperts& batch : batches) {
    CHECK(least_activated(eplb, batch) == 2);
    CHECK(least_activated(joint, batch) == 1);
  }
  CHECK(config_error([&] {
          placer("joint")->place({4, 2, 2}, load, 0);
        }) ==
        "joint needs the experts that batches activate; a load does not hold these; give a routing "
        "trace");
}

TEST_CASE("joint never activates more than experts / GPUs, at any batch and any replication") {
  Rng rng(7, "test/placement");
  for (int round = 0; round < 20; ++round) {
    const int gpus = 2 + static_cast<int>(rng.below(7));
    const int experts = gpus + static_cast<int>(rng.below(40));
    const int most = (experts + gpus - 1) / gpus;
    const PlacementProblem problem{experts, gpus, most + static_cast<int>(rng.below(4))};
    const std::vector<BatchExperts> batches = random_batches(rng, experts, 20);
    const auto policy = R"({"type": "joint", "moves": 300})";
    const LayerPlacement layer =
        placer(policy)->place(problem, {random_load(rng, experts), {}, batches}, round);
    for (const BatchExperts& batch : random_batches(rng, experts, 50)) {
      CHECK(least_activated(layer, batch) <= most);
    }
    BatchExperts all(static_cast<std::size_t>(experts));
    std::iota(all.begin(), all.end(), std::uint16_t{0});
    CHECK(least_activated(layer, all) == most);
  }
}

TEST_CASE("joint keeps each expert group, and all copies from it, on one node") {
  Rng rng(8, "test/placement");
  const PlacementProblem problem{64, 8, 10, 2, 8};
  const LayerPlacement layer =
      placer("joint")->place(problem, {random_load(rng, 64), {}, random_batches(rng, 64, 30)}, 0);
  for (int group = 0; group < 8; ++group) {
    const int node = layer.gpu_of_slot(layer.slots_of(group * 8)[0]) / 4;
    for (int expert = group * 8; expert < group * 8 + 8; ++expert) {
      for (const int slot : layer.slots_of(expert)) CHECK(layer.gpu_of_slot(slot) / 4 == node);
    }
  }
}

TEST_CASE("joint balances tokens as far as its slack when told that they matter") {
  Rng rng(9, "test/placement");
  const PlacementProblem problem{48, 8, 8};
  const ExpertLoad load = random_load(rng, 48);
  const std::vector<BatchExperts> batches = random_batches(rng, 48, 40);
  const auto imbalance_of = [&](const std::string& policy) {
    return imbalance(placer(policy)->place(problem, {load, {}, batches}, 0), load);
  };
  CHECK(imbalance_of(R"({"type": "joint", "token_weight": 100})") < 1.03);
  CHECK(imbalance_of(R"({"type": "joint", "token_weight": 0})") > 1.03);
}

std::vector<int> slots_per_layer(const ExpertPlacement& placement) {
  std::vector<int> slots;
  for (const LayerPlacement& layer : placement) slots.push_back(layer.first_slot(1));
  return slots;
}

TEST_CASE("copies go to the layers where the fullest GPU's load falls most") {
  // 4 experts on 2 GPUs, one more slot on each GPU of one of two layers in the mean. The even layer
  // gains nothing: 20 tokens on each GPU, with copies and without. Of the other one the fullest GPU
  // has 90 of 100 tokens, fewer with each slot.
  const PlacementProblem problem{4, 2, 3};
  const ExpertStatistics seen{{{10, 10, 10, 10}, {85, 5, 5, 5}}};
  const ExpertPlacement placed = place_by_gain(*placer("eplb"), problem, seen);
  CHECK(slots_per_layer(placed) == std::vector{2, 4});
  // As many slots in all as with equal layers.
  const ExpertPlacement uniform = place_all(*placer("eplb"), problem, seen);
  CHECK(slots_per_layer(uniform) == std::vector{3, 3});
  CHECK(imbalance(placed[1], seen.load[1]) < imbalance(uniform[1], seen.load[1]));
}

TEST_CASE("layers alike get as many copies each, and all copies are given") {
  Rng rng(5, "test/placement");
  for (int round = 0; round < 20; ++round) {
    const int gpus = 2 + static_cast<int>(rng.below(4)), experts = gpus * 4;
    const PlacementProblem problem{experts, gpus, 4 + static_cast<int>(rng.below(5))};
    const ExpertLoad load = random_load(rng, experts);
    const ExpertStatistics alike{std::vector<ExpertLoad>(5, load)};
    CHECK(place_by_gain(*placer("eplb"), problem, alike) ==
          place_all(*placer("eplb"), problem, alike));
    ExpertStatistics unlike{{load}};
    for (int layer = 0; layer < 4; ++layer) unlike.load.push_back(random_load(rng, experts));
    const std::vector<int> slots = slots_per_layer(place_by_gain(*placer("eplb"), problem, unlike));
    CHECK(std::accumulate(slots.begin(), slots.end(), 0) == 5 * problem.slots_per_gpu);
  }
}

TEST_CASE("with sampled batches copies go where the busiest GPU activates fewer experts") {
  // 9 experts on 3 GPUs. Batches of layer 0 activate one expert of each GPU. Those of layer 1
  // activate the three of GPU 0: 3, with a slot more 2 (copies of 0, 1 and 2 on GPU 2), with two 1.
  const PlacementProblem problem{9, 3, 4};
  ExpertStatistics seen{{ExpertLoad(9, 10), ExpertLoad(9, 10)}};
  seen.batches = {std::vector<BatchExperts>(8, {0, 3, 6}), std::vector<BatchExperts>(8, {0, 1, 2})};
  CHECK(slots_per_layer(place_by_gain(*placer("linear"), problem, seen)) == std::vector{3, 5});
}

}  // namespace moesim::test_placement
