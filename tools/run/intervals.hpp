// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>

#include "sim/experiment/experiment.hpp"

namespace moesim {

/// Makes a pool's hardware one that could as well be true. The constants of every kernel family and
/// collective make it faster or slower by exp(s z), z normal; s is what a fit's median error says
/// of a normal's spread. `unmeasured_error` replaces it where a family was never measured on the
/// GPU. Shares stay at most 1. Tables likewise, each by KernelTables::error(). `draw` names the
/// copy.
void resample_hardware(PoolSpec&, int draw);
/// Recordings that could as well have been made. Their requests are drawn again with replacement,
/// even ones from among even ones and odd from odd. So what a placement is fitted on stays apart.
/// Generated traces stay as they are: a seed of their own draws them. Pure.
Traces resampled(Traces, std::uint64_t seed, int draw);

/// The median error of families that were fitted on other GPUs alone, about what validate shows.
inline constexpr double unmeasured_error = 0.15;

/// How far metrics vary between runs that could as well be true: `runs` runs, each with a seed
/// of its own (arrivals, lengths, generated gating), resampled and deployed anew: placements are
/// fitted on the requests that were drawn.
///   {"runs", "share", "metrics": {name: {"low", "median", "high"}}}
/// The band holds the middle `share` of the runs, between neighbours linearly. Same config, same
/// result, on any number of threads. `finished` is told how many runs are, by one thread at a time.
/// Throws ConfigError.
OrderedJson intervals(const ConfigNode& config, int runs, const std::function<void(int)>& finished);

}  // namespace moesim
