// SPDX-License-Identifier: Apache-2.0
#include <numeric>

#include "sim/dispatch/dispatch.hpp"

namespace moesim {

namespace {

// Every GPU writes its rows into a buffer for all tokens that is zero elsewhere. An all-reduce of B
// * d * b bytes gives every GPU all rows: ranks of unequal lengths need no padding. Partial results
// come back by another all-reduce, of which a rank keeps its own rows. Twice the bytes of an
// all-gather and a reduce-scatter. SGLang's attention DP does so in steps with prompts
// (DpPaddingMode.SUM_LEN, python/sglang/srt/layers/dp_attention.py). [SGLang]
class AllReduce final : public Dispatch {
 public:
  explicit AllReduce(TokenBytes bytes) : bytes_(bytes) {}

  Exchange exchange(const DispatchProblem& problem) const override {
    const double tokens = std::accumulate(problem.tokens.begin(), problem.tokens.end(), 0.0);
    const auto gpus = static_cast<int>(problem.tokens.size());
    const auto sum = [&](double token_bytes) {
      return problem.fabric.all_reduce(gpus, Bytes(tokens * token_bytes));
    };
    Exchange exchange{"all_reduce", sum(bytes_.out(problem.hidden)),
                      sum(bytes_.back(problem.hidden)), problem.top_k_of_all_tokens};
    exchange.gathered = true;
    return exchange;
  }
  bool gives_global_counts() const override { return true; }
  bool gathers_tokens() const override { return true; }

 private:
  TokenBytes bytes_;
};

}  // namespace

std::unique_ptr<Dispatch> make_all_reduce(ConfigReader& options) {
  return std::make_unique<AllReduce>(read_token_bytes(options));
}

}  // namespace moesim
