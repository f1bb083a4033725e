// SPDX-License-Identifier: Apache-2.0
#include "sim/dispatch/token_traffic.hpp"

#include <algorithm>
#include <array>
#include <limits>

#include "hardware/at.hpp"
#include "hardware/sums.hpp"

namespace moesim {

namespace {

// Bit b of a byte as a one in byte b.
constexpr std::array<std::uint64_t, 256> spread = [] {
  std::array<std::uint64_t, 256> table{};
  for (std::size_t byte = 0; byte < table.size(); ++byte) {
    for (std::size_t bit = 0; bit < 8; ++bit) table[byte] |= (byte >> bit & 1) << (8 * bit);
  }
  return table;
}();

// How many slots have tokens; in 32 bits, as the tokens are, so that several count in a register.
std::int32_t active_in(std::span<const std::int32_t> tokens_of_slot) {
  std::int32_t active = 0;
  for (const std::int32_t tokens : tokens_of_slot) active += tokens > 0 ? 1 : 0;
  return active;
}

int domains_of(int gpus, int domain) { return (gpus - 1) / domain + 1; }

// Copies that go straight to their GPUs go as in one domain.
int domain_of(const LayerPlacement& placement, const CopyPaths& paths) {
  return paths.first_gpu > 0 ? placement.gpus() * paths.moe_tp : paths.domain;
}

}  // namespace

std::vector<TokenRun> runs_of(std::span<const std::int32_t> source_gpu) {
  std::vector<TokenRun> runs;
  for (std::size_t token = 0; token < source_gpu.size(); ++token) {
    if (runs.empty() || runs.back().gpu != source_gpu[token])
      runs.push_back({source_gpu[token], 0, token});
    ++runs.back().rows;
  }
  return runs;
}

void CopyCounter::name_targets(int ranks, int moe_tp, int domain) {
  const std::array<int, 3> shape{ranks, moe_tp, domain};
  if (shape == shape_) return;
  shape_ = shape;
  const int gpus = ranks * moe_tp;
  // A lone domain needs no forwarding, hence no bits.
  const int domains = domains_of(gpus, domain) > 1 ? domains_of(gpus, domain) : 0;
  used_bits_ = ranks + domains;
  words_ = at(used_bits_ + 63) / 64;
  bits_.assign(at(ranks) * words_, 0);
  last_token_.assign(at(used_bits_), 0);
  targets_.clear();
  domains_.clear();
  for (int rank = 0; rank < ranks; ++rank) {
    const auto set = [&](int bit) {
      bits_[at(rank) * words_ + at(bit) / 64] |= std::uint64_t{1} << (bit % 64);
    };
    const Domains of_rank = domains == 0 ? Domains{ranks, ranks - 1}
                                         : Domains{ranks + rank * moe_tp / domain,
                                                   ranks + ((rank + 1) * moe_tp - 1) / domain};
    domains_.push_back(of_rank);
    set(rank);
    for (int bit = of_rank.first; bit <= of_rank.last; ++bit) set(bit);
    targets_.push_back({bits_[at(rank) * words_], rank});
  }
  counts_.resize(words_ * 64);
}

// The rank that serves each expert with tokens, where each is served by one slot. Others have any.
void CopyCounter::find_sole_ranks(const LayerPlacement& placement,
                                  std::span<const std::int32_t> tokens_of_slot) {
  // Slots without tokens write to an expert too many: which they are, no branch could guess.
  const int no_expert = placement.experts();
  rank_of_expert_.assign(at(no_expert) + 1, 0);
  // Both at hand: as far as a compiler knows, a rank that is written may change what others hold.
  const std::span<std::int32_t> rank_of_expert = rank_of_expert_;
  for (int slot = 0; slot < placement.slots(); ++slot) {
    const int if_active = -static_cast<int>(tokens_of_slot[at(slot)] > 0);  // all bits, or none
    const int expert = no_expert + ((placement.expert_of_slot(slot) - no_expert) & if_active);
    rank_of_expert[at(expert)] = placement.gpu_of_slot(slot);
  }
  rank_of_expert_.pop_back();
}

// Every expert's first slot with tokens, and the next one behind each.
void CopyCounter::chain_slots(const LayerPlacement& placement,
                              std::span<const std::int32_t> tokens_of_slot) {
  // Useless choices go to an expert too many, so that no branch is needed.
  const int no_expert = placement.experts();
  experts_.assign(at(no_expert) + 1, {0, -1, 0});
  next_slot_.resize(at(placement.slots()));
  for (int gpu = placement.gpus() - 1; gpu >= 0; --gpu) {
    const std::uint64_t bits = targets_[at(gpu)].bits;
    for (int slot = placement.first_slot(gpu + 1) - 1; slot >= placement.first_slot(gpu); --slot) {
      const std::int32_t tokens = tokens_of_slot[at(slot)];
      const int active = tokens > 0 ? 1 : 0;
      Expert& owner =
          experts_[at(no_expert + (placement.expert_of_slot(slot) - no_expert) * active)];
      next_slot_[at(slot)] = owner.slot;
      owner = {bits, slot, tokens};
    }
  }
}

// Counts copies where a token's bits fit so many bytes: each counts in eight lanes of a register,
// up to 255.
template <std::size_t Bytes, class TargetOf>
void CopyCounter::count_in_lanes(std::size_t first, std::size_t end, std::size_t k,
                                 TargetOf&& target_of) {
  for (std::size_t token = first; token < end;) {
    std::array<std::uint64_t, Bytes> lanes{};
    for (const std::size_t full = std::min(end, token + 255); token < full; ++token) {
      std::uint64_t bits = 0;
      std::size_t i = token * k;
      // Four at a time: registers of several would be filled from memory one by one.
      for (; i + 4 <= (token + 1) * k; i += 4) {
        bits |= target_of(i).bits;
        bits |= target_of(i + 1).bits;
        bits |= target_of(i + 2).bits;
        bits |= target_of(i + 3).bits;
      }
      for (; i < (token + 1) * k; ++i) bits |= target_of(i).bits;
      for (std::size_t b = 0; b < Bytes; ++b) lanes[b] += spread[bits >> (8 * b) & 255];
    }
    // Shifted, not read as bytes: those would wait until the lanes are in memory.
    for (std::size_t bit = 0; bit < 8 * Bytes; ++bit)
      counts_[bit] += static_cast<std::int32_t>(lanes[bit / 8] >> bit % 8 * 8 & 255);
  }
}

// Counts how many tokens of one source go to each rank and domain.
template <class TargetOf>
void CopyCounter::count_copies(std::size_t first, std::size_t end, std::size_t k,
                               TargetOf&& target_of) {
  if (used_bits_ <= 8) return count_in_lanes<1>(first, end, k, target_of);
  if (used_bits_ <= 16) return count_in_lanes<2>(first, end, k, target_of);
  if (used_bits_ <= 32) return count_in_lanes<4>(first, end, k, target_of);
  if (used_bits_ <= 64) return count_in_lanes<8>(first, end, k, target_of);
  // A token sets few of many bits: each keeps the last token that set it. No branch could guess if
  // it is this one.
  const auto set = [&](std::size_t bit) {
    counts_[bit] += last_token_[bit] == token_ ? 0 : 1;
    last_token_[bit] = token_;
  };
  for (std::size_t token = first; token < end; ++token) {
    ++token_;
    for (std::size_t i = token * k; i < (token + 1) * k; ++i) {
      const std::int32_t rank = target_of(i).rank;
      if (rank < 0) continue;
      set(at(rank));
      for (std::int32_t bit = domains_[at(rank)].first; bit <= domains_[at(rank)].last; ++bit)
        set(at(bit));
    }
  }
}

// From counts per expert rank and domain to links.
void CopyCounter::expand(int source, const CopyPaths& paths, LinkTraffic& copies) {
  std::span<const std::int32_t> counts(counts_.data(), targets_.size());
  if (paths.moe_tp > 1) {
    of_gpu_.clear();
    for (const std::int32_t count : counts) of_gpu_.insert(of_gpu_.end(), at(paths.moe_tp), count);
    counts = of_gpu_;
  }
  // Adds what one GPU sends to GPUs first..end-1. A copy to itself crosses no link.
  const auto send = [&](int from, int first, int end, double& out, std::vector<double>& in) {
    std::int64_t sent = 0;
    for (int gpu = first; gpu < end; ++gpu) {
      const std::int32_t count = counts[at(gpu - paths.first_gpu)];
      in[at(gpu)] += count;
      sent += count;
    }
    if (from >= first && from < end) {
      const std::int32_t own = counts[at(from - paths.first_gpu)];
      in[at(from)] -= own;
      sent -= own;
    }
    out += static_cast<double>(sent);
  };
  const int gpus = copies.gpus(), domain = paths.domain, own = source / domain;
  const int begin = std::max(own * domain, paths.first_gpu),
            end = std::min((own + 1) * domain, gpus);
  send(source, begin, end, copies.near_out[at(source)], copies.near_in);
  const bool one_domain = used_bits_ == static_cast<int>(targets_.size());
  if (paths.rule == CopyRule::per_selection || one_domain) {  // nobody forwards
    send(source, paths.first_gpu, std::min(begin, gpus), copies.far_out[at(source)], copies.far_in);
    send(source, std::max(end, paths.first_gpu), gpus, copies.far_out[at(source)], copies.far_in);
    return;
  }
  const std::int32_t* const to_domain = counts_.data() + targets_.size();
  for (int there = 0; there < domains_of(gpus, domain); ++there) {
    if (there == own || to_domain[there] == 0) continue;
    const int first = there * domain, relay = std::min(first + source % domain, gpus - 1);
    copies.far_out[at(source)] += to_domain[there];
    copies.far_in[at(relay)] += to_domain[there];
    send(relay, first, std::min(first + domain, gpus), copies.near_out[at(relay)], copies.near_in);
  }
}

void CopyCounter::count(const LayerPlacement& placement, const Choices& choices,
                        std::span<const TokenRun> runs, const CopyPaths& paths,
                        LinkTraffic& copies) {
  const std::span<const std::int32_t> tokens_of_slot = choices.tokens_of_slot;
  const std::span<const std::uint16_t> ids = choices.ids;
  name_targets(placement.gpus(), paths.moe_tp, domain_of(placement, paths));
  if (active_in(tokens_of_slot) == choices.active_experts) {
    find_sole_ranks(placement, tokens_of_slot);
    count_sole(choices, runs, paths, copies);
    return;
  }
  chain_slots(placement, tokens_of_slot);
  const auto target_of = [&](std::size_t i) {
    Expert& expert = experts_[ids[i]];
    if (expert.left == 0) {
      const std::int32_t slot = next_slot_[at(expert.slot)];
      expert = {targets_[at(placement.gpu_of_slot(slot))].bits, slot, tokens_of_slot[at(slot)]};
    }
    --expert.left;
    return Target{expert.bits, placement.gpu_of_slot(expert.slot)};
  };
  for_each_run(runs, paths, copies,
               [&](const TokenRun& run) { count_tokens(run, choices.k(), paths.rule, target_of); });
}

// Counts copies if each expert is served by one rank.
void CopyCounter::count_sole(const Choices& choices, std::span<const TokenRun> runs,
                             const CopyPaths& paths, LinkTraffic& copies) {
  const std::span<const std::uint16_t> ids = choices.ids;
  const std::size_t k = choices.k();
  // Vectors look at every bit; of more than these a token sets few.
  constexpr int most_bits = 128;
  if (vectors_ && paths.rule == CopyRule::per_gpu && used_bits_ <= most_bits &&
      bit_counter_.set(rank_of_expert_, bits_, at(used_bits_), k)) {
    count_once(choices, runs, paths, copies, [&](const TokenRun& run) {
      bit_counter_.add(ids.subspan(run.first_row * k, at(run.rows) * k), counts_);
    });
    return;
  }
  target_of_expert_.clear();
  for (const std::int32_t rank : rank_of_expert_) target_of_expert_.push_back(targets_[at(rank)]);
  const auto target_of = [&](std::size_t i) { return target_of_expert_[ids[i]]; };
  count_once(choices, runs, paths, copies,
             [&](const TokenRun& run) { count_tokens(run, k, paths.rule, target_of); });
}

// Visits runs as for_each_run() does, if a run counts the same whenever it comes: each counts once.
template <class Count>
void CopyCounter::count_once(const Choices& choices, std::span<const TokenRun> runs,
                             const CopyPaths& paths, LinkTraffic& copies, Count&& count) {
  std::size_t tokens = 0;
  for (const TokenRun& run : runs) tokens += at(run.rows);
  if (tokens == choices.rows) return for_each_run(runs, paths, copies, count);
  constexpr std::size_t none = std::numeric_limits<std::size_t>::max();
  counts_of_row_.assign(choices.rows, none);
  run_counts_.clear();
  const std::size_t bits = counts_.size();
  for_each_run(runs, paths, copies, [&](const TokenRun& run) {
    std::size_t& place = counts_of_row_[run.first_row];
    if (place == none) {
      place = run_counts_.size();
      of_source_.assign(bits, 0);
      of_source_.swap(counts_);
      count(run);
      run_counts_.insert(run_counts_.end(), counts_.begin(), counts_.end());
      counts_.swap(of_source_);
    }
    const std::int32_t* const of_run = run_counts_.data() + place;
    for (std::size_t bit = 0; bit < bits; ++bit) counts_[bit] += of_run[bit];
  });
}

void CopyCounter::count(const LayerPlacement& placement,
                        std::span<const std::int32_t> slot_of_selection,
                        std::span<const std::int32_t> source_gpu, const CopyPaths& paths,
                        LinkTraffic& copies) {
  name_targets(placement.gpus(), paths.moe_tp, domain_of(placement, paths));
  const std::size_t k = source_gpu.empty() ? 0 : slot_of_selection.size() / source_gpu.size();
  const auto target_of = [&](std::size_t i) {
    const std::int32_t slot = slot_of_selection[i];
    return slot < 0 ? Target{0, -1} : targets_[at(placement.gpu_of_slot(slot))];
  };
  for_each_run(runs_of(source_gpu), paths, copies,
               [&](const TokenRun& run) { count_tokens(run, k, paths.rule, target_of); });
}

// count(run) adds to the counts what the tokens of a run bring.
template <class Count>
void CopyCounter::for_each_run(std::span<const TokenRun> runs, const CopyPaths& paths,
                               LinkTraffic& copies, Count&& count) {
  const int gpus = paths.first_gpu + static_cast<int>(targets_.size()) * paths.moe_tp;
  if (copies.gpus() != gpus || copies.domain != paths.domain)
    copies = LinkTraffic(gpus, paths.domain);
  copies.clear();
  for (auto run = runs.begin(); run != runs.end();) {
    const std::int32_t source = run->gpu;
    std::ranges::fill(counts_, 0);
    for (; run != runs.end() && run->gpu == source; ++run) count(*run);
    expand(source, paths, copies);
  }
}

// target_of(i) is called once for every selection, in order.
template <class TargetOf>
void CopyCounter::count_tokens(const TokenRun& run, std::size_t k, CopyRule rule,
                               TargetOf&& target_of) {
  const std::size_t first = run.first_row, end = first + at(run.rows);
  if (rule == CopyRule::per_gpu) return count_copies(first, end, k, target_of);
  for (std::size_t i = first * k; i < end * k; ++i) {
    if (const std::int32_t rank = target_of(i).rank; rank >= 0) ++counts_[at(rank)];
  }
}

Locality& Locality::operator+=(const Locality& other) {
  return add_members<&Locality::selections, &Locality::own_gpu, &Locality::own_domain>(*this,
                                                                                       other);
}

Locality locality(const LayerPlacement& placement, std::span<const std::int32_t> slot_of_selection,
                  std::span<const std::int32_t> source_rank, int ranks_per_domain) {
  Locality sum;
  const std::size_t k = source_rank.empty() ? 0 : slot_of_selection.size() / source_rank.size();
  for (std::size_t i = 0; i < slot_of_selection.size(); ++i) {
    if (slot_of_selection[i] < 0) continue;
    const std::int32_t from = source_rank[i / k], to = placement.gpu_of_slot(slot_of_selection[i]);
    ++sum.selections;
    sum.own_gpu += from == to ? 1 : 0;
    sum.own_domain += from / ranks_per_domain == to / ranks_per_domain ? 1 : 0;
  }
  return sum;
}

void slots_in_order(const LayerPlacement& placement, std::span<const std::int32_t> tokens_of_slot,
                    std::span<const std::uint16_t> ids, std::span<const std::uint8_t> dropped,
                    std::vector<std::int32_t>& slot_of_selection) {
  std::vector<std::int32_t> left(tokens_of_slot.begin(), tokens_of_slot.end());
  std::vector<std::size_t> place(at(placement.experts()));
  slot_of_selection.assign(ids.size(), -1);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (!dropped.empty() && dropped[i] != 0) continue;
    const auto slots = placement.slots_of(ids[i]);
    std::size_t& p = place[ids[i]];
    while (left[at(slots[p])] == 0) ++p;
    --left[at(slots[p])];
    slot_of_selection[i] = slots[p];
  }
}

void slots_near_first(const LayerPlacement& placement, std::span<const std::int32_t> tokens_of_slot,
                      std::span<const std::uint16_t> ids, std::span<const std::int32_t> source_rank,
                      std::span<const std::uint8_t> dropped,
                      std::vector<std::int32_t>& slot_of_selection) {
  std::vector<std::int32_t> left(tokens_of_slot.begin(), tokens_of_slot.end());
  const std::size_t k = source_rank.empty() ? 0 : ids.size() / source_rank.size();
  slot_of_selection.assign(ids.size(), -1);
  const auto fill = [&](auto&& may_take) {
    for (std::size_t i = 0; i < ids.size(); ++i) {
      if (slot_of_selection[i] >= 0 || (!dropped.empty() && dropped[i] != 0)) continue;
      const auto slots = placement.slots_of(ids[i]);
      const auto slot = std::ranges::find_if(
          slots, [&](std::int32_t s) { return left[at(s)] > 0 && may_take(s, i); });
      if (slot == slots.end()) continue;
      --left[at(*slot)];
      slot_of_selection[i] = *slot;
    }
  };
  fill([&](std::int32_t slot, std::size_t i) {
    return placement.gpu_of_slot(slot) == source_rank[i / k];
  });
  fill([](std::int32_t, std::size_t) { return true; });
}

}  // namespace moesim
