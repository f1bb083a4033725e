// SPDX-License-Identifier: Apache-2.0
#include "sim/placement/batch_matching.hpp"

#include <algorithm>

#include "hardware/at.hpp"
#include "hardware/units.hpp"

namespace moesim {

namespace {

constexpr std::int16_t none = -1;

// How far a batch's value may fall below its maximum of activated experts while the GPUs that stand
// at it become fewer. Of 0.2, 0.5 and 0.9 the best two, alike, on the fitted halves of the recorded
// traces of gpt-oss-20b and DeepSeek-V2-Lite.
constexpr double nearness = 0.5;

}  // namespace

CopyTable::CopyTable(int experts, std::vector<std::vector<int>> experts_on_gpu)
    : slots_(std::move(experts_on_gpu)), hosts_(at(experts)) {
  for (int gpu = 0; gpu < gpus(); ++gpu) {
    for (const int expert : slots_[at(gpu)]) {
      check(!holds(gpu, expert), "two copies of an expert on one GPU");
      hosts_[at(expert)].push_back(gpu);
    }
  }
}

bool CopyTable::holds(int gpu, int expert) const {
  const std::vector<int>& hosts = hosts_[at(expert)];
  return std::find(hosts.begin(), hosts.end(), gpu) != hosts.end();
}

void CopyTable::replace(int gpu, int slot, int expert) {
  int& held = slots_[at(gpu)][at(slot)];
  std::erase(hosts_[at(held)], gpu);
  held = expert;
  std::vector<int>& hosts = hosts_[at(expert)];
  hosts.insert(std::upper_bound(hosts.begin(), hosts.end(), gpu), gpu);
}

BatchMatching::BatchMatching(const CopyTable& table, std::span<const BatchExperts> batches)
    : table_(table),
      state_(batches.size()),
      on_gpu_(batches.size() * at(table.gpus())),
      gpu_of_(batches.size() * at(table.experts()), none),
      batches_with_(at(table.experts())),
      visited_(batches.size()),
      reached_from_(at(table.gpus())),
      reached_by_(at(table.gpus())),
      seen_(at(table.gpus())) {
  for (std::size_t b = 0; b < batches.size(); ++b) {
    const int active = static_cast<int>(batches[b].size());
    bound_.push_back((active + table.gpus() - 1) / table.gpus());
    bound_mean_ += bound_.back() / static_cast<double>(batches.size());
    BatchExperts order = batches[b];
    std::stable_sort(order.begin(), order.end(), [&](int e, int f) {
      return table.hosts_of(e).size() < table.hosts_of(f).size();
    });
    for (const int expert : order) {
      batches_with_[at(expert)].push_back(static_cast<int>(b));
      gpu_of(b)[at(expert)] = 0;
      serve(b, expert);
    }
    improve(b);
    value_ += value(b);
  }
}

std::span<std::int16_t> BatchMatching::on_gpu(std::size_t batch) {
  return std::span(on_gpu_).subspan(batch * at(table_.gpus()), at(table_.gpus()));
}

std::span<std::int16_t> BatchMatching::gpu_of(std::size_t batch) {
  return std::span(gpu_of_).subspan(batch * at(table_.experts()), at(table_.experts()));
}

double BatchMatching::value(std::size_t batch) const {
  const auto [most, at_most] = state_[batch];
  if (most <= bound_[batch]) return most;
  return most - nearness * (1 - double(at_most) / table_.gpus());
}

// Assigns an active expert to its host with the fewest so far, ties: lowest GPU.
void BatchMatching::serve(std::size_t batch, int expert) {
  const std::span<std::int16_t> load = on_gpu(batch);
  const auto hosts = table_.hosts_of(expert);
  const int host = *std::min_element(hosts.begin(), hosts.end(),
                                     [&](int g, int h) { return load[at(g)] < load[at(h)]; });
  gpu_of(batch)[at(expert)] = static_cast<std::int16_t>(host);
  ++load[at(host)];
}

// Shifts one from a fullest GPU for as long as there is a path. What a failed search saw is
// settled: no other search gets further from there.
void BatchMatching::improve(std::size_t batch) {
  const std::span<std::int16_t> load = on_gpu(batch), assigned = gpu_of(batch);
  std::fill(seen_.begin(), seen_.end(), 0);
  for (;;) {
    const std::int16_t most = *std::max_element(load.begin(), load.end());
    int start = 0;
    while (start < table_.gpus() && (load[at(start)] != most || seen_[at(start)] != 0)) ++start;
    if (start == table_.gpus() || most <= bound_[batch]) {
      const auto fullest = std::count(load.begin(), load.end(), most);
      state_[batch] = {most, static_cast<std::int16_t>(fullest)};
      return;
    }
    const int end = path_from(start, load, assigned);
    if (end < 0) continue;
    for (const int gpu : queue_) seen_[at(gpu)] = 0;
    for (int gpu = end; gpu != start; gpu = reached_from_[at(gpu)]) {
      assigned[at(reached_by_[at(gpu)])] = static_cast<std::int16_t>(gpu);
    }
    --load[at(start)];
    ++load[at(end)];
  }
}

// Breadth first over copies of assigned experts. The GPU with at least two fewer, or -1.
int BatchMatching::path_from(int start, std::span<const std::int16_t> load,
                             std::span<const std::int16_t> assigned) {
  queue_.assign(1, start);
  seen_[at(start)] = 1;
  for (std::size_t head = 0; head < queue_.size(); ++head) {
    const int gpu = queue_[head];
    for (const int expert : table_.on_gpu(gpu)) {
      if (assigned[at(expert)] != gpu) continue;
      for (const int host : table_.hosts_of(expert)) {
        if (seen_[at(host)] != 0) continue;
        reached_from_[at(host)] = gpu;
        reached_by_[at(host)] = expert;
        if (load[at(host)] <= load[at(start)] - 2) return host;
        seen_[at(host)] = 1;
        queue_.push_back(host);
      }
    }
  }
  return -1;
}

void BatchMatching::save(std::size_t batch) {
  const auto loads = on_gpu(batch), assigned = gpu_of(batch);
  saved_.push_back(batch);
  saved_state_.push_back(state_[batch]);
  saved_on_gpu_.insert(saved_on_gpu_.end(), loads.begin(), loads.end());
  saved_gpu_of_.insert(saved_gpu_of_.end(), assigned.begin(), assigned.end());
}

void BatchMatching::adapt(std::span<const int> experts) {
  saved_.clear();
  saved_state_.clear();
  saved_on_gpu_.clear();
  saved_gpu_of_.clear();
  value_before_ = value_;
  ++adapted_;
  const auto homeless = [&](std::span<const std::int16_t> assigned, int expert) {
    return assigned[at(expert)] != none && !table_.holds(assigned[at(expert)], expert);
  };
  for (const int touched : experts) {
    for (const int b : batches_with_[at(touched)]) {
      if (visited_[at(b)] == adapted_) continue;
      visited_[at(b)] = adapted_;
      const auto batch = at(b);
      const std::span<std::int16_t> assigned = gpu_of(batch);
      const bool lost = std::any_of(experts.begin(), experts.end(),
                                    [&](int expert) { return homeless(assigned, expert); });
      // More hosts change nothing where the bound is reached.
      if (!lost && state_[batch].most <= bound_[batch]) continue;
      save(batch);
      value_ -= value(batch);
      for (const int expert : experts) {
        if (!homeless(assigned, expert)) continue;
        --on_gpu(batch)[at(assigned[at(expert)])];
        serve(batch, expert);
      }
      improve(batch);
      value_ += value(batch);
    }
  }
}

void BatchMatching::undo() {
  const auto gpus = static_cast<std::ptrdiff_t>(table_.gpus());
  const auto experts = static_cast<std::ptrdiff_t>(table_.experts());
  for (std::size_t i = 0; i < saved_.size(); ++i) {
    const auto place = static_cast<std::ptrdiff_t>(i);
    state_[saved_[i]] = saved_state_[i];
    std::copy_n(saved_on_gpu_.begin() + place * gpus, gpus, on_gpu(saved_[i]).begin());
    std::copy_n(saved_gpu_of_.begin() + place * experts, experts, gpu_of(saved_[i]).begin());
  }
  value_ = value_before_;
  saved_.clear();
}

}  // namespace moesim
