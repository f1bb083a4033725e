// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "sim/experiment/shared_cluster.hpp"
#include "sim/report/cluster_report.hpp"
#include "sim/serving/simulator.hpp"

namespace moesim {

/// Simulates every deployment of a cluster, each in an event loop of its own. What joins them is
/// the spine of the network, if the cluster says what its spine carries. Deployment i runs with a
/// spine of
///
///   C - x_i,   x_i = min(sum of r_j over j != i, C (1 - n_i / N))
///
/// C: the spine's bandwidth less the background. r_j: mean bytes/s that j sends between NVLink
/// domains. n_i of N GPUs are i's: its fair part, which it always has. All run alone first. Then,
/// in the order of the list, each runs again with the newest r_j, until no x_i changes by more than
/// 0.5 % of C, or 20 times. Without a spine, or with one deployment, each runs once.
///
/// The last report of each is that of beside_others() by itself, byte for byte. `say_of` sees every
/// experiment once. Same config, same report, on any number of threads. Throws ConfigError.
ClusterReport run_shared(const SharedCluster&, TraceLibrary&, const Policies& = {},
                         const Progress& progress = {},
                         const std::function<void(const Experiment&)>& say_of = {});

}  // namespace moesim
