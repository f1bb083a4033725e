// SPDX-License-Identifier: Apache-2.0
#include "models/sequence_work.hpp"

#include <algorithm>

namespace moesim {

namespace {

constexpr std::int64_t triangle(std::int64_t n) { return n * (n + 1) / 2; }

// Keys that the query at position p sees, itself included, summed over p < n.
// full: sum of p + 1; sliding: sum of min(p + 1, w); chunked: sum of p mod w + 1.
std::int64_t keys_seen_before(std::int64_t n, const Sight& sight) {
  const std::int64_t w = sight.window;
  if (w == 0 || n <= w) return triangle(n);
  if (sight.chunked) return n / w * triangle(w) + triangle(n % w);
  return triangle(w) + (n - w) * w;
}

// The first position that the query at position p sees.
std::int64_t first_seen(std::int64_t p, const Sight& sight) {
  const std::int64_t w = sight.window;
  if (w == 0) return 0;
  return sight.chunked ? p / w * w : std::max<std::int64_t>(0, p + 1 - w);
}

}  // namespace

AttentionWork attention_work(const RankSequences& sequences, const Sight& sight) {
  AttentionWork work{.window = sight.chunked ? 0 : sight.window};
  // Most steps hold nothing but decodes that see all before them.
  const bool sees_all = sight == Sight{};
  std::int64_t singles = 0, keys_of_singles = 0;
  const bool known = sees_all && sequences.decode_context;
  if (known) {
    singles = std::ssize(sequences);
    keys_of_singles = *sequences.decode_context + singles;
  }
  for (const auto& [new_tokens, context, verifies] : known ? RankSequences{} : sequences) {
    if (new_tokens == 0) continue;
    if (sees_all && new_tokens == 1) {
      ++singles;
      keys_of_singles += context + 1;
      continue;
    }
    const std::int64_t first = context;
    const std::int64_t end = first + new_tokens;
    const auto pairs_of = [&](const Sight& range) {
      return static_cast<double>(keys_seen_before(end, range) - keys_seen_before(first, range));
    };
    // Pairs are as many as of a sliding window, wherever the tokens are.
    const Sight seen = sight.top > 0 ? Sight{.window = sight.top} : sight;
    const auto keys = static_cast<double>(end - first_seen(first, seen));
    const double pairs = pairs_of(seen);
    work.sequences += 1;
    const double all_pairs = sight.top > 0 ? pairs_of({}) : pairs;
    work.thinned = work.thinned || pairs < all_pairs;
    if (sight.indexed) {
      work.indexed_keys += static_cast<double>(end);
      work.indexed_pairs += all_pairs;
    }
    if (new_tokens == 1 || verifies) {
      work.decode_sequences += new_tokens;
      work.decode_kv_tokens += keys;
      work.decode_pairs += pairs;
      work.decode_batch += 1;
      work.decode_context += static_cast<double>(end);
    } else {
      work.prefill_tokens += new_tokens;
      work.prefill_kv_tokens += keys;
      work.prefill_pairs += pairs;
      work.prefill_batch += 1;
      work.prefill_context += static_cast<double>(end);
    }
  }
  for (double AttentionWork::*of : {&AttentionWork::sequences, &AttentionWork::decode_sequences,
                                    &AttentionWork::decode_batch}) {
    work.*of += static_cast<double>(singles);
  }
  for (double AttentionWork::*of : {&AttentionWork::decode_kv_tokens, &AttentionWork::decode_pairs,
                                    &AttentionWork::decode_context}) {
    work.*of += static_cast<double>(keys_of_singles);
  }
  return work;
}

double decode_queries(const RankSequences& sequences) {
  if (sequences.decode_context) return static_cast<double>(sequences.size());
  std::int64_t queries = 0;
  for (const auto& [new_tokens, context, verifies] : sequences)
    queries += new_tokens == 1 || verifies ? new_tokens : 0;
  return static_cast<double>(queries);
}

}  // namespace moesim
