// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <utility>

#include "sim/experiment/experiment.hpp"
#include "sim/report/observer.hpp"
#include "tools/cli/output.hpp"

namespace moesim {

/// Writes a run as a trace that Perfetto (ui.perfetto.dev) and chrome://tracing open: the
/// trace-event format, JSON, times in microseconds. Processes and their lanes:
///
///   steps     one lane of steps, and a counter of the KV blocks in use
///   GPUs      a lane per GPU: what it did in each step, part by part
///   requests  a span per request: to its first token, then decoding
///   sessions  where requests are turns of sessions, a lane per session (and agent): of each turn
///             the wait for its first step, blocks on their way from a tier, prefill and decode;
///             pauses are gaps
///
/// Where there are several EP groups, each has a lane of steps, and lanes of its own GPUs.
///
/// The layers of a step are folded: all attention, up to the barrier, then all dispatch, all
/// experts, up to the barrier, all combine. "attention" is everything that a GPU computes by itself
/// outside the routed experts (gate, packing, shared and dense FFNs, LM head, ...). A lane fills
/// its steps exactly. The MoE layers of one step may be told apart. What layers do not have each
/// for themselves, such as attention, is then shared out evenly. The lanes of a pipeline hold all
/// micro-batches of a step, as its mean stage computes them. They hold the experts of its own
/// layers, and "pipeline", the waits for other stages. An instant "hot rank" marks a step in which
/// the busiest rank of a layer has more than hot_rank_threshold times the mean tokens: the worst
/// layer's.
///
/// Holds one step at a time; observers of other events add them the same way.
class Timeline : public RunObserver {
 public:
  /// Lane of an event, in the format's words.
  struct Lane {
    int process;
    std::int64_t thread;
  };

  /// A GPU of a group: its number there, its EP rank if any, whether it is of a pipeline, the MoE
  /// layers of its stage.
  struct Gpu {
    std::size_t number;
    std::optional<std::size_t> rank;
    bool staged;
    std::vector<std::size_t> layers;
  };

  /// `unfolded`: the step, counted from 1 as steps end, whose layers are told apart; 0: none.
  /// Throws ConfigError if the file cannot be written.
  Timeline(const std::filesystem::path& file, const Experiment&, std::int64_t unfolded = 0);

  void step_ended(const StepRecord&, Time now) override;
  void request_left(std::uint32_t id, const RequestRecord&) override;

  /// Ends the trace: only now the file stands under its name.
  void finish();

 private:
  void write(std::string_view name, char phase, Lane lane, std::string_view more);
  void name(std::string_view what, Lane lane, std::string_view name);
  void span(std::string_view name, Lane lane, Time begin, Time end, std::string_view more = "");
  void add_lane(const Gpu&, bool unfold, Time start, Time now, const StepCost&,
                std::int64_t first_gpu);
  void add_turn(const RequestRecord&);
  void add_alarm(Time start, const StepCost&, std::size_t group);
  std::string of_group(std::string_view what, std::size_t group) const;

  const Experiment& experiment_;
  std::vector<const Deployment*> groups_;
  std::vector<std::int64_t> first_gpu_;  // of each group's lanes, and past the last
  std::vector<std::vector<Gpu>> gpus_;   // of each group
  OutputFile file_;
  std::int64_t unfolded_, steps_ = 0;
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::int64_t> agents_;  // lanes of sessions
  bool empty_ = true;
};

}  // namespace moesim
