// SPDX-License-Identifier: Apache-2.0
#include "sim/dispatch/dispatch.hpp"

namespace moesim {

namespace {

// bytes dispatch = sum over tokens of |D(t) \ {source}| * (d*b + scales). D(t) = GPUs that host the
// chosen slots, as for an all-to-all. A GPU writes them into the memory of the others and reads one
// sum per (token, GPU) from there. No buffers of the network, no second copy. Kernels fill the GPU
// until they are done. TensorRT-LLM's NVLinkOneSided; tables of GB200, 2 to 64 GPUs.
class OneSided final : public Dispatch {
 public:
  explicit OneSided(TokenBytes bytes) : bytes_(bytes) {}

  Exchange exchange(const DispatchProblem& problem) const override {
    Exchange exchange{"one_sided",
                      send_out(problem, bytes_, TokenKernels::one_sided),
                      send_back(problem, bytes_, TokenKernels::one_sided),
                      {}};
    exchange.dispatch_holds.kernels = exchange.dispatch.time;
    exchange.combine_holds.kernels = exchange.combine.time;
    return exchange;
  }
  bool gives_global_counts() const override { return false; }
  bool needs_copies() const override { return true; }
  bool within_nvlink() const override { return true; }

 private:
  TokenBytes bytes_;
};

}  // namespace

std::unique_ptr<Dispatch> make_one_sided(ConfigReader& options) {
  return std::make_unique<OneSided>(read_token_bytes(options));
}

}  // namespace moesim
