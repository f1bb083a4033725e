// SPDX-License-Identifier: Apache-2.0
// Does every routing serve every token, and is the optimum the optimum?
#include <algorithm>
#include <numeric>

#include <fmt/format.h>

#include "hardware/rng.hpp"
#include "sim/token_routing/token_routing.hpp"
#include "tests/support.hpp"

using namespace moesim;
using namespace moesim::test;

namespace {

using Tokens = std::vector<std::int32_t>;
using ExpertsOnGpu = std::vector<std::vector<int>>;

std::unique_ptr<TokenRouter> router(const std::string& policy, const ExpertPlacement& placement) {
  return token_routers().make(config(policy), {placement});
}

Tokens route(const std::string& policy, const LayerPlacement& placement, const Tokens& tokens,
             std::uint64_t step = 0) {
  const ExpertPlacement placements{placement};
  RoutingScratch scratch;
  Tokens tokens_of_slot(static_cast<std::size_t>(placement.slots()), -1);
  router(policy, placements)->route({placements[0], tokens, 0, step}, scratch, tokens_of_slot);
  return tokens_of_slot;
}

LayerLoad load_of(const std::string& policy, const LayerPlacement& placement,
                  const Tokens& tokens) {
  return layer_load(placement, route(policy, placement, tokens));
}

std::vector<std::string> all_policies() {
  return {R"("even")",
          R"("static_primary")",
          R"("metro")",
          R"({"type":"metro","order":"random"})",
          R"({"type":"metro","order":"fewest_replicas"})",
          R"("optimal")"};
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
  if (tokens[static_cast<std::size_t>(expert)] == 0) {
    return best_loads(placement, tokens, expert + 1, loads);
  }
  Tokens best;
  for (const int slot : placement.hosts_of(expert)) {
    auto& load = loads[static_cast<std::size_t>(placement.gpu_of_slot(slot))];
    ++load;
    const Tokens found = best_loads(placement, tokens, expert + 1, loads);
    if (best.empty() || found < best) best = found;
    --load;
  }
  return best;
}

// policies.md A.2 word for word, restart and all: the GPU that serves each expert, or -1.
std::vector<int> semi_matching(const LayerPlacement& placement, const Tokens& tokens) {
  const auto at = [](int i) { return static_cast<std::size_t>(i); };
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
      if (metro[static_cast<std::size_t>(slot)] > 0) served_by = placement.gpu_of_slot(slot);
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

TEST_CASE("only metro and optimal need the counts of the whole group") {
  const ExpertPlacement placement{LayerPlacement(1, {{0}})};
  CHECK_FALSE(router(R"("even")", placement)->needs_global_counts());
  CHECK_FALSE(router(R"("static_primary")", placement)->needs_global_counts());
  CHECK(router(R"("metro")", placement)->needs_global_counts());
  CHECK(router(R"("optimal")", placement)->needs_global_counts());
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
        served[static_cast<std::size_t>(expert)] += tokens_of_slot[slot];
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
    const Tokens none(static_cast<std::size_t>(placement.gpus()));
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
    Tokens expected(static_cast<std::size_t>(placement.slots()));
    for (std::size_t expert = 0; expert < gpu_of.size(); ++expert) {
      for (const int slot : placement.hosts_of(static_cast<int>(expert))) {
        if (placement.gpu_of_slot(slot) == gpu_of[expert]) {
          expected[static_cast<std::size_t>(slot)] = problem.tokens[expert];
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
  RoutingScratch kept;
  for (int round = 0; round < 100; ++round) {
    const Problem problem = random_problem(rng);
    const ExpertPlacement placement{problem.placement()};
    for (const std::string& policy : all_policies()) {
      Tokens tokens_of_slot(static_cast<std::size_t>(placement[0].slots()), -1);
      router(policy, placement)->route({placement[0], problem.tokens, 0, 0}, kept, tokens_of_slot);
      CHECK(tokens_of_slot == route(policy, placement[0], problem.tokens));
    }
  }
}
