// SPDX-License-Identifier: Apache-2.0
#include "sim/experiment/experiment.hpp"

#include <algorithm>

#include "sim/experiment/pools.hpp"

namespace moesim {

namespace {

// What KV caches cross from pool to pool. Their way has as many links as a rank of decode, from one
// domain to the next, whatever GPUs send: twice the GPUs always have room for it.
ClusterSpec between(const PoolSpec& prefill, const PoolSpec& decode) {
  ClusterSpec cluster =
      one_cluster(prefill, decode) ? decode.cluster : joined(prefill.cluster, decode.cluster);
  cluster.nodes *= 2;
  return cluster;
}

}  // namespace

Experiment deploy(const ExperimentSpec& spec, const Traces& traces) {
  Experiment e;
  for (const PoolSpec& pool : spec.pools) e.pools.push_back(deploy(pool, traces));
  if (spec.kv_link)
    e.kv_link = KvLink{*spec.kv_link, Fabric(between(spec.pools.front(), spec.pools.back()))};
  e.roles = spec.roles;
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
    groups.insert(groups.end(), static_cast<std::size_t>(pool.most_instances()), &pool);
  }
  return groups;
}

int gpus_of(const Experiment& e) {
  int gpus = 0;
  for (const Deployment& pool : e.pools) gpus += gpus_of(pool);
  return gpus;
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
