// SPDX-License-Identifier: Apache-2.0
#include "sim/dispatch/token_bit_counter.hpp"

#include <algorithm>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "hardware/at.hpp"

namespace moesim {

#if defined(__x86_64__)

namespace {

#define MOESIM_VECTORS __attribute__((target("avx512f,avx512bw,avx512vl,avx512vbmi,avx512vbmi2")))

constexpr std::size_t bits_of_byte = 8;
constexpr std::size_t tokens_at_once = 8;  // a token has eight lanes of a byte
constexpr std::size_t countable = 255;     // in a lane
constexpr std::size_t ranks_at_once = 64;  // that one instruction looks up

// The ids of eight tokens, k lanes used of the eight of each; `count` ids are there.
MOESIM_VECTORS __m512i load_ids(const std::uint16_t* ids, std::size_t count, __mmask64 used) {
  const auto first = [](std::size_t n) {
    return static_cast<__mmask32>(n >= 32 ? ~std::uint32_t{0} : (std::uint32_t{1} << n) - 1);
  };
  const __m512i low = _mm512_maskz_loadu_epi16(first(count), ids);
  const __m512i high = _mm512_maskz_loadu_epi16(first(count > 32 ? count - 32 : 0), ids + 32);
  constexpr auto all = static_cast<__mmask32>(-1);
  const __m512i bytes =
      _mm512_maskz_inserti64x4(0xff, _mm512_castsi256_si512(_mm512_maskz_cvtepi16_epi8(all, low)),
                               _mm512_maskz_cvtepi16_epi8(all, high), 1);
  return count == 64 ? bytes : _mm512_maskz_expand_epi8(used, bytes);
}

// The byte that the choices of each of eight tokens set together, in all eight lanes of the token.
MOESIM_VECTORS __m512i together(__m512i ids, __mmask64 used, const std::uint8_t* table) {
  const __m512i near =
      _mm512_permutex2var_epi8(_mm512_loadu_si512(table), ids, _mm512_loadu_si512(table + 64));
  const __m512i far = _mm512_permutex2var_epi8(_mm512_loadu_si512(table + 128), ids,
                                               _mm512_loadu_si512(table + 192));
  const __mmask64 is_far = _mm512_movepi8_mask(ids);
  __m512i bits = _mm512_maskz_mov_epi8(used, _mm512_mask_mov_epi8(near, is_far, far));
  // Into the lowest byte of each token.
  for (const int shift : {32, 16, 8}) bits |= bits >> shift;
  const __m512i lowest_everywhere = _mm512_set_epi64(0x0808080808080808, 0, 0x0808080808080808, 0,
                                                     0x0808080808080808, 0, 0x0808080808080808, 0);
  return _mm512_shuffle_epi8(bits, lowest_everywhere);
}

// Adds the lanes of eight tokens to the counts of eight bits.
MOESIM_VECTORS void add_lanes(__m512i lanes, std::int32_t* counts) {
  const __m512i of_four =
      _mm512_add_epi16(_mm512_cvtepu8_epi16(_mm512_maskz_extracti64x4_epi64(0xff, lanes, 0)),
                       _mm512_cvtepu8_epi16(_mm512_maskz_extracti64x4_epi64(0xff, lanes, 1)));
  const __m256i of_two = _mm256_add_epi16(_mm512_maskz_extracti64x4_epi64(0xff, of_four, 0),
                                          _mm512_maskz_extracti64x4_epi64(0xff, of_four, 1));
  const __m128i of_all =
      _mm_add_epi16(_mm256_castsi256_si128(of_two), _mm256_extracti128_si256(of_two, 1));
  auto* const to = reinterpret_cast<__m256i*>(counts);
  _mm256_storeu_si256(to, _mm256_add_epi32(_mm256_loadu_si256(to), _mm256_cvtepu16_epi32(of_all)));
}

// Counts one in each lane of a token whose bit is set: bit i in lane i.
MOESIM_VECTORS __m512i count_lanes(__m512i sums, const std::uint16_t* ids, std::size_t count,
                                   __mmask64 used, const std::uint8_t* table) {
  const __m512i bit_of_lane =
      _mm512_set1_epi64(static_cast<long long>(std::uint64_t{0x8040201008040201}));
  const __m512i bits = together(load_ids(ids, count, used), used, table);
  return _mm512_mask_add_epi8(sums, _mm512_test_epi8_mask(bits, bit_of_lane), sums,
                              _mm512_set1_epi8(1));
}

// Adds to eight counts what a table of eight bits says.
MOESIM_VECTORS void add_byte(std::span<const std::uint16_t> all_ids, std::size_t k,
                             const std::uint8_t* table, std::int32_t* counts) {
  // So many lanes of a token hold a choice.
  const std::uint64_t choices = (std::uint64_t{1} << k) - 1;
  const auto used = static_cast<__mmask64>(choices * 0x0101010101010101);
  const std::size_t at_once = tokens_at_once * k;
  const std::uint16_t* ids = all_ids.data();
  for (std::size_t left = all_ids.size(); left > 0;) {
    __m512i sums = _mm512_setzero_si512();
    const std::size_t whole = std::min(left / at_once, countable);
    for (std::size_t i = 0; i < whole; ++i, ids += at_once)
      sums = count_lanes(sums, ids, at_once, used, table);
    left -= whole * at_once;
    if (whole < countable && left > 0) {
      const std::size_t lanes = left / k * 8;
      const auto of_rest = static_cast<__mmask64>((std::uint64_t{1} << lanes) - 1);
      sums = count_lanes(sums, ids, left, used & of_rest, table);
      left = 0;
    }
    add_lanes(sums, counts);
  }
}

// table[expert] = byte_of_rank[rank_of_expert[expert]], of up to 64 ranks.
MOESIM_VECTORS void look_up(std::span<const std::int32_t> rank_of_expert,
                            const std::uint8_t* byte_of_rank, std::uint8_t* table) {
  const __m512i of_rank = _mm512_loadu_si512(byte_of_rank);
  constexpr std::size_t at_once = 16;
  for (std::size_t i = 0; i < rank_of_expert.size(); i += at_once) {
    const std::size_t left = std::min(at_once, rank_of_expert.size() - i);
    const auto here = static_cast<__mmask16>((1U << left) - 1);
    const __m512i ranks = _mm512_maskz_loadu_epi32(here, rank_of_expert.data() + i);
    const __m512i bytes = _mm512_maskz_permutexvar_epi8(~__mmask64{0}, ranks, of_rank);
    // A rank's upper three bytes are zero, and so look up rank 0; they are cut off again.
    _mm_storeu_si128(reinterpret_cast<__m128i*>(table + i),
                     _mm512_maskz_cvtepi32_epi8(here, bytes));
  }
}

#undef MOESIM_VECTORS

bool has_vectors() {
  static const bool has =
      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("avx512vbmi2");
  return has;
}

}  // namespace

#endif

bool TokenBitCounter::set([[maybe_unused]] std::span<const std::int32_t> rank_of_expert,
                          [[maybe_unused]] std::span<const std::uint64_t> bits_of_rank,
                          [[maybe_unused]] std::size_t bits, [[maybe_unused]] std::size_t k) {
#if defined(__x86_64__)
  constexpr std::size_t most_choices = 8, bytes_of_word = 8;
  if (!has_vectors() || k == 0 || k > most_choices || rank_of_expert.size() > Table{}.size())
    return false;
  k_ = k;
  const std::size_t words = (bits + 63) / 64;
  tables_.assign((bits + bits_of_byte - 1) / bits_of_byte, {});
  const std::size_t ranks = bits_of_rank.size() / words;
  byte_of_rank_.resize(std::max(ranks, ranks_at_once));
  for (std::size_t byte = 0; byte < tables_.size(); ++byte) {
    const std::size_t word = byte / bytes_of_word, shift = bits_of_byte * (byte % bytes_of_word);
    for (std::size_t rank = 0; rank < ranks; ++rank)
      byte_of_rank_[rank] = static_cast<std::uint8_t>(bits_of_rank[rank * words + word] >> shift);
    if (ranks <= ranks_at_once) {
      look_up(rank_of_expert, byte_of_rank_.data(), tables_[byte].data());
      continue;
    }
    for (std::size_t expert = 0; expert < rank_of_expert.size(); ++expert)
      tables_[byte][expert] = byte_of_rank_[at(rank_of_expert[expert])];
  }
  return true;
#else
  return false;
#endif
}

void TokenBitCounter::add([[maybe_unused]] std::span<const std::uint16_t> ids,
                          [[maybe_unused]] std::span<std::int32_t> counts) const {
#if defined(__x86_64__)
  for (std::size_t byte = 0; byte < tables_.size(); ++byte) {
    add_byte(ids, k_, tables_[byte].data(),
             counts.subspan(byte * bits_of_byte, bits_of_byte).data());
  }
#endif
}

}  // namespace moesim
