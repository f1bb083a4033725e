// SPDX-License-Identifier: Apache-2.0
#include <vector>

#include "sim/dispatch/dispatch.hpp"

namespace moesim {

namespace {

// Every GPU receives every token's hidden state, whatever its experts: (G-1) * B * d * b bytes per
// GPU, independent of k and placement. METRO gathers before top-k, so that each GPU sees the whole
// batch's choices, and combines by all-to-all; vLLM's allgather_reducescatter backend combines by
// reduce-scatter. policies.md 5
class AllGather final : public Dispatch {
 public:
  AllGather(TokenBytes bytes, bool reduce_scatter)
      : bytes_(bytes), reduce_scatter_(reduce_scatter) {}

  Exchange exchange(const DispatchProblem& problem) const override {
    Exchange exchange;
    exchange.dispatch =
        problem.fabric.all_gather(contributions(problem, bytes_.out(problem.hidden)));
    exchange.combine =
        reduce_scatter_
            ? problem.fabric.reduce_scatter(contributions(problem, bytes_.back(problem.hidden)))
            : all_to_all_combine(problem, bytes_);
    return exchange;
  }
  bool gives_global_counts() const override { return true; }
  bool gathers_before_gate() const override { return true; }
  bool needs_copies() const override { return !reduce_scatter_; }

 private:
  static std::vector<double> contributions(const DispatchProblem& problem, double token_bytes) {
    std::vector<double> bytes(problem.tokens.begin(), problem.tokens.end());
    for (double& b : bytes) b *= token_bytes;
    return bytes;
  }

  TokenBytes bytes_;
  bool reduce_scatter_;
};

}  // namespace

std::unique_ptr<Dispatch> make_all_gather(ConfigReader& options) {
  const TokenBytes bytes = read_token_bytes(options);
  constexpr std::array<std::string_view, 2> combines{"all_to_all", "reduce_scatter"};
  return std::make_unique<AllGather>(bytes, options.choice_or("combine", combines, 0) == 1);
}

}  // namespace moesim
