// SPDX-License-Identifier: Apache-2.0
#include "sim/request_routing/balanced_clusters.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "hardware/units.hpp"

namespace moesim {

namespace {

constexpr double infinite = std::numeric_limits<double>::infinity();

// Items that come one by one. Each takes the cheapest chain of moves that ends where there is room.
// That keeps the assignment the cheapest of the items so far.
class Filling {
 public:
  Filling(std::span<const std::vector<double>> cost, std::size_t clusters)
      : cost_(cost), members_(clusters), room_(cost.size() / clusters) {}

  void add(std::size_t item) {
    const std::size_t clusters = members_.size();
    std::vector<double> least = cost_[item];
    std::vector<std::size_t> before(clusters, clusters);
    const std::vector<Move> moves = cheapest_moves();
    for (std::size_t round = 1; round < clusters; ++round) {
      for (const Move& move : moves) {
        const double cost = least[move.from] + move.cost;
        if (cost >= least[move.to] - 1e-12) continue;
        least[move.to] = cost;
        before[move.to] = move.from;
      }
    }
    std::size_t end = clusters;
    for (std::size_t c = 0; c < clusters; ++c) {
      if (members_[c].size() < room_ && (end == clusters || least[c] < least[end])) end = c;
    }
    for (; before[end] < clusters; end = before[end]) {
      const auto move = std::ranges::find_if(
          moves, [&](const Move& m) { return m.from == before[end] && m.to == end; });
      std::erase(members_[move->from], move->item);
      members_[end].push_back(move->item);
    }
    members_[end].push_back(item);
  }

  std::vector<std::size_t> cluster_of_items() const {
    std::vector<std::size_t> of(cost_.size());
    for (std::size_t c = 0; c < members_.size(); ++c)
      for (const std::size_t item : members_[c]) of[item] = c;
    return of;
  }

 private:
  struct Move {
    std::size_t from, to, item;
    double cost;
  };

  std::vector<Move> cheapest_moves() const {
    std::vector<Move> moves;
    for (std::size_t from = 0; from < members_.size(); ++from) {
      for (std::size_t to = 0; to < members_.size(); ++to) {
        if (from == to || members_[from].empty()) continue;
        Move best{from, to, 0, infinite};
        for (const std::size_t item : members_[from]) {
          const double cost = cost_[item][to] - cost_[item][from];
          if (cost < best.cost) best = {from, to, item, cost};
        }
        moves.push_back(best);
      }
    }
    return moves;
  }

  std::span<const std::vector<double>> cost_;
  std::vector<std::vector<std::size_t>> members_;
  std::size_t room_;
};

// Points far from the centroids so far are likelier to be the next (Arthur and Vassilvitskii 2007).
std::vector<std::vector<double>> first_centroids(std::span<const std::vector<double>> points,
                                                 std::size_t clusters, Rng& rng) {
  std::vector<std::vector<double>> centroids{points[rng.below(points.size())]};
  std::vector<double> far(points.size(), infinite);
  while (centroids.size() < clusters) {
    double sum = 0;
    for (std::size_t i = 0; i < points.size(); ++i) {
      double squares = 0;
      for (std::size_t d = 0; d < points[i].size(); ++d)
        squares += std::pow(points[i][d] - centroids.back()[d], 2);
      far[i] = std::min(far[i], squares);
      sum += far[i];
    }
    double left = sum * rng.uniform();
    std::size_t next = 0;
    while (next + 1 < points.size() && (left -= far[next]) >= 0) ++next;
    centroids.push_back(points[next]);
  }
  return centroids;
}

}  // namespace

std::vector<std::size_t> balanced_assignment(std::span<const std::vector<double>> cost,
                                             std::size_t clusters) {
  check(clusters > 0 && cost.size() % clusters == 0, "as many items in each cluster");
  Filling filling(cost, clusters);
  for (std::size_t item = 0; item < cost.size(); ++item) filling.add(item);
  return filling.cluster_of_items();
}

std::vector<std::vector<double>> balanced_centroids(std::span<const std::vector<double>> points,
                                                    std::size_t clusters, Rng rng) {
  constexpr int most_rounds = 100;
  std::vector<std::vector<double>> centroids = first_centroids(points, clusters, rng);
  std::vector<std::size_t> cluster_of, last;
  for (int round = 0; round < most_rounds; ++round) {
    std::vector<std::vector<double>> cost(points.size(), std::vector<double>(clusters));
    for (std::size_t i = 0; i < points.size(); ++i) {
      // |x - c|^2 without |x|^2, which is the same for all centroids.
      for (std::size_t c = 0; c < clusters; ++c)
        cost[i][c] = dot(centroids[c], centroids[c]) - 2 * dot(points[i], centroids[c]);
    }
    cluster_of = balanced_assignment(cost, clusters);
    if (cluster_of == last) break;
    last = cluster_of;
    for (std::vector<double>& centroid : centroids) std::ranges::fill(centroid, 0);
    for (std::size_t i = 0; i < points.size(); ++i) {
      for (std::size_t d = 0; d < points[i].size(); ++d)
        centroids[cluster_of[i]][d] +=
            points[i][d] * static_cast<double>(clusters) / static_cast<double>(points.size());
    }
  }
  for (std::vector<double>& centroid : centroids) normalize(centroid);
  return centroids;
}

double dot(std::span<const double> a, std::span<const double> b) {
  return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
}

void normalize(std::vector<double>& vector) {
  const double length = std::sqrt(dot(vector, vector));
  if (length > 0)
    for (double& part : vector) part /= length;
}

}  // namespace moesim
