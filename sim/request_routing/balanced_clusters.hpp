// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "hardware/rng.hpp"

namespace moesim {

/// Clusters of items, as many in each: the cheapest such assignment, exactly. `cost` is [items]
/// [clusters]; the items are a multiple of the clusters. Returns the cluster of each item.
std::vector<std::size_t> balanced_assignment(std::span<const std::vector<double>> cost,
                                             std::size_t clusters);

/// The centroids of balanced k-means from k-means++ on, each of length 1 (or 0). A round assigns as
/// many points to every centroid, at the least sum of squared distances, until none changes.
std::vector<std::vector<double>> balanced_centroids(std::span<const std::vector<double>> points,
                                                    std::size_t clusters, Rng rng);

double dot(std::span<const double> a, std::span<const double> b);
/// Scales a vector to length 1; leaves one without length as it is.
void normalize(std::vector<double>&);

}  // namespace moesim
