// SPDX-License-Identifier: Apache-2.0
// How the programs beside this time a kernel: many calls in one CUDA graph, the median of its replays.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

#define CUDA(call)                                                        \
  do {                                                                    \
    const cudaError_t error = (call);                                     \
    if (error != cudaSuccess) {                                           \
      std::fprintf(stderr, "%s: %s\n", #call, cudaGetErrorString(error)); \
      std::exit(1);                                                       \
    }                                                                     \
  } while (false)

inline double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

// A graph of `calls` launches: launch(i, stream).
template <class Launch>
cudaGraphExec_t graph_of(cudaStream_t stream, int calls, Launch launch) {
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  for (int i = 0; i < calls; ++i) launch(i, stream);
  CUDA(cudaStreamEndCapture(stream, &graph));
  CUDA(cudaGraphInstantiate(&exec, graph, 0));
  CUDA(cudaGraphDestroy(graph));
  return exec;
}

// Microseconds of one call: the median of so many replays of a graph of them, after `warm_up` more.
template <class Launch>
double median_us(int calls, int warm_up, int replays, Launch launch) {
  cudaStream_t stream;
  cudaEvent_t from, to;
  CUDA(cudaStreamCreate(&stream));
  CUDA(cudaEventCreate(&from));
  CUDA(cudaEventCreate(&to));
  const cudaGraphExec_t exec = graph_of(stream, calls, launch);
  std::vector<double> us;
  for (int i = -warm_up; i < replays; ++i) {
    CUDA(cudaEventRecord(from, stream));
    CUDA(cudaGraphLaunch(exec, stream));
    CUDA(cudaEventRecord(to, stream));
    CUDA(cudaEventSynchronize(to));
    float ms = 0;
    CUDA(cudaEventElapsedTime(&ms, from, to));
    if (i >= 0) us.push_back(1e3 * ms / calls);
  }
  CUDA(cudaGetLastError());
  CUDA(cudaGraphExecDestroy(exec));
  CUDA(cudaEventDestroy(from));
  CUDA(cudaEventDestroy(to));
  CUDA(cudaStreamDestroy(stream));
  return median(us);
}
