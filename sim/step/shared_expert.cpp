// SPDX-License-Identifier: Apache-2.0
#include "sim/step/shared_expert.hpp"

#include <algorithm>
#include <numeric>

#include "hardware/at.hpp"
#include "hardware/choice.hpp"
#include "sim/token_routing/routers.hpp"

namespace moesim {

namespace {

// A token's own rank counts for 11, others for 10.
constexpr std::int64_t preference = 11, usual = 10;

// The rank of the least load, if a lighter one than the first pays.
std::int32_t lightest(std::span<const std::int32_t> visited, std::span<const std::int32_t> load) {
  std::int32_t best = visited.front();
  for (const std::int32_t rank : visited) {
    if (load[at(rank)] * preference < load[at(best)] * usual) best = rank;
  }
  return best;
}

}  // namespace

std::span<const Key> shared_expert_keys() {
  static constexpr Key keys[] = {{"type", form::choice(shared_expert_names), required,
                                  "the token's own, the same as one more slot, or one with room"},
                                 {"min_tokens", form::integer(1, 1 << 24), "64",
                                  "waterfill: a rank with fewer tokens keeps all of them"}};
  return keys;
}

SharedExpert read_shared_expert(const ConfigNode& node) {
  return read_object(node.as_policy(), shared_expert_keys, [](ConfigReader& reader) {
    return SharedExpert{choice<SharedExpert::Type>(reader, "type", shared_expert_names),
                        static_cast<std::int32_t>(reader.integer("min_tokens"))};
  });
}

MoeModel beside_slots(MoeModel model, const SharedExpert& shared) {
  if (shared.is_slot()) model.shared_width = 0;
  return model;
}

// Waterfill (sgl-project/sglang#19290, srt/layers/moe/deepep_waterfill.py). L[r]: routed selections
// of rank r, N: tokens, R: ranks.
//
//   H = ceil((sum of L[r] + N) / R),  S[r] = max(H - L[r], 0)
//
// and each token draws among the ranks that it visits, with weight S[r], and its own, with weight
// 1.1 S[r]. Left out: their L[r] counts the tokens of the rank too. They open all ranks to a token
// where none is above H. With a static EPLB each rank goes by its own counts alone.
void waterfill(const SharedExpert& policy, const RoutingProblem& problem,
               const LayerPlacement& placement, std::span<const std::int32_t> slots,
               std::span<const std::int32_t> load, std::vector<std::int32_t>& rank_of_token,
               OwnRank own_rank) {
  const bool stays = own_rank == OwnRank::has_experts;
  const std::span<const std::int32_t> source = problem.rows.source_rank;
  rank_of_token.assign(source.begin(), source.end());
  if (source.empty()) return;
  const std::int64_t ranks = std::ssize(load), tokens = std::ssize(source);
  const std::int64_t line =
      (std::accumulate(load.begin(), load.end(), std::int64_t{0}) + tokens + ranks - 1) / ranks;
  std::vector<std::int64_t> weight;  // [ranks]
  for (const std::int32_t of_rank : load)
    weight.push_back(std::max<std::int64_t>(line - of_rank, 0));
  const std::size_t k = slots.size() / source.size();
  if (!stays) first_choices(placement, slots, source.size(), rank_of_token);
  Rng rng = layer_step_stream(0, problem, "shared_expert/waterfill");
  std::vector<std::int32_t> visited;
  for (std::size_t first = 0, end = 0; first < source.size(); first = end) {
    const std::int32_t own = source[first];
    while (end < source.size() && source[end] == own) ++end;
    if (stays && std::ssize(source.subspan(first, end - first)) < policy.min_tokens) continue;
    const auto weight_of = [&](std::int32_t rank) {
      return (stays && rank == own ? preference : usual) * weight[at(rank)];
    };
    for (std::size_t token = first; token < end; ++token) {
      visited.assign(1, rank_of_token[token]);
      std::int64_t sum = weight_of(visited.front());
      for (const std::int32_t slot : slots.subspan(token * k, k)) {
        if (slot < 0) continue;
        const std::int32_t rank = placement.gpu_of_slot(slot);
        if (std::ranges::find(visited, rank) != visited.end()) continue;
        visited.push_back(rank);
        sum += weight_of(rank);
      }
      if (sum == 0) {
        rank_of_token[token] = lightest(visited, load);
        continue;
      }
      auto left = static_cast<std::int64_t>(rng.below(static_cast<std::uint64_t>(sum)));
      for (const std::int32_t rank : visited) {
        left -= weight_of(rank);
        if (left >= 0) continue;
        rank_of_token[token] = rank;
        break;
      }
    }
  }
}

void first_choices(const LayerPlacement& placement, std::span<const std::int32_t> slots,
                   std::size_t tokens, std::vector<std::int32_t>& rank_of_token) {
  rank_of_token.assign(tokens, 0);
  const std::size_t k = tokens > 0 ? slots.size() / tokens : 0;
  for (std::size_t token = 0; token < tokens; ++token) {
    const std::span<const std::int32_t> of_token = slots.subspan(token * k, k);
    const auto runs = std::ranges::find_if(of_token, [](std::int32_t slot) { return slot >= 0; });
    if (runs != of_token.end()) rank_of_token[token] = placement.gpu_of_slot(*runs);
  }
}

}  // namespace moesim
