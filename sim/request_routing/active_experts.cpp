// SPDX-License-Identifier: Apache-2.0
#include "sim/request_routing/active_experts.hpp"

#include <algorithm>
#include <cmath>

namespace moesim {

namespace {

double probability_of(const LikelyExpert& likely) {
  return std::min(static_cast<double>(likely.probability), 0.99);
}

}  // namespace

ActiveExperts::ActiveExperts(std::size_t groups, int layers, int experts)
    : layers_(at(layers)),
      experts_(at(experts)),
      log_unread_(groups, std::vector<double>(layers_ * experts_)),
      expected_(groups) {}

void ActiveExperts::add(std::uint32_t request, std::size_t group,
                        std::span<const LikelyExpert> profile) {
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

void ActiveExperts::count(std::size_t group, std::span<const LikelyExpert> profile, int change) {
  const std::size_t top = profile.size() / std::max<std::size_t>(layers_, 1);
  for (std::size_t i = 0; i < profile.size(); ++i) {
    log_unread_[group][index(i, top, profile[i].expert)] +=
        change * std::log1p(-probability_of(profile[i]));
  }
}

double ActiveExperts::expected_new(std::size_t group, std::span<const LikelyExpert> profile) const {
  if (profile.empty()) return 0;
  const std::size_t top = profile.size() / layers_;
  double fresh = 0;
  for (std::size_t i = 0; i < profile.size(); ++i) {
    const double unread = std::exp(log_unread_[group][index(i, top, profile[i].expert)]);
    fresh += probability_of(profile[i]) * unread;
  }
  return fresh;
}

}  // namespace moesim
