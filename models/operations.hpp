// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <string_view>
#include <vector>

#include "hardware/kernels/attention.hpp"
#include "hardware/roofline.hpp"
#include "models/deployment.hpp"

namespace moesim {

/// The parts of a step, as the report's breakdown names them.
enum class Part {
  attention,
  all_reduce,
  gate,
  token_routing,
  permute,
  dispatch,
  experts,
  shared_experts,
  combine,
  dense_ffn,
  rebalancing,  ///< weights of experts on the move: of no operation
  pipeline,     ///< a stage of a pipeline waits for another, or for what travels between them
  other
};
inline constexpr std::array<std::string_view, 13> part_names{
    "attention",      "all_reduce", "gate",      "token_routing", "permute",  "dispatch", "experts",
    "shared_experts", "combine",    "dense_ffn", "rebalancing",   "pipeline", "other"};

/// An operation of one GPU in one layer (or once per step), as `explain` shows it.
struct Operation {
  std::string_view name;  ///< a literal: "qkv_proj", "attention_decode", ...
  Part part;
  Cost cost;
};

inline constexpr double bf16_bytes = 2;
inline constexpr double fp32_bytes = 4;

/// Bytes that a fused residual-add RMSNorm moves for one token: both streams, in and out.
constexpr double norm_bytes(int hidden) { return 4.0 * hidden * bf16_bytes; }

/// True if the engine whose tables price the GPU computes "norm", "rope" or "quantise" inside a
/// larger kernel.
bool fuses(const GpuSpec&, std::string_view operation);
/// Norms behind the mixer and the FFN are part of the TP all-reduce.
bool norm_is_in_all_reduce(const ParallelPlan&, const GpuSpec&);
/// True if a table of the GPU gives the cost. Tables time whole modules of an engine. These are
/// linear layers with the quantisation of their inputs, attention with the write into the KV cache,
/// and expert layers with top-k.
bool is_by_table(const Cost&, const GpuSpec&);

/// Appends the operations of one GPU, priced. Work of no tokens is left out, so that it costs no
/// launch.
class OperationList {
 public:
  /// Operations of one part of a step, whose weights are in the precision of attention or of FFNs.
  OperationList(Part, const PrecisionPlan&, const GpuSpec&, std::vector<Operation>& out);

  /// Adds [m, k] x [k, n] with weights in the precision of the part. A kernel of its own quantises
  /// narrow activations, read in bf16 and written as multiplied. Its time is in tables of GEMMs.
  /// With weights in bf16 activations stay as they are.
  void gemm(std::string_view name, double m, double n, double k);
  void bf16_gemm(std::string_view name, double m, double n, double k);
  /// A kernel that moves bytes and computes next to nothing.
  void memory(std::string_view name, double bytes);
  /// Queries against keys and values. Queries stay in bf16, and with them the product, however the
  /// cache is stored: FlashMLA and FlashInfer widen an fp8 cache on the way in.
  void attention(std::string_view name, AttentionShape, AttentionLoad, double flops, double bytes);
  void attention(std::string_view name, LatentAttentionShape, AttentionLoad, double flops,
                 double bytes);
  void absorption(std::string_view name, bool keys, double queries, const LatentAttentionShape&);
  /// An operation that has its price.
  void priced(std::string_view name, const Cost& cost) { out_.push_back({name, part_, cost}); }
  /// An operation by a kernel that no table knows.
  void kernel(std::string_view name, const Kernel&, double flops, double bytes);

 private:
  Part part_;
  Precision weights_, activations_, kv_cache_;
  const GpuSpec& gpu_;
  std::vector<Operation>& out_;
};

}  // namespace moesim
