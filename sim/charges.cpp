// SPDX-License-Identifier: Apache-2.0
#include "sim/charges.hpp"

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

Charges read_values(const ConfigNode& node, std::span<const std::string_view> policies) {
  return read_object(node, [&](ConfigReader& reader) {
    Charges charges;
    charges.source = reader.text("source");
    charges.top_k_of_all_tokens = reader.quantity_or<Seconds>("top_k_of_all_tokens", "0 us");
    for (const std::string_view policy : policies) {
      if (!reader.optional(policy)) continue;
      charges.token_routing[std::string(policy)] =
          read_object(reader.child(policy), [](ConfigReader& charge) {
            return RoutingCharge{charge.quantity_or<Seconds>("fixed", "0 us"),
                                 charge.quantity_or<Seconds>("per_128_active", "0 us")};
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

Charges read_charges(const ConfigNode& node, std::span<const std::string_view> policies) {
  return read_object(node, [&](ConfigReader& reader) {
    Charges charges;
    if (reader.has("token_routing") && reader.node().json().at("token_routing").is_object()) {
      charges = read_values(reader.child("token_routing"), policies);
    } else {
      constexpr std::array<std::string_view, 2> names{"measured", "none"};
      if (reader.choice_or("token_routing", names, 0) == 0) charges = measured();
    }
    charges.host_overhead = reader.quantity_or<Seconds>("host_overhead", "0 us");
    return charges;
  });
}

}  // namespace moesim
