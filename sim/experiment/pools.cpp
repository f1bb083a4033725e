// SPDX-License-Identifier: Apache-2.0
#include "sim/experiment/pools.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "hardware/shipped.hpp"
#include "sim/engines/serving_engine.hpp"

namespace moesim {

ConfigNode part_of(const ConfigNode& node, const ConfigNode& part, const CommonKeys& common) {
  const std::string_view list = common.taken_out.front();
  for (const std::string_view key : common.keys) {
    if (!part.json().contains(key)) continue;
    part.child(key).fail("applies to {}; write the key next to \"{}\"", common.all, list);
  }
  if (node.json().contains("failures")) {
    node.child("failures")
        .fail("does not say which {}; write the key in one of \"{}\"", common.one, list);
  }
  Json config = node.json();
  for (const auto& [key, value] : part.json().items()) config[key] = value;
  for (const std::string_view key : common.taken_out) config.erase(std::string(key));
  return {std::move(config), node.file(), part.pointer()};
}

namespace {

constexpr std::array<std::string_view, 9> of_both_pools{"workload", "max_model_len", "model",
                                                        "seed",     "slo",           "measurement",
                                                        "pools",    "kv_transfer",   "pool_roles"};
enum class LinkLevel { nvlink, network };
constexpr std::array<std::string_view, 2> levels{"nvlink", "network"};

ConfigNode pool_config(const ConfigNode& node, const ConfigNode& pool) {
  if (!pool.json().is_object()) pool.fail("expected an object");
  static constexpr std::array<std::string_view, 3> taken_out{"pools", "kv_transfer", "pool_roles"};
  return part_of(node, pool, {of_both_pools, taken_out, "both pools", "pool"});
}

// A file by its place, however it is named.
Json cluster_said_of(const PoolSpec& pool) {
  const ConfigNode cluster = pool.node.child("cluster");
  if (!cluster.json().is_string()) return cluster.json();
  return std::filesystem::weakly_canonical(named_file(cluster, Shipped::cluster)).string();
}

// GPUs of the pools must be there, in one cluster or in two.
void check_gpus(const ConfigNode& pools, const PoolSpec& prefill, const PoolSpec& decode) {
  const int p = gpus_in_cluster(prefill), d = gpus_in_cluster(decode);
  if (one_cluster(prefill, decode)) {
    const ClusterSpec& cluster = decode.cluster;
    if (p + d > cluster.gpus()) {
      pools.fail("{} GPUs for prefill and {} for decode are {}, but {} has {}", p, d, p + d,
                 cluster.name, cluster.gpus());
    }
    return;
  }
  const auto check = [&](const char* name, const PoolSpec& pool, int gpus) {
    if (gpus <= pool.cluster.gpus()) return;
    pools.child(name).fail("needs {} GPUs, but {} has {}", gpus, pool.cluster.name,
                           pool.cluster.gpus());
  };
  check("prefill", prefill, p);
  check("decode", decode, d);
}

void check_pair(const ConfigNode& pools, const PoolSpec& prefill, const PoolSpec& decode) {
  if (decode.parallel.pcp > 1) {
    pools.child("decode").fail(
        "PCP divides prompts, and this pool computes single tokens; leave out \"pcp\"");
  }
  if (prefill.decode_cut || decode.decode_cut) {
    pools.fail(
        "steps of a pool are of one phase; give each pool its own \"ep\", not \"decode_ep\"");
  }
  check_gpus(pools, prefill, decode);
  if (prefill.scheduler->prompts_arrive_computed()) {
    pools.child("prefill").fail(
        "\"decode_only\" computes no prompts; use \"chunked_prefill\" or \"prefill_first\"");
  }
  if (prefill.precision.kv_cache != decode.precision.kv_cache) {
    pools.fail(
        "the pools store the KV cache in different precisions, and a transfer does not convert it; "
        "give both pools one \"kv_cache\" precision");
  }
}

// Whose KV cache a GPU holds: layers of its pipeline stage, as kv_layout() counts them.
double layers_held(const Deployment& e) {
  const int layers = e.kv_held.groups.front().layers;
  const int pp = e.parallel.pp;
  const int of_stage = (layers + pp - 1) / pp;
  return double(e.kv_held.groups.size()) * of_stage;
}

}  // namespace

bool one_cluster(const PoolSpec& a, const PoolSpec& b) {
  return cluster_said_of(a) == cluster_said_of(b);
}

std::string layout_text(const ParallelPlan& plan, int instances) {
  std::string text;
  const auto add = [&](const char* name, int value) {
    if (value > 1) text += fmt::format("{}{}{}", text.empty() ? "" : " ", name, value);
  };
  add("tp", plan.tp), add("pcp", plan.pcp), add("dcp", plan.dcp), add("dp", plan.dp);
  if (!plan.afd()) add("ep", plan.ep);
  add("pp", plan.pp);
  if (text.empty()) text = "tp1";
  if (plan.afd()) text += fmt::format(" ffn{}", plan.ffn_gpus);
  return instances > 1 ? fmt::format("{} x {}", instances, text) : text;
}

int gpus_of(const ServedModel& pool) { return pool.instances * pool.parallel.gpus(); }

int gpus_in_cluster(const ServedModel& pool) {
  const int elsewhere = pool.ffn_cluster ? pool.instances * pool.parallel.ffn_gpus : 0;
  return gpus_of(pool) - elsewhere;
}

std::vector<GpusOfKind> kinds_of_gpus(const ServedModel& pool) {
  const int here = gpus_in_cluster(pool);
  std::vector<GpusOfKind> kinds{{pool.cluster.gpu, here}};
  if (pool.ffn_cluster) kinds.push_back({pool.ffn_cluster->gpu, gpus_of(pool) - here});
  return kinds;
}

KvTransferCost kv_transfer(const Experiment& experiment, std::int32_t prompt_tokens) {
  const Deployment& prefill = experiment.pools.front();
  const Deployment& decode = experiment.decode();
  const KvLink& link = *experiment.kv_link;
  const auto held = [&](const Deployment& e) {
    return e.kv_held.block.value() * double(e.kv_held.blocks_for(prompt_tokens));
  };
  const double to_one_stage = held(decode) * decode.parallel.tp;
  // GPUs that hold the same share in sending it: of a rank under PCP, or what stripes of DCP take.
  double sent = held(prefill);
  if (decode.parallel.dcp > prefill.parallel.dcp || prefill.parallel.pcp > 1)
    sent = std::min(sent, to_one_stage / prefill.parallel.tp);
  // Every decode GPU reads its own share. Rank i of n reads from prefill rank i * m / n of m, which
  // holds its heads: so do NIXL and Mooncake in vLLM, SGLang and TensorRT-LLM. MLA's latent is on
  // every tp rank, and a tp above the KV heads repeats heads. A prefill GPU sends a byte as often
  // as its decode GPUs hold it.
  const double in_all = to_one_stage / layers_held(decode) * layers_held(prefill);
  sent = std::max(sent, in_all / prefill.parallel.tp);
  // If GPUs hold unequal shares, the wider share passes over one link.
  const double per_link = std::max(sent, held(decode));
  const double layer = std::max(sent / layers_held(prefill), held(decode) / layers_held(decode));
  const int links = decode.parallel.tp;
  // GPU i sends to GPU `first` + i, which is of the next domain where the network is the way.
  const int first = link.network ? std::max(links, link.fabric.cluster().scale_up_domain) : links;
  const auto time = [&](double bytes) {
    TrafficMatrix matrix(first + links);
    for (int i = 0; i < links; ++i) matrix.at(i, first + i) = bytes;
    return link.fabric.all_to_all(matrix).time;
  };
  double exposed = per_link;
  if (link.sends == KvSends::layer) exposed = layer;
  if (link.sends == KvSends::chunk) {
    const int chunk = prefill.scheduler->max_num_batched_tokens();
    exposed *= ((prompt_tokens - 1) % chunk + 1) / double(prompt_tokens);
  }
  return {Bytes(to_one_stage / layers_held(decode) * double(decode.model.layers.size())),
          time(per_link), time(exposed)};
}

bool both_pools_have(const Json& config, const std::string& key) {
  static const Json::json_pointer prefill("/pools/prefill"), decode("/pools/decode");
  return config.contains(prefill) && config.contains(decode) && config[prefill].contains(key) &&
         config[decode].contains(key);
}

void refuse_keys_beside_pools(const ConfigNode& experiment) {
  if (!experiment.json().is_object()) return;
  for (const auto& [key, value] : experiment.json().items()) {
    if (both_pools_have(experiment.json(), key))
      experiment.child(key).fail("has no effect, because both pools have their own; leave it out");
  }
}

std::span<const Key> pools_keys() {
  static constexpr Form pool = form::partial_object(pooled_group_keys);
  static constexpr Key keys[] = {{"prefill", pool, required, "keys of the groups that prefill"},
                                 {"decode", pool, required, "keys of the groups that decode"}};
  return keys;
}

std::span<const Key> kv_transfer_keys() {
  static constexpr Key keys[] = {
      {"level", form::choice(levels), unset("nvlink, if it joins all"), "the links that are used"},
      {"sends", form::choice(kv_sends_names), unset("as the engine; layer without one"),
       "a prompt's KV leaves at once, step by step, or layer by layer"},
      {"first_token", form::choice(first_token_names), unset("as the engine; prefill without one"),
       "who shows the token: prefill, or decode at admission or after a step"},
      {"decode_offload", form::flag, unset("false"),
       "decode ranks copy replies to prefill's last tier (SGLang)"}};
  return keys;
}

namespace {

// NVLink where one domain holds all GPUs, unless the network is asked for. Between two clusters the
// network.
KvLinkSpec read_link(const ConfigNode& node, PoolSpec& prefill, PoolSpec& decode) {
  const ClusterSpec& cluster = decode.cluster;
  const int gpus = gpus_in_cluster(prefill) + gpus_in_cluster(decode);
  const bool two = !one_cluster(prefill, decode);
  return read_object(node, kv_transfer_keys, [&](ConfigReader& options) {
    const bool far = two || gpus > cluster.scale_up_domain;
    const LinkLevel usual = far ? LinkLevel::network : LinkLevel::nvlink;
    const auto level =
        static_cast<LinkLevel>(options.choice_or("level", levels, std::size_t(usual)));
    const bool by_network = level == LinkLevel::network;
    if (two && !by_network) {
      options.child("level").fail(
          "the pools are on two clusters, which no NVLink joins; use \"network\"");
    }
    if (!two && by_network && cluster.gpus() <= cluster.scale_up_domain) {
      options.child("level").fail("{} is one NVLink domain; use \"nvlink\"", cluster.name);
    }
    if (!by_network && far) {
      options.child("level").fail("NVLink joins {} GPUs, the pools have {}; use \"network\"",
                                  cluster.scale_up_domain, gpus);
    }
    const ServingEngine* const from = find_engine(prefill.engine_name());
    const ServingEngine* const to = find_engine(decode.engine_name());
    KvLinkSpec link{by_network, static_cast<KvSends>(options.choice_or(
                                    "sends", kv_sends_names,
                                    std::size_t(from ? from->kv_sends : KvSends::layer)))};
    prefill.first_token = decode.first_token = static_cast<FirstToken>(options.choice_or(
        "first_token", first_token_names, std::size_t(to ? to->first_token : FirstToken::prefill)));
    // A pool that decodes has no radix cache (sglang#22462).
    int& slots = decode.kv_cache.paging.state_slots;
    slots = std::min(slots, 1);
    if (options.optional("decode_offload")) link.decode_offload = options.flag("decode_offload");
    return link;
  });
}

// Ranks of two pools use one tier, whose blocks are the same for both.
void check_decode_offload(const ConfigNode& node, const PoolSpec& prefill, const PoolSpec& decode) {
  const auto refuse = [&](bool wrong, std::string_view why) {
    if (wrong) node.fail("{}, or leave this out", why);
  };
  const std::vector<KvTierPlan>& tiers = prefill.kv_cache.tiers;
  refuse(
      tiers.empty() || tiers.back().per != TierScope::cluster,
      R"(decode ranks reach a tier of the cluster; give prefill a last one with "per": "cluster")");
  refuse(!decode.kv_cache.tiers.empty(), "decode ranks write to prefill's tier; give decode none");
  refuse(!decode.prefix_caching,
         "blocks are known by prefix; give the decode pool \"prefix_caching\": true");
  const KvLayout from = kv_layout_of(prefill), to = kv_layout_of(decode);
  refuse(from.block_tokens != to.block_tokens || from.block != to.block ||
             prefill.parallel.rank_gpus() != decode.parallel.rank_gpus(),
         "blocks of both pools must be equal; give both the same \"tp\" and \"block_size\"");
}

// True if a GPU of either pool holds the same weights.
bool same_weights(const PoolSpec& a, const PoolSpec& b) {
  const PrecisionPlan &p = a.precision, &q = b.precision;
  ParallelPlan stripes = a.parallel;
  stripes.dcp = b.parallel.dcp;
  stripes.dcp_merge = b.parallel.dcp_merge;
  stripes.moe_sequence_parallel = b.parallel.moe_sequence_parallel;
  return stripes == b.parallel && p.experts == q.experts && p.attention == q.attention &&
         p.ffn == q.ffn && p.expert_shares == q.expert_shares &&
         p.attention_shares == q.attention_shares && p.ffn_shares == q.ffn_shares &&
         a.replication_effective == b.replication_effective;
}

// A group of one pool becomes one of the other.
void check_roles(const ConfigNode& node, const PoolRolesSpec& roles, PoolSpec& prefill,
                 PoolSpec& decode) {
  const auto refuse = [&](bool wrong, std::string_view why) {
    if (wrong) node.fail(why);
  };
  const int p = prefill.parallel.gpus(), d = decode.parallel.gpus();
  refuse(!one_cluster(prefill, decode),
         "groups do not move between clusters; give both pools one \"cluster\"");
  refuse(p != d, fmt::format("groups of the pools have {} and {} GPUs, and none can take the "
                             "place of another; give all groups equally many",
                             p, d));
  const int least = roles.options.least_groups;
  refuse(prefill.instances < least || decode.instances < least,
         fmt::format("a pool starts with fewer groups than \"least_groups\": {}; give more "
                     "\"instances\"",
                     least));
  for (const PoolSpec* pool : {&prefill, &decode}) {
    refuse(!pool->kv_cache.tiers.empty() || pool->kv_cache.retains(),
           "groups that keep KV caches for agents, or in tiers, do not move; leave out "
           "\"tiers\" and \"retention\"");
    refuse(!pool->failures.outages.empty(), "groups that fail do not move; leave out \"failures\"");
    refuse(pool->ffn_cluster.has_value(),
           "groups on GPUs of two clusters do not move; leave out \"ffn_cluster\"");
  }
  const Slo owed = decode.loosest_slo();
  refuse(roles.policy()->needs_objectives() && (!owed.ttft || !owed.tpot),
         R"(goes by objectives of both pools; give "slo": {"ttft": "2 s", "tpot": "50 ms"})");
  refuse(!same_weights(prefill, decode) && !roles.options.reload,
         "the pools cut or store the weights differently, so that a group loads them anew; give "
         "\"reload_bandwidth\"");
  prefill.may_join = decode.instances;
  decode.may_join = prefill.instances;
}

// Nothing where no group ever moves.
std::optional<PoolRolesSpec> read_roles(const ConfigNode& node, const Policies& policies,
                                        PoolSpec& prefill, PoolSpec& decode) {
  const PoolRolesChoice choice(policies.pool_roles, node, role_change_keys);
  ConfigReader beside(choice.node(), role_change_keys);
  PoolRolesSpec roles{read_role_changes(beside), choice.make()};
  if (!roles.policy()->moves()) return std::nullopt;
  check_roles(node, roles, prefill, decode);
  return roles;
}

}  // namespace

ExperimentSpec read_pools(const ConfigNode& node, const Policies& policies) {
  // Keys of the groups are read by the pools, which refuse what they do not know.
  ConfigReader reader(node, experiment_keys);
  const ConfigNode pools = reader.child("pools");
  return read_object(pools, pools_keys, [&](ConfigReader& names) {
    ExperimentSpec spec{node, {}};
    for (const char* name : {"prefill", "decode"}) {
      spec.pools.push_back(read_pool(pool_config(node, names.child(name)), policies));
    }
    PoolSpec& prefill = spec.pools.front();
    PoolSpec& decode = spec.pools.back();
    prefill.prefill_only = true;
    check_pair(pools, prefill, decode);
    spec.kv_link = read_link(reader.child("kv_transfer"), prefill, decode);
    if (spec.kv_link->decode_offload)
      check_decode_offload(reader.child("kv_transfer").child("decode_offload"), prefill, decode);
    if (reader.optional("pool_roles"))
      spec.roles = read_roles(reader.child("pool_roles"), policies, prefill, decode);
    return spec;
  });
}

// Keys of both pools are next to these, all others in each. What both had in common is then in each
// too, and has no effect next to them.
Json resolved_pools(const ExperimentSpec& spec) {
  const auto resolved = [](const PoolSpec& pool) {
    return pool.node.resolved().at(Json::json_pointer(pool.node.pointer()));
  };
  Json prefill = resolved(spec.pools.front()), decode = resolved(spec.pools.back());
  Json config = spec.node.json();
  const auto put_beside = [&](const std::string& key) {
    if (!decode.contains(key)) return;
    config[key] = decode[key];
    prefill.erase(key);
    decode.erase(key);
  };
  for (const std::string_view name : of_both_pools) put_beside(std::string(name));
  if (one_cluster(spec.pools.front(), spec.pools.back())) put_beside("cluster");
  config["pools"] = {{"prefill", std::move(prefill)}, {"decode", std::move(decode)}};
  for (const auto& [key, value] : spec.node.json().items())
    if (both_pools_have(config, key)) config.erase(key);
  config["kv_transfer"] = {
      {"level", levels[spec.kv_link->network ? 1 : 0]},
      {"sends", kv_sends_names[std::size_t(spec.kv_link->sends)]},
      {"first_token", first_token_names[std::size_t(spec.pools.back().first_token)]}};
  if (spec.kv_link->decode_offload) config["kv_transfer"]["decode_offload"] = true;
  if (spec.node.json().contains("pool_roles"))
    config["pool_roles"] =
        spec.node.resolved().at(Json::json_pointer(spec.node.pointer() + "/pool_roles"));
  return config;
}

}  // namespace moesim
