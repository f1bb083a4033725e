// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tools/plan/plan.hpp"

namespace moesim {

// What the searches of `plan` for requests (plan.cpp) and for sessions (session_plan.cpp) share.

/// The deployment with MoE layers drawn from steps alike; with drafts, which that does not model,
/// as it is.
Json sampled(Json deployment);

/// Shapes as experiments, as sampled() makes them.
std::vector<Json> places_of(const Json& base, const std::vector<PlannedDeployment>&);

/// How many runs a store holds, those that were given up too; 0 where it is not there.
std::size_t runs_in(const std::filesystem::path& store);

/// The search of one stage over some places: short runs that end when they cannot meet the limits.
/// Its loads and how they are set are the caller's.
SloSearch stage_search(const PlanSearch&, Json document, std::vector<Json> places,
                       const std::optional<RateLadder>&);

/// Tells that a stage begins, its place among all, and what is best so far ("": nothing). The hooks
/// of its runs, of which `before` ran in earlier stages.
SloHooks begin_stage(const PlanHooks&, const std::vector<std::string_view>& stages,
                     std::string_view stage, const std::string& best, std::size_t before);

/// Keeps the run that missed by least.
void keep_nearest(std::vector<SloRun>& nearest, const SloResult&);

/// Adds runs to the best: most load first, of equal loads what meets the limits for more, then what
/// was found first. There is one of each shape.
void join_best(std::vector<SloRun>& best, std::vector<SloRun> found);

}  // namespace moesim
