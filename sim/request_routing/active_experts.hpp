// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <vector>

namespace moesim {

/// Which experts each EP group reads for the requests on it, by their predicted profiles
/// ([layers * top], ExpertHistory). A token is taken to pick its k experts among the top ones, each
/// with probability p = min(1, k / top), and requests to pick independently.
class ActiveExperts {
 public:
  ActiveExperts(std::size_t groups, int layers, int experts, int experts_per_token);

  void add(std::uint32_t request, std::size_t group, std::span<const std::uint16_t> profile);
  /// Forgets a request, if it is on any group.
  void remove(std::uint32_t request);

  /// Experts that the group reads in a step, expected, over all layers: the sum of 1 - (1 - p)^n,
  /// n requests of the group having the expert in their profiles.
  double expected(std::size_t group) const { return expected_[group]; }
  /// Experts that a token of this profile picks and no token of the group does: the sum of p (1 -
  /// p)^n over the profile.
  double expected_new(std::size_t group, std::span<const std::uint16_t> profile) const;

 private:
  void count(std::size_t group, std::span<const std::uint16_t> profile, int change);
  struct Placed {
    std::size_t group;
    std::vector<std::uint16_t> profile;
  };
  std::size_t index(std::size_t place, std::size_t top, std::uint16_t expert) const {
    return place / top * experts_ + expert;
  }

  std::size_t layers_, experts_;
  int experts_per_token_;
  std::vector<std::vector<std::int32_t>> requests_with_;  // [group][layers * experts]
  std::vector<double> expected_;                          // [group]
  std::map<std::uint32_t, Placed> placed_;
};

}  // namespace moesim
