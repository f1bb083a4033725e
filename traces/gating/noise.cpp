// SPDX-License-Identifier: Apache-2.0
#include "traces/gating/noise.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <numbers>

// For the widest vectors of each CPU. Sanitizers cannot look up which.
#if defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__) && !defined(__clang__) && \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define MOESIM_EACH_CPU __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define MOESIM_EACH_CPU
#endif

namespace moesim {
namespace {

constexpr std::size_t at_once = 256;
using Block = std::array<double, at_once>;

// 1/n + z / (n + 2) + .. + z^.. / last. Written out by templates, as loops within a loop would keep
// it from being vectorised.
template <int n, int last>
[[gnu::always_inline]] inline double of_artanh(double z) {
  if constexpr (n == last)
    return 1. / n;
  else
    return 1. / n + z * of_artanh<n + 2, last>(z);
}

// 1 - z / (n (n + 1)) (1 - z / ((n + 2) (n + 3)) (..)), up to `last`.
template <int n, int last>
[[gnu::always_inline]] inline double of_sine(double z) {
  if constexpr (n > last)
    return 1;
  else
    return 1 - z * (1. / (n * (n + 1))) * of_sine<n + 2, last>(z);
}

// log(x) of 0 < x <= 1 without a branch, to 2 units in the last place: x = m 2^e with m near 1, and
// log(m) = 2 artanh((m - 1) / (m + 1)) as a series.
[[gnu::always_inline]] inline double log_of_share(double x) {
  constexpr std::uint64_t half_root = 0x3fe6a09e667f3bcd;  // of 1/2: m is above it
  constexpr std::uint64_t bias = std::uint64_t{1024} << 52;
  constexpr double magic = 0x1p52;
  const auto bits = std::bit_cast<std::uint64_t>(x);
  const std::uint64_t power = (bits - half_root + bias) >> 52;  // e + 1024
  const double m = std::bit_cast<double>(bits - (power << 52) + bias);
  const double e =
      std::bit_cast<double>(std::bit_cast<std::uint64_t>(magic) | power) - magic - 1024;
  const double s = (m - 1) / (m + 1), z = s * s;
  return e * std::numbers::ln2 + 2 * (s + s * z * of_artanh<3, 23>(z));
}

// cos(2 pi x) of 0 <= x < 1, as the sine of an angle within a quarter turn of 0.
[[gnu::always_inline]] inline double cos_of_turn(double x) {
  const double angle = 2 * std::numbers::pi * (std::abs(x - .5) - .25);
  return angle * of_sine<2, 24>(angle * angle);
}

MOESIM_EACH_CPU void add_block(const Block& first, const Block& second, double spread,
                               double* __restrict values, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    const double radius = std::sqrt(-2 * log_of_share(first[i]));
    values[i] += spread * (radius * cos_of_turn(second[i]));
  }
}

}  // namespace

void add_normals(std::span<double> values, double spread, Rng& rng) {
  Block first, second;
  while (!values.empty()) {
    const std::size_t count = std::min(at_once, values.size());
    for (std::size_t i = 0; i < count; ++i) {
      first[i] = 1 - rng.uniform();
      second[i] = rng.uniform();
    }
    add_block(first, second, spread, values.data(), count);
    values = values.subspan(count);
  }
}

}  // namespace moesim
