// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "hardware/config.hpp"
#include "hardware/keys.hpp"
#include "models/moe_model.hpp"
#include "sim/token_routing/token_routing.hpp"

namespace moesim {

/// Which rank computes the shared expert of a token. All ranks hold its weights. With AFD `local`
/// stands on attention's GPUs, and the others on the experts' GPUs, where tokens have no own rank.
struct SharedExpert {
  enum class Type {
    local,     ///< the token's own, in a GEMM of its own
    fused,     ///< the token's own, as one more slot of the routed experts (sglang#20089); with
               ///< AFD that of its first choice
    waterfill  ///< one that the token visits anyway, as one more slot, by draw (sglang#19290)
  };
  Type type = Type::local;
  /// waterfill: a rank with fewer tokens keeps all of them.
  std::int32_t min_tokens = 0;

  bool is_slot() const { return type != Type::local; }
  bool draws() const { return type == Type::waterfill; }
};
inline constexpr std::array<std::string_view, 3> shared_expert_names{"local", "fused", "waterfill"};

/// "local", "fused", "waterfill" or {"type": "waterfill", "min_tokens": 64}. Throws ConfigError.
SharedExpert read_shared_expert(const ConfigNode&);
std::span<const Key> shared_expert_keys();

/// The model less a shared expert that is a slot: what ranks compute beside routed experts.
MoeModel beside_slots(MoeModel, const SharedExpert&);

/// Kinds of the own rank of a token: it holds experts, or with AFD none.
enum class OwnRank { has_experts, has_none };

/// The rank of every token's shared expert under waterfill, [tokens]: drawn among the ranks that
/// the token visits and its own, which `problem.rows` names. `slots` are those of its selections,
/// [tokens, k], -1 for those that do not run; `load` is the routed selections of every rank. Where
/// no such rank is below the water line, it is the token's own, unless it has more than 1.1 times
/// the load of another one. With AFD it is one that the token visits, in any case.
void waterfill(const SharedExpert&, const RoutingProblem&, const LayerPlacement&,
               std::span<const std::int32_t> slots, std::span<const std::int32_t> load,
               std::vector<std::int32_t>& rank_of_token, OwnRank = OwnRank::has_experts);

/// The rank of every token's first choice that runs, [tokens], from such slots; 0 where none does.
void first_choices(const LayerPlacement&, std::span<const std::int32_t> slots, std::size_t tokens,
                   std::vector<std::int32_t>& rank_of_token);

}  // namespace moesim
