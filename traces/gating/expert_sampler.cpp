// SPDX-License-Identifier: Apache-2.0
#include "traces/gating/expert_sampler.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "hardware/units.hpp"

namespace moesim {
namespace {

constexpr unsigned tries = 32;  // of one pick, before those that are left are looked through

}  // namespace

void WeightedDraw::set_weights(std::span<const double> weights) {
  weights_.assign(weights.begin(), weights.end());
  total_ = std::accumulate(weights.begin(), weights.end(), 0.0);
  size_ = static_cast<double>(weights.size());
  slots_.resize(weights.size());
  small_.resize(weights.size() + 1);
  large_.resize(weights.size() + 1);
  // Stacks of the slots below and above 1, from place 1 on. No branch could guess which, so that
  // both tops are written and one grows.
  std::size_t smalls = 0, larges = 0;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    slots_[i] = {weights[i] / total_ * size_, i};
    const bool small = slots_[i].keep < 1;
    small_[smalls + 1] = large_[larges + 1] = i;
    smalls += small ? 1U : 0U;
    larges += small ? 0U : 1U;
  }
  if (smalls > 0 && larges > 0) pair_up(smalls, larges);
  // What rounding left over fills its slot alone: its alias is itself.
}

// A small slot is filled from a large one, which is then small itself or fills the next. What comes
// next of either kind waits in registers: a chain through memory would take twice as long.
void WeightedDraw::pair_up(std::size_t smalls, std::size_t larges) {
  struct Top {
    std::size_t slot;
    double keep;
  };
  // At the bottom, place 0, is slot 0: it is read, and never paired.
  const auto pop = [&](const std::vector<std::size_t>& stack, std::size_t& count) -> Top {
    const std::size_t slot = stack[count];
    count -= count > 0 ? 1U : 0U;
    return {slot, slots_[slot].keep};
  };
  std::size_t small_left = smalls, large_left = larges;  // in the pairs to come, this one included
  Top small = pop(small_, smalls), large = pop(large_, larges);
  Top next_small = pop(small_, smalls), next_large = pop(large_, larges);
  while (small_left > 0 && large_left > 0) {
    slots_[small.slot].alias = large.slot;
    large.keep -= 1 - small.keep;
    slots_[large.slot].keep = large.keep;
    const bool stays = large.keep >= 1;
    small = stays ? next_small : large;
    large = stays ? large : next_large;
    small_left -= stays ? 1U : 0U;
    large_left -= stays ? 0U : 1U;
    if (stays)
      next_small = pop(small_, smalls);
    else
      next_large = pop(large_, larges);
  }
}

ExpertSampler::ExpertSampler(int experts, int k, int groups, int groups_per_token)
    : groups_per_token_(at(groups_per_token)), taken_(at(experts)) {
  check(groups >= 1 && experts % groups == 0 && groups_per_token <= groups &&
            k <= groups_per_token * (experts / groups),
        "a token's experts do not fit into its expert groups");
  const bool limited = groups_per_token < groups;
  groups_.resize(limited ? at(groups) : 1);
  group_size_ = taken_.size() / groups_.size();
  for (Group& group : groups_) group.bells.resize(group_size_ + 1);
  unordered_.resize(groups_.size());
  order_.resize(groups_.size());
}

void ExpertSampler::set_weights(std::span<const double> weights) {
  for (std::size_t i = 0; i < groups_.size(); ++i)
    groups_[i].draw.set_weights(weights.subspan(i * group_size_, group_size_));
}

void ExpertSampler::first(std::span<std::uint16_t> picks, Rng& rng) { next(picks, 0, rng); }

// The untaken item at this share of the weight that is left.
std::size_t ExpertSampler::find_untaken(const WeightedDraw& draw, const char* taken,
                                        double share) const {
  double left = 0;
  for (std::size_t i = 0; i < group_size_; ++i)
    if (!taken[i]) left += draw.weights()[i];
  double point = share * left;
  std::size_t found = group_size_;
  for (std::size_t i = 0; i < group_size_ && (found == group_size_ || point >= 0); ++i) {
    if (taken[i]) continue;
    found = i;
    point -= draw.weights()[i];
  }
  check(found < group_size_, "a token picks more experts than there are");
  return found;
}

/// Draws until an untaken item comes, and takes it; where those are rare, among them only: exact
/// either way. One function with all that leads here, so that the state of the stream stays in
/// registers: here is where the time of a trace goes.
[[gnu::always_inline]] inline std::size_t ExpertSampler::draw_untaken(const WeightedDraw& draw,
                                                                      char* taken, Rng& rng) const {
  std::size_t drawn = draw.draw(rng);
  for (unsigned i = 1; taken[drawn] && i < tries; ++i) drawn = draw.draw(rng);
  if (taken[drawn]) drawn = find_untaken(draw, taken, rng.uniform());
  taken[drawn] = 1;
  return drawn;
}

/// The same for all of `picks`. A draw is written whether taken or not, since no branch could
/// guess: a taken one is written over.
[[gnu::always_inline]] inline void ExpertSampler::draw_all_untaken(std::span<std::uint16_t> picks,
                                                                   const WeightedDraw& draw,
                                                                   char* taken, Rng& rng) const {
  std::size_t count = 0;
  unsigned misses = 0;
  while (count < picks.size()) {
    std::size_t drawn = draw.draw(rng);
    if (misses == tries - 1) [[unlikely]]
      if (taken[drawn]) drawn = find_untaken(draw, taken, rng.uniform());
    const auto miss = static_cast<unsigned char>(taken[drawn]);
    picks[count] = static_cast<std::uint16_t>(drawn);
    taken[drawn] = 1;
    count += 1U - miss;
    misses = (misses + 1) * miss;
  }
}

/// Adds the group's next bell; one that never rings when every expert has.
[[gnu::always_inline]] inline void ExpertSampler::ring(std::size_t index, Rng& rng) {
  Group& group = groups_[index];
  if (group.rung == group_size_) {
    group.bells[group.rung++] = {std::numeric_limits<double>::infinity(), 0};
    return;
  }
  const double last = group.rung == 0 ? 0 : group.bells[group.rung - 1].time;
  // log() rather than exponential()'s log1p(): half the time.
  const double time = last - std::log(1 - rng.uniform()) / std::max(group.left, 1e-300);
  const std::size_t first = index * group_size_;
  const std::size_t drawn = draw_untaken(group.draw, taken_.data() + first, rng);
  group.left -= group.draw.weights()[drawn];
  group.bells[group.rung++] = {time, static_cast<std::uint16_t>(first + drawn)};
}

// Sorts by time, equal times by id. Each goes to the place that as many others are before. There
// are few, and no branch could guess which is first.
void ExpertSampler::sort_groups() {
  const std::size_t count = unordered_.size();
  for (std::size_t i = 0; i < count; ++i) {
    const double time = unordered_[i].time;
    std::size_t before = 0;
    for (std::size_t j = 0; j < i; ++j) before += unordered_[j].time <= time ? 1U : 0U;
    for (std::size_t j = i + 1; j < count; ++j) before += unordered_[j].time < time ? 1U : 0U;
    order_[before] = unordered_[i];
  }
}

[[gnu::always_inline]] inline void ExpertSampler::fill_from_groups(std::span<std::uint16_t> picks,
                                                                   std::size_t kept, Rng& rng) {
  for (Group& group : groups_) {
    group.rung = group.used = 0;
    group.left = group.draw.total();
  }
  for (const std::uint16_t expert : picks.first(kept)) {  // kept experts have rung at time 0
    Group& group = groups_[expert / group_size_];
    group.left -= group.draw.weights()[expert % group_size_];
    group.bells[group.rung++] = {0, expert};
  }
  // Sum of the two best scores = -log(product of their times). A group with a kept expert has 0 and
  // stays among the token's groups.
  const std::size_t best_two = std::min<std::size_t>(2, group_size_);
  for (std::size_t i = 0; i < groups_.size(); ++i) {
    const Group& group = groups_[i];
    while (group.rung < best_two) ring(i, rng);
    unordered_[i] = {group.bells.front().time * group.bells[best_two - 1].time, i};
  }
  sort_groups();
  const std::span<Ordered> allowed = std::span(order_).first(groups_per_token_);
  // From here on a group's time is that of its next bell.
  for (Ordered& group : allowed) group.time = groups_[group.group].bells.front().time;
  for (std::uint16_t& pick : picks) {
    std::size_t best = 0;
    double first = allowed.front().time;
    for (std::size_t i = 1; i < allowed.size(); ++i) {
      best = allowed[i].time < first ? i : best;
      first = std::min(first, allowed[i].time);
    }
    const std::size_t index = allowed[best].group;
    Group& winner = groups_[index];
    pick = winner.bells[winner.used++].expert;
    if (winner.used == winner.rung) ring(index, rng);
    allowed[best].time = winner.bells[winner.used].time;
  }
}

void ExpertSampler::next(std::span<std::uint16_t> picks, double reuse, Rng& stream) {
  // A copy stays in registers: a byte of `taken_` that is written may be one of the stream's as far
  // as a compiler knows.
  Rng rng = stream;
  std::size_t kept = 0;
  if (reuse > 0)
    for (const std::uint16_t expert : picks) {
      picks[kept] = expert;
      kept += rng.uniform() < reuse ? 1U : 0U;
    }
  std::fill(taken_.begin(), taken_.end(), char{0});
  for (const std::uint16_t expert : picks.first(kept)) taken_[expert] = 1;
  if (groups_.size() > 1) {
    fill_from_groups(picks, kept, rng);
  } else {
    draw_all_untaken(picks.subspan(kept), groups_[0].draw, taken_.data(), rng);
  }
  stream = rng;
}

}  // namespace moesim
