// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "sim/experiment/deployment.hpp"
#include "tools/bench/measured_points.hpp"

namespace moesim {

/// True if trtllm-bench measured the point: all requests wait at the start, no answer is streamed,
/// and the rate is that of the whole run.
bool is_trtllm_bench(const MeasuredPoint&);

/// Requests of such a run, by their lengths (TensorRT-LLM, perf-overview.md, "Preparing a
/// Dataset").
int requests_of_bench(const MeasuredPoint&);

/// The most sequences of a rank, the most tokens in a step, and decode batches that have a graph.
struct BenchLimits {
  int max_batch_size = 0;
  int max_num_tokens = 0;
  std::vector<int> graph_sizes;
};
/// Limits that trtllm-bench sets if its user sets none: sequences of `d` whose KV cache all GPUs of
/// a replica hold together, rounded up. The rule is that of
/// tensorrt_llm/bench/build/tuning.py@04cba88 and bench/benchmark/utils/general.py@0171265. By the
/// rule experts in MXFP4 are numbers of two bytes, and latent attention keeps every head. No prompt
/// is cut. Sequences are never more than a rank's own KV cache holds to their end, as TensorRT-LLM
/// admits no others (GUARANTEED_NO_EVICT).
BenchLimits trtllm_bench_limits(const Deployment& d, const MeasuredPoint&);

}  // namespace moesim
