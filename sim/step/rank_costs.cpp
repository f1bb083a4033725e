// SPDX-License-Identifier: Apache-2.0
#include "sim/step/rank_costs.hpp"

#include <algorithm>

#include "hardware/kernels/experts.hpp"
#include "hardware/kernels/gemm.hpp"

namespace moesim {

namespace {

// A price takes a few KB.
constexpr std::size_t sizes_remembered = 2048;

// Engines launch shared experts on a stream of their own, next to the longer routed ones. They cost
// the bandwidth or the arithmetic that the routed experts lack during that time; `needed` is that
// of all operations together, without rows that fill tiles up.
void run_beside(std::vector<Operation>& operations, Flops needed, const GpuSpec& gpu) {
  Flops padded{};
  for (const Operation& operation : operations) padded += operation.cost.work.flops;
  const double share = padded > needed ? needed / padded : 1;
  for (Operation& operation : operations) {
    Cost& cost = operation.cost;
    const Seconds loads = cost.work.hbm / gpu.hbm_bandwidth;
    const Seconds arithmetic =
        cost.peak.value() > 0 ? cost.work.flops * share / cost.peak : Seconds{};
    if (const Seconds longer = std::max(loads, arithmetic); longer < cost.time) {
      cost.time = longer;
      cost.bound = loads < arithmetic ? Resource::tensor_core : Resource::hbm;
    }
    cost = drawing(cost, gemm_kernel, gpu);
  }
}

}  // namespace

TokensOfGpu tokens_of_gpu(const RankStep& rank, int pcp) {
  TokensOfGpu tokens;
  for (const SequenceWork& work : rank.sequences) {
    if (work.new_tokens == 1 || work.verifies) {
      tokens.decodes += work.new_tokens;
    } else {
      tokens.prompts += (work.new_tokens + pcp - 1) / pcp;
    }
  }
  return tokens;
}

RankPrices::RankPrices(const MoeModel& model, const ParallelPlan& plan,
                       const PrecisionPlan& precision, const GpuSpec& gpu)
    : model_(model), plan_(plan), slices_(of_slices(plan)), precision_(precision), gpu_(gpu) {
  for (const LayerSpec& layer : model_.layers) {
    const auto same_mixer = std::ranges::find_if(
        mixers_, [&](const MixerClass& kind) { return *kind.mixer == *layer.mixer; });
    const auto mixer = at(same_mixer - mixers_.begin());
    if (mixer == mixers_.size()) mixers_.push_back({layer.mixer});
    const auto same = std::ranges::find(classes_, layer, &Class::spec);
    const auto place = at(same - classes_.begin());
    if (place == classes_.size()) classes_.push_back({layer, mixer});
    ++classes_[place].layers;
    class_of_layer_.push_back(place);
  }
}

RankPrices::TokenCosts RankPrices::price_tokens(double tokens, const Class& layers) const {
  const LayerSpec& layer = layers.spec;
  TokenCosts price;
  std::vector<Operation>& before = price.before_dispatch.operations;
  std::vector<Operation>& after = price.after_combine.operations;
  const ModelShard shard = model_shard();
  layer.mixer->input(shard.mixers(), tokens, price.before_attention.operations);
  if (plan_.pcp > 1) {
    const double others = tokens * (plan_.pcp - 1);
    OperationList(Part::attention, precision_, gpu_, price.before_attention.operations)
        .memory("gathered_kv_write", others * layer.mixer->kept(slices_, precision_).bytes);
  }
  layer.mixer->output(shard.mixers(), tokens, before);
  if (layer.moe) {
    gate_operations(shard, tokens, before);
    // Not again where the layer's own time holds it, as tables and fits of them do; DeepEP reads
    // and writes tokens in place.
    const bool counted =
        gpu_.tables || gpu_.kernel(grouped_gemm_kernel).of(precision_.experts).copies > 0;
    if (plan_.exchanges() && !counted) {
      const double selections = tokens * model_.experts_per_token * plan_.times_sent() / slices_.tp;
      permute_operations(shard, selections, "pack", before);
      permute_operations(shard, selections, "unpack", after);
    }
    dense_ffn_operations(shard, tokens, model_.shared_width, Part::shared_experts,
                         price.shared_experts.operations);
    // With AFD no routed experts run on the same GPU.
    const double parameters = ffn_parameters(model_.hidden, model_.shared_width) / slices_.tp;
    if (gpu_.tables && !plan_.afd())
      run_beside(price.shared_experts.operations, Flops(2 * tokens * parameters), gpu_);
  }
  if (layer.has_dense_ffn() || model_.dense_residual) {
    dense_ffn_operations(shard, tokens, model_.dense_width, Part::dense_ffn, after);
  }
  for (RankCost* part : {&price.before_attention, &price.before_dispatch, &price.after_combine,
                         &price.shared_experts}) {
    part->add_up();
  }
  return price;
}

void RankPrices::count_reads(const StepBatch& batch) {
  most_reads_ = all_reads_ = {};
  for (const RankStep& rank : batch.ranks) {
    CacheReads reads{.queries = decode_queries(rank.work())};
    for (const auto& [new_tokens, context, verifies] : rank.sequences)
      if (new_tokens > 1 && !verifies) reads.prompt_context += context;
    for (double CacheReads::*of : {&CacheReads::queries, &CacheReads::prompt_context}) {
      most_reads_.*of = std::max(most_reads_.*of, reads.*of);
      all_reads_.*of += reads.*of;
    }
  }
}

void RankPrices::price(const StepBatch& batch, MixerClass& layers) const {
  const MixerShard shard = model_shard().mixers();
  if (layers.absorption_of.size() > sizes_remembered) layers.absorption_of.clear();
  layers.absorption.clear();
  layers.attention.resize(batch.ranks.size());
  for (std::size_t r = 0; r < batch.ranks.size(); ++r) {
    const RankSequences sequences = batch.ranks[r].work();
    RankCost& attention = layers.attention[r];
    attention.operations.clear();
    layers.mixer->core(shard, sequences, attention.operations);
    attention.add_up();
    if (!layers.mixer->absorbs()) continue;
    const double queries = decode_queries(sequences);
    const auto [found, unseen] =
        layers.absorption_of.try_emplace(static_cast<std::int64_t>(queries));
    if (unseen) {
      layers.mixer->absorption(shard, queries, found->second.operations);
      found->second.add_up();
    }
    layers.absorption.push_back(&found->second);
  }
}

void RankPrices::price(const StepBatch& batch, Class& layers) const {
  if (layers.of_tokens.size() > sizes_remembered) layers.of_tokens.clear();
  LayerCosts& costs = layers.costs;
  for (RankCosts* all : {&costs.before_attention, &costs.attention, &costs.before_dispatch,
                         &costs.after_combine, &costs.shared_experts}) {
    all->clear();
  }
  const MixerClass& mixer = mixers_[layers.mixer];
  costs.absorption = mixer.absorption;
  for (std::size_t r = 0; r < batch.ranks.size(); ++r) {
    const RankStep& rank = batch.ranks[r];
    const std::int32_t tokens = rank.tokens + rank.padding;
    const auto [found, unseen] = layers.of_tokens.try_emplace(tokens);
    if (unseen) found->second = price_tokens(tokens, layers);
    const TokenCosts& price = found->second;
    costs.before_attention.push_back(&price.before_attention);
    costs.attention.push_back(&mixer.attention[r]);
    costs.before_dispatch.push_back(&price.before_dispatch);
    costs.after_combine.push_back(&price.after_combine);
    costs.shared_experts.push_back(&price.shared_experts);
  }
}

// Tokens of the first GPU: the first and the last of 2 pcp pieces of a prompt. All GPUs have two
// that are as long and see as many tokens before them (vLLM, DualChunkSwap; SGLang, zigzag).
void RankPrices::price_share(const StepBatch& batch) {
  share_.ranks.resize(batch.ranks.size());
  for (std::size_t r = 0; r < batch.ranks.size(); ++r) {
    const RankStep& whole = batch.ranks[r];
    RankStep& share = share_.ranks[r];
    share.sequences.clear();
    share.tokens = 0;
    share.sampled = whole.sampled;
    share.padding = whole.padding;
    share.dummy = whole.dummy;
    for (const SequenceWork& prompt : whole.sequences) {
      if (prompt.new_tokens == 1 || prompt.verifies) {
        share.sequences.push_back(prompt);
        continue;
      }
      const std::int32_t tokens = (prompt.new_tokens + plan_.pcp - 1) / plan_.pcp;
      const std::int32_t first = (tokens + 1) / 2, last = tokens - first;
      share.sequences.push_back({first, prompt.context_tokens});
      if (last > 0)
        share.sequences.push_back({last, prompt.context_tokens + prompt.new_tokens - last});
    }
    share.tokens = tokens_of_gpu(whole, plan_.pcp).all();
  }
}

void RankPrices::price(const StepBatch& step) {
  if (plan_.pcp > 1) price_share(step);
  const StepBatch& batch = plan_.pcp > 1 ? share_ : step;
  if (plan_.dcp > 1) count_reads(batch);
  for (MixerClass& layers : mixers_) price(batch, layers);
  for (Class& layers : classes_) price(batch, layers);
  if (head_of_.size() > sizes_remembered) head_of_.clear();
  head_.clear();
  for (const RankStep& rank : batch.ranks) {
    const std::int32_t tokens = rank.tokens + rank.padding;
    const auto [found, unseen] = head_of_.try_emplace({tokens, rank.sampled});
    RankCost& head = found->second;
    if (unseen) {
      head_operations(model_shard(), tokens, rank.sampled, head.operations);
      head.add_up();
    }
    head_.push_back(&head);
  }
}

RankPrices::Sums RankPrices::sums() const {
  Sums sums;
  const auto add = [&](const RankCosts& ranks, int times) {
    for (const RankCost* rank : ranks) {
      sums.flops += rank->flops.value() * plan_.tp * times;
      sums.hbm_bytes += rank->hbm.value() * plan_.tp * times;
      if (gpu_.power) sums.energy.add(rank->energy, plan_.tp * times, rank->drawing_parts);
    }
  };
  for (const Class& layers : classes_) {
    const LayerCosts& costs = layers.costs;
    for (const RankCosts* all :
         {&costs.before_attention, &costs.absorption, &costs.attention, &costs.before_dispatch,
          &costs.after_combine, &costs.shared_experts}) {
      add(*all, layers.layers);
    }
  }
  add(head_, 1);
  return sums;
}

}  // namespace moesim
