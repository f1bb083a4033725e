// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "sim/request_routing/expert_history.hpp"

namespace moesim {

/// Which experts each EP group reads for the requests on it, by their predicted profiles ([layers *
/// ExpertHistory::top]). A request's token picks an expert of its profile with the profile's
/// probability p, at most 0.99, and requests pick independently.
class ActiveExperts {
 public:
  ActiveExperts(std::size_t groups, int layers, int experts);

  void add(std::uint32_t request, std::size_t group, std::span<const LikelyExpert> profile);
  /// Forgets a request, if it is on any group.
  void remove(std::uint32_t request);

  /// Experts that the group reads in a step, expected, over all layers: the sum of 1 - prod (1 - p)
  /// over the requests of the group.
  double expected(std::size_t group) const { return expected_[group]; }
  /// Experts that a token of this profile picks and no token of the group does: the sum of p prod
  /// (1 - p') over the profile.
  double expected_new(std::size_t group, std::span<const LikelyExpert> profile) const;

 private:
  void count(std::size_t group, std::span<const LikelyExpert> profile, int change);
  struct Placed {
    std::size_t group;
    std::vector<LikelyExpert> profile;
  };
  std::size_t index(std::size_t place, std::size_t top, std::uint16_t expert) const {
    return place / top * experts_ + expert;
  }

  std::size_t layers_, experts_;
  std::vector<std::vector<double>> log_unread_;  // [group][layers * experts]: sum of log(1 - p)
  std::vector<double> expected_;                 // [group]
  std::map<std::uint32_t, Placed> placed_;
};

}  // namespace moesim
