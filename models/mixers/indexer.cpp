// SPDX-License-Identifier: Apache-2.0
#include "models/mixers/indexer.hpp"

#include "models/mixers/keys.hpp"

namespace moesim {

std::string Indexer::fault() const {
  if (top > 0 && (heads == 0 || dim == 0))
    return "sparse attention needs the heads of its indexer and their dimension";
  if (top == 0 && heads > 0)
    return "an indexer needs \"index_top\", the tokens that it leaves for attention to see";
  return {};
}

Indexer Indexer::in_layer(const Sight& sight) const {
  Indexer here = *this;
  here.top = sight.top;
  if (!sight.indexed) here.heads = here.dim = 0;
  return here;
}

double Indexer::parameters(int hidden, int inputs) const {
  if (!scores()) return 0;
  return static_cast<double>(heads) * dim * inputs + static_cast<double>(hidden) * (dim + heads);
}

double Indexer::key_bytes() const {
  if (!scores()) return 0;
  if (keys_bf16) return dim * bytes_per_element(Precision::bf16);
  return dim + static_cast<double>(dim) / scaled_together * scale_bytes;
}

void Indexer::project(int hidden, int inputs, double tokens, OperationList& ops) const {
  if (!scores()) return;
  ops.gemm("index_q_proj", tokens, static_cast<double>(heads) * dim, inputs);
  ops.gemm("index_weights_proj", tokens, heads, hidden);
}

// DeepSeek-V3.2 (DeepSeek_V3_2.pdf, section 2): every token before is scored, in fp8, and the best
// are picked from the fp32 scores.
void Indexer::score(const AttentionWork& work, OperationList& ops) const {
  if (!scores()) return;
  ops.kernel("index_scores", attention_prefill_kernel, 2.0 * heads * dim * work.indexed_pairs,
             work.indexed_keys * key_bytes());
  ops.memory("index_top_k", work.indexed_pairs * 2 * fp32_bytes);
}

std::span<const Key> indexer_keys() {
  static constexpr Key keys[] = {
      {"index_heads", size_or_none, "0", "heads of a sparse attention's indexer, 0 for none"},
      {"index_dim", size_or_none, "0", "dimension of its heads"},
      {"index_top", size_or_none, "0", "tokens that it leaves for attention to see"},
      {"index_keys_bf16", form::flag, "false", "the indexer's keys are cached in bf16, not fp8"}};
  return keys;
}

Indexer read_indexer(ConfigReader& r) {
  return {.heads = static_cast<int>(r.integer("index_heads")),
          .dim = static_cast<int>(r.integer("index_dim")),
          .top = static_cast<int>(r.integer("index_top")),
          .keys_bf16 = r.flag("index_keys_bf16")};
}

}  // namespace moesim
