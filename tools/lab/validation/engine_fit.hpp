// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "hardware/config.hpp"
#include "tools/bench/measured_points.hpp"

namespace moesim {

/// A run as an engine's constants see it: what was measured, and what is predicted without them.
struct EngineRun {
  std::string deployment, group;    ///< the group is its GPU and model
  double tpot_ms = 0, ttft_ms = 0;  ///< measured
  double bare_tpot_ms = 0, bare_ttft_ms = 0;
  double layers = 0, sequences = 0;  ///< of the model; of an attention rank
  double launches = 0;               ///< of kernels, in a step with prompts
  bool knows_client = true;          ///< how requests arrive and what lengths they have is written
};

/// Constants that kernels and links leave of a step's time, and of the time to a first token.
struct EngineConstants {
  double per_layer_us = 0, per_step_us = 0, per_sequence_us = 0;
  double latency_per_launch_us = 0, admission_steps = 0;
  double added_tpot_ms(const EngineRun&) const;
  double tpot_ms(const EngineRun&) const;
  double ttft_ms(const EngineRun&) const;
};

/// Robust least squares on log(predicted / measured), every deployment with the same weight. Each
/// constant is drawn towards what engines typically have. To be a factor of e away from it weighs
/// as a deployment that is 10 % off. So runs of one model, which do not tell layers from steps,
/// give neither 0. The extra time of a first token is fitted on the runs whose client is known, as
/// queues are the client's; on all where none is. Pure.
EngineConstants fit_engine(std::span<const EngineRun>);

/// Errors of runs whose GPU and model were left out of the fit, predicted / measured - 1.
struct HeldOutErrors {
  double tpot = 0, ttft = 0;            ///< medians of the absolute errors
  double tpot_bias = 0, ttft_bias = 0;  ///< medians
};
HeldOutErrors held_out_errors(std::span<const EngineRun>);

/// The constants that a preset has for all runs.
EngineConstants constants_of(const OrderedJson& preset);

/// Simulates the runs of an engine among measured points with its preset. Takes off again what its
/// constants add: a step's by what it says, the front's by leaving it out.
std::vector<EngineRun> runs_of_engine(const std::vector<MeasuredPoint>&, const std::string& engine,
                                      const std::filesystem::path& root);

/// A preset with these constants in the place of its own, and where they come from.
OrderedJson with_constants(OrderedJson preset, const EngineConstants&, const std::string& source);

}  // namespace moesim
