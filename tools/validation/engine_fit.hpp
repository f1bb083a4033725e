// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "hardware/config.hpp"
#include "tools/validation/measured_points.hpp"

namespace moesim {

/// A run as an engine's constants see it: what was measured, and what is predicted without them.
struct EngineRun {
  std::string deployment;
  double tpot_ms = 0, ttft_ms = 0;  ///< measured
  double bare_tpot_ms = 0, bare_ttft_ms = 0;
  double layers = 0, sequences = 0;  ///< of the model; of an attention rank
};

/// What kernels and links leave of a step's time, and of the time to a first token.
struct EngineConstants {
  double per_layer_us = 0, per_step_us = 0, per_sequence_us = 0;
  double latency_ms = 0, admission_steps = 0;
  double tpot_ms(const EngineRun&) const;
  double ttft_ms(const EngineRun&) const;
};

/// Robust least squares on log(predicted / measured), every deployment with the same weight, no
/// constant below 0. Pure.
EngineConstants fit_engine(std::span<const EngineRun>);

/// Median |predicted / measured - 1| of TPOT over runs whose deployment was left out of the fit.
double held_out_error(std::span<const EngineRun>);

/// The runs of an engine among measured points, each simulated with all constants at 0.
std::vector<EngineRun> runs_of_engine(const std::vector<MeasuredPoint>&, const std::string& engine,
                                      const std::filesystem::path& root);

/// A preset with these constants in the place of its own, and where they come from.
OrderedJson with_constants(OrderedJson preset, const EngineConstants&, const std::string& source);

}  // namespace moesim
