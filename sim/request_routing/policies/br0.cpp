// SPDX-License-Identifier: Apache-2.0
#include "hardware/choice.hpp"
#include "sim/request_routing/candidate_ranks.hpp"
#include "sim/request_routing/request_router.hpp"
#include "sim/request_routing/scores.hpp"

namespace moesim {

namespace {

enum class TieBreak { lightest, lowest_rank };
constexpr std::array<std::string_view, 2> tie_break_names{"lightest", "lowest_rank"};

// BalanceRoute without a horizon [BalanceRoute]: the largest F = s - G max(s - m, 0), m = max L -
// L_g. F never falls with m, so that the lightest rank is always among the best. With the tie-break
// "lightest" (default) it decides as least_kv. "lowest_rank" is [barrier-tax]'s bug. With several
// EP groups, G and the maximum are those of the rank's group. F also pays G times how far that
// maximum is above the least of any group's: the best rank is in a group that then waits least.
class Br0 final : public OneByOneRouter {
 public:
  explicit Br0(ConfigReader& options) : OneByOneRouter(options) {
    lightest_ = choice<TieBreak>(options, "tie_break", tie_break_names) == TieBreak::lightest;
  }

  Choice pick(const PendingRequest& request, std::span<const RankLoad> ranks,
              const RoutingState&) override {
    const std::int64_t least = least_barrier(ranks);
    Choice best{ranks.size()};
    std::size_t i = 0;
    for (const auto group : groups_of(ranks)) {
      const std::int64_t barrier = barrier_of(group);
      const auto above = static_cast<double>(std::ssize(group) * (barrier - least));
      for (const RankLoad& rank : group) {
        const double gain =
            barrier_gain(request.prompt_tokens, barrier - rank.kv_tokens, std::ssize(group)) -
            above;
        const bool tie_won = lightest_ && best.index < i && gain == best.score &&
                             rank.kv_tokens < ranks[best.index].kv_tokens;
        if (best.index == ranks.size() || gain > best.score || tie_won) best = {i, gain};
        ++i;
      }
    }
    return best;
  }

 private:
  bool lightest_;
};

// BalanceRoute for sets of requests: F(Q) = sum s - G max(sum s - m, 0), selected in two stages
// from the requests that wait.
class Br0Pool final : public RequestRouter {
 public:
  Br0Pool(ConfigReader& options, const RouterContext& context)
      : window_(at(options.integer("window"))) {
    rules_.beta = context.ranks_of_group();
    rules_.weights = {1};
    rules_.greedy_above = options.integer("greedy_above");
  }
  void route(const RoutingState& state, std::vector<Assignment>& assignments) override {
    std::vector<double> loads;
    for (const RankLoad& r : state.ranks) loads.push_back(static_cast<double>(r.kv_tokens));
    select_from_pool(rules_, pool_ranks(state.ranks, std::move(loads)), state.pending, state.ranks,
                     0, assignments);
  }
  RouterNeeds needs() const override { return {.window = window_}; }

 private:
  std::size_t window_;
  PoolRules rules_;
};

}  // namespace

std::span<const Key> br0_router_keys() {
  static constexpr Key keys[] = {
      admission_key,
      pool_form_key,
      {"tie_break", form::choice(tie_break_names), "lightest", "one_by_one: of equal ranks"},
      pool_keys[0],
      pool_keys[1]};
  return keys;
}

RequestRouterFactory make_br0_router(ConfigReader& options, const RouterContext& context) {
  if (choice<PoolForm>(options, "form", pool_forms) == PoolForm::pool)
    return copies_of(Br0Pool(options, context));
  return copies_of(Br0(options));
}

}  // namespace moesim
