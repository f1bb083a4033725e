// SPDX-License-Identifier: Apache-2.0
#include "sim/experiment/read_phases.hpp"

namespace moesim {

namespace {

std::span<const Key> decode_if_few_keys() {
  static constexpr Key keys[] = {{"decode_if_prefill_tokens_at_most", form::integer(non_negative),
                                  required,
                                  "prompt tokens of the group up to which decode's holds"}};
  return keys;
}

// Whose rule mixed steps have: a phase's, by the number of prompt tokens, or one of their own.
MixedRule read_mixed(const ConfigNode& node) {
  if (node.json() == "prefill" || node.json() == "decode") {
    const std::string phase = node.text();
    return {phase == "prefill" ? MixedRule::Kind::prefill : MixedRule::Kind::decode, 0};
  }
  if (!node.json().is_object() || node.json().contains("type")) return {MixedRule::Kind::own, 0};
  return read_object(node, decode_if_few_keys, [](ConfigReader& few) {
    return MixedRule{MixedRule::Kind::decode_if_few,
                     few.integer("decode_if_prefill_tokens_at_most")};
  });
}

}  // namespace

std::span<const Key> dispatch_keys() {
  static constexpr Form dispatch = form::policy("dispatch");
  static constexpr Key keys[] = {
      {"prefill", dispatch, required, "rule of steps with prompt tokens"},
      {"decode", dispatch, required, "rule of steps without prompt tokens"},
      {"mixed", dispatch, unset("prefill's"), "where token_routing/mixed is a policy"}};
  return keys;
}

std::span<const Key> token_routing_keys() {
  static constexpr Form router = form::policy("token_routing");
  static constexpr Form few = form::object(decode_if_few_keys).or_a(router);
  static constexpr Key keys[] = {
      {"prefill", router, required, "rule of steps with prompt tokens"},
      {"decode", router, required, "rule of steps without prompt tokens"},
      {"mixed", form::choice(phase_names).or_a(few), "prefill",
       "which rule holds for steps with both"}};
  return keys;
}

void read_phases(ConfigReader& reader, PoolSpec& spec) {
  const Policies& policies = *spec.policies;
  ConfigReader dispatch(reader.child("dispatch"), dispatch_keys);
  const auto dispatch_of = [&](const char* phase) -> std::shared_ptr<const Dispatch> {
    return policies.dispatch.make(dispatch.child(phase));
  };
  read_object(reader.child("token_routing"), token_routing_keys, [&](ConfigReader& routing) {
    const auto add = [&](const ConfigNode& node, std::shared_ptr<const Dispatch> with) {
      const TokenRoutingChoice choice(policies.token_routing, node);
      spec.phases.push_back({choice, choice.make(), std::move(with)});
    };
    for (const char* phase : {"prefill", "decode"}) add(routing.child(phase), dispatch_of(phase));
    const ConfigNode mixed = routing.child("mixed");
    const bool own_dispatch = dispatch.has("mixed");
    std::shared_ptr<const Dispatch> of_mixed =
        own_dispatch ? dispatch_of("mixed") : spec.phases.front().dispatch;
    spec.mixed = read_mixed(mixed);
    if (spec.mixed.kind == MixedRule::Kind::own) {
      add(mixed, std::move(of_mixed));
    } else if (own_dispatch) {
      dispatch.child("mixed").fail(
          "no step uses it: \"token_routing\" names no policy of its own for mixed steps");
    }
  });
  dispatch.finish();
}

}  // namespace moesim
