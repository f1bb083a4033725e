// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "hardware/config.hpp"
#include "tools/plan/answer_table.hpp"
#include "tools/plan/session_plan.hpp"

namespace moesim {

/// Table of a plan for sessions: a row for each deployment on so many GPUs.
AnswerTable session_table(const SessionPlanned&, int gpus);
/// Text below the table: what its columns say, and what host memory is worth.
std::string session_notes(const SessionPlanned&, const std::string& host_memory);
/// "256 GB of host memory a node are worth 31 % more sessions (84 in place of 64, write_back)."; ""
/// where no tier was asked.
std::string tier_text(const SessionPlanned&, const std::string& host_memory);
/// The same as JSON: "turns", "best", "tiers", and what the search did.
OrderedJson session_json(const SessionPlanned&, int gpus);

}  // namespace moesim
