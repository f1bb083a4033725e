// SPDX-License-Identifier: Apache-2.0
#include "sim/request_routing/active_experts.hpp"

#include <algorithm>
#include <cmath>

namespace moesim {

ActiveExperts::ActiveExperts(std::size_t groups, int layers, int experts, int experts_per_token)
    : layers_(static_cast<std::size_t>(layers)),
      experts_(static_cast<std::size_t>(experts)),
      experts_per_token_(experts_per_token),
      requests_with_(groups, std::vector<std::int32_t>(layers_ * experts_)),
      expected_(groups) {}

void ActiveExperts::add(std::uint32_t request, std::size_t group,
                        std::span<const std::uint16_t> profile) {
  remove(request);
  expected_[group] += expected_new(group, profile);
  count(group, profile, 1);
  placed_[request] = {group, {profile.begin(), profile.end()}};
}

void ActiveExperts::remove(std::uint32_t request) {
  const auto found = placed_.find(request);
  if (found == placed_.end()) return;
  const auto& [group, profile] = found->second;
  count(group, profile, -1);
  expected_[group] -= expected_new(group, profile);
  placed_.erase(found);
}

void ActiveExperts::count(std::size_t group, std::span<const std::uint16_t> profile, int change) {
  const std::size_t top = profile.size() / std::max<std::size_t>(layers_, 1);
  for (std::size_t i = 0; i < profile.size(); ++i) {
    requests_with_[group][index(i, top, profile[i])] += change;
  }
}

double ActiveExperts::expected_new(std::size_t group,
                                   std::span<const std::uint16_t> profile) const {
  if (profile.empty()) return 0;
  const std::size_t top = profile.size() / layers_;
  const double p = std::min(1.0, experts_per_token_ / static_cast<double>(top));
  double fresh = 0;
  for (std::size_t i = 0; i < profile.size(); ++i) {
    fresh += p * std::pow(1 - p, requests_with_[group][index(i, top, profile[i])]);
  }
  return fresh;
}

}  // namespace moesim
