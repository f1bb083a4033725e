// SPDX-License-Identifier: Apache-2.0
#include "sim/request_routing/candidate_ranks.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>
#include <tuple>

namespace moesim {

namespace {

// The largest load of any rank of the rank's EP group after t steps.
double envelope(const PoolRanks& ranks, std::size_t t, std::size_t rank) {
  const auto [first, last] =
      std::equal_range(ranks.group.begin(), ranks.group.end(), ranks.group[rank]);
  const auto row = ranks.loads.begin() + static_cast<std::ptrdiff_t>(t * ranks.group.size());
  return *std::max_element(row + (first - ranks.group.begin()), row + (last - ranks.group.begin()));
}

// Sums that can be reached: bit S of a row.
class Reachable {
 public:
  explicit Reachable(std::int64_t most) : words_(static_cast<std::size_t>(most / 64 + 1)) {}
  bool at(std::int64_t sum) const {
    return (words_[static_cast<std::size_t>(sum / 64)] >> (sum % 64) & 1) != 0;
  }
  void set(std::int64_t sum) {
    words_[static_cast<std::size_t>(sum / 64)] |= std::uint64_t{1} << (sum % 64);
  }
  // Adds every sum of `from` with `size` more, as far as there is room.
  void add_shifted(const Reachable& from, std::int64_t size) {
    const auto skip = static_cast<std::size_t>(size / 64);
    const auto shift = static_cast<unsigned>(size % 64);
    for (std::size_t w = words_.size(); w-- > skip;) {
      words_[w] |= from.words_[w - skip] << shift;
      if (shift > 0 && w > skip) words_[w] |= from.words_[w - skip - 1] >> (64 - shift);
    }
  }

 private:
  std::vector<std::uint64_t> words_;
};

// Requests and ranks while the selection is under way.
class Selection {
 public:
  Selection(const PoolRules& rules, PoolRanks ranks, std::span<const PendingRequest> pending,
            std::span<const RankLoad> loads, std::vector<Assignment>& assignments)
      : rules_(rules),
        ranks_(std::move(ranks)),
        loads_(loads),
        assignments_(assignments),
        pending_(pending),
        left_(pending.size()) {
    std::iota(left_.begin(), left_.end(), std::size_t{0});
  }

  void greedy() {
    auto& seats = ranks_.seats;
    while (!left_.empty() &&
           std::accumulate(seats.begin(), seats.end(), std::int64_t{0}) > rules_.greedy_above) {
      std::size_t rank = 0;
      for (std::size_t g = 1; g < seats.size(); ++g) {
        if (std::tuple(-seats[g], ranks_.loads[g]) < std::tuple(-seats[rank], ranks_.loads[rank]))
          rank = g;
      }
      const PoolGain gain(rules_, ranks_, rank);
      if (const auto best = best_single(rank, gain)) {
        assign(rank, {*best}, gain(size_of(*best)));
      } else {
        seats[rank] = 0;
      }
    }
  }

  void subsets(double lambda) {
    const std::size_t count = ranks_.seats.size();
    const auto key = [&](std::size_t g) {
      return (1 - lambda) * ranks_.loads[g] +
             lambda * ranks_.loads[ranks_.loads.size() - count + g];
    };
    while (!left_.empty()) {
      std::optional<std::size_t> rank;
      for (std::size_t g = 0; g < count; ++g) {
        if (ranks_.seats[g] > 0 && (!rank || key(g) < key(*rank))) rank = g;
      }
      if (!rank) return;
      const PoolGain gain(rules_, ranks_, *rank);
      std::vector<std::size_t> chosen = best_subset(*rank, gain);
      if (chosen.empty() || gain(sum_of(chosen)) <= 0) {
        chosen.clear();
        if (const auto best = best_single(*rank, gain)) chosen.push_back(*best);
      }
      if (chosen.empty()) {
        ranks_.seats[*rank] = 0;
      } else {
        assign(*rank, chosen, gain(sum_of(chosen)));
      }
    }
  }

 private:
  // Positions are those in left_.
  const PendingRequest& request(std::size_t position) const { return pending_[left_[position]]; }
  std::int64_t size_of(std::size_t position) const { return request(position).prompt_tokens; }
  bool fits(std::size_t rank, std::size_t position) const {
    return request(position).blocks <= ranks_.blocks[rank];
  }
  std::int64_t sum_of(const std::vector<std::size_t>& chosen) const {
    std::int64_t sum = 0;
    for (const std::size_t position : chosen) sum += size_of(position);
    return sum;
  }

  std::optional<std::size_t> best_single(std::size_t rank, const PoolGain& gain) const {
    std::optional<std::size_t> best;
    for (std::size_t i = 0; i < left_.size(); ++i) {
      if (fits(rank, i) && (!best || gain(size_of(i)) > gain(size_of(*best)))) best = i;
    }
    return best;
  }

  std::vector<std::size_t> best_subset(std::size_t rank, const PoolGain& gain) const {
    std::vector<std::size_t> shown;
    std::vector<std::int64_t> sizes;
    for (std::size_t i = 0; i < left_.size() && shown.size() < rules_.subset_window; ++i) {
      if (!fits(rank, i)) continue;
      shown.push_back(i);
      sizes.push_back(size_of(i));
    }
    std::vector<std::size_t> best;
    auto most = std::min(shown.size(), static_cast<std::size_t>(ranks_.seats[rank]));
    for (; most > 0; --most) {
      std::vector<std::size_t> chosen = subset_of(sizes, most, gain.margin());
      std::int64_t blocks = 0;
      for (std::size_t& i : chosen) blocks += request(i = shown[i]).blocks;
      if (chosen.empty() || blocks > ranks_.blocks[rank]) continue;
      if (best.empty() || gain(sum_of(chosen)) > gain(sum_of(best))) best = std::move(chosen);
      if (sum_of(best) <= gain.margin()) break;
    }
    return best;
  }

  // `chosen` ascending.
  void assign(std::size_t rank, const std::vector<std::size_t>& chosen, double score) {
    const std::size_t count = ranks_.seats.size();
    const auto tokens = static_cast<double>(sum_of(chosen));
    for (std::size_t i = rank; i < ranks_.loads.size(); i += count) ranks_.loads[i] += tokens;
    for (const std::size_t position : chosen) {
      --ranks_.seats[rank];
      ranks_.blocks[rank] -= request(position).blocks;
      assignments_.push_back({left_[position], loads_[rank].rank, score});
    }
    for (auto position = chosen.rbegin(); position != chosen.rend(); ++position) {
      left_.erase(left_.begin() + static_cast<std::ptrdiff_t>(*position));
    }
  }

  const PoolRules& rules_;
  PoolRanks ranks_;
  std::span<const RankLoad> loads_;
  std::vector<Assignment>& assignments_;
  std::span<const PendingRequest> pending_;
  std::vector<std::size_t> left_;  // indices into pending_
};

}  // namespace

PoolRanks pool_ranks(std::span<const RankLoad> ranks, std::vector<double> loads) {
  PoolRanks pool{std::move(loads), {}, {}, {}};
  for (const RankLoad& rank : ranks) {
    pool.seats.push_back(std::max<std::int64_t>(rank.seats, 0));
    pool.blocks.push_back(rank.free_blocks());
    pool.group.push_back(rank.group);
  }
  return pool;
}

PoolGain::PoolGain(const PoolRules& rules, const PoolRanks& ranks, std::size_t rank)
    : alpha_(rules.alpha), beta_(rules.beta) {
  const std::size_t count = ranks.seats.size();
  std::vector<std::pair<double, double>> steps;  // margin, weight
  for (std::size_t t = 0; t * count < ranks.loads.size(); ++t) {
    steps.emplace_back(envelope(ranks, t, rank) - ranks.loads[t * count + rank], rules.weights[t]);
  }
  std::stable_sort(steps.begin(), steps.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  margin_ = static_cast<std::int64_t>(std::floor(steps.front().first));
  weight_.push_back(0);
  weight_margin_.push_back(0);
  for (const auto& [margin, weight] : steps) {
    margins_.push_back(margin);
    weight_.push_back(weight_.back() + weight);
    weight_margin_.push_back(weight_margin_.back() + weight * margin);
  }
}

double PoolGain::operator()(std::int64_t tokens) const {
  const auto s = static_cast<double>(tokens);
  const auto over = static_cast<std::size_t>(std::lower_bound(margins_.begin(), margins_.end(), s) -
                                             margins_.begin());
  return alpha_ * s * weight_.back() - beta_ * (s * weight_[over] - weight_margin_[over]);
}

std::vector<std::size_t> subset_of(std::span<const std::int64_t> sizes, std::size_t count,
                                   std::int64_t margin) {
  if (count == 0 || count > sizes.size()) return {};
  std::vector<std::int64_t> sorted(sizes.begin(), sizes.end());
  std::sort(sorted.begin(), sorted.end());
  const std::int64_t least = std::accumulate(
      sorted.begin(), sorted.begin() + static_cast<std::ptrdiff_t>(count), std::int64_t{0});
  // Any subset is reached from the smallest one by exchanges, each of which adds at most the
  // largest size. So the smallest sum above the margin is no further than that above it.
  const std::int64_t most = std::max(least, margin + sorted.back());
  // reach[i][j]: sums of exactly j of the first i sizes.
  std::vector<std::vector<Reachable>> reach(1, std::vector<Reachable>(count + 1, Reachable(most)));
  reach[0][0].set(0);
  for (const std::int64_t size : sizes) {
    std::vector<Reachable> next = reach.back();
    for (std::size_t j = 1; j <= count; ++j) next[j].add_shifted(reach.back()[j - 1], size);
    reach.push_back(std::move(next));
  }
  std::int64_t sum = margin;
  while (sum >= 0 && !reach.back()[count].at(sum)) --sum;
  if (sum < 0) {
    sum = margin + 1;
    while (!reach.back()[count].at(sum)) ++sum;
  }
  std::vector<std::size_t> chosen;
  std::size_t j = count;
  for (std::size_t i = sizes.size(); j > 0;) {
    --i;
    if (sum < sizes[i] || !reach[i][j - 1].at(sum - sizes[i])) continue;
    chosen.push_back(i);
    sum -= sizes[i];
    --j;
  }
  std::reverse(chosen.begin(), chosen.end());
  return chosen;
}

void select_from_pool(const PoolRules& rules, PoolRanks pool,
                      std::span<const PendingRequest> pending, std::span<const RankLoad> ranks,
                      double lambda, std::vector<Assignment>& assignments) {
  Selection selection(rules, std::move(pool), pending, ranks, assignments);
  selection.greedy();
  selection.subsets(lambda);
}

}  // namespace moesim
