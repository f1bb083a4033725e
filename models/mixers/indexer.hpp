// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "models/mixers/mixer.hpp"

namespace moesim {

/// Indexer of sparse attention (DeepSeek-V3.2). Heads of its own score every token before over
/// keys of its own that it caches. A query attends to the `top` best. Every GPU has all of its
/// heads.
struct Indexer {
  int heads = 0, dim = 0;  ///< 0 in a layer that takes the choice of another
  int top = 0;             ///< 0: attention sees every token
  /// The keys are cached in bf16 (MiniMax-M3), else in fp8 with an fp32 scale for 128 numbers
  /// (DeepSeek-V3.2), whatever the precision of the KV cache.
  bool keys_bf16 = false;
  bool scores() const { return heads > 0; }
  bool operator==(const Indexer&) const = default;

  /// Why it contradicts itself; empty: nothing.
  std::string fault() const;
  /// The same in a layer with that sight.
  Indexer in_layer(const Sight&) const;
  /// Queries come from `inputs` numbers, one key and the heads' weights from the hidden state.
  double parameters(int hidden, int inputs) const;
  /// That it caches for one token in one layer.
  double key_bytes() const;
  /// Adds projections of its queries and weights; its keys come with attention's keys.
  void project(int hidden, int inputs, double tokens, OperationList&) const;
  void score(const AttentionWork&, OperationList&) const;
  /// Projections, norm, RoPE and quantisation of two, scores, the choice of the best.
  double launches() const { return scores() ? 8 : 0; }
};

/// Numbers that share a scale in fp8_ds_mla and in index keys (vLLM 0.11,
/// vllm/v1/attention/backends/mla/flashmla_sparse.py, indexer.py).
inline constexpr int scaled_together = 128;
inline constexpr double scale_bytes = 4;

/// The part of a zoo file's attention that is an indexer.
std::span<const Key> indexer_keys();
Indexer read_indexer(ConfigReader&);

}  // namespace moesim
