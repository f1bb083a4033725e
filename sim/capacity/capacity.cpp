// SPDX-License-Identifier: Apache-2.0
#include "sim/capacity/capacity.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "hardware/sums.hpp"

namespace moesim {

// The constructor of each row and its options, from policies/.
Registry<CapacityRule>::Maker make_dropless, make_drop, make_reroute, make_delay;

namespace {

// Puts each waiting selection before the tokens of its GPU, as a token of one selection.
void add_delayed(LayerChoices& choices, std::span<const DelayedSelection> backlog) {
  const std::size_t k = choices.k();
  LayerChoices all;
  std::size_t token = 0;
  const auto take_tokens_before = [&](std::int32_t gpu) {
    const auto end =
        at(std::lower_bound(choices.source_gpu.begin(), choices.source_gpu.end(), gpu) -
           choices.source_gpu.begin());
    for (; token < end; ++token) {
      const auto first = choices.ids.begin() + static_cast<std::ptrdiff_t>(token * k);
      all.ids.insert(all.ids.end(), first, first + static_cast<std::ptrdiff_t>(k));
      all.source_rank.push_back(choices.source_rank[token]);
      all.source_gpu.push_back(choices.source_gpu[token]);
      all.dropped.insert(all.dropped.end(), k, 0);
      all.delayed.push_back(0);
    }
  };
  for (const DelayedSelection& selection : backlog) {
    take_tokens_before(selection.source_gpu);
    all.ids.insert(all.ids.end(), k, selection.expert);
    all.source_rank.push_back(selection.source_rank);
    all.source_gpu.push_back(selection.source_gpu);
    all.dropped.push_back(0);
    all.dropped.insert(all.dropped.end(), k - 1, 1);
    all.delayed.push_back(1);
  }
  take_tokens_before(std::numeric_limits<std::int32_t>::max());
  choices = std::move(all);
}

}  // namespace

CapacityTally& CapacityTally::operator+=(const CapacityTally& other) {
  using T = CapacityTally;
  return add_members<&T::selections, &T::dropped, &T::rerouted, &T::delayed, &T::waited,
                     &T::resumed>(*this, other);
}

std::int32_t expert_capacity(double factor, std::size_t k, std::size_t tokens,
                             std::size_t experts) {
  const double mean = double(k) * double(tokens) / double(experts);
  constexpr double rounding = 1e-9;  // 1.1 * 10 is no more than 11
  return static_cast<std::int32_t>(std::max(1.0, std::ceil(factor * mean * (1 - rounding))));
}

ExpertRoom::ExpertRoom(const LayerChoices& choices, std::size_t experts, double factor,
                       bool per_source_rank)
    : experts_(experts), per_source_rank_(per_source_rank) {
  std::vector<std::size_t> tokens(1);
  for (std::size_t t = 0; t < choices.tokens(); ++t) {
    const auto rank = per_source_rank ? at(choices.source_rank[t]) : 0;
    if (rank >= tokens.size()) tokens.resize(rank + 1);
    if (choices.delayed[t] == 0) ++tokens[rank];
  }
  for (const std::size_t of_rank : tokens) {
    left_.insert(left_.end(), experts, expert_capacity(factor, choices.k(), of_rank, experts));
  }
}

bool ExpertRoom::take(std::uint16_t expert, std::int32_t source_rank) {
  const auto rank = per_source_rank_ ? at(source_rank) : 0;
  std::int32_t& left = left_[rank * experts_ + expert];
  if (left == 0) return false;
  --left;
  return true;
}

void limit_choices(const CapacityRule& rule, LayerChoices& choices,
                   std::vector<DelayedSelection>& backlog, std::span<std::int32_t> tokens,
                   CapacityTally& tally) {
  const std::size_t k = choices.k();
  tally.selections += std::ssize(choices.ids);
  choices.dropped.assign(choices.ids.size(), 0);
  choices.delayed.assign(choices.tokens(), 0);
  tally.waited += std::ssize(backlog);
  if (!backlog.empty()) add_delayed(choices, backlog);
  backlog.clear();

  ExpertRoom room(choices, tokens.size(), rule.factor, rule.per_source_rank);
  std::vector<std::int32_t> demand(tokens.size());
  std::vector<std::size_t> over;
  for (const std::uint8_t waited : {std::uint8_t{1}, std::uint8_t{0}}) {
    for (std::size_t t = 0; t < choices.tokens(); ++t) {
      if (choices.delayed[t] != waited) continue;
      for (std::size_t i = t * k; i < (t + 1) * k; ++i) {
        if (choices.dropped[i] != 0) continue;
        ++demand[choices.ids[i]];
        if (room.take(choices.ids[i], choices.source_rank[t])) {
          tally.resumed += waited;
          continue;
        }
        choices.dropped[i] = 1;
        over.push_back(i);
      }
    }
  }
  rule.overflow({over, demand, room, backlog}, choices, tally);
  // In order of their GPU, as the next step takes them in.
  std::stable_sort(backlog.begin(), backlog.end(),
                   [](const auto& a, const auto& b) { return a.source_gpu < b.source_gpu; });

  std::fill(tokens.begin(), tokens.end(), 0);
  for (std::size_t i = 0; i < choices.ids.size(); ++i) {
    if (choices.dropped[i] == 0) ++tokens[choices.ids[i]];
  }
}

std::span<const Key> capacity_keys() {
  static constexpr Key keys[] = {{"factor", form::number(1e-3, 1e6), required,
                                  "most tokens of an expert, over the mean of all experts"},
                                 {"scope", form::choice(capacity_scope_names), "global",
                                  "tokens that share an expert's room"}};
  return keys;
}

const Registry<CapacityRule>& capacity_rules() {
  static const Registry<CapacityRule> table(
      "capacity",
      {{"dropless", "every selection runs, as in serving engines", make_dropless},
       {"drop", "an expert's selections beyond factor * mean are dropped, first come first served",
        make_drop, capacity_keys},
       {"reroute", "overflow goes to the layer's most wanted expert with room, if there is one",
        make_reroute, capacity_keys},
       {"delay",
        "overflow runs in the next step, before that step's own; a second overflow is dropped",
        make_delay, capacity_keys}});
  return table;
}

}  // namespace moesim
