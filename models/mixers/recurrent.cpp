// SPDX-License-Identifier: Apache-2.0
#include "models/mixers/recurrent.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "models/mixers/keys.hpp"

namespace moesim {

RecurrentSlice slice_of(const RecurrentHeads& a, int tp) {
  return {static_cast<double>(a.value_heads) / tp,
          static_cast<double>(a.key_heads) * a.key_dim / tp,
          static_cast<double>(a.value_heads) * a.value_dim / tp};
}

std::string recurrent_cut_fault(const RecurrentHeads& a, int tp) {
  if (a.value_heads % tp == 0) return {};
  return fmt::format("tp {} does not divide the {} value heads of the model's linear attention", tp,
                     a.value_heads);
}

double recurrent_state_bytes(const RecurrentHeads& a, double convolved, const ParallelPlan& plan,
                             const PrecisionPlan& precision) {
  const double recurrent = slice_of(a, plan.tp).values * a.key_dim;
  const double kept = convolved * std::max(0, a.convolution - 1);
  return recurrent * precision.state_bytes + kept * bytes_per_element(Precision::bf16);
}

void recurrent_core(const MixerShard& shard, const RecurrentHeads& a, double state_bytes,
                    double flops, const RankSequences& sequences, std::vector<Operation>& out) {
  const AttentionWork work = attention_work(sequences, {});
  OperationList ops(Part::attention, shard.precision, shard.gpu, out);
  const RecurrentSlice slice = slice_of(a, shard.plan.tp);
  const double passed = (2 * slice.keys + 2 * slice.values) * bf16_bytes;
  ops.memory("linear_state", work.sequences * 2 * state_bytes + work.decode_sequences * passed);
  if (work.prefill_tokens == 0) return;
  ops.kernel("linear_prefill", attention_prefill_kernel, work.prefill_tokens * slice.heads * flops,
             work.prefill_tokens * passed);
}

void recurrent_output(const MixerShard& shard, const RecurrentHeads& a, double tokens,
                      std::vector<Operation>& out) {
  const auto& [hidden, plan, precision, gpu] = shard;
  OperationList ops(Part::attention, precision, gpu, out);
  const double values = slice_of(a, plan.tp).values;
  ops.memory("gated_norm", tokens * 3 * values * bf16_bytes);
  ops.gemm("o_proj", tokens, hidden, values);
  ops.memory("post_norm", tokens * norm_bytes(hidden));
}

std::span<const Key> recurrent_keys() {
  static constexpr KeyDefault alone = unset("a convolution alone, with channels");
  static constexpr Key keys[] = {
      {"key_heads", size, alone, "query and key heads"},
      {"key_dim", size, alone, "dimension of a query or key"},
      {"value_heads", size, alone, "value heads, each with a state"},
      {"value_dim", size, alone, "dimension of a value"},
      {"convolution", size, required, "tokens that the short convolution spans"},
      {"delta", form::flag, "true", "updates by the delta rule; false: a state space layer"}};
  return keys;
}

RecurrentHeads read_recurrent_heads(ConfigReader& r) {
  r.flag("delta");  // which tells the kinds
  return {.key_heads = count(r, "key_heads"),
          .key_dim = count(r, "key_dim"),
          .value_heads = count(r, "value_heads"),
          .value_dim = count(r, "value_dim"),
          .convolution = count(r, "convolution")};
}

}  // namespace moesim
