// SPDX-License-Identifier: Apache-2.0
#include "sim/experiment/experiment_keys.hpp"

#include <vector>

#include "models/quantization.hpp"
#include "sim/experiment/engine.hpp"
#include "sim/experiment/pools.hpp"
#include "sim/experiment/read_phases.hpp"
#include "sim/experiment/read_placement.hpp"
#include "sim/experiment/read_serving.hpp"
#include "sim/experiment/shared_cluster.hpp"
#include "sim/experiment/spec.hpp"
#include "sim/step/reselection.hpp"
#include "traces/requests/arrivals.hpp"
#include "traces/requests/lengths.hpp"
#include "traces/sessions/sessions.hpp"

namespace moesim {

std::span<const Key> binding_keys() {
  static constexpr Form tags = form::list(form::text);
  static constexpr Key keys[] = {
      {"type", form::choice(binding_names), required, "the order of recordings"},
      {"phases", form::list(tags), unset("none, but for by_workload"),
       "by_workload: tags of each of equally long phases"}};
  return keys;
}

std::span<const Key> workload_keys() {
  static constexpr Form request_class = form::object(class_keys);
  static constexpr Form gating = form::policy("gating").or_a(form::text);
  static constexpr Key keys[] = {
      {"arrivals", form::policy("arrivals"), unset("required, but for recorded sessions"),
       "when requests come, or sessions start"},
      {"lengths", form::policy("lengths"), unset("the arrivals'"),
       "lengths of prompts and outputs"},
      {"sessions", form::policy("sessions", session_keys), unset("none: each request by itself"),
       "requests that follow each other"},
      {"requests", form::integer(1, 1e9), unset("all of the trace"), "number of requests"},
      {"gating", gating, unset("the preset of the model's family; none for a dense model"),
       "which experts tokens choose; or a preset (moesim list presets)"},
      {"prefill_gating", gating, unset("gating"), "which experts prompt tokens choose"},
      {"binding", form::typed_object(binding_keys), "random", "which recording a request replays"},
      {"classes", form::list(request_class), unset("none: one kind"),
       "kinds of requests: priorities, and objectives of their own"},
      {"timeout", form::time, unset("no limit"), "clients leave: from arrival to the last token"},
      {"ttft_timeout", form::time, unset("no limit"), "clients leave: to the first token"},
      {"cancellation", form::object(cancellation_keys), unset("none"), "clients that just leave"}};
  return keys;
}

std::span<const Key> site_power_keys() {
  static constexpr Key keys[] = {
      {"overhead_per_gpu", form::watts, unset("not counted"),
       "hosts, NICs, switches and fans, over the GPUs"},
      {"pue", form::number(1, 10), unset("not counted"), "power of the building over servers'"},
      {"dollars_per_kwh", form::number(0, 1000), unset("no cost of power"),
       "price of electricity"}};
  return keys;
}

std::span<const Key> background_keys() {
  static constexpr Form share = form::number(0, 0.99);
  static constexpr Key keys[] = {
      {"nvlink", share, "0", "share of NVLink that other tenants take"},
      {"network", share, "0", "share of the network that other tenants take"},
      {"spine", form::bytes_per_second, unset("none"),
       "what other tenants take of the network's spine_bandwidth"}};
  return keys;
}

namespace {

constexpr Form inline_cluster = form::object(cluster_keys);

// Keys of one EP group, and keys that all groups share.
std::span<const Key> rows_of_group() {
  static constexpr Form inline_anchor = form::object(anchor_keys);
  static constexpr Form overlap = form::typed_object(overlap_keys);
  static constexpr Form overlaps = form::list(overlap);
  static constexpr Form reselection = form::object(reselection_keys);
  static constexpr Form shared_expert = form::typed_object(shared_expert_keys);
  static constexpr Form outage = form::object(outage_keys);
  static constexpr Form outages = form::list(outage);
  static constexpr Form two_term_step = form::object(two_term_step_keys);
  static constexpr Key keys[] = {
      {"engine", form::object(engine_keys).or_a(form::text),
       unset("no preset; measured kernels of any engine"),
       "engine whose defaults fill what is left out, or its bare name"},
      {"parallel", form::object(parallel_keys), required, "GPUs of an EP group"},
      {"instances", form::integer(1, 1 << 16), unset("1"), "equal EP groups behind one router"},
      {"ffn_cluster", form::file.or_a(inline_cluster), unset("cluster"),
       "cluster of the experts' GPUs with ffn_gpus (AFD), if another"},
      {"precision", form::object(precision_keys).or_a(form::text),
       unset("as the model's files say"),
       "precision of all parts; or a text of weights: \"fp8\", \"nvfp4/fp8\""},
      {"scheduling", form::policy("scheduling"), required,
       "what a step computes, unless an \"engine\" says it"},
      {"prefill_alignment", form::policy("prefill_alignment", prefill_alignment_keys),
       unset("none"), "when ranks hold prompts back to prefill together"},
      {"token_routing", form::object(token_routing_keys), required,
       "which replica serves a token, unless an \"engine\" says it"},
      {"dispatch", form::object(dispatch_keys), required,
       "how tokens reach experts and return, unless an \"engine\" says it"},
      {"placement", form::policy("placement", placement_keys), "linear", "which GPU has an expert"},
      {"rebalancing", form::policy("rebalancing", rebalancing_keys), "none", "when experts move"},
      {"request_routing", form::policy("request_routing"), "least_kv", "which rank has a request"},
      {"charges", form::object(charges_keys), "{}", "time that no kernel model gives"},
      {"two_term_step", two_term_step, unset("kernels and links"),
       "steps by KV tokens alone: a max L + b mean L + c"},
      {"capacity", form::policy("capacity"), "dropless", "bounds of an expert's tokens"},
      {"expert_reselection", reselection, unset("none"),
       "decode: fewer active experts, at other answers (OEA)"},
      {"expert_memory", form::policy("expert_memory", expert_memory_keys), "resident",
       "which experts HBM holds"},
      {"host_link", form::choice(host_link_names), unset("a link for each"),
       "what goes first where offloaded experts and KV share a GPU's link"},
      {"expert_buffers", form::object(expert_buffers_keys), "{}", "room for dispatched tokens"},
      {"overlap", overlap.or_a(overlaps), "none", "communication beside computation"},
      {"shared_expert", shared_expert, unset("local"),
       "rank that computes a token's shared expert"},
      {"speculative", form::object(speculative_keys), unset("none"), "drafts"},
      {"kv_cache", form::object(kv_cache_keys), "{}", "KV cache"},
      {"api_server", form::object(api_server_keys), "{}", "time between clients and the engine"},
      {"cuda_graph", form::object(cuda_graph_keys), unset("no padding"), "captured batches"},
      {"background", form::object(background_keys), "{}", "load of other tenants on the links"},
      {"failures", form::object(failures_keys).or_a(outages), "[]", "GPUs that stop"},
      {"fidelity", form::choice(fidelity_names), "exact",
       "route every token, or draw from samples"},

      {"anchor", form::file.or_a(inline_anchor), unset("none"),
       "what bench --anchor wrote of measured runs"}};
  return keys;
}

std::span<const Key> rows_of_all() {
  static constexpr Form foreign_model = form::foreign(hf_model_marks);
  static constexpr Form inline_model = form::object(model_keys).or_a(foreign_model);
  static constexpr Form deployment = form::partial_object(deployment_keys);
  static constexpr Key keys[] = {
      {"cluster", form::file.or_a(inline_cluster), required, "a file, or a name of list clusters"},
      {"model", form::file.or_a(inline_model), required,
       "a file or folder of HuggingFace's, or a name of list models"},
      {"power", form::object(site_power_keys), unset("that of the GPUs alone"),
       "overhead of a GPU, PUE, price of electricity"},
      {"workload", form::object(workload_keys), required, "requests"},
      {"max_model_len", form::integer(1, 1e9), unset("the model's max_positions"),
       "prompt and output tokens of a request; longer requests are rejected"},
      {"pools", form::object(pools_keys), unset("one for both"), "prefill and decode apart"},
      {"kv_transfer", form::object(kv_transfer_keys), "{}", "between pools"},
      {"pool_roles", form::policy("pool_roles", role_change_keys), unset("fixed"),
       "when an EP group leaves one pool for the other"},
      {"deployments", form::list(deployment), unset("one"),
       "models that share the cluster: each a name, and its own keys"},
      {"slo", form::object(slo_keys), "{}", "objectives that goodput counts"},
      {"measurement", form::object(measurement_keys), "{}", "what the report is of"},
      {"seed", form::integer(0, 9e15), "1", "seed of all random streams"},
      {"$schema", form::text, unset("none"), "where an editor finds the schema; not read"}};
  return keys;
}

}  // namespace

std::span<const Key> experiment_keys() {
  static const std::vector<Key> keys = [] {
    const auto group = rows_of_group(), all = rows_of_all();
    std::vector<Key> both(group.begin(), group.end());
    both.insert(both.end(), all.begin(), all.end());
    return both;
  }();
  return keys;
}

std::span<const Key> group_keys() { return rows_of_group(); }

// The cluster is the first key that groups share.
std::span<const Key> pooled_group_keys() {
  return experiment_keys().first(rows_of_group().size() + 1);
}

PolicyRows Policies::rows() const {
  PolicyRows all;
  const auto add = [&](const auto& registry) { all[registry.kind()] = registry.rows(); };
  add(placement), add(token_routing), add(dispatch), add(capacity), add(expert_memory);
  add(prefetch), add(retention), add(tier_eviction), add(tier_write), add(scheduling);
  add(request_routing), add(rebalancing), add(pool_roles), add(prefill_alignment);
  add(draft_choice);
  add(gatings()), add(request_arrivals()), add(request_lengths()), add(session_kinds());
  return all;
}

}  // namespace moesim
