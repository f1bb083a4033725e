// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <filesystem>
#include <memory>
#include <span>
#include <vector>

#include "sim/request_routing/request_router.hpp"

namespace moesim {

/// Ranks with seats, sticky requests that grow by a token each step, no prefill: the world in which
/// routers are compared on paper. KV blocks never run out.
class RouterTestbed {
 public:
  /// A job; with an output of 0 it never ends.
  struct Job {
    std::int32_t prompt = 0, output = 0, generated = 0;
  };

  RouterTestbed(int ranks, std::int64_t seats, RequestRouter& router)
      : seats_(seats), router_(router), on_(at(ranks)), kv_(on_.size()) {}

  void arrive(Job job) {
    pending_.push_back(static_cast<std::uint32_t>(jobs_.size()));
    jobs_.push_back(job);
  }
  std::size_t pending() const { return pending_.size(); }
  std::size_t finished() const { return finished_.size(); }
  /// KV tokens of the requests that run; those beyond the seats wait and are not among them.
  std::vector<double> loads() const {
    std::vector<double> loads;
    for (const auto& ids : on_) {
      double load = 0;
      for (std::size_t i = 0; i < std::min(ids.size(), at(seats_)); ++i)
        load += jobs_[ids[i]].prompt + jobs_[ids[i]].generated;
      loads.push_back(load);
    }
    return loads;
  }

  /// Lets the router place requests that wait, and answers how many it placed.
  std::size_t place(double clock) {
    const std::size_t before = pending_.size();
    const RouterNeeds needs = router_.needs();
    while (!pending_.empty()) {
      std::vector<PendingRequest> shown;
      for (std::size_t i = 0; i < std::min(needs.window, pending_.size()); ++i) {
        const Job& job = jobs_[pending_[i]];
        shown.push_back(
            {.id = pending_[i], .prompt_tokens = job.prompt, .output_tokens = job.output});
      }
      std::vector<Assignment> assignments;
      show_ranks(needs.requests);
      router_.route({Time(to_duration(Seconds(clock))), shown, ranks_, publication_++, finished_},
                    assignments);
      if (assignments.empty()) break;
      for (const Assignment& a : assignments) {
        const auto rank = at(a.rank);
        on_[rank].push_back(shown[a.pending].id);
        kv_[rank] += shown[a.pending].prompt_tokens;
        pending_.erase(std::ranges::find(pending_, shown[a.pending].id));
      }
    }
    return before - pending_.size();
  }

  /// Makes a decode step; returns how many tokens it generated.
  std::int64_t step() {
    std::int64_t tokens = 0;
    for (std::size_t g = 0; g < on_.size(); ++g) {
      auto& ids = on_[g];
      const std::size_t running = std::min(ids.size(), at(seats_));
      tokens += static_cast<std::int64_t>(running);
      std::size_t kept = 0;
      for (std::size_t i = 0; i < ids.size(); ++i) {
        Job& job = jobs_[ids[i]];
        if (i < running) ++job.generated, ++kv_[g];
        if (job.output == 0 || job.generated < job.output) {
          ids[kept++] = ids[i];
          continue;
        }
        kv_[g] -= job.prompt + job.generated;
        finished_.push_back(job.output);
      }
      ids.resize(kept);
    }
    return tokens;
  }

 private:
  void show_ranks(bool requests) {
    ranks_.clear();
    shown_.resize(on_.size());
    for (std::size_t g = 0; g < on_.size(); ++g) {
      RankLoad rank;
      rank.kv_tokens = kv_[g];
      rank.running = std::min(std::ssize(on_[g]), seats_);
      rank.waiting = std::ssize(on_[g]) - rank.running;
      rank.rank = static_cast<std::int32_t>(g);
      rank.seats = seats_ - std::ssize(on_[g]);
      rank.published_waiting = rank.waiting;
      rank.published_running = rank.running;
      shown_[g].clear();
      for (const std::uint32_t id : on_[g]) {
        if (requests)
          shown_[g].push_back({id, jobs_[id].prompt, jobs_[id].generated, jobs_[id].output, 0});
      }
      rank.requests = shown_[g];
      ranks_.push_back(rank);
    }
  }

  std::int64_t seats_;
  RequestRouter& router_;
  std::vector<Job> jobs_;
  std::vector<std::uint32_t> pending_;
  std::vector<std::vector<std::uint32_t>> on_;  // [rank], in order
  std::vector<std::int64_t> kv_;
  std::vector<std::int32_t> finished_;
  std::int64_t publication_ = 0;
  std::vector<RankLoad> ranks_;
  std::vector<std::vector<RankRequest>> shown_;
};

/// Results of the simulator of BF-IO's paper [BF-IO]: 16 workers of 72 slots, 64 requests on show,
/// step = C + t_length max L before the step, cut at the last assignment.
struct BfIoResult {
  double throughput = 0;  ///< tokens/s
  double imbalance = 0;   ///< mean over steps of G max L - sum L, in tokens
  std::int64_t steps = 0;
};
/// `requests` is its list of 8,000, prompt and output tokens in a line. One request has no output,
/// and there never leaves its worker. Throws ConfigError if it cannot be read.
BfIoResult bfio_testbed(RequestRouter& router, const std::filesystem::path& requests);

/// BF-IO's own baselines. "FCFS" fills the seats of rank 0, then of rank 1, ...; "RR" goes in turn
/// over ranks with seats, from rank 0 whenever there is something to place.
std::unique_ptr<RequestRouter> bfio_fcfs();
std::unique_ptr<RequestRouter> bfio_round_robin();

/// World of [barrier-tax], rebuilt from its text: lognormal lengths, Poisson arrivals at 70 % of
/// the slots. Jobs are routed as they arrive, first come, first served on a rank; step =
/// two_term_step(1, b, L).
struct ArticleWorld {
  int ranks = 8;
  std::int64_t slots = 64;
  int requests = 5000;
};
struct ArticleResult {
  std::vector<double> throughput{};  ///< tokens per unit of time, by b
  double imbalance = 0;              ///< mean over steps of max L - min L, in tokens
};
/// `router` is a policy of request_routers().
ArticleResult article_testbed(const ArticleWorld&, const ConfigNode& router,
                              std::span<const double> bs, std::uint64_t seed);

}  // namespace moesim
