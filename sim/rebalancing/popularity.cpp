// SPDX-License-Identifier: Apache-2.0
#include "sim/rebalancing/popularity.hpp"

#include <algorithm>

#include "hardware/at.hpp"

namespace moesim {

namespace {

constexpr std::int64_t panes_per_window = 8;

// Calls count(cell) for every id of a range, cells being [layers, experts].
template <class Count>
void for_each_id(const RowSource& rows, const RowRange& range, int experts, Count&& count) {
  const RoutingTrace& trace = rows.trace(range.phase);
  const auto row_ids = static_cast<std::size_t>(trace.row_ids());
  const auto k = static_cast<std::size_t>(trace.experts_per_token());
  trace.visit([&](auto ids) {
    const auto* row = ids.data() + at(range.first_row) * row_ids;
    for (std::int32_t i = 0; i < range.count; ++i) {
      for (std::size_t j = 0; j < row_ids; ++j) {
        count(j / k * at(experts) + at(*row++));
      }
    }
  });
}

}  // namespace

std::span<const Key> popularity_keys() {
  static constexpr std::array<std::string_view, 2> by{"rank", "request"};
  static constexpr Key keys[] = {
      {"by", form::choice(by), "rank", "whose choices are remembered"},
      {"decay", form::number(0.001, 1), "0.99", "decay of earlier steps, per step; or ..."},
      {"window_size", form::integer(0, 1e6), "0", "... steps with equal weight; 0: decay"}};
  return keys;
}

PopularityOptions read_popularity(const ConfigNode& node) {
  return read_object(node, popularity_keys, [](ConfigReader& reader) {
    PopularityOptions options;
    options.by = static_cast<PopularityOptions::By>(reader.choice("by"));
    options.decay = reader.number("decay");
    options.window = reader.integer("window_size");
    return options;
  });
}

ExpertLoad LayerDemand::total() const {
  ExpertLoad total(static_cast<std::size_t>(experts));
  for (std::size_t i = 0; i < rates.size(); ++i) total[i % total.size()] += rates[i];
  return total;
}

Popularity::Popularity(const PopularityOptions& options, int dp, int ep, int layers, int experts)
    : options_(options),
      dp_(dp),
      ep_(ep),
      layers_(layers),
      experts_(experts),
      cells_(at(layers) * at(experts)) {}

void Popularity::add(const StepSeen& seen) {
  if (options_.by == PopularityOptions::By::rank) {
    add_to_ranks(seen);
  } else {
    add_to_profiles(seen);
  }
}

// Counts of a window stand in panes of equally many steps, so that forgetting is cheap; without a
// window there is one.
void Popularity::open_pane() {
  const std::int64_t pane_steps = std::max<std::int64_t>(1, options_.window / panes_per_window);
  const bool room = options_.window == 0 || (!panes_.empty() && panes_.back().steps < pane_steps);
  if (!panes_.empty() && room) return;
  while (!panes_.empty() && (std::ssize(panes_) + 1) * pane_steps > options_.window) {
    panes_.pop_front();
  }
  panes_.push_back({0, 0, std::vector<double>(at(dp_) * cells_)});
}

// A decay of rho per step: instead of all counts by rho, the weight of new ones grows by 1 / rho.
void Popularity::add_to_ranks(const StepSeen& seen) {
  open_pane();
  Pane& pane = panes_.back();
  if (options_.window == 0) weight_ /= options_.decay;
  if (weight_ > 1e100) {
    for (double& count : pane.counts) count /= weight_;
    pane.weight /= weight_;
    weight_ = 1;
  }
  ++pane.steps;
  pane.weight += weight_;
  for (std::size_t i = 0; i < seen.ranges.size(); ++i) {
    if (seen.request_of_range[i] == StepSeen::no_request) continue;
    double* counts = pane.counts.data() + at(seen.ranges[i].rank) * cells_;
    for_each_id(seen.rows, seen.ranges[i], experts_,
                [&](std::size_t cell) { counts[cell] += weight_; });
  }
}

void Popularity::add_to_profiles(const StepSeen& seen) {
  for (std::size_t i = 0; i < seen.ranges.size(); ++i) {
    if (seen.request_of_range[i] == StepSeen::no_request) continue;
    Profile& profile = profiles_[seen.request_of_range[i]];
    profile.counts.resize(cells_);
    profile.rank = seen.ranges[i].rank;
    profile.last_step = seen.step;
    profile.tokens += seen.ranges[i].count;
    for_each_id(seen.rows, seen.ranges[i], experts_,
                [&](std::size_t cell) { profile.counts[cell] += 1; });
  }
  std::erase_if(profiles_, [&](const auto& entry) { return entry.second.last_step != seen.step; });
}

// DP rank r and EP rank g share GPUs: of r's tokens, g holds the share of r's GPUs that are g's. On
// a line of dp * ep units, r covers [r ep, (r + 1) ep) and g [g dp, (g + 1) dp).
std::vector<LayerDemand> Popularity::demand() const {
  std::vector<double> by_dp(at(dp_) * cells_);
  double weight = 0;
  for (const Pane& pane : panes_) {
    weight += pane.weight;
    for (std::size_t i = 0; i < by_dp.size(); ++i) by_dp[i] += pane.counts[i];
  }
  for (double& rate : by_dp) rate /= std::max(weight, 1e-300);
  for (const auto& [request, profile] : profiles_) {
    double* rates = by_dp.data() + at(profile.rank) * cells_;
    for (std::size_t i = 0; i < cells_; ++i) {
      rates[i] += static_cast<double>(profile.counts[i]) / profile.tokens;
    }
  }
  const auto experts = static_cast<std::size_t>(experts_);
  std::vector<LayerDemand> demand(at(layers_),
                                  {ep_, experts_, std::vector<double>(at(ep_) * experts)});
  for (int r = 0; r < dp_; ++r) {
    for (int g = r * ep_ / dp_; g < ep_ && g * dp_ < (r + 1) * ep_; ++g) {
      const int shared = std::min((r + 1) * ep_, (g + 1) * dp_) - std::max(r * ep_, g * dp_);
      const double share = double(shared) / ep_;
      for (std::size_t cell = 0; cell < cells_; ++cell) {
        demand[cell / experts].rates[at(g) * experts + cell % experts] +=
            share * by_dp[at(r) * cells_ + cell];
      }
    }
  }
  return demand;
}

}  // namespace moesim
