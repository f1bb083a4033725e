// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <numeric>

#include "hardware/at.hpp"
#include "sim/placement/placers.hpp"
#include "sim/placement/replicas.hpp"

namespace moesim {

namespace {

// Swaps experts between GPUs for as long as that brings more pairs together.
//   together(e, f) = tokens that picked e and f / (copies of e * copies of f)
// is how many tokens meet both on one GPU that holds both. Every token takes one copy of each at
// random. The sum over the pairs inside GPUs is maximised. The load of a GPU, in which the copies
// of an expert have equal shares, is bounded.
class Swaps {
 public:
  Swaps(const LayerStatistics& seen, const std::vector<int>& copies,
        std::vector<std::vector<int>> experts_on_gpu, double load_slack)
      : experts_(seen.load.size()),
        gpus_(experts_on_gpu.size()),
        experts_on_gpu_(std::move(experts_on_gpu)),
        share_(experts_),
        together_(experts_ * experts_),
        pull_(experts_ * gpus_),
        holds_(experts_ * gpus_),
        gpu_load_(gpus_) {
    for (std::size_t e = 0; e < experts_; ++e) {
      share_[e] = seen.load[e] / copies[e];
      for (std::size_t f = 0; f < experts_; ++f) {
        const double pairs = double(copies[e]) * copies[f];
        together_[e * experts_ + f] = double(seen.coactivation[e * experts_ + f]) / pairs;
      }
    }
    for (std::size_t g = 0; g < gpus_; ++g) {
      for (const int expert : experts_on_gpu_[g]) {
        gpu_load_[g] += share_[at(expert)];
        ++holds_[at(expert) * gpus_ + g];
        attract(g, at(expert), +1);
      }
    }
    const double total = std::accumulate(gpu_load_.begin(), gpu_load_.end(), 0.0);
    load_limit_ = std::max(*std::max_element(gpu_load_.begin(), gpu_load_.end()),
                           (1 + load_slack) * total / double(gpus_));
    least_gain_ = 1e-9 * std::accumulate(together_.begin(), together_.end(), 0.0);
  }

  // Slot after slot the best swap with any other, until no slot finds one. Every swap raises the
  // bounded sum by more than least_gain_, so this ends.
  std::vector<std::vector<int>> settle() {
    for (bool moved = true; moved;) {
      moved = false;
      for (std::size_t g = 0; g < gpus_; ++g) {
        for (int& expert : experts_on_gpu_[g]) moved = swap_with_best(g, expert) || moved;
      }
    }
    return std::move(experts_on_gpu_);
  }

 private:
  double together(std::size_t e, std::size_t f) const { return together_[e * experts_ + f]; }
  double pull(std::size_t gpu, std::size_t e) const { return pull_[e * gpus_ + gpu]; }

  void attract(std::size_t gpu, std::size_t expert, int sign) {
    for (std::size_t e = 0; e < experts_; ++e) {
      pull_[e * gpus_ + gpu] += sign * together(expert, e);
    }
  }

  bool fits(double load) const { return load <= load_limit_; }

  bool swap_with_best(std::size_t g, int& expert) {
    const std::size_t a = at(expert);
    int* best = nullptr;
    std::size_t best_gpu = 0;
    double best_gain = least_gain_;
    for (std::size_t h = 0; h < gpus_; ++h) {
      if (h == g || holds_[a * gpus_ + h] != 0) continue;
      for (int& other : experts_on_gpu_[h]) {
        const std::size_t b = at(other);
        // Each leaves those it stood with for those the other stood with, the other itself aside.
        const double gain = pull(h, a) + pull(g, b) - pull(g, a) - pull(h, b) - 2 * together(a, b);
        const double moved = share_[a] - share_[b];
        if (gain <= best_gain || holds_[b * gpus_ + g] != 0) continue;
        if (!fits(gpu_load_[g] - moved) || !fits(gpu_load_[h] + moved)) continue;
        best = &other;
        best_gpu = h;
        best_gain = gain;
      }
    }
    if (best == nullptr) return false;
    exchange(g, expert, best_gpu, *best);
    return true;
  }

  void exchange(std::size_t g, int& a, std::size_t h, int& b) {
    for (const auto& [gpu, leaves, comes] : {std::tuple{g, at(a), at(b)}, {h, at(b), at(a)}}) {
      attract(gpu, leaves, -1);
      attract(gpu, comes, +1);
      gpu_load_[gpu] += share_[comes] - share_[leaves];
      --holds_[leaves * gpus_ + gpu];
      ++holds_[comes * gpus_ + gpu];
    }
    std::swap(a, b);
  }

  std::size_t experts_, gpus_;
  std::vector<std::vector<int>> experts_on_gpu_;
  std::vector<double> share_;     // load of one copy
  std::vector<double> together_;  // [experts, experts]
  std::vector<double> pull_;      // sum of together() with the experts of a GPU, [experts, GPUs]
  std::vector<int> holds_;        // copies, [experts, GPUs]
  std::vector<double> gpu_load_;
  double load_limit_ = 0, least_gain_ = 0;
};

// Experts that tokens pick together stand on one GPU, so that a token has fewer GPUs to visit
// (Occult, ICML 2025, calls such pairs intra-collaborative). Copies and start as by eplb_distinct,
// then Swaps; the objective divides by copies as TensorRT-LLM's do_placement_with_cooccurrence.
//
// {"load_slack": 0.1}: how far the load of a GPU may rise above the mean. What the start exceeds it
// by is allowed too.
class CoactivationPlacer final : public Placer {
 public:
  explicit CoactivationPlacer(double load_slack) : load_slack_(load_slack) {}

  LayerPlacement place(const PlacementProblem& problem, const LayerStatistics& seen,
                       int) const override {
    require_sound(problem, seen.load);
    if (seen.coactivation.empty()) {
      throw ConfigError(
          "coactivation needs the experts that tokens choose together; a load does not hold these; "
          "give a routing trace");
    }
    check(seen.coactivation.size() == seen.load.size() * seen.load.size(),
          "co-activation counts of another number of experts");
    const std::vector<int> copies = copies_by_load(problem, seen.load);
    Swaps swaps(seen, copies, balanced_apart(copies, seen.load, problem.gpus), load_slack_);
    return {problem.experts, swaps.settle()};
  }

  bool uses_load() const override { return true; }
  bool uses_coactivation() const override { return true; }

 private:
  double load_slack_;
};

}  // namespace

std::span<const Key> coactivation_placement_keys() {
  static constexpr Key keys[] = {
      {"load_slack", form::number(non_negative), "0.1", "above the mean that a GPU's load may be"}};
  return keys;
}

std::unique_ptr<Placer> make_coactivation(ConfigReader& options) {
  return std::make_unique<CoactivationPlacer>(options.number("load_slack"));
}

}  // namespace moesim
