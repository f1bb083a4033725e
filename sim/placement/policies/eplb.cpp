// SPDX-License-Identifier: Apache-2.0
#include "sim/placement/policies/eplb.hpp"

#include <algorithm>
#include <numeric>

#include "hardware/at.hpp"
#include "sim/placement/placers.hpp"

namespace moesim {

namespace {

struct Packing {
  std::vector<int> pack, rank;  // of each item; rank is its order of arrival in the pack
};

// Longest processing time first with full packs closed: items by weight descending, each into the
// open pack with the smallest weight so far. One item per pack stays where it is.
Packing balanced_packing(std::span<const float> weight, int packs) {
  const std::size_t capacity = weight.size() / at(packs);
  Packing result{std::vector<int>(weight.size()), std::vector<int>(weight.size())};
  std::vector<int> order(weight.size());
  std::iota(order.begin(), order.end(), 0);
  if (capacity == 1) {
    result.pack = order;
    return result;
  }
  std::stable_sort(order.begin(), order.end(),
                   [&](int a, int b) { return weight[at(a)] > weight[at(b)]; });
  std::vector<float> pack_weight(at(packs));
  std::vector<int> pack_items(at(packs));
  for (const int item : order) {
    int lightest = -1;
    for (int pack = 0; pack < packs; ++pack) {
      if (at(pack_items[at(pack)]) == capacity) continue;
      if (lightest < 0 || pack_weight[at(pack)] < pack_weight[at(lightest)]) lightest = pack;
    }
    result.pack[at(item)] = lightest;
    result.rank[at(item)] = pack_items[at(lightest)]++;
    pack_weight[at(lightest)] += weight[at(item)];
  }
  return result;
}

struct Replicas {
  std::vector<int> expert, rank;  // of each replica: rank 0 is the first of its expert
  std::vector<int> count;         // of each expert
};

// Every further replica goes to the expert with the largest load per replica.
Replicas replicate(std::span<const float> weight, int slots) {
  Replicas replicas{std::vector<int>(weight.size()), std::vector<int>(weight.size()),
                    std::vector<int>(weight.size(), 1)};
  std::iota(replicas.expert.begin(), replicas.expert.end(), 0);
  std::vector<float> per_replica(weight.begin(), weight.end());
  while (replicas.expert.size() < at(slots)) {
    const auto hottest = std::max_element(per_replica.begin(), per_replica.end());
    const auto expert = at(hottest - per_replica.begin());
    replicas.expert.push_back(static_cast<int>(expert));
    replicas.rank.push_back(replicas.count[expert]++);
    *hottest = weight[expert] / static_cast<float>(replicas.count[expert]);
  }
  return replicas;
}

// Packs whole expert groups onto nodes, so that group-limited gating stays within few nodes.
// Answers the experts in node order, as many on each node.
std::vector<int> experts_by_node(std::span<const float> weight, int groups, int nodes) {
  const std::size_t group_size = weight.size() / at(groups);
  std::vector<float> group_weight;
  for (std::size_t g = 0; g < at(groups); ++g) {
    const auto group = weight.subspan(g * group_size, group_size);
    group_weight.push_back(std::accumulate(group.begin(), group.end(), 0.0F));
  }
  const Packing packing = balanced_packing(group_weight, nodes);
  std::vector<int> experts(weight.size());
  for (std::size_t g = 0; g < at(groups); ++g) {
    const int place = packing.pack[g] * (groups / nodes) + packing.rank[g];
    const auto first = experts.begin() + static_cast<std::ptrdiff_t>(at(place) * group_size);
    std::iota(first, first + static_cast<std::ptrdiff_t>(group_size),
              static_cast<int>(g * group_size));
  }
  return experts;
}

void require_hierarchy(const PlacementProblem& problem) {
  if (problem.experts % problem.groups != 0) {
    throw ConfigError("eplb: {} expert groups do not divide {} experts evenly", problem.groups,
                      problem.experts);
  }
  if (problem.gpus % problem.nodes != 0) {
    throw ConfigError("eplb: {} nodes do not divide {} GPUs evenly", problem.nodes, problem.gpus);
  }
}

class Eplb final : public Placer {
 public:
  LayerPlacement place(const PlacementProblem& problem, const LayerStatistics& seen,
                       int) const override {
    return placement_of_slots(problem, eplb(problem, seen.load).phy2log);
  }

  bool uses_load() const override { return true; }
};

}  // namespace

EplbMap eplb(const PlacementProblem& problem, std::span<const double> load) {
  require_sound(problem, load);
  // Without expert parallelism fewer GPUs than nodes hold experts of their own.
  const bool by_node = problem.groups % problem.nodes == 0 && problem.gpus >= problem.nodes;
  if (by_node) require_hierarchy(problem);
  const int nodes = by_node ? problem.nodes : 1;
  const int groups = by_node ? problem.groups : 1;
  const int slots_per_node = problem.gpus / nodes * problem.slots_per_gpu;
  const std::size_t experts_per_node = at(problem.experts / nodes);

  const std::vector<float> weight(load.begin(), load.end());
  const std::vector<int> experts = experts_by_node(weight, groups, nodes);
  EplbMap map{std::vector<int>(at(nodes * slots_per_node)),
              std::vector<std::vector<int>>(weight.size()), std::vector<int>(weight.size())};
  for (int node = 0; node < nodes; ++node) {
    const auto on_node = std::span(experts).subspan(at(node) * experts_per_node, experts_per_node);
    std::vector<float> node_weight;
    for (const int expert : on_node) node_weight.push_back(weight[at(expert)]);
    const Replicas replicas = replicate(node_weight, slots_per_node);

    std::vector<float> replica_weight;
    for (const int i : replicas.expert) {
      replica_weight.push_back(node_weight[at(i)] / static_cast<float>(replicas.count[at(i)]));
    }
    const Packing packing = balanced_packing(replica_weight, problem.gpus / nodes);

    for (std::size_t i = 0; i < on_node.size(); ++i) {
      map.logcnt[at(on_node[i])] = replicas.count[i];
      map.log2phy[at(on_node[i])].resize(at(replicas.count[i]));
    }
    for (std::size_t replica = 0; replica < replica_weight.size(); ++replica) {
      const int expert = on_node[at(replicas.expert[replica])];
      const int slot = node * slots_per_node + packing.pack[replica] * problem.slots_per_gpu +
                       packing.rank[replica];
      map.phy2log[at(slot)] = expert;
      map.log2phy[at(expert)][at(replicas.rank[replica])] = slot;
    }
  }
  return map;
}

std::unique_ptr<Placer> make_eplb(ConfigReader&) { return std::make_unique<Eplb>(); }

}  // namespace moesim
