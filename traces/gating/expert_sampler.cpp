// SPDX-License-Identifier: Apache-2.0
#include "traces/gating/expert_sampler.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "hardware/units.hpp"

namespace moesim {

void WeightedDraw::set_weights(std::span<const double> weights) {
  weights_.assign(weights.begin(), weights.end());
  total_ = std::accumulate(weights.begin(), weights.end(), 0.0);
  slots_.resize(weights.size());
  small_.clear();
  large_.clear();
  for (std::size_t i = 0; i < weights.size(); ++i) {
    slots_[i] = {weights[i] / total_ * static_cast<double>(weights.size()), i};
    (slots_[i].keep < 1 ? small_ : large_).push_back(i);
  }
  while (!small_.empty() && !large_.empty()) {
    const std::size_t small = small_.back(), large = large_.back();
    small_.pop_back();
    slots_[small].alias = large;
    slots_[large].keep -= 1 - slots_[small].keep;
    if (slots_[large].keep >= 1) continue;
    large_.pop_back();
    small_.push_back(large);
  }
  // What rounding left over fills its slot alone: its alias is itself.
}

ExpertSampler::ExpertSampler(int experts, int k, int groups, int groups_per_token)
    : groups_per_token_(static_cast<std::size_t>(groups_per_token)),
      taken_(static_cast<std::size_t>(experts)) {
  check(groups >= 1 && experts % groups == 0 && groups_per_token <= groups &&
            k <= groups_per_token * (experts / groups),
        "a token's experts do not fit into its expert groups");
  const bool limited = groups_per_token < groups;
  groups_.resize(limited ? static_cast<std::size_t>(groups) : 1);
  group_size_ = taken_.size() / groups_.size();
  order_.resize(groups_.size());
}

void ExpertSampler::set_weights(std::span<const double> weights) {
  for (std::size_t i = 0; i < groups_.size(); ++i)
    groups_[i].draw.set_weights(weights.subspan(i * group_size_, group_size_));
}

void ExpertSampler::first(std::span<std::uint16_t> picks, Rng& rng) { next(picks, 0, rng); }

void ExpertSampler::next(std::span<std::uint16_t> picks, double reuse, Rng& rng) {
  const auto kept_end = reuse > 0 ? std::remove_if(picks.begin(), picks.end(),
                                                   [&](auto) { return rng.uniform() >= reuse; })
                                  : picks.begin();
  const auto kept = static_cast<std::size_t>(kept_end - picks.begin());
  std::fill(taken_.begin(), taken_.end(), char{0});
  for (const std::uint16_t expert : picks.first(kept)) taken_[expert] = 1;
  if (groups_.size() > 1) return fill_from_groups(picks, kept, rng);
  for (std::uint16_t& pick : picks.subspan(kept)) pick = draw_untaken(groups_[0], 0, rng);
}

void ExpertSampler::fill_from_groups(std::span<std::uint16_t> picks, std::size_t kept, Rng& rng) {
  for (Group& group : groups_) {
    group.bells.clear();
    group.used = 0;
    group.left = group.draw.total();
  }
  for (const std::uint16_t expert : picks.first(kept)) {  // kept experts have rung at time 0
    Group& group = groups_[expert / group_size_];
    group.left -= group.draw.weights()[expert % group_size_];
    group.bells.push_back({0, expert});
  }
  // Sum of the two best scores = -log(product of their times). A group with a kept expert has 0 and
  // stays among the token's groups.
  const std::size_t best_two = std::min<std::size_t>(2, group_size_);
  for (std::size_t i = 0; i < groups_.size(); ++i) {
    const auto& bells = groups_[i].bells;
    while (bells.size() < best_two) ring(i, rng);
    order_[i] = {bells.front().time * bells[best_two - 1].time, i};
  }
  const auto allowed = order_.begin() + static_cast<std::ptrdiff_t>(groups_per_token_);
  std::partial_sort(order_.begin(), allowed, order_.end());
  // From here on a group's time is that of its next bell.
  for (auto group = order_.begin(); group != allowed; ++group)
    group->first = groups_[group->second].bells.front().time;
  for (std::uint16_t& pick : picks) {
    const auto best = std::min_element(
        order_.begin(), allowed, [](const auto& a, const auto& b) { return a.first < b.first; });
    Group& winner = groups_[best->second];
    pick = winner.bells[winner.used++].expert;
    if (winner.used == winner.bells.size()) ring(best->second, rng);
    best->first = winner.bells[winner.used].time;
  }
}

/// Adds the group's next bell; one that never rings when every expert has.
void ExpertSampler::ring(std::size_t index, Rng& rng) {
  Group& group = groups_[index];
  if (group.bells.size() == group_size_) {
    group.bells.push_back({std::numeric_limits<double>::infinity(), 0});
    return;
  }
  const double last = group.bells.empty() ? 0 : group.bells.back().time;
  // log() rather than exponential()'s log1p(): half the time, and here is where the time goes.
  const double time = last - std::log(1 - rng.uniform()) / std::max(group.left, 1e-300);
  const std::uint16_t expert = draw_untaken(group, index * group_size_, rng);
  group.left -= group.draw.weights()[expert % group_size_];
  group.bells.push_back({time, expert});
}

/// Draws until an untaken expert comes; where those are rare, among them only: exact either way.
std::uint16_t ExpertSampler::draw_untaken(const Group& group, std::size_t first_expert, Rng& rng) {
  const auto take = [&](std::size_t in_group) {
    taken_[first_expert + in_group] = 1;
    return static_cast<std::uint16_t>(first_expert + in_group);
  };
  constexpr int tries = 32;
  for (int i = 0; i < tries; ++i)
    if (const std::size_t drawn = group.draw.draw(rng); !taken_[first_expert + drawn])
      return take(drawn);
  double left = 0;
  for (std::size_t i = 0; i < group_size_; ++i)
    if (!taken_[first_expert + i]) left += group.draw.weights()[i];
  double point = rng.uniform() * left;
  std::size_t drawn = group_size_;
  for (std::size_t i = 0; i < group_size_ && (drawn == group_size_ || point >= 0); ++i) {
    if (taken_[first_expert + i]) continue;
    drawn = i;
    point -= group.draw.weights()[i];
  }
  check(drawn < group_size_, "a token picks more experts than there are");
  return take(drawn);
}

}  // namespace moesim
