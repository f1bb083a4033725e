// SPDX-License-Identifier: Apache-2.0
#include <vector>

#include "sim/dispatch/dispatch.hpp"

namespace moesim {

namespace {

// Every GPU receives every token's hidden state, whatever its experts: (G-1) * B * d * b bytes per
// GPU, independent of k and placement. METRO gathers before top-k, so that each GPU sees the whole
// batch's choices, and combines by all-to-all; vLLM's allgather_reducescatter backend combines by
// reduce-scatter. [METRO, vLLM]
class AllGather final : public Dispatch {
 public:
  AllGather(TokenBytes bytes, Combine combine) : bytes_(bytes), combine_(combine) {}

  Exchange exchange(const DispatchProblem& problem) const override {
    Exchange exchange{
        "all_gather", problem.fabric.all_gather(contributions(problem, bytes_.out(problem.hidden))),
        combine_ == Combine::reduce_scatter
            ? problem.fabric.reduce_scatter(contributions(problem, bytes_.back(problem.hidden)))
            : send_back(problem, bytes_),
        problem.top_k_of_all_tokens};
    exchange.gathered = true;
    return exchange;
  }
  bool gives_global_counts() const override { return true; }
  bool gathers_tokens() const override { return true; }
  bool needs_copies() const override { return combine_ == Combine::all_to_all; }

 private:
  static std::vector<double> contributions(const DispatchProblem& problem, double token_bytes) {
    std::vector<double> bytes(problem.tokens.begin(), problem.tokens.end());
    for (double& b : bytes) b *= token_bytes;
    return bytes;
  }

  TokenBytes bytes_;
  Combine combine_;
};

}  // namespace

std::unique_ptr<Dispatch> all_gather(TokenBytes bytes, Combine combine) {
  return std::make_unique<AllGather>(bytes, combine);
}

std::span<const Key> all_gather_keys() {
  static constexpr std::array<std::string_view, 2> combines{"all_to_all", "reduce_scatter"};
  static constexpr Key keys[] = {
      token_precision_key,
      {"combine", form::choice(combines), "all_to_all", "how results come back"}};
  return keys;
}

std::unique_ptr<Dispatch> make_all_gather(ConfigReader& options) {
  const TokenBytes bytes = read_token_bytes(options);
  return all_gather(bytes, static_cast<Combine>(options.choice("combine")));
}

}  // namespace moesim
