// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "hardware/config.hpp"
#include "models/launches.hpp"

namespace moesim {

/// The engine that an experiment runs: "engine": {"name": "vllm", "version": "0.19.0"}.
struct Engine {
  std::string name;     ///< a row of serving_engines(); none: neither preset nor measured kernels
  std::string version;  ///< as its release is called; empty: the newest
  std::string recipe;   ///< the author of the launch scripts that set it up; empty: none
  std::string date;     ///< of that recipe, 2026-04-21; empty: its latest
  /// Part of the name that tables give its kernel of expert layers; empty: the fastest.
  std::string expert_kernel;
  /// Rates of its GEMMs of prompts in fp8 blocks, and of their attention, as in "20 TFLOP/s";
  /// empty: as tables say.
  std::string prompt_gemms, prompt_attention;
  /// Small operations that it computes inside its larger ones: norm, rope, quantise.
  std::vector<std::string> fused;

  bool operator==(const Engine&) const = default;
};
/// Throws ConfigError.
Engine read_engine(const ConfigNode&);
Fusions fusions_of(const Engine&);
std::span<const Key> engine_keys();

/// An experiment that names an engine, with all that its preset (sim/engines/*/preset.json) sets
/// where the experiment itself says nothing. Objects are filled key by key; of a policy only if its
/// "type" is the preset's. Rules such as "twice the longest prompt" are worked out from the
/// experiment's workload. An experiment without "engine" is answered as it is. Throws ConfigError.
ConfigNode with_preset(const ConfigNode& experiment);

}  // namespace moesim
