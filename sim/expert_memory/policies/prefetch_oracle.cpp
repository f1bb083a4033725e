// SPDX-License-Identifier: Apache-2.0
#include "hardware/at.hpp"
#include "hardware/rng.hpp"
#include "sim/expert_memory/ranked_cache.hpp"

namespace moesim {

namespace {

// Each slot that will run is foreseen with probability `accuracy`; for each that is not, another
// one that will not run is named. It cannot look beyond the step under way.
class OraclePredictor final : public Predictor {
 public:
  OraclePredictor(double accuracy, std::uint64_t seed)
      : accuracy_(accuracy), rng_(seed, "expert_memory/oracle") {}
  void ran(int, std::span<const std::int32_t>) override {}
  void predict(int, std::span<const std::int32_t> coming, std::vector<int>& slots) override {
    slots.clear();
    idle_.clear();
    for (int slot = 0; at(slot) < coming.size(); ++slot) {
      if (coming[at(slot)] == 0) idle_.push_back(slot);
    }
    for (int slot = 0; at(slot) < coming.size(); ++slot) {
      if (coming[at(slot)] == 0) continue;
      if (rng_.uniform() < accuracy_) {
        slots.push_back(slot);
      } else if (!idle_.empty()) {
        std::swap(idle_[rng_.below(idle_.size())], idle_.back());
        slots.push_back(idle_.back());
        idle_.pop_back();
      }
    }
  }

 private:
  double accuracy_;
  Rng rng_;
  std::vector<int> idle_;
};

class Oracle final : public Prefetch {
 public:
  explicit Oracle(double accuracy) : accuracy_(accuracy) {}
  std::unique_ptr<Predictor> predictor(std::span<const int>, std::uint64_t seed) const override {
    return std::make_unique<OraclePredictor>(accuracy_, seed);
  }

 private:
  double accuracy_;
};

}  // namespace

std::span<const Key> oracle_prefetch_keys() {
  static constexpr Key keys[] = {
      {"accuracy", form::number(0, 1), "1", "chance that an expert that will run is fetched"}};
  return keys;
}

std::unique_ptr<Prefetch> make_oracle_prefetch(ConfigReader& options) {
  return std::make_unique<Oracle>(options.number("accuracy"));
}

}  // namespace moesim
