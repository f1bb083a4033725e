// SPDX-License-Identifier: Apache-2.0
// Three things of one GPU that no table of kernels has. Prints rows of CSV: what, shape, us, bytes.
//
//   read       one pass over MIB of memory, again and again: from HBM, or from the L2 where all fits
//   mailbox    the GPU asks the host over pinned memory and waits for the answer, 64 bytes each way
//   layers     61 kernels of equal work in one CUDA graph, stamped by the GPU's clock, 400 replays:
//              how much longer do n ranks take that wait for each other after every layer?
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

#include "read.cuh"
#include "timing.cuh"

__global__ void stamp(std::uint64_t* at) {
  std::uint64_t now = 0;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  *at = now;
}

__global__ void ask(volatile unsigned* question, volatile unsigned* answer, unsigned from, unsigned to,
                    unsigned* out) {
  const int lane = threadIdx.x;
  for (unsigned i = from; i < to; ++i) {
    if (lane > 0) question[lane] = i;
    __threadfence_system();
    __syncwarp();
    if (lane == 0) question[0] = i;
    for (int spins = 0; answer[0] != i; ++spins)
      if (spins > 1 << 21) return;  // nobody answers
    __syncwarp();
    out[lane] = answer[lane];
  }
}

// Which GPU memory is random, as weights are: patterns draw less power and can be faster.
__global__ void fill(uint4* to, std::size_t n) {
  const std::size_t stride = static_cast<std::size_t>(gridDim.x) * blockDim.x;
  for (std::size_t i = static_cast<std::size_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += stride) {
    std::uint64_t x = i * 0x9E3779B97F4A7C15ull + 1;
    x = (x ^ x >> 31) * 0xBF58476D1CE4E5B9ull;
    const std::uint64_t y = (x ^ x >> 29) * 0x94D049BB133111EBull;
    to[i] = {static_cast<unsigned>(x), static_cast<unsigned>(x >> 32), static_cast<unsigned>(y),
             static_cast<unsigned>(y >> 32)};
  }
}

int blocks() {
  cudaDeviceProp properties;
  CUDA(cudaGetDeviceProperties(&properties, 0));
  return properties.multiProcessorCount * 4;
}

void measure_reads(const uint4* memory, std::size_t bytes, unsigned* out) {
  for (const std::size_t mib : {1, 4, 16, 24, 32, 48, 64, 96, 128, 256, 1024, 4096, 16384}) {
    const std::size_t size = mib << 20;
    if (size > bytes) continue;
    const int calls = static_cast<int>(std::max<std::size_t>(4, (std::size_t{2} << 30) / size / 4));
    const double us = median_us(calls, 2, 11, [&](int, cudaStream_t stream) {
      read<<<blocks(), 512, 0, stream>>>(memory, size / 16, out);
    });
    std::printf("read,mib=%zu,%.3f,%zu\n", mib, us, size);
  }
}

void measure_mailbox(unsigned* out) {
  unsigned *question = nullptr, *answer = nullptr;
  CUDA(cudaHostAlloc(&question, 4096, cudaHostAllocMapped));
  CUDA(cudaHostAlloc(&answer, 4096, cudaHostAllocMapped));
  std::fill_n(question, 1024, 0u);
  std::fill_n(answer, 1024, 0u);
  volatile unsigned *asked = question, *answered = answer;
  std::vector<double> us;
  unsigned next = 1;
  for (int round = 0; round < 40; ++round) {
    constexpr unsigned asks = 50;
    const auto begin = std::chrono::steady_clock::now();
    ask<<<1, 16>>>(question, answer, next, next + asks, out);
    auto first = begin;
    for (unsigned i = 0; i < asks; ++i, ++next) {
      for (long spins = 0; asked[0] != next; ++spins)
        if (spins > 2'000'000'000) std::fprintf(stderr, "the GPU does not ask\n"), std::exit(1);
      if (i == 0) first = std::chrono::steady_clock::now();
      for (int lane = 15; lane >= 0; --lane) answered[lane] = next;
    }
    const std::chrono::duration<double, std::micro> spent = std::chrono::steady_clock::now() - first;
    CUDA(cudaDeviceSynchronize());
    if (round >= 5) us.push_back(spent.count() / (asks - 1));
  }
  std::printf("mailbox,bytes_each_way=64,%.3f,\n", median(us));
}

void measure_layers(const uint4* memory, std::size_t bytes, unsigned* out) {
  constexpr int layers = 61, replays = 400;
  cudaStream_t stream;
  CUDA(cudaStreamCreate(&stream));
  std::uint64_t* stamps = nullptr;
  CUDA(cudaMalloc(&stamps, (layers + 1) * sizeof(std::uint64_t)));
  for (const std::size_t mib : {16, 64, 256, 1024}) {
    const std::size_t size = mib << 20, places = bytes / size;
    // Each layer is a read and a stamp, with a stamp before the first.
    const cudaGraphExec_t exec = graph_of(stream, 2 * layers + 1, [&](int i, cudaStream_t at) {
      const int layer = i / 2;
      if (i % 2 == 0)
        stamp<<<1, 1, 0, at>>>(stamps + layer);
      else
        read<<<blocks(), 512, 0, at>>>(memory + layer % places * (size / 16), size / 16, out);
    });
    std::vector<std::vector<double>> us(layers);  // [layer][replay]
    double mean = 0;
    for (int r = -20; r < replays; ++r) {
      CUDA(cudaGraphLaunch(exec, stream));
      CUDA(cudaStreamSynchronize(stream));
      std::vector<std::uint64_t> at(layers + 1);
      CUDA(cudaMemcpy(at.data(), stamps, at.size() * sizeof(at[0]), cudaMemcpyDeviceToHost));
      for (int i = 0; i < layers && r >= 0; ++i) us[i].push_back(1e-3 * static_cast<double>(at[i + 1] - at[i]));
    }
    std::vector<double> all;
    for (const auto& layer : us) all.insert(all.end(), layer.begin(), layer.end());
    std::sort(all.begin(), all.end());
    for (const double value : all) mean += value / static_cast<double>(all.size());
    double variance = 0;
    for (const double value : all) variance += (value - mean) * (value - mean) / static_cast<double>(all.size());
    const auto quantile = [&](double q) { return all[static_cast<std::size_t>(q * static_cast<double>(all.size() - 1))]; };
    std::printf("layers,mib=%zu sd=%.3f p10=%.2f p50=%.2f p90=%.2f p99=%.2f max=%.1f", mib, std::sqrt(variance),
                quantile(.1), quantile(.5), quantile(.9), quantile(.99), all.back());
    // n ranks that each replay once and wait after every layer: the mean of the greatest, by layer.
    std::mt19937_64 random(3);
    for (const int ranks : {8, 32, 72}) {
      double sum = 0;
      for (int draw = 0; draw < 200; ++draw)
        for (const auto& layer : us) {
          double most = 0;
          for (int g = 0; g < ranks; ++g) most = std::max(most, layer[random() % layer.size()]);
          sum += most;
        }
      std::printf(" of_%d=%.4f", ranks, sum / 200 / layers / mean);
    }
    std::printf(",%.3f,%zu\n", mean, size);
    CUDA(cudaGraphExecDestroy(exec));
  }
}

int main() {
  const std::size_t bytes = std::size_t{16} << 30;
  uint4* memory = nullptr;
  unsigned* out = nullptr;
  CUDA(cudaMalloc(&memory, bytes));
  CUDA(cudaMalloc(&out, 4096));
  fill<<<blocks(), 512>>>(memory, bytes / 16);
  CUDA(cudaDeviceSynchronize());
  measure_reads(memory, bytes, out);
  measure_layers(memory, bytes, out);
  std::fflush(stdout);
  measure_mailbox(out);
}
