// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "hardware/config.hpp"

namespace moesim {

/// A benchmark's figures beside those of a report.
struct BenchComparison {
  struct Row {
    std::string metric;
    double measured = 0, predicted = 0;
    double error_pct() const { return (predicted / measured - 1) * 100; }
  };
  std::vector<Row> rows;
  std::vector<std::string> remarks;  ///< where the two did not do the same work
};

/// Sets what `vllm bench serve --save-result` wrote beside a report's metrics, which have the same
/// names: rates, and mean, median and percentiles of TTFT, TPOT, ITL and E2EL, in ms. Throws
/// ConfigError if the file has no such metric. `arrivals`: the config's, beside the benchmark's
/// load.
BenchComparison compare_with_bench(const ConfigNode& bench, const OrderedJson& metrics,
                                   const Json& arrivals);

}  // namespace moesim
