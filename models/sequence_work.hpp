// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <span>

namespace moesim {

/// A sequence in a step: how many tokens it computes and how many are before them in the KV
/// cache.
struct SequenceWork {
  std::int32_t new_tokens;
  std::int32_t context_tokens;
  /// The new tokens are one that is sampled and drafts behind it: a decode kernel computes them all
  /// with one read of the keys.
  bool verifies = false;
};

/// The sequences of a rank in a step.
struct RankSequences : std::span<const SequenceWork> {
  using span::span;
  RankSequences(std::span<const SequenceWork> sequences,
                std::optional<std::int64_t> context = std::nullopt)
      : span(sequences), decode_context(context) {}
  /// Tokens before the new ones in all KV caches, where each sequence is known to have one new
  /// token. Most steps are such, and then nothing need look at each sequence.
  std::optional<std::int64_t> decode_context{};
};

/// Which tokens before, itself included, a query attends to.
struct Sight {
  int window = 0;        ///< so many; 0: all
  bool chunked = false;  ///< the window is an aligned chunk (Llama 4), not sliding
  int top = 0;           ///< the best so many, by an indexer's scores; 0: all
  bool indexed = false;  ///< the layer scores them itself, else another layer did
  int ratio = 0;         ///< compressed attention: tokens of an entry; 0: no entries
  bool operator==(const Sight&) const = default;
};

/// Work of attention on one rank, for layers of one kind: sums over its sequences.
struct AttentionWork {
  int window = 0;                ///< keys that a query sees, where it slides; 0: all
  double decode_sequences = 0;   ///< queries of sequences that decode: one each, or those verified
  double decode_kv_tokens = 0;   ///< keys read by them, once per sequence (new ones included)
  double decode_pairs = 0;       ///< causal query-key pairs of theirs
  double decode_batch = 0;       ///< sequences that decode
  double decode_context = 0;     ///< tokens in their KV caches, whatever a window hides
  bool thinned = false;          ///< sparse attention hides some of the keys before
  double prefill_tokens = 0;     ///< queries of sequences with more than one new token
  double prefill_kv_tokens = 0;  ///< keys read by them, once per sequence
  double prefill_pairs = 0;      ///< causal query-key pairs
  double prefill_batch = 0;      ///< sequences with more than one new token
  double prefill_context = 0;    ///< tokens in their KV caches, new ones included
  double sequences = 0;
  double indexed_keys = 0;   ///< sparse attention: keys that the indexer reads ...
  double indexed_pairs = 0;  ///< ... and query-key pairs that it scores, seen by attention or not
};
/// Work of a step on attention whose queries see so much. A sequence that verifies, or has one new
/// token, counts as decode, also when it is a prompt's last chunk.
AttentionWork attention_work(const RankSequences&, const Sight&);
/// Queries of sequences that decode: one each, or those verified.
double decode_queries(const RankSequences&);

}  // namespace moesim
