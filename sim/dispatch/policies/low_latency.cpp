// SPDX-License-Identifier: Apache-2.0
#include "sim/dispatch/dispatch.hpp"

namespace moesim {

namespace {

// One message per (token, expert), without deduplication, straight into the expert's receive
// buffer whatever the domain; every expert's result comes back on its own and is weighted at the
// source: k (1 - 1/G) remote copies per token where experts are evenly spread, each way.
// Low-latency kernels of [DeepEP].
class LowLatency final : public Dispatch {
 public:
  explicit LowLatency(TokenBytes bytes) : bytes_(bytes) {}

  Exchange exchange(const DispatchProblem& problem) const override {
    return {"low_latency", send_out(problem, bytes_, true), send_back(problem, bytes_, true), {}};
  }
  bool gives_global_counts() const override { return false; }
  bool needs_selections() const override { return true; }
  // Every expert keeps a place for every token of every rank; a GPU has experts / ranks experts.
  double buffer_rows(double tokens, double /*ranks*/, double experts) const override {
    return tokens * experts;
  }

 private:
  TokenBytes bytes_;
};

}  // namespace

std::unique_ptr<Dispatch> low_latency(TokenBytes bytes) {
  return std::make_unique<LowLatency>(bytes);
}

std::unique_ptr<Dispatch> make_low_latency(ConfigReader& options) {
  return low_latency(read_token_bytes(options));
}

}  // namespace moesim
