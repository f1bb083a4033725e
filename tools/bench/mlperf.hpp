// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string_view>

#include "sim/experiment/spec.hpp"
#include "tools/bench/measured_points.hpp"

namespace moesim {

/// A data set of MLPerf Inference. Rows name the model and leave lengths out. Means are published;
/// the spread is an assumption: a lognormal's, as of most recorded lengths.
struct MlperfTask {
  std::string_view model;  ///< as the name of a row's model begins
  double prompt, output;   ///< mean tokens
  double prompt_sigma, output_sigma;
  int most_output;
  int samples;  ///< requests of an Offline run, at least
};

/// The data set of a point of MLPerf; none where it is no such point, or its lengths are unknown.
std::optional<MlperfTask> mlperf_task(const MeasuredPoint&);
/// True if the point is of the Server scenario: Poisson arrivals at the highest rate at which 99 %
/// of all requests meet limits of TTFT and TPOT.
bool is_mlperf_server(const MeasuredPoint&);
/// A run takes at least so long (loadgen/mlperf.conf, min_duration).
inline constexpr double mlperf_seconds = 600;

/// `requests` of the data set, which all wait as the run begins (Offline).
Json mlperf_workload(const MlperfTask&, int requests);

}  // namespace moesim
