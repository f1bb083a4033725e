// SPDX-License-Identifier: Apache-2.0
#include <vector>

#include "sim/dispatch/dispatch.hpp"

namespace moesim {

namespace {

// Only the top-k ids travel to every rank (2 bytes each). This suffices for a policy that needs the
// whole batch's counts. Activations then go by all-to-all. Costs one more small collective. Our own
// cheaper form of METRO's all-gather: [METRO] sends activations.
class IdsAllGather final : public Dispatch {
 public:
  explicit IdsAllGather(TokenBytes bytes) : bytes_(bytes) {}

  Exchange exchange(const DispatchProblem& problem) const override {
    std::vector<double> ids(problem.tokens.begin(), problem.tokens.end());
    for (double& bytes : ids) bytes *= problem.experts_per_token * 2;
    const CollectiveCost gather = problem.fabric.all_gather(ids);
    CollectiveCost out = send_out(problem, bytes_);
    out.time += gather.time;
    out.nvlink += gather.nvlink;
    out.network += gather.network;
    const Occupancy holds = normal_kernels(problem);
    return {"ids_all_gather", out, send_back(problem, bytes_), {}, holds, holds};
  }
  bool gives_global_counts() const override { return true; }
  bool needs_copies() const override { return true; }

 private:
  TokenBytes bytes_;
};

}  // namespace

std::unique_ptr<Dispatch> ids_all_gather(TokenBytes bytes) {
  return std::make_unique<IdsAllGather>(bytes);
}

std::unique_ptr<Dispatch> make_ids_all_gather(ConfigReader& options) {
  return ids_all_gather(read_token_bytes(options));
}

}  // namespace moesim
