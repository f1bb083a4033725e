// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numbers>
#include <string_view>

namespace moesim {

/// FNV-1a, 64 bits: names streams and fingerprints configs; not for secrets.
constexpr std::uint64_t fnv1a(std::string_view text, std::uint64_t hash = 0xcbf29ce484222325ULL) {
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ULL;
  return hash;
}

/// A named stream of random numbers: xoshiro256** (Blackman and Vigna, 2018) seeded by SplitMix64
/// from (seed, name). The distributions are our own, because the standard library's differ between
/// implementations.
class Rng {
 public:
  Rng(std::uint64_t seed, std::string_view stream) {
    std::uint64_t state = seed ^ fnv1a(stream);
    for (auto& word : state_) {
      state += 0x9e3779b97f4a7c15ULL;
      std::uint64_t z = state;
      z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
      z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
      word = z ^ (z >> 31);
    }
  }

  // Inlined in all calls. Else a build that optimises the libraries alone, as those for sanitizers
  // do, would link the copy of a file that is not optimised.
  [[gnu::always_inline]] inline std::uint64_t bits() {
    auto& [s0, s1, s2, s3] = state_;
    const std::uint64_t result = std::rotl(s1 * 5, 7) * 9;
    const std::uint64_t t = s1 << 17;
    s2 ^= s0;
    s3 ^= s1;
    s1 ^= s2;
    s0 ^= s3;
    s2 ^= t;
    s3 = std::rotl(s3, 45);
    return result;
  }

  /// In [0, 1), 53 bits.
  [[gnu::always_inline]] inline double uniform() {
    return static_cast<double>(bits() >> 11) * 0x1.0p-53;
  }

  /// A whole number in [0, bound); bound >= 1. Unbiased (Lemire 2019).
  [[gnu::always_inline]] inline std::uint64_t below(std::uint64_t bound) {
    __extension__ using Wide = unsigned __int128;
    Wide product = static_cast<Wide>(bits()) * bound;
    if (static_cast<std::uint64_t>(product) < bound) {
      const std::uint64_t floor = (0 - bound) % bound;
      while (static_cast<std::uint64_t>(product) < floor)
        product = static_cast<Wide>(bits()) * bound;
    }
    return static_cast<std::uint64_t>(product >> 64);
  }

  /// Mean 1.
  double exponential() { return -std::log1p(-uniform()); }

  /// Mean 0, variance 1 (Box-Muller, one of the pair).
  double normal() {
    const double radius = std::sqrt(2 * exponential());
    return radius * std::cos(2 * std::numbers::pi * uniform());
  }

  /// Gamma with this shape > 0 and mean `shape` (Marsaglia and Tsang, 2000).
  double gamma(double shape) {
    if (shape < 1) return gamma(shape + 1) * std::pow(1 - uniform(), 1 / shape);
    const double d = shape - 1.0 / 3;
    const double c = 1 / std::sqrt(9 * d);
    for (;;) {
      const double x = normal();
      const double v = std::pow(1 + c * x, 3);
      if (v > 0 && std::log1p(-uniform()) < 0.5 * x * x + d - d * v + d * std::log(v)) return d * v;
    }
  }

 private:
  std::array<std::uint64_t, 4> state_{};
};

}  // namespace moesim
