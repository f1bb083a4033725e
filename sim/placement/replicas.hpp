// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "sim/placement/placement.hpp"

namespace moesim {

/// Numbers of copies of each expert that fill all slots by EPLB's rule. Every further copy goes to
/// the expert with the largest load per copy. No expert has more copies than GPUs as long as
/// another expert has fewer. Ties: fewest copies, lowest id.
std::vector<int> copies_by_load(const PlacementProblem&, std::span<const double> load);

/// Deals copies of experts into equally large bins. Copies go in the order given to an open bin
/// with less than its even share of the expert. The bin of the smallest weight so far gets it
/// (ties: lowest bin). The share is ceil(copies / bins): 1 as long as there are no more copies than
/// bins. If no open bin qualifies, an expert of a full bin makes room, so the share is never
/// exceeded. `weight` is of one copy, by expert. Returns [bin][copies, in order of arrival].
std::vector<std::vector<int>> deal_apart(std::span<const int> copies,
                                         std::span<const double> weight, int bins);

/// Longest processing time first: deals `copies` of each expert, every one with an equal share of
/// its load, by share descending (ties: lowest expert). Answers [GPU][experts].
std::vector<std::vector<int>> balanced_apart(std::span<const int> copies,
                                             std::span<const double> load, int gpus);

/// Deals the same over failure domains, blocks of GPUs in order that divide them evenly. Each gets
/// at most ceil(copies / domains) of an expert, so an expert with two copies survives the loss of
/// any block. Copies are dealt to the blocks first, to the GPUs of each block then. Throws
/// ConfigError, named after the `policy`, if the domains do not divide the GPUs evenly.
std::vector<std::vector<int>> balanced_over_domains(std::span<const int> copies,
                                                    std::span<const double> load, int gpus,
                                                    int domains, std::string_view policy);

}  // namespace moesim
