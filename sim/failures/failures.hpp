// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "models/step_ops.hpp"
#include "sim/placement/placement.hpp"

namespace moesim {

/// GPUs that stop at one moment. A DP rank stops with any of its GPUs, and an EP rank with any GPU
/// that it shares with such a rank.
struct Outage {
  std::string what;  ///< "GPU 3", "node 1"
  int instance = 0;  ///< the EP group; GPUs and ranks count from its first
  std::vector<int> gpus, dp_ranks, ep_ranks;
  Time at{};
  std::optional<Duration> recovers_after{};
};

/// Plan of outages of GPUs: see the README of this folder.
struct FailurePlan {
  std::vector<Outage> outages;
  Seconds detection{};                     ///< between a GPU's end and anybody's notice
  BytesPerSecond reload{};                 ///< per GPU, for weights of which no copy is left
  std::shared_ptr<const Placer> placer{};  ///< places anew over live ranks; null: survivors serve
};

/// "failures": [outages], or {"events": [{"gpu": 3 | "node": 1, "at": "20 s", "recovers_after":
/// "60 s"}], "detection": "0 s", "reload_bandwidth": "25 GB/s", "placement": placer}. Of several
/// EP groups "instance" names one (0), and all of it where neither GPU nor node is named. Throws
/// ConfigError if at any time no attention rank would be left, or none for the experts of a group
/// that has some.
FailurePlan read_failures(const ConfigNode&, const Registry<Placer>&, const ClusterSpec&,
                          const ParallelPlan&, const PlacementProblem&, int instances = 1);
std::span<const Key> outage_keys();
std::span<const Key> failures_keys();

}  // namespace moesim
