// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <unordered_map>
#include <vector>

#include "hardware/at.hpp"
#include "hardware/rng.hpp"
#include "traces/routing_trace.hpp"

namespace moesim {

/// Consecutive rows of a routing trace that one rank's tokens take in a step, in order.
struct RowRange {
  Phase phase;  ///< which of the source's traces
  std::int32_t rank;
  std::int32_t count;
  std::int64_t first_row;
};

/// Which recorded request a simulated one replays, in each phase's trace.
struct Binding {
  std::array<std::uint32_t, 2> request{};
};

/// Recordings that simulated requests replay, in order of arrival. They are any at random or, phase
/// after phase of as many requests, only those of the phase's workload tags. By session, a later
/// turn replays any of those that have the tag of the first one.
struct BindingOrder {
  std::vector<std::vector<std::string>> phases;  ///< empty: no phases
  std::int64_t requests = 0;                     ///< over all phases
  bool by_session = false;
};

/// How many routed tokens stand on which ground.
struct RoutingCoverage {
  std::int64_t recorded = 0;  ///< rows of the bound request, of the phase they were recorded in
  std::int64_t borrowed =
      0;  ///< the phase was not recorded: the bound request's rows of the other one
  std::int64_t wrapped =
      0;  ///< past the end of the bound request: the next one of its workload tag
  std::int64_t synthetic = 0;  ///< made by a generator
  std::int64_t total() const { return recorded + borrowed + wrapped + synthetic; }
};

/// Hands out trace rows to simulated requests, keeping the identity of recorded requests:
/// consecutive tokens of one request take consecutive rows of one recording.
class RowSource {
 public:
  /// Reads one trace for both phases, or another one for prefill. `other_half` binds to requests
  /// outside fitted_half() alone, so that what was fitted on those within is tested on others.
  /// Throws ConfigError if a trace has nothing to replay, in all or in a phase of `order`.
  RowSource(RoutingTrace trace, std::optional<RoutingTrace> prefill, bool other_half,
            std::uint64_t seed, const BindingOrder& order = {});

  const RoutingTrace& trace(Phase phase) const { return phases_[index(phase)].trace; }

  /// Binds a new simulated request to recorded ones, at random among those whose turn it is.
  Binding bind(std::optional<std::uint32_t> session = {});
  /// The rows of tokens of a bound request, appended to `out`; where they come from is counted.
  /// `tokens.first_row` is the place of the first one among the request's tokens of that phase.
  void append(const Binding&, RowRange tokens, std::vector<RowRange>& out, RoutingCoverage&) const;
  /// Rows of the bound request in that phase: past them its tokens take another's.
  std::int64_t recorded(const Binding& binding, Phase phase) const {
    return phases_[index(phase)].requests[binding.request[index(phase)]].count;
  }
  /// The tag of the bound request, an index into the decode trace's workloads().
  std::uint32_t workload(const Binding& binding) const {
    const auto phase = index(Phase::decode);
    return phases_[phase].requests[binding.request[phase]].workload;
  }
  /// Place in its recording of a request that has run for a while: any of recorded() at random, 0
  /// where there is none.
  std::int64_t random_place(const Binding&, Phase);
  /// A row at random for the token that an idle rank runs to keep in step.
  RowRange dummy(std::int32_t rank);

 private:
  struct Rows {  // of one recorded request in one phase
    std::int64_t first = 0;
    std::int64_t count = 0;
    std::uint32_t workload = 0;
    std::int64_t offset = 0;  // of its first row in its workload's concatenation
  };
  struct Workload {
    std::vector<std::uint32_t> requests;  // those with rows
    std::int64_t rows = 0;
  };
  struct PhaseRows {
    RoutingTrace trace;
    bool borrowed;
    std::vector<Rows> requests;
    std::vector<Workload> workloads;
    std::vector<std::uint32_t> bindable;
    std::vector<std::vector<std::uint32_t>> bindable_in_turn;  // by BindingOrder's phases
  };
  static std::size_t index(Phase phase) { return at(phase); }
  static PhaseRows phase_rows(RoutingTrace trace, Phase phase, bool other_half,
                              const BindingOrder& order);

  std::array<PhaseRows, 2> phases_;
  bool one_trace_;
  std::int64_t requests_, bound_ = 0;
  bool by_session_;
  std::unordered_map<std::uint32_t, Binding> first_of_;  // [session]
  Rng binding_rng_, place_rng_, dummy_rng_;
};

}  // namespace moesim
