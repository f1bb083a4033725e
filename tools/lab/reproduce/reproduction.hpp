// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "hardware/config.hpp"
#include "sim/experiment/trace_library.hpp"

namespace moesim {

/// Verdict on a published number. The first three in that order: each is worse than the one before.
/// Nothing was published for a row that only explains others.
enum class Verdict { within_band, sign_only, not_reproduced, not_published };
inline constexpr std::array<std::string_view, 4> verdict_names{"within band", "sign only",
                                                               "not reproduced", "not published"};

/// Standing of a published number. The worst of its rows decides.
enum class Standing {
  hit,        ///< within a two-sided band that leaves no change out, or equal to one number
  direction,  ///< the right sign, or within a limit
  contradicted
};
inline constexpr std::array<std::string_view, 3> standing_names{"hit", "direction", "contradicted"};

/// How much a row within its band says, by the band.
enum class BandKind {
  two_sided,  ///< tells more from less and from another size
  exact,      ///< one number
  no_change,  ///< two-sided, and no change at all would be within it too
  one_sided,  ///< a direction or a limit
  ours,       ///< a claim of our own, which no source makes
  none        ///< nothing was published
};
inline constexpr std::array<std::string_view, 6> band_kind_names{"two-sided", "exact", "no change",
                                                                 "one-sided", "ours",  "none"};

/// Value of a row's number with one of its inputs changed.
struct Cause {
  std::string input;
  double simulated = 0;
};

/// A published number and what the simulator says instead.
struct ReproducedRow {
  std::string what;
  std::string published;  ///< as the source puts it
  std::string number{};   ///< which published number it is, where several rows judge one
  std::string apart{};    ///< why the row is not counted among its paper's; else empty
  std::string unit;       ///< of `simulated`, with the space before it; may be empty
  double simulated = 0;
  /// Simulated values of each of the published numbers, where there are several: `simulated` is
  /// then the largest difference between the two.
  std::vector<double> each{};
  Verdict verdict = Verdict::within_band;
  Verdict recorded = Verdict::within_band;  ///< the verdict that the file was written with
  BandKind band = BandKind::none;
  /// The ends of a band that has two.
  std::optional<std::pair<double, double>> ends{};
  /// The value with every GPU as its data sheet has it, and what becomes of it, where the file says
  /// how such GPUs are simulated.
  std::optional<double> data_sheet{};
  Verdict data_sheet_verdict = Verdict::within_band;
  std::string reason;
  std::vector<Cause> causes;  ///< by input
};

/// A figure or table of a publication.
struct Reproduction {
  std::string name;   ///< of the file
  std::string paper;  ///< short name of the publication, or "moesim"
  std::string title, source;
  std::vector<std::string> assumed;  ///< inputs the source leaves out, and how they were chosen
  std::vector<ReproducedRow> rows;
};

/// Computes every row of a file (configs/reproduce/README.md):
///
///   {"paper", "title", "source", "quick": true, "assumed": [texts],
///    "data_sheet": {"cluster file": "the same of data-sheet GPUs"},
///    "measured": {"name": {"<kind>": {...}}},          see measure()
///    "rows": [{"what", "published", "unit", "value": expression, "band": [low, high],
///              "sign": [low, high], "ours": true, "number", "apart", "verdict", "reason",
///              "causes": {"input": expression}}]}
///
/// A row of several numbers has "values", expressions, in place of "value", and "each", what was
/// published of each; null: "below 0". The largest difference is in the band; "sign only" says that
/// each number has the sign of its published one.
///
/// A value within "band" is within band, else within "sign" it is sign only; null is no limit, and
/// without "sign" there is no such verdict. Without "band" nothing was published. "causes" are the
/// same value with one input changed; told is by how much that changes it. With "data_sheet" runs,
/// explained steps and frontiers on the named clusters are computed again on those given for them.
/// "ours" marks a claim that the source does not make. Rows of one "number" of a paper count once,
/// rows with a text "apart" by themselves. An expression is a number, "name:/pointer"
/// into what was measured, or an operation on a list of expressions. Operations: sum, difference,
/// product, ratio, change (a over b, in percent), min, max. Throws ConfigError.
Reproduction reproduce(const ConfigNode& file);

/// Standing of a row; none where nothing was published. A band that holds no change is met by doing
/// nothing: within it the sign decides, that of the band's middle.
std::optional<Standing> standing_of(const ReproducedRow&);
/// Returns where in its band a value lies: "+4.5 of +-5 points" from the middle for a value in
/// percent, else in percent of the middle; empty for a band with one end, or of one number.
std::string place_in_band(const ReproducedRow&);
/// Returns rows of figures as CSV with a heading. Columns: the figure's name, what is published and
/// simulated, the verdict, the kind of band, where in the band. Then the value on a data-sheet
/// roofline, why, which number it is and what it counts as.
std::string results_csv(const std::vector<Reproduction>&);
/// Markdown of how published numbers came out, and claims of moesim's own ("ours") apart; then a
/// table by paper.
std::string counts_markdown(const std::vector<Reproduction>&);
/// The table of the rows and what was assumed, for a terminal.
std::string to_text(const Reproduction&);

/// Answers of the simulator for one {"kind": {...}}, as JSON that pointers lead into. With
/// "workload", a file {"dataset", "lengths", "gating", "sources": {"/lengths/..": text}} beside the
/// kind, runs and explained steps take lengths and gating from there. Throws ConfigError.
///
///   run      a sweep file (tools/sweep/sweep.hpp): reports, by the values of its axes
///   explain  the same with "step", "sequences", "context", "tokens" and "samples" (1): the mean
///            time of steps of each, and one by operation
///   replay   ReplayConfig on "trace" or on "gating" with "model": by placement, replication,
///            batch and routing
///   route    "experts_on_gpu", "tokens", "routings": activated slots and tokens of the busiest GPU
///   place    "load", "gpus", "slots", ...: imbalance, and slots that differ from "expected"
///   model    a zoo file: sizes
///   gpu      a GPU file: peaks and bandwidths
///   exchange tokens that travel to uniformly drawn experts: copies, bytes, time on a cluster
///   draws    batches of uniformly drawn experts, with "hot" experts drawn more often: loads
///   point    one operation, described like a row of a measured points file: microseconds
///   trace    a recorded or generated routing: shares of the hottest experts, overlap of tokens
///   requests a recorded "file": shares of prompt tokens that LRU hits, and that any order could
///   timing   token routers on this machine: the power of ten, from 10 us, above a layer's time
///   spells   "sweep", how many seconds a "key" of the report's "over_time" was "above" a limit
///   frontier a "sweep" file, one decode step at "context" of each point that fits in memory, with
///            "set" in all; "frontiers" {name: [settings, any of which a point matches, null: not
///            set]}, "gains" {name: [baseline frontier, candidate]}: throughput per GPU at equal
///            step time
///   regimes  a study (tools/lab/study/regime_study.hpp): by case, constants, tokens of the step,
///            policy and exchange (or "best"), if deciding takes no time: "us" of a step, "change"
///            from no replication in percent, "saved_us" for each MoE layer
///   article  "routers" {name: policy} in the EP-barrier article's world (router_testbed.hpp)
///   bfio     the same in that of BF-IO's paper; its own are "bfio_fcfs" and "bfio_round_robin"
/// What runs, steps and frontiers have in common is made once in a library.
Json measure(const ConfigNode&, TraceLibrary&);

}  // namespace moesim
