// SPDX-License-Identifier: Apache-2.0
#include "sim/copy_counter.hpp"

#include <algorithm>
#include <array>
#include <bit>

namespace moesim {

namespace {

std::size_t at(int i) { return static_cast<std::size_t>(i); }

// How many of the words added have each bit set. Plane p holds the p-th binary digits of all 64
// counts, so that adding a word is a ripple of carries that ends after two planes in the mean.
class BitCounts {
 public:
  void add(std::uint64_t word) {
    for (std::size_t p = 0; word != 0; ++p) {
      const std::uint64_t carry = planes_[p] & word;
      planes_[p] ^= word;
      word = carry;
      used_ = std::max(used_, p + 1);
    }
  }
  void write(std::int32_t* counts) const {
    std::fill_n(counts, 64, 0);
    for (std::size_t p = 0; p < used_; ++p) {
      for (std::uint64_t bits = planes_[p]; bits != 0; bits &= bits - 1) {
        counts[std::countr_zero(bits)] += std::int32_t{1} << p;
      }
    }
  }

 private:
  std::array<std::uint64_t, 31> planes_{};
  std::size_t used_ = 0;
};

}  // namespace

void CopyCounter::start(const LayerPlacement& placement,
                        std::span<const std::int32_t> tokens_of_slot) {
  experts_.assign(at(placement.experts()), {0, -1, 0});
  for (int expert = 0; expert < placement.experts(); ++expert) {
    for (const std::int32_t slot : placement.slots_of(expert)) {
      if (tokens_of_slot[at(slot)] == 0) continue;
      next_slot(placement, tokens_of_slot, expert);
      break;
    }
  }
}

void CopyCounter::next_slot(const LayerPlacement& placement,
                            std::span<const std::int32_t> tokens_of_slot, int expert) {
  Expert& e = experts_[at(expert)];
  const auto slots = placement.slots_of(expert);
  while (e.left == 0) {
    const std::int32_t slot = slots[at(++e.place)];
    e.left = tokens_of_slot[at(slot)];
    e.rank = placement.gpu_of_slot(slot);
  }
}

// The tokens of one source: which ranks, and which domains, each of them goes to, as bits.
// visit_rank(i, visit) calls visit(rank) for a selection that goes somewhere.
template <std::size_t words, class VisitRank>
void CopyCounter::count_source(std::size_t first, std::size_t end, std::size_t k,
                               VisitRank&& visit_rank) {
  std::array<BitCounts, words> rank_counts;
  BitCounts domain_counts;
  for (std::size_t token = first; token < end; ++token) {
    std::array<std::uint64_t, words> ranks{};
    std::uint64_t domains = 0;
    for (std::size_t i = token * k; i < (token + 1) * k; ++i) {
      visit_rank(i, [&](std::int32_t chosen) {
        const auto rank = static_cast<std::uint32_t>(chosen);
        ranks[words == 1 ? 0 : rank / 64] |= std::uint64_t{1} << (rank % 64);
        domains |= domains_of_rank_[rank];
      });
    }
    for (std::size_t word = 0; word < words; ++word) rank_counts[word].add(ranks[word]);
    domain_counts.add(domains);
  }
  for (std::size_t word = 0; word < words; ++word) {
    rank_counts[word].write(to_rank_.data() + word * 64);
  }
  domain_counts.write(to_domain_.data());
}

template <class VisitRank>
void CopyCounter::count_selections(std::size_t first, std::size_t end, VisitRank&& visit_rank) {
  for (std::size_t i = first; i < end; ++i) {
    visit_rank(i, [&](std::int32_t rank) { ++to_rank_[static_cast<std::uint32_t>(rank)]; });
  }
}

// From counts per expert rank and domain to links.
void CopyCounter::expand(int source, int moe_tp, int domain, TrafficMatrix& copies) const {
  const int gpus = copies.gpus();
  const int own = source / domain;
  const auto relay = [&](int there) {
    return std::min(there * domain + source % domain, gpus - 1);
  };
  for (int target = 0; target < gpus; ++target) {
    const std::int32_t tokens = to_rank_[at(target / moe_tp)];
    const int from = target / domain == own ? source : relay(target / domain);
    if (tokens > 0 && (from == source || from != target)) copies.at(from, target) += tokens;
  }
  for (int there = 0; there * domain < gpus; ++there) {
    if (there != own && to_domain_[at(there)] > 0) {
      copies.at(source, relay(there)) += to_domain_[at(there)];
    }
  }
}

void CopyCounter::count(const LayerPlacement& placement,
                        std::span<const std::int32_t> tokens_of_slot,
                        std::span<const std::uint16_t> ids,
                        std::span<const std::int32_t> source_gpu, int moe_tp, int domain,
                        CopyRule rule, TrafficMatrix& copies) {
  start(placement, tokens_of_slot);
  const std::size_t k = source_gpu.empty() ? 0 : ids.size() / source_gpu.size();
  const auto visit_rank = [&](std::size_t i, auto&& visit) {
    Expert& expert = experts_[ids[i]];
    if (expert.left == 0) next_slot(placement, tokens_of_slot, ids[i]);
    --expert.left;
    visit(expert.rank);
  };
  count_sources(placement.gpus(), k, source_gpu, moe_tp, domain, rule, copies, visit_rank);
}

void CopyCounter::count(const LayerPlacement& placement,
                        std::span<const std::int32_t> slot_of_selection,
                        std::span<const std::int32_t> source_gpu, int moe_tp, int domain,
                        CopyRule rule, TrafficMatrix& copies) {
  const std::size_t k = source_gpu.empty() ? 0 : slot_of_selection.size() / source_gpu.size();
  const auto visit_rank = [&](std::size_t i, auto&& visit) {
    const std::int32_t slot = slot_of_selection[i];
    if (slot >= 0) visit(placement.gpu_of_slot(slot));
  };
  count_sources(placement.gpus(), k, source_gpu, moe_tp, domain, rule, copies, visit_rank);
}

template <class VisitRank>
void CopyCounter::count_sources(int ranks, std::size_t k, std::span<const std::int32_t> source_gpu,
                                int moe_tp, int domain, CopyRule rule, TrafficMatrix& copies,
                                VisitRank&& visit_rank) {
  const int gpus = ranks * moe_tp;
  const int domains = (gpus - 1) / domain + 1;
  check(domains <= 64 && ranks <= 1024, "an EP group spans at most 64 domains and 1,024 ranks");
  domains_of_rank_.assign(at(ranks), 0);
  for (int gpu = 0; gpu < gpus; ++gpu) {
    // One domain alone needs no forwarding, hence no bits.
    if (domains > 1) domains_of_rank_[at(gpu / moe_tp)] |= std::uint64_t{1} << (gpu / domain);
  }
  if (copies.gpus() != gpus) copies = TrafficMatrix(gpus);
  copies.clear();

  const std::size_t tokens = source_gpu.size();
  for (std::size_t first = 0; first < tokens;) {
    const std::int32_t source = source_gpu[first];
    std::size_t end = first;
    while (end < tokens && source_gpu[end] == source) ++end;
    to_rank_.assign(ranks <= 64 ? 64 : 1024, 0);
    to_domain_.assign(64, 0);
    if (rule == CopyRule::per_selection) {
      count_selections(first * k, end * k, visit_rank);
    } else if (ranks <= 64) {
      count_source<1>(first, end, k, visit_rank);
    } else {
      count_source<16>(first, end, k, visit_rank);
    }
    // Straight to the expert: as if all GPUs stood in one domain.
    expand(source, moe_tp, rule == CopyRule::per_selection ? gpus : domain, copies);
    first = end;
  }
}

void slots_in_order(const LayerPlacement& placement, std::span<const std::int32_t> tokens_of_slot,
                    std::span<const std::uint16_t> ids, std::span<const std::uint8_t> dropped,
                    std::vector<std::int32_t>& slot_of_selection) {
  std::vector<std::int32_t> left(tokens_of_slot.begin(), tokens_of_slot.end());
  std::vector<std::size_t> place(at(placement.experts()));
  slot_of_selection.assign(ids.size(), -1);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (dropped[i] != 0) continue;
    const auto slots = placement.slots_of(ids[i]);
    std::size_t& p = place[ids[i]];
    while (left[at(slots[p])] == 0) ++p;
    --left[at(slots[p])];
    slot_of_selection[i] = slots[p];
  }
}

}  // namespace moesim
