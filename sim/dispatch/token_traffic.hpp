// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "hardware/fabric.hpp"
#include "sim/dispatch/token_bit_counter.hpp"
#include "sim/placement/placement.hpp"

namespace moesim {

/// How often a token travels.
enum class CopyRule {
  per_gpu,       ///< once to each destination GPU, across domains once per domain, then forwarded
  per_selection  ///< once per expert that it chose, straight there
};

/// How copies of tokens travel within a group.
struct CopyPaths {
  CopyRule rule = CopyRule::per_gpu;
  /// GPUs of an NVLink domain.
  int domain = 1;
  /// GPUs of an expert rank, all of which need its tokens.
  int moe_tp = 1;
  /// The first GPU that holds experts. Beyond 0 the senders hold none, and `per_gpu` copies go
  /// straight to their GPUs, whatever the domain (AFD).
  int first_gpu = 0;
};

/// Tokens of one GPU in a row, which replay as many rows in a row. Runs may replay the same rows;
/// such ones begin and end together.
struct TokenRun {
  std::int32_t gpu;
  std::int32_t rows;
  std::size_t first_row;
};
/// Runs where every token has a row of its own. `source_gpu` [tokens] never decreases.
std::vector<TokenRun> runs_of(std::span<const std::int32_t> source_gpu);

/// Counts how many token copies each GPU sends and receives in one layer. Selections of an expert
/// fill its slots in (source rank, position) order, the order of the tokens. A token is copied once
/// to each destination GPU. To another NVLink domain it is copied once, to the GPU of the sender's
/// own index there, which forwards it [DeepEP]. Keeps its memory between layers: one per thread.
class CopyCounter {
 public:
  /// Counts are the same with and without a CPU's vector instructions (token_bit_counter.hpp).
  explicit CopyCounter(bool vectors = true) : vectors_(vectors) {}

  /// The choices of one layer, whose slots are told by how many tokens each takes.
  struct Choices {
    std::span<const std::int32_t> tokens_of_slot;
    /// Experts with tokens; if as many slots have tokens, one slot serves each expert.
    std::int32_t active_experts;
    std::span<const std::uint16_t> ids;  ///< [rows, k]
    std::size_t rows;
    std::size_t k() const { return rows == 0 ? 0 : ids.size() / rows; }
  };
  /// GPUs of `runs` never decrease. `copies` is overwritten; what stays on its GPU is not in it.
  void count(const LayerPlacement&, const Choices&, std::span<const TokenRun> runs,
             const CopyPaths&, LinkTraffic& copies);
  /// Counts where every selection has its own slot, [tokens, k], or -1 where it goes nowhere.
  /// `source_gpu` [tokens] never decreases.
  void count(const LayerPlacement&, std::span<const std::int32_t> slot_of_selection,
             std::span<const std::int32_t> source_gpu, const CopyPaths&, LinkTraffic& copies);

 private:
  struct Target {
    std::uint64_t bits;  // the first word of the rank's bits
    std::int32_t rank;   // nowhere: -1
  };
  struct Domains {
    std::int32_t first, last;  // bits; none: last < first
  };
  struct Expert {
    std::uint64_t bits;  // of its current slot's rank, as in Target
    std::int32_t slot;   // none yet: -1
    std::int32_t left;   // tokens that this slot still takes
  };

  void name_targets(int ranks, int moe_tp, int domain);
  void find_sole_ranks(const LayerPlacement&, std::span<const std::int32_t> tokens_of_slot);
  void count_sole(const Choices&, std::span<const TokenRun> runs, const CopyPaths&,
                  LinkTraffic& copies);
  template <class Count>
  void count_once(const Choices&, std::span<const TokenRun> runs, const CopyPaths&,
                  LinkTraffic& copies, Count&& count);
  void chain_slots(const LayerPlacement&, std::span<const std::int32_t> tokens_of_slot);
  template <class Count>
  void for_each_run(std::span<const TokenRun> runs, const CopyPaths&, LinkTraffic& copies,
                    Count&& count);
  template <class TargetOf>
  void count_tokens(const TokenRun&, std::size_t k, CopyRule, TargetOf&& target_of);
  template <std::size_t Bytes, class TargetOf>
  void count_in_lanes(std::size_t first, std::size_t end, std::size_t k, TargetOf&& target_of);
  template <class TargetOf>
  void count_copies(std::size_t first, std::size_t end, std::size_t k, TargetOf&& target_of);
  void expand(int source, const CopyPaths&, LinkTraffic& copies);

  bool vectors_;
  TokenBitCounter bit_counter_;
  // A rank's bits: its own and, where there are several domains, those of its GPUs' domains behind
  // the bits of all ranks.
  std::array<int, 3> shape_{};  // ranks, moe_tp, domain
  int used_bits_ = 0;
  std::size_t words_ = 1;
  std::vector<std::uint64_t> bits_;       // [ranks, words]
  std::vector<Target> targets_;           // [ranks]
  std::vector<Domains> domains_;          // of a rank's GPUs, [ranks]
  std::vector<std::int64_t> last_token_;  // that set a bit, by the number of all counted
  std::int64_t token_ = 0;
  std::vector<std::int32_t> rank_of_expert_;
  std::vector<Target> target_of_expert_;
  std::vector<Expert> experts_;
  std::vector<std::int32_t> next_slot_;     // with tokens of the same expert, by slot
  std::vector<std::int32_t> counts_;        // by bit
  std::vector<std::size_t> counts_of_row_;  // where run_counts_ has those of the run from there
  std::vector<std::int32_t> run_counts_;    // [different runs, bits]
  std::vector<std::int32_t> of_source_;     // counts_ while those of a run are counted
  std::vector<std::int32_t> of_gpu_;        // of these, [GPUs of the experts]
};

/// Selections, and how many of them stay near their token.
struct Locality {
  std::int64_t selections = 0;
  std::int64_t own_gpu = 0;     ///< on the EP rank that holds the token
  std::int64_t own_domain = 0;  ///< within its NVLink domain, own ones too
  Locality& operator+=(const Locality&);
};
/// `slot_of_selection` is [tokens, k], -1 for selections that do not run, which do not count;
/// `source_rank` [tokens] is the EP rank of each token. `ranks_per_domain` ranks in a row share
/// NVLink.
Locality locality(const LayerPlacement&, std::span<const std::int32_t> slot_of_selection,
                  std::span<const std::int32_t> source_rank, int ranks_per_domain);

/// Returns the slot of every selection, [tokens, k], if only counts per slot were chosen.
/// Selections of an expert fill its slots in order. -1 for selections with `dropped` [tokens, k],
/// which may be empty.
void slots_in_order(const LayerPlacement&, std::span<const std::int32_t> tokens_of_slot,
                    std::span<const std::uint16_t> ids, std::span<const std::uint8_t> dropped,
                    std::vector<std::int32_t>& slot_of_selection);

/// Returns the same, but selections first fill a slot on the EP rank that holds their token
/// (`source_rank`, [tokens]). Selections that are left fill the other slots in order. `dropped` may
/// be empty.
void slots_near_first(const LayerPlacement&, std::span<const std::int32_t> tokens_of_slot,
                      std::span<const std::uint16_t> ids, std::span<const std::int32_t> source_rank,
                      std::span<const std::uint8_t> dropped,
                      std::vector<std::int32_t>& slot_of_selection);

}  // namespace moesim
