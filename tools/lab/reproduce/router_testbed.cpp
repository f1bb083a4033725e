// SPDX-License-Identifier: Apache-2.0
#include "tools/lab/reproduce/router_testbed.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <fstream>
#include <numeric>
#include <string>

#include "hardware/rng.hpp"
#include "sim/step/two_term.hpp"

namespace moesim {

namespace {

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

// An output of 0 tokens, which the reader of request traces refuses, is legal here.
std::vector<RouterTestbed::Job> read_jobs(const std::filesystem::path& requests) {
  std::ifstream file(requests);
  std::string line;
  std::getline(file, line);
  std::vector<RouterTestbed::Job> jobs;
  while (std::getline(file, line)) {
    const char* end = line.data() + line.size();
    RouterTestbed::Job job;
    const auto prompt = std::from_chars(line.data(), end, job.prompt);
    if (prompt.ec != std::errc{} || prompt.ptr == end || *prompt.ptr != ',' ||
        std::from_chars(prompt.ptr + 1, end, job.output).ec != std::errc{}) {
      throw ConfigError("{}:{}: expected prompt,output in tokens", requests.string(),
                        jobs.size() + 2);
    }
    jobs.push_back(job);
  }
  if (jobs.empty()) throw ConfigError("{}: no requests in it", requests.string());
  return jobs;
}

}  // namespace

std::unique_ptr<RequestRouter> bfio_fcfs() { return std::make_unique<FirstSeat>(); }
std::unique_ptr<RequestRouter> bfio_round_robin() { return std::make_unique<TurnsFromZero>(); }

BfIoResult bfio_testbed(RequestRouter& router, const std::filesystem::path& requests) {
  constexpr int workers = 16, slots = 72;
  constexpr double c = (slots * 0.6e-3 + 35e-3) / 16, t_length = 1.5 * 2 * 576 * 61e-6 / 1048576;
  const std::vector<RouterTestbed::Job> trace = read_jobs(requests);
  RouterTestbed bed(workers, slots, router);
  const auto ending =
      at(std::ranges::count_if(trace, [](const auto& job) { return job.output > 0; }));
  std::size_t revealed = 0;
  const auto fill = [&](double clock) {
    while (revealed < trace.size() && bed.pending() < std::size_t{4} * workers)
      bed.arrive(trace[revealed++]);
    return bed.place(clock) > 0;
  };
  double clock = 0, seconds = 0, tokens = 0, imbalance = 0, sum_imbalance = 0;
  double sum_seconds = 0, sum_tokens = 0;
  std::int64_t steps = 0, last_assignment = 0;
  fill(clock);
  while (bed.finished() < ending) {
    const std::vector<double> before = bed.loads();
    const double step = c + t_length * *std::ranges::max_element(before);
    clock += step;
    sum_seconds += step;
    sum_tokens += static_cast<double>(bed.step());
    ++steps;
    const std::vector<double> after = bed.loads();
    sum_imbalance += workers * *std::ranges::max_element(after) -
                     std::accumulate(after.begin(), after.end(), 0.0);
    if (!fill(clock)) continue;
    last_assignment = steps;
    seconds = sum_seconds;
    tokens = sum_tokens;
    imbalance = sum_imbalance;
  }
  return {tokens / seconds, imbalance / static_cast<double>(last_assignment), steps};
}

ArticleResult article_testbed(const ArticleWorld& world, const ConfigNode& router,
                              std::span<const double> bs, std::uint64_t seed) {
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
  RouterContext context;
  context.seed = seed;
  context.ranks = world.ranks;
  const auto made = request_routers().make(router, context)();
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
      result.throughput[i] += two_term_step(1, bs[i], loads);
    const auto [min, max] = std::minmax_element(loads.begin(), loads.end());
    result.imbalance += *max - *min;
    bed.step();
  }
  for (double& seconds : result.throughput) seconds = tokens / seconds;
  result.imbalance /= steps;
  return result;
}

}  // namespace moesim
