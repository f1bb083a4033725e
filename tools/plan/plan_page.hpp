// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "tools/plan/answer_table.hpp"
#include "tools/sweep/slo_search.hpp"

namespace moesim {

/// Texts, runs and commands of a plan's page.
struct PlanPage {
  std::string title;     ///< "Qwen3-30B-A3B on 2 x h100"
  std::string question;  ///< what is asked, in a sentence
  std::string result;    ///< the answer, in a sentence
  std::string notes;     ///< what the columns mean, and what the answer rests on
  AnswerTable table;
  std::vector<SloRun> runs;         ///< of the table's rows
  std::vector<std::string> launch;  ///< the engine's own commands for each row
  std::string engine;               ///< whose they are
  std::filesystem::path store;      ///< of every run
  double attainment = .9;           ///< share of the requests that must meet the limits
  bool sessions = false;            ///< whether loads are sessions alive, not requests/s
};

/// Returns one HTML file: the table with launch commands, the share of requests within the limits
/// over the load, and where steps' time goes. Throws ConfigError as report_page().
std::string plan_page(const PlanPage&);

}  // namespace moesim
