// SPDX-License-Identifier: Apache-2.0
#include "sim/token_routing/min_exp.hpp"

#include <algorithm>
#include <limits>

#include "hardware/at.hpp"
#include "sim/token_routing/routers.hpp"

namespace moesim {

namespace {

constexpr std::int32_t none = -1;

// Shifts load along cost-reducing paths until there are none. A path: GPU g, an expert on g that
// another GPU hosts too, that GPU, an expert on it, and so on. It ends at a GPU with at least two
// active experts fewer than g. A shift takes one from g and gives one to the last. From the fullest
// GPU first, breadth first, experts ascending, ties to the lowest GPU.
//
// A failed search settles for good what it saw. Its GPUs reach none outside, and all have L >= L[g]
// - 1, so they are no target for any GPU that is tried later.
class PathShifter {
 public:
  PathShifter(const LayerPlacement& placement, MinExp::Workspace& workspace)
      : placement_(placement), s_(workspace), load_(workspace.active_on_gpu) {
    const auto gpus = at(placement.gpus());
    s_.first_on_gpu.assign(gpus, none);
    s_.next_on_gpu.resize(at(placement.experts()));
    s_.queue.resize(gpus);
    s_.reached_by.resize(gpus);
    s_.reached_from.resize(gpus);
    s_.seen.assign(gpus, 0);
    for (const std::int32_t expert : s_.movable) insert(expert, gpu_of(expert));
  }

  void run() {
    for (;;) {
      // Without branches, so that it runs in vector registers: a settled GPU counts as 0 for the
      // maximum and as no minimum.
      std::int32_t highest = 0, lowest = std::numeric_limits<std::int32_t>::max();
      for (std::size_t gpu = 0; gpu < load_.size(); ++gpu) {
        highest = std::max(highest, load_[gpu] & (s_.seen[gpu] - 1));
        lowest = std::min(lowest,
                          load_[gpu] | (-s_.seen[gpu] & std::numeric_limits<std::int32_t>::max()));
      }
      if (highest < 2 || highest - 2 < lowest) return;
      std::int32_t fullest = 0;
      while (s_.seen[at(fullest)] != 0 || load_[at(fullest)] != highest) ++fullest;
      if (const std::int32_t slot = search(fullest); slot != none) shift(fullest, slot);
    }
  }

 private:
  std::int32_t gpu_of(std::int32_t expert) const {
    return placement_.gpu_of_slot(s_.slot_of[at(expert)]);
  }

  void insert(std::int32_t expert, std::int32_t gpu) {  // ascending
    std::int32_t* link = &s_.first_on_gpu[at(gpu)];
    while (*link != none && *link < expert) link = &s_.next_on_gpu[at(*link)];
    s_.next_on_gpu[at(expert)] = *link;
    *link = expert;
  }

  void remove(std::int32_t expert, std::int32_t gpu) {
    std::int32_t* link = &s_.first_on_gpu[at(gpu)];
    while (*link != expert) link = &s_.next_on_gpu[at(*link)];
    *link = s_.next_on_gpu[at(expert)];
  }

  // The slot by which a path from `start` enters its last GPU, or none. Forgets what it saw only if
  // there is a path.
  std::int32_t search(std::int32_t start) {
    std::size_t head = 0, tail = 0;
    s_.queue[tail++] = start;
    s_.seen[at(start)] = 1;
    while (head < tail) {
      const std::int32_t gpu = s_.queue[head++];
      for (std::int32_t e = s_.first_on_gpu[at(gpu)]; e != none; e = s_.next_on_gpu[at(e)]) {
        for (const std::int32_t slot : placement_.hosts_of(e)) {
          const std::int32_t host = placement_.gpu_of_slot(slot);
          if (s_.seen[at(host)]) continue;
          s_.reached_by[at(host)] = e;
          s_.reached_from[at(host)] = gpu;
          if (load_[at(host)] <= load_[at(start)] - 2) {
            for (std::size_t i = 0; i < tail; ++i) s_.seen[at(s_.queue[i])] = 0;
            return slot;
          }
          s_.seen[at(host)] = 1;
          s_.queue[tail++] = host;
        }
      }
    }
    return none;
  }

  void shift(std::int32_t start, std::int32_t slot) {
    --load_[at(start)];
    ++load_[at(placement_.gpu_of_slot(slot))];
    for (std::int32_t gpu = placement_.gpu_of_slot(slot); gpu != start;) {
      const std::int32_t expert = s_.reached_by[at(gpu)];
      const std::int32_t from = s_.reached_from[at(gpu)];
      remove(expert, from);
      insert(expert, gpu);
      s_.slot_of[at(expert)] = host_slot(expert, gpu);
      gpu = from;
    }
  }

  std::int32_t host_slot(std::int32_t expert, std::int32_t gpu) const {
    for (const std::int32_t slot : placement_.hosts_of(expert)) {
      if (placement_.gpu_of_slot(slot) == gpu) return slot;
    }
    return none;
  }

  const LayerPlacement& placement_;
  MinExp::Workspace& s_;
  std::vector<std::int32_t>& load_;
};

}  // namespace

MinExp::MinExp(const LayerPlacement& placement) {
  for (std::int32_t expert = 0; expert < placement.experts(); ++expert) {
    (placement.hosts_of(expert).size() == 1 ? fixed_ : movable_).push_back(expert);
  }
  std::stable_sort(movable_.begin(), movable_.end(), [&](std::int32_t a, std::int32_t b) {
    return placement.hosts_of(a).size() < placement.hosts_of(b).size();
  });
}

void MinExp::assign(const LayerPlacement& placement, std::span<const std::int32_t> tokens,
                    Workspace& workspace) const {
  check(fixed_.size() + movable_.size() == tokens.size(),
        "a routing was made for a placement of another number of experts");
  std::vector<std::int32_t>& load = workspace.active_on_gpu;
  load.assign(at(placement.gpus()), 0);
  workspace.slot_of.assign(tokens.size(), none);
  workspace.movable.clear();

  for (const std::int32_t expert : fixed_) {
    if (tokens[at(expert)] == 0) continue;
    const std::int32_t slot = placement.hosts_of(expert)[0];
    workspace.slot_of[at(expert)] = slot;
    ++load[at(placement.gpu_of_slot(slot))];
  }
  for (const std::int32_t expert : movable_) {
    if (tokens[at(expert)] == 0) continue;
    const Host host = least_active_host(placement.host_gpus_of(expert), load);
    workspace.slot_of[at(expert)] = placement.hosts_of(expert)[host.place];
    ++load[host.gpu];
    workspace.movable.push_back(expert);
  }
  const auto [lowest, highest] = std::minmax_element(load.begin(), load.end());
  if (*highest >= *lowest + 2) PathShifter(placement, workspace).run();
}

void MinExp::serve(const LayerPlacement& placement, std::span<const std::int32_t> tokens,
                   Workspace& workspace, std::span<std::int32_t> tokens_of_slot) const {
  assign(placement, tokens, workspace);
  std::fill(tokens_of_slot.begin(), tokens_of_slot.end(), 0);
  for (std::size_t expert = 0; expert < tokens.size(); ++expert) {
    if (tokens[expert] > 0) tokens_of_slot[at(workspace.slot_of[expert])] = tokens[expert];
  }
}

}  // namespace moesim
