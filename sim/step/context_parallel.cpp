// SPDX-License-Identifier: Apache-2.0
#include "sim/step/context_parallel.hpp"

#include <vector>

#include "hardware/at.hpp"

namespace moesim {

StripeExchange stripe_exchange(const Fabric& fabric, const ParallelPlan& plan,
                               const CacheHeads& heads, const StripeReads& reads) {
  const auto of_each = [&](double bytes) { return std::vector<double>(at(plan.dcp), bytes); };
  const double own = reads.queries * heads.queries;  // heads of queries that one GPU has
  StripeExchange exchange;
  exchange.queries = fabric.all_gather(of_each(own * heads.query_numbers * bf16_bytes));
  exchange.context = fabric.all_gather(of_each(reads.context.value() / plan.dcp));
  const double outputs = own * heads.output_numbers * bf16_bytes;
  const double log_sum_exps = own * fp32_bytes;
  if (plan.dcp_merge == DcpMerge::all_to_all) {
    exchange.outputs = fabric.all_to_all(even_traffic(plan.dcp, outputs + log_sum_exps));
  } else {
    exchange.log_sum_exps = fabric.all_gather(of_each(plan.dcp * log_sum_exps));
    exchange.outputs = fabric.reduce_scatter(of_each(outputs));
  }
  return exchange;
}

}  // namespace moesim
