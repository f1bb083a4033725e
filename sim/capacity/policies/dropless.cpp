// SPDX-License-Identifier: Apache-2.0
#include "sim/capacity/capacity.hpp"

namespace moesim {

namespace {

// Every selection runs.
class Dropless final : public CapacityRule {
 public:
  bool limits() const override { return false; }
  void overflow(const Overflow&, LayerChoices&, CapacityTally&) const override {}
};

}  // namespace

std::unique_ptr<CapacityRule> make_dropless(ConfigReader&) { return std::make_unique<Dropless>(); }

std::shared_ptr<const CapacityRule> dropless() { return std::make_shared<const Dropless>(); }

}  // namespace moesim
