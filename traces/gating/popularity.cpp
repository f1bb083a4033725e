// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include "traces/gating/gatings.hpp"
#include "traces/gating/synthetic.hpp"

namespace moesim {
namespace {

class Popularity final : public Gating {
 public:
  /// The default is a log-normal as wide as the experts of DeepSeek-V2-Lite are popular (0.51 over
  /// its layers, 0.38 to 0.63: our statistics of the ESFT recordings), without spikes.
  explicit Popularity(ConfigReader& options) : rows_(read_rows(options)) {
    terms_.popularity_sigma = options.number_or("popularity_sigma", 0.5, sigma_range);
    terms_.popularity_spread = options.number_or("popularity_spread", 0.15, sigma_range);
    terms_.spikes = static_cast<int>(options.integer_or("spikes", 0, Range{0, 1000}));
    terms_.spike_height = options.number_or("spike_height", 1, Range{0, 10});
  }
  RoutingTrace trace(const MoeModel& model, std::uint64_t seed) const override {
    return generate_trace(model, rows_, terms_,
                          fmt::format("popularity gating, sigma {}", terms_.popularity_sigma),
                          seed);
  }

 private:
  SyntheticRows rows_;
  GatingTerms terms_;
};

}  // namespace

/// popularity_sigma, popularity_spread, spikes, spike_height: see GatingTerms; and read_rows().
std::unique_ptr<Gating> make_popularity_gating(ConfigReader& options) {
  return std::make_unique<Popularity>(options);
}

}  // namespace moesim
