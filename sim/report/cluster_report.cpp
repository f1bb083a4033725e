// SPDX-License-Identifier: Apache-2.0
#include "sim/report/cluster_report.hpp"

namespace moesim {

using enum Better;

Fields<AloneStats> rows_of(const AloneStats*) {
  using S = AloneStats;
  return {{"median_ttft_ms", &S::median_ttft_ms, "median time to first token", "ms", less},
          {"median_tpot_ms", &S::median_tpot_ms, "median time per output token", "ms", less},
          {"output_throughput", &S::output_throughput, "tokens emitted", "tokens/s", more},
          {"request_goodput", &S::request_goodput,
           "requests that finish within every objective of the SLO", "1/s", more}};
}

Fields<DeploymentStats> rows_of(const DeploymentStats*) {
  using S = DeploymentStats;
  return {{"model", &S::model, "name of the model"},
          {"first_gpu", &S::first_gpu, "the deployment's first GPU in the cluster"},
          {"gpus", &S::gpus, "GPUs of the deployment"},
          {"spine_bytes_per_s", &S::spine_bytes_per_s,
           "mean traffic between NVLink domains: exchanges, all-reduces, KV caches", "B/s"},
          {"others_spine_bytes_per_s", &S::others_spine_bytes_per_s,
           "traffic of other deployments that the run was charged with", "B/s"},
          {"alone", &S::alone, "the same deployment without the others"},
          {"report", [](const S& stats) { return stats.report.document(); },
           "the deployment's own report, with the keys of a report"}};
}

Fields<SpineStats> rows_of(const SpineStats*) {
  using S = SpineStats;
  return {{"bandwidth", &S::bandwidth, "what the spine carries in one direction", "B/s"},
          {"background", &S::background, "what background/spine takes of the bandwidth", "B/s"},
          {"load", &S::load, "mean traffic of all deployments and the background, of the bandwidth",
           "share", less},
          {"runs", &S::runs, "runs until traffic and slow-downs agreed"},
          {"residual", &S::residual,
           "largest difference between the traffic charged and the traffic of the last runs",
           "share", less}};
}

Fields<ClusterStats> rows_of(const ClusterStats*) {
  using S = ClusterStats;
  return {{"cluster", &S::cluster, "name of the cluster"},
          {"gpus", &S::gpus, "GPUs of the cluster"},
          {"gpus_used", &S::gpus_used, "GPUs of all deployments"},
          {"request_throughput", &S::request_throughput, "sum over deployments", "1/s", more},
          {"request_goodput", &S::request_goodput, "sum over deployments", "1/s", more},
          {"output_throughput", &S::output_throughput, "sum over deployments", "tokens/s", more},
          {"total_token_throughput", &S::total_token_throughput, "sum over deployments", "tokens/s",
           more},
          {"tokens_per_s_per_gpu", &S::tokens_per_s_per_gpu,
           "output_throughput / GPUs of the cluster", "tokens/s", more},
          {"spine_bytes_per_s", &S::spine_bytes_per_s, "sum over deployments", "B/s"},
          {if_any, "spine", &S::spine, "where the cluster gives network/spine_bandwidth"}};
}

Fields<ClusterContext> rows_of(const ClusterContext*) {
  using S = ClusterContext;
  return {{"moesim", &S::moesim, "version of the simulator"},
          {"config", &S::config, "the experiment as written: runs again"}};
}

Fields<ClusterReport> rows_of(const ClusterReport*) {
  using S = ClusterReport;
  return {{"context", &S::context, "what was run"},
          {"cluster", &S::cluster, "all deployments together"},
          {"deployments/NAME", &S::deployments, "a model on its GPUs"}};
}

OrderedJson ClusterReport::document() const {
  OrderedJson json = fields::written(*this);
  check(all_numbers_finite(json), "a report holds a number that is not finite");
  return json;
}

const std::vector<ReportKey>& cluster_report_keys() {
  static const std::vector<ReportKey> keys = [] {
    std::vector<ReportKey> all;
    fields::document<ClusterReport>(all, {}, "");
    return all;
  }();
  return keys;
}

namespace {

double network_bytes(const PoolStats& pool) {
  const CommunicationStats& sent = pool.communication;
  return sent.dispatch.all.network.value() + sent.combine.all.network.value() +
         sent.tp_all_reduce.network.value();
}

}  // namespace

BytesPerSecond mean_network_rate(const Report& report) {
  const double seconds = report.metrics.duration_s;
  double of_steps = network_bytes(report.pool), of_kv = 0;
  if (report.pools) {
    of_steps += network_bytes(report.pools->prefill.pool);
    const KvTransferStats& kv = report.pools->kv_transfer;
    if (kv.level == "network" && kv.transfers > 0)
      of_kv = kv.bytes / double(kv.transfers) * report.metrics.request_throughput;
  }
  return BytesPerSecond((seconds > 0 ? of_steps / seconds : 0) + of_kv);
}

ClusterStats totals_of(const Named<DeploymentStats>& deployments) {
  ClusterStats sum;
  for (const auto& [name, one] : deployments) {
    const Metrics& metrics = one.report.metrics;
    sum.gpus_used += one.gpus;
    sum.request_throughput += metrics.request_throughput;
    sum.request_goodput += metrics.request_goodput;
    sum.output_throughput += metrics.output_throughput;
    sum.total_token_throughput += metrics.total_token_throughput;
    sum.spine_bytes_per_s += one.spine_bytes_per_s;
  }
  return sum;
}

}  // namespace moesim
