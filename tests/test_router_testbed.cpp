// SPDX-License-Identifier: Apache-2.0
// Do routers give, in the simple worlds of their papers, what was published of them?
#include <fstream>
#include <string>

#include <fmt/format.h>

#include "hardware/rng.hpp"
#include "sim/request_routing/request_router.hpp"
#include "tests/router_testbed.hpp"
#include "tests/support.hpp"

namespace moesim {
namespace {

using test::config;
using test::RouterTestbed;
using test::WithinRel;

std::unique_ptr<RequestRouter> router(const std::string& json, int ranks, std::uint64_t seed = 1) {
  RouterContext context;
  context.seed = seed;
  context.ranks = ranks;
  return request_routers().make(config(json), context);
}

// BF-IO's "FCFS": seats of rank 0 first, then of rank 1, ...
class FirstSeat final : public RequestRouter {
 public:
  void route(const RoutingState& state, std::vector<Assignment>& assignments) override {
    for (const RankLoad& rank : state.ranks) {
      if (rank.seats == 0) continue;
      assignments.push_back({0, rank.rank});
      return;
    }
  }
};

// BF-IO's "RR": in turn over ranks with seats, from rank 0 whenever there is something to place.
class TurnsFromZero final : public RequestRouter {
 public:
  void route(const RoutingState& state, std::vector<Assignment>& assignments) override {
    if (state.now != asked_) next_ = 0;
    asked_ = state.now;
    for (std::size_t i = 0; i < state.ranks.size(); ++i) {
      const std::size_t g = (next_ + i) % state.ranks.size();
      if (state.ranks[g].seats == 0) continue;
      assignments.push_back({0, state.ranks[g].rank});
      next_ = g + 1;
      return;
    }
  }

 private:
  Time asked_{};
  std::size_t next_ = 0;
};

// One of its outputs is of 0 tokens, which our reader refuses. There it counts as ended before it
// began, so that it never leaves the worker that it is given to.
std::vector<RouterTestbed::Job> bfio_requests() {
  std::ifstream file(test::shared_dir() / "data/requests/bfio_synthetic/requests.csv");
  std::string line;
  std::getline(file, line);
  std::vector<RouterTestbed::Job> jobs;
  while (std::getline(file, line)) {
    const std::size_t comma = line.find(',');
    jobs.push_back({std::stoi(line.substr(0, comma)), std::stoi(line.substr(comma + 1))});
  }
  return jobs;
}

struct BfIoResult {
  double throughput = 0, imbalance = 0;
  std::int64_t steps = 0;
};

// The simulator of arXiv:2601.17855 as request-routing-testbeds.md 1b states it: 16 workers of 72
// slots, 64 requests on show, step = C + t_length max L before the step; cut at the last
// assignment.
BfIoResult bfio_testbed(RequestRouter& router) {
  constexpr int workers = 16, slots = 72;
  constexpr double c = (slots * 0.6e-3 + 35e-3) / 16, t_length = 1.5 * 2 * 576 * 61e-6 / 1048576;
  const std::vector<RouterTestbed::Job> trace = bfio_requests();
  RouterTestbed bed(workers, slots, router);
  const auto ending = static_cast<std::size_t>(
      std::count_if(trace.begin(), trace.end(), [](const auto& job) { return job.output > 0; }));
  std::size_t revealed = 0;
  const auto fill = [&](double clock) {
    while (revealed < trace.size() && bed.pending() < 4 * workers) bed.arrive(trace[revealed++]);
    return bed.place(clock) > 0;
  };
  double clock = 0, seconds = 0, tokens = 0, imbalance = 0, sum_imbalance = 0;
  double sum_seconds = 0, sum_tokens = 0;
  std::int64_t steps = 0, last_assignment = 0;
  fill(clock);
  while (bed.finished() < ending) {
    const std::vector<double> before = bed.loads();
    const double step = c + t_length * *std::max_element(before.begin(), before.end());
    clock += step;
    sum_seconds += step;
    sum_tokens += static_cast<double>(bed.step());
    ++steps;
    const std::vector<double> after = bed.loads();
    sum_imbalance += workers * *std::max_element(after.begin(), after.end()) -
                     std::accumulate(after.begin(), after.end(), 0.0);
    if (!fill(clock)) continue;
    last_assignment = steps;
    seconds = sum_seconds;
    tokens = sum_tokens;
    imbalance = sum_imbalance;
  }
  return {tokens / seconds, imbalance / static_cast<double>(last_assignment), steps};
}

struct Published {
  double throughput, imbalance;
  std::int64_t steps;
};

void check_published(RequestRouter& router, const Published& published) {
  const BfIoResult result = bfio_testbed(router);
  CHECK_THAT(result.throughput, WithinRel(published.throughput, 1e-5));
  CHECK_THAT(result.imbalance, WithinRel(published.imbalance, 1e-5));
  CHECK(result.steps == published.steps);
}

TEST_CASE("on BF-IO's testbed every router gives its published figures, to the last digit") {
  if (!test::has_shared()) {
    WARN("skipped: ../shared is absent");
    return;
  }
  FirstSeat fcfs;
  check_published(fcfs, {28'473.4, 613'255, 10'701});
  TurnsFromZero turns;
  check_published(turns, {29'105.5, 473'812, 10'701});
  const auto least_kv = router(R"({"type": "least_kv", "admission": "central"})", 16);
  check_published(*least_kv, {28'704.2, 561'812, 10'701});  // there called JSQ
  check_published(*router(R"({"type": "bfio", "horizon": 0})", 16), {30'617.2, 129'178, 10'831});
  check_published(*router(R"("bfio")", 16), {31'269.9, 41'156, 10'722});
}

// The EP-barrier article's world as request-routing-testbeds.md 1.4 rebuilds it: lognormal lengths,
// Poisson arrivals at 70 % of the slots, routed as they arrive, first come, first served on a rank.
struct ArticleWorld {
  int ranks = 8;
  std::int64_t slots = 64;
  int requests = 5000;
};

struct ArticleResult {
  std::vector<double> throughput{};  // by b
  double imbalance = 0;              // mean over steps of max L - min L
};

ArticleResult article_testbed(const ArticleWorld& world, const std::string& name,
                              const std::vector<double>& bs, std::uint64_t seed) {
  Rng rng(seed, "test/article");
  const auto draw = [&](double median, double sigma, double low, double high) {
    const double value = std::round(median * std::exp(sigma * rng.normal()));
    return static_cast<std::int32_t>(std::clamp(value, low, high));
  };
  std::vector<RouterTestbed::Job> jobs;
  double tokens = 0;
  for (int i = 0; i < world.requests; ++i) {
    const std::int32_t prompt = draw(120, 1.35, 4, 4096);
    jobs.push_back({prompt, draw(130, 1.1, 2, 2048)});
    tokens += jobs.back().output;
  }
  const double mean_output = tokens / world.requests;
  const double gap = mean_output / (.7 * world.ranks * static_cast<double>(world.slots));
  const auto made = router(name, world.ranks, seed);
  RouterTestbed bed(world.ranks, world.slots, *made);
  ArticleResult result;
  result.throughput.resize(bs.size());
  double due = gap * rng.exponential(), steps = 0;
  std::size_t arrived = 0;
  for (; bed.finished() < jobs.size(); ++steps) {
    for (; arrived < jobs.size() && due <= steps; due += gap * rng.exponential()) {
      bed.arrive(jobs[arrived++]);
      bed.place(steps);
    }
    bed.place(steps);
    const std::vector<double> loads = bed.loads();
    for (std::size_t i = 0; i < bs.size(); ++i)
      result.throughput[i] += test::step_time(1, bs[i], loads);
    const auto [min, max] = std::minmax_element(loads.begin(), loads.end());
    result.imbalance += *max - *min;
    bed.step();
  }
  for (double& seconds : result.throughput) seconds = tokens / seconds;
  result.imbalance /= steps;
  return result;
}

TEST_CASE(
    "routing by KV load beats counting requests, and gains less the more of a step is fixed") {
  const std::vector<double> bs{0, .3, .5, 1};
  for (std::uint64_t seed = 1; seed <= 3; ++seed) {
    CAPTURE(seed);
    const auto count = article_testbed({}, "\"jsq\"", bs, seed);
    const auto load = article_testbed({}, "\"least_kv\"", bs, seed);
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
      base.push_back(article_testbed(world, "\"jsq\"", bs, seed));
    for (const std::string& name : names) {
      std::vector<double> sum(bs.size()), squares(bs.size());
      double imbalance = 0;
      for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
        const ArticleResult result = article_testbed(world, name, bs, seed);
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
}  // namespace moesim
