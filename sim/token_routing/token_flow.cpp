// SPDX-License-Identifier: Apache-2.0
#include "sim/token_routing/token_flow.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

#include "hardware/at.hpp"

namespace moesim {

TokenFlow::TokenFlow(const LayerPlacement& placement, Workspace& workspace,
                     std::span<std::int32_t> tokens_of_slot)
    : placement_(placement), s_(workspace), x_(tokens_of_slot), load_(workspace.tokens_on_gpu) {
  const auto gpus = at(placement.gpus());
  s_.queue.resize(gpus);
  s_.reached_by.resize(gpus);
  s_.reached_from.resize(gpus);
  s_.is_usable.assign(x_.size(), 1);
  add_up();
}

void TokenFlow::add_up() {
  load_.assign(at(placement_.gpus()), 0);
  for (std::size_t slot = 0; slot < x_.size(); ++slot) {
    load_[at(placement_.gpu_of_slot(static_cast<int>(slot)))] += x_[slot];
  }
}

// Minimises the limit. It is always a lower bound, so the first that can be kept is the optimum. At
// first it is the mean; then, if GPUs are stuck above it, their own mean (Hall).
std::int32_t TokenFlow::minimise() {
  const std::int64_t total = std::accumulate(load_.begin(), load_.end(), std::int64_t{0});
  const std::int64_t gpus = placement_.gpus();
  auto limit = static_cast<std::int32_t>((total + gpus - 1) / gpus);
  while (const std::int32_t higher = level(limit)) limit = higher;
  return limit;
}

// Shifts tokens until no GPU holds more than `limit`, and returns 0. Or returns the least that some
// GPUs must hold, because every token on them has its usable slots there.
std::int32_t TokenFlow::level(std::int32_t limit) {
  for (std::int32_t gpu = 0; gpu < placement_.gpus(); ++gpu) {
    while (load_[at(gpu)] > limit) {
      if (push_from(gpu, limit)) continue;
      std::int64_t tokens = 0;
      for (std::size_t i = 0; i < reached_; ++i) tokens += load_[at(s_.queue[i])];
      const auto stuck = static_cast<std::int64_t>(reached_);
      return static_cast<std::int32_t>((tokens + stuck - 1) / stuck);
    }
  }
  return 0;
}

// Breadth first over GPUs: from one to the other usable slots of the experts with tokens on it, to
// the first GPU with room.
bool TokenFlow::push_from(std::int32_t start, std::int32_t limit) {
  s_.seen.assign(load_.size(), 0);
  s_.seen[at(start)] = 1;
  std::size_t head = 0;
  reached_ = 0;
  s_.queue[reached_++] = start;
  while (head < reached_) {
    const std::int32_t gpu = s_.queue[head++];
    for (int slot = placement_.first_slot(gpu); slot < placement_.first_slot(gpu + 1); ++slot) {
      if (x_[at(slot)] == 0) continue;
      for (const std::int32_t to : placement_.hosts_of(placement_.expert_of_slot(slot))) {
        const std::int32_t host = placement_.gpu_of_slot(to);
        if (s_.seen[at(host)] || !s_.is_usable[at(to)]) continue;
        s_.seen[at(host)] = 1;
        s_.reached_from[at(host)] = slot;
        s_.reached_by[at(host)] = to;
        if (load_[at(host)] < limit) {
          shift(start, host, limit);
          return true;
        }
        s_.queue[reached_++] = host;
      }
    }
  }
  return false;
}

// Shifts as many tokens as the path found takes.
void TokenFlow::shift(std::int32_t start, std::int32_t end, std::int32_t limit) {
  std::int32_t tokens = std::min(load_[at(start)] - limit, limit - load_[at(end)]);
  const auto for_each_hop = [&](auto&& visit) {
    for (std::int32_t gpu = end; gpu != start;) {
      const std::int32_t from = s_.reached_from[at(gpu)];
      visit(x_[at(from)], x_[at(s_.reached_by[at(gpu)])]);
      gpu = placement_.gpu_of_slot(from);
    }
  };
  for_each_hop([&](std::int32_t from, std::int32_t) { tokens = std::min(tokens, from); });
  for_each_hop([&](std::int32_t& from, std::int32_t& to) {
    from -= tokens;
    to += tokens;
  });
  load_[at(start)] -= tokens;
  load_[at(end)] += tokens;
}

void TokenFlow::spare_slots(std::int32_t limit) {
  s_.split.clear();
  for (std::size_t slot = 0; slot < x_.size(); ++slot) {
    s_.is_usable[slot] = x_[slot] > 0 ? 1 : 0;
    const int expert = placement_.expert_of_slot(static_cast<int>(slot));
    const auto hosts = placement_.hosts_of(expert);
    const bool is_split = std::any_of(hosts.begin(), hosts.end(), [&](std::int32_t host) {
      return at(host) != slot && x_[at(host)] > 0;
    });
    if (x_[slot] > 0 && is_split) s_.split.push_back(static_cast<std::int32_t>(slot));
  }
  std::sort(s_.split.begin(), s_.split.end(), [&](std::int32_t a, std::int32_t b) {
    return std::pair(x_[at(a)], a) < std::pair(x_[at(b)], b);
  });
  for (const std::int32_t slot : s_.split) {
    if (x_[at(slot)] == 0 || spare(slot, limit)) s_.is_usable[at(slot)] = 0;
  }
}

// Puts the slot's tokens on another slot of the expert and levels again, without it; or leaves all
// as it was.
bool TokenFlow::spare(std::int32_t slot, std::int32_t limit) {
  std::int32_t other = -1;
  for (const std::int32_t host : placement_.hosts_of(placement_.expert_of_slot(slot))) {
    if (host != slot && s_.is_usable[at(host)]) other = host;
  }
  if (other < 0) return false;
  s_.saved.assign(x_.begin(), x_.end());
  s_.is_usable[at(slot)] = 0;
  const std::int32_t tokens = std::exchange(x_[at(slot)], 0);
  x_[at(other)] += tokens;
  load_[at(placement_.gpu_of_slot(slot))] -= tokens;
  load_[at(placement_.gpu_of_slot(other))] += tokens;
  if (level(limit) == 0) return true;
  std::copy(s_.saved.begin(), s_.saved.end(), x_.begin());
  s_.is_usable[at(slot)] = 1;
  add_up();
  return false;
}

}  // namespace moesim
