// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "hardware/at.hpp"
#include "sim/expert_memory/ranked_cache.hpp"

namespace moesim {

namespace {

// Keeps an exponential average of each slot's activity, and foresees as many of the likeliest slots
// as ran last time.
class PopularityPredictor final : public Predictor {
 public:
  PopularityPredictor(std::span<const int> slots_of_layer, double weight)
      : weight_(weight), ran_last_(slots_of_layer.size()) {
    for (const int slots : slots_of_layer) activity_.emplace_back(at(slots));
  }
  void ran(int layer, std::span<const std::int32_t> tokens) override {
    std::vector<double>& activity = activity_[at(layer)];
    ran_last_[at(layer)] = 0;
    for (std::size_t slot = 0; slot < tokens.size(); ++slot) {
      const bool active = tokens[slot] > 0;
      activity[slot] += weight_ * ((active ? 1 : 0) - activity[slot]);
      ran_last_[at(layer)] += active ? 1 : 0;
    }
  }
  void predict(int layer, std::span<const std::int32_t>, std::vector<int>& slots) override {
    const std::vector<double>& activity = activity_[at(layer)];
    slots.clear();
    for (int slot = 0; at(slot) < activity.size(); ++slot) {
      if (activity[at(slot)] > 0) slots.push_back(slot);
    }
    std::stable_sort(slots.begin(), slots.end(),
                     [&](int a, int b) { return activity[at(a)] > activity[at(b)]; });
    slots.resize(std::min(slots.size(), at(ran_last_[at(layer)])));
  }

 private:
  double weight_;
  std::vector<std::vector<double>> activity_;  // [layers][slots], from 0 to 1
  std::vector<int> ran_last_;                  // [layers] slots
};

class Popularity final : public Prefetch {
 public:
  explicit Popularity(double weight) : weight_(weight) {}
  std::unique_ptr<Predictor> predictor(std::span<const int> slots_of_layer,
                                       std::uint64_t) const override {
    return std::make_unique<PopularityPredictor>(slots_of_layer, weight_);
  }

 private:
  double weight_;
};

}  // namespace

std::span<const Key> popularity_prefetch_keys() {
  static constexpr Key keys[] = {
      {"weight", form::number(1e-6, 1), "0.1", "weight of the newest step in the average"}};
  return keys;
}

std::unique_ptr<Prefetch> make_popularity_prefetch(ConfigReader& options) {
  return std::make_unique<Popularity>(options.number("weight"));
}

}  // namespace moesim
