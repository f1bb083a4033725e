// SPDX-License-Identifier: Apache-2.0
// How long top-k takes for the tokens of one rank, and for those of the whole group: a warp for
// each token, softmax over its logits, then k rounds of the largest. Every choice is compared with
// the CPU's. Prints what, shape, us.
#include <cmath>
#include <random>

#include "timing.cuh"

constexpr int warp = 32;
constexpr int warps_of_block = 8;

template <int per_lane>
__global__ void __launch_bounds__(warp* warps_of_block)
    top_k(const float* logits, int tokens, int k, int* ids, float* weights) {
  constexpr int experts = per_lane * warp;
  const int token = blockIdx.x * warps_of_block + threadIdx.x / warp;
  const int lane = threadIdx.x % warp;
  if (token >= tokens) return;
  float value[per_lane], most = -INFINITY, sum = 0;
  for (int i = 0; i < per_lane; ++i) {
    value[i] = logits[token * experts + i * warp + lane];
    most = fmaxf(most, value[i]);
  }
  for (int step = warp / 2; step > 0; step /= 2)
    most = fmaxf(most, __shfl_xor_sync(~0u, most, step));
  for (int i = 0; i < per_lane; ++i) sum += value[i] = __expf(value[i] - most);
  for (int step = warp / 2; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
  for (int round = 0; round < k; ++round) {
    float best = -1;
    int expert = 0;
    for (int i = 0; i < per_lane; ++i)
      if (value[i] > best) best = value[i], expert = i * warp + lane;
    for (int step = warp / 2; step > 0; step /= 2) {
      const float other = __shfl_xor_sync(~0u, best, step);
      const int its = __shfl_xor_sync(~0u, expert, step);
      if (other > best || (other == best && its < expert)) best = other, expert = its;
    }
    for (int i = 0; i < per_lane; ++i)
      if (expert == i * warp + lane) value[i] = -1;
    if (lane == 0) ids[token * k + round] = expert, weights[token * k + round] = best / sum;
  }
}

template <int per_lane>
void measure(int k, int tokens) {
  constexpr int experts = per_lane * warp, batches = 8;
  std::mt19937_64 random(7);
  std::normal_distribution<float> normal;
  std::vector<float*> logits(batches);
  std::vector<int> ids(tokens * k), order(experts);
  int* chosen;
  float* weights;
  CUDA(cudaMalloc(&chosen, ids.size() * sizeof(int)));
  CUDA(cudaMalloc(&weights, ids.size() * sizeof(float)));
  const auto launch = [&](int i, cudaStream_t stream) {
    const int blocks = (tokens + warps_of_block - 1) / warps_of_block;
    top_k<per_lane><<<blocks, warp * warps_of_block, 0, stream>>>(logits[i % batches], tokens, k,
                                                                  chosen, weights);
  };
  for (int b = 0; b < batches; ++b) {
    std::vector<float> made(tokens * experts);
    for (float& value : made) value = normal(random);
    CUDA(cudaMalloc(&logits[b], made.size() * sizeof(float)));
    CUDA(cudaMemcpy(logits[b], made.data(), made.size() * sizeof(float), cudaMemcpyHostToDevice));
    launch(b, nullptr);
    CUDA(cudaMemcpy(ids.data(), chosen, ids.size() * sizeof(int), cudaMemcpyDeviceToHost));
    for (int t = 0; t < tokens; ++t) {
      for (int e = 0; e < experts; ++e) order[e] = e;
      const float* row = made.data() + t * experts;
      std::partial_sort(order.begin(), order.begin() + k, order.end(),
                        [&](int a, int b) { return row[a] > row[b]; });
      // Logits that differ in the last bits can be equal as weights.
      for (int i = 0; i < k; ++i)
        if (std::fabs(row[order[i]] - row[ids[t * k + i]]) > 1e-5f)
          std::fprintf(stderr, "token %d: another choice than the CPU's\n", t), std::exit(1);
    }
  }
  std::printf("top_k,experts=%d k=%d tokens=%d,%.3f\n", experts, k, tokens,
              median_us(192, 3, 25, launch));
  std::fflush(stdout);
  for (float* one : logits) CUDA(cudaFree(one));
  CUDA(cudaFree(chosen));
  CUDA(cudaFree(weights));
}

int main() {
  for (const int tokens : {8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096}) {
    measure<8>(8, tokens);
    measure<4>(8, tokens);
    measure<1>(4, tokens);
  }
}
