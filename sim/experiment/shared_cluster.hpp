// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sim/experiment/experiment.hpp"

namespace moesim {

/// A model that shares a cluster with others.
struct Tenant {
  std::string name;
  ConfigNode experiment;  ///< its own, as if it had the cluster for itself
  int first_gpu = 0;      ///< of the cluster
  int gpus = 0;           ///< of all its groups
};

/// Several models on one cluster, each on GPUs of its own: an experiment with "deployments", a
/// list. A deployment is the whole experiment with its own keys in the place of the common ones, as
/// a pool is. Deployments take GPUs in the order of the list. A deployment that the end of an
/// NVLink domain would cut begins at the next domain. So its groups lie in domains as they would
/// alone.
struct SharedCluster {
  ConfigNode node;  ///< as it was written
  std::string name;
  int gpus = 0;                           ///< of the cluster
  std::optional<BytesPerSecond> spine{};  ///< of its network; none: as much as NICs send
  BytesPerSecond background{};            ///< of the spine, that no deployment of the list takes
  std::vector<Tenant> tenants{};
};

/// True if a config has "deployments".
bool is_shared(const ConfigNode&);
/// Reads and checks all deployments, traces apart. Throws ConfigError.
SharedCluster read_shared_cluster(const ConfigNode&, const Policies& = {});
/// The experiment of one deployment as if it had the cluster for itself. Throws ConfigError where
/// the config has no deployment of that name.
ConfigNode tenant_experiment(const ConfigNode&, std::string_view name);
/// The same beside others that take so much of the spine, rounded to whole bytes per second.
ConfigNode beside_others(const SharedCluster&, const Tenant&, BytesPerSecond of_spine);

/// The keys of a deployment: its name, and those of an experiment that are not the cluster's.
std::span<const Key> deployment_keys();

}  // namespace moesim
