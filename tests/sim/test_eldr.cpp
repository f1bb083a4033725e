// SPDX-License-Identifier: Apache-2.0
// Do requests that use the same experts meet on one decode worker, each as full as the others?
#include <algorithm>
#include <cmath>
#include <set>

#include "sim/request_routing/balanced_clusters.hpp"
#include "sim/request_routing/request_router.hpp"
#include "tests/support.hpp"

namespace moesim::test_eldr {

using namespace moesim::test;
using Catch::Matchers::Contains;

namespace {

constexpr std::size_t workers = 3;

std::unique_ptr<RequestRouter> eldr(const std::string& options) {
  RouterContext context;
  context.ranks = context.groups = static_cast<int>(workers);
  context.experts = 6;
  return request_routers().make(config(R"({"type": "eldr")" + options + "}"), context)();
}

// One rank for each worker, with so many requests on it.
std::vector<RankLoad> ranks_with(const std::vector<std::int64_t>& running) {
  std::vector<RankLoad> ranks;
  for (const std::int64_t requests : running) {
    RankLoad& rank = ranks.emplace_back();
    rank.rank = rank.group = static_cast<std::int32_t>(ranks.size()) - 1;
    rank.running = requests;
  }
  return ranks;
}

Assignment route(RequestRouter& router, const std::vector<std::int64_t>& counts,
                 const std::vector<std::int64_t>& running) {
  const std::vector<RankLoad> ranks = ranks_with(running);
  PendingRequest request;
  request.prefill_counts = counts;
  std::vector<Assignment> assignments;
  router.route({Time{}, {&request, 1}, ranks, 0, {}}, assignments);
  REQUIRE(assignments.size() == 1);
  return assignments.front();
}

// Two requests of each kind: experts 0 and 1, 2 and 3, 4 and 5.
void show_six(RequestRouter& router) {
  CHECK(route(router, {3, 1, 0, 0, 0, 0}, {2, 1, 3}).rank == 1);  // fewest requests until then
  route(router, {0, 0, 3, 1, 0, 0}, {0, 0, 0});
  route(router, {0, 0, 0, 0, 1, 3}, {0, 0, 0});
  route(router, {1, 3, 0, 0, 0, 0}, {0, 0, 0});
  route(router, {0, 0, 1, 3, 0, 0}, {0, 0, 0});
  CHECK(route(router, {0, 0, 0, 0, 3, 1}, {2, 3, 1}).rank == 2);
}

double cost_of(const std::vector<std::vector<double>>& cost, const std::vector<std::size_t>& of) {
  double sum = 0;
  for (std::size_t i = 0; i < of.size(); ++i) sum += cost[i][of[i]];
  return sum;
}

}  // namespace

TEST_CASE("eldr: known answers of three workers and six requests") {
  const auto router = eldr(R"(, "profile": 6)");
  show_six(*router);
  // All idf are ln(7 / 3). The centroid of (3, 1) and (1, 3) is (1, 1) / sqrt 2.
  const Assignment first = route(*router, {3, 1, 0, 0, 0, 0}, {0, 0, 0});
  CHECK_THAT(first.score, WithinRel(4 / std::sqrt(20.), 1e-12));
  const auto a = static_cast<std::size_t>(first.rank),
             b = static_cast<std::size_t>(route(*router, {0, 0, 5, 5, 0, 0}, {0, 0, 0}).rank),
             c = static_cast<std::size_t>(route(*router, {0, 0, 0, 0, 2, 2}, {0, 0, 0}).rank);
  CHECK(std::set{a, b, c}.size() == 3);
  // However full, beyond the band no other worker has it.
  std::vector<std::int64_t> running(workers, 1);
  running[a] = 50;
  CHECK(route(*router, {1, 1, 0, 0, 0, 0}, running).rank == first.rank);
  // As like to two workers as to each other: 2 / (2 sqrt 2) both, so the one with fewer requests.
  const Assignment shared = route(*router, {1, 1, 1, 1, 0, 0}, running);
  CHECK(static_cast<std::size_t>(shared.rank) == b);
  CHECK_THAT(shared.score, WithinRel(1 / std::sqrt(2.), 1e-12));
  // 4 / sqrt 20 to one and 2 / sqrt 20 to the other: .45 apart, within a band of .5.
  CHECK(static_cast<std::size_t>(route(*router, {2, 2, 1, 1, 0, 0}, running).rank) == a);
  const auto wide = eldr(R"(, "profile": 6, "band": 0.5)");
  show_six(*wide);
  CHECK(static_cast<std::size_t>(route(*wide, {2, 2, 1, 1, 0, 0}, running).rank) == b);
}

TEST_CASE("eldr: an expert that all choose says nothing, and a worker that is down gets nothing") {
  const auto router = eldr(R"(, "profile": 3)");
  // Expert 0 is in all three: idf ln(4 / 4) = 0.
  route(*router, {9, 1, 0, 0, 0, 0}, {0, 0, 0});
  route(*router, {9, 0, 1, 0, 0, 0}, {0, 0, 0});
  route(*router, {9, 0, 0, 1, 0, 0}, {0, 0, 0});
  CHECK(route(*router, {9, 0, 0, 0, 0, 0}, {3, 1, 2}).rank == 1);
  CHECK(route(*router, {9, 0, 0, 0, 0, 0}, {3, 1, 2}).score == 0);
  const Assignment one = route(*router, {900, 0, 1, 0, 0, 0}, {0, 0, 0});
  CHECK_THAT(one.score, WithinRel(1.0, 1e-12));
  std::vector<RankLoad> ranks = ranks_with({0, 0, 0});
  ranks.erase(ranks.begin() + one.rank);
  PendingRequest request;
  const std::vector<std::int64_t> counts{0, 0, 1, 0, 0, 0};
  request.prefill_counts = counts;
  std::vector<Assignment> assignments;
  router->route({Time{}, {&request, 1}, ranks, 0, {}}, assignments);
  CHECK(assignments.front().rank != one.rank);
  CHECK_THAT(config_error([] { eldr(R"(, "profile": 2)"); }), Contains("3 EP groups"));
}

TEST_CASE("balanced assignment is the cheapest of all: brute force") {
  Rng rng(1, "balanced");
  for (const auto& [items, clusters] : {std::pair{6, 3}, {8, 2}, {8, 4}, {9, 3}}) {
    for (int world = 0; world < 20; ++world) {
      std::vector<std::vector<double>> cost;
      std::vector<std::size_t> tried;
      for (int i = 0; i < items; ++i) {
        tried.push_back(static_cast<std::size_t>(i * clusters / items));
        auto& row = cost.emplace_back();
        // Whole numbers tie often.
        for (int c = 0; c < clusters; ++c)
          row.push_back(world % 2 == 0 ? rng.uniform() : static_cast<double>(rng.below(3)));
      }
      double least = cost_of(cost, tried);
      while (std::ranges::next_permutation(tried).found)
        least = std::min(least, cost_of(cost, tried));
      const auto chosen = balanced_assignment(cost, static_cast<std::size_t>(clusters));
      CHECK_THAT(cost_of(cost, chosen), WithinAbs(least, 1e-9));
      for (int c = 0; c < clusters; ++c)
        CHECK(std::ranges::count(chosen, static_cast<std::size_t>(c)) == items / clusters);
    }
  }
}

}  // namespace moesim::test_eldr
