// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "tools/cli/serving_question.hpp"
#include "tools/plan/plan.hpp"
#include "tools/plan/plan_page.hpp"

namespace moesim {

/// A new folder that is removed with its last owner.
std::shared_ptr<const std::filesystem::path> temporary_folder();

/// Question about one cluster.
struct Asked {
  PlanSearch search;
  std::string output;  ///< name of the files, without ending; empty: none
  std::shared_ptr<const std::filesystem::path> scratch;  ///< folder where no file is kept

  std::string cluster() const { return gpus_text(search.cluster); }
  bool keeps() const { return !output.empty(); }
  std::filesystem::path store() const {
    return keeps() ? std::filesystem::path(output + ".sqlite") : *scratch / "plan.sqlite";
  }
  std::string config_file() const { return keeps() ? output + ".json" : experiment_file; }
  ExperimentSpec spec_of(const SloRun& run) const { return read_spec({run.config, config_file()}); }
};

/// Options of how answers are given.
struct AnswerOptions {
  bool json = false, no_page = false;
  std::string launch;  ///< as option --launch has it
  double attainment = .9;
};

/// Words on a search, for requests or for sessions.
struct Said {
  PlanPage page;  ///< its question, notes and table, the engine, and whether loads are sessions
  std::string unit, missed;
  OrderedJson json;
};

/// Answers as JSON: of one plan itself, of several a list.
using Answers = std::vector<OrderedJson>;
void print_json(const Answers&);

/// Prints an answer, or adds it to `answers` as JSON, and writes its files. Returns true if a
/// deployment meets the limits.
bool give_answer(const AnswerOptions&, const Asked&, const PlanFound&, const Said&, Answers&);

/// Corrections of the pool that decodes, by its anchor, as JSON.
OrderedJson anchor_json(const PoolSpec&);

}  // namespace moesim
