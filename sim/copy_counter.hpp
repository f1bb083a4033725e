// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "hardware/fabric.hpp"
#include "sim/placement/placement.hpp"

namespace moesim {

/// How often a token travels.
enum class CopyRule {
  per_gpu,       ///< once to each destination GPU, across domains once per domain, then forwarded
  per_selection  ///< once per expert that it chose, straight there
};

/// Counts which GPU sends how many token copies to which in one layer. Selections of an expert fill
/// its slots in (source rank, position) order, the order of the tokens. A token is copied once to
/// each destination GPU; to another NVLink domain once per domain, to the GPU of the sender's own
/// index there, which forwards it (DeepEP; policies.md 5). Keeps its memory between layers: one per
/// thread.
class CopyCounter {
 public:
  /// `ids` are the layer's choices [tokens, k]; `source_gpu` [tokens] never decreases; an expert
  /// rank is `moe_tp` GPUs, all of which need its tokens. `copies` is overwritten: [from, to],
  /// local ones on the diagonal. At most 64 domains.
  void count(const LayerPlacement&, std::span<const std::int32_t> tokens_of_slot,
             std::span<const std::uint16_t> ids, std::span<const std::int32_t> source_gpu,
             int moe_tp, int domain, CopyRule, TrafficMatrix& copies);
  /// The same where every selection has its own slot, [tokens, k], or -1: it goes nowhere.
  void count(const LayerPlacement&, std::span<const std::int32_t> slot_of_selection,
             std::span<const std::int32_t> source_gpu, int moe_tp, int domain, CopyRule,
             TrafficMatrix& copies);

 private:
  struct Expert {
    std::int32_t left;   // tokens that its current slot still takes
    std::int32_t place;  // of that slot among the expert's slots
    std::int32_t rank;   // of that slot
  };

  void start(const LayerPlacement&, std::span<const std::int32_t> tokens_of_slot);
  void next_slot(const LayerPlacement&, std::span<const std::int32_t> tokens_of_slot, int expert);
  template <class VisitRank>
  void count_sources(int ranks, std::size_t k, std::span<const std::int32_t> source_gpu, int moe_tp,
                     int domain, CopyRule, TrafficMatrix& copies, VisitRank&& visit_rank);
  template <std::size_t words, class VisitRank>
  void count_source(std::size_t first, std::size_t end, std::size_t k, VisitRank&& visit_rank);
  template <class VisitRank>
  void count_selections(std::size_t first, std::size_t end, VisitRank&& visit_rank);
  void expand(int source, int moe_tp, int domain, TrafficMatrix& copies) const;

  std::vector<Expert> experts_;
  std::vector<std::uint64_t> domains_of_rank_;  // one bit per domain
  std::vector<std::int32_t> to_rank_, to_domain_;
};

/// The slot of every selection, [tokens, k], where only counts per slot were chosen: selections of
/// an expert fill its slots in order. -1 for selections with `dropped` [tokens, k].
void slots_in_order(const LayerPlacement&, std::span<const std::int32_t> tokens_of_slot,
                    std::span<const std::uint16_t> ids, std::span<const std::uint8_t> dropped,
                    std::vector<std::int32_t>& slot_of_selection);

}  // namespace moesim
