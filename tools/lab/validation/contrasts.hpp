// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tools/lab/validation/serving_runs.hpp"

namespace moesim {

/// The one thing in which two runs differ.
enum class Difference { layout, experts, gpu, engine, precision, batch };
inline constexpr std::array<std::string_view, 6> difference_names{"layout", "experts",   "gpu",
                                                                  "engine", "precision", "batch"};

/// How many times a figure of one run is that of the other.
struct ContrastRatios {
  double measured = 0, predicted = 0;
  double rule = 1;    ///< by a rule of thumb; 1: it has no size
  int rule_sign = 0;  ///< 1: the rule says that it is larger, -1: smaller, 0: nothing
  /// Measured within 2 % of the other: no difference that a prediction must find.
  bool equal() const;
  /// True if the prediction is on the side of 1 of the measurement.
  bool right() const;
};

/// Two measured runs that differ in one thing.
struct Contrast {
  Difference differs{};
  std::string one, other;              ///< ids of the runs
  std::string of_one, of_other;        ///< what differs: "b200", "h200"
  ContrastRatios per_gpu;              ///< output tokens/s of a GPU
  std::optional<ContrastRatios> tpot;  ///< not of offline runs
  std::string what() const { return of_one + " against " + of_other; }
};

/// Pairs of runs that differ in one thing. They are equal in model, lengths, GPU, engine with
/// version, precision, layout and concurrency but for it:
///  - layout: at equal concurrency per GPU. N / n copies of a layout of n GPUs serve a load on N
///    GPUs, each with its share. (At equal concurrency the layout of fewer GPUs gives more
///    tokens/s per GPU in 99 % of the pairs, and is predicted to: such pairs test nothing.)
///    Runs that differ in EP alone are pairs of `experts`.
///  - experts: over how many GPUs they are parallel, at equal TP and DP; "cut" where each expert is
///    cut over all of them.
///  - gpu: of the same engine; versions may differ where neither run has a nearer partner.
///  - engine: the newest version of each.
///  - precision.
///  - batch: each with the next larger one.
/// Where some runs are held out of a fit, pairs of two fitted runs are left out. Pure.
///
/// Rules of thumb, on tokens/s per GPU; on TPOT they are the reverse:
///  - layout: more GPUs, as they read their weights once for a larger batch; no size.
///  - experts: none.
///  - gpu: by the ratio of HBM bandwidths.
///  - engine: TensorRT-LLM before SGLang, SGLang before vLLM; no size.
///  - precision: by the ratio of the bytes of an expert's weights.
///  - batch: in proportion. TPOT is longer too, by no known size.
std::vector<Contrast> contrasts_of(const std::vector<ServingRun>&);

/// How often the sign of differences was right, and how far off their sizes were.
struct ContrastScore {
  int pairs = 0;  ///< without the equal ones
  int right = 0;
  int equal = 0;
  double size_error_pct = 0;  ///< median |log(predicted ratio / measured ratio)|, as a percentage
  double rule_right = 0;      ///< a pair of which the rule says nothing counts half
  double rule_size_error_pct = 0;
};
ContrastScore score_of(const std::vector<ContrastRatios>&);

/// Choices under a limit of TPOT, and what they cost: 1 - tokens/s per GPU of the choice over that
/// of the best measured run that meets the limit.
struct Regret {
  int choices = 0;
  int misses = 0;  ///< the chosen run measures more than 5 % above the limit
  double mean = 0, p90 = 0;
  double rule_mean = 0, rule_p90 = 0;
};

/// Limits of TPOT under which choices are made, ms.
inline constexpr std::array tpot_limits_ms{10., 15., 20., 30., 50., 100.};

/// Among which runs a deployment is chosen: layouts of one model, GPU, engine, precision and load's
/// lengths, or anything for one model and lengths.
enum class Choice { layout, anything };

/// Regret over all groups of at least two options and all limits that two of a group's runs meet in
/// measurement. The program chooses the run, deployment and concurrency, with the most predicted
/// tokens/s per GPU among those predicted to meet the limit. Without such a run it chooses the one
/// of the least predicted TPOT. After a miss the chosen deployment serves at its best measured
/// concurrency that meets the limit; without one the regret is 1. The rule of thumb chooses among
/// the deployments that meet the limit in measurement. It takes the GPU of the most HBM bandwidth,
/// then the fewest bytes of a weight, the engine (as above), and the fewest GPUs. The rule is told
/// the best concurrency, which the program must find; of equal deployments it gets the mean. Groups
/// without a held-out run are left out where some runs are held out. Pure.
Regret regret_of(const std::vector<ServingRun>&, Choice);

}  // namespace moesim
