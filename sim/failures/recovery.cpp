// SPDX-License-Identifier: Apache-2.0
#include "sim/failures/recovery.hpp"

#include <algorithm>

#include "sim/placement/live_ranks.hpp"

namespace moesim {

namespace {

// (Layer, expert) pairs without a slot on any rank that is live.
std::int64_t lost_experts(const ExpertPlacement& placement, std::span<const char> live) {
  std::int64_t lost = 0;
  for (const LayerPlacement& layer : placement) {
    for (int expert = 0; expert < layer.experts(); ++expert) {
      const auto hosts = layer.hosts_of(expert);
      const bool survives = std::any_of(hosts.begin(), hosts.end(), [&](std::int32_t slot) {
        return live[at(layer.gpu_of_slot(slot))] != 0;
      });
      lost += survives ? 0 : 1;
    }
  }
  return lost;
}

}  // namespace

Recovery::Recovery(const FailurePlan& plan, const PlacementProblem& problem, int ep_ranks)
    : plan_(plan), problem_(problem), live_(at(ep_ranks), 1) {}

bool Recovery::any_live() const { return std::ranges::count(live_, 1) > 0; }

void Recovery::set_live(const Outage& outage, bool live) {
  for (const int rank : outage.ep_ranks) live_[at(rank)] = live ? 1 : 0;
}

OutageRecord& Recovery::stop(const Outage& outage, const ExpertPlacement& placement, Time now) {
  if (std::ranges::count(live_, 0) == 0) whole_ = placement;
  set_live(outage, false);
  OutageRecord& record = outages_.emplace_back();
  record.what = outage.what;
  record.gpus = outage.gpus;
  record.at = now;
  record.experts_lost = lost_experts(placement, live_);
  return record;
}

OutageRecord& Recovery::end(const Outage& outage, Time now) {
  const auto record = std::find_if(outages_.rbegin(), outages_.rend(), [&](const OutageRecord& r) {
    return r.what == outage.what && !r.recovered;
  });
  check(record != outages_.rend(), "GPUs came back that had not stopped");
  set_live(outage, true);
  record->recovered = now;
  return *record;
}

ExpertPlacement Recovery::placed_anew(std::span<const ExpertLoad> loads) const {
  ExpertPlacement placement = on_survivors(whole_, live_);
  for (std::size_t layer = 0; layer < whole_.size(); ++layer) {
    const bool seen = plan_.placer && !loads.empty() &&
                      std::ranges::any_of(loads[layer], [](double tokens) { return tokens > 0; });
    if (!seen) continue;
    placement[layer] =
        place_on_live(*plan_.placer, problem_, loads[layer], static_cast<int>(layer), live_);
  }
  return placement;
}

}  // namespace moesim
