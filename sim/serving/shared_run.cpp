// SPDX-License-Identifier: Apache-2.0
#include "sim/serving/shared_run.hpp"

#include <algorithm>
#include <cmath>

namespace moesim {

namespace {

constexpr double same_load = 0.005;  // of the spine
constexpr int most_rounds = 20;

AloneStats alone_of(const Metrics& metrics) {
  const auto median = [](const Summary& summary) {
    return summary.count == 0 ? std::nullopt : std::optional(summary.p50);
  };
  return {median(metrics.ttft), median(metrics.tpot), metrics.output_throughput,
          metrics.request_goodput};
}

// The deployments of a cluster, and what each was last run beside.
class SharedRun {
 public:
  SharedRun(const SharedCluster& shared, TraceLibrary& traces, const Policies& policies,
            const Progress& progress)
      : shared_(shared), traces_(traces), policies_(policies), progress_(progress) {}

  void run_alone(const std::function<void(const Experiment&)>& say_of) {
    for (const Tenant& tenant : shared_.tenants) {
      const Experiment experiment = load_experiment(tenant.experiment, traces_, policies_);
      if (say_of) say_of(experiment);
      DeploymentStats& stats = deployments_.emplace_back(tenant.name, DeploymentStats{}).second;
      stats.model = experiment.decode().model.name;
      stats.first_gpu = tenant.first_gpu;
      stats.gpus = tenant.gpus;
      take(stats, experiment);
      stats.alone = alone_of(stats.report.metrics);
      gpus_used_ += tenant.gpus;
    }
  }

  // Until the traffic that each was run beside is that of the others' last runs.
  void settle() {
    bool changed = true;
    for (int round = 0; changed && round < most_rounds; ++round) {
      changed = false;
      for (std::size_t i = 0; i < deployments_.size(); ++i) {
        if (off(i) <= same_load) continue;
        changed = true;
        DeploymentStats& stats = deployments_[i].second;
        const BytesPerSecond others = beside(i);
        stats.others_spine_bytes_per_s = others.value();
        take(stats, load_experiment(beside_others(shared_, shared_.tenants[i], others), traces_,
                                    policies_));
      }
    }
  }

  ClusterReport report() && {
    ClusterReport report;
    report.context = {deployments_.front().second.report.context.moesim, shared_.node.json()};
    report.cluster = totals_of(deployments_);
    ClusterStats& cluster = report.cluster;
    cluster.cluster = shared_.name;
    cluster.gpus = shared_.gpus;
    cluster.tokens_per_s_per_gpu = cluster.output_throughput / shared_.gpus;
    if (shared_.spine) {
      const double carries = shared_.spine->value(), background = shared_.background.value();
      SpineStats& spine = cluster.spine.emplace();
      spine.bandwidth = carries;
      spine.background = background;
      spine.load = (cluster.spine_bytes_per_s + background) / carries;
      spine.runs = runs_;
      for (std::size_t i = 0; i < deployments_.size(); ++i)
        spine.residual = std::max(spine.residual, off(i));
    }
    report.deployments = std::move(deployments_);
    report.work = work_;
    return report;
  }

 private:
  void take(DeploymentStats& stats, const Experiment& experiment) {
    stats.report = run(experiment, progress_);
    stats.spine_bytes_per_s = mean_network_rate(stats.report).value();
    ++runs_;
    work_.steps += stats.report.work.steps;
    work_.routed_ids += stats.report.work.routed_ids;
    work_.generated_tokens += stats.report.work.generated_tokens;
  }

  BytesPerSecond free_spine() const { return *shared_.spine - shared_.background; }

  // Rate that the others take of the spine while deployment i runs; never its fair part.
  BytesPerSecond beside(std::size_t i) const {
    double sum = 0;
    for (std::size_t j = 0; j < deployments_.size(); ++j)
      if (j != i) sum += deployments_[j].second.spine_bytes_per_s;
    const double fair = double(deployments_[i].second.gpus) / gpus_used_;
    return BytesPerSecond(std::min(sum, free_spine().value() * (1 - fair)));
  }

  // How far that is from what it was run beside, of the spine.
  double off(std::size_t i) const {
    const double charged = deployments_[i].second.others_spine_bytes_per_s;
    return std::abs(beside(i).value() - charged) / free_spine().value();
  }

  const SharedCluster& shared_;
  TraceLibrary& traces_;
  const Policies& policies_;
  const Progress& progress_;
  Named<DeploymentStats> deployments_;
  int gpus_used_ = 0, runs_ = 0;
  SimulatorWork work_;
};

}  // namespace

ClusterReport run_shared(const SharedCluster& shared, TraceLibrary& traces,
                         const Policies& policies, const Progress& progress,
                         const std::function<void(const Experiment&)>& say_of) {
  SharedRun all(shared, traces, policies, progress);
  all.run_alone(say_of);
  if (shared.spine) all.settle();
  return std::move(all).report();
}

}  // namespace moesim
