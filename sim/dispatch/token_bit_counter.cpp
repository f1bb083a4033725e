// SPDX-License-Identifier: Apache-2.0
#include "sim/dispatch/token_bit_counter.hpp"

#include <algorithm>
#include <array>

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
  return _mm512_maskz_expand_epi8(used, bytes);
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

// Adds to eight counts what a table of eight bits says.
MOESIM_VECTORS void add_byte(std::span<const std::uint16_t> all_ids, std::size_t k,
                             const std::uint8_t* table, std::int32_t* counts) {
  const __m512i bit_of_lane =
      _mm512_set1_epi64(static_cast<long long>(std::uint64_t{0x8040201008040201}));
  const __m512i one = _mm512_set1_epi8(1);
  // So many lanes of a token hold a choice.
  const std::uint64_t choices = (std::uint64_t{1} << k) - 1;
  const std::uint64_t used_of_all = choices * 0x0101010101010101;
  const std::size_t at_once = tokens_at_once * k;
  const std::uint16_t* ids = all_ids.data();
  for (std::size_t left = all_ids.size(); left > 0;) {
    __m512i sums = _mm512_setzero_si512();
    for (std::size_t i = 0; i < countable && left > 0; ++i) {
      const std::size_t now = std::min(left, at_once);
      const std::size_t lanes = now / k * 8;
      const auto used = static_cast<__mmask64>(
          lanes == 64 ? used_of_all : used_of_all & ((std::uint64_t{1} << lanes) - 1));
      const __m512i bits = together(load_ids(ids, now, used), used, table);
      sums = _mm512_mask_add_epi8(sums, _mm512_test_epi8_mask(bits, bit_of_lane), sums, one);
      ids += now;
      left -= now;
    }
    add_lanes(sums, counts);
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
  byte_of_rank_.resize(bits_of_rank.size() / words);
  for (std::size_t byte = 0; byte < tables_.size(); ++byte) {
    const std::size_t word = byte / bytes_of_word, shift = bits_of_byte * (byte % bytes_of_word);
    for (std::size_t rank = 0; rank < byte_of_rank_.size(); ++rank)
      byte_of_rank_[rank] = static_cast<std::uint8_t>(bits_of_rank[rank * words + word] >> shift);
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
