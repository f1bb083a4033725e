// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "hardware/config.hpp"
#include "sim/experiment/trace_library.hpp"

namespace moesim {

// Kinds of measure() (tools/lab/reproduce/reproduction.hpp) with a file of their own. Each reads
// its object and throws ConfigError; traces of one library are made once.

/// Measures a decode step of each point of a sweep, and frontiers of throughput over step time.
Json measure_frontier(const ConfigNode&, TraceLibrary&);
/// Routers in the EP-barrier article's world.
Json measure_article(const ConfigNode&, TraceLibrary&);
/// Routers in the world of BF-IO's paper.
Json measure_bfio(const ConfigNode&, TraceLibrary&);
/// Decode steps of the cases of a study (tools/lab/study/regime_study.hpp), if deciding takes no
/// time.
Json measure_regimes(const ConfigNode&, TraceLibrary&);

}  // namespace moesim
