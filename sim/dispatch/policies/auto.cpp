// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>

#include "sim/dispatch/dispatch.hpp"

namespace moesim {

namespace {

// argmin over the other policies of dispatch + combine + what top-k of gathered tokens costs, by
// the same model that then charges it. Those that do not give a router the counts it needs are left
// out. Ties: the first in the table. An oracle: an engine would decide by thresholds on the batch.
class Auto final : public Dispatch {
 public:
  explicit Auto(std::array<std::unique_ptr<Dispatch>, 5> candidates)
      : candidates_(std::move(candidates)) {}

  Exchange exchange(const DispatchProblem& problem) const override {
    Exchange best;
    for (const auto& candidate : candidates_) {
      if (problem.needs_global_counts && !candidate->gives_global_counts()) continue;
      const Exchange exchange = candidate->exchange(problem);
      if (best.name.empty() || exchange.total() < best.total()) best = exchange;
    }
    return best;
  }
  bool gives_global_counts() const override { return true; }
  bool gathers_tokens() const override { return true; }
  bool needs_copies() const override { return true; }
  bool needs_selections() const override { return true; }
  double buffer_rows(double tokens, double ranks, double experts) const override {
    double most = 0;
    for (const auto& candidate : candidates_) {
      most = std::max(most, candidate->buffer_rows(tokens, ranks, experts));
    }
    return most;
  }

 private:
  std::array<std::unique_ptr<Dispatch>, 5> candidates_;
};

}  // namespace

std::unique_ptr<Dispatch> make_auto(ConfigReader& options) {
  const TokenBytes bytes = read_token_bytes(options);
  return std::make_unique<Auto>(
      std::array{all_to_all(bytes), low_latency(bytes), all_gather(bytes, Combine::all_to_all),
                 all_gather(bytes, Combine::reduce_scatter), ids_all_gather(bytes)});
}

}  // namespace moesim
