// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "traces/expert_load.hpp"
#include "traces/routing_trace.hpp"

namespace moesim {

/// The experts that the tokens of a batch pick in one layer, ascending.
using BatchExperts = std::vector<std::uint16_t>;

/// Statistics of one layer's experts. A view: what it was made from must outlive it.
struct LayerStatistics {
  /// Tokens that picked the expert, [experts].
  std::span<const double> load;
  /// Tokens that picked both, [experts, experts]: symmetric, zero on the diagonal. Empty when they
  /// were not counted.
  std::span<const std::int64_t> coactivation;
  /// Experts that decode batches activated, [batches]. Empty when none were sampled.
  std::span<const BatchExperts> batches;

  LayerStatistics(const ExpertLoad& tokens, std::span<const std::int64_t> together = {},
                  std::span<const BatchExperts> sampled = {})
      : load(tokens), coactivation(together), batches(sampled) {}
};

/// Statistics of every layer's experts.
struct ExpertStatistics {
  std::vector<ExpertLoad> load;                      ///< [layers][experts]
  std::vector<std::int64_t> coactivation{};          ///< [layers, experts, experts], or empty
  std::vector<std::vector<BatchExperts>> batches{};  ///< [layers][batches], or empty

  LayerStatistics layer(std::size_t i) const;
};

/// Decode batches to draw from traces: one token at random from each of as many requests at random.
/// If there are too few requests, the same ones again. Decode tokens, where a trace has any.
struct BatchSample {
  int batches = 0;            ///< of each size; 0: none
  std::vector<int> tokens{};  ///< sizes; empty: as give every expert 1, 2 and 4 tokens in the mean
  std::uint64_t seed = 0;
};

/// Facts that are looked at in traces besides the tokens of each expert.
struct Observation {
  bool fitted_half = false;              ///< the requests of fitted_half() alone
  std::vector<std::string> workloads{};  ///< requests of these tags alone; empty: all
  bool coactivation = false;             ///< costs a pass of its own
  BatchSample sample{};
};

/// Counts the tokens of traces of one shape. Requests that fell into a loop are left out of sampled
/// batches, but not of counts. Throws ConfigError if no request is left.
ExpertStatistics observe(std::span<const RoutingTrace* const>, const Observation& = {});

}  // namespace moesim
