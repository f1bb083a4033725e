// SPDX-License-Identifier: Apache-2.0
#include "sim/expert_memory/rank_memory.hpp"

#include <algorithm>
#include <numeric>

#include "hardware/at.hpp"
#include "hardware/sums.hpp"

namespace moesim {

ExpertMemoryTally& ExpertMemoryTally::operator+=(const ExpertMemoryTally& other) {
  using T = ExpertMemoryTally;
  return add_members<&T::hits, &T::misses, &T::streamed, &T::late, &T::prefetches,
                     &T::prefetches_used, &T::prefetches_wasted, &T::host, &T::nvme, &T::stall,
                     &T::for_blocks>(*this, other);
}

RankMemory::RankMemory(const ExpertMemoryPlan& plan, const ExpertPlacement& placement, int rank,
                       std::span<const ExpertLoad> seen, Bytes expert, std::uint64_t seed)
    : plan_(plan), expert_(expert), first_key_{0} {
  std::vector<int> slots_of_layer;
  for (const LayerPlacement& layer : placement) {
    slots_of_layer.push_back(layer.first_slot(rank + 1) - layer.first_slot(rank));
    first_key_.push_back(first_key_.back() + slots_of_layer.back());
  }
  const int keys = first_key_.back();
  if (plan.per_layer) {
    for (std::size_t l = 0; l < slots_of_layer.size(); ++l) {
      partitions_.push_back(
          {plan.policy->cache(slots_of_layer[l], plan.slots), first_key_[l], slots_of_layer[l]});
    }
  } else {
    partitions_.push_back({plan.policy->cache(keys, plan.slots), 0, keys});
  }
  if (plan.nvme) dram_ = plan.policy->cache(keys, plan.nvme->dram_slots);
  plan_.lookahead = std::min(plan.lookahead, static_cast<int>(placement.size()) - 1);
  predictor_ = plan.prefetch->predictor(slots_of_layer, seed);
  arrival_.resize(at(keys));
  pinned_.resize(at(keys));
  prefetched_.resize(at(keys));
  load_hottest(placement, rank, seen);
}

// Loads the coldest experts first, so that the hottest are used last and make room last. An expert
// that would be pushed out again is not loaded.
void RankMemory::load_hottest(const ExpertPlacement& placement, int rank,
                              std::span<const ExpertLoad> seen) {
  std::vector<double> load;
  for (std::size_t l = 0; l < placement.size(); ++l) {
    const LayerPlacement& layer = placement[l];
    for (int slot = layer.first_slot(rank); slot < layer.first_slot(rank + 1); ++slot) {
      const int expert = layer.expert_of_slot(slot);
      const auto replicas = static_cast<double>(layer.slots_of(expert).size());
      load.push_back(seen.empty() ? 0 : seen[l][at(expert)] / replicas);
    }
  }
  const auto fill = [&](ExpertCache& cache, int first, int keys, int capacity) {
    std::vector<int> hottest(at(keys));
    std::iota(hottest.begin(), hottest.end(), 0);
    std::stable_sort(hottest.begin(), hottest.end(),
                     [&](int a, int b) { return load[at(first + a)] > load[at(first + b)]; });
    hottest.resize(at(std::min(keys, capacity)));
    std::reverse(hottest.begin(), hottest.end());
    for (const int key : hottest) {
      cache.use(key);
      cache.admit(key, {});
    }
  };
  for (const Partition& part : partitions_) fill(*part.cache, part.first, part.keys, plan_.slots);
  if (dram_) fill(*dram_, 0, first_key_.back(), plan_.nvme->dram_slots);
}

std::span<std::uint8_t> RankMemory::of_layer(std::vector<std::uint8_t>& flags, int layer) const {
  const int first = first_key_[at(layer)];
  return std::span(flags).subspan(at(first), at(first_key_[at(layer) + 1] - first));
}

RankMemory::Partition& RankMemory::partition_of(int key) {
  if (!plan_.per_layer) return partitions_.front();
  const auto after = std::upper_bound(first_key_.begin(), first_key_.end(), key);
  return partitions_[at(after - first_key_.begin()) - 1];
}

bool RankMemory::holds(int key) {
  const Partition& part = partition_of(key);
  return part.cache->holds(key - part.first);
}

void RankMemory::use(int key) {
  const Partition& part = partition_of(key);
  part.cache->use(key - part.first);
}

bool RankMemory::admit(int key, ExpertMemoryTally& tally) {
  const Partition& part = partition_of(key);
  const std::span<const std::uint8_t> pinned(pinned_);
  const auto [admitted, evicted] =
      part.cache->admit(key - part.first, pinned.subspan(at(part.first), at(part.keys)));
  if (evicted >= 0 && prefetched_[at(part.first + evicted)] != 0) {
    prefetched_[at(part.first + evicted)] = 0;
    ++tally.prefetches_wasted;
  }
  return admitted;
}

Time RankMemory::fetch(int key, Time issue, ExpertMemoryTally& tally) {
  Time in_dram = issue;
  if (dram_ && !dram_->holds(key)) {
    nvme_free_ = std::max(nvme_free_, issue) + to_duration(plan_.nvme->link.time(expert_));
    in_dram = nvme_free_;
    tally.nvme += expert_;
    dram_->use(key);
    dram_->admit(key, {});
  } else if (dram_) {
    dram_->use(key);
  }
  const Time begin = std::max(host_free_, in_dram);
  const Duration alone = to_duration(plan_.host.time(expert_));
  host_free_ = link_.bring_expert(begin, alone);
  tally.for_blocks += to_seconds(host_free_ - begin - alone);
  tally.host += expert_;
  return host_free_;
}

// The link took up what was queued while no layer needed it. A transfer begins before `now` or
// never.
void RankMemory::begin_prefetches(Time now, ExpertMemoryTally& tally) {
  for (const Queued& queued : queue_) {
    if (std::max(host_free_, queued.since) >= now) break;
    if (!admit(queued.key, tally)) continue;
    arrival_[at(queued.key)] = fetch(queued.key, queued.since, tally);
    pinned_[at(queued.key)] = prefetched_[at(queued.key)] = 1;
    ++tally.prefetches;
  }
  queue_.clear();
}

void RankMemory::queue_prefetches(int after_layer, Time now, const TokensOf& tokens_of) {
  const int layers = static_cast<int>(first_key_.size()) - 1;
  for (int ahead = 1; ahead <= plan_.lookahead; ++ahead) {
    const int layer = (after_layer + ahead) % layers;
    const bool this_step = after_layer + ahead < layers;
    predictor_->predict(layer, this_step ? tokens_of(layer) : std::span<const std::int32_t>(),
                        foreseen_);
    for (const int slot : foreseen_) {
      const int key = first_key_[at(layer)] + slot;
      if (holds(key)) {
        pinned_[at(key)] = 1;
      } else {
        queue_.push_back({key, now});
      }
    }
  }
}

void RankMemory::sort_misses(std::span<const std::int32_t> tokens, int first) {
  const auto on_nvme = [&](int slot) { return dram_ && !dram_->holds(first + slot); };
  std::stable_sort(misses_.begin(), misses_.end(), [&](int a, int b) {
    if (on_nvme(a) != on_nvme(b)) return on_nvme(b);
    return tokens[at(a)] > tokens[at(b)];
  });
}

// Which of the experts with tokens are in HBM, on their way there, or neither.
void RankMemory::look_up(int layer, Time now, std::span<const std::int32_t> tokens,
                         ExpertMemoryTally& tally) {
  const int first = first_key_[at(layer)];
  const auto pinned = of_layer(pinned_, layer);
  const auto prefetched = of_layer(prefetched_, layer);
  // Experts that were foreseen wrongly may make room from here on.
  std::fill(pinned.begin(), pinned.end(), std::uint8_t{0});
  misses_.clear();
  late_.clear();
  running_.assign(tokens.size(), 0);
  for (int slot = 0; at(slot) < tokens.size(); ++slot) {
    if (tokens[at(slot)] == 0) continue;
    if (!holds(first + slot)) {
      misses_.push_back(slot);
      continue;
    }
    use(first + slot);
    pinned[at(slot)] = 1;
    tally.prefetches_used += prefetched[at(slot)];
    prefetched[at(slot)] = 0;
    if (arrival_[at(first + slot)] > now) {
      late_.push_back(slot);
    } else {
      ++tally.hits;
      running_[at(slot)] = tokens[at(slot)];
    }
  }
  tally.late += std::ssize(late_);
  tally.misses += std::ssize(misses_) + std::ssize(late_);
}

Seconds RankMemory::run(int layer, Time now, const TokensOf& tokens_of, const GemmTime& gemm,
                        ExpertMemoryTally& tally) {
  begin_prefetches(now, tally);
  const std::span<const std::int32_t> tokens = tokens_of(layer);
  const int first = first_key_[at(layer)];
  const auto pinned = of_layer(pinned_, layer);
  const auto prefetched = of_layer(prefetched_, layer);
  look_up(layer, now, tokens, tally);

  Seconds took = gemm(running_);
  running_.assign(tokens.size(), 0);
  const auto run_when_there = [&](int slot, Time arrival) {
    running_[at(slot)] = tokens[at(slot)];
    took = std::max(took, to_seconds(arrival - now)) + gemm(running_);
    running_[at(slot)] = 0;
  };
  for (const int slot : late_) run_when_there(slot, arrival_[at(first + slot)]);
  sort_misses(tokens, first);
  Time bounce_free = now;
  for (const int slot : misses_) {
    const int key = first + slot;
    use(key);
    const bool stays = admit(key, tally);
    const Time arrival = fetch(key, stays ? now : bounce_free, tally);
    run_when_there(slot, arrival);
    if (stays) {
      pinned[at(slot)] = 1;
      arrival_[at(key)] = arrival;
    } else {
      bounce_free = now + to_duration(took);
      ++tally.streamed;
    }
  }

  tally.prefetches_wasted += std::count(prefetched.begin(), prefetched.end(), 1);
  std::fill(prefetched.begin(), prefetched.end(), std::uint8_t{0});
  std::fill(pinned.begin(), pinned.end(), std::uint8_t{0});
  predictor_->ran(layer, tokens);
  queue_prefetches(layer, now + to_duration(took), tokens_of);
  return took;
}

}  // namespace moesim
