// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "hardware/config.hpp"
#include "models/deployment.hpp"
#include "models/moe_model.hpp"
#include "models/quantization.hpp"

namespace moesim {

/// Name that messages give the experiment that a question makes: no file holds it.
inline constexpr const char* experiment_file = "options";

/// Model to serve, on what, and how fast.
struct ServingQuestion {
  Json model;    ///< as an experiment has it
  Json cluster;  ///< likewise
  std::string engine = "vllm";
  std::string trace;  ///< of routing; none: synthetic gating
  int prompt = 1000, output = 200;
  int prefix = 0;          ///< leading tokens that all prompts share, and caches keep
  std::string ttft, tpot;  ///< limits; empty: none
  /// "fp8", or "nvfp4/fp8": of the experts' weights, then of all others. Of one name of four bits
  /// the others of a model with experts stay as its files store them. Empty: all as stored.
  std::string precision;
  std::string kv_cache_dtype;  ///< as engines name it; empty, "auto": their default
  std::string max_model_len;   ///< tokens of the longest request; empty: the model's positions
  std::string rate = "1 /s";
  std::uint64_t seed = 1;
};

/// Returns "h200" and 16 as the cluster of that GPU and size that ships. Else it is one made of the
/// nodes that GPUs of its kind are in: an object, said in `remark`. Throws ConfigError.
Json cluster_of(const std::string& gpu, int gpus, std::string& remark);

/// Dispatch of prefill and decode where nothing else is asked for; null where the engine's preset
/// has its own.
Json engine_dispatch(const std::string& engine);

/// The experiment that answers the question but for its shape: linear routing's defaults, an EPLB
/// placement of one copy each. Throws ConfigError where a precision has no such name.
Json base_deployment(const ServingQuestion&, const MoeModel&,
                     const std::optional<StoredPrecision>&);

/// Takes a checkpoint of the zoo, as "Qwen/Qwen3-235B-A22B-FP8", for its model in its precision.
/// Takes "fp8" for fp8_block where the known FP8 weights have a scale for each block. Returns what
/// was taken as a sentence, or "". A precision that was asked for stays.
std::string settle_checkpoint(ServingQuestion&);

/// Returns a message about a key of the experiment that options made as one about the option. Users
/// have not seen the keys. Other messages stay.
std::string said_of_options(const std::string& message);

/// A number of tokens on the command line: "4096" as well as "4k". Throws ConfigError.
int tokens_of_option(const std::string& option, const std::string& text);

/// Limits of a step unless something else is asked for: prompt tokens, sequences.
inline constexpr int usual_chunk = 8192, usual_sequences = 512;

/// Returns one deployment under one load as an experiment. Exactly one of `concurrency` and the
/// question's `rate` is the load: a concurrency of 0 takes the rate.
Json one_deployment(const ServingQuestion&, const ParallelPlan&, int concurrency);

}  // namespace moesim
