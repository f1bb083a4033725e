// SPDX-License-Identifier: Apache-2.0
#include "sim/dispatch/dispatch.hpp"

namespace moesim {

namespace {

// bytes dispatch = sum over tokens of |D(t) \ {source}| * (d*b + scales). D(t) = GPUs that host the
// chosen slots. The expert's GPU sums its contributions and returns one bf16 vector per (token,
// GPU). [DeepEP]
class AllToAll final : public Dispatch {
 public:
  explicit AllToAll(TokenBytes bytes) : bytes_(bytes) {}

  Exchange exchange(const DispatchProblem& problem) const override {
    const Occupancy holds = normal_kernels(problem);
    return {"all_to_all", send_out(problem, bytes_), send_back(problem, bytes_), {}, holds, holds};
  }
  bool gives_global_counts() const override { return false; }
  bool needs_copies() const override { return true; }

 private:
  TokenBytes bytes_;
};

}  // namespace

std::unique_ptr<Dispatch> all_to_all(TokenBytes bytes) { return std::make_unique<AllToAll>(bytes); }

std::unique_ptr<Dispatch> make_all_to_all(ConfigReader& options) {
  return all_to_all(read_token_bytes(options));
}

}  // namespace moesim
