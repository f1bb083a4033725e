// SPDX-License-Identifier: Apache-2.0
// Do routers give, in the simple worlds of their papers, the published figures?
#include <string>

#include <fmt/format.h>

#include "tests/support.hpp"
#include "tools/lab/reproduce/router_testbed.hpp"

namespace moesim::test_router_testbed {
namespace {

using test::config;
using test::WithinRel;

std::unique_ptr<RequestRouter> router(const std::string& json, int ranks) {
  RouterContext context;
  context.ranks = ranks;
  return request_routers().make(config(json), context)();
}

ArticleResult article(const ArticleWorld& world, const std::string& name,
                      const std::vector<double>& bs, std::uint64_t seed) {
  return article_testbed(world, config(name), bs, seed);
}

struct Published {
  double throughput, imbalance;
  std::int64_t steps;
};

void check_published(RequestRouter& router, const Published& published) {
  const BfIoResult result =
      bfio_testbed(router, test::shared_dir() / "data/requests/bfio_synthetic/requests.csv");
  CHECK_THAT(result.throughput, WithinRel(published.throughput, 1e-5));
  CHECK_THAT(result.imbalance, WithinRel(published.imbalance, 1e-5));
  CHECK(result.steps == published.steps);
}

TEST_CASE("on BF-IO's testbed every router gives its published figures, to the last digit") {
  if (!test::has_shared()) {
    WARN("skipped: ../shared is absent");
    return;
  }
  check_published(*bfio_fcfs(), {28'473.4, 613'255, 10'701});
  check_published(*bfio_round_robin(), {29'105.5, 473'812, 10'701});
  const auto least_kv = router(R"({"type": "least_kv", "admission": "central"})", 16);
  check_published(*least_kv, {28'704.2, 561'812, 10'701});  // there called JSQ
  check_published(*router(R"({"type": "bfio", "horizon": 0})", 16), {30'617.2, 129'178, 10'831});
  check_published(*router(R"("bfio")", 16), {31'269.9, 41'156, 10'722});
}

TEST_CASE(
    "routing by KV load beats counting requests, and gains less the more of a step is fixed") {
  const std::vector<double> bs{0, .3, .5, 1};
  for (std::uint64_t seed = 1; seed <= 3; ++seed) {
    CAPTURE(seed);
    const auto count = article({}, "\"jsq\"", bs, seed);
    const auto load = article({}, "\"least_kv\"", bs, seed);
    double last = 1e9;
    for (std::size_t i = 0; i < bs.size(); ++i) {
      const double gain = load.throughput[i] / count.throughput[i] - 1;
      CHECK(gain > 0.02);
      CHECK(gain < last);
      last = gain;
    }
  }
}

// Prints the table of sim/request_routing/README.md: throughput against jsq, mean and 95 % interval
// of the mean over 20 seeds.
TEST_CASE("the article's tables", "[.table]") {
  const std::vector<double> bs{0, .3, .5, 1};
  const std::vector<std::string> names{R"("random")",
                                       R"("round_robin")",
                                       R"("power_of_two")",
                                       R"("vllm")",
                                       R"("least_kv")",
                                       R"("br0")",
                                       R"({"type": "br0", "tie_break": "lowest_rank"})",
                                       R"({"type": "br0", "form": "pool"})",
                                       R"("brh")",
                                       R"({"type": "brh", "error": 0.5})",
                                       R"({"type": "brh", "predictor": "survival"})",
                                       R"({"type": "brh", "form": "pool"})",
                                       R"("bfio")",
                                       R"("fast_phi")",
                                       R"({"type": "fast_phi", "drift": 0.1})",
                                       R"({"type": "fast_phi", "quantiles": []})",
                                       R"("overflow")"};
  for (const ArticleWorld& world : {ArticleWorld{}, ArticleWorld{4}, ArticleWorld{16}}) {
    fmt::print("\nG = {}\n{:48}", world.ranks, "% over jsq at b =");
    for (const double b : bs) fmt::print("{:>13}", b);
    fmt::print("{:>12}\n", "imbalance");
    constexpr std::uint64_t seeds = 20;
    std::vector<ArticleResult> base;
    for (std::uint64_t seed = 1; seed <= seeds; ++seed)
      base.push_back(article(world, "\"jsq\"", bs, seed));
    for (const std::string& name : names) {
      std::vector<double> sum(bs.size()), squares(bs.size());
      double imbalance = 0;
      for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
        const ArticleResult result = article(world, name, bs, seed);
        imbalance += result.imbalance / seeds;
        for (std::size_t i = 0; i < bs.size(); ++i) {
          const double gain = 100 * (result.throughput[i] / base[seed - 1].throughput[i] - 1);
          sum[i] += gain;
          squares[i] += gain * gain;
        }
      }
      fmt::print("{:48}", name);
      for (std::size_t i = 0; i < bs.size(); ++i) {
        const double mean = sum[i] / seeds;
        const double variance = (squares[i] - seeds * mean * mean) / (seeds - 1);
        fmt::print("{:>7.1f} ±{:4.1f}", mean, 2.09 * std::sqrt(variance / seeds));
      }
      fmt::print("{:>12.0f}\n", imbalance);
      std::fflush(stdout);
    }
  }
}

}  // namespace
}  // namespace moesim::test_router_testbed
