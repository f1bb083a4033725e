// SPDX-License-Identifier: Apache-2.0
#include "sim/rebalancing/load_window.hpp"

#include <algorithm>

namespace moesim {

LoadWindow::LoadWindow(std::size_t steps, int layers, int experts)
    : steps_(steps), cells_(at(layers) * at(experts)), experts_(at(experts)), sum_(cells_) {}

void LoadWindow::add(std::span<const std::int32_t> tokens) {
  check(tokens.size() == cells_, "a load window saw another number of experts");
  if (ring_.size() < steps_ * cells_) {
    ring_.insert(ring_.end(), tokens.begin(), tokens.end());
    for (std::size_t i = 0; i < cells_; ++i) sum_[i] += tokens[i];
    return;
  }
  std::int32_t* oldest = ring_.data() + next_ * cells_;
  for (std::size_t i = 0; i < cells_; ++i) sum_[i] += tokens[i] - oldest[i];
  std::copy(tokens.begin(), tokens.end(), oldest);
  next_ = (next_ + 1) % steps_;
}

std::vector<ExpertLoad> LoadWindow::loads() const {
  std::vector<ExpertLoad> loads;
  for (std::size_t i = 0; i < cells_; i += experts_) {
    const auto layer = sum_.begin() + static_cast<std::ptrdiff_t>(i);
    loads.emplace_back(layer, layer + static_cast<std::ptrdiff_t>(experts_));
  }
  return loads;
}

}  // namespace moesim
