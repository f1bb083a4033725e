// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <numeric>

#include "sim/scheduling/scheduler.hpp"

namespace moesim {

namespace {

// Decode scheduler of [expert-locality], repaired. Requests whose experts are near come first, but
// none waits for long. A step holds as many as it can within a target for the time between tokens.
// The step is priced as a whole, all layers with attention and exchange. The test in
// [expert-locality] takes one layer for the whole model and never binds. Prompts fill what the
// decodes leave of the target and of the token budget.
class CommAware final : public LimitedScheduler {
 public:
  CommAware(BatchLimits limits, Seconds target, double max_skips)
      : LimitedScheduler(limits), target_(target), max_skips_(max_skips) {}

  void plan(const RankView& rank, Turn, StepPlan& plan) const override {
    check(rank.price != nullptr, "comm_aware plans by the price of a step");
    Load load;
    const std::vector<char> chosen = choose_decodes(rank, load);
    RankView within_target = rank;
    within_target.token_room = static_cast<std::int32_t>(
        std::min<std::int64_t>(rank.token_room, load.tokens + room(rank, load)));
    const auto takes = [&](const Sequence& sequence) {
      return chosen[at(&sequence - rank.running.data())] != 0;
    };
    plan.clear();
    Leftover left = plan_running(within_target, limits(), OutOfBlocks::gives_up, takes, plan);
    if (!left.out_of_blocks) plan_waiting(within_target, limits(), left, plan);
    // Where the chosen sequences find no block and those ahead sit out, the ones ahead must go on.
    if (plan.empty()) plan_first_come(rank, limits(), plan);
  }
  bool needs_price() const override { return true; }

 private:
  struct Load {
    std::int64_t tokens = 0, context = 0;
  };

  bool meets_target(const RankView& rank, const Load& load) const {
    return rank.price->time(load.tokens, load.context) <= target_;
  }

  // Which running sequences may compute, by place: every prompt, and the decodes that fit, the
  // nearest and longest skipped first, at least one. A decode that does not fit may be followed by
  // one with a shorter context that does.
  std::vector<char> choose_decodes(const RankView& rank, Load& load) const {
    std::vector<char> chosen(rank.running.size(), 1);
    std::vector<std::size_t> order;
    for (std::size_t i = 0; i < rank.running.size(); ++i) {
      if (rank.running[i].decoding()) order.push_back(i);
    }
    const auto key = [&](std::size_t i) {
      return rank.running[i].locality + rank.running[i].skipped / max_skips_;
    };
    std::stable_sort(order.begin(), order.end(),
                     [&](std::size_t a, std::size_t b) { return key(a) > key(b); });
    for (const std::size_t i : order) {
      const Sequence& sequence = rank.running[i];
      const Load with{load.tokens + sequence.need(), load.context + sequence.computed};
      if (load.tokens > 0 && !meets_target(rank, with)) {
        chosen[i] = 0;
      } else {
        load = with;
      }
    }
    return chosen;
  }

  // Prompt tokens for which the target leaves time; where even one is too many and no sequence
  // decodes, as many as the budget allows.
  std::int64_t room(const RankView& rank, const Load& load) const {
    const std::int64_t most = limits().max_num_batched_tokens;
    std::int64_t fits = 0, too_many = most + 1;
    while (too_many - fits > 1) {
      const std::int64_t tokens = std::midpoint(fits, too_many);
      (meets_target(rank, {load.tokens + tokens, load.context}) ? fits : too_many) = tokens;
    }
    return load.tokens == 0 && fits == 0 ? most : fits;
  }

  Seconds target_;
  double max_skips_;
};

}  // namespace

std::span<const Key> comm_aware_keys() {
  static constexpr Key keys[] = {
      batch_limit_keys[0],
      batch_limit_keys[1],
      batch_limit_keys[2],
      reserve_full_prompt_key,
      capacity_policy_key,
      {"target", form::time, "50 ms", "what a step may take"},
      {"max_skips", form::number(1, 1e6), "8", "steps until a decode goes before any nearer one"}};
  return keys;
}

std::unique_ptr<Scheduler> make_comm_aware(ConfigReader& options) {
  const BatchLimits limits = read_batch_limits(options);
  const auto target = options.quantity<Seconds>("target");
  return std::make_unique<CommAware>(limits, target, options.number("max_skips"));
}

}  // namespace moesim
