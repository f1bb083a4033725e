// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "hardware/engine_version.hpp"
#include "hardware/shipped.hpp"
#include "tools/bench/measured_points.hpp"

namespace moesim {

/// File of a model in models/zoo without its extension, by the name sources use; empty if there is
/// none.
std::string model_file(std::string_view name);

/// Files for the names that points give GPUs, before those in hardware/gpus.
using GpuFiles = std::map<std::string, std::filesystem::path>;
/// The file of a GPU by the name that points give it; empty if there is none.
std::filesystem::path gpu_path(const std::string& name, const std::filesystem::path& root,
                               const GpuFiles&);

/// Shape of the routed experts of one layer.
struct ExpertShape {
  double hidden, width;
  int experts, per_token;
};
/// Layer that a row's text gives in numbers, else that of its model, from config.json.
std::optional<ExpertShape> expert_shape(const MeasuredPoint&);

/// Version of a point: what its operation or source names, else no version of the named engine.
EngineVersion timed_engine(const MeasuredPoint&);

/// Number behind a name in "q_heads=32 kv_heads=4 hd=128" or "M=64 N=2048 K=4096"; 0: none.
double number_after(const std::string& text, const std::string& name);
/// Word behind a name in "experts hidden=7168 kernel=cutlass"; empty where there is none.
std::string word_after(const std::string& text, const std::string& name);

}  // namespace moesim
