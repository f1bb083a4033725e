// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "hardware/config.hpp"
#include "tools/plan/answer_table.hpp"
#include "tools/plan/plan.hpp"

namespace moesim {

/// Table of a plan for requests: a row for each deployment. Its last column is joules of an output
/// token if `by_energy`, else cost_text().
AnswerTable request_table(const Plan&, const PlanSearch&, bool by_energy);
/// Text below the table: what rows share, what columns say, and what the answer rests on.
std::string request_notes(const Plan&, const MoeModel&, bool by_energy);
/// The same as JSON: "best", "nearest", and what the search did.
OrderedJson request_json(const Plan&, const PlanSearch&);

/// Ranks the best by joules of an output token. Those whose power is not known come last, as they
/// were.
void rank_by_energy(Plan&);

/// Text on rows whose loads are no further apart than the search tells; empty: none but the first.
std::string tied_text(const std::vector<SloRun>&);
/// Dollars per million output tokens; "-" where no price is known.
std::string cost_text(const SloRun&, const ClusterSpec&);
/// Line that says what an hour of a GPU costs.
std::string price_text(const std::optional<Price>&);

}  // namespace moesim
