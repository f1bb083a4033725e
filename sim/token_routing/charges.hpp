// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <span>
#include <string>
#include <string_view>

#include "sim/token_routing/token_routing.hpp"

namespace moesim {

/// Times that are charged besides kernels and links.
struct Charges {
  std::map<std::string, RoutingCharge, std::less<>>
      token_routing;              ///< by policy; others take no time of their own
  Seconds top_k_of_all_tokens{};  ///< when hidden states are gathered before top-k
  Seconds request_routing{};      ///< of the request router, which decides one by one
  Seconds host_overhead{};        ///< once per step
  Seconds per_layer{};            ///< gaps between the kernels of a layer
  Seconds per_sequence{};         ///< of the host, for each sequence of the rank that has most
  /// Least time of the host to launch a kernel, and so a layer, in steps that have no graph, ...
  Seconds eager_launch{}, eager_layer{};
  /// ... which are those with prompt tokens, and decodes of more tokens per rank than this.
  std::int32_t graph_tokens = 0;
  /// Standard deviation of when the hosts of ranks are ready to launch. Mean time that ranks wait
  /// for the last of their group: once if a step has a graph, else in each layer.
  Seconds rank_jitter{}, wait_for_last{};
  std::string source;

  /// True if it is said what a policy takes, here or by its row: as part of the gate's kernel.
  bool knows(std::string_view policy) const;
  /// Charge of a layer's decision by the policy; nothing for one that takes no time of its own.
  RoutingCharge routing(std::string_view policy) const;
};

/// The mean of the largest of n draws from a normal distribution with mean 0 and deviation 1: 0 for
/// n = 1, 1 / sqrt(pi) for 2, 2.07 for 32.
double mean_of_largest(int n);

/// Source of policies' own GPU time: as published; as a kernel of today may take
/// (MeasuredCharge::fast); nothing. By candidates: as published, but growing with replicas.
enum class RoutingCharges { measured, fast, none, by_candidates };
/// Charges of policies' own time and of top-k over all tokens, and nothing else.
Charges routing_charges(RoutingCharges);

/// "charges": {"token_routing": "measured" (default) | "fast" | "none" | "by_candidates" |
/// {values}, "host_overhead": "0 us", "per_layer": "0 us", "per_sequence": "0 us", "eager_launch":
/// "0 us", "rank_jitter": "0 us"}. Values may be given for any of `policies`; those left out are
/// charged as measured.
Charges read_charges(const ConfigNode&, std::span<const std::string_view> policies);
std::span<const Key> charges_keys();

}  // namespace moesim
