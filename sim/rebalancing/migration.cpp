// SPDX-License-Identifier: Apache-2.0
#include "sim/rebalancing/migration.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "hardware/at.hpp"

namespace moesim {

namespace {

bool holds(const LayerPlacement& placement, int gpu, int expert) {
  const auto hosts = placement.hosts_of(expert);
  return std::any_of(hosts.begin(), hosts.end(),
                     [&](std::int32_t slot) { return placement.gpu_of_slot(slot) == gpu; });
}

int slots_on(const LayerPlacement& placement, int gpu) {
  return placement.first_slot(gpu + 1) - placement.first_slot(gpu);
}

std::vector<std::vector<int>> experts_on_gpus(const LayerPlacement& placement) {
  std::vector<std::vector<int>> experts(at(placement.gpus()));
  for (int slot = 0; slot < placement.slots(); ++slot) {
    experts[at(placement.gpu_of_slot(slot))].push_back(placement.expert_of_slot(slot));
  }
  return experts;
}

// Experts that `wanted` lets pass, by demand of a rank; ties: lowest id. At most `most`.
template <class Wanted, class Order>
std::vector<int> first_by_demand(const LayerDemand& demand, int rank, std::size_t most,
                                 Wanted&& wanted, Order order) {
  std::vector<int> experts;
  for (int e = 0; e < demand.experts; ++e) {
    if (wanted(e)) experts.push_back(e);
  }
  std::stable_sort(experts.begin(), experts.end(),
                   [&](int a, int b) { return order(demand.at(rank, a), demand.at(rank, b)); });
  if (experts.size() > most) experts.resize(most);
  return experts;
}

}  // namespace

bool allows(const LayerPlacement& placement, const Migration& m, const MigrationLimits& limits,
            std::span<const char> live) {
  if (live[at(m.target)] == 0) return false;
  const bool has = holds(placement, m.target, m.expert);
  switch (m.kind) {
    case Migration::Kind::replicate:
      return !has && slots_on(placement, m.target) < limits.slots_per_gpu &&
             std::ssize(placement.slots_of(m.expert)) < limits.max_copies;
    case Migration::Kind::swap:
      return !has && live[at(m.source)] != 0 && holds(placement, m.source, m.expert) &&
             !holds(placement, m.source, m.partner) && holds(placement, m.target, m.partner);
    case Migration::Kind::drop: return has && placement.slots_of(m.expert).size() > 1;
  }
  return false;
}

LayerPlacement after(const LayerPlacement& placement, const Migration& m) {
  std::vector<std::vector<int>> experts = experts_on_gpus(placement);
  std::vector<int>& target = experts[at(m.target)];
  switch (m.kind) {
    case Migration::Kind::replicate: target.push_back(m.expert); break;
    case Migration::Kind::swap: {
      std::vector<int>& source = experts[at(m.source)];
      *std::find(source.begin(), source.end(), m.expert) = m.partner;
      *std::find(target.begin(), target.end(), m.partner) = m.expert;
      break;
    }
    case Migration::Kind::drop:  // the last slot's expert fills the gap
      *std::find(target.begin(), target.end(), m.expert) = target.back();
      target.pop_back();
      break;
  }
  return {placement.experts(), experts};
}

double expected_seconds(const LayerPlacement& placement, const LayerDemand& demand,
                        RooflineTime expert, double token_seconds) {
  const ExpertLoad total = demand.total();
  std::vector<double> active(at(placement.gpus())), tokens(at(placement.gpus()));
  double away = std::accumulate(total.begin(), total.end(), 0.0);
  for (int slot = 0; slot < placement.slots(); ++slot) {
    const int e = placement.expert_of_slot(slot);
    const int gpu = placement.gpu_of_slot(slot);
    const auto copies = static_cast<double>(placement.slots_of(e).size());
    active[at(gpu)] += -std::expm1(-total[at(e)] / copies);
    tokens[at(gpu)] += total[at(e)] / copies;
    away -= demand.at(gpu, e) / copies;
  }
  double busiest = 0;
  for (std::size_t gpu = 0; gpu < active.size(); ++gpu) {
    busiest =
        std::max({busiest, expert.weight_time * active[gpu], expert.token_time * tokens[gpu]});
  }
  return busiest + token_seconds * away;
}

std::vector<Migration> candidates(const LayerSeen& seen, std::span<const char> ranks, int replicas,
                                  const MigrationLimits& limits) {
  const int layer = seen.layer;
  const LayerPlacement& placement = seen.placement;
  const LayerDemand& demand = seen.demand;
  const std::span<const char> live = seen.live;
  constexpr std::size_t swaps = 3;
  std::vector<Migration> found;
  const auto propose = [&](const Migration& m) {
    if (allows(placement, m, limits, live)) found.push_back(m);
  };
  for (int gpu = 0; gpu < placement.gpus(); ++gpu) {
    if (live[at(gpu)] == 0 || ranks[at(gpu)] == 0) continue;
    const auto here = [&](int e) { return holds(placement, gpu, e); };
    const std::vector<int> missing = first_by_demand(
        demand, gpu, std::max(swaps, at(replicas)), [&](int e) { return !here(e); },
        std::greater<>());
    const std::vector<int> idle = first_by_demand(demand, gpu, swaps, here, std::less<>());
    for (std::size_t i = 0; i < missing.size(); ++i) {
      const int e = missing[i];
      if (i < at(replicas)) propose({Migration::Kind::replicate, layer, e, gpu});
      if (i >= swaps) continue;
      // The holder that asks for the expert least gives it; ties: lowest id.
      const auto hosts = placement.hosts_of(e);
      const auto giver = std::min_element(hosts.begin(), hosts.end(), [&](auto a, auto b) {
        return demand.at(placement.gpu_of_slot(a), e) < demand.at(placement.gpu_of_slot(b), e);
      });
      for (const int partner : idle) {
        propose({Migration::Kind::swap, layer, e, gpu, placement.gpu_of_slot(*giver), partner});
      }
    }
    const auto spare = [&](int e) { return here(e) && placement.slots_of(e).size() > 1; };
    for (const int e : first_by_demand(demand, gpu, at(replicas), spare, std::less<>())) {
      propose({Migration::Kind::drop, layer, e, gpu});
    }
  }
  return found;
}

}  // namespace moesim
