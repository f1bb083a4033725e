// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sim/experiment/experiment.hpp"
#include "sim/experiment/trace_library.hpp"
#include "sim/report/observer.hpp"
#include "tools/bench/anchors.hpp"
#include "tools/bench/bench_result.hpp"

namespace moesim {

/// A benchmark's client beside a simulated run. It measures as `vllm bench serve` does: all
/// requests that finished, from the first one sent to the last token, ramps included.
class BenchClient : public RunObserver {
 public:
  /// Times to first tokens are multiplied (Deployment::anchored_ttft).
  explicit BenchClient(double anchored_ttft = 1) : anchored_ttft_(anchored_ttft) {}
  void step_ended(const StepRecord&, Time now) override;
  void request_left(std::uint32_t id, const RequestRecord&) override;

  /// A figure by its name: {mean, median, std, min, max, pNN}_{ttft, tpot, itl, e2el}_ms, or
  /// {request, input, output, total_token}_throughput. Nothing where the run has none.
  std::optional<double> figure(std::string_view name) const;
  /// Requests in flight on average, by Little's law.
  double in_flight() const;

 private:
  double seconds() const;

  double anchored_ttft_;
  std::vector<double> ttft_, tpot_, e2el_;  // ms, of requests that finished
  std::vector<double> itl_;
  double prompts_ = 0, outputs_ = 0;  // tokens
  Time first_sent_ = Time::max();
  double ended_s_ = 0;
};

/// A benchmark's figures beside those of a simulated run.
struct BenchComparison {
  struct Row {
    std::string metric;
    double measured = 0, predicted = 0;
    double error_pct() const { return (predicted / measured - 1) * 100; }
  };
  std::string where;
  std::vector<Row> rows;
  std::vector<std::string> remarks;  ///< where the two did not do the same work
};
/// Simulates the experiment under the load of the run. Throws ConfigError.
BenchComparison compare_with_bench(const BenchRun&, const ConfigNode& experiment, TraceLibrary&);

/// The anchor of a deployment that corrects nothing yet.
Anchor unfitted_anchor(const Experiment&);

/// Anchor of measured runs of one deployment. It has the factor on step times with which the
/// simulation of each gives the TPOT that was measured, and what TTFT then lacks. Errors are of
/// each run, simulated with the corrections of the others. Throws ConfigError.
Anchor anchor_of_bench(const std::vector<BenchRun>&, const ConfigNode& experiment, TraceLibrary&);

}  // namespace moesim
