// SPDX-License-Identifier: Apache-2.0
#include "tools/bench/trtllm_bench.hpp"

#include <algorithm>
#include <cmath>

namespace moesim {

namespace {

constexpr double gib = 1024.0 * 1024 * 1024;

bool is_four_bit(Precision p) { return bytes_per_element(p) < 1; }

// Bytes of the checkpoint's numbers in BYTES_PER_ELEM: two bytes for what it does not know.
double bytes_of_number(Precision experts) {
  switch (experts) {
    case Precision::fp8:
    case Precision::fp8_block: return 1;
    case Precision::nvfp4: return .5;
    default: return 2;
  }
}

// Numbers as a checkpoint's files count them: two weights of four bits are one, and their scales
// count too.
double numbers_of_checkpoint(const MoeModel& model, Precision experts) {
  const double total = count_parameters(model).total;
  if (!is_four_bit(experts)) return total;
  const double routed = model.moe_layers() * model.experts * expert_parameters(model);
  return total - routed + routed * bytes_per_element(experts);
}

// Keys and values of a request over all layers and GPUs: a layer with a window keeps its window.
double kv_numbers(const ServedModel& d, int gpus, double tokens) {
  const PrecisionPlan plain{};
  double numbers = 0;
  for (const LayerSpec& layer : d.model.layers) {
    const Mixer& mixer = *layer.mixer;
    if (mixer.absorbs()) {
      numbers += 2.0 * d.model.hidden * tokens;
      continue;
    }
    const int heads = mixer.cache_heads(1).kv_heads;
    const int window = mixer.sight().window;
    const double seen = window > 0 ? std::min<double>(window, tokens) : tokens;
    if (heads > 0)
      numbers +=
          seen * mixer.kept(ParallelPlan{}, plain).elements * std::max(1.0, double(gpus) / heads);
  }
  return numbers;
}

int up_to(double value, int step) { return step * static_cast<int>(std::ceil(value / step)); }

int rounded_sequences(double sequences) {
  if (sequences < 256) return std::max(64, up_to(sequences, 32));
  return up_to(sequences, sequences < 1024 ? 128 : 256);
}

int rounded_tokens(double tokens) {
  if (tokens < 4096) return std::max(2048, up_to(tokens, 256));
  return up_to(tokens, tokens < 8192 ? 512 : 1024);
}

}  // namespace

bool is_trtllm_bench(const MeasuredPoint& point) {
  return contains(point.operation, "trtllm-bench");
}

int requests_of_bench(const MeasuredPoint& point) {
  const double longest = std::max(point.prompt, point.output);
  return longest > 16384 ? 1000 : longest > 4096 ? 1500 : 3000;
}

BenchLimits trtllm_bench_limits(const Deployment& d, const MeasuredPoint& point) {
  const int gpus = d.parallel.gpus();
  const Precision experts = d.precision.experts;
  const double weights = numbers_of_checkpoint(d.model, experts) * bytes_of_number(experts) / gib;
  const double memory = gpus * d.cluster.gpu.hbm_capacity.value() / gib - weights;
  const double kv_bytes = bytes_per_element(d.precision.kv_cache);
  const double of_request = kv_numbers(d, gpus, point.prompt + point.output) * kv_bytes / gib;
  const double share = d.kv_cache.free_gpu_memory_fraction.value_or(.9);  // TensorRT-LLM's default
  constexpr double most = 4096, most_tokens = 32768;
  const double sequences = std::min(most, share * memory / of_request);
  const double tokens = std::min(most_tokens, sequences * (1 + point.prompt / point.output));

  BenchLimits limits{rounded_sequences(sequences), rounded_tokens(tokens), {}};
  // perf-overview.md, Running the Benchmark; llm_args.py keeps those up to the limit, and the
  // limit.
  for (const int size : {1, 2, 4, 8, 16, 32, 64, 128, 256, 384, 512, 1024, 2048, 4096})
    if (size < limits.max_batch_size) limits.graph_sizes.push_back(size);
  limits.graph_sizes.push_back(limits.max_batch_size);
  const auto prompt = static_cast<int>(point.prompt);
  limits.max_num_tokens = std::max(limits.max_num_tokens, prompt + limits.max_batch_size);
  const auto held = static_cast<std::int64_t>(point.prompt + point.output);
  const std::int64_t fit = d.memory.kv_blocks / d.kv_layout.blocks_for(held);
  limits.max_batch_size = static_cast<int>(std::clamp<std::int64_t>(fit, 1, limits.max_batch_size));
  return limits;
}

}  // namespace moesim
