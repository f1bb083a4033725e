// SPDX-License-Identifier: Apache-2.0
#include "traces/gating/gating.hpp"
#include "traces/gating/synthetic.hpp"

namespace moesim {
namespace {

class Uniform final : public SyntheticGating {
 public:
  explicit Uniform(ConfigReader& options) : SyntheticGating(options) {}
  RoutingTrace trace(const MoeModel& model, std::uint64_t seed) const override {
    return generate_trace(model, rows(), GatingTerms{}, "uniform gating", seed);
  }
};

}  // namespace

std::span<const Key> uniform_gating_keys() { return row_keys; }

std::unique_ptr<Gating> make_uniform_gating(ConfigReader& options) {
  return std::make_unique<Uniform>(options);
}

}  // namespace moesim
