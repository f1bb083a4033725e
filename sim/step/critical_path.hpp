// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <string_view>
#include <vector>

#include "hardware/fabric.hpp"
#include "models/step_ops.hpp"
#include "sim/dispatch/dispatch.hpp"
#include "sim/step/step_cost.hpp"

namespace moesim {

/// Operations that follow each other on one rank, between two barriers, and their sums.
struct RankCost {
  std::vector<Operation> operations;
  Seconds total{};
  Flops flops{};
  Bytes hbm{};
  Energy energy{};          ///< of one GPU
  PartSet drawing_parts{};  ///< whose energy is not 0
  void add_up();
};

/// Costs of each rank: [dp].
using RankCosts = std::vector<const RankCost*>;

/// Collects `explain` rows: equal names with equal bounds and grounds are one row. Without a place
/// for them it does nothing.
class Explainer {
 public:
  explicit Explainer(std::vector<ExplainedOperation>* rows) : rows_(rows) {}
  void add(std::string_view name, Part part, const Cost& cost, double link_bytes = 0) {
    if (rows_ != nullptr && cost.time.count() != 0) add_row(name, part, cost, link_bytes);
  }

 private:
  void add_row(std::string_view name, Part part, const Cost& cost, double link_bytes);

  std::vector<ExplainedOperation>* rows_;
};

/// A transfer between GPUs of a stage.
struct Crossing {
  std::string_view name;
  Part part;
  const CollectiveCost& cost;
  Traffic& traffic;   ///< where its time and bytes are counted
  double copies = 1;  ///< so many run beside each other, in multiples of this one
  Occupancy holds{};  ///< what its kernels keep from other kernels meanwhile
};

/// GPUs of a stage that are of one kind.
struct StageGpus {
  const GpuSpec* gpu = nullptr;
  int gpus = 0;
};

/// Walks the layers of a step, adding up the critical path barrier by barrier.
class CriticalPath {
 public:
  /// With AFD the experts' GPUs may be of another kind than `gpu`.
  CriticalPath(const ParallelPlan& plan, const GpuSpec& gpu, const GpuSpec& expert_gpu,
               StepCost& cost, Explainer explainer);

  /// Every rank does its own work and does not wait yet.
  void add(const RankCosts& ranks);
  /// All ranks wait for the slowest.
  void barrier();
  /// Something that every GPU does for the same time. Another micro-batch may be on the links
  /// meanwhile.
  void every_rank(std::string_view name, Part part, const Cost& cost, double link_bytes = 0);
  /// The same of something that nothing runs beside, of no micro-batch.
  void alone(std::string_view name, Part part, const Cost& cost, double link_bytes = 0);
  /// A transfer that all ranks wait for. One that is still under way ends before it.
  void collective(const Crossing&);
  /// A transfer beside what is computed up to the next barrier, which it then must have reached.
  void start_transfer(const Crossing&);
  /// Something that was added up before, of the stage's GPUs.
  void add_sum(const StepCost&);
  /// Expert ranks work beside each other and wait for the slowest.
  void experts(const std::vector<Cost>& ranks, std::string_view name = "expert_ffn");
  /// Ends a stage: all that was added since the last call. The next GPUs follow.
  void end_stage();

 private:
  struct Transfer {
    Part part = Part::dispatch;
    Cost cost;
    Traffic* traffic = nullptr;  // null where none is under way
    Occupancy holds{};
  };

  void find_slowest();
  void charge_every_rank(std::string_view name, Part, const Cost&, double link_bytes);
  void finish_transfer(Seconds computed);
  void spend(bool on_link, Seconds time, double sms = 0);

  Watts draw_of(const GpuSpec&, const CollectiveCost&, double copies) const;

  const ParallelPlan& plan_;
  const GpuSpec& gpu_;
  std::array<StageGpus, 2> kinds_;
  StepCost& cost_;
  Explainer explainer_;
  std::vector<const RankCosts*> pending_;
  // Costs before the last barrier; they may be the same before this one.
  std::vector<const RankCosts*> before_barrier_;
  std::vector<Seconds> since_barrier_;  // [dp]
  std::size_t slowest_ = 0;
  std::vector<double> waits_;  // seconds, [attention's GPUs of the stage]
  Transfer transfer_;
  std::size_t first_gpu_ = 0;  // of the stage
  Seconds stages_{};           // time of the stages that have ended
};

}  // namespace moesim
