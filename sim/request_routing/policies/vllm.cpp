// SPDX-License-Identifier: Apache-2.0
#include "sim/request_routing/request_router.hpp"

namespace moesim {

namespace {

// The internal DP load balancing of [vLLM] (vllm/v1/engine/core_client.py): least 4 *
// waiting + running by the counts last published. A front end adds what it routed since, times the
// number of front ends, as if all did the same. Ties: the first from its own start on, which
// `rotate_ties` moves on after each request (vllm#47420, July 2026).
class Vllm final : public OneByOneRouter {
 public:
  Vllm(ConfigReader& options, int ranks)
      : OneByOneRouter(options),
        interval_(to_duration(options.quantity<Seconds>("interval"))),
        clients_(options.integer("clients")),
        rotates_(options.flag("rotate_ties")),
        waiting_(at(ranks)) {
    const Range client{0, static_cast<double>(clients_ - 1)};
    start_ = at(ranks * options.integer("client", client) / clients_);
    if (interval_ <= Duration{}) options.node().fail("\"interval\" must be above zero");
  }

  Choice pick(const PendingRequest&, std::span<const RankLoad> ranks,
              const RoutingState& state) override {
    if (state.publication != publication_) {
      publication_ = state.publication;
      for (const RankLoad& r : state.ranks) waiting_.at(id(r)) = r.published_waiting;
    }
    Choice best{ranks.size()};
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      const std::size_t index = (start_ + i) % ranks.size();
      const auto score =
          static_cast<double>(4 * waiting_[id(ranks[index])] + ranks[index].published_running);
      if (best.index == ranks.size() || score < best.score) best = {index, score};
    }
    waiting_[id(ranks[best.index])] += clients_;
    if (rotates_) start_ = (start_ + 1) % ranks.size();
    return best;
  }
  RouterNeeds needs() const override { return {.statistics_interval = interval_}; }

 private:
  static std::size_t id(const RankLoad& r) { return at(r.rank); }

  Duration interval_;
  std::int64_t clients_;
  bool rotates_;
  std::size_t start_ = 0;
  std::vector<std::int64_t> waiting_;  // by rank: published, and routed since
  std::int64_t publication_ = -1;
};

}  // namespace

std::span<const Key> vllm_router_keys() {
  static constexpr Key keys[] = {
      admission_key,
      {"interval", form::time, "100 ms", "between publications of the ranks' counts"},
      {"clients", form::integer(1, 1e6), "1", "front ends"},
      {"client", form::integer(0, 1e6), "0", "number of this client"},
      {"rotate_ties", form::flag, "false",
       "ties go to the next rank each time, as since vLLM 0.26 (vllm#47420)"}};
  return keys;
}

RequestRouterFactory make_vllm_router(ConfigReader& options, const RouterContext& context) {
  return copies_of(Vllm(options, context.ranks));
}

}  // namespace moesim
