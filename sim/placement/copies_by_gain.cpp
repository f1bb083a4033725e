// SPDX-License-Identifier: Apache-2.0
#include "sim/placement/copies_by_gain.hpp"

#include <algorithm>
#include <limits>
#include <numeric>
#include <tuple>
#include <utility>

#include "hardware/at.hpp"
#include "sim/placement/batch_matching.hpp"
#include "sim/placement/placement_score.hpp"

namespace moesim {

namespace {

// Quantity that copies are to lower: lambda, the fewest activated experts of the busiest GPU, in
// the mean over sampled batches. Without batches: the tokens of the fullest GPU.
double worst_gpu(const LayerPlacement& layer, const LayerStatistics& seen) {
  if (seen.batches.empty()) {
    const double all = std::accumulate(seen.load.begin(), seen.load.end(), 0.0);
    return imbalance(layer, seen.load) * all / layer.gpus();
  }
  std::vector<std::vector<int>> experts_on_gpu(at(layer.gpus()));
  for (int expert = 0; expert < layer.experts(); ++expert) {
    for (const std::int32_t gpu : layer.host_gpus_of(expert))
      experts_on_gpu[at(gpu)].push_back(expert);
  }
  const CopyTable table(layer.experts(), std::move(experts_on_gpu));
  const BatchMatching matching(table, seen.batches);
  double sum = 0;
  for (std::size_t batch = 0; batch < matching.batches(); ++batch) sum += matching.activated(batch);
  return sum / static_cast<double>(matching.batches());
}

// A layer with the slots that it has, and with one more on each GPU.
struct Growing {
  LayerPlacement now, next;
  int slots = 0;  // of a GPU, now
  double worst = 0, worst_next = 0;
  double gain = std::numeric_limits<double>::infinity();
};

}  // namespace

ExpertPlacement place_by_gain(const Placer& placer, const PlacementProblem& problem,
                              const ExpertStatistics& seen) {
  const auto placed = [&](std::size_t layer, int slots) {
    PlacementProblem with = problem;
    with.slots_per_gpu = slots;
    return placer.place(with, seen.layer(layer), static_cast<int>(layer));
  };
  const auto look_ahead = [&](Growing& layer, std::size_t number) {
    if (layer.slots == problem.experts) {  // every expert is on every GPU
      layer.gain = -std::numeric_limits<double>::infinity();
      return;
    }
    layer.next = placed(number, layer.slots + 1);
    layer.worst_next = worst_gpu(layer.next, seen.layer(number));
    layer.gain = std::min(layer.gain, layer.worst - layer.worst_next);
  };
  const int least = (problem.experts + problem.gpus - 1) / problem.gpus;
  const int budget =
      static_cast<int>(seen.load.size()) * std::max(0, problem.slots_per_gpu - least);
  std::vector<Growing> layers;
  for (std::size_t number = 0; number < seen.load.size(); ++number) {
    const LayerPlacement first = placed(number, least);
    layers.push_back({first, first, least, worst_gpu(first, seen.layer(number))});
    if (budget > 0) look_ahead(layers.back(), number);
  }
  for (int given = 0; given < budget; ++given) {
    const auto layer = std::ranges::min_element(
        layers, {}, [](const Growing& l) { return std::tuple(-l.gain, l.slots); });
    layer->now = std::move(layer->next);
    layer->worst = layer->worst_next;
    ++layer->slots;
    look_ahead(*layer, at(layer - layers.begin()));
  }
  ExpertPlacement placement;
  for (Growing& layer : layers) placement.push_back(std::move(layer.now));
  return placement;
}

}  // namespace moesim
