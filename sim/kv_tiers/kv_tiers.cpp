// SPDX-License-Identifier: Apache-2.0
#include "sim/kv_tiers/kv_tiers.hpp"

#include <algorithm>
#include <cmath>

#include "hardware/choice.hpp"

namespace moesim {

// The constructor of each row, from policies/.
Registry<TierEviction>::Maker make_lru_tier, make_steps_to_use_tier, make_oracle_tier;

const Registry<TierEviction>& tier_evictions() {
  static const Registry<TierEviction> table(
      "tier_eviction",
      {{"lru", "the block that was found longest ago makes room", make_lru_tier},
       {"steps_to_use", "the block whose session has most turns to wait for (KVFlow)",
        make_steps_to_use_tier},
       {"oracle", "the block whose session comes back last: a bound", make_oracle_tier}});
  return table;
}

namespace {

std::unique_ptr<TierWrite> make_write(TierWrite write) {
  return std::make_unique<TierWrite>(write);
}

}  // namespace

// The offloading connector of vLLM offers all blocks of a request, and the tier takes those that it
// lacks. TensorRT-LLM and SGLang's write_back wait for the copy of a block that is taken. What an
// agent leaves behind with its last turn is not worth a copy.
const Registry<TierWrite>& tier_writes() {
  static const Registry<TierWrite> table(
      "tier_write",
      {{"write_through", "a block is copied as soon as it is computed (vLLM, SGLang)",
        [](ConfigReader&) { return make_write({.when_there = true}); }},
       {"write_back", "a block is copied before other tokens take its place (TensorRT-LLM)",
        [](ConfigReader&) { return make_write({.when_taken = true}); }},
       {"live", "as write_back, if a session that continues has the block",
        [](ConfigReader&) { return make_write({.when_taken = true, .live_only = true}); }}});
  return table;
}

namespace {

std::span<const Key> capacity_keys() {
  static constexpr Key keys[] = {{"of_hbm", form::number(0, 1e6), required,
                                  "KV caches of HBM, of all ranks that share the tier"}};
  return keys;
}

}  // namespace

std::span<const Key> kv_tier_keys() {
  static constexpr Form in_hbm = form::object(capacity_keys);
  static constexpr Key keys[] = {
      {"name", form::text, "host", "what the report calls the tier"},
      {"per", form::choice(tier_scope_names), "rank", "who shares the tier"},
      {"capacity", form::bytes.or_a(in_hbm), required,
       "all shards of all ranks that share the tier"},
      {"path", form::choice(tier_path_names), unset("staged"),
       "of loads from a lower tier: through the first one, or direct"},
      {"bandwidth", form::bytes_per_second, unset("first tier: 0.85 of the GPU's host link"),
       "to HBM, of one GPU"},
      {"write_bandwidth", form::bytes_per_second, unset("bandwidth"),
       "from HBM or the tier above, of one GPU"},
      {"aggregate_bandwidth", form::bytes_per_second, unset("not bound"),
       "of all ranks that share the tier, one direction"},
      {"latency", form::time, "0 us", "of a transfer, before the first byte"},
      {"piece_time", form::time, unset("0 us"), "of each contiguous piece, on top of its bytes"},
      {"pieces", form::choice(tier_pieces_names), unset("layer"),
       "what lies together: a layer's keys or values, or a block"},
      {"link", form::choice(link_share_names), "fifo", "how transfers of a rank share its link"},
      {"eviction", form::policy("tier_eviction"), "lru", "which block makes room"},
      {"write", form::policy("tier_write"), "write_through", "when a block is copied to the tier"}};
  return keys;
}

namespace {

BytesPerSecond read_rate(ConfigReader& reader, const char* key) {
  const auto rate = reader.quantity<BytesPerSecond>(key);
  if (rate <= BytesPerSecond(0)) {
    reader.child(key).fail(
        "a tier needs a bandwidth above 0, or its loads never end; leave the tier out instead");
  }
  return rate;
}

void read_capacity(ConfigReader& reader, KvTierPlan& plan) {
  const ConfigNode capacity = reader.child("capacity");
  if (!capacity.json().is_object()) {
    plan.capacity = capacity.quantity<Bytes>();
    if (plan.capacity < Bytes(0)) capacity.fail("must be at least 0 B");
    return;
  }
  plan.of_hbm =
      read_object(capacity, capacity_keys, [](ConfigReader& of) { return of.number("of_hbm"); });
}

KvTierPlan read_tier(const ConfigNode& node, std::size_t place,
                     const Registry<TierEviction>& evictions, const Registry<TierWrite>& writes,
                     BytesPerSecond host_link) {
  return read_object(node, kv_tier_keys, [&](ConfigReader& reader) {
    KvTierPlan plan;
    plan.place = place;
    plan.name = reader.text("name");
    if (plan.name.empty() || plan.name == "hbm") {
      reader.child("name").fail("expected a name other than \"\" and \"hbm\"");
    }
    plan.per = choice<TierScope>(reader, "per", tier_scope_names);
    if (reader.optional("path")) plan.path = choice<TierPath>(reader, "path", tier_path_names);
    read_capacity(reader, plan);
    if (place > 0 && !reader.optional("bandwidth")) {
      node.fail("a tier below the first needs its \"bandwidth\": no data sheet gives it");
    }
    plan.bandwidth =
        reader.optional("bandwidth") ? read_rate(reader, "bandwidth") : host_link * host_link_share;
    plan.write_bandwidth =
        reader.optional("write_bandwidth") ? read_rate(reader, "write_bandwidth") : plan.bandwidth;
    if (reader.optional("aggregate_bandwidth"))
      plan.aggregate_bandwidth = read_rate(reader, "aggregate_bandwidth");
    plan.latency = reader.quantity<Seconds>("latency");
    if (reader.optional("piece_time")) plan.piece_time = reader.quantity<Seconds>("piece_time");
    if (reader.optional("pieces"))
      plan.pieces = choice<TierPieces>(reader, "pieces", tier_pieces_names);
    plan.share = choice<LinkShare>(reader, "link", link_share_names);
    plan.eviction = evictions.make(reader.child("eviction"));
    plan.write = writes.make(reader.child("write"));
    return plan;
  });
}

}  // namespace

double pieces_of_block(const KvTierPlan& tier, double of_layers) {
  return tier.pieces == TierPieces::block ? 1 : of_layers;
}

Seconds load_time(const KvTierPlan& tier, Bytes bytes, double pieces) {
  const BytesPerSecond rate =
      std::min(tier.bandwidth, tier.aggregate_bandwidth.value_or(tier.bandwidth));
  return bytes / rate + pieces * tier.piece_time;
}

std::optional<std::int64_t> break_even_blocks(Seconds latency, Seconds load, Seconds compute) {
  if (load >= compute) return std::nullopt;
  constexpr double most = 1e15;  // more than any prompt has
  return static_cast<std::int64_t>(std::min(most, std::floor(latency / (compute - load)))) + 1;
}

std::vector<KvTierPlan> read_kv_tiers(const ConfigNode& node,
                                      const Registry<TierEviction>& evictions,
                                      const Registry<TierWrite>& writes, BytesPerSecond host_link) {
  const std::vector<ConfigNode> list = node.list();
  if (list.size() > most_tiers) {
    node.fail("expected at most {} tiers, found {}; keep the nearest", most_tiers, list.size());
  }
  std::vector<KvTierPlan> tiers;
  for (std::size_t place = 0; place < list.size(); ++place) {
    const ConfigNode& tier = list[place];
    KvTierPlan plan = read_tier(tier, place, evictions, writes, host_link);
    for (const KvTierPlan& above : tiers) {
      if (above.name == plan.name) {
        tier.fail("a tier above is called \"{}\" too; give each a \"name\" of its own", plan.name);
      }
    }
    if (!tiers.empty() && plan.per < tiers.back().per) {
      tier.fail(
          "is shared per {}, the tier above per {}: a tier below is shared by as "
          "many ranks or more; give it \"per\": \"{}\"",
          tier_scope_names[std::size_t(plan.per)], tier_scope_names[std::size_t(tiers.back().per)],
          tier_scope_names[std::size_t(tiers.back().per)]);
    }
    if (plan.of_hbm.value_or(plan.capacity.value()) > 0) tiers.push_back(std::move(plan));
  }
  return tiers;
}

}  // namespace moesim
