// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sim/engines/hand_over.hpp"
#include "sim/engines/launch_form.hpp"

namespace moesim {

/// A figure of an engine's benchmark under another name than `vllm bench serve` gives it.
struct BenchName {
  std::string_view theirs, ours;
};

/// Version behind an unknown one: that of images which a benchmark's authors ran from a date on.
struct ImageVersion {
  std::string_view from;  ///< 2026-02-01; empty: always
  std::string_view version;
};

/// An engine's version within a product that carries it.
struct CarriedVersion {
  std::string_view product;  ///< how that product's version begins
  std::string_view version;
};

/// Sizes by which an engine chooses settings that nobody gives.
struct ServerSizes {
  double hbm_mib = 0;  ///< of a GPU, in all
  int gpus = 1;        ///< of a pipeline stage
  int pp = 1, dp = 1;
  bool drafts = false;       ///< speculative decoding
  bool recipe = false;       ///< launch scripts set it up
  double vision_layers = 0;  ///< of the model's vision encoder; 0: none
  double vision_hidden = 0;
};

/// Facts that moesim has of a serving engine: the folder NAME/ of this one, and a row of
/// serving_engines().
struct ServingEngine {
  std::string_view name;    ///< in experiments, tables of kernels and files: trtllm
  std::string_view title;   ///< in texts of people: TensorRT-LLM
  std::string_view preset;  ///< the text of NAME/preset.json
  std::span<const std::string_view> platforms;  ///< of GPUs that the engine runs on
  /// Settings that it chooses by sizes, beneath those of the preset; null: none.
  Json (*by_size)(const ServerSizes&) = nullptr;
  /// Share of HBM that it chooses for an experiment with all other settings; null: the preset's.
  double (*memory_share)(const ServerSizes&, const Json& experiment) = nullptr;
  /// Why the engine cannot start such a layout of a model; empty: it can.
  std::string (*unfit)(const ParallelPlan&, const MoeModel&, const PrecisionPlan&);
  /// "vLLM does not run on TPU v7 (tpu)", for GPUs that it has no build for; else empty.
  std::string without_build(const GpuSpec&) const;
  /// The next larger batch that a CUDA graph is captured for; sizes begin with 1. The limit itself
  /// is captured too.
  std::int32_t (*next_graph_size)(std::int32_t size);
  /// True if a step computes prompts or decodes, and prompts go first.
  bool prompts_first = false;
  /// True if the engine does not start where a step takes fewer tokens than there are sequences.
  bool steps_hold_all_sequences = false;
  /// True if prompts and decodes of a server travel to their experts in one way.
  bool one_dispatch = false;
  /// True if a pool that decodes can have pipeline stages.
  bool decodes_in_stages = true;
  /// The scheduler of such steps, as experiments name it.
  std::string_view scheduler() const { return prompts_first ? "prefill_first" : "chunked_prefill"; }
  KvSends kv_sends = KvSends::whole;
  FirstToken first_token = FirstToken::admission;
  LaunchForm launch{};
  std::span<const BenchName> bench_names{};
  std::span<const ImageVersion> images{};     ///< of InferenceX, the latest first
  std::span<const CarriedVersion> carried{};  ///< by NVIDIA Dynamo
};

/// The table, in the order of texts.
std::span<const ServingEngine> serving_engines();
/// The row of a name, or nullptr.
const ServingEngine* find_engine(std::string_view name);
/// The names of the rows.
std::span<const std::string_view> engine_names();

}  // namespace moesim
