// SPDX-License-Identifier: Apache-2.0
#include "models/mixers/shares.hpp"

#include <algorithm>

namespace moesim {

AttentionLoad decode_load(const AttentionWork& work, const ParallelPlan& plan) {
  return {.sequences = work.decode_batch,
          .queries = work.decode_sequences,
          .context = work.decode_context / plan.dcp,
          .pairs = work.decode_pairs / plan.dcp};
}

AttentionLoad prefill_load(const AttentionWork& work) {
  return {.sequences = work.prefill_batch,
          .queries = work.prefill_tokens,
          .context = work.prefill_context,
          .pairs = work.prefill_pairs};
}

namespace {

double scored_by_decodes(const AttentionWork& work) {
  if (work.decode_batch == 0) return 0;
  return work.decode_context * work.decode_sequences / work.decode_batch;
}

}  // namespace

SparseLoad decodes_of(const AttentionWork& work) {
  return {.decode = true,
          .sequences = work.decode_batch,
          .queries = work.decode_sequences,
          .context = work.decode_context,
          .pairs = work.decode_pairs,
          .scored = scored_by_decodes(work)};
}

SparseLoad prompts_of(const AttentionWork& work) {
  return {.decode = false,
          .sequences = work.prefill_batch,
          .queries = work.prefill_tokens,
          .context = work.prefill_context,
          .pairs = work.prefill_pairs,
          .scored = std::max(0.0, work.indexed_pairs - scored_by_decodes(work))};
}

SparseLoad least_load(bool decode) { return {decode, 1, 1, 1, 1, 1}; }

void attention_blocks(const std::optional<Cost>& prefill, std::optional<Cost> decode,
                      Seconds shared, OperationList& ops) {
  if (prefill) ops.priced("attention_block_prefill", *prefill);
  if (!decode) return;
  if (prefill) decode->time = std::max(Seconds{}, decode->time - shared);
  ops.priced("attention_block_decode", *decode);
}

void before_projections(const MixerShard& shard, double tokens, double rotated,
                        OperationList& ops) {
  if (!norm_is_in_all_reduce(shard.plan, shard.gpu))
    ops.memory("input_norm", tokens * norm_bytes(shard.hidden));
  if (!fuses(shard.gpu, "rope")) ops.memory("rope", tokens * (2 * rotated * bf16_bytes));
}

// Before a reduce-scatter every GPU weighs the outputs of all heads (vLLM, correct_attn_out); after
// an all-to-all it sums the dcp outputs of its own heads.
void merge_partial_outputs(const CacheHeads& heads, const ParallelPlan& plan, double queries,
                           OperationList& ops) {
  if (plan.dcp == 1) return;
  const double read = plan.dcp * heads.queries;
  const double written = plan.dcp_merge == DcpMerge::reduce_scatter ? read : heads.queries;
  ops.memory("merge_partial_outputs",
             queries * (read + written) * heads.output_numbers * bf16_bytes);
}

void project_output(const MixerShard& shard, double tokens, double values, bool gated,
                    std::vector<Operation>& out) {
  const auto& [hidden, plan, precision, gpu] = shard;
  OperationList ops(Part::attention, precision, gpu, out);
  if (gated) ops.memory("output_gate", tokens * 3 * values * bf16_bytes);
  ops.gemm("o_proj", tokens, hidden, values);
  if (!norm_is_in_all_reduce(plan, gpu)) ops.memory("post_norm", tokens * norm_bytes(hidden));
}

}  // namespace moesim
