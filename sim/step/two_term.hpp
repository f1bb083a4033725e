// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <span>

#include "hardware/config.hpp"
#include "sim/step/step_cost.hpp"

namespace moesim {

/// The step of [barrier-tax] over the load of each rank, at least one: a max L + b mean L.
double two_term_step(double a, double b, std::span<const double> loads);

/// A cost of steps that knows KV tokens alone, in place of kernels and links:
///   t = a max L + b mean L + c
/// L are the KV tokens of a rank's sequences in the step, those that the step computes among them.
struct TwoTermStep {
  Seconds a{}, b{};  ///< per KV token
  Seconds c{};
  /// `up` of the ranks are; the others have no sequences.
  Seconds of(const StepBatch&, std::ptrdiff_t up) const;
};
TwoTermStep read_two_term_step(const ConfigNode&);
std::span<const Key> two_term_step_keys();

}  // namespace moesim
