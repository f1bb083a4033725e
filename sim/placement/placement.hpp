// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "hardware/registry.hpp"
#include "sim/placement/observation.hpp"

namespace moesim {

/// A MoE layer of a placement, compiled into flat arrays. A slot holds the weights of one physical
/// expert: it is the unit of weight memory and of activation. Slots are numbered rank-major: GPU g
/// holds first_slot(g)..first_slot(g+1)-1. Experts may be cut over all GPUs. The last slots of each
/// GPU then hold 1/gpus() of their width, and each GPU computes all tokens of such an expert.
class LayerPlacement {
 public:
  /// `experts_on_gpu[g]` lists the experts in GPU g's slots, in order; those of `cut` follow on
  /// every GPU, as slices. Throws std::invalid_argument if an expert of [0, experts) has no slot,
  /// if one is whole and cut, or an id is out of range.
  LayerPlacement(int experts, const std::vector<std::vector<int>>& experts_on_gpu,
                 std::span<const int> cut = {});

  int experts() const { return static_cast<int>(slots_begin_.size()) - 1; }
  int gpus() const { return static_cast<int>(first_slot_.size()) - 1; }
  int slots() const { return static_cast<int>(expert_of_slot_.size()); }

  int first_slot(int gpu) const { return first_slot_[at(gpu)]; }
  /// The first slot of a GPU that holds a slice: as do those behind it.
  int first_slice(int gpu) const { return first_slot(gpu + 1) - cut_; }
  /// Number of experts that are cut over all GPUs.
  int cut() const { return cut_; }
  /// Slots in whole experts, all slices of one together.
  int whole_slots() const { return slots() - (gpus() - 1) * cut_; }
  /// The same of a GPU.
  double whole_slots(int gpu) const {
    return first_slice(gpu) - first_slot(gpu) + static_cast<double>(cut_) / gpus();
  }
  int expert_of_slot(int slot) const { return expert_of_slot_[at(slot)]; }
  int gpu_of_slot(int slot) const { return gpu_of_slot_[at(slot)]; }
  /// Slots of an expert, ascending. Two slots may stand on one GPU.
  std::span<const std::int32_t> slots_of(int expert) const {
    return range(slots_begin_, slots_, expert);
  }
  /// The first slot of an expert on each DISTINCT GPU that hosts it, ascending by GPU: rep(i) of
  /// the papers.
  std::span<const std::int32_t> hosts_of(int expert) const {
    return range(hosts_begin_, hosts_, expert);
  }
  /// The GPUs of hosts_of().
  std::span<const std::int32_t> host_gpus_of(int expert) const {
    return range(hosts_begin_, host_gpus_, expert);
  }

  bool operator==(const LayerPlacement&) const = default;

 private:
  static std::span<const std::int32_t> range(const std::vector<std::int32_t>& begin,
                                             const std::vector<std::int32_t>& values, int i) {
    const auto first = at(begin[at(i)]);
    const auto last = at(begin[at(i) + 1]);
    return std::span(values).subspan(first, last - first);
  }

  int cut_ = 0;
  std::vector<std::int32_t> first_slot_;                       // [gpus + 1]
  std::vector<std::int32_t> expert_of_slot_, gpu_of_slot_;     // [slots]
  std::vector<std::int32_t> slots_begin_, slots_;              // CSR by expert
  std::vector<std::int32_t> hosts_begin_, hosts_, host_gpus_;  // CSR by expert
};

/// Which expert every slot of every MoE layer holds.
using ExpertPlacement = std::vector<LayerPlacement>;

/// Sizes that a placement is made for.
struct PlacementProblem {
  int experts = 0;
  int gpus = 0;
  int slots_per_gpu = 0;  ///< gpus * slots_per_gpu >= experts
  int nodes = 1;
  int groups = 1;  ///< expert groups of group-limited gating
  /// MoeModel::moe_layer_numbers(); empty where not known.
  std::vector<int> moe_layers{};
  int model_layers = 0;  ///< of both kinds
  int draft_layers = 0;  ///< that draft tokens (MTP), behind them
};

/// Slots per GPU for a replication ratio: ceil(ratio * experts / gpus). Throws ConfigError if the
/// ratio is below 1.
int slots_for_replication(int experts, int gpus, double ratio);

/// Decides which experts stand in which slots.
class Placer {
 public:
  virtual ~Placer() = default;
  /// Returns one layer's slots, from what was seen on it (a load of zeros when nothing was). Every
  /// expert gets a slot, every GPU slots_per_gpu. Ties: lowest id. `layer` seeds what is random.
  /// Pure. Throws ConfigError if the problem has no solution or the load is no load.
  virtual LayerPlacement place(const PlacementProblem&, const LayerStatistics& seen,
                               int layer) const = 0;
  /// True if what was seen decides anything.
  virtual bool uses_load() const = 0;
  /// True if it needs LayerStatistics::coactivation too.
  virtual bool uses_coactivation() const { return false; }
  /// The file that says the placement; empty: none does.
  virtual std::filesystem::path file() const { return {}; }
  /// Returns one line on how a placement was taken that its user may not expect, or nothing.
  virtual std::string remark(const PlacementProblem&) const { return {}; }

  /// The batches that it needs as LayerStatistics::batches; none by default.
  virtual BatchSample sample() const { return {}; }

  /// True if it can place whole experts by the tokens of each alone, as seen by a running engine.
  bool goes_by_load_alone() const {
    return uses_load() && !uses_coactivation() && sample().batches == 0 && !cuts();
  }
  /// True if it cuts experts over all GPUs.
  virtual bool cuts() const { return false; }
  /// Facts of a trace that it needs to be shown.
  Observation needs() const { return {false, {}, uses_coactivation(), sample()}; }
};

/// The table: linear, round_robin, random, eplb, eplb_distinct, flat, coactivation, joint,
/// cut_coldest, from_file.
const Registry<Placer>& placers();

/// All layers that were seen, placed.
ExpertPlacement place_all(const Placer&, const PlacementProblem&, const ExpertStatistics& seen);
/// All layers, placed by loads alone: [layers][experts].
ExpertPlacement place_all(const Placer&, const PlacementProblem&, std::span<const ExpertLoad> load);

/// Places all layers before anything was seen, as engines start. A placer that goes by load gives
/// way to `linear`: equal loads make EPLB put the copies of an expert side by side on one GPU.
ExpertPlacement place_unseen(const Placer&, const PlacementProblem&, int layers);

}  // namespace moesim
