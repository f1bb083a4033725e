// SPDX-License-Identifier: Apache-2.0
#include "sim/token_routing/charges.hpp"

#include "sim/token_routing/token_routing.hpp"

namespace moesim {

namespace {

using namespace std::chrono_literals;

// METRO (paper, section VI-B, Fig. 11) on 8 A100s, Qwen3-30B with 128 experts: its routing kernel
// takes up to 26 us a layer at 1.5x, and top-k over all tokens instead of the local ones at most 3
// us more. Scaled by active experts, because Algorithm 1 does one step per active expert. The exact
// policies add 10 us, an estimate: nobody has measured a semi-matching kernel. Balancing tokens
// costs what DeepSeek gives for LPLB, whose interior-point solver runs on one SM: about 100 us
// inside a node (github.com/deepseek-ai/LPLB, README). Other GPUs are charged the same until
// somebody measures them. What an engine's own kernel does is in its gate's time.
Charges measured() {
  Charges charges;
  charges.token_routing["metro"] = {0us, 26us};
  charges.token_routing["optimal"] = {10us, 26us};
  charges.token_routing["hybrid"] = {10us, 26us};
  charges.token_routing["token_balanced"] = {100us, 0us};
  charges.top_k_of_all_tokens = 3us;
  charges.source =
      "METRO paper Fig. 11 (8 A100, 128 experts); optimal and hybrid: +10 us, an estimate; "
      "token_balanced: DeepSeek LPLB, about 100 us in a node";
  return charges;
}

std::span<const Key> charge_keys() {
  static constexpr Key keys[] = {
      {"fixed", form::time, "0 us", "per layer"},
      {"per_128_active", form::time, "0 us", "per layer and 128 active experts"}};
  return keys;
}

std::span<const Key> routing_charges_keys() {
  static constexpr Key keys[] = {
      {"source", form::text, required, "where these numbers come from"},
      {"top_k_of_all_tokens", form::time, "0 us", "when every rank chooses for all tokens"},
      {.name = "*",
       .form = form::object(charge_keys),
       .standard = otherwise("no time"),
       .meaning = "a policy's own GPU time",
       .registry = "token_routing"}};
  return keys;
}

Charges read_values(const ConfigNode& node, std::span<const std::string_view> policies) {
  return read_object(node, routing_charges_keys, [&](ConfigReader& reader) {
    Charges charges;
    charges.source = reader.text("source");
    charges.top_k_of_all_tokens = reader.quantity<Seconds>("top_k_of_all_tokens");
    for (const std::string_view policy : policies) {
      if (!reader.optional(policy)) continue;
      charges.token_routing[std::string(policy)] =
          read_object(reader.child(policy), charge_keys, [](ConfigReader& charge) {
            return RoutingCharge{charge.quantity<Seconds>("fixed"),
                                 charge.quantity<Seconds>("per_128_active")};
          });
    }
    return charges;
  });
}

}  // namespace

Seconds Charges::routing(std::string_view policy, int active, bool replicated) const {
  const auto found = token_routing.find(policy);
  if (!replicated || found == token_routing.end()) return Seconds{};
  return found->second.fixed + found->second.per_128_active * (active / 128.0);
}

std::span<const Key> charges_keys() {
  static constexpr std::array<std::string_view, 2> names{"measured", "none"};
  static constexpr Form values = form::object(routing_charges_keys);
  static constexpr Key keys[] = {
      {"token_routing", form::choice(names).or_a(values), "measured", "policies' own GPU time"},
      {"host_overhead", form::time, "0 us", "of the host, per step"},
      {"per_layer", form::time, "0 us", "gaps between kernels, per layer"},
      {"per_sequence", form::time, "0 us", "of the host, per sequence of the fullest rank"},
      {"eager_layer", form::time, "0 us", "least time of a layer where no graph is launched"}};
  return keys;
}

Charges read_charges(const ConfigNode& node, std::span<const std::string_view> policies) {
  return read_object(node, charges_keys, [&](ConfigReader& reader) {
    Charges charges;
    if (reader.has("token_routing") && reader.node().json().at("token_routing").is_object()) {
      charges = read_values(reader.child("token_routing"), policies);
    } else {
      if (reader.choice("token_routing") == 0) charges = measured();
    }
    charges.host_overhead = reader.quantity<Seconds>("host_overhead");
    charges.per_layer = reader.quantity<Seconds>("per_layer");
    charges.per_sequence = reader.quantity<Seconds>("per_sequence");
    charges.eager_layer = reader.quantity<Seconds>("eager_layer");
    return charges;
  });
}

}  // namespace moesim
