// SPDX-License-Identifier: Apache-2.0
#include "sim/dispatch/dispatch.hpp"

namespace moesim {

namespace {

// DeepGEMM's MegaMoE: one kernel pulls the tokens of an expert's tile in fp8 with a scale of each
// 32 values and multiplies them. It writes results back in bf16, over NVLink. A message per (token,
// expert), as with low latency. The kernel's time holds both ways (mega_moe_kernel); only the bytes
// are left here.
class MegaMoe final : public Dispatch {
 public:
  Exchange exchange(const DispatchProblem& problem) const override {
    const TokenBytes fp8{Precision::fp8};
    Exchange exchange{"mega_moe",
                      send_out(problem, fp8, TokenKernels::low_latency),
                      send_back(problem, fp8, TokenKernels::low_latency),
                      {}};
    exchange.dispatch.time = exchange.combine.time = {};
    exchange.experts = ExpertKernel::mega_moe;
    return exchange;
  }
  bool gives_global_counts() const override { return false; }
  bool needs_selections() const override { return true; }
  bool within_nvlink() const override { return true; }
  bool fuses_experts() const override { return true; }
};

}  // namespace

std::unique_ptr<Dispatch> make_mega_moe(ConfigReader&) { return std::make_unique<MegaMoe>(); }

}  // namespace moesim
