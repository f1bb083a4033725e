// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>

#include "hardware/fabric.hpp"
#include "hardware/registry.hpp"

namespace moesim {

/// The tokens of one layer on their way to the experts and back.
struct DispatchProblem {
  const Fabric& fabric;
  std::span<const double> tokens;  ///< tokens that each GPU contributes, [gpus]
  /// Token copies [from, to] of this layer, one per destination GPU, across domains one per
  /// destination domain and then forwarded; only when needs_copies().
  const TrafficMatrix* copies = nullptr;
  double hidden = 0;             ///< d
  double experts_per_token = 0;  ///< k
};

struct Exchange {
  CollectiveCost dispatch;
  CollectiveCost combine;
};

/// How token activations reach the GPUs of their experts, and how results come back.
class Dispatch {
 public:
  virtual ~Dispatch() = default;
  virtual Exchange exchange(const DispatchProblem&) const = 0;
  /// Whether every GPU learns the top-k choices of all tokens before it must pick replicas.
  virtual bool gives_global_counts() const = 0;
  /// Whether top-k runs on all tokens on every GPU, because hidden states were gathered before it.
  virtual bool gathers_before_gate() const = 0;
  virtual bool needs_copies() const = 0;
};

/// The table: all_to_all, all_gather, ids_all_gather.
const Registry<Dispatch>& dispatches();

std::unique_ptr<Dispatch> make_all_to_all(ConfigReader&);
std::unique_ptr<Dispatch> make_all_gather(ConfigReader&);
std::unique_ptr<Dispatch> make_ids_all_gather(ConfigReader&);

/// Bytes of one token's activations on the way out: "precision" of the policy, bf16 unless said;
/// fp8_block adds a 4-byte scale per 128 values (DeepEP). On the way back they are bf16.
struct TokenBytes {
  Precision precision = Precision::bf16;
  double out(double hidden) const;
  double back(double hidden) const { return 2 * hidden; }
};
TokenBytes read_token_bytes(ConfigReader& options);

/// Both legs of an all-to-all over the copies.
Exchange all_to_all_exchange(const DispatchProblem&, const TokenBytes&);
/// The way back of an all-to-all alone.
CollectiveCost all_to_all_combine(const DispatchProblem&, const TokenBytes&);

}  // namespace moesim
