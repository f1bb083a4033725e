// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "hardware/at.hpp"
#include "hardware/rng.hpp"

namespace moesim {

/// Draws one of n items in proportion to weights, in constant time (alias method, Vose 1991).
class WeightedDraw {
 public:
  void set_weights(std::span<const double> weights);
  [[gnu::always_inline]] inline std::size_t draw(Rng& rng) const {
    const double scaled = rng.uniform() * size_;
    const auto slot = static_cast<std::int32_t>(scaled);
    // Both are read: which of them it is, no branch could guess.
    const auto [keep, alias] = slots_[at(slot)];
    return scaled - slot < keep ? at(slot) : alias;
  }
  std::span<const double> weights() const { return weights_; }
  double total() const { return total_; }

 private:
  void pair_up(std::size_t smalls, std::size_t larges);
  struct Slot {
    double keep;
    std::size_t alias;
  };
  std::vector<Slot> slots_;
  std::vector<double> weights_;
  std::vector<std::size_t> small_, large_;
  double total_ = 0, size_ = 0;
};

/// Picks the experts of tokens in one layer: the top k of log(weight) + Gumbel noise. This is the
/// same as k draws without replacement in proportion to weight (Plackett-Luce; Yellott 1977). With
/// groups (DeepSeek-V3, arXiv:2412.19437 section 2.1.2) only experts of the best groups may be
/// picked. The best have the highest sum of their two best scores.
class ExpertSampler {
 public:
  /// `groups` divides `experts`; k experts fit into `groups_per_token` groups.
  ExpertSampler(int experts, int k, int groups, int groups_per_token);

  /// Sets a weight > 0 for each expert.
  void set_weights(std::span<const double> weights);
  /// Overwrites the k picks of the previous token with those of the next: each is kept with
  /// probability `reuse`, and the others are drawn.
  void next(std::span<std::uint16_t> picks, double reuse, Rng& rng);
  /// The first token's picks.
  void first(std::span<std::uint16_t> picks, Rng& rng);

 private:
  /// Experts of a group in falling order of score, as a race. Exponential clocks with rates
  /// `weight` ring in the order of log(weight) + Gumbel, and score = -log(time). The next bell
  /// rings an exponential time of rate `left`, the weight that has not rung, after the last.
  struct Group {
    struct Bell {
      double time;
      std::uint16_t expert;
    };
    WeightedDraw draw;
    std::vector<Bell> bells;  ///< room for all; `rung` of them have
    std::size_t rung = 0, used = 0;
    double left = 0;
  };
  struct Ordered {
    double time;
    std::size_t group;
  };

  void fill_from_groups(std::span<std::uint16_t> picks, std::size_t kept, Rng& rng);
  std::size_t draw_untaken(const WeightedDraw& draw, char* taken, Rng& rng) const;
  void draw_all_untaken(std::span<std::uint16_t> picks, const WeightedDraw& draw, char* taken,
                        Rng& rng) const;
  std::size_t find_untaken(const WeightedDraw& draw, const char* taken, double share) const;
  void ring(std::size_t group, Rng& rng);
  void sort_groups();

  std::size_t group_size_ = 0, groups_per_token_;
  std::vector<Group> groups_;  ///< one when any group may be used
  std::vector<char> taken_;
  std::vector<Ordered> unordered_, order_;  ///< the groups by id, and by time
};

}  // namespace moesim
