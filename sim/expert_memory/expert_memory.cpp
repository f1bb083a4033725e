// SPDX-License-Identifier: Apache-2.0
#include "sim/expert_memory/expert_memory.hpp"

#include <algorithm>

#include "sim/expert_memory/policies.hpp"

namespace moesim {

namespace {

MemoryLink read_link(ConfigReader& reader) {
  MemoryLink link;
  link.bandwidth = reader.quantity<BytesPerSecond>("bandwidth");
  if (link.bandwidth <= BytesPerSecond(0)) {
    reader.child("bandwidth").fail("expected a bandwidth above zero");
  }
  link.latency = reader.quantity<Seconds>("latency");
  link.source = reader.text("source");
  return link;
}

constexpr Range slot_range{1, 1 << 30};

}  // namespace

double ExpertMemoryPlan::slots_in_hbm(double owned, double layers) const {
  const double cached = per_layer ? slots * layers : slots;
  return cached >= owned ? owned : cached + 1;
}

std::optional<ExpertMemoryPlan> read_expert_memory(const ConfigNode& node,
                                                   const Registry<ExpertMemory>& policies,
                                                   const Registry<Prefetch>& prefetches) {
  return read_object(node.as_policy(), [&](ConfigReader& reader) {
    std::optional<ExpertMemoryPlan> none;
    ExpertMemoryPlan plan;
    plan.policy = policies.make_from(reader);
    if (plan.policy->keeps_all()) return none;
    plan.type = reader.text("type");
    plan.per_layer = reader.has("slots_per_layer");
    if (plan.per_layer == reader.has("slots_per_gpu")) {
      node.fail("expected one of \"slots_per_gpu\" (all layers share) and \"slots_per_layer\"");
    }
    plan.slots = static_cast<int>(
        reader.integer(plan.per_layer ? "slots_per_layer" : "slots_per_gpu", slot_range));
    plan.host = read_object(reader.child("host"), read_link);
    plan.prefetch = prefetches.make(reader.child_or("prefetch", "none"));
    plan.lookahead = static_cast<int>(reader.integer_or("lookahead", 1, {1, 1 << 16}));
    if (reader.has("nvme")) {
      plan.nvme = read_object(reader.child("nvme"), [](ConfigReader& nvme) {
        const auto slots = static_cast<int>(nvme.integer("dram_slots_per_gpu", slot_range));
        return ExpertMemoryPlan::Nvme{slots, read_link(nvme)};
      });
    }
    return std::optional(plan);
  });
}

const Registry<ExpertMemory>& expert_memories() {
  static const Registry<ExpertMemory> table(
      "expert_memory",
      {{"resident", "every expert slot stands in HBM", make_resident},
       {"lru", "HBM holds some; the one used longest ago makes room (mixtral-offloading)",
        make_lru},
       {"lfu_aging", "the one used least makes room; all counts are halved now and then",
        make_lfu_aging},
       {"static_hot", "the hottest seen stay for good, the others stream (Fiddler)",
        make_static_hot}});
  return table;
}

const Registry<Prefetch>& prefetches() {
  static const Registry<Prefetch> table(
      "prefetch",
      {{"none", "experts are fetched when they are needed", make_no_prefetch},
       {"history", "what ran in the layer's last step is fetched ahead", make_history_prefetch},
       {"popularity", "what runs most, by an exponential average, is fetched ahead",
        make_popularity_prefetch},
       {"oracle", "each expert that will run is fetched ahead with a given accuracy",
        make_oracle_prefetch}});
  return table;
}

}  // namespace moesim
