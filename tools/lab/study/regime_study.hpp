// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "sim/experiment/experiment.hpp"
#include "tools/sweep/sweep.hpp"

namespace moesim {

/// How many copies, where, and by which is a token served? Or are experts cut instead? A study
/// prices steps of every case, under every set of constants, of every policy, ratio and exchange,
/// all on the same sampled batches.
struct RegimeStudy {
  using Settings = std::map<std::string, Json>;  ///< by JSON pointer into the base
  using Named = std::vector<std::pair<std::string, Settings>>;

  Json document;
  std::filesystem::path base_file;
  Json base;
  Named cases;      ///< one of each list of the file's "cases", their names joined
  Named constants;  ///< what prices are taken from; one without a name where the file has none
  Named exchanges;  ///< tried by every policy that sets no exchange; one without a name by default
  Named policies;   ///< the first is what the others are held against
  std::vector<double> replications;
  std::vector<int> sequences;  ///< per DP rank, in decode steps
  std::vector<int> prompts;    ///< tokens of a DP rank's one prompt, in prefill steps
  int context = 0;             ///< tokens of each sequence
  int samples = 0;             ///< batches of each size, over all deals
  int deals = 1;               ///< halves of the requests that placements are fitted on
  bool price_errors = false;   ///< prices each sample once more, as constants could be off
};

/// Reads a study file:
///
///   {"base": "experiment.json",
///    "cases": [{"gpt-oss-20b": {"/model": ...}, ...}, {"8 H200": {"/cluster": ...}, ...}],
///    "constants": {"measured": {}, "families": {"/engine": {"name": "none"}}},
///    "exchanges": {"all-to-all": {"/dispatch/decode": "all_to_all"}, ...},
///    "policies": {"none": {"/placement/replication": 1, ...}, "metro": {...}, ...},
///    "replications": [1.125, 1.25, 1.5],   of policies that set none of their own
///    "sequences": [1, 4, 16], "prompts": [512], "context": 1024, "samples": 32,
///    "deals": 4, "price_errors": true}
///
/// Cases, constants, exchanges and policies come in the order of their names. Throws ConfigError.
RegimeStudy read_regime_study(const ConfigNode& file);
/// The keys of a study file.
std::span<const Key> regime_study_keys();

/// Which point of a study is meant: places in its lists.
struct RegimePlace {
  std::size_t of_case = 0, constants = 0, exchange = 0, policy = 0;
};
/// Calls with (place, point) of each case, constants, policy, ratio and exchange, in this order.
void for_each_regime(const RegimeStudy&,
                     const std::function<void(const RegimePlace&, const SweepPoint&)>&);
/// Sweep of the study: the points in this order, each once.
Sweep points_of(const RegimeStudy&);
/// Throws ConfigError where the first point is wrong: what is wrong with all is said of that one.
void check_first(const RegimeStudy&, const Sweep&, TraceLibrary&);
/// Prices a point's steps, sample by sample: their times, what the busiest GPU reads of experts,
/// and how long its policy takes to decide. Batches and traces are those of the other half than
/// placements are fitted on where the point's placement says so ("disjoint"). Each deal has seeds
/// and halves of its own. Throws ConfigError, also where experts are cut into slices that some
/// kernels do not take.
std::string price_regime(const Json& point, const std::filesystem::path& base_file, TraceLibrary&);

}  // namespace moesim
