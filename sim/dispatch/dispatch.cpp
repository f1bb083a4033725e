// SPDX-License-Identifier: Apache-2.0
#include "sim/dispatch/dispatch.hpp"

namespace moesim {

double TokenBytes::out(double hidden) const {
  if (precision == Precision::fp8_block) return hidden + hidden / 128 * 4;
  return hidden * bytes_per_element(precision);
}

TokenBytes read_token_bytes(ConfigReader& options) {
  return {static_cast<Precision>(options.choice_or("precision", precision_names, 0))};
}

namespace {

TrafficMatrix scaled(const TrafficMatrix& copies, double bytes) {
  TrafficMatrix traffic = copies;
  traffic *= bytes;
  return traffic;
}

}  // namespace

// The way back carries the transposed matrix; per GPU that swaps sent and received, of which the
// fabric takes the larger, so the copies serve for both directions.
CollectiveCost all_to_all_combine(const DispatchProblem& problem, const TokenBytes& bytes) {
  return problem.fabric.all_to_all(scaled(*problem.copies, bytes.back(problem.hidden)));
}

Exchange all_to_all_exchange(const DispatchProblem& problem, const TokenBytes& bytes) {
  return {problem.fabric.all_to_all(scaled(*problem.copies, bytes.out(problem.hidden))),
          all_to_all_combine(problem, bytes)};
}

const Registry<Dispatch>& dispatches() {
  static const Registry<Dispatch> table(
      "dispatch",
      {{"all_to_all", "one copy per token and destination rank, across nodes one per node (DeepEP)",
        make_all_to_all},
       {"all_gather", "every rank receives all tokens (vLLM's default; METRO's, before top-k)",
        make_all_gather},
       {"ids_all_gather", "all-gather of top-k ids alone, then the all-to-all",
        make_ids_all_gather}});
  return table;
}

}  // namespace moesim
