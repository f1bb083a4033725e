// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string_view>

#include "hardware/fabric.hpp"
#include "hardware/kernels/expert_kernel.hpp"
#include "hardware/registry.hpp"

namespace moesim {

/// The tokens of one layer on their way to the experts and back.
struct DispatchProblem {
  const Fabric& fabric;
  std::span<const double> tokens;  ///< tokens that each GPU contributes, [gpus]
  double hidden = 0;               ///< d
  double experts_per_token = 0;    ///< k
  double experts = 0;              ///< of the layer
  /// Token copies of this layer, one per destination GPU, across domains one per destination domain
  /// and then forwarded; only when needs_copies().
  const LinkTraffic* copies = nullptr;
  /// Token copies, one per token and expert, straight to its GPU; only when needs_selections().
  const LinkTraffic* selections = nullptr;
  /// True if the router must see the choices of the whole group before it picks replicas ...
  bool needs_global_counts = false;
  /// ... and what top-k over all their tokens then costs every GPU, if hidden states are gathered
  /// before it.
  Seconds top_k_of_all_tokens{};
  /// True if senders hold no experts, and receivers no tokens (AFD): no table is of that.
  bool between_sides = false;
};

/// Parts of the GPUs that one way of an exchange takes while they compute something else.
struct Occupancy {
  Seconds kernels{};  ///< sending and receiving on all SMs; its other time is in flight
  double sms = 0;     ///< share of the SMs that are held while it is in flight
};

struct Exchange {
  std::string_view name;  ///< of the policy that was used: another than asked for under `auto`
  CollectiveCost dispatch;
  CollectiveCost combine;
  Seconds top_k{};             ///< charged beside the links
  Occupancy dispatch_holds{};  ///< of the GPU
  Occupancy combine_holds{};
  /// That computes tokens as they arrive. Masked: in a buffer for each expert. With mega_moe no way
  /// takes time of its own.
  ExpertKernel experts = ExpertKernel::grouped_gemm;
  bool gathered = false;  ///< every GPU of the group holds all of its tokens
  Seconds total() const { return dispatch.time + combine.time + top_k; }
};

/// How token activations reach the GPUs of their experts, and how results come back.
class Dispatch {
 public:
  virtual ~Dispatch() = default;
  virtual Exchange exchange(const DispatchProblem&) const = 0;
  /// True if every GPU learns the top-k choices of all tokens before it must pick replicas.
  virtual bool gives_global_counts() const = 0;
  virtual bool needs_copies() const { return false; }
  virtual bool needs_selections() const { return false; }
  /// True if all GPUs of the group must be in one NVLink domain.
  virtual bool within_nvlink() const { return false; }
  /// True if one kernel moves tokens and multiplies them: mega_moe_kernel.
  virtual bool fuses_experts() const { return false; }
  /// True if it can give every GPU of the group all tokens. If experts have GPUs of their own,
  /// these hold no tokens to gather.
  virtual bool gathers_tokens() const { return false; }
  /// Token rows that one GPU must have room for while each of `ranks` sends up to `tokens` to the
  /// group's slots: one per token.
  virtual double buffer_rows(double tokens, double ranks, double /*slots*/) const {
    return tokens * ranks;
  }
  /// Bytes that these buffers may take; 0: no limit but memory.
  virtual Bytes buffer_limit() const { return {}; }
};

/// The table, in the order of `moesim list`.
const Registry<Dispatch>& dispatches();

/// Bytes of one token's activations on the way out: "precision" of the policy, bf16 unless said;
/// fp8_block adds a 4-byte scale per 128 values (DeepEP). On the way back they are bf16.
struct TokenBytes {
  Precision precision = Precision::bf16;
  double out(double hidden) const;
  double back(double hidden) const { return 2 * hidden; }
};
TokenBytes read_token_bytes(ConfigReader& options);
inline constexpr Key token_precision_key{"precision", form::choice(precision_names), "bf16",
                                         "in which tokens travel to experts"};
std::span<const Key> token_bytes_keys();

/// How results return after an all-gather.
enum class Combine { all_to_all, reduce_scatter };

std::unique_ptr<Dispatch> all_to_all(TokenBytes);
std::unique_ptr<Dispatch> low_latency(TokenBytes);
std::unique_ptr<Dispatch> all_gather(TokenBytes, Combine);
std::unique_ptr<Dispatch> ids_all_gather(TokenBytes);

/// The problem's copies on their way out, by `selections` where the kernels are of low latency.
CollectiveCost send_out(const DispatchProblem&, const TokenBytes&,
                        TokenKernels = TokenKernels::normal);
/// The same copies on their way back.
CollectiveCost send_back(const DispatchProblem&, const TokenBytes&,
                         TokenKernels = TokenKernels::normal);
/// Parts of a GPU that DeepEP's normal kernels take in either direction.
Occupancy normal_kernels(const DispatchProblem&);

}  // namespace moesim
