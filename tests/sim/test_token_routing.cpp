// SPDX-License-Identifier: Apache-2.0
// Does every routing serve every token, and is the optimum the optimum?
#include <algorithm>
#include <functional>
#include <limits>
#include <numeric>

#include <fmt/format.h>

#include "hardware/at.hpp"
#include "hardware/rng.hpp"
#include "sim/token_routing/metro_turns.hpp"
#include "sim/token_routing/token_routing.hpp"
#include "tests/support.hpp"

namespace moesim::test_token_routing {

using namespace moesim::test;

namespace {

using Tokens = std::vector<std::int32_t>;
using ExpertsOnGpu = std::vector<std::vector<int>>;

std::unique_ptr<TokenRouter> router(const std::string& policy, const ExpertPlacement& placement) {
  return token_routers().make(config(policy))({placement});
}

// Top-1 tokens that add up to the counts, in an order that mixes the experts, over the ranks in
// turn.
struct Rows {
  std::vector<std::uint16_t> ids;
  std::vector<std::int32_t> source_rank;
};

Rows rows_of(const Tokens& tokens, int ranks) {
  Rows rows;
  for (std::int32_t round = 0, left = 1; left > 0; ++round) {
    left = 0;
    for (std::size_t expert = 0; expert < tokens.size(); ++expert) {
      if (round >= tokens[expert]) continue;
      rows.ids.push_back(static_cast<std::uint16_t>(expert));
      ++left;
    }
  }
  for (std::size_t token = 0; token < rows.ids.size(); ++token) {
    rows.source_rank.push_back(static_cast<std::int32_t>(token * at(ranks) / rows.ids.size()));
  }
  return rows;
}

// What the caller's memory held before must not matter.
Tokens route(const TokenRouter& router, const LayerPlacement& placement, const Tokens& tokens,
             std::uint64_t step = 0) {
  const Rows rows = rows_of(tokens, placement.gpus());
  Tokens tokens_of_slot(at(placement.slots()), -1);
  Tokens slot_of_selection(router.needs_token_rows() ? rows.ids.size() : 0, -7);
  router.route({placement, tokens, 0, step, {rows.ids, rows.source_rank}},
               {tokens_of_slot, slot_of_selection});
  return tokens_of_slot;
}

Tokens route(const std::string& policy, const LayerPlacement& placement, const Tokens& tokens,
             std::uint64_t step = 0) {
  const ExpertPlacement placements{placement};
  return route(*router(policy, placements), placements[0], tokens, step);
}

// The slot of every selection of the tokens, [tokens, k].
Tokens slots_chosen(const std::string& policy, const LayerPlacement& placement,
                    const std::vector<std::uint16_t>& ids,
                    const std::vector<std::int32_t>& source_rank) {
  const ExpertPlacement placements{placement};
  Tokens tokens(at(placement.experts()));
  for (const std::uint16_t id : ids) ++tokens[id];
  Tokens tokens_of_slot(at(placement.slots()));
  Tokens slot_of_selection(ids.size());
  router(policy, placements)
      ->route({placements[0], tokens, 0, 0, {ids, source_rank}},
              {tokens_of_slot, slot_of_selection});
  Tokens counted(tokens_of_slot.size());
  for (const std::int32_t slot : slot_of_selection) {
    ++counted[at(slot)];
  }
  CHECK(counted == tokens_of_slot);
  return slot_of_selection;
}

LayerLoad load_of(const std::string& policy, const LayerPlacement& placement,
                  const Tokens& tokens) {
  return layer_load(placement, route(policy, placement, tokens));
}

// Those that decide token by token.
std::vector<std::string> row_policies() {
  return {R"("random")", R"("vllm")", R"("vllm_legacy")", R"("trtllm")", R"("sglang_static")"};
}

std::vector<std::string> count_policies() {
  return {R"("even")",
          R"("static_primary")",
          R"("metro")",
          R"({"type":"metro","order":"random"})",
          R"({"type":"metro","order":"fewest_replicas"})",
          R"("optimal")",
          R"("token_balanced")",
          R"("lplb")",
          R"("hybrid")",
          R"("tempo")"};
}

std::vector<std::string> all_policies() {
  std::vector<std::string> policies = count_policies();
  for (const std::string& policy : row_policies()) policies.push_back(policy);
  return policies;
}

int active_experts(const Tokens& tokens) {
  return static_cast<int>(
      std::count_if(tokens.begin(), tokens.end(), [](auto t) { return t > 0; }));
}

struct Problem {
  ExpertsOnGpu experts_on_gpu;
  Tokens tokens;
  LayerPlacement placement() const { return {static_cast<int>(tokens.size()), experts_on_gpu}; }
};

// GPUs of unequal size, experts with one to many hosts, copies on one GPU now and then.
Problem random_problem(Rng& rng) {
  const std::uint64_t gpus = 1 + rng.below(12);
  const std::uint64_t experts = 1 + rng.below(40);
  Problem problem{ExpertsOnGpu(gpus), Tokens(experts)};
  const auto put = [&](std::uint64_t expert) {
    problem.experts_on_gpu[rng.below(gpus)].push_back(static_cast<int>(expert));
  };
  for (std::uint64_t expert = 0; expert < experts; ++expert) put(expert);
  for (std::uint64_t copies = rng.below(experts + 1); copies > 0; --copies) put(rng.below(experts));
  for (auto& tokens : problem.tokens) {
    if (rng.below(3) > 0) tokens = static_cast<std::int32_t>(rng.below(20));
  }
  return problem;
}

Tokens sorted_down(Tokens values) {
  std::sort(values.rbegin(), values.rend());
  return values;
}

// Every assignment of active experts to GPUs, tried: the smallest sorted load vector.
Tokens best_loads(const LayerPlacement& placement, const Tokens& tokens, int expert, Tokens loads) {
  if (expert == placement.experts()) return sorted_down(loads);
  if (tokens[at(expert)] == 0) {
    return best_loads(placement, tokens, expert + 1, loads);
  }
  Tokens best;
  for (const int slot : placement.hosts_of(expert)) {
    auto& load = loads[at(placement.gpu_of_slot(slot))];
    ++load;
    const Tokens found = best_loads(placement, tokens, expert + 1, loads);
    if (best.empty() || found < best) best = found;
    --load;
  }
  return best;
}

// The exact semi-matching by its definition, restart and all: the GPU that serves each expert, or
// -1.
std::vector<int> semi_matching(const LayerPlacement& placement, const Tokens& tokens) {
  std::vector<int> order;
  for (int i = 0; i < placement.experts(); ++i) {
    if (tokens[at(i)] > 0) order.push_back(i);
  }
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
    return placement.hosts_of(a).size() < placement.hosts_of(b).size();
  });
  std::vector<int> gpu_of(tokens.size(), -1), load(at(placement.gpus()));
  for (const int i : order) {
    for (const int slot : placement.hosts_of(i)) {
      const int gpu = placement.gpu_of_slot(slot);
      if (gpu_of[at(i)] < 0 || load[at(gpu)] < load[at(gpu_of[at(i)])]) gpu_of[at(i)] = gpu;
    }
    ++load[at(gpu_of[at(i)])];
  }
  const auto shift_from = [&](int start) {
    std::vector<int> queue{start}, via(load.size(), -1), from(load.size(), -1);
    from[at(start)] = start;
    for (std::size_t head = 0; head < queue.size(); ++head) {
      const int gpu = queue[head];
      if (load[at(gpu)] <= load[at(start)] - 2) {
        ++load[at(gpu)];
        --load[at(start)];
        for (int h = gpu; h != start; h = from[at(h)]) gpu_of[at(via[at(h)])] = h;
        return true;
      }
      for (int i = 0; i < placement.experts(); ++i) {
        if (gpu_of[at(i)] != gpu) continue;
        for (const int slot : placement.hosts_of(i)) {
          const int host = placement.gpu_of_slot(slot);
          if (from[at(host)] >= 0) continue;
          via[at(host)] = i;
          from[at(host)] = gpu;
          queue.push_back(host);
        }
      }
    }
    return false;
  };
  for (bool shifted = true; shifted;) {
    std::vector<int> gpus(load.size());
    std::iota(gpus.begin(), gpus.end(), 0);
    std::stable_sort(gpus.begin(), gpus.end(),
                     [&](int a, int b) { return load[at(a)] > load[at(b)]; });
    shifted = std::any_of(gpus.begin(), gpus.end(), shift_from);
  }
  return gpu_of;
}

// The slots an oracle describes: as listed, or one slot per expert on each of its GPUs.
ExpertsOnGpu oracle_placement(const Json& input) {
  if (!input.at("slots_per_gpu").is_null()) return input.at("slots_per_gpu").get<ExpertsOnGpu>();
  const auto hosted = input.at("A").get<std::vector<std::vector<int>>>();  // [expert][gpu]
  ExpertsOnGpu experts_on_gpu(input.at("G").get<std::size_t>());
  for (std::size_t expert = 0; expert < hosted.size(); ++expert) {
    for (std::size_t gpu = 0; gpu < experts_on_gpu.size(); ++gpu) {
      if (hosted[expert][gpu] == 1) experts_on_gpu[gpu].push_back(static_cast<int>(expert));
    }
  }
  return experts_on_gpu;
}

void check_oracle(const Json& oracle) {
  const Json& input = oracle.at("input");
  const auto tokens = input.at("T").get<Tokens>();
  const LayerPlacement placement(static_cast<int>(tokens.size()), oracle_placement(input));

  const LayerLoad optimal = load_of(R"("optimal")", placement, tokens);
  CHECK(optimal.max_activated == oracle.at("lambda").get<int>());
  CHECK(sorted_down(optimal.activated) ==
        oracle.at("optimum").at("lexmin_sorted_loads").get<Tokens>());

  const Json& greedy = oracle.at("metro_greedy");
  const Tokens metro = route(R"("metro")", placement, tokens);
  CHECK(layer_load(placement, metro).activated == greedy.at("ascending_id").at("L").get<Tokens>());
  for (const auto& [expert, gpu] :
       greedy.at("ascending_id").at("assignment").get<std::vector<std::pair<int, int>>>()) {
    int served_by = -1;
    for (const int slot : placement.slots_of(expert)) {
      if (metro[at(slot)] > 0) served_by = placement.gpu_of_slot(slot);
    }
    CAPTURE(expert);
    CHECK(served_by == gpu);
  }
  CHECK(load_of(R"({"type":"metro","order":"fewest_replicas"})", placement, tokens).max_activated ==
        greedy.at("fewest_replicas_first").at("lam").get<int>());

  if (!oracle.contains("even_split")) return;
  const LayerLoad even = load_of(R"("even")", placement, tokens);
  CHECK(even.activated == oracle.at("even_split").at("activated_slots_per_gpu").get<Tokens>());
  CHECK(even.tokens == oracle.at("even_split").at("tokens_per_gpu").get<Tokens>());
}

}  // namespace

TEST_CASE("the even split gives every replica its share, the first ones one token more") {
  // Expert 0: slots 0, 1, 3 share 8 tokens as 3 3 2. Expert 1: slot 2. Expert 2: slots 4, 5, one
  // token: only slot 4 is active.
  const LayerPlacement placement(3, {{0, 0, 1}, {0, 2, 2}});
  CHECK(route(R"("even")", placement, {8, 5, 1}) == Tokens{3, 3, 5, 2, 1, 0});
  const LayerLoad load = load_of(R"("even")", placement, {8, 5, 1});
  CHECK(load.activated == Tokens{3, 2});
  CHECK(load.tokens == Tokens{11, 3});
  CHECK(load.max_activated == 3);
  CHECK(load.max_tokens == 11);
}

TEST_CASE("METRO takes the GPU with the fewest active experts so far, ties to the lowest") {
  // All three on GPUs 0 and 1: expert 0 -> GPU 0 (tie), 1 -> GPU 1, 2 -> GPU 0 (tie).
  const LayerPlacement placement(3, {{0, 1, 2}, {0, 1, 2}});
  CHECK(route(R"("metro")", placement, {4, 4, 4}) == Tokens{4, 0, 4, 0, 4, 0});
  CHECK(route(R"("metro")", placement, {4, 0, 4}) == Tokens{4, 0, 0, 0, 0, 4});
}

// Algorithm 1 as it is printed, experts by id.
Tokens metro_by_hand(const LayerPlacement& placement, const Tokens& tokens) {
  std::vector<int> active(at(placement.gpus()));
  Tokens tokens_of_slot(at(placement.slots()));
  for (int expert = 0; expert < placement.experts(); ++expert) {
    if (tokens[at(expert)] == 0) continue;
    const auto slots = placement.hosts_of(expert);
    const auto slot = *std::min_element(slots.begin(), slots.end(), [&](int a, int b) {
      return active[at(placement.gpu_of_slot(a))] < active[at(placement.gpu_of_slot(b))];
    });
    ++active[at(placement.gpu_of_slot(slot))];
    tokens_of_slot[at(slot)] = tokens[at(expert)];
  }
  return tokens_of_slot;
}

TEST_CASE("METRO decides as its algorithm does by hand, on few GPUs and on very many") {
  Rng rng(7, "test/metro_by_hand");
  for (int i = 0; i < 300; ++i) {
    Problem problem = random_problem(rng);
    CAPTURE(i);
    REQUIRE(route(R"("metro")", problem.placement(), problem.tokens) ==
            metro_by_hand(problem.placement(), problem.tokens));
    if (i >= 3) continue;
    problem.experts_on_gpu.resize(17000, {0});
    REQUIRE(route(R"("metro")", problem.placement(), problem.tokens) ==
            metro_by_hand(problem.placement(), problem.tokens));
  }
}

TEST_CASE("METRO's turns choose the same in lanes of a register as one count at a time") {
  Rng rng(8, "test/metro_turns");
  std::vector<std::int32_t> memory;
  for (int i = 0; i < 300; ++i) {
    Problem problem = random_problem(rng);
    if (i % 10 == 0) problem.experts_on_gpu.resize(16, {0});
    const LayerPlacement placement = problem.placement();
    std::vector<std::int32_t> order(at(placement.experts()));
    std::iota(order.begin(), order.end(), 0);
    std::ranges::reverse(order);
    Tokens in_lanes(at(placement.slots()), -7), plain(at(placement.slots()), -8);
    MetroTurns(placement, order).route(problem.tokens, in_lanes, memory);
    MetroTurns(placement, order, false).route(problem.tokens, plain, memory);
    CAPTURE(i);
    REQUIRE(in_lanes == plain);
  }
  // 127 of the slots of a GPU are counted in a lane; one more makes its placement go the plain way.
  for (const int slots : {127, 128, 300}) {
    std::vector<int> of_all(at(slots));
    std::iota(of_all.begin(), of_all.end(), 0);
    const LayerPlacement placement(slots, {of_all, of_all, {0}});
    Tokens in_lanes(at(placement.slots())), plain(in_lanes);
    const Tokens tokens(at(slots), 1);
    MetroTurns(placement, of_all).route(tokens, in_lanes, memory);
    MetroTurns(placement, of_all, false).route(tokens, plain, memory);
    CHECK(in_lanes == plain);
    CHECK(in_lanes == metro_by_hand(placement, tokens));
  }
}

TEST_CASE("METRO's order of experts matters: few replicas first avoids its trap") {
  // By id: expert 0 takes GPU 0 (tie), where expert 1 must go too. Expert 1 first leaves GPU 1.
  const LayerPlacement placement(2, {{0, 1}, {0}});
  CHECK(route(R"("metro")", placement, {1, 1}) == Tokens{1, 1, 0});
  CHECK(route(R"({"type":"metro","order":"fewest_replicas"})", placement, {1, 1}) ==
        Tokens{0, 1, 1});
}

TEST_CASE("METRO in random order repeats for a seed, layer and step, and differs between steps") {
  const std::string policy = R"({"type":"metro","order":"random","seed":7})";
  ExpertsOnGpu everywhere(4, std::vector<int>(16));
  for (auto& experts : everywhere) std::iota(experts.begin(), experts.end(), 0);
  const LayerPlacement placement(16, everywhere);
  const Tokens tokens(16, 1);
  const Tokens first = route(policy, placement, tokens, 1);
  CHECK(first == route(policy, placement, tokens, 1));
  CHECK(first != route(policy, placement, tokens, 2));
  CHECK(first != route(R"({"type":"metro","order":"random","seed":8})", placement, tokens, 1));
}

TEST_CASE("the optimum shifts along a path where no single move helps") {
  // Few replicas first, ties to the lowest GPU: 0 -> GPU 0, 1 -> GPU 1, 2 -> GPU 0, 3 -> GPU 0:
  // loads 3 1 0. Expert 0 can go to GPU 1 only, so expert 1 must make room on GPU 2: 2 1 1.
  const LayerPlacement placement(4, {{0, 2, 3}, {0, 1}, {1}});
  CHECK(load_of(R"("optimal")", placement, {1, 1, 1, 1}).activated == Tokens{2, 1, 1});
}

TEST_CASE("static_primary keeps to its replica, whatever the tokens") {
  const LayerPlacement placement(3, {{0, 1, 2}, {0, 1, 2}, {0, 1, 2}});
  const Tokens all = route(R"("static_primary")", placement, {1, 1, 1});
  CHECK(layer_load(placement, all).activated == Tokens{1, 1, 1});
  for (std::size_t expert = 0; expert < 3; ++expert) {
    Tokens alone(3);
    alone[expert] = 5;
    const Tokens tokens_of_slot = route(R"("static_primary")", placement, alone);
    for (std::size_t slot = 0; slot < 9; ++slot) {
      CHECK(tokens_of_slot[slot] == (slot % 3 == expert ? 5 * all[slot] : 0));
    }
  }
}

TEST_CASE("static_primary evens out what is likely to be active, where a load was seen") {
  // Experts 0 and 2 are active, 1 and 3 hardly ever; every expert has a copy on both GPUs. As if
  // all were active GPU 0 serves 0 and 2, GPU 1 serves 1 and 3.
  const ExpertPlacement placement{LayerPlacement(4, {{0, 1, 2, 3}, {0, 1, 2, 3}})};
  const std::vector<ExpertLoad> load{{100, 1, 100, 1}};
  const auto activated = [&](const std::string& policy, std::span<const ExpertLoad> seen) {
    const auto router = token_routers().make(test::config(policy))({placement, {}, seen});
    return layer_load(placement[0], route(*router, placement[0], {5, 0, 5, 0})).activated;
  };
  CHECK(activated(R"("static_primary")", {}) == Tokens{2, 0});
  CHECK(activated(R"("static_primary")", load) == Tokens{1, 1});
  CHECK(activated(R"({"type": "static_primary", "tokens_per_expert": 0})", load) == Tokens{2, 0});
}

TEST_CASE("static_primary never serves more experts on a GPU than the optimum of a full step") {
  Rng rng(11, "test/static_primary");
  for (int round = 0; round < 50; ++round) {
    const Problem problem = random_problem(rng);
    const ExpertPlacement placement{problem.placement()};
    ExpertLoad load;
    for (int e = 0; e < placement[0].experts(); ++e) load.push_back(double(rng.below(1000)));
    const std::vector<ExpertLoad> seen{load};
    const Tokens all(at(placement[0].experts()), 1);
    const auto router =
        token_routers().make(test::config(R"("static_primary")"))({placement, {}, seen});
    CHECK(layer_load(placement[0], route(*router, placement[0], all)).max_activated ==
          load_of(R"("optimal")", placement[0], all).max_activated);
  }
}

TEST_CASE("routers say whether they need the whole group's counts, or token rows") {
  const ExpertPlacement placement{LayerPlacement(1, {{0}})};
  const std::vector<std::string> global{R"("metro")", R"("optimal")", R"("token_balanced")",
                                        R"("lplb")", R"("hybrid")"};
  for (const std::string& policy : global) {
    CHECK(router(policy, placement)->needs_global_counts());
  }
  CHECK_FALSE(router(R"("even")", placement)->needs_global_counts());
  CHECK_FALSE(router(R"("static_primary")", placement)->needs_global_counts());
  for (const std::string& policy : count_policies()) {
    CHECK_FALSE(router(policy, placement)->needs_token_rows());
  }
  for (const std::string& policy : row_policies()) {
    CHECK(router(policy, placement)->needs_token_rows());
    CHECK_FALSE(router(policy, placement)->needs_global_counts());
  }
}

TEST_CASE("an unknown routing option is refused") {
  const ExpertPlacement placement{LayerPlacement(1, {{0}})};
  CHECK_THAT(config_error([&] { router(R"({"type":"metro","order":"size"})", placement); }),
             Catch::Matchers::Contains("/order: unknown \"size\""));
  CHECK_THAT(config_error([&] { router(R"({"type":"metro","seed":1})", placement); }),
             Catch::Matchers::Contains("unknown key \"seed\""));
}

TEST_CASE("exact optima, METRO's greedy and the even split match the known answers") {
  if (!has_shared()) {
    WARN("skipped: ../shared is absent");
    return;
  }
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(shared_dir() / "oracles")) {
    if (entry.path().filename().string().starts_with("minexp_")) files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  for (const auto& file : files) {
    DYNAMIC_SECTION(file.filename().string()) { check_oracle(ConfigNode::from_file(file).json()); }
  }
}

TEST_CASE("every routing serves every token on a slot of its expert, and none beats the optimum") {
  Rng rng(1, "test/token_routing");
  for (int round = 0; round < 300; ++round) {
    const Problem problem = random_problem(rng);
    const LayerPlacement placement = problem.placement();
    const std::int32_t lambda = load_of(R"("optimal")", placement, problem.tokens).max_activated;
    const int gpus = placement.gpus();
    CHECK(lambda >= (active_experts(problem.tokens) + gpus - 1) / gpus);
    for (const std::string& policy : all_policies()) {
      CAPTURE(policy, round);
      const Tokens tokens_of_slot = route(policy, placement, problem.tokens);
      CHECK(*std::min_element(tokens_of_slot.begin(), tokens_of_slot.end()) >= 0);
      Tokens served(problem.tokens.size());
      for (std::size_t slot = 0; slot < tokens_of_slot.size(); ++slot) {
        const int expert = placement.expert_of_slot(static_cast<int>(slot));
        served[at(expert)] += tokens_of_slot[slot];
      }
      CHECK(served == problem.tokens);
      CHECK(layer_load(placement, tokens_of_slot).max_activated >= lambda);
    }
  }
}

TEST_CASE("the optimum's sorted loads are the smallest of all assignments") {
  Rng rng(2, "test/token_routing");
  for (int round = 0; round < 200; ++round) {
    Problem problem = random_problem(rng);
    for (std::size_t expert = 10; expert < problem.tokens.size(); ++expert) {
      problem.tokens[expert] = 0;  // keep the number of assignments small
    }
    const LayerPlacement placement = problem.placement();
    const Tokens none(at(placement.gpus()));
    CHECK(sorted_down(load_of(R"("optimal")", placement, problem.tokens).activated) ==
          best_loads(placement, problem.tokens, 0, none));
  }
}

TEST_CASE(
    "the optimum is the published procedure's to the tie-break, though it settles GPUs early") {
  Rng rng(6, "test/token_routing");
  for (int round = 0; round < 500; ++round) {
    const Problem problem = random_problem(rng);
    const LayerPlacement placement = problem.placement();
    const std::vector<int> gpu_of = semi_matching(placement, problem.tokens);
    Tokens expected(at(placement.slots()));
    for (std::size_t expert = 0; expert < gpu_of.size(); ++expert) {
      for (const int slot : placement.hosts_of(static_cast<int>(expert))) {
        if (placement.gpu_of_slot(slot) == gpu_of[expert]) {
          expected[at(slot)] = problem.tokens[expert];
        }
      }
    }
    CAPTURE(round);
    CHECK(route(R"("optimal")", placement, problem.tokens) == expected);
  }
}

TEST_CASE("another replica never raises the optimum, and other GPU numbers do not change it") {
  Rng rng(3, "test/token_routing");
  for (int round = 0; round < 200; ++round) {
    Problem problem = random_problem(rng);
    const LayerLoad before = load_of(R"("optimal")", problem.placement(), problem.tokens);

    Problem renumbered = problem;
    for (std::size_t left = renumbered.experts_on_gpu.size(); left > 1; --left) {
      std::swap(renumbered.experts_on_gpu[rng.below(left)], renumbered.experts_on_gpu[left - 1]);
    }
    const LayerLoad same = load_of(R"("optimal")", renumbered.placement(), problem.tokens);
    CHECK(sorted_down(same.activated) == sorted_down(before.activated));

    const auto expert = static_cast<int>(rng.below(problem.tokens.size()));
    problem.experts_on_gpu[rng.below(problem.experts_on_gpu.size())].push_back(expert);
    const LayerLoad after = load_of(R"("optimal")", problem.placement(), problem.tokens);
    CHECK(after.max_activated <= before.max_activated);
  }
}

TEST_CASE("without replicas all routings agree; with every expert on every GPU METRO is exact") {
  Rng rng(4, "test/token_routing");
  for (int round = 0; round < 50; ++round) {
    Problem problem = random_problem(rng);
    const auto gpus = problem.experts_on_gpu.size();
    const auto experts = static_cast<int>(problem.tokens.size());
    ExpertsOnGpu once(gpus);
    ExpertsOnGpu everywhere(gpus);
    for (int expert = 0; expert < experts; ++expert) {
      once[rng.below(gpus)].push_back(expert);
      for (auto& on_gpu : everywhere) on_gpu.push_back(expert);
    }
    const LayerPlacement single(experts, once);
    for (const std::string& policy : all_policies()) {
      CHECK(route(policy, single, problem.tokens) == route(R"("even")", single, problem.tokens));
    }
    const LayerPlacement full(experts, everywhere);
    CHECK(load_of(R"("metro")", full, problem.tokens).activated ==
          load_of(R"("optimal")", full, problem.tokens).activated);
  }
}

TEST_CASE("what a router keeps between calls never changes a decision") {
  Rng rng(5, "test/token_routing");
  for (int round = 0; round < 100; ++round) {
    const Problem problem = random_problem(rng);
    const ExpertPlacement placement{problem.placement()};
    for (const std::string& policy : all_policies()) {
      const auto kept = router(policy, placement);
      for (int step = 0; step < 4; ++step) {
        Tokens tokens = problem.tokens;
        for (std::int32_t& count : tokens) count = static_cast<std::int32_t>(rng.below(9));
        const auto now = static_cast<std::uint64_t>(step);
        CHECK(route(*kept, placement[0], tokens, now) == route(policy, placement[0], tokens, now));
      }
    }
  }
}

namespace {

// The Hall bound of min-max token balance: over all sets of GPUs, the tokens that have nowhere else
// to go, shared evenly.
std::int32_t hall_bound(const LayerPlacement& placement, const Tokens& tokens) {
  std::int32_t bound = 0;
  for (unsigned set = 1; set < 1U << placement.gpus(); ++set) {
    std::int32_t confined = 0;
    for (int expert = 0; expert < placement.experts(); ++expert) {
      const auto hosts = placement.hosts_of(expert);
      const bool inside = std::all_of(hosts.begin(), hosts.end(), [&](std::int32_t slot) {
        return (set >> placement.gpu_of_slot(slot) & 1) != 0;
      });
      if (inside) confined += tokens[at(expert)];
    }
    const int size = __builtin_popcount(set);
    bound = std::max(bound, (confined + size - 1) / size);
  }
  return bound;
}

int active_slots(const Tokens& tokens_of_slot) { return active_experts(tokens_of_slot); }

std::string hybrid(double weight_time, double token_time) {
  return fmt::format(R"({{"type":"hybrid","weight_time":{},"token_time":{}}})", weight_time,
                     token_time);
}

double objective(double weight_time, double token_time, const LayerLoad& load) {
  return std::max(weight_time * load.max_activated, token_time * load.max_tokens);
}

std::vector<Json> oracles(const std::string& prefix) {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(shared_dir() / "oracles")) {
    if (entry.path().filename().string().starts_with(prefix)) files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  std::vector<Json> found;
  for (const auto& file : files) {
    found.push_back(ConfigNode::from_file(file).json());
    found.back()["file"] = file.filename().string();
  }
  return found;
}

}  // namespace

TEST_CASE("vllm and vllm_legacy take the replicas of the table, row by row") {
  if (!has_shared()) {
    WARN("skipped: ../shared is absent");
    return;
  }
  const Json oracle = oracles("replica_vllm").at(0);
  // Experts 0..4 with 1..5 replicas, one a GPU at most: slots 0 | 1 2 | 3 4 5 | ... by expert.
  ExpertsOnGpu slots(1);
  for (int expert = 0; expert < 5; ++expert) {
    for (int replica = 0; replica <= expert; ++replica) slots[0].push_back(expert);
  }
  const LayerPlacement placement(5, slots);
  const auto table = oracle.at("table_token_0_39").get<std::vector<Tokens>>();
  std::vector<std::uint16_t> ids;
  for (std::size_t token = 0; token < table.size(); ++token) {
    for (std::uint16_t expert = 0; expert < 5; ++expert) ids.push_back(expert);
  }
  const Tokens chosen = slots_chosen(R"("vllm")", placement, ids, Tokens(table.size()));
  for (std::size_t token = 0; token < table.size(); ++token) {
    for (int expert = 0; expert < 5; ++expert) {
      const auto e = static_cast<std::size_t>(expert);
      CAPTURE(token, expert);
      CHECK(chosen[token * 5 + e] - placement.slots_of(expert)[0] == table[token][e]);
    }
  }

  const auto legacy = oracle.at("old_table_topk8").get<std::vector<Tokens>>();
  ExpertsOnGpu twice(2);
  for (auto& on_gpu : twice) on_gpu = {0, 1, 2, 3, 4, 5, 6, 7};
  const LayerPlacement pairs(8, twice);
  ids.clear();
  for (std::size_t token = 0; token < legacy.size(); ++token) {
    for (std::uint16_t expert = 0; expert < 8; ++expert) ids.push_back(expert);
  }
  const Tokens old = slots_chosen(R"("vllm_legacy")", pairs, ids, Tokens(legacy.size()));
  for (std::size_t i = 0; i < old.size(); ++i) {
    CHECK(pairs.gpu_of_slot(old[i]) == legacy[i / 8][i % 8]);
  }
}

TEST_CASE("engines count rows from zero on every rank") {
  // Expert 0 on both GPUs. vllm: row 0 -> replica 0, row 1 -> 2654435769 mod 2 = 1.
  const LayerPlacement placement(1, {{0}, {0}});
  CHECK(slots_chosen(R"("vllm")", placement, {0, 0, 0, 0}, {0, 0, 1, 1}) == Tokens{0, 1, 0, 1});
  CHECK(slots_chosen(R"("vllm_legacy")", placement, {0, 0, 0, 0}, {0, 0, 1, 1}) ==
        Tokens{0, 1, 0, 1});
}

TEST_CASE("trtllm goes round an expert's replicas, from another one on every rank and block") {
  const LayerPlacement placement(2, {{0, 1}, {0, 1}});  // expert 0: slots 0 2, expert 1: 1 3
  CHECK(slots_chosen(R"("trtllm")", placement, {0, 1, 0, 1, 0, 1}, {0, 0, 1}) ==
        Tokens{0, 1, 2, 3, 2, 3});
  // 1,026 selections of expert 0 on rank 0: the last two are occurrences 0 and 1 of block 1.
  const std::vector<std::uint16_t> many(1026);
  const Tokens chosen = slots_chosen(R"("trtllm")", placement, many, Tokens(1026));
  CHECK(chosen[1023] == 2);
  CHECK(chosen[1024] == 2);
  CHECK(chosen[1025] == 0);
}

TEST_CASE("sglang_static serves a rank by its own copy, and deals the other ranks out fairly") {
  // Expert 0 on GPUs 0 and 1 of 6: the other four ranks are dealt out two and two.
  const LayerPlacement placement(2, {{0, 1}, {0, 1}, {1}, {1}, {1}, {1}});
  const Tokens chosen =
      slots_chosen(R"("sglang_static")", placement, {0, 0, 0, 0, 0, 0}, {0, 1, 2, 3, 4, 5});
  CHECK(chosen[0] == 0);
  CHECK(chosen[1] == 2);
  CHECK(std::count(chosen.begin(), chosen.end(), 0) == 3);
  CHECK(std::count(chosen.begin(), chosen.end(), 2) == 3);
  CHECK(slots_chosen(R"("sglang_static")", placement, {1, 1, 1, 1, 1, 1}, {0, 1, 2, 3, 4, 5}) ==
        Tokens{1, 3, 4, 5, 6, 7});
}

TEST_CASE("a routing that needs token rows takes no counts alone") {
  const ExpertPlacement placement{LayerPlacement(1, {{0}})};
  Tokens tokens_of_slot(1);
  const Tokens tokens{1};
  CHECK_THROWS_AS(router(R"("vllm")", placement)->route({placement[0], tokens}, {tokens_of_slot}),
                  std::logic_error);
}

TEST_CASE("random routing repeats for a seed, layer and step, and uses every replica alike") {
  const LayerPlacement placement(1, {{0}, {0}, {0}, {0}});
  const Tokens first = route(R"("random")", placement, {4000}, 1);
  CHECK(first == route(R"("random")", placement, {4000}, 1));
  CHECK(first != route(R"("random")", placement, {4000}, 2));
  CHECK(first != route(R"({"type":"random","seed":1})", placement, {4000}, 1));
  // 1,000 expected each, standard deviation 27.
  for (const std::int32_t tokens : first) CHECK(std::abs(tokens - 1000) < 5 * 27);
}

TEST_CASE("token_balanced splits an expert only as far as balance needs") {
  // 10 + 2 tokens on two GPUs that hold both: 6 each, with one split.
  const LayerPlacement placement(2, {{0, 1}, {0, 1}});
  const Tokens x = route(R"("token_balanced")", placement, {10, 2});
  CHECK(layer_load(placement, x).max_tokens == 6);
  CHECK(active_slots(x) == 3);
  // 6 + 6: no split at all.
  CHECK(active_slots(route(R"("token_balanced")", placement, {6, 6})) == 2);
}

TEST_CASE("lplb draws replicas by the shares that balance best") {
  // Expert 0 with 90 tokens on both GPUs, expert 1 with 30 on the first alone: the best balance is
  // 60 a GPU, so a third of expert 0's tokens go to the first GPU.
  const ExpertPlacement placement{LayerPlacement(2, {{0, 1}, {0}})};
  const auto lplb = router(R"("lplb")", placement);
  const Tokens tokens{90, 30};
  constexpr int steps = 400;
  double sum = 0, squares = 0;
  for (std::uint64_t step = 0; step < steps; ++step) {
    Tokens slots(3);
    lplb->route({placement[0], tokens, 0, step}, {slots});
    REQUIRE(slots[0] + slots[2] == 90);
    REQUIRE(slots[1] == 30);
    sum += slots[0];
    squares += std::pow(slots[0] - 30.0, 2);
    Tokens again(3);
    lplb->route({placement[0], tokens, 0, step}, {again});
    REQUIRE(again == slots);
  }
  // A binomial of 90 draws at 1/3: mean 30, variance 20; four standard errors.
  CHECK_THAT(sum / steps, WithinAbs(30, 4 * std::sqrt(20.0 / steps)));
  CHECK_THAT(squares / steps, WithinRel(20.0, 0.3));
  // A share of nothing is never drawn.
  CHECK(route(R"("lplb")", LayerPlacement(2, {{0, 1}, {0}}), {10, 90})[0] == 0);
}

TEST_CASE("token_balanced matches the known optima") {
  if (!has_shared()) {
    WARN("skipped: ../shared is absent");
    return;
  }
  for (const Json& oracle : oracles("lp_")) {
    CAPTURE(oracle.at("file"));
    const auto tokens = oracle.at("T").get<Tokens>();
    const LayerPlacement placement(static_cast<int>(tokens.size()),
                                   oracle.at("slots").get<ExpertsOnGpu>());
    CHECK(load_of(R"("token_balanced")", placement, tokens).max_tokens ==
          oracle.at("optimum_integer").get<int>());
  }
}

TEST_CASE("token_balanced reaches the Hall bound, and no slot it uses could be spared alone") {
  Rng rng(7, "test/token_routing");
  for (int round = 0; round < 200; ++round) {
    const Problem problem = random_problem(rng);
    const LayerPlacement placement = problem.placement();
    CAPTURE(round);
    const Tokens x = route(R"("token_balanced")", placement, problem.tokens);
    const std::int32_t most = layer_load(placement, x).max_tokens;
    CHECK(most == hall_bound(placement, problem.tokens));
    // Parts of experts and GPUs form a forest: a cycle could be turned until one part is gone.
    CHECK(active_slots(x) <= active_experts(problem.tokens) + placement.gpus() - 1);
    for (const std::string& policy : all_policies()) {
      CHECK(load_of(policy, placement, problem.tokens).max_tokens >= most);
    }
  }
}

TEST_CASE("hybrid is never worse than the even split, optimal or METRO on the roofline") {
  Rng rng(8, "test/token_routing");
  for (int round = 0; round < 300; ++round) {
    const Problem problem = random_problem(rng);
    const LayerPlacement placement = problem.placement();
    for (const double weight_time : {0.0, 1.0, 5.0, 20.0, 1000.0}) {
      CAPTURE(round, weight_time);
      const double best =
          objective(weight_time, 1, load_of(hybrid(weight_time, 1), placement, problem.tokens));
      for (const char* other : {R"("even")", R"("optimal")"}) {
        CHECK(best <= objective(weight_time, 1, load_of(other, placement, problem.tokens)));
      }
      const double bound =
          std::max(weight_time * load_of(R"("optimal")", placement, problem.tokens).max_activated,
                   double(load_of(R"("token_balanced")", placement, problem.tokens).max_tokens));
      CHECK(best >= bound);
    }
  }
}

TEST_CASE("hybrid is within 1 % of the proved optima on average, and never above even or optimal") {
  if (!has_shared()) {
    WARN("skipped: ../shared is absent");
    return;
  }
  double above = 0;
  int cases = 0;
  for (const Json& oracle : oracles("hybrid_")) {
    const auto weight_time = oracle.at("W").get<double>();
    const auto token_time = oracle.at("c").get<double>();
    const auto tokens = oracle.at("T").get<Tokens>();
    const LayerPlacement placement(static_cast<int>(tokens.size()),
                                   oracle.at("slots").get<ExpertsOnGpu>());
    const double found = objective(weight_time, token_time,
                                   load_of(hybrid(weight_time, token_time), placement, tokens));
    const auto optimum = oracle.at("optimum").get<double>();
    CAPTURE(oracle.at("file"), found, optimum);
    CHECK(found >= optimum);
    CHECK(found <= oracle.at("even_split").get<double>());
    CHECK(found <= objective(weight_time, token_time, load_of(R"("optimal")", placement, tokens)));
    above += found / optimum - 1;
    ++cases;
  }
  REQUIRE(cases > 0);
  INFO("mean excess " << above / cases);
  CHECK(above / cases <= 0.01);
}

namespace {

// max(a + b * active, c + beta * tokens) of the GPU that takes longest.
struct TempoTime {
  double b = 1, beta = 1, a = 0, c = 0;

  double busiest(const LayerPlacement& placement, const Tokens& tokens_of_slot) const {
    const LayerLoad load = layer_load(placement, tokens_of_slot);
    return std::max(a + b * load.max_activated, c + beta * load.max_tokens);
  }
};

std::string tempo(const TempoTime& t) {
  return fmt::format(R"({{"type":"tempo","a":{},"b":{},"c":{},"beta":{}}})", t.a, t.b, t.c, t.beta);
}

// The least time of any split, by trying all: tokens of each expert over its GPUs.
double least_time(const LayerPlacement& placement, const Tokens& tokens, const TempoTime& time) {
  Tokens x(at(placement.slots()));
  double least = std::numeric_limits<double>::infinity();
  const std::function<void(int, std::size_t, std::int32_t)> deal = [&](int expert, std::size_t host,
                                                                       std::int32_t left) {
    if (expert == placement.experts()) {
      least = std::min(least, time.busiest(placement, x));
      return;
    }
    const auto hosts = placement.hosts_of(expert);
    const auto next = [&] {
      deal(expert + 1, 0, expert + 1 < placement.experts() ? tokens[at(expert + 1)] : 0);
    };
    if (host + 1 == hosts.size()) {
      x[at(hosts[host])] = left;
      next();
      x[at(hosts[host])] = 0;
      return;
    }
    for (std::int32_t some = 0; some <= left; ++some) {
      x[at(hosts[host])] = some;
      deal(expert, host + 1, left - some);
    }
    x[at(hosts[host])] = 0;
  };
  deal(0, 0, tokens[0]);
  return least;
}

}  // namespace

TEST_CASE("tempo finds what was worked out by hand") {
  const auto found = [](const LayerPlacement& placement, const Tokens& tokens,
                        const TempoTime& time) {
    return time.busiest(placement, route(tempo(time), placement, tokens));
  };
  // Two GPUs, both experts on both. Reads cost most: each expert whole. Tokens cost most: split.
  const LayerPlacement both(2, {{0, 1}, {0, 1}});
  CHECK(found(both, {6, 2}, {10, 1}) == 10);
  CHECK(found(both, {6, 2}, {1, 1}) == 4);
  // Reading starts late: 2 + 1 * 1 against 6 tokens whole, 2 + 1 * 2 against 4 with one split.
  CHECK(found(both, {6, 2}, {1, 1, 2, 0}) == 4);
  CHECK(found(both, {6, 2}, {1, 1, 0, 5}) == 9);
  // Experts 0, 1 and 2 are on two of three GPUs each, in a ring; 3, 4 and 5 on one. As the matching
  // has them the GPUs hold 11, 5 and 10 tokens. No two GPUs can swap, and a third read takes 12.
  // Turned all at once the GPUs hold 9, 9 and 8.
  const LayerPlacement ring(6, {{0, 2, 3}, {0, 1, 4}, {1, 2, 5}});
  const Tokens tokens{6, 2, 4, 5, 3, 6};
  CHECK(found(ring, tokens, {4, 1}) == 9);
  CHECK(least_time(ring, tokens, {4, 1}) == 9);
  CHECK(TempoTime{4, 1}.busiest(ring, route(R"("optimal")", ring, tokens)) == 11);
}

TEST_CASE("tempo is within 1 % of the optimum in 60 of 60 small cases") {
  Rng rng(12, "test/tempo");
  int missed = 0;
  for (int round = 0; round < 60; ++round) {
    const std::uint64_t gpus = 2 + rng.below(3), experts = 3 + rng.below(4);
    Problem problem{ExpertsOnGpu(gpus), Tokens(experts)};
    for (std::uint64_t expert = 0; expert < experts; ++expert) {
      const std::uint64_t first = rng.below(gpus);
      problem.experts_on_gpu[first].push_back(static_cast<int>(expert));
      if (rng.below(4) > 0)
        problem.experts_on_gpu[(first + 1 + rng.below(gpus - 1)) % gpus].push_back(
            static_cast<int>(expert));
      problem.tokens[expert] = static_cast<std::int32_t>(rng.below(9));
    }
    for (auto& slots : problem.experts_on_gpu)
      if (slots.empty()) slots.push_back(0);
    const LayerPlacement placement = problem.placement();
    const TempoTime time{.25 * double(1 + rng.below(16)), 1, double(rng.below(4)),
                         double(rng.below(4))};
    const double optimum = least_time(placement, problem.tokens, time);
    const double found = time.busiest(placement, route(tempo(time), placement, problem.tokens));
    CAPTURE(round, found, optimum);
    CHECK(found >= optimum);
    missed += found > 1.01 * optimum ? 1 : 0;
  }
  CHECK(missed == 0);
}

TEST_CASE("tempo is never slower than hybrid's rivals, and no slower than hybrid in the mean") {
  Rng rng(13, "test/tempo");
  double mean = 0;
  int rounds = 0;
  for (; rounds < 200; ++rounds) {
    const Problem problem = random_problem(rng);
    const LayerPlacement placement = problem.placement();
    const TempoTime time{double(1 + rng.below(30)), 1};
    const auto of = [&](const std::string& policy) {
      return time.busiest(placement, route(policy, placement, problem.tokens));
    };
    const double found = of(tempo(time));
    CAPTURE(rounds);
    for (const char* other : {R"("even")", R"("optimal")", R"("token_balanced")"})
      CHECK(found <= of(other));
    if (found > 0) mean += found / of(hybrid(time.b, 1)) - 1;
  }
  INFO("mean " << mean / rounds);
  CHECK(mean <= 0);
}

TEST_CASE("hybrid's times are quantities or numbers, and go together") {
  const ExpertPlacement placement{LayerPlacement(1, {{0}})};
  const auto times = [&](const std::string& policy) {
    return router(policy, placement)->objective().value();
  };
  CHECK(times(R"("hybrid")").weight_time == 1);
  CHECK(times(R"({"type":"hybrid","weight_time":10,"token_time":2})").token_time == 2);
  CHECK_THAT(times(R"({"type":"hybrid","weight_time":"2 us","token_time":"1 ns"})").weight_time,
             WithinRel(2e-6, 1e-12));
  CHECK_THAT(config_error([&] { times(R"({"type":"hybrid","weight_time":10})"); }),
             Catch::Matchers::Contains("go together"));
  CHECK_FALSE(router(R"("optimal")", placement)->objective());
}

TEST_CASE(
    "a policy that waits for the group's counts is no part of the gate: its row has a charge") {
  const ExpertPlacement placement{LayerPlacement(3, {{0, 1}, {1, 2}})};
  const std::vector<ExpertLoad> seen{{1, 1, 1}};
  for (const MeasuredCharge& row : measured_charges()) {
    CAPTURE(row.policy);
    const auto router =
        token_routers().make(config(Json(row.policy).dump()))({placement, {}, seen});
    CHECK((row.charge || !router->needs_global_counts()));
  }
}

}  // namespace moesim::test_token_routing
