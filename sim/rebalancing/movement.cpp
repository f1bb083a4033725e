// SPDX-License-Identifier: Apache-2.0
#include "sim/rebalancing/movement.hpp"

#include <algorithm>
#include <utility>

#include "hardware/at.hpp"

namespace moesim {

namespace {

// Ranks that hold an expert, ascending.
std::vector<int> holders(const LayerPlacement& placement, int expert, std::span<const char> live) {
  std::vector<int> ranks;
  for (const std::int32_t slot : placement.hosts_of(expert)) {
    const int rank = placement.gpu_of_slot(slot);
    if (live.empty() || live[at(rank)] != 0) ranks.push_back(rank);
  }
  return ranks;
}

// Shares `sources` over `receivers` in chunks of equal size, the first ones larger by one.
template <class Send>
void share_in_chunks(const std::vector<int>& sources, const std::vector<int>& receivers,
                     Send&& send) {
  const std::size_t chunk = receivers.size() / sources.size();
  const std::size_t longer = receivers.size() % sources.size();
  for (std::size_t i = 0; i < receivers.size(); ++i) {
    const std::size_t in_longer = longer * (chunk + 1);
    send(sources[i < in_longer ? i / (chunk + 1) : longer + (i - in_longer) / chunk], receivers[i]);
  }
}

template <class Send>
void share_by_domain(const std::vector<int>& sources, const std::vector<int>& receivers, int domain,
                     Send&& send) {
  const auto in_domain = [&](const std::vector<int>& ranks, int d) {
    std::vector<int> chosen;
    for (const int rank : ranks) {
      if (rank / domain == d) chosen.push_back(rank);
    }
    return chosen;
  };
  std::vector<int> far;
  for (std::size_t i = 0; i < receivers.size();) {
    const int d = receivers[i] / domain;
    const std::vector<int> here = in_domain(receivers, d);
    const std::vector<int> near = in_domain(sources, d);
    if (near.empty()) {
      far.insert(far.end(), here.begin(), here.end());
    } else {
      share_in_chunks(near, here, send);
    }
    i += here.size();
  }
  share_in_chunks(sources, far, send);
}

template <class Send>
void share_by_sender(const std::vector<int>& sources, const std::vector<int>& receivers,
                     Send&& send) {
  const std::size_t each = receivers.size() / sources.size();
  const std::size_t even = each * sources.size();
  for (std::size_t i = 0; i < receivers.size(); ++i) {
    send(sources[i < even ? i / each : i - even], receivers[i]);
  }
}

}  // namespace

LayerMovement movement(const LayerPlacement& from, const LayerPlacement& to, SourceRule rule,
                       int ranks_per_domain, std::span<const char> live) {
  const int ranks = from.gpus();
  check(to.gpus() == ranks && to.experts() == from.experts(),
        "weights moved between placements of different shapes");
  LayerMovement moved{TrafficMatrix(ranks), std::vector<int>(at(ranks)),
                      std::vector<int>(at(ranks))};
  for (int expert = 0; expert < from.experts(); ++expert) {
    const std::vector<int> sources = holders(from, expert, live);
    const auto has_copy = [&](int rank) {
      return std::binary_search(sources.begin(), sources.end(), rank);
    };
    std::vector<int> receivers;
    for (const std::int32_t slot : to.slots_of(expert)) {
      const int rank = to.gpu_of_slot(slot);
      const int place = slot - to.first_slot(rank);
      const int before = from.first_slot(rank) + place;
      const bool was_here =
          before < from.first_slot(rank + 1) && from.expert_of_slot(before) == expert;
      if (has_copy(rank)) {
        moved.copied[at(rank)] += was_here ? 0 : 1;
      } else if (!receivers.empty() && receivers.back() == rank) {
        ++moved.copied[at(rank)];  // a second slot takes what the first one received
      } else {
        receivers.push_back(rank);
      }
    }
    if (sources.empty()) {
      for (const int rank : receivers) ++moved.reloaded[at(rank)];
      continue;
    }
    const auto send = [&](int source, int receiver) { moved.sent.at(source, receiver) += 1; };
    if (rule == SourceRule::sglang) {
      share_by_domain(sources, receivers, ranks_per_domain, send);
    } else {
      share_by_sender(sources, receivers, send);
    }
  }
  return moved;
}

LayerPlacement keep_slots(const LayerPlacement& from, const LayerPlacement& to) {
  std::vector<std::vector<int>> experts_on_gpu;
  for (int gpu = 0; gpu < to.gpus(); ++gpu) {
    const int first = to.first_slot(gpu);
    std::vector<int> incoming;
    for (int slot = first; slot < to.first_slot(gpu + 1); ++slot) {
      incoming.push_back(to.expert_of_slot(slot));
    }
    std::vector<int> slots(incoming.size(), -1);
    const int old_slots = from.first_slot(gpu + 1) - from.first_slot(gpu);
    for (std::size_t i = 0; i < slots.size() && static_cast<int>(i) < old_slots; ++i) {
      const int expert = from.expert_of_slot(from.first_slot(gpu) + static_cast<int>(i));
      const auto stays = std::find(incoming.begin(), incoming.end(), expert);
      if (stays == incoming.end()) continue;
      slots[i] = expert;
      incoming.erase(stays);
    }
    auto next = incoming.begin();
    for (int& slot : slots) {
      if (slot < 0) slot = *next++;
    }
    experts_on_gpu.push_back(std::move(slots));
  }
  return {to.experts(), experts_on_gpu};
}

Mover::Mover(const ClusterSpec& cluster, const ParallelPlan& plan, Bytes expert, SourceRule rule)
    : fabric_(cluster),
      gpus_(plan.gpus()),
      first_gpu_(plan.first_expert_gpu()),
      moe_tp_(plan.moe_tp()),
      expert_(expert),
      rule_(rule) {}

LayerPlacement Mover::arranged(const LayerPlacement& from, LayerPlacement to) const {
  return rule_ == SourceRule::vllm ? keep_slots(from, to) : std::move(to);
}

MoveCost Mover::cost(const LayerPlacement& from, const LayerPlacement& to,
                     std::span<const char> live) const {
  const int domain = std::max(1, fabric_.cluster().scale_up_domain / moe_tp_);
  const LayerMovement moved = movement(from, to, rule_, domain, live);
  const int ranks = moved.sent.gpus();
  // Every GPU of an EP rank takes its slice from its peer of the other rank.
  TrafficMatrix bytes(gpus_);
  MoveCost cost;
  double busiest = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    double received = 0;
    for (int source = 0; source < ranks; ++source) {
      const double slots = moved.sent.at(source, rank);
      received += slots;
      for (int i = 0; i < moe_tp_; ++i) {
        bytes.at(first_gpu_ + source * moe_tp_ + i, first_gpu_ + rank * moe_tp_ + i) +=
            expert_.value() * slots;
      }
    }
    busiest = std::max(busiest, received + moved.copied[at(rank)]);
    cost.copied += expert_ * (moved.copied[at(rank)] * moe_tp_);
    cost.reloaded.push_back(expert_ * moved.reloaded[at(rank)]);
  }
  const CollectiveCost links = fabric_.all_to_all(bytes);
  const Seconds into_place = expert_ * (2 * busiest) / fabric_.cluster().gpu.hbm_bandwidth;
  cost.time = links.time + into_place;
  cost.bound = links.time < into_place ? Resource::hbm : links.bound;
  cost.nvlink = links.nvlink;
  cost.network = links.network;
  return cost;
}

}  // namespace moesim
