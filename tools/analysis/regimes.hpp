// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "sim/experiment/experiment.hpp"
#include "tools/sweep/sweep.hpp"

namespace moesim {

/// How many copies, where, and by which is a token served? A study prices decode steps of every
/// case, policy, ratio and batch, all policies on the same sampled batches, and compares them over
/// x = tokens of the step * k / experts, the selections that an expert gets in the mean.
struct RegimeStudy {
  using Settings = std::map<std::string, Json>;  ///< by JSON pointer into the base
  using Named = std::vector<std::pair<std::string, Settings>>;

  Json document;
  std::filesystem::path base_file;
  Json base;
  Named cases;     ///< one of each list of the file's "cases", their names joined
  Named policies;  ///< the first is what the others are held against
  std::vector<double> replications;
  std::vector<int> sequences;  ///< per DP rank
  int context = 0;             ///< tokens of each sequence
  int samples = 0;             ///< batches of each size
};

/// Reads a study file:
///
///   {"base": "experiment.json",
///    "cases": [{"gpt-oss-20b": {"/model": ...}, ...}, {"8 H200": {"/cluster": ...}, ...}],
///    "policies": {"none": {"/placement/replication": 1, ...}, "metro": {...}, ...},
///    "replications": [1.125, 1.25, 1.5],   of policies that set none of their own
///    "sequences": [1, 4, 16], "context": 1024, "samples": 32}
///
/// Cases and policies come in the order of their names. Throws ConfigError.
RegimeStudy read_regime_study(const ConfigNode& file);
/// The keys of a study file.
std::span<const Key> regime_study_keys();

/// What a sweep makes of it: a point per case, policy and ratio, in this order.
Sweep points_of(const RegimeStudy&);
/// Prices a point's steps: their times and the most activated slots of a GPU, sample by sample.
/// Batches and traces are those of the other half than placements are fitted on where the point's
/// placement says so ("disjoint").
std::string price_regime(const Json& point, const std::filesystem::path& base_file, TraceLibrary&);

/// A policy at a ratio on batches of one size.
struct RegimeRow {
  std::size_t group = 0;  ///< case, in the study's order
  std::string policy;
  double replication = 1;             ///< as built: whole slots
  int batch = 0;                      ///< tokens of the step
  double x = 0;                       ///< selections per expert
  std::vector<double> ms, activated;  ///< by sample; the latter means over MoE layers
  double kv_tokens = 0;               ///< that HBM has room for, all ranks
  bool fits = true;                   ///< the batch's own KV does
  /// Whether the policy decides by the counts of all GPUs, which takes time in every MoE layer;
  /// and that time by sample, of a step, as the case charges it.
  bool by_global_counts = false;
  std::vector<double> deciding_ms{};
  int layers = 0;  ///< MoE layers of a step
};
/// The rows of done points, case by case and batch by batch; points that could not be priced are
/// left out.
std::vector<RegimeRow> regime_rows(const RegimeStudy&, const StoredSweep&);

/// A difference in percent of the second's mean, on paired samples, and half its 95 % interval.
struct PairedGain {
  double percent = 0, margin = 0;
};
PairedGain paired_gain(const std::vector<double>& of, const std::vector<double>& against);

/// One cell of the map: which policy's step is shortest.
struct RegimeCell {
  const RegimeRow* fastest = nullptr;
  /// The row with the most KV cache whose step time does not differ from the fastest's by more than
  /// the interval: what to deploy.
  const RegimeRow* cheapest = nullptr;
  const RegimeRow* reference = nullptr;  ///< the study's first policy
  const RegimeRow* metro = nullptr;      ///< the fastest of policies called metro..., if any
};
/// A cell per case and batch that has a reference. Points into `rows`.
std::vector<RegimeCell> regime_map(const RegimeStudy&, const std::vector<RegimeRow>& rows);

/// What a policy may take to decide, and still pay.
struct BreakEven {
  const RegimeRow* policy = nullptr;  ///< at the ratio that leaves the most time
  const RegimeRow* rival = nullptr;   ///< the fastest row that needs no counts of all GPUs
  /// In the mean, for each MoE layer, and half its 95 % interval; below 0 the policy does not pay
  /// though it decides in no time.
  double us = 0, margin = 0;
};
/// For each case and batch that has a rival, and each policy by global counts, in the study's
/// order:
///   us = (rival's step - (policy's step - its time to decide)) / MoE layers, on paired batches.
/// Rows whose batch does not fit are left out. Points into `rows`.
std::vector<BreakEven> break_even(const RegimeStudy&, const std::vector<RegimeRow>& rows);

/// The map as tables, at most 100 columns wide.
std::string regime_text(const RegimeStudy&, const std::vector<RegimeRow>& rows);
/// All rows, with each one's gains over the reference and over the fastest METRO.
std::string regime_csv(const RegimeStudy&, const std::vector<RegimeRow>& rows);
/// Step time against the reference's over x, a panel per case, a line per policy at its best ratio,
/// with gnuplot: .svg, .png or .pdf.
void plot_regimes(const RegimeStudy&, const std::vector<RegimeRow>& rows,
                  const std::filesystem::path& file);

}  // namespace moesim
