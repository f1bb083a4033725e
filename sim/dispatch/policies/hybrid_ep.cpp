// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "sim/dispatch/dispatch.hpp"

namespace moesim {

namespace {

// bytes dispatch = sum over tokens of |D(t) \ {source}| * (d*b + scales), D(t) = GPUs that host the
// chosen slots, across NVLink domains once per domain, as for an all-to-all. NVIDIA's Hybrid-EP
// fetches a token by TMA, sends it on and writes it out in one kernel of few SMs. Its tests are of
// 4,096 tokens a rank (DeepEP, docs/README_Hybrid-EP.md): for training and long prompts.
class HybridEp final : public Dispatch {
 public:
  explicit HybridEp(TokenBytes bytes) : bytes_(bytes) {}

  Exchange exchange(const DispatchProblem& problem) const override {
    constexpr double sms = 32;  // of the tests on GB200 that the constants are fitted on; H100: 16
    const Occupancy holds{.sms = std::min(1.0, sms / problem.fabric.cluster().gpu.sms)};
    return {"hybrid_ep",
            send_out(problem, bytes_, TokenKernels::hybrid),
            send_back(problem, bytes_, TokenKernels::hybrid),
            {},
            holds,
            holds};
  }
  bool gives_global_counts() const override { return false; }
  bool needs_copies() const override { return true; }

 private:
  TokenBytes bytes_;
};

}  // namespace

std::unique_ptr<Dispatch> make_hybrid_ep(ConfigReader& options) {
  return std::make_unique<HybridEp>(read_token_bytes(options));
}

}  // namespace moesim
