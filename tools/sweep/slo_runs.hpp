// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <optional>
#include <set>
#include <span>
#include <stop_token>
#include <string>
#include <vector>

#include "tools/sweep/slo_search.hpp"
#include "tools/sweep/store.hpp"
#include "tools/sweep/sweep.hpp"

namespace moesim {

/// Share by which a draw may miss the attainment that all draws have in their mean.
inline constexpr double by_chance = .03;

/// The runs of a search: made now, or found in its store. One thread at a time may use it, but for
/// load() and run(), which any may.
class SloRuns {
 public:
  /// Throws ConfigError if the store is another search's. All arguments outlive it.
  SloRuns(const SloSearch&, TraceLibrary&, Remarks&, const SloHooks&);

  /// Loads are the rungs of this ladder, which outlives it.
  void climb(const RateLadder& ladder) { ladder_ = &ladder; }
  /// Requests/s, or sessions alive, whose number is whole.
  double load_at(int rung) const;

  Experiment load(const Json& config) const;

  /// Makes the trace that a config needs, with all cores. Runs that wait for the same one side by
  /// side would leave that to one of them.
  void make_trace(const Json& config);
  /// The same for a run, unless the store holds that.
  void make_trace_of(const SweepPoint&);

  /// A run that was given up: what it had attained, and below what it would have stayed.
  struct GivenUp {
    double attained = 0, asked = 0;
  };
  struct Outcome {
    SweepPoint of;
    StoreRow row{};
    std::optional<GivenUp> missed{};  ///< the row says that alone
    bool before = false;              ///< of the store
  };

  /// Point of a longer run (SloSearch::lengthen) of a place.
  TunePoint lengthened(TunePoint point) const {
    return {search_.places.size() + point.place, point.rung};
  }
  SweepPoint point_of(TunePoint);
  /// Requests of a run. Runs that are made side by side begin with the longest: no core is left
  /// with a long one at the end.
  double length_of(TunePoint) const;
  /// A run, which is given up where it cannot attain `least`. Nothing: it was asked to stop.
  std::optional<Outcome> run(const SweepPoint&, std::optional<double> least,
                             const std::stop_token& stop = {}) const;
  /// Keeps what runs of some points showed, in the store too.
  std::vector<Trial> keep(std::span<const TunePoint>, std::span<Outcome>);

  /// Runs points side by side, the longest first. Where only `whether` they meet the SLO is asked,
  /// those that miss may be given up. Nothing: stopped.
  std::optional<std::vector<Trial>> operator()(std::span<const TunePoint>, bool whether);
  /// Below this attainment runs miss, whatever other draws show.
  double least_attainment() const {
    return search_.attainment - (search_.draws > 1 ? by_chance : 0);
  }
  bool stopped() const { return hooks_.stop(); }

  /// Writes what the search found, with its runs.
  void write_into(SloResult&) const;
  /// A run that was kept, and what it showed.
  SloRun of(const TuneResult::Found&) const;

 private:
  std::string load_text(double load) const;
  Json config_of(TunePoint) const;
  const Json& place_of(TunePoint) const;
  std::string report_of(const Experiment&, std::optional<double> least,
                        const std::stop_token&) const;
  Trial note(TunePoint, Outcome&);
  void open_store();
  bool was_run(const SweepPoint&) const;

  const SloSearch& search_;
  PointMaker points_;
  TraceLibrary& traces_;
  Remarks& remarks_;
  const SloHooks& hooks_;
  const RateLadder* ladder_ = nullptr;
  std::optional<Store> store_;
  std::map<std::string, StoreRow> known_;    // done before
  std::map<std::string, GivenUp> given_up_;  // before
  std::set<std::string> traced_;             // gatings and seeds whose traces are made
  std::map<TunePoint, StoreRow> runs_;
  std::size_t done_ = 0, resumed_ = 0;
};

}  // namespace moesim
