// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "hardware/at.hpp"
#include "sim/expert_memory/ranked_cache.hpp"

namespace moesim {

namespace {

// Foresees what ran last time, most tokens first: while the same requests decode, the guess holds
// for two of three experts.
class HistoryPredictor final : public Predictor {
 public:
  explicit HistoryPredictor(std::size_t layers) : last_(layers) {}
  void ran(int layer, std::span<const std::int32_t> tokens) override {
    last_[at(layer)].assign(tokens.begin(), tokens.end());
  }
  void predict(int layer, std::span<const std::int32_t>, std::vector<int>& slots) override {
    const std::vector<std::int32_t>& last = last_[at(layer)];
    slots.clear();
    for (int slot = 0; at(slot) < last.size(); ++slot) {
      if (last[at(slot)] > 0) slots.push_back(slot);
    }
    std::stable_sort(slots.begin(), slots.end(),
                     [&](int a, int b) { return last[at(a)] > last[at(b)]; });
  }

 private:
  std::vector<std::vector<std::int32_t>> last_;  // [layers][slots]
};

class History final : public Prefetch {
 public:
  std::unique_ptr<Predictor> predictor(std::span<const int> slots_of_layer,
                                       std::uint64_t) const override {
    return std::make_unique<HistoryPredictor>(slots_of_layer.size());
  }
};

}  // namespace

std::unique_ptr<Prefetch> make_history_prefetch(ConfigReader&) {
  return std::make_unique<History>();
}

}  // namespace moesim
