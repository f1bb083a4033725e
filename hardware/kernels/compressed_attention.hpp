// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "hardware/kernels/attention_block.hpp"

namespace moesim {

extern const Kernel csa_decode_kernel, csa_prefill_kernel, hca_decode_kernel, hca_prefill_kernel;

/// Share of one GPU of a layer's compressed attention (DeepSeek-V4). One latent of `dim` numbers is
/// key and value of all heads. In addition to a window, queries see entries that replace `ratio`
/// tokens each, all of them or the `top` best by an indexer.
struct CompressedShape {
  double hidden = 0, heads = 0, q_lora = 0, dim = 0;
  double groups = 0, o_lora = 0;  ///< of the output's projection
  int window = 0;                 ///< tokens
  int ratio = 0;                  ///< 0: the window alone
  int top = 0;                    ///< entries; 0: all
  double index_heads = 0, index_dim = 0;
  double entry_bytes = 0, key_bytes = 0;  ///< of an entry, and of its index key
  bool thinned() const { return top > 0; }
};

/// Entries that the queries of one sequence see: those of tokens `first` to before `end`.
struct EntriesSeen {
  double pairs = 0;   ///< queries and what they attend to: tokens of the window, entries
  double read = 0;    ///< of these once for the sequence, where all queries see the same
  double scored = 0;  ///< queries and entries that an indexer scores
  double keys = 0;    ///< entries at the end
  EntriesSeen& operator+=(const EntriesSeen&);
};
/// A query at token t sees min(t + 1, window) tokens and floor((t + 1) / ratio) entries, at most
/// `top` where that is not 0.
EntriesSeen entries_seen(std::int64_t first, std::int64_t end, int window, int ratio, int top);

/// Numbers of the block's projections.
double projections(const CompressedShape&);

/// Attention over some sequences, summed: for a block's time by the engine's tables.
struct CompressedLoad {
  bool decode = true;
  double sequences = 0, queries = 0, context = 0;
  EntriesSeen seen;
};
/// Flops of queries and keys, an indexer's among them, and bytes that they read and move.
BlockWork work_of(const CompressedShape&, const CompressedLoad&);

/// The whole block of one layer by the engine's tables; nothing where no table has it.
std::optional<Cost> compressed_block(const CompressedShape&, const CompressedLoad&,
                                     Precision kv_cache, Precision weights, Precision activations,
                                     const GpuSpec&);

}  // namespace moesim
