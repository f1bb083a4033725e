// SPDX-License-Identifier: Apache-2.0
#include "sim/expert_memory/expert_memory.hpp"

#include "sim/expert_memory/ranked_cache.hpp"

namespace moesim {

// The constructor of each row and its options, from policies/.
Registry<ExpertMemory>::Maker make_resident, make_lru, make_lfu_aging, make_static_hot;
Keys lfu_aging_keys, popularity_prefetch_keys, oracle_prefetch_keys;
Registry<Prefetch>::Maker make_no_prefetch, make_history_prefetch, make_popularity_prefetch,
    make_oracle_prefetch;

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

constexpr Form slots = form::integer(1, 1 << 30);
constexpr std::array<Key, 3> link_keys{
    {{"bandwidth", form::bytes_per_second, required, "per GPU"},
     {"latency", form::time, required, "before the first byte"},
     {"source", form::text, required, "where these numbers come from"}}};

std::span<const Key> host_keys() { return link_keys; }

std::span<const Key> nvme_keys() {
  static constexpr Key keys[] = {
      link_keys[0],
      link_keys[1],
      link_keys[2],
      {"dram_slots_per_gpu", slots, required, "experts of a GPU that the host's memory holds"}};
  return keys;
}

}  // namespace

std::span<const Key> expert_memory_keys() {
  static constexpr KeyDefault resident = unset("resident: every expert");
  static constexpr Key keys[] = {
      {"slots_per_gpu", slots, resident, "experts that HBM holds, all layers together; or ..."},
      {"slots_per_layer", slots, resident, "... in each layer"},
      {"host", form::object(host_keys), resident, "the link to the host's memory"},
      {"prefetch", form::policy("prefetch"), "none", "what is fetched before it is needed"},
      {"lookahead", form::integer(1, 1 << 16), "1", "layers ahead that are prefetched"},
      {"nvme", form::object(nvme_keys), unset("none"), "what the host's memory cannot hold"}};
  return keys;
}

double ExpertMemoryPlan::slots_in_hbm(double owned, double layers) const {
  const double cached = per_layer ? slots * layers : slots;
  return cached >= owned ? owned : cached + 1;
}

std::optional<ExpertMemoryPlan> read_expert_memory(const ConfigNode& node,
                                                   const Registry<ExpertMemory>& policies,
                                                   const Registry<Prefetch>& prefetches) {
  return read_object(node.as_policy(), expert_memory_keys, [&](ConfigReader& reader) {
    std::optional<ExpertMemoryPlan> none;
    ExpertMemoryPlan plan;
    plan.policy = policies.make_from(reader);
    if (plan.policy->resident()) return none;
    plan.type = reader.text("type");
    plan.per_layer = reader.has("slots_per_layer");
    if (plan.per_layer == reader.has("slots_per_gpu")) {
      node.fail("expected one of \"slots_per_gpu\" (all layers share) and \"slots_per_layer\"");
    }
    plan.slots =
        static_cast<int>(reader.integer(plan.per_layer ? "slots_per_layer" : "slots_per_gpu"));
    plan.host = read_object(reader.child("host"), host_keys, read_link);
    plan.prefetch = prefetches.make(reader.child("prefetch"));
    plan.lookahead = static_cast<int>(reader.integer("lookahead"));
    if (reader.has("nvme")) {
      plan.nvme = read_object(reader.child("nvme"), nvme_keys, [](ConfigReader& nvme) {
        const auto dram = static_cast<int>(nvme.integer("dram_slots_per_gpu"));
        return ExpertMemoryPlan::Nvme{dram, read_link(nvme)};
      });
    }
    return std::optional(plan);
  });
}

const Registry<ExpertMemory>& expert_memories() {
  static const Registry<ExpertMemory> table(
      "expert_memory",
      {{"resident", "every expert slot is in HBM", make_resident},
       {"lru", "HBM holds some; the one used longest ago makes room (mixtral-offloading)",
        make_lru},
       {"lfu_aging", "the one used least makes room; all counts are halved now and then",
        make_lfu_aging, lfu_aging_keys},
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
        make_popularity_prefetch, popularity_prefetch_keys},
       {"oracle", "each expert that will run is fetched ahead with a given accuracy",
        make_oracle_prefetch, oracle_prefetch_keys}});
  return table;
}

}  // namespace moesim
