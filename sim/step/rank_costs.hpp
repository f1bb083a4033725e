// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <unordered_map>
#include <utility>
#include <vector>

#include "sim/step/critical_path.hpp"

namespace moesim {

/// New tokens that one GPU of a rank computes. With PCP these are its share of each prompt, and all
/// tokens of sequences that decode, as every group of the rank computes them.
struct TokensOfGpu {
  std::int32_t prompts = 0, decodes = 0;
  std::int32_t all() const { return prompts + decodes; }
};
TokensOfGpu tokens_of_gpu(const RankStep&, int pcp);

/// Work that every rank of a step computes by itself, whatever its experts do. Prices by a rank's
/// tokens alone are remembered, as the same sizes come again from step to step.
class RankPrices {
 public:
  /// Costs of the ranks in layers of one kind, one after the other.
  struct LayerCosts {
    RankCosts before_attention, absorption, attention, before_dispatch, after_combine,
        shared_experts;
  };

  RankPrices(const MoeModel&, const ParallelPlan&, const PrecisionPlan&, const GpuSpec&);

  /// Prices a batch. What the other functions answer is good until the next call.
  void price(const StepBatch&);
  int layers() const { return static_cast<int>(class_of_layer_.size()); }
  bool is_moe(int layer) const { return class_of(layer).spec.moe; }
  bool any_joint_norm() const {
    return std::ranges::any_of(mixers_, [](const MixerClass& m) { return m.mixer->joint_norm(); });
  }
  const Mixer& mixer(int layer) const { return *class_of(layer).spec.mixer; }
  const LayerCosts& layer(int layer) const { return class_of(layer).costs; }
  /// Reads of a rank's attention from KV caches that its GPUs share by tokens (DCP).
  struct CacheReads {
    double queries = 0;         ///< that decode
    double prompt_context = 0;  ///< tokens before the chunks of prompts
  };
  /// Reads of the rank with most, and over all ranks.
  const CacheReads& most_reads() const { return most_reads_; }
  const CacheReads& all_reads() const { return all_reads_; }
  /// Embedding, LM head, sampling.
  const RankCosts& head() const { return head_; }
  /// Work of all layers and the head, on all GPUs.
  struct Sums {
    double flops = 0, hbm_bytes = 0;
    Energy energy{};
  };
  Sums sums() const;

 private:
  // Costs of a rank with so many tokens, whatever sequences they belong to.
  struct TokenCosts {
    RankCost before_attention, before_dispatch, after_combine, shared_experts;
  };
  // Layers with the same mixer, whatever follows it.
  struct MixerClass {
    MixerPtr mixer;
    std::unordered_map<std::int64_t, RankCost> absorption_of{};  // by queries
    std::vector<const RankCost*> absorption{};                   // [ranks]
    std::vector<RankCost> attention{};                           // [ranks]
  };
  // Layers of one kind, which cost alike.
  struct Class {
    LayerSpec spec;
    std::size_t mixer;  // which of the mixer classes
    int layers = 0;
    std::unordered_map<std::int32_t, TokenCosts> of_tokens{};
    LayerCosts costs{};
  };

  const Class& class_of(int layer) const { return classes_[class_of_layer_[at(layer)]]; }
  void count_reads(const StepBatch&);
  void price_share(const StepBatch&);
  void price(const StepBatch&, MixerClass&) const;
  void price(const StepBatch&, Class&) const;
  TokenCosts price_tokens(double tokens, const Class&) const;
  ModelShard model_shard() const { return {model_, slices_, precision_, gpu_}; }

  MoeModel model_;
  ParallelPlan plan_;
  ParallelPlan slices_;  // of_slices(plan_)
  PrecisionPlan precision_;
  GpuSpec gpu_;
  std::vector<MixerClass> mixers_;
  std::vector<Class> classes_;
  std::vector<std::size_t> class_of_layer_;
  std::map<std::pair<std::int32_t, std::int32_t>, RankCost> head_of_;  // by tokens, sampled
  RankCosts head_;
  CacheReads most_reads_, all_reads_;
  StepBatch share_;  // with PCP: of one GPU of each rank
};

}  // namespace moesim
