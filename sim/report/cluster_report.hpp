// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "sim/report/report.hpp"

namespace moesim {

// What a report of several models on one cluster holds, as documented in the tables of
// cluster_report.cpp.

/// Figures of a deployment without the others.
struct AloneStats {
  std::optional<double> median_ttft_ms, median_tpot_ms;
  double output_throughput = 0, request_goodput = 0;
};

struct DeploymentStats {
  std::string model;
  int first_gpu = 0, gpus = 0;
  double spine_bytes_per_s = 0;         ///< that it sends between NVLink domains
  double others_spine_bytes_per_s = 0;  ///< that it was run beside
  AloneStats alone;
  Report report;
};

/// The switches above the NVLink domains.
struct SpineStats {
  double bandwidth = 0, background = 0;  ///< bytes/s
  double load = 0;                       ///< of what it carries
  int runs = 0;                          ///< of all deployments, the first ones alone included
  double residual = 0;                   ///< of what it carries: how far loads are off
};

struct ClusterStats {
  std::string cluster;
  int gpus = 0, gpus_used = 0;
  double request_throughput = 0, request_goodput = 0;
  double output_throughput = 0, total_token_throughput = 0;
  double tokens_per_s_per_gpu = 0;
  double spine_bytes_per_s = 0;
  std::optional<SpineStats> spine;  ///< where the cluster says what it carries
};

struct ClusterContext {
  std::string moesim;  ///< version
  Json config;         ///< as it was written
};

/// The outcome of several models on one cluster.
struct ClusterReport {
  ClusterContext context;
  ClusterStats cluster;
  Named<DeploymentStats> deployments;  ///< in the order of the config
  SimulatorWork work;                  ///< of all runs

  OrderedJson document() const;
};

/// Every key of the file, in its order; under /deployments/NAME/report stands a Report.
const std::vector<ReportKey>& cluster_report_keys();

/// Mean rate of a run between NVLink domains. Counts exchanges and all-reduces of steps, and KV
/// caches from pool to pool over the network, as many as there are requests that finish. Experts
/// that move and hops between pipeline stages are left out.
BytesPerSecond mean_network_rate(const Report&);

/// Adds the deployments up.
ClusterStats totals_of(const Named<DeploymentStats>&);

}  // namespace moesim
