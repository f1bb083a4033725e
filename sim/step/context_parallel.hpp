// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "hardware/fabric.hpp"
#include "models/mixers/mixer.hpp"

namespace moesim {

/// Reads of attention of one layer from a KV cache that dcp GPUs share by tokens.
struct StripeReads {
  double queries = 0;  ///< that decode
  Bytes context{};     ///< of one GPU's heads of keys, before the chunks of prompts
};

/// Exchanges of these GPUs: queries before attention, then the log-sum-exps and partial outputs of
/// their parts. Prompts compute as under TP, once every GPU has their whole context (vLLM,
/// MLACommonImpl).
struct StripeExchange {
  CollectiveCost queries, context;
  CollectiveCost log_sum_exps;  ///< no time where they travel with the outputs
  CollectiveCost outputs;
};

/// Between the first dcp GPUs of the cluster; others do the same beside them. Each has `heads` of
/// the queries, and ends with their outputs. For a query of H heads over the group, of which each
/// has d_q numbers and its output d_o, a GPU receives (1 - 1/dcp) of
///
///   queries   2 H d_q bytes
///   outputs   2 H d_o bytes, and log-sum-exps in fp32: 4 H of its heads by all-to-all, or all
///             4 H dcp by all-gather
///   context   its bytes
///
/// (vLLM, cp_lse_ag_out_rs and dcp_alltoall.py; SGLang packs outputs and log-sum-exps.)
StripeExchange stripe_exchange(const Fabric&, const ParallelPlan&, const CacheHeads& heads,
                               const StripeReads&);

}  // namespace moesim
