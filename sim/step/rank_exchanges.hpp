// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

#include "hardware/fabric.hpp"
#include "models/step_ops.hpp"
#include "sim/step/context_parallel.hpp"
#include "sim/step/critical_path.hpp"
#include "sim/step/rank_costs.hpp"
#include "sim/step/step_cost.hpp"

namespace moesim {

/// Exchanges of the GPUs of an attention rank with each other in one step. With TP these are
/// activations, norms and logits, with DCP queries and partial outputs. All ranks do so at the same
/// time, each by itself: the largest sets the time.
class RankExchanges {
 public:
  /// The arguments, and what the shard refers to, must outlive it. The traffic is counted as the
  /// step's `all_reduce`.
  RankExchanges(const Fabric&, const ModelShard&, const RankPrices&, const StepBatch&,
                StepCost& result);

  /// Partial sums of a layer's attention or dense FFN.
  void all_reduce(CriticalPath&) const;
  /// The tokens that each GPU sent its share of, and partial sums of what is sliced by TP.
  void rejoin(CriticalPath&) const;
  /// Sums of squares where a norm goes over all heads.
  void join_norms(CriticalPath&, const Mixer&) const;
  /// With PCP, before attention: keys and values of the tokens that other groups of the rank have.
  void gather_keys(CriticalPath&, const Mixer&);
  /// With PCP, behind experts: tokens that decode, which every group has.
  void gather_decodes(CriticalPath&) const;
  /// With DCP, before and behind a layer's attention.
  void gather_queries(CriticalPath&, const Mixer&);
  void merge_outputs(CriticalPath&, const Mixer&);
  /// Every GPU's share of the vocabulary, in bf16, to sample by all of it (vLLM, LogitsProcessor;
  /// SGLang, logits_processor.py).
  void gather_logits(CriticalPath&, const StepBatch&) const;

 private:
  CollectiveCost gather_of_groups(double bytes_of_each) const;
  void pass_groups(CriticalPath&, std::string_view name, const CollectiveCost&) const;
  bool has_stripes(const Mixer&) const;  // a layer that keeps states has none
  void exchange_stripes(const Mixer&);
  void pass(CriticalPath&, std::string_view name, const CollectiveCost&,
            double RankPrices::CacheReads::*of) const;

  const Fabric& fabric_;
  ModelShard shard_;
  const RankPrices& ranks_;
  Traffic& traffic_;
  // Traffic of all ranks together, in multiples of that of the largest.
  double ranks_alike_ = 1;
  CollectiveCost reduced_, gathered_, squares_, keys_;
  TokensOfGpu most_;                // of the rank with most
  const Mixer* keyed_ = nullptr;    // whose keys and values are keys_
  const Mixer* striped_ = nullptr;  // whose exchange is stripes_: layers with one mixer are alike
  StripeExchange stripes_;
};

}  // namespace moesim
