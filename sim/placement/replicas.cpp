// SPDX-License-Identifier: Apache-2.0
#include "sim/placement/replicas.hpp"

#include <algorithm>
#include <limits>
#include <utility>

#include "hardware/at.hpp"

namespace moesim {

namespace {

class Dealing {
 public:
  Dealing(std::span<const int> copies, std::span<const double> weight, int bins)
      : weight_(weight),
        capacity_(copies.size() / at(bins)),
        bins_(at(bins)),
        bin_weight_(at(bins)),
        held_(at(bins), std::vector<int>(weight.size())),
        share_(weight.size()) {
    std::vector<int> count(weight.size());
    for (const int expert : copies) ++count[at(expert)];
    for (std::size_t e = 0; e < count.size(); ++e) share_[e] = (count[e] + bins - 1) / bins;
  }

  void add(int expert) {
    std::size_t bin = none;
    for (std::size_t b = 0; b < bins_.size(); ++b) {
      if (!open(b) || !takes(b, expert)) continue;
      if (bin == none || bin_weight_[b] < bin_weight_[bin]) bin = b;
    }
    put(bin != none ? bin : make_room(expert), expert);
  }

  std::vector<std::vector<int>> take_bins() { return std::move(bins_); }

 private:
  static constexpr std::size_t none = std::numeric_limits<std::size_t>::max();

  bool open(std::size_t bin) const { return bins_[bin].size() < capacity_; }
  bool takes(std::size_t bin, int expert) const {
    return held_[bin][at(expert)] < share_[at(expert)];
  }

  void put(std::size_t bin, int expert) {
    bins_[bin].push_back(expert);
    bin_weight_[bin] += weight_[at(expert)];
    ++held_[bin][at(expert)];
  }

  // Moves another expert of a full bin to an open bin and returns the full bin. All open bins hold
  // their share of the expert, so some full bin holds less. There is an expert to move. Otherwise
  // the open bin would hold its share of each of the full bin's experts, so at least what the full
  // bin holds. It would also hold more of the one that is to be added: it could not be open.
  std::size_t make_room(int expert) {
    std::size_t from = none, to = none, position = 0;
    double least = std::numeric_limits<double>::infinity();
    for (std::size_t full = 0; full < bins_.size(); ++full) {
      if (open(full) || !takes(full, expert)) continue;
      for (std::size_t b = 0; b < bins_.size(); ++b) {
        if (!open(b)) continue;
        for (std::size_t i = 0; i < bins_[full].size(); ++i) {
          if (!takes(b, bins_[full][i])) continue;
          const double moved = weight_[at(bins_[full][i])];
          const double fullest =
              std::max(bin_weight_[full] - moved + weight_[at(expert)], bin_weight_[b] + moved);
          if (from != none && fullest >= least) continue;
          least = fullest;
          from = full;
          to = b;
          position = i;
        }
      }
    }
    check(from != none, "no bin has room for a copy");
    const auto moved = bins_[from].begin() + static_cast<std::ptrdiff_t>(position);
    put(to, *moved);
    bin_weight_[from] -= weight_[at(*moved)];
    --held_[from][at(*moved)];
    bins_[from].erase(moved);
    return from;
  }

  std::span<const double> weight_;
  std::size_t capacity_;
  std::vector<std::vector<int>> bins_;
  std::vector<double> bin_weight_;
  std::vector<std::vector<int>> held_;  // [bin][expert]
  std::vector<int> share_;              // most copies of the expert that a bin may hold
};

}  // namespace

std::vector<int> copies_by_load(const PlacementProblem& problem, std::span<const double> load) {
  std::vector<int> copies(load.size(), 1);
  const auto hotter = [&](std::size_t a, std::size_t b) {
    const bool a_full = copies[a] >= problem.gpus, b_full = copies[b] >= problem.gpus;
    if (a_full != b_full) return b_full;
    const double a_share = load[a] / copies[a], b_share = load[b] / copies[b];
    return a_share != b_share ? a_share > b_share : copies[a] < copies[b];
  };
  const std::size_t slots = at(problem.gpus) * at(problem.slots_per_gpu);
  for (std::size_t slot = load.size(); slot < slots; ++slot) {
    std::size_t hottest = 0;
    for (std::size_t e = 1; e < load.size(); ++e) {
      if (hotter(e, hottest)) hottest = e;
    }
    ++copies[hottest];
  }
  return copies;
}

std::vector<std::vector<int>> deal_apart(std::span<const int> copies,
                                         std::span<const double> weight, int bins) {
  check(copies.size() % at(bins) == 0, "copies do not fill the bins evenly");
  Dealing dealing(copies, weight, bins);
  for (const int expert : copies) dealing.add(expert);
  return dealing.take_bins();
}

std::vector<std::vector<int>> balanced_apart(std::span<const int> copies,
                                             std::span<const double> load, int gpus) {
  std::vector<double> share(load.begin(), load.end());
  std::vector<int> order;
  for (std::size_t e = 0; e < copies.size(); ++e) {
    share[e] /= std::max(copies[e], 1);
    order.insert(order.end(), at(copies[e]), static_cast<int>(e));
  }
  std::stable_sort(order.begin(), order.end(),
                   [&](int a, int b) { return share[at(a)] > share[at(b)]; });
  return deal_apart(order, share, gpus);
}

std::vector<std::vector<int>> balanced_over_domains(std::span<const int> copies,
                                                    std::span<const double> load, int gpus,
                                                    int domains, std::string_view policy) {
  if (gpus % domains != 0) {
    throw ConfigError("{}: {} failure domains do not divide {} GPUs evenly", policy, domains, gpus);
  }
  std::vector<double> share(load.begin(), load.end());
  for (std::size_t e = 0; e < share.size(); ++e) share[e] /= std::max(copies[e], 1);
  std::vector<std::vector<int>> experts_on_gpu;
  for (const auto& in_domain : balanced_apart(copies, load, domains)) {
    // Still by share descending, but for experts that were moved.
    std::vector<int> order = in_domain;
    std::stable_sort(order.begin(), order.end(),
                     [&](int a, int b) { return share[at(a)] > share[at(b)]; });
    for (auto& gpu : deal_apart(order, share, gpus / domains)) {
      experts_on_gpu.push_back(std::move(gpu));
    }
  }
  return experts_on_gpu;
}

}  // namespace moesim
