// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "sim/experiment/deployment.hpp"

namespace moesim {

/// The links between two pools.
struct KvLink : KvLinkSpec {
  Fabric fabric;
};

/// Everything a run needs: what was said (ExperimentSpec), deployed.
struct Experiment {
  std::vector<Deployment> pools;         ///< one; or that which prefills and that which decodes
  std::optional<KvLink> kv_link{};       ///< between two pools
  std::optional<PoolRolesSpec> roles{};  ///< none: each group stays in its pool
  Json config{};                         ///< resolved: every key, defaults included

  /// True if prefill and decode have pools of their own.
  bool apart() const { return pools.size() > 1; }
  /// The pool that decodes: the only one, or the last.
  const Deployment& decode() const { return pools.back(); }
  Deployment& decode() { return pools.back(); }
};

/// Deploys every pool. Throws ConfigError.
Experiment deploy(const ExperimentSpec&, const Traces&);
/// Reads an experiment and everything it names, and deploys it. Throws ConfigError before anything
/// runs.
Experiment load_experiment(const ConfigNode&, TraceLibrary&, const Policies& = {});

/// Deployments of EP groups, by the group's number: all of the prefill pool come first. A group
/// that may change pools has a number in both.
std::vector<const Deployment*> groups_of(const Experiment&);
/// GPUs of all groups.
int gpus_of(const Experiment&);
/// How its GPUs are used: "2 x dp4 ep4", "prefill tp2, decode dp4 ep4", "tp16 on 2 nodes".
std::string layout_of(const Experiment&);
/// The remarks on all groups, each once.
std::vector<std::string> remarks_of(const Experiment&);

}  // namespace moesim
