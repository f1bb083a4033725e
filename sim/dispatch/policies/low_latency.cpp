// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include "sim/dispatch/dispatch.hpp"

namespace moesim {

namespace {

// Kernels of one way of a GPU. They send what it has and later take what came, without waiting in
// between. Dispatch takes 0.06 ms for 128 tokens of 8 experts and 7,168 values [LMSYS-EP], combine
// 50 us (two, three nodes: [DeepEP], pull request 425). They copy, so they grow with what is
// copied.
constexpr double copied_values = 128 * 8 * 7168;
constexpr Seconds dispatch_kernels{60e-6}, combine_kernels{50e-6};

// Sends a message per (token, expert), without deduplication, straight into the expert's receive
// buffer whatever the domain. Every expert's result comes back on its own and is weighted at the
// source. Evenly spread experts give k (1 - 1/G) remote copies per token, each way. Low-latency
// kernels of [DeepEP].
class LowLatency final : public Dispatch {
 public:
  explicit LowLatency(TokenBytes bytes) : bytes_(bytes) {}

  Exchange exchange(const DispatchProblem& problem) const override {
    Exchange exchange{"low_latency",
                      send_out(problem, bytes_, TokenKernels::low_latency),
                      send_back(problem, bytes_, TokenKernels::low_latency),
                      {}};
    const double most = *std::max_element(problem.tokens.begin(), problem.tokens.end());
    const double copied = most * problem.experts_per_token * problem.hidden / copied_values;
    exchange.dispatch_holds.kernels = std::min(exchange.dispatch.time, dispatch_kernels * copied);
    exchange.combine_holds.kernels = std::min(exchange.combine.time, combine_kernels * copied);
    exchange.experts = ExpertKernel::masked;
    return exchange;
  }
  bool gives_global_counts() const override { return false; }
  bool needs_selections() const override { return true; }
  // A place for every token of a rank at every slot, to send and to receive, in two buffers that
  // take turns: 4 T E (2 h + h / 32) bytes, with a scale of four bytes for 128 values (DeepEP,
  // csrc/config.hpp, LowLatencyLayout). A row is of 2 h bytes, and counts twice.
  double buffer_rows(double tokens, double /*ranks*/, double slots) const override {
    return tokens * slots * (2 + 1. / 32);
  }
  // DeepEP allocates less than 2^35 bytes (vllm#57894).
  Bytes buffer_limit() const override { return Bytes(std::ldexp(1, 35)); }

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
