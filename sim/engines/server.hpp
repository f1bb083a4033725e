// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "hardware/config.hpp"
#include "models/step_ops.hpp"

namespace moesim {

/// Facts of an experiment that commands cannot say, a line each.
using Notes = std::vector<std::string>;

/// An EP group as one command starts it, or one command on each of its nodes: all that an engine
/// can be told of it.
struct Server {
  // Places where it runs.
  std::string role{};  ///< "prefill" or "decode" of pools; empty: both
  int number = 0;      ///< among all servers
  int node = 0;        ///< its first
  int first_gpu = 0;   ///< on that node
  int gpus_per_node = 1;
  bool alone = true;                   ///< no other server
  bool from_pipelines = false;         ///< KV caches come from prefill workers with pipeline stages
  bool has_nvfp4 = false;              ///< its GPUs multiply in nvfp4
  std::string_view platform = "cuda";  ///< of its GPUs, one of platform_names

  // Model and engine that it serves.
  std::string engine{};  ///< whose preset and kernels the experiment has; empty: no engine's
  ParallelPlan parallel{};
  PrecisionPlan precision{};
  int experts = 0;                          ///< of a layer; 0: a dense model
  int ffn_gpus = 0;                         ///< for the experts, which `parallel` has not (AFD)
  int redundant_experts = 0;                ///< slots of all GPUs beyond one for each expert
  std::int64_t max_model_len = 0;           ///< tokens that a request needs; 0: not known
  std::int32_t max_num_seqs = 0;            ///< of a rank
  std::int64_t max_num_batched_tokens = 0;  ///< of a rank and step
  std::int64_t long_prefill_tokens = 0;     ///< of a prompt in a step at most; 0: no such limit
  bool reserves_prompts = true;             ///< KV blocks of a whole prompt before it begins
  std::int32_t largest_graph = 0;           ///< decode batch that has one; 0: left to the engine
  bool evicts = true;                       ///< rather than keep room for all output tokens
  int drafts = 0;                           ///< speculative tokens of a sequence
  bool drafts_itself = false;               ///< a layer of the model drafts them
  bool two_batches = false;                 ///< overlap of two batches is wanted
  bool waterfill = false;                   ///< shared experts go where there is room
  bool prefix_caching = false;
  bool has_windows = false;           ///< of attention, in some layers
  bool keeps_all = false;             ///< those layers keep every token, too
  int block_tokens = 16;              ///< of a KV block; 16: left to the engine
  double gpu_memory_utilization = 0;  ///< share of HBM, as its engine counts it
  std::optional<double> free_gpu_memory_fraction{};

  // When prompts are held back: /prefill_alignment as a config has it.
  std::string prefill_alignment = "none";
  Json alignment_options{};

  // Policies by their names.
  std::string scheduling{}, prefill_dispatch{}, decode_dispatch{}, decode_routing{};
  std::string rebalancing{}, request_routing{};
  std::filesystem::path placement_file{};  ///< empty: none

  int gpus() const { return parallel.gpus(); }
  int nodes() const { return (gpus() + gpus_per_node - 1) / gpus_per_node; }
  /// 8000 of a server alone. Engines take further ports above their own: a hundred for each.
  int port() const { return alone ? 8000 : 8100 + 100 * number; }
  std::string host() const;
  std::string url() const;
  /// "CUDA_VISIBLE_DEVICES=0,1 " where it has not all GPUs of its node; else empty.
  std::string devices() const;
  bool spreads_experts() const { return experts > 0 && parallel.ep > 1; }
  /// Rows that a decode step of a rank brings to its experts at most, drafts too.
  std::int64_t most_decode_rows() const { return std::int64_t{max_num_seqs} * (1 + drafts); }
};

/// DeepEP's low-latency kernels count to 1,024 rows of a rank (csrc/kernels/internode_ll.cu).
inline constexpr std::int64_t low_latency_rows = 1023;

/// All servers that are written out, in the order of their pools.
struct Fleet {
  std::vector<Server> servers{};
  int left_out = 0;  ///< further servers
  int nodes = 1;

  bool apart() const { return !servers.front().role.empty(); }
  std::vector<const Server*> of_role(std::string_view role) const;
};

}  // namespace moesim
