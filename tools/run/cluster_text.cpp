// SPDX-License-Identifier: Apache-2.0
#include "tools/run/cluster_text.hpp"

#include <fmt/format.h>

#include "tools/cli/output.hpp"
#include "tools/cli/table.hpp"
#include "tools/run/report_text.hpp"

namespace moesim {

namespace {

std::string gb_per_s(double bytes) { return fmt::format("{:.2f}", bytes / 1e9); }

std::string served_table(const ClusterReport& report) {
  Table table({"deployment", "GPUs", "requests/s", "output/s", "ttft ms, median", "p99",
               "tpot ms, median", "p99", "SLO met", "goodput/s", "state"});
  for (const auto& [name, one] : report.deployments) {
    const Metrics& m = one.report.metrics;
    table.add({name, fmt::format("{}-{}", one.first_gpu, one.first_gpu + one.gpus - 1),
               fixed_text(m.request_throughput, 2), fixed_text(m.output_throughput, 0),
               ms_text(m.ttft, &Summary::p50), ms_text(m.ttft, &Summary::p99),
               ms_text(m.tpot, &Summary::p50), ms_text(m.tpot, &Summary::p99),
               m.attainment ? percent(m.slo_attainment) : "-",
               m.attainment ? fixed_text(m.request_goodput, 2) : "-",
               one.report.measurement.state});
  }
  return table.text();
}

// Table of what the others cost each.
std::string spine_table(const ClusterReport& report) {
  Table table(
      {"deployment", "sends GB/s", "others send", "tpot ms alone", "now", "output/s alone", "now"});
  for (const auto& [name, one] : report.deployments) {
    const Metrics& m = one.report.metrics;
    table.add({name, gb_per_s(one.spine_bytes_per_s), gb_per_s(one.others_spine_bytes_per_s),
               fixed_text(one.alone.median_tpot_ms, 2), ms_text(m.tpot, &Summary::p50),
               fixed_text(one.alone.output_throughput, 0), fixed_text(m.output_throughput, 0)});
  }
  return table.text();
}

std::string spine_text(const ClusterReport& report) {
  const ClusterStats& cluster = report.cluster;
  if (!cluster.spine) {
    return paragraph(
        "The network is non-blocking: each deployment is served as if alone. Give "
        "network/spine_bandwidth where switches above nodes carry less than NICs send.");
  }
  const SpineStats& spine = *cluster.spine;
  return fmt::format("spine: {} of {} GB/s used ({:.0f} %), between NVLink domains\n\n{}",
                     gb_per_s(cluster.spine_bytes_per_s + spine.background),
                     gb_per_s(spine.bandwidth), 100 * spine.load, spine_table(report)) +
         paragraph(
             "{} runs; traffic charged and traffic measured differ by {:.1f} % of the spine at "
             "most",
             spine.runs, 100 * spine.residual);
}

}  // namespace

std::string cluster_text(const ClusterReport& report) {
  const ClusterStats& cluster = report.cluster;
  return fmt::format(
             "{} deployments on {} of {} GPUs of {}\n"
             "throughput   {:.0f} tokens/s with prompts, {:.0f} output; {:.1f} output per GPU of "
             "the cluster; {:.2f} requests/s\n\n",
             report.deployments.size(), cluster.gpus_used, cluster.gpus, cluster.cluster,
             cluster.total_token_throughput, cluster.output_throughput,
             cluster.tokens_per_s_per_gpu, cluster.request_throughput) +
         served_table(report) + "\n" + spine_text(report);
}

}  // namespace moesim
