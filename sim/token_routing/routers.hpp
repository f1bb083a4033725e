// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <bit>

#include "hardware/rng.hpp"
#include "sim/token_routing/token_routing.hpp"

namespace moesim {

/// GPU of an expert: its place in LayerPlacement::host_gpus_of, and its number.
struct Host {
  std::size_t place, gpu;
  std::int32_t active;  // experts on that GPU so far
};

/// The one with the fewest active experts so far, ties to the lowest GPU.
inline Host least_active_host(std::span<const std::int32_t> gpus,
                              std::span<const std::int32_t> active_on_gpu) {
  // Load above place above GPU in one number. The least of two is found without a branch, which
  // cannot be predicted, and what it is need not be looked up. Most experts have one host or two.
  const auto key = [&](std::size_t i) {
    const auto gpu = at(gpus[i]);
    return static_cast<std::uint64_t>(active_on_gpu[gpu]) << 40 | i << 20 | gpu;
  };
  std::uint64_t least = std::min(key(0), key(gpus.size() > 1 ? 1 : 0));
  for (std::size_t i = 2; i < gpus.size(); ++i) least = std::min(least, key(i));
  return {least >> 20 & 0xfffff, least & 0xfffff, static_cast<std::int32_t>(least >> 40)};
}

/// A stream of its own for every layer of every step, so that what is drawn does not depend on what
/// was routed before.
inline Rng layer_step_stream(std::uint64_t seed, const RoutingProblem& problem,
                             std::string_view name) {
  const auto place = std::bit_cast<std::array<char, 16>>(
      std::array<std::uint64_t, 2>{static_cast<std::uint64_t>(problem.layer), problem.step});
  return Rng(fnv1a({place.data(), place.size()}, seed ^ fnv1a("layer and step")), name);
}

/// The even split: x = floor(T / r) tokens to each of the r replicas, and one more to the first T
/// mod r in slot order. Copies on one GPU are replicas of their own, as in the engines.
void split_evenly(const RoutingProblem&, std::span<std::int32_t> tokens_of_slot);

/// Seconds as a quantity, or a number in a unit of the reader's choice: only the ratio counts.
inline double read_time(const ConfigNode& node) {
  return node.json().is_string() ? node.quantity<Seconds>().count() : node.number();
}

}  // namespace moesim
