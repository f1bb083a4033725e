// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <optional>
#include <span>
#include <string>

#include "hardware/config.hpp"
#include "hardware/gpu.hpp"
#include "hardware/keys.hpp"

namespace moesim {

struct MoeModel;

/// Shares of a part's weights in each precision, where it is stored in several; else zeros.
using PrecisionShares = std::array<double, precision_names.size()>;

/// The stored and multiplied precisions of one deployment. A part in several precisions has the
/// bytes of all, and the kernels of the one that most of it is in.
struct PrecisionPlan {
  Precision experts = Precision::bf16;
  Precision attention = Precision::bf16;  ///< weights of attention; embeddings, LM head, norms and
                                          ///< gates stay bf16
  Precision kv_cache = Precision::bf16;
  Precision activations = Precision::bf16;  ///< that narrow weights are multiplied with
  Precision ffn = Precision::bf16;          ///< weights of dense FFNs and shared experts
  double state_bytes = 4;                   ///< of a number in the state of linear attention
  int mxfp4_hidden_multiple = 1, mxfp4_width_multiple = 32;  ///< that its experts are padded to
  bool scaled_latent = true;  ///< sparse MLA in fp8: rotary parts in bf16, and scales
  PrecisionShares expert_shares{}, attention_shares{}, ffn_shares{};
};
/// Stored bytes of one weight of a part: of its precision, or the mean of its shares.
double bytes_per_weight(Precision, const PrecisionShares&);
/// The precision with the largest share, or of several the one with most bytes.
Precision most_of(const PrecisionShares&);
/// JSON as an experiment says it: a name, or {"nvfp4": 0.75, "bf16": 0.25}.
Json precision_json(Precision, const PrecisionShares&);
/// Reads precisions. Those not given are `stored`'s, the model's own. Where these are not known,
/// "experts" and "attention" must be given, "ffn" is as attention, and "kv_cache" and "activations"
/// are bf16. Throws ConfigError.
PrecisionPlan read_precision(const ConfigNode&, const PrecisionPlan* stored = nullptr);
std::span<const Key> precision_keys();

/// How partial outputs of attention find together under DCP: log-sum-exps are gathered and outputs
/// reduced (vLLM), or both travel in one all-to-all (SGLang; vLLM's a2a).
enum class DcpMerge { reduce_scatter, all_to_all };

/// Ways in which GPUs get the experts that decode steps need where these are cut otherwise. Both
/// cuts are in HBM, or weights move between two steps of different cuts.
enum class DecodeWeights { twice, moved };

/// Plan by which a model is spread over a group of GPUs: layers over pp pipeline stages. Within a
/// stage there are attention dp x tp and experts ep x moe_tp with ep * moe_tp = expert_gpus().
/// Experts are on attention's GPUs, or on `ffn_gpus` of their own behind these (attention-FFN
/// disaggregation, AFD).
struct ParallelPlan {
  int dp = 1, tp = 1, ep = 1, pp = 1;
  int ffn_gpus = 0;       ///< 0: attention's GPUs hold the experts
  int micro_batches = 1;  ///< of a step, in flight between both sides; 1 without ffn_gpus
  /// Decode context parallelism: of the tp GPUs of a rank so many hold every dcp-th token of the
  /// same KV cache.
  int dcp = 1;
  DcpMerge dcp_merge = DcpMerge::reduce_scatter;
  /// Prefill context parallelism: so many groups of a rank's tp GPUs compute different tokens of
  /// its prompts, and each computes all tokens that decode. Each group has all of attention's
  /// weights, and the KV cache of all tokens.
  int pcp = 1;
  /// True: each of the tp GPUs of a rank sends a share of its tokens to their experts, and gathers
  /// what comes back (sequence parallelism). Else each sends all of them, and experts compute all
  /// copies.
  bool moe_sequence_parallel = true;
  int decode_ep = 0;  ///< ep of steps under the rule of decode; 0: that of all steps
  DecodeWeights decode_weights = DecodeWeights::twice;
  bool operator==(const ParallelPlan&) const = default;
  /// True if attention and experts have GPUs of their own.
  bool afd() const { return ffn_gpus > 0; }
  int attention_gpus() const { return dp * tp; }
  /// GPUs of an attention rank, over all stages: a KV block has a shard on each.
  int rank_gpus() const { return tp * pp; }
  int expert_gpus() const { return afd() ? ffn_gpus : dp * tp; }
  int stage_gpus() const { return dp * tp + ffn_gpus; }
  int gpus() const { return stage_gpus() * pp; }
  int moe_tp() const { return expert_gpus() / ep; }
  /// The first GPU of a stage that holds experts.
  int first_expert_gpu() const { return afd() ? attention_gpus() : 0; }
  /// True if tokens travel to their experts: else all GPUs of a stage have all tokens.
  bool exchanges() const { return dp > 1 || pcp > 1 || afd(); }
  /// GPUs that weights and heads of attention are cut over.
  int slices() const { return tp / pcp; }
  /// How often each token is sent to its experts.
  int times_sent() const { return moe_sequence_parallel ? 1 : tp; }
  /// EP rank that a policy counts the tokens of a GPU of attention to. It is the GPU's own. With
  /// AFD ranks take turns, as many GPUs to each as can be.
  int source_rank(int gpu) const { return afd() ? gpu * ep / attention_gpus() : gpu / moe_tp(); }
  /// The EP rank whose experts a GPU holds; nothing for attention's GPUs with AFD.
  std::optional<int> expert_rank(int gpu) const {
    const int place = gpu % stage_gpus() - first_expert_gpu();
    return place < 0 ? std::nullopt : std::optional(place / moe_tp());
  }
  /// The stage that holds a layer: contiguous layers, as many to each as can be. Those left over go
  /// to the stages before the last (get_pp_indices() of vLLM and SGLang).
  int stage_of(int layer, int layers) const {
    const int each = layers / pp, left_over = layers % pp, smaller = pp - 1 - left_over;
    if (layer < smaller * each) return layer / each;
    return smaller + (layer - smaller * each) / (each + 1);
  }
};
/// The plan by which one of the groups of a rank cuts weights and heads, as if the group were all
/// of the rank.
ParallelPlan of_slices(const ParallelPlan&);
/// True if PCP can divide its prompts: no layer passes a state from token to token.
bool divides_prompts(const MoeModel&);
/// The plan of steps under the rule of decode.
ParallelPlan in_decode(const ParallelPlan&);
/// Warning where not every kernel takes a slice of an expert, of the shared experts or of a dense
/// FFN, else empty. Such a slice is one of fp8 in blocks that is not whole blocks of 128. vLLM 0.11
/// refuses it (vllm/model_executor/layers/quantization/fp8.py). Measured runs of vLLM 0.18 cut
/// MiniMax-M2.5's experts into slices of 192.
std::string slice_warning(const MoeModel&, const ParallelPlan&, const PrecisionPlan&);

/// Reads the plan. If not given, dp, tp and pp are 1; ep is all GPUs that hold experts (1 for a
/// dense model), and micro_batches 2 with AFD. Throws ConfigError unless ep divides those GPUs, and
/// moe_tp divides an expert's width. An ep above the number of experts needs copies. Also tp must
/// divide the query heads, one of tp and the KV heads the other, and every stage needs a layer. AFD
/// needs experts and one stage, and stripe_fault() must find nothing. The rules of ep hold for
/// decode_ep, which is at most the number of experts.
ParallelPlan read_parallel(const ConfigNode&, const MoeModel&);
std::span<const Key> parallel_keys();

}  // namespace moesim
