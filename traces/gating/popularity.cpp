// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include "traces/gating/gating.hpp"
#include "traces/gating/synthetic.hpp"

namespace moesim {
namespace {

class Popularity final : public SyntheticGating {
 public:
  explicit Popularity(ConfigReader& options) : SyntheticGating(options) {
    terms_.popularity_sigma = options.number("popularity_sigma");
    terms_.popularity_spread = options.number("popularity_spread");
    terms_.spikes = static_cast<int>(options.integer("spikes"));
    terms_.spike_height = options.number("spike_height");
  }
  RoutingTrace trace(const MoeModel& model, std::uint64_t seed) const override {
    return generate_trace(model, rows(), terms_,
                          fmt::format("popularity gating, sigma {}", terms_.popularity_sigma),
                          seed);
  }

 private:
  GatingTerms terms_;
};

}  // namespace

/// The default is a log-normal as wide as the experts of DeepSeek-V2-Lite are popular (0.51 over
/// its layers, 0.38 to 0.63: our statistics of the ESFT recordings), without spikes.
std::span<const Key> popularity_gating_keys() {
  static constexpr Key keys[] = {
      row_keys[0],
      row_keys[1],
      row_keys[2],
      row_keys[3],
      {"popularity_sigma", sigma, "0.5",
       "spread of an expert's log-weight in a layer, median over layers"},
      {"popularity_spread", sigma, "0.15", "log-normal spread of that sigma between layers"},
      {"spikes", form::integer(0, 1000), "0", "experts of a layer that are raised"},
      {"spike_height", form::number(0, 10), "1", "height of the spike, in log-weight"}};
  return keys;
}

std::unique_ptr<Gating> make_popularity_gating(ConfigReader& options) {
  return std::make_unique<Popularity>(options);
}

}  // namespace moesim
