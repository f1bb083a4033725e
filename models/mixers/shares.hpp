// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <typeinfo>

#include "hardware/kernels/sparse_attention.hpp"
#include "models/mixers/mixer.hpp"

// What several kinds of attention share.

namespace moesim {

/// A kind of mixer, all of which these facts tell.
template <class Facts>
class MixerOf : public Mixer {
 public:
  explicit MixerOf(const Facts& a) : a_(a) {}
  bool operator==(const Mixer& other) const override {
    return typeid(other) == typeid(*this) && a_ == static_cast<const MixerOf&>(other).a_;
  }

 protected:
  Facts a_;
};

/// A load that shows whose kernel prices attention.
inline constexpr AttentionLoad one_query{
    .sequences = 1, .queries = 1, .context = 1024, .pairs = 1024};
/// Load that one GPU reads of the caches of sequences that decode. With DCP it is 1/dcp of the
/// tokens, to within one token of a sequence.
AttentionLoad decode_load(const AttentionWork&, const ParallelPlan&);
AttentionLoad prefill_load(const AttentionWork&);

/// Load of a step on a block of sparse attention: its sequences that decode, its prompts; the
/// smallest block.
SparseLoad decodes_of(const AttentionWork&);
SparseLoad prompts_of(const AttentionWork&);
SparseLoad least_load(bool decode);
/// The blocks of attention of a step, by tables: of prompts, and of sequences that decode. The two
/// share projections and launches, so beside prompts a decodes' block is shorter by `shared`, the
/// time of the smallest.
void attention_blocks(const std::optional<Cost>& prefill, std::optional<Cost> decode,
                      Seconds shared, OperationList&);
/// The norm before attention, and RoPE in place on `rotated` numbers of a token's queries and keys;
/// each a kernel unless the engine has it in another.
void before_projections(const MixerShard&, double tokens, double rotated, OperationList&);
/// With DCP: the partial outputs of `queries` queries are weighed by their log-sum-exps.
void merge_partial_outputs(const CacheHeads&, const ParallelPlan&, double queries, OperationList&);
/// The gate of `values` outputs of a token, if there is one, their projection to the hidden state
/// and the norm behind it.
void project_output(const MixerShard&, double tokens, double values, bool gated,
                    std::vector<Operation>& out);

}  // namespace moesim
