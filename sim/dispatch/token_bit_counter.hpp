// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace moesim {

/// Counts how many tokens have a choice that sets a bit, with AVX-512 (VBMI, VBMI2): 64 choices at
/// a time. Keeps its memory.
class TokenBitCounter {
 public:
  /// Every expert's rank, every rank's bits, [ranks, words of 64], of which so many are used, and
  /// how many choices a token has. Answers false where it cannot count: on a CPU without these
  /// instructions, for more than 256 experts or more than 8 choices.
  bool set(std::span<const std::int32_t> rank_of_expert,
           std::span<const std::uint64_t> bits_of_rank, std::size_t bits, std::size_t k);

  /// Adds to counts[b] the tokens with a choice that sets bit b; there are eight counts for each
  /// eight bits begun. `ids` is [tokens, k].
  void add(std::span<const std::uint16_t> ids, std::span<std::int32_t> counts) const;

 private:
  using Table = std::array<std::uint8_t, 256>;  // eight of each expert's bits

  std::vector<Table> tables_;
  std::vector<std::uint8_t> byte_of_rank_;
  std::size_t k_ = 0;
};

}  // namespace moesim
