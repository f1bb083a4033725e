// SPDX-License-Identifier: Apache-2.0
#include "sim/token_routing/metro_turns.hpp"

#include <algorithm>
#include <utility>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "hardware/at.hpp"

namespace moesim {

namespace {

constexpr int lanes = 16;          // GPUs whose counts fit a register, a byte each
constexpr int most_in_lane = 127;  // bytes are compared with their signs

bool fits_lanes([[maybe_unused]] const LayerPlacement& layer) {
#if defined(__x86_64__)
  static const bool has_shuffle = __builtin_cpu_supports("ssse3");
  if (!has_shuffle || layer.gpus() > lanes) return false;
  for (int gpu = 0; gpu < layer.gpus(); ++gpu)
    if (layer.first_slot(gpu + 1) - layer.first_slot(gpu) > most_in_lane) return false;
  return true;
#else
  return false;
#endif
}

}  // namespace

MetroTurns::MetroTurns(const LayerPlacement& layer, std::span<const std::int32_t> order,
                       bool vectors)
    : experts_(at(layer.experts())), gpus_(layer.gpus()), in_lanes_(vectors && fits_lanes(layer)) {
  const auto of = [](auto number) { return static_cast<std::uint32_t>(number); };
  Turn empty;
  for (std::uint32_t i = 0; i < known_per_turn; ++i) empty.known[i].place = of(gpus_) + i;
  Turn turn = empty;
  std::size_t known = 0;
  const auto end_turn = [&] {
    turns_.push_back(std::exchange(turn, empty));
    known = 0;
  };
  for (const std::int32_t expert : order) {
    const auto hosts = layer.hosts_of(expert), gpus = layer.host_gpus_of(expert);
    if (hosts.size() > 1) {
      turn.chooses = expert;
      turn.first_host = of(hosts_.size());
      for (std::size_t i = 0; i < hosts.size(); ++i) hosts_.push_back({of(hosts[i]), of(gpus[i])});
      // The last one again, which is never taken: so there are two more than the first, or four.
      if (hosts.size() % 2 == 0) hosts_.push_back(hosts_.back());
      turn.end_host = of(hosts_.size());
      end_turn();
      continue;
    }
    sole_slots_.push_back({of(expert), of(hosts.front())});
    if (known == known_per_turn) end_turn();
    turn.known[known++] = {of(expert), of(gpus.front())};
  }
  // Experts behind the last choice change none.
}

void MetroTurns::route(std::span<const std::int32_t> tokens, std::span<std::int32_t> tokens_of_slot,
                       std::vector<std::int32_t>& active_on_gpu) const {
  std::ranges::fill(tokens_of_slot, 0);
  for (const auto& [expert, slot] : sole_slots_) tokens_of_slot[slot] = tokens[expert];
  if (in_lanes_)
    route_in_lanes(tokens, tokens_of_slot);
  else
    route_plainly(tokens, tokens_of_slot, active_on_gpu);
}

// An expert without tokens passes through: which ones have some, no branch could guess.
void MetroTurns::route_plainly(std::span<const std::int32_t> tokens,
                               std::span<std::int32_t> tokens_of_slot,
                               std::vector<std::int32_t>& active) const {
  active.assign(at(gpus_) + known_per_turn, 0);
  for (const Turn& turn : turns_) {
    for (const auto& [expert, gpu] : turn.known) active[gpu] += tokens[expert] > 0 ? 1 : 0;
    if (turn.chooses < 0) continue;
    // Nothing is looked up, and no count is read that was just written: on GPU and slot go their
    // own ways, both with the least.
    Place best = hosts_[turn.first_host];
    std::int32_t least = active[best.gpu];
    for (std::uint32_t i = turn.first_host + 1; i < turn.end_host; ++i) {
      const Place next = hosts_[i];
      const std::int32_t on_next = active[next.gpu];
      const bool takes_next = on_next < least;
      best = {takes_next ? next.slot : best.slot, takes_next ? next.gpu : best.gpu};
      least = std::min(least, on_next);
    }
    const std::int32_t own = tokens[at(turn.chooses)];
    active[best.gpu] = least + (own > 0 ? 1 : 0);
    tokens_of_slot[best.slot] = own;
  }
}

#if defined(__x86_64__)

namespace {

#define MOESIM_SHUFFLES __attribute__((target("ssse3")))

using Lanes = std::array<std::array<std::uint8_t, lanes>, lanes + 4>;
// Ones in the lanes of GPUs, zero in the others; a GPU's number in all lanes.
constexpr Lanes ones = [] {
  Lanes all{};
  for (std::size_t gpu = 0; gpu < lanes; ++gpu) all[gpu][gpu] = 1;
  return all;
}();
constexpr Lanes numbers = [] {
  Lanes all{};
  for (std::size_t gpu = 0; gpu < lanes; ++gpu) all[gpu].fill(static_cast<std::uint8_t>(gpu));
  return all;
}();

MOESIM_SHUFFLES inline __m128i row_of(const Lanes& table, std::uint32_t gpu) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(table[gpu].data()));
}

// All bits where there are tokens, else none.
MOESIM_SHUFFLES inline __m128i where(std::int32_t tokens) {
  return _mm_cmpgt_epi32(_mm_set1_epi32(tokens), _mm_setzero_si128());
}

}  // namespace

// Does the same with the counts of all GPUs in one register. A choice waits four instructions for
// the one before, not for memory, whose counts no CPU can predict to be others.
MOESIM_SHUFFLES void MetroTurns::route_in_lanes(std::span<const std::int32_t> tokens,
                                                std::span<std::int32_t> tokens_of_slot) const {
  __m128i active = _mm_setzero_si128();
  for (const Turn& turn : turns_) {
    __m128i known = _mm_setzero_si128();
    for (const auto& [expert, gpu] : turn.known)
      known = _mm_add_epi8(known, _mm_and_si128(row_of(ones, gpu), where(tokens[expert])));
    active = _mm_add_epi8(active, known);
    if (turn.chooses < 0) continue;
    const Place* host = hosts_.data() + turn.first_host;
    const Place* const end = hosts_.data() + turn.end_host;
    __m128i one = row_of(ones, host->gpu);
    __m128i least = _mm_shuffle_epi8(active, row_of(numbers, host->gpu));
    std::uint32_t slot = host->slot;
    const auto compare = [&](const Place& next) MOESIM_SHUFFLES {
      const __m128i on_next = _mm_shuffle_epi8(active, row_of(numbers, next.gpu));
      const __m128i takes_next = _mm_cmpgt_epi8(least, on_next);
      least = _mm_min_epu8(least, on_next);
      one = _mm_or_si128(_mm_and_si128(takes_next, row_of(ones, next.gpu)),
                         _mm_andnot_si128(takes_next, one));
      // Not `?:`, of which compilers make a branch that no CPU can guess.
      const auto bits = static_cast<std::uint32_t>(_mm_cvtsi128_si32(takes_next));
      slot = (next.slot & bits) | (slot & ~bits);
    };
    // Most have two hosts or three: one round.
    for (++host; host != end; host += 2) {
      compare(host[0]);
      compare(host[1]);
    }
    const std::int32_t own = tokens[at(turn.chooses)];
    active = _mm_add_epi8(active, _mm_and_si128(one, where(own)));
    tokens_of_slot[slot] = own;
  }
}

#undef MOESIM_SHUFFLES

#else

void MetroTurns::route_in_lanes(std::span<const std::int32_t>, std::span<std::int32_t>) const {}

#endif

}  // namespace moesim
