// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace moesim {

/// Workers of one kind in a deployment with prefill and decode apart.
struct WorkerPlan {
  int workers = 0;  ///< 0: not such a deployment
  int batch = 0;    ///< sequences of an attention rank
  int tp = 0, dp = 0, ep = 0;
};

/// A published measurement: a row of a points file, or one of a row's figures. Counts that the row
/// leaves empty are 0.
struct MeasuredPoint {
  std::string place;  ///< file and line
  std::string id;
  std::string category;  ///< moe_kernel, gemm, collective, e2e, ...
  std::string gpu;       ///< as the source spells it
  std::string interconnect, model, operation, precision, distribution, metric, unit, source, notes;
  int gpus = 0, nodes = 0;
  int tp = 0, ep = 0, dp = 0;
  double tokens = 0;       ///< moe: of the whole EP group; gemm: M; all-to-all: over all ranks
  double batch = 0;        ///< sequences or tokens per rank
  double concurrency = 0;  ///< e2e, closed loop
  double prompt = 0, output = 0, context = 0;
  double bytes = 0;           ///< collective: the message as nccl-tests counts it
  double active_experts = 0;  ///< on the measured rank, where it is known
  double value = 0;
  bool fitted = false;  ///< constants are fitted on it: its column "use" says "calibrate"
  WorkerPlan prefill{}, decode{};  ///< disaggregated
};

/// Reads a CSV file (RFC 4180) with one header line that names at least id, category, gpu,
/// metric and value. Deployments with prefill and decode apart have id, gpu, engine,
/// decode_num_workers, ttft_ms and tpot_ms, and their rows are two points each. Throws
/// ConfigError "file:line: ...".
std::vector<MeasuredPoint> read_points(const std::filesystem::path& file);

/// True if a text that people wrote holds this part of it.
inline bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

}  // namespace moesim
