// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string>

#include "hardware/config.hpp"
#include "sim/experiment/trace_library.hpp"

namespace moesim {

/// Load that a deployment sustains without one of its GPUs, within the same limits.
struct LostGpu {
  std::string pool;            ///< "decode" where prefill is apart, else ""
  int gpu = 0;                 ///< of the first EP group
  double per_second = 0;       ///< requests/s; 0: not even a hundredth of the load before
  double attainment = 0;       ///< share of the requests within the limits, at that load
  double stopped_seconds = 0;  ///< time that the engine stands still when the GPU stops
  double experts_lost = 0;     ///< slots, which other GPUs load
  std::string refused{};       ///< why the deployment cannot run without the GPU; "": it can
};

/// GPU of "gpu=3". Throws ConfigError.
int lost_gpu_of(const std::string& option);

/// Looks for the heaviest load, to 2 % of `per_second`, that the deployment sustains from the
/// moment at which the GPU has stopped. Each token is priced.
LostGpu without_gpu(const Json& config, const std::filesystem::path& folder, int gpu,
                    double per_second, double attainment, TraceLibrary&);

/// Text of a load that is left of `before` requests/s, and why; the same as JSON.
std::string lost_gpu_text(const LostGpu&, double before);
OrderedJson lost_gpu_json(const LostGpu&);

}  // namespace moesim
