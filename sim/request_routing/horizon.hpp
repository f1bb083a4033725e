// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "sim/request_routing/request_router.hpp"

namespace moesim {

/// How long outputs were: S(h) = P(output > h), as observed.
class OutputLengths {
 public:
  /// Reads the finished requests that it has not read yet.
  void catch_up(std::span<const std::int32_t> finished);
  bool empty() const { return seen_ == 0; }
  std::int32_t longest() const { return static_cast<std::int32_t>(longer_.size()); }
  double mean() const;
  double survival(std::int32_t h) const { return h < longest() ? exceed(h) / count() : 0; }
  /// P(output > age + h | output > age); 0 for an age that no output exceeded.
  double survival(std::int32_t h, std::int32_t age) const {
    return age + h < longest() ? exceed(age + h) / exceed(age) : 0;
  }
  /// The expected number of further tokens of a request of this age.
  double remaining(std::int32_t age) const;
  /// The smallest length that at least a share q of the outputs do not exceed.
  std::int32_t quantile(double q) const;

 private:
  double exceed(std::int32_t h) const { return static_cast<double>(longer_[at(h)]); }
  double count() const { return static_cast<double>(seen_); }

  std::vector<std::int64_t> longer_;         // how many outputs exceed h: [longest]
  std::vector<std::int64_t> longer_beyond_;  // the sum of longer_ from h on
  std::size_t seen_ = 0;
};

/// Points h of a horizon in decode steps, ascending, and the weight of each.
struct HorizonPoints {
  std::vector<std::int32_t> h;
  std::vector<double> weight;
};
/// Trapezoid weights: half the way to each neighbour; 1 for a single point. `h` ascending; equal
/// ones count once.
HorizonPoints trapezoid(std::vector<std::int32_t> h);

/// Expected KV tokens of every rank at every point, [points, ranks]: the sum over its requests of
/// presence_of(request)(h) * (prompt + generated + h).
template <class PresenceOf>
std::vector<double> project(std::span<const std::int32_t> points, std::span<const RankLoad> ranks,
                            PresenceOf&& presence_of) {
  std::vector<double> loads(points.size() * ranks.size());
  for (std::size_t g = 0; g < ranks.size(); ++g) {
    for (const RankRequest& r : ranks[g].requests) {
      const auto presence = presence_of(r);
      const double now = static_cast<double>(r.prompt_tokens) + r.generated;
      for (std::size_t k = 0; k < points.size(); ++k) {
        loads[k * ranks.size() + g] += presence(points[k]) * (now + points[k]);
      }
    }
  }
  return loads;
}

/// Load above the envelope that a request of s tokens adds on each rank, [ranks]: sum_k weight_k *
/// max(s + grow * h_k - (M(h_k) - L_g(h_k)), 0), where M = max L over the ranks of g's EP group.
/// Added is how far M is above the least of any group's: the group with the request, above the one
/// that waits least without it.
std::vector<double> overflow(const HorizonPoints&, std::span<const double> loads,
                             std::span<const RankLoad> ranks, double s, bool grow);

/// Drift that breaks its ties, sum_k weight_k * (L_g(h_k) - mean L(h_k)) * (s + h_k), [ranks]. The
/// mean is over all groups, so that the lightest rank of all has the least.
std::vector<double> drift(const HorizonPoints&, std::span<const double> loads, std::size_t ranks,
                          double s);

/// Horizon weights by observed survival: each times P(output > h). Before any output was seen no
/// request ever leaves.
HorizonPoints survived(HorizonPoints, const OutputLengths&);
/// Projected loads by observed survival: a request of age a is present at h with P(output > a + h |
/// output > a). Before any output was seen no request ever leaves.
std::vector<double> project_survivors(std::span<const std::int32_t> points,
                                      std::span<const RankLoad> ranks, const OutputLengths&);

/// The index of the smallest (score, projected load at the first point, place).
std::size_t least(std::span<const double> scores, std::span<const double> loads);

}  // namespace moesim
