// SPDX-License-Identifier: Apache-2.0
#include "sim/expert_memory/ranked_cache.hpp"

#include <algorithm>

namespace moesim {

void RankedCache::used(int key, std::int64_t uses) {
  Worth& worth = worth_[at(key)];
  const bool held = held_.erase(worth) > 0;
  worth.uses = uses;
  worth.last = ++clock_;
  if (held) held_.insert(worth);
}

void RankedCache::halve() {
  std::set<Worth> halved;
  for (Worth worth : held_) {
    worth.uses /= 2;
    halved.insert(worth);
  }
  held_ = std::move(halved);
  for (Worth& worth : worth_) worth.uses /= 2;
}

ExpertCache::Admission RankedCache::admit(int key, std::span<const std::uint8_t> pinned) {
  check(!holds(key), "a cache was given an expert that it holds");
  Admission admission{true, -1};
  if (held_.size() == capacity_) {
    const auto victim = std::find_if(held_.begin(), held_.end(), [&](const Worth& worth) {
      return pinned.empty() || pinned[at(worth.key)] == 0;
    });
    if (victim == held_.end()) return {};
    admission.evicted = victim->key;
    held_.erase(victim);
  }
  held_.insert(worth(key));
  return admission;
}

}  // namespace moesim
