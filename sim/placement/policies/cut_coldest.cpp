// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <numeric>

#include <fmt/format.h>

#include "hardware/at.hpp"
#include "sim/placement/placers.hpp"
#include "sim/placement/policies/eplb.hpp"

namespace moesim {

namespace {

// The experts with the least load are cut over all GPUs, the others are whole and packed by EPLB
// without copies. Hot experts are active in nearly every step, so packing evens them out. Cold ones
// are what makes one GPU read more than another, and few tokens choose them.
//
// The share is rounded so that every GPU keeps as many whole experts as the others. A GPU needs as
// much memory as without cuts: n slices of 1/n are a whole expert.
class CutColdest final : public Placer {
 public:
  explicit CutColdest(double share) : share_(share) {}

  LayerPlacement place(const PlacementProblem& problem, const LayerStatistics& seen,
                       int) const override {
    if (!cuts()) return placement_of_slots(problem, eplb(problem, seen.load).phy2log);
    require_sound(problem, seen.load);
    if (problem.slots_per_gpu * problem.gpus != problem.experts)
      throw ConfigError(
          "\"cut_coldest\" makes no copies, and {} slots on each of {} GPUs leave room for some of "
          "{} experts; use a replication of 1 and GPUs that divide the experts",
          problem.slots_per_gpu, problem.gpus, problem.experts);
    std::vector<int> order(at(problem.experts));
    std::iota(order.begin(), order.end(), 0);
    std::ranges::stable_sort(order, {}, [&](int expert) { return seen.load[at(expert)]; });
    const auto first_whole = order.begin() + cut_of(problem);
    const std::vector<int> cut(order.begin(), first_whole);
    std::sort(first_whole, order.end());
    const std::vector<int> whole(first_whole, order.end());
    return {problem.experts, packed(problem, whole, seen.load), cut};
  }

  bool uses_load() const override { return true; }
  bool cuts() const override { return share_ > 0; }

  std::string remark(const PlacementProblem& problem) const override {
    if (!cuts()) return {};
    return fmt::format("\"cut_coldest\": {} of {} experts of each layer are cut over {} GPUs",
                       cut_of(problem), problem.experts, problem.gpus);
  }

 private:
  int cut_of(const PlacementProblem& problem) const {
    return problem.experts - problem.gpus * whole_on_gpu(problem);
  }
  int whole_on_gpu(const PlacementProblem& problem) const {
    return static_cast<int>(std::lround((1 - share_) * problem.slots_per_gpu));
  }

  // EPLB's packing of some experts.
  std::vector<std::vector<int>> packed(const PlacementProblem& problem,
                                       const std::vector<int>& experts,
                                       std::span<const double> load) const {
    std::vector<std::vector<int>> on_gpu(at(problem.gpus));
    if (experts.empty()) return on_gpu;
    ExpertLoad of_these;
    for (const int expert : experts) of_these.push_back(load[at(expert)]);
    const int slots = whole_on_gpu(problem);
    const EplbMap map = eplb(
        {.experts = static_cast<int>(experts.size()), .gpus = problem.gpus, .slots_per_gpu = slots},
        of_these);
    for (std::size_t slot = 0; slot < map.phy2log.size(); ++slot)
      on_gpu[slot / at(slots)].push_back(experts[at(map.phy2log[slot])]);
    return on_gpu;
  }

  double share_;
};

}  // namespace

std::span<const Key> cut_coldest_placement_keys() {
  static constexpr Key keys[] = {{"share", form::number(0, 1), required,
                                  "share of a layer's experts that is cut over all GPUs"}};
  return keys;
}

std::unique_ptr<Placer> make_cut_coldest(ConfigReader& options) {
  return std::make_unique<CutColdest>(options.number("share"));
}

}  // namespace moesim
