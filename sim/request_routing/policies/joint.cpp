// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <limits>

#include "hardware/choice.hpp"
#include "sim/request_routing/horizon.hpp"
#include "sim/request_routing/request_router.hpp"
#include "sim/request_routing/scores.hpp"

namespace moesim {

namespace {

enum class Scale { seconds, seed };
constexpr std::array<std::string_view, 2> scale_names{"seconds", "seed"};

// KV hit, expert locality and load in one cost [expert-locality], lower is better. Scale "seconds":
//   kv * time to prefill what is not cached
//   + expert * life * (1 - locality) * time to send a token to its experts and back
//   + load * life * time to read what the rank's load exceeds the most loaded one's by
// where life is the mean output seen so far. With several EP groups the most loaded rank is that of
// the rank's group. The last term then also has how far it is above the least of any group's. Scale
// "seed": the formula of [expert-locality] with its weights, loads against the most loaded rank of
// all. Requests that arrive together are consolidated. Of a rank with more than twice the mean of
// the batch, the last ones go to the rank with the fewest, until 1.5 times the mean.
class Joint final : public RequestRouter {
 public:
  Joint(ConfigReader& options, const RouterContext& context) : context_(context) {
    seed_scale_ = choice<Scale>(options, "scale", scale_names) == Scale::seed;
    const JointWeights defaults = seed_scale_ ? JointWeights{} : JointWeights{1, 1, 1};
    weights_.kv = options.number_or("kv", defaults.kv);
    weights_.expert = options.number_or("expert", defaults.expert);
    weights_.load = options.number_or("load", defaults.load);
    expected_output_ = options.number("expected_output");
    experts_from_ = read_experts_from(options);
    batch_ = at(options.integer("batch"));
  }

  void route(const RoutingState& state, std::vector<Assignment>& assignments) override {
    outputs_.catch_up(state.finished);
    std::vector<RankLoad> ranks(state.ranks.begin(), state.ranks.end());
    std::vector<std::vector<std::size_t>> group(ranks.size());  // pending, in order
    for (std::size_t i = 0; i < state.pending.size(); ++i) {
      const std::size_t g = cheapest(state.pending[i], ranks);
      group[g].push_back(i);
      ranks[g].kv_tokens += state.pending[i].prompt_tokens;
    }
    consolidate(group, state.pending.size());
    for (std::size_t g = 0; g < group.size(); ++g) {
      for (const std::size_t i : group[g]) {
        assignments.push_back({i, ranks[g].rank, cost(state.pending[i], state.ranks, g)});
      }
    }
    std::ranges::sort(assignments, {}, &Assignment::pending);
  }
  RouterNeeds needs() const override {
    return {.window = batch_, .prefixes = true, .locality = true, .experts_from = experts_from_};
  }

 private:
  std::size_t cheapest(const PendingRequest& request, std::span<const RankLoad> ranks) const {
    std::vector<double> costs(ranks.size());
    for (std::size_t g = 0; g < ranks.size(); ++g) costs[g] = cost(request, ranks, g);
    if (!seed_scale_) return least(costs, ranks);
    return at(std::ranges::min_element(costs) - costs.begin());
  }

  double cost(const PendingRequest& request, std::span<const RankLoad> ranks, std::size_t g) const {
    if (request.blocks > ranks[g].total_blocks) return std::numeric_limits<double>::infinity();
    const auto rank = at(ranks[g].rank);
    const double cached = static_cast<double>(request.hits[rank].blocks) * context_.block_tokens;
    const auto load = static_cast<double>(ranks[g].kv_tokens);
    const JointTerms terms{static_cast<double>(request.prompt_tokens),
                           cached / request.prompt_tokens, request.locality[rank], load,
                           static_cast<double>(barrier_of(ranks))};
    if (seed_scale_) return joint_seed_cost(weights_, terms, context_.experts);
    const double life = outputs_.empty() ? expected_output_ : outputs_.mean();
    const auto barrier = static_cast<double>(barrier_of(group_of(ranks, g)));
    const double growth = std::max(load + request.prompt_tokens - barrier, 0.0) +
                          (barrier - static_cast<double>(least_barrier(ranks)));
    return weights_.kv * (request.prompt_tokens - cached) * context_.prefill_token_s +
           weights_.expert * life * (1 - terms.locality) * context_.remote_token_s +
           weights_.load * life * growth * context_.kv_token_s;
  }

  static void consolidate(std::vector<std::vector<std::size_t>>& group, std::size_t requests) {
    const double mean = static_cast<double>(requests) / static_cast<double>(group.size());
    const auto keeps = std::max(static_cast<std::size_t>(1.5 * mean), std::size_t{1});
    for (auto& crowd : group) {
      if (static_cast<double>(crowd.size()) <= 2 * mean) continue;
      while (crowd.size() > keeps) {
        auto& fewest = *std::ranges::min_element(group, {}, [](const auto& g) { return g.size(); });
        fewest.push_back(crowd.back());
        crowd.pop_back();
      }
    }
  }

  RouterContext context_;
  bool seed_scale_;
  ExpertsFrom experts_from_;
  JointWeights weights_;
  double expected_output_;
  std::size_t batch_;
  OutputLengths outputs_;
};

}  // namespace

std::span<const Key> joint_router_keys() {
  static constexpr Form weight = form::number(non_negative);
  static constexpr Key keys[] = {
      {"scale", form::choice(scale_names), "seconds",
       "scale of the sum: seconds, or the article's own formula"},
      {"kv", weight, unset("1"), "weight of the prefill that is not cached"},
      {"expert", weight, unset("1; seed 0.5"), "weight of tokens sent to other ranks' experts"},
      {"load", weight, unset("1; seed 0.3"), "weight of load"},
      {"expected_output", form::number(1, 1e9), "256", "tokens, until outputs were seen"},
      experts_from_key,
      {"batch", form::integer(positive_count), "64", "requests decided together at most"}};
  return keys;
}

RequestRouterFactory make_joint_router(ConfigReader& options, const RouterContext& context) {
  return copies_of(Joint(options, context));
}

}  // namespace moesim
