// SPDX-License-Identifier: Apache-2.0
// KV blocks between GPU memory and pinned host memory, in pieces as an engine's KV layout has them.
// Prints rows of CSV: what, shape, us, bytes.
//
//   link      a batch of scattered pieces in one direction, or in both at once (then bytes counts both), by
//             copy: a copy for each piece; batch: one batched copy; kernel: loads and stores of so many SMs
//   beside    a read of HBM, alone and while such copies go on: what does a transfer cost the step beside it?
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "read.cuh"
#include "timing.cuh"

constexpr std::size_t memory_bytes = std::size_t{2} << 30;  // on each side

__global__ void __launch_bounds__(512) move(const char* const* from, char* const* to, std::size_t pieces, std::size_t size) {
  // A piece is cut over warps of one block; blocks take pieces in turn.
  for (std::size_t i = blockIdx.x; i < pieces; i += gridDim.x) {
    const uint4* source = reinterpret_cast<const uint4*>(from[i]);
    uint4* target = reinterpret_cast<uint4*>(to[i]);
    const std::size_t n = size / sizeof(uint4);
    std::size_t k = threadIdx.x;
    for (; k + 3 * blockDim.x < n; k += 4 * blockDim.x) {
      const uint4 a = source[k], b = source[k + blockDim.x], c = source[k + 2 * blockDim.x], d = source[k + 3 * blockDim.x];
      target[k] = a, target[k + blockDim.x] = b, target[k + 2 * blockDim.x] = c, target[k + 3 * blockDim.x] = d;
    }
    for (; k < n; k += blockDim.x) target[k] = source[k];
  }
}

// Pieces in a random order, no two at the same place.
struct Pieces {
  std::vector<void*> from, to;
  std::vector<std::size_t> sizes;
  void **from_on_gpu = nullptr, **to_on_gpu = nullptr;

  Pieces(char* source, char* target, std::size_t size, std::size_t count, unsigned seed) : sizes(count, size) {
    std::mt19937 random(seed);
    std::vector<std::size_t> places(memory_bytes / size);
    std::iota(places.begin(), places.end(), std::size_t{0});
    std::shuffle(places.begin(), places.end(), random);
    for (std::size_t i = 0; i < count; ++i) from.push_back(source + places[i] * size);
    std::shuffle(places.begin(), places.end(), random);
    for (std::size_t i = 0; i < count; ++i) to.push_back(target + places[i] * size);
    const std::size_t bytes = count * sizeof(void*);
    CUDA(cudaMalloc(&from_on_gpu, bytes));
    CUDA(cudaMalloc(&to_on_gpu, bytes));
    CUDA(cudaMemcpy(from_on_gpu, from.data(), bytes, cudaMemcpyHostToDevice));
    CUDA(cudaMemcpy(to_on_gpu, to.data(), bytes, cudaMemcpyHostToDevice));
  }
  Pieces(const Pieces&) = delete;
  ~Pieces() {
    cudaFree(from_on_gpu);
    cudaFree(to_on_gpu);
  }
};

void send(const std::string& how, int sms, Pieces& pieces, cudaStream_t stream) {
  const std::size_t count = pieces.sizes.size();
  if (how == "copy") {
    for (std::size_t i = 0; i < count; ++i)
      CUDA(cudaMemcpyAsync(pieces.to[i], pieces.from[i], pieces.sizes[i], cudaMemcpyDefault, stream));
  } else if (how == "batch") {
    cudaMemcpyAttributes attributes{};
    attributes.srcAccessOrder = cudaMemcpySrcAccessOrderStream;
    std::size_t first = 0;
    CUDA(cudaMemcpyBatchAsync(pieces.to.data(), pieces.from.data(), pieces.sizes.data(), count, &attributes, &first, 1, stream));
  } else {
    move<<<sms, 512, 0, stream>>>(reinterpret_cast<const char* const*>(pieces.from_on_gpu),
                                  reinterpret_cast<char* const*>(pieces.to_on_gpu), count, pieces.sizes[0]);
  }
}

// Wall time from the first call on the host until all has arrived.
template <class Work>
double wall_us(Work work) {
  std::vector<double> us;
  for (int i = 0; i < 7; ++i) {
    CUDA(cudaDeviceSynchronize());
    const auto begin = std::chrono::steady_clock::now();
    work();
    CUDA(cudaDeviceSynchronize());
    const std::chrono::duration<double, std::micro> spent = std::chrono::steady_clock::now() - begin;
    if (i >= 2) us.push_back(spent.count());
  }
  CUDA(cudaGetLastError());
  return median(us);
}

struct Way {
  const char* how;
  int sms;
};

int main() {
  char *device[2], *host[2];
  for (int i = 0; i < 2; ++i) {
    CUDA(cudaMalloc(&device[i], memory_bytes));
    CUDA(cudaMemset(device[i], 17, memory_bytes));
    CUDA(cudaHostAlloc(&host[i], memory_bytes, cudaHostAllocMapped));
    std::memset(host[i], 18, memory_bytes);
  }
  cudaStream_t in, out, compute;
  CUDA(cudaStreamCreateWithFlags(&in, cudaStreamNonBlocking));
  CUDA(cudaStreamCreateWithFlags(&out, cudaStreamNonBlocking));
  CUDA(cudaStreamCreateWithFlags(&compute, cudaStreamNonBlocking));

  const Way ways[] = {{"copy", 0}, {"batch", 0}, {"kernel", 4}, {"kernel", 16}, {"kernel", 32}};
  for (const std::size_t kib : {4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 8192}) {
    const std::size_t size = kib << 10, count = std::min<std::size_t>(8192, (std::size_t{256} << 20) / size);
    Pieces load(host[0], device[0], size, count, 1), store(device[1], host[1], size, count, 2);
    for (const Way& way : ways) {
      const std::string how = way.how;
      const int sms = way.sms;
      const double loads = wall_us([&] { send(how, sms, load, in); });
      const double stores = wall_us([&] { send(how, sms, store, out); });
      std::string shape = "by=" + how + (sms ? " sms=" + std::to_string(sms) : "") + " kib=" + std::to_string(kib) +
                          " pieces=" + std::to_string(count);
      std::printf("link,%s to=gpu,%.3f,%zu\n", shape.c_str(), loads, size * count);
      std::printf("link,%s to=host,%.3f,%zu\n", shape.c_str(), stores, size * count);
      if (kib == 32 || kib == 2048) {
        const double both = wall_us([&] {
          send(how, sms, load, in);
          send(how, sms, store, out);
        });
        std::printf("link,%s to=both,%.3f,%zu\n", shape.c_str(), both, 2 * size * count);
      }
    }
  }
  std::fflush(stdout);

  // Reads of 1 GiB fill the SMs; transfers begin before them and end after them.
  uint4* memory = nullptr;
  unsigned* sink = nullptr;
  constexpr std::size_t read_bytes = std::size_t{1} << 30;
  CUDA(cudaMalloc(&memory, read_bytes));
  CUDA(cudaMemset(memory, 19, read_bytes));
  CUDA(cudaMalloc(&sink, 4096));
  cudaDeviceProp properties;
  CUDA(cudaGetDeviceProperties(&properties, 0));
  cudaEvent_t from, to;
  CUDA(cudaEventCreate(&from));
  CUDA(cudaEventCreate(&to));
  const auto reads = [&](const std::string& how, int sms, Pieces* load, Pieces* store) {
    std::vector<double> us;
    for (int i = 0; i < 7; ++i) {
      CUDA(cudaDeviceSynchronize());
      if (load)
        for (int k = 0; k < 4; ++k) send(how, sms, *load, in);
      if (store)
        for (int k = 0; k < 4; ++k) send(how, sms, *store, out);
      CUDA(cudaEventRecord(from, compute));
      for (int k = 0; k < 8; ++k)
        read<<<properties.multiProcessorCount * 4, 512, 0, compute>>>(memory, read_bytes / sizeof(uint4), sink);
      CUDA(cudaEventRecord(to, compute));
      CUDA(cudaEventSynchronize(to));
      float ms = 0;
      CUDA(cudaEventElapsedTime(&ms, from, to));
      if (i >= 2) us.push_back(1e3 * ms / 8);
    }
    return median(us);
  };
  std::printf("beside,by=nothing,%.3f,%zu\n", reads("", 0, nullptr, nullptr), read_bytes);
  constexpr std::size_t piece = std::size_t{2} << 20;
  Pieces load(host[0], device[0], piece, 128, 3), store(device[1], host[1], piece, 128, 4);
  for (const auto& [how, sms] : {Way{"batch", 0}, Way{"kernel", 4}, Way{"kernel", 16}}) {
    const std::string shape = "by=" + std::string(how) + (sms ? " sms=" + std::to_string(sms) : "") + " kib=2048";
    std::printf("beside,%s to=gpu,%.3f,%zu\n", shape.c_str(), reads(how, sms, &load, nullptr), read_bytes);
    std::printf("beside,%s to=host,%.3f,%zu\n", shape.c_str(), reads(how, sms, nullptr, &store), read_bytes);
    std::printf("beside,%s to=both,%.3f,%zu\n", shape.c_str(), reads(how, sms, &load, &store), read_bytes);
  }
}
