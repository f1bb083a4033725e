// SPDX-License-Identifier: Apache-2.0
// What does it take a GPU to choose the replica that serves each expert? One block decides one layer:
//
//   empty            nothing: what a kernel in a CUDA graph takes at least
//   hash             every selection by a hash of its row (vLLM): no counts, many blocks
//   metro            METRO's Algorithm 1, active experts in the order of their ids
//   metro_fewest     the same, experts with the fewest replicas first: those with one count at once
//   exact            from there along paths that lower the busiest GPU, until none is left
//
// The last three read the ids of all ranks (the group's), write a slot for each expert, and map the
// ids of their own rank. Each result is compared with one of the CPU; `exact` with a maximum flow.
// Prints rows of CSV: what, shape, microseconds of one call in a CUDA graph (median of 25 graphs).
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "timing.cuh"

constexpr int max_experts = 512, max_gpus = 64, threads = 512, warps = threads / 32;

// One layer's placement, experts in the order in which they are decided.
struct Placement {
  int experts, gpus, slots;
  int first_choice;           // experts before this one have one host (fewest replicas first)
  const int* order;           // [experts] ids
  const std::uint64_t* hosts; // [experts] by place in `order`: one bit for each GPU
  const int* slot_at;         // [experts][gpus]: the slot of a replica, by id
  const int* replicas;        // [experts] by id
  const int* slots_of;        // [experts][gpus]: the slots one after another, by id
};

struct Batch {
  const int* ids;  // [selections] of the group
  int selections, own;
  int* slot_of;    // [experts] out
  int* chosen;     // [own] out
};

__device__ unsigned least(unsigned low, unsigned high) {
  return __reduce_min_sync(~0u, min(low, high));
}

struct Shared {
  std::uint64_t hosts[max_experts];  // of the active experts, in order
  int expert[max_experts], gpu[max_experts];
  unsigned load[max_gpus];
  int active_of_warp[warps], slot[max_experts];
  unsigned char active[max_experts];
};

// Which experts are active, and these in order; answers how many of them there are, and how many of
// those before `until`.
__device__ int2 collect(const Placement& p, const Batch& b, Shared& s, int until) {
  const int t = threadIdx.x, lane = t % 32, warp = t / 32;
  for (int e = t; e < p.experts; e += threads) s.active[e] = 0;
  if (t < max_gpus) s.load[t] = 0;
  __syncthreads();
  const int4* four = reinterpret_cast<const int4*>(b.ids);
  for (int i = t; i < b.selections / 4; i += threads) {
    const int4 ids = four[i];
    s.active[ids.x] = s.active[ids.y] = s.active[ids.z] = s.active[ids.w] = 1;
  }
  __syncthreads();
  const int id = t < p.experts ? p.order[t] : 0;
  const bool active = t < p.experts && s.active[id];
  const unsigned ballot = __ballot_sync(~0u, active);
  if (lane == 0) s.active_of_warp[warp] = __popc(ballot);
  __syncthreads();
  int before = 0, all = 0, sole = 0;
  for (int w = 0; w < warps; ++w) {
    before += w < warp ? s.active_of_warp[w] : 0;
    all += s.active_of_warp[w];
  }
  if (active) {
    const int place = before + __popc(ballot & ((1u << lane) - 1));
    s.expert[place] = id;
    s.hosts[place] = p.hosts[t];
  }
  sole = __syncthreads_count(active && t < until);
  return {all, sole};
}

// Algorithm 1 on the active experts [from, to), one after another in one warp. A lane keeps the
// loads of two GPUs.
__device__ void greedy(Shared& s, int from, int to) {
  const int lane = threadIdx.x % 32;
  unsigned low = s.load[lane], high = s.load[lane + 32];
  std::uint64_t next = from < to ? s.hosts[from] : 0;
  for (int i = from; i < to; ++i) {
    const std::uint64_t hosts = next;
    next = s.hosts[min(i + 1, to - 1)];
    const unsigned best = least((hosts >> lane) & 1 ? low << 8 | lane : ~0u,
                                (hosts >> (lane + 32)) & 1 ? high << 8 | (lane + 32) : ~0u);
    const int gpu = best & 255;
    low += gpu == lane;
    high += gpu == lane + 32;
    if (lane == 0) s.gpu[i] = gpu;
  }
  s.load[lane] = low;
  s.load[lane + 32] = high;
}

__device__ void write(const Placement& p, const Batch& b, Shared& s, int active) {
  __syncthreads();
  for (int i = threadIdx.x; i < active; i += threads) {
    const int e = s.expert[i];
    s.slot[e] = p.slot_at[e * p.gpus + s.gpu[i]];
    b.slot_of[e] = s.slot[e];
  }
  __syncthreads();
  for (int i = threadIdx.x; i < b.own; i += threads) b.chosen[i] = s.slot[b.ids[i]];
}

__global__ void empty() {}

__global__ void hash(Placement p, Batch b, int k) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= b.own) return;
  const int e = b.ids[i];
  const unsigned row = static_cast<unsigned>(i / k) * 2654435769u;
  b.chosen[i] = p.slots_of[e * p.gpus + row % p.replicas[e]];
}

__global__ void __launch_bounds__(threads) metro(Placement p, Batch b) {
  __shared__ Shared s;
  const int active = collect(p, b, s, 0).x;
  if (threadIdx.x < 32) greedy(s, 0, active);
  write(p, b, s, active);
}

__device__ int sole_hosts_first(const Placement& p, const Batch& b, Shared& s, int& sole) {
  const int2 found = collect(p, b, s, p.first_choice);
  sole = found.y;
  for (int i = threadIdx.x; i < sole; i += threads) {
    s.gpu[i] = __ffsll(static_cast<long long>(s.hosts[i])) - 1;
    atomicAdd(&s.load[s.gpu[i]], 1u);
  }
  __syncthreads();
  if (threadIdx.x < 32) greedy(s, sole, found.x);
  return found.x;
}

__global__ void __launch_bounds__(threads) metro_fewest(Placement p, Batch b) {
  __shared__ Shared s;
  int sole = 0;
  const int active = sole_hosts_first(p, b, s, sole);
  write(p, b, s, active);
}

// Breadth first from a busiest GPU: an expert on a GPU of the last level leads to its other hosts.
// A GPU with two fewer takes one over along the path. No path from a busiest GPU: the most is least.
__device__ void lower(const Placement& p, Shared& s, int sole, int active) {
  const int lane = threadIdx.x;
  __shared__ std::uint64_t level[max_gpus];
  while (true) {
    __syncwarp();
    const unsigned low = s.load[lane], high = s.load[lane + 32];
    const unsigned most = __reduce_max_sync(~0u, max(low, high));
    const unsigned lows = __ballot_sync(~0u, low == most), highs = __ballot_sync(~0u, high == most);
    const int start = lows != 0 ? __ffs(lows) - 1 : __ffs(highs) + 31;
    const unsigned few_low = __ballot_sync(~0u, low + 2 <= most && lane < p.gpus);
    const unsigned few_high = __ballot_sync(~0u, high + 2 <= most && lane + 32 < p.gpus);
    const std::uint64_t takers = static_cast<std::uint64_t>(few_high) << 32 | few_low;
    std::uint64_t seen = 1ull << start, last = seen;
    int depth = 0;
    level[0] = seen;
    while ((seen & takers) == 0 && last != 0) {
      unsigned reach_low = 0, reach_high = 0;
      for (int i = sole + lane; i < active; i += 32) {
        if ((last >> s.gpu[i]) & 1) {
          reach_low |= static_cast<unsigned>(s.hosts[i]);
          reach_high |= static_cast<unsigned>(s.hosts[i] >> 32);
        }
      }
      const std::uint64_t reach =
          static_cast<std::uint64_t>(__reduce_or_sync(~0u, reach_high)) << 32 |
          __reduce_or_sync(~0u, reach_low);
      last = reach & ~seen;
      seen |= reach;
      level[++depth] = last;
      __syncwarp();
    }
    if ((seen & takers) == 0) return;
    int to = __ffsll(static_cast<long long>(seen & takers)) - 1;
    if (lane == 0) ++s.load[to];
    for (int d = depth; d > 0; --d) {
      // One expert on a GPU of the level before that can be on `to`.
      int found = active;
      for (int i = sole + lane; i < active; i += 32)
        if (((level[d - 1] >> s.gpu[i]) & 1) && ((s.hosts[i] >> to) & 1)) found = min(found, i);
      found = __reduce_min_sync(~0u, found);
      const int from = s.gpu[found];
      __syncwarp();
      if (lane == 0) s.gpu[found] = to;
      __syncwarp();
      to = from;
    }
    if (lane == 0) --s.load[to];
  }
}

__global__ void __launch_bounds__(threads) exact(Placement p, Batch b) {
  __shared__ Shared s;
  int sole = 0;
  const int active = sole_hosts_first(p, b, s, sole);
  if (threadIdx.x < 32) lower(p, s, sole, active);
  write(p, b, s, active);
}

// ---- the CPU's side ----

using Hosts = std::vector<std::uint64_t>;

template <class T>
const T* on_gpu(const std::vector<T>& values) {
  T* there = nullptr;
  CUDA(cudaMalloc(&there, values.size() * sizeof(T)));
  CUDA(cudaMemcpy(there, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice));
  return there;
}

// Copies go to the expert with the most load per replica; replicas, heaviest first, to the least
// loaded GPU with room that has none of the expert (EPLB's greedy).
Hosts replicate(const std::vector<double>& load, int gpus, int slots) {
  const int experts = static_cast<int>(load.size());
  std::vector<int> replicas(load.size(), 1);
  for (int left = slots - experts; left > 0; --left) {
    int best = -1;
    for (int e = 0; e < experts; ++e)
      if (replicas[e] < gpus && (best < 0 || load[e] / replicas[e] > load[best] / replicas[best]))
        best = e;
    ++replicas[best];
  }
  std::vector<int> all;
  for (int e = 0; e < experts; ++e) all.insert(all.end(), replicas[e], e);
  std::stable_sort(all.begin(), all.end(),
                   [&](int a, int b) { return load[a] / replicas[a] > load[b] / replicas[b]; });
  Hosts hosts(load.size(), 0);
  std::vector<double> sum(gpus, 0);
  std::vector<int> room(gpus, slots / gpus);
  for (const int e : all) {
    int best = -1;
    for (int g = 0; g < gpus; ++g)
      if (room[g] > 0 && !(hosts[e] >> g & 1) && (best < 0 || sum[g] < sum[best])) best = g;
    if (best < 0) continue;  // no GPU is left without the expert: the slot stays empty
    hosts[e] |= 1ull << best;
    sum[best] += load[e] / replicas[e];
    --room[best];
  }
  return hosts;
}

int greedy_on_cpu(const std::vector<int>& order, const Hosts& hosts, const std::vector<char>& active,
                  int gpus) {
  std::vector<int> load(gpus, 0);
  for (const int e : order) {
    if (!active[e]) continue;
    int best = -1;
    for (int g = 0; g < gpus; ++g)
      if ((hosts[e] >> g & 1) && (best < 0 || load[g] < load[best])) best = g;
    ++load[best];
  }
  return *std::max_element(load.begin(), load.end());
}

// The least bound under which every active expert finds a GPU: Kuhn's matching for each bound.
int least_most(const Hosts& hosts, const std::vector<char>& active, int gpus) {
  for (int bound = 1;; ++bound) {
    std::vector<std::vector<int>> on(gpus);
    std::vector<char> tried;
    const std::function<bool(int)> place = [&](int e) {
      for (int g = 0; g < gpus; ++g) {
        if (!(hosts[e] >> g & 1) || tried[g]) continue;
        tried[g] = 1;
        if (static_cast<int>(on[g].size()) < bound) return on[g].push_back(e), true;
        for (int& other : on[g])
          if (place(other)) return other = e, true;
      }
      return false;
    };
    bool all = true;
    for (std::size_t e = 0; e < hosts.size() && all; ++e) {
      tried.assign(gpus, 0);
      all = !active[e] || place(static_cast<int>(e));
    }
    if (all) return bound;
  }
}

// Of 192 calls, 25 graphs.
template <class Launch>
double us_of(Launch launch) {
  return median_us(192, 3, 25, launch);
}

struct Case {
  int experts, k, gpus, slots, tokens;  // tokens: of the whole group
};

void measure(const Case& c) {
  std::mt19937_64 random(7);
  std::normal_distribution<double> normal;
  std::vector<double> weight(c.experts);
  for (double& w : weight) w = std::exp(0.9 * normal(random));
  const Hosts hosts = replicate(weight, c.gpus, c.slots);

  std::vector<int> by_id(c.experts), fewest;
  std::iota(by_id.begin(), by_id.end(), 0);
  fewest = by_id;
  std::stable_sort(fewest.begin(), fewest.end(), [&](int a, int b) {
    return __builtin_popcountll(hosts[a]) < __builtin_popcountll(hosts[b]);
  });
  int sole = 0;
  std::vector<int> slot_at(c.experts * c.gpus, -1), slots_of(c.experts * c.gpus, 0), replicas;
  int slot = 0;
  for (int e = 0; e < c.experts; ++e) {
    int r = 0;
    for (int g = 0; g < c.gpus; ++g) {
      if (!(hosts[e] >> g & 1)) continue;
      slots_of[e * c.gpus + r++] = slot;
      slot_at[e * c.gpus + g] = slot++;
    }
    replicas.push_back(r);
    sole += r == 1;
  }
  const auto placement = [&](const std::vector<int>& order) {
    Hosts in_order;
    for (const int e : order) in_order.push_back(hosts[e]);
    return Placement{c.experts,        c.gpus,         c.slots,          sole,
                     on_gpu(order),    on_gpu(in_order), on_gpu(slot_at), on_gpu(replicas),
                     on_gpu(slots_of)};
  };
  const Placement ordered = placement(by_id), few = placement(fewest);

  constexpr int batches = 8;
  const int selections = c.tokens * c.k;
  std::vector<Batch> on_device;
  std::vector<std::vector<char>> active;
  double experts_active = 0;
  for (int i = 0; i < batches; ++i) {
    std::vector<int> ids;
    std::vector<char> is(c.experts, 0);
    std::uniform_real_distribution<double> uniform(1e-12, 1);
    std::vector<std::pair<double, int>> keys(c.experts);
    for (int t = 0; t < c.tokens; ++t) {
      for (int e = 0; e < c.experts; ++e)
        keys[e] = {std::log(weight[e]) - std::log(-std::log(uniform(random))), e};
      std::partial_sort(keys.begin(), keys.begin() + c.k, keys.end(), std::greater<>());
      for (int j = 0; j < c.k; ++j) ids.push_back(keys[j].second), is[keys[j].second] = 1;
    }
    active.push_back(is);
    experts_active += std::count(is.begin(), is.end(), 1);
    Batch b{on_gpu(ids), selections, std::max(c.tokens / c.gpus, 1) * c.k, nullptr, nullptr};
    CUDA(cudaMalloc(&b.slot_of, c.experts * sizeof(int)));
    CUDA(cudaMalloc(&b.chosen, b.own * sizeof(int)));
    on_device.push_back(b);
  }

  double most_metro = 0, most_few = 0, most_exact = 0;
  const auto most_of = [&](int i) {
    std::vector<int> slots(c.experts), load(c.gpus, 0);
    CUDA(cudaMemcpy(slots.data(), on_device[i].slot_of, c.experts * sizeof(int),
                    cudaMemcpyDeviceToHost));
    for (int e = 0; e < c.experts; ++e) {
      if (!active[i][e]) continue;
      int where = -1;
      for (int g = 0; g < c.gpus; ++g)
        if (slot_at[e * c.gpus + g] == slots[e]) where = g;
      if (where < 0) std::fprintf(stderr, "expert %d has no slot\n", e), std::exit(1);
      ++load[where];
    }
    return *std::max_element(load.begin(), load.end());
  };
  const auto same = [](const char* what, int gpu, int cpu) {
    if (gpu != cpu) std::fprintf(stderr, "%s: %d, on the CPU %d\n", what, gpu, cpu), std::exit(1);
    return gpu;
  };
  for (int i = 0; i < batches; ++i) {
    metro<<<1, threads>>>(ordered, on_device[i]);
    most_metro += same("metro", most_of(i), greedy_on_cpu(by_id, hosts, active[i], c.gpus));
    metro_fewest<<<1, threads>>>(few, on_device[i]);
    most_few += same("metro_fewest", most_of(i), greedy_on_cpu(fewest, hosts, active[i], c.gpus));
    exact<<<1, threads>>>(few, on_device[i]);
    most_exact += same("exact", most_of(i), least_most(hosts, active[i], c.gpus));
  }
  CUDA(cudaDeviceSynchronize());

  char shape[256];
  std::snprintf(shape, sizeof shape, "experts=%d k=%d gpus=%d slots=%d tokens=%d active=%.1f",
                c.experts, c.k, c.gpus, c.slots, c.tokens, experts_active / batches);
  const auto row = [&](const char* what, double us, double most) {
    std::printf("%s,%s most=%.2f,%.3f\n", what, shape, most / batches, us);
  };
  row("hash", us_of([&](int i, cudaStream_t stream) {
        const Batch& b = on_device[i % batches];
        hash<<<(b.own + 255) / 256, 256, 0, stream>>>(ordered, b, c.k);
      }), 0);
  row("metro", us_of([&](int i, cudaStream_t stream) {
        metro<<<1, threads, 0, stream>>>(ordered, on_device[i % batches]);
      }), most_metro);
  row("metro_fewest", us_of([&](int i, cudaStream_t stream) {
        metro_fewest<<<1, threads, 0, stream>>>(few, on_device[i % batches]);
      }), most_few);
  row("exact", us_of([&](int i, cudaStream_t stream) {
        exact<<<1, threads, 0, stream>>>(few, on_device[i % batches]);
      }), most_exact);
  std::fflush(stdout);
}

int main() {
  std::printf("empty,,%.3f\n", us_of([](int, cudaStream_t stream) { empty<<<1, 32, 0, stream>>>(); }));
  // Models: 256 experts of 8 (DeepSeek-V3), 128 of 8 (Qwen3), 32 of 4 (gpt-oss-20b).
  for (const int tokens : {64, 256, 1024, 4096}) {
    measure({256, 8, 8, 288, tokens});
    measure({256, 8, 8, 384, tokens});
    measure({128, 8, 8, 192, tokens});
  }
  for (const int tokens : {256, 1024, 8192}) {
    measure({256, 8, 16, 288, tokens});
    measure({256, 8, 32, 288, tokens});
    measure({256, 8, 64, 320, tokens});
    measure({256, 8, 64, 512, tokens});
  }
  measure({32, 4, 8, 48, 256});
  measure({128, 8, 8, 144, 256});
}
