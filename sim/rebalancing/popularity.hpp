// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <deque>
#include <map>

#include "sim/rebalancing/rebalancer.hpp"

namespace moesim {

/// How popularity is remembered (one decay per step).
struct PopularityOptions {
  enum class By { rank, request } by = By::rank;
  double decay = 1;         ///< per step; unless ...
  std::int64_t window = 0;  ///< ... steps that count alike, the rest not at all
};
PopularityOptions read_popularity(const ConfigNode&);
std::span<const Key> popularity_keys();

/// Demand of one layer: tokens per step that ask for an expert, by the EP rank that holds them,
/// [ranks, experts].
struct LayerDemand {
  int ranks = 0, experts = 0;
  std::vector<double> rates;
  double at(int rank, int expert) const {
    return rates[static_cast<std::size_t>(rank) * static_cast<std::size_t>(experts) +
                 static_cast<std::size_t>(expert)];
  }
  /// Over all ranks, [experts].
  ExpertLoad total() const;
};

/// Demand of ranks for experts, by the ranks' own history or by what their running requests asked
/// for so far. That is one token per request and step, and ends with the request.
class Popularity {
 public:
  Popularity(const PopularityOptions&, int dp, int ep, int layers, int experts);

  void add(const StepSeen&);
  /// Every layer's demand.
  std::vector<LayerDemand> demand() const;

 private:
  // Counts of some steps, each with the weight it had when it was added: [dp, layers, experts].
  struct Pane {
    std::int64_t steps = 0;
    double weight = 0;  // sum over its steps
    std::vector<double> counts;
  };
  struct Profile {
    std::int32_t rank = 0;
    std::int64_t last_step = 0;
    double tokens = 0;
    std::vector<float> counts;  // [layers, experts]
  };
  void open_pane();
  void add_to_ranks(const StepSeen&);
  void add_to_profiles(const StepSeen&);

  PopularityOptions options_;
  int dp_, ep_, layers_, experts_;
  std::size_t cells_;
  double weight_ = 1;
  std::deque<Pane> panes_;
  std::map<std::uint32_t, Profile> profiles_;
};

}  // namespace moesim
