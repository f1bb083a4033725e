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

  /// Experts that a token of this profile picks and no token of the group does, expected, over all
  /// layers: the sum of p (1 - p)^n over the profile, n requests of the group having the expert in
  /// theirs.
  double expected_new(std::size_t group, std::span<const std::uint16_t> profile) const;

 private:
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
  std::map<std::uint32_t, Placed> placed_;
};

}  // namespace moesim
