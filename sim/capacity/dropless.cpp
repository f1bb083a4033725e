// SPDX-License-Identifier: Apache-2.0
#include "sim/capacity/capacity.hpp"

namespace moesim {

namespace {

class Dropless final : public CapacityRule {
 public:
  bool limits() const override { return false; }
  void overflow(const Overflow&, LayerChoices&, CapacityTally&) const override {}
};

}  // namespace

std::unique_ptr<CapacityRule> make_dropless(ConfigReader&) { return std::make_unique<Dropless>(); }

}  // namespace moesim
