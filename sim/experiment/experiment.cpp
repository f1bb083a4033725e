// SPDX-License-Identifier: Apache-2.0
#include "sim/experiment/experiment.hpp"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "sim/experiment/pools.hpp"

namespace moesim {

namespace {

// Links that KV caches cross from pool to pool, as many as a rank of decode has, from one domain to
// the next, whatever GPUs send. Twice the GPUs always have room for it.
ClusterSpec between(const PoolSpec& prefill, const PoolSpec& decode) {
  ClusterSpec cluster =
      one_cluster(prefill, decode) ? decode.cluster : joined(prefill.cluster, decode.cluster);
  cluster.nodes *= 2;
  return cluster;
}

// Corrections are of one model and GPU; those of another layout are taken, and said.
void check_anchor(Experiment& e) {
  Deployment& pool = e.decode();
  if (!pool.anchor) return;
  const Anchor& anchor = *pool.anchor;
  const auto refuse_other = [&](const char* what, const std::string& measured,
                                const std::string& own) {
    if (!measured.empty() && measured != own)
      ConfigNode({}, pool.node.file(), pool.node.pointer() + "/anchor")
          .fail(
              "is measured on the {} \"{}\", but the experiment has \"{}\"; "
              "calibrate on runs of that one",
              what, measured, own);
  };
  refuse_other("model", anchor.model, pool.model.name);
  refuse_other("GPU", anchor.gpu, pool.cluster.gpu.name);
  const std::string layout = layout_of(e);
  if (anchor.holds_at(layout)) return;
  pool.remarks.push_back(
      fmt::format("\"anchor\": measured at {}, not at {}: its errors are those of another layout",
                  fmt::join(anchor.layouts, "; "), layout));
}

// Engines find prefixes again unless they are told not to: vLLM (enable_prefix_caching), SGLang
// (its radix cache) and TensorRT-LLM (enable_block_reuse).
void remark_on_prefixes(const PoolSpec& prompts, Experiment& e) {
  if (prompts.prefix_caching || prompts.engine.empty() || prompts.model.keeps_state()) return;
  const bool said = prompts.node.json().contains(Json::json_pointer("/kv_cache/prefix_caching"));
  if (said || !prompts.workload.shares_prefixes()) return;
  e.pools.front().remarks.push_back(
      fmt::format("\"kv_cache\": prompts share prefixes, which are not cached; {} caches them by "
                  "default: give \"prefix_caching\": true",
                  prompts.engine));
}

}  // namespace

Experiment deploy(const ExperimentSpec& spec, const Traces& traces) {
  Experiment e;
  for (const PoolSpec& pool : spec.pools) e.pools.push_back(deploy(pool, traces));
  if (spec.kv_link)
    e.kv_link = KvLink{*spec.kv_link, Fabric(between(spec.pools.front(), spec.pools.back()))};
  e.roles = spec.roles;
  check_anchor(e);
  remark_on_prefixes(spec.pools.front(), e);
  e.config = resolved_config(spec);
  if (!traces.remark.empty()) e.pools.front().remarks.push_back(traces.remark);
  return e;
}

Experiment load_experiment(const ConfigNode& node, TraceLibrary& library,
                           const Policies& policies) {
  const ExperimentSpec spec = read_spec(node, policies);
  return deploy(spec, library.open(spec));
}

std::vector<const Deployment*> groups_of(const Experiment& e) {
  std::vector<const Deployment*> groups;
  for (const Deployment& pool : e.pools) {
    groups.insert(groups.end(), at(pool.most_instances()), &pool);
  }
  return groups;
}

int gpus_of(const Experiment& e) {
  int gpus = 0;
  for (const Deployment& pool : e.pools) gpus += gpus_of(pool);
  return gpus;
}

std::string layout_of(const Experiment& e) {
  const auto of = [](const Deployment& pool) { return layout_text(pool.parallel, pool.instances); };
  std::string text = e.apart()
                         ? fmt::format("prefill {}, decode {}", of(e.pools.front()), of(e.decode()))
                         : of(e.decode());
  const int per_node = e.decode().cluster.gpus_per_node;
  const int nodes = (gpus_of(e) + per_node - 1) / per_node;
  return nodes > 1 ? fmt::format("{} on {} nodes", text, nodes) : text;
}

std::vector<std::string> remarks_of(const Experiment& e) {
  std::vector<std::string> remarks;
  for (const Deployment& pool : e.pools) {
    for (const std::string& remark : pool.remarks) {
      if (std::ranges::find(remarks, remark) == remarks.end()) remarks.push_back(remark);
    }
  }
  return remarks;
}

}  // namespace moesim
