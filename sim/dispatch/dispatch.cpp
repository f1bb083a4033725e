// SPDX-License-Identifier: Apache-2.0
#include "sim/dispatch/dispatch.hpp"

#include <algorithm>

namespace moesim {

// The constructor of each row and its options, from policies/.
Registry<Dispatch>::Maker make_all_to_all, make_low_latency, make_one_sided, make_mega_moe,
    make_hybrid_ep, make_all_gather, make_all_reduce, make_ids_all_gather, make_auto;
Keys all_gather_keys;

double TokenBytes::out(double hidden) const {
  if (precision == Precision::fp8_block) return hidden + hidden / 128 * 4;
  return hidden * bytes_per_element(precision);
}

std::span<const Key> token_bytes_keys() {
  static constexpr Key keys[] = {token_precision_key};
  return keys;
}

TokenBytes read_token_bytes(ConfigReader& options) {
  return {static_cast<Precision>(options.choice("precision"))};
}

namespace {

TokenExchange exchange_of(const DispatchProblem& problem, TokenKernels kernels) {
  const bool by_expert = kernels == TokenKernels::low_latency;
  const LinkTraffic& copies = by_expert ? *problem.selections : *problem.copies;
  if (problem.between_sides) return {.copies = copies, .kernels = kernels};
  return {.copies = copies,
          .kernels = kernels,
          .hidden = problem.hidden,
          .top_k = problem.experts_per_token,
          .experts = problem.experts};
}

}  // namespace

CollectiveCost send_out(const DispatchProblem& problem, const TokenBytes& bytes,
                        TokenKernels kernels) {
  TokenExchange out = exchange_of(problem, kernels);
  out.bytes = bytes.out(problem.hidden);
  return problem.fabric.exchange(out);
}

CollectiveCost send_back(const DispatchProblem& problem, const TokenBytes& bytes,
                         TokenKernels kernels) {
  TokenExchange back = exchange_of(problem, kernels);
  back.bytes = bytes.back(problem.hidden);
  back.combine = true;
  return problem.fabric.exchange(back);
}

Occupancy normal_kernels(const DispatchProblem& problem) {
  constexpr double sms = 20;  // Buffer.num_sms of [DeepEP]
  return {.sms = std::min(1.0, sms / problem.fabric.cluster().gpu.sms)};
}

const Registry<Dispatch>& dispatches() {
  static const Registry<Dispatch> table(
      "dispatch",
      {{"all_to_all", "one copy per token and destination rank, across nodes one per node (DeepEP)",
        make_all_to_all, token_bytes_keys},
       {"low_latency", "one message per token and expert, straight to it (DeepEP low latency)",
        make_low_latency, token_bytes_keys},
       {"one_sided", "one copy per token and rank, written over NVLink (NVLinkOneSided)",
        make_one_sided, token_bytes_keys},
       {"mega_moe", "tokens travel in the experts' kernel (DeepGEMM's MegaMoE)", make_mega_moe},
       {"hybrid_ep", "as all_to_all, by kernels of few SMs for long prompts (NVIDIA's Hybrid-EP)",
        make_hybrid_ep, token_bytes_keys},
       {"all_gather", "every rank receives all tokens (vLLM's default; METRO's, before top-k)",
        make_all_gather, all_gather_keys},
       {"all_reduce", "all ranks' rows are summed, out and back (SGLang's steps with prompts)",
        make_all_reduce, token_bytes_keys},
       {"ids_all_gather", "all-gather of top-k ids alone, then the all-to-all", make_ids_all_gather,
        token_bytes_keys},
       {"auto", "in each layer the fastest of DeepEP's and NCCL's by the cost model", make_auto,
        token_bytes_keys}});
  return table;
}

}  // namespace moesim
