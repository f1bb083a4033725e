// SPDX-License-Identifier: Apache-2.0
#include "sim/step/rank_exchanges.hpp"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "hardware/at.hpp"

namespace moesim {

RankExchanges::RankExchanges(const Fabric& fabric, const ModelShard& shard, const RankPrices& ranks,
                             const StepBatch& batch, StepCost& result)
    : fabric_(fabric), shard_(shard), ranks_(ranks), traffic_(result.all_reduce) {
  const int tp = shard.plan.slices(), pcp = shard.plan.pcp;
  std::int64_t all_tokens = 0;
  for (const RankStep& rank : batch.ranks) {
    const TokensOfGpu tokens = pcp > 1 ? tokens_of_gpu(rank, pcp) : TokensOfGpu{rank.tokens, 0};
    if (tokens.all() > most_.all()) most_ = tokens;
    all_tokens += tokens.all();
  }
  const std::int32_t most_tokens = most_.all();
  // With PCP each group of a rank does so beside the others.
  const double activations = double{2} * most_tokens * shard.model.hidden;
  ranks_alike_ = static_cast<double>(all_tokens) / most_tokens * pcp;
  reduced_ = fabric.all_reduce(tp, Bytes(activations));
  gathered_ = fabric.all_gather(std::vector<double>(at(tp), activations / tp));
  // Norms of queries and of keys, in fp32.
  if (ranks.any_joint_norm() && tp > 1 && shard.gpu.tables)
    squares_ = fabric.all_reduce(tp, Bytes(8.0 * most_tokens));
}

void RankExchanges::all_reduce(CriticalPath& path) const {
  if (shard_.plan.slices() == 1) return;
  path.collective({"tp_all_reduce", Part::all_reduce, reduced_, traffic_, ranks_alike_});
}

void RankExchanges::rejoin(CriticalPath& path) const {
  if (shard_.plan.slices() == 1 || !shard_.plan.exchanges()) return;
  const bool sliced = shard_.model.shared_width > 0 || shard_.model.dense_residual;
  if (!sliced && !shard_.plan.moe_sequence_parallel) return;
  path.collective({sliced ? "tp_all_reduce" : "tp_all_gather", Part::all_reduce,
                   sliced ? reduced_ : gathered_, traffic_, ranks_alike_});
}

void RankExchanges::join_norms(CriticalPath& path, const Mixer& mixer) const {
  if (shard_.plan.slices() == 1 || !shard_.gpu.tables || !mixer.joint_norm()) return;
  path.collective({"qk_norm_all_reduce", Part::all_reduce, squares_, traffic_, ranks_alike_});
}

// Between the GPUs of the same slice in each group of a rank.
CollectiveCost RankExchanges::gather_of_groups(double bytes_of_each) const {
  return fabric_.all_gather(std::vector<double>(at(shard_.plan.pcp), bytes_of_each));
}

void RankExchanges::pass_groups(CriticalPath& path, std::string_view name,
                                const CollectiveCost& cost) const {
  const double slices_alike = double(shard_.plan.slices()) / shard_.plan.pcp;
  path.collective({name, Part::all_reduce, cost, traffic_, ranks_alike_ * slices_alike});
}

// Each GPU has computed keys of its own heads [vLLM, SGLang].
void RankExchanges::gather_keys(CriticalPath& path, const Mixer& mixer) {
  if (shard_.plan.pcp == 1 || most_.prompts == 0) return;
  if (&mixer != keyed_) {
    keyed_ = &mixer;
    const Kept kept = mixer.kept(of_slices(shard_.plan), shard_.precision);
    keys_ = gather_of_groups(most_.prompts * (kept.bytes + kept.index_bytes));
  }
  pass_groups(path, "pcp_gather_kv", keys_);
}

void RankExchanges::gather_decodes(CriticalPath& path) const {
  if (shard_.plan.pcp == 1 || most_.decodes == 0) return;
  const double own = 2.0 * most_.decodes * shard_.model.hidden / shard_.plan.pcp;
  pass_groups(path, "pcp_gather_decodes", gather_of_groups(own));
}

void RankExchanges::exchange_stripes(const Mixer& mixer) {
  if (&mixer == striped_) return;
  striped_ = &mixer;
  const RankPrices::CacheReads& most = ranks_.most_reads();
  stripes_ = stripe_exchange(
      fabric_, shard_.plan, mixer.cache_heads(shard_.plan.tp),
      {.queries = most.queries,
       .context = Bytes(most.prompt_context * mixer.kept(shard_.plan, shard_.precision).bytes)});
}

void RankExchanges::pass(CriticalPath& path, std::string_view name, const CollectiveCost& cost,
                         double RankPrices::CacheReads::*of) const {
  const double most = ranks_.most_reads().*of, all = ranks_.all_reads().*of;
  if (most == 0) return;
  const double groups_of_rank = static_cast<double>(shard_.plan.tp) / shard_.plan.dcp;
  path.collective({name, Part::all_reduce, cost, traffic_, groups_of_rank * all / most});
}

bool RankExchanges::has_stripes(const Mixer& mixer) const {
  return shard_.plan.dcp > 1 && mixer.cache_heads(shard_.plan.tp).kv_heads > 0;
}

void RankExchanges::gather_queries(CriticalPath& path, const Mixer& mixer) {
  if (!has_stripes(mixer)) return;
  exchange_stripes(mixer);
  pass(path, "dcp_gather_queries", stripes_.queries, &RankPrices::CacheReads::queries);
  pass(path, "dcp_gather_context", stripes_.context, &RankPrices::CacheReads::prompt_context);
}

void RankExchanges::merge_outputs(CriticalPath& path, const Mixer& mixer) {
  if (!has_stripes(mixer)) return;
  exchange_stripes(mixer);
  pass(path, "dcp_gather_lse", stripes_.log_sum_exps, &RankPrices::CacheReads::queries);
  pass(path, "dcp_merge_outputs", stripes_.outputs, &RankPrices::CacheReads::queries);
}

void RankExchanges::gather_logits(CriticalPath& path, const StepBatch& batch) const {
  const int tp = shard_.plan.slices();
  if (tp == 1) return;
  double sampled = 0;
  for (const RankStep& rank : batch.ranks) sampled = std::max(sampled, double(rank.sampled));
  const std::vector<double> slices(at(tp), 2.0 * sampled * shard_.model.vocabulary / tp);
  // Logits are of the whole step: no other micro-batch computes meanwhile.
  constexpr Occupancy all{.sms = 1};
  path.collective(
      {"logits_all_gather", Part::other, fabric_.all_gather(slices), traffic_, ranks_alike_, all});
}

}  // namespace moesim
