// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <optional>
#include <tuple>

#include "sim/placement/placement_score.hpp"
#include "sim/rebalancing/migration.hpp"

namespace moesim {

namespace {

// Rebalancer that moves single experts where that pays [expert-locality], while steps run. Every
// `interval`, for ranks of which a share of `mismatch` of the demand is elsewhere:
//   net = horizon / step time * seconds saved per step - visible_share * seconds of movement
// The best `max_actions` that still hold when their turn comes, on a copy of the map, are carried
// out. An expert of a layer that moved is left alone for `cooldown`. Free slots are paid for in
// memory once, so that filling one costs no KV cache.
class Migrate final : public Rebalancer {
 public:
  Migrate(ConfigReader& options, const RebalancingContext& context)
      : mover_(context.mover),
        expert_(context.expert),
        token_seconds_(context.token_seconds),
        popularity_(read_popularity(options.child("popularity")), context.dp, context.problem.gpus,
                    context.layers, context.problem.experts),
        interval_(options.quantity<Seconds>("interval")),
        horizon_(interval_),
        cooldown_(interval_),
        mismatch_(options.number("mismatch")),
        visible_share_(options.number("visible_share")),
        min_saving_(options.quantity<Seconds>("min_saving")),
        max_actions_(options.integer("max_actions")),
        replicas_(static_cast<int>(options.integer("replicate_candidates"))),
        free_slots_(static_cast<int>(options.integer("free_slots"))),
        experts_(at(context.problem.experts)),
        last_moved_(at(context.layers) * experts_) {
    limits_.slots_per_gpu = context.problem.slots_per_gpu + free_slots_;
    limits_.max_copies = static_cast<int>(options.integer("max_copies"));
    if (interval_ <= Seconds(0)) options.child("interval").fail("must be more than zero");
    if (options.optional("horizon")) horizon_ = options.quantity<Seconds>("horizon");
    if (options.optional("cooldown")) cooldown_ = options.quantity<Seconds>("cooldown");
  }

  std::optional<RebalancePlan> after_step(const StepSeen& seen) override {
    popularity_.add(seen);
    ++steps_;
    const Seconds passed = to_seconds(seen.now - cycle_began_);
    if (passed < interval_ || seen.moving) return std::nullopt;
    const Seconds step = passed / double(steps_);
    RebalancePlan plan = cycle(seen, horizon_ / step);
    cycle_began_ = seen.now;
    steps_ = 0;
    return plan;
  }

  // At most one action for each layer would need one slot; all may hit one layer and GPU.
  int buffer_slots() const override { return static_cast<int>(max_actions_); }
  int free_slots() const override { return free_slots_; }

 private:
  // Ranks whose experts stand elsewhere too often, over all layers; no demand is no mismatch.
  std::vector<char> mismatched(const StepSeen& seen, const std::vector<LayerDemand>& demand) const {
    std::vector<double> all(seen.live.size()), local(seen.live.size());
    for (std::size_t layer = 0; layer < demand.size(); ++layer) {
      for (std::size_t g = 0; g < all.size(); ++g) {
        const int gpu = static_cast<int>(g);
        const LayerPlacement& placement = seen.placement[layer];
        for (std::size_t e = 0; e < experts_; ++e) {
          const double rate = demand[layer].at(gpu, static_cast<int>(e));
          const auto hosts = placement.hosts_of(static_cast<int>(e));
          all[g] += rate;
          if (std::any_of(hosts.begin(), hosts.end(),
                          [&](auto slot) { return placement.gpu_of_slot(slot) == gpu; })) {
            local[g] += rate;
          }
        }
      }
    }
    std::vector<char> ranks(all.size());
    for (std::size_t g = 0; g < all.size(); ++g) {
      ranks[g] = all[g] > 0 && (all[g] - local[g]) / all[g] >= mismatch_ ? 1 : 0;
    }
    return ranks;
  }

  bool cooling(const Migration& m, Time now) const {
    const auto moved = [&](int expert) {
      const std::optional<Time>& last = last_moved_[cell(m.layer, expert)];
      return last && to_seconds(now - *last) < cooldown_;
    };
    return moved(m.expert) || (m.partner >= 0 && moved(m.partner));
  }
  std::size_t cell(int layer, int expert) const { return at(layer) * experts_ + at(expert); }

  // Seconds gained over the horizon; nothing where too little would be saved to bother.
  double net(const Migration& m, const LayerPlacement& now, const LayerDemand& demand,
             double steps) const {
    const LayerPlacement next = after(now, m);
    const double saved = steps * (expected_seconds(now, demand, expert_, token_seconds_) -
                                  expected_seconds(next, demand, expert_, token_seconds_));
    if (saved < min_saving_.count()) return 0;
    return saved - visible_share_ * mover_.cost(now, next).time.count();
  }

  RebalancePlan cycle(const StepSeen& seen, double steps) {
    const std::vector<LayerDemand> demand = popularity_.demand();
    const std::vector<char> ranks = mismatched(seen, demand);
    std::vector<Migration> plans;
    for (std::size_t layer = 0; layer < demand.size(); ++layer) {
      for (Migration& m :
           candidates({static_cast<int>(layer), seen.placement[layer], demand[layer], seen.live},
                      ranks, replicas_, limits_)) {
        m.net = net(m, seen.placement[layer], demand[layer], steps);
        if (m.net > 0 && !cooling(m, seen.now)) plans.push_back(m);
      }
    }
    std::sort(plans.begin(), plans.end(), [](const Migration& a, const Migration& b) {
      return std::tuple(-a.net, a.layer, a.expert, a.target, a.kind, a.partner) <
             std::tuple(-b.net, b.layer, b.expert, b.target, b.kind, b.partner);
    });
    ExpertPlacement next = seen.placement;
    std::int64_t actions = 0;
    for (const Migration& m : plans) {
      if (actions == max_actions_) break;
      const auto layer = at(m.layer);
      // Earlier plans of the cycle may have made it impossible, or worthless.
      if (cooling(m, seen.now) || !allows(next[layer], m, limits_, seen.live) ||
          net(m, next[layer], demand[layer], steps) <= 0) {
        continue;
      }
      next[layer] = after(next[layer], m);
      last_moved_[cell(m.layer, m.expert)] = seen.now;
      if (m.partner >= 0) last_moved_[cell(m.layer, m.partner)] = seen.now;
      ++actions;
    }
    return plan_of(seen, next, demand);
  }

  static RebalancePlan plan_of(const StepSeen& seen, ExpertPlacement& next,
                               const std::vector<LayerDemand>& demand) {
    RebalancePlan plan;
    plan.synchronous = false;
    plan.imbalance_before = plan.imbalance_after = 0;
    const auto layers = static_cast<double>(next.size());
    for (std::size_t layer = 0; layer < next.size(); ++layer) {
      const ExpertLoad load = demand[layer].total();
      plan.imbalance_before += imbalance(seen.placement[layer], load) / layers;
      plan.imbalance_after += imbalance(next[layer], load) / layers;
      if (next[layer] == seen.placement[layer]) continue;
      plan.changes.push_back({static_cast<int>(layer), std::move(next[layer])});
    }
    return plan;
  }

  Mover mover_;
  RooflineTime expert_;
  double token_seconds_;
  Popularity popularity_;
  Seconds interval_, horizon_, cooldown_;
  double mismatch_, visible_share_;
  Seconds min_saving_;
  std::int64_t max_actions_;
  int replicas_, free_slots_;
  MigrationLimits limits_;
  std::size_t experts_;
  std::vector<std::optional<Time>> last_moved_;  // by (layer, expert)
  Time cycle_began_{};
  std::int64_t steps_ = 0;  // since the last cycle
};

}  // namespace

std::span<const Key> migrate_keys() {
  static constexpr KeyDefault interval = unset("interval");
  static constexpr Key keys[] = {
      {"interval", form::time, "60 s", "between decisions"},
      {"horizon", form::time, interval, "steps over which the saving of a move counts"},
      {"cooldown", form::time, interval, "steps for which an expert stays after a move"},
      {"mismatch", form::number(0, 1), "0.1",
       "share of a rank's demand whose experts must be elsewhere"},
      {"visible_share", form::number(0, 1), "1",
       "share of a movement's seconds charged to the decision"},
      {"min_saving", form::time, "10 us", "net seconds below which nothing moves"},
      {"max_actions", form::integer(positive_count), "4", "moves at a time"},
      {"replicate_candidates", form::integer(0, 1e6), "5", "experts tried as copies, per rank"},
      {"free_slots", form::integer(0, 1e6), "2", "slots kept free, per GPU and layer"},
      {"max_copies", form::integer(positive_count), "3", "most copies of one expert"},
      {"popularity", form::object(popularity_keys), "{}", "how demand is remembered"}};
  return keys;
}

RebalancerFactory make_migrate(ConfigReader& options, const RebalancingContext& context) {
  return copies_of(Migrate(options, context));
}

}  // namespace moesim
