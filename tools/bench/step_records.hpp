// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "sim/report/observer.hpp"
#include "sim/step/step_record.hpp"
#include "tools/bench/step_pricer.hpp"
#include "tools/cli/output.hpp"

namespace moesim {

/// A step that an engine recorded: the work of its DP ranks, and how long it took.
struct RecordedStep {
  std::string where;  ///< "file:line" of its first record
  std::vector<RankWork> ranks;
  double seconds = 0;
};

/// Reads forward pass metrics as Dynamo's workers write them (DYN_FPM_TRACE, schema
/// dynamo.fpm.trace.v1; JSONL, plain or by gzip). A record is one step of one rank. With several
/// ranks those of a worker belong together that ended within half a step of each other; a rank
/// without a record was idle. Sequences of a record share its tokens evenly. Heartbeats, which
/// schedule nothing, are left out. `counts_new`: the KV tokens of prompts contain the new ones, as
/// SGLang counts. Throws ConfigError, "file:line: ...".
std::vector<RecordedStep> read_step_records(const std::string& file, int ranks, bool counts_new);

/// Errors of predicted steps of one kind.
struct StepErrors {
  StepKind kind{};
  int steps = 0;
  double measured_ms = 0, predicted_ms = 0;  ///< medians
  double bias = 0;                           ///< median of predicted / measured - 1
  double error = 0, error_p90 = 0;           ///< median and 90th percentile of its size
};

/// Recorded steps beside what the deployment takes for the same work.
struct StepComparison {
  std::vector<StepErrors> kinds;  ///< those that were recorded
  /// Median of measured / predicted over steps that decode, and the error that it leaves; 0 steps
  /// without any.
  double factor = 1, left = 0;
  int decoding = 0;
};
StepComparison compare_steps(std::span<const RecordedStep>, const Deployment&);

/// Writes the steps of a run in that form, a record for each rank that has work.
class StepRecords : public RunObserver {
 public:
  explicit StepRecords(const std::filesystem::path& file) : file_(file) {}
  void step_ended(const StepRecord&, Time now) override;
  /// Only now the file stands under its name.
  void finish() { file_.commit(); }

 private:
  OutputFile file_;
  std::int64_t counter_ = 0;
};

}  // namespace moesim
