// SPDX-License-Identifier: Apache-2.0
#include "sim/rebalancing/rebalancer.hpp"

namespace moesim {

// The constructor of each row and its options, from policies/.
Registry<RebalancerFactory, const RebalancingContext&>::Maker make_no_rebalancing,
    make_eplb_periodic, make_eplb_async, make_migrate;
Keys eplb_periodic_keys, eplb_async_keys, migrate_keys;

const Registry<RebalancerFactory, const RebalancingContext&>& rebalancers() {
  static const Registry<RebalancerFactory, const RebalancingContext&> table(
      "rebalancing",
      {{"none", "experts stay where they were placed", make_no_rebalancing},
       {"eplb_periodic",
        "a new placement every so many steps, for which the engine stops (vLLM, SGLang)",
        make_eplb_periodic, eplb_periodic_keys},
       {"eplb_async",
        "the same while steps run: weights share the links, layers switch as weights arrive",
        make_eplb_async, eplb_async_keys},
       {"migrate",
        "single experts copied, swapped or dropped where that saves more seconds than it costs",
        make_migrate, migrate_keys}});
  return table;
}

namespace {

std::span<const Key> movement_keys() {
  static constexpr Key keys[] = {{"sources", form::choice(source_rule_names), "sglang",
                                  "engine whose rule says which copy is sent"},
                                 {"link_share", form::number(0.01, 0.99), "0.5",
                                  "share of the links that weights take while steps run"}};
  return keys;
}

}  // namespace

std::span<const Key> rebalancing_keys() {
  static constexpr Key keys[] = {
      {"movement", form::object(movement_keys), "{}", "how weights move"}};
  return keys;
}

MovementOptions read_movement(ConfigReader& rebalancing) {
  return read_object(rebalancing.child("movement"), movement_keys, [](ConfigReader& reader) {
    MovementOptions options;
    options.sources = static_cast<SourceRule>(reader.choice("sources"));
    options.link_share = reader.number("link_share");
    return options;
  });
}

}  // namespace moesim
