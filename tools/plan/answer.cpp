// SPDX-License-Identifier: Apache-2.0
#include "tools/plan/answer.hpp"

#include <cstdlib>

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include "sim/experiment/pools.hpp"
#include "tools/cli/launch.hpp"
#include "tools/cli/output.hpp"
#include "tools/cli/table.hpp"
#include "tools/cli/trust.hpp"
#include "tools/plan/request_answer.hpp"

namespace moesim {

namespace {

void write_config(const Asked& asked, const SloRun& run) {
  if (!asked.keeps()) return;
  Json config = run.config;
  config["measurement"]["expert_counts"] = true;
  write_file(asked.config_file(), config.dump(2) + "\n");
}

// Writes the page, if one is wanted. Whether it did.
bool write_page(const AnswerOptions& options, const Asked& asked, PlanPage page) {
  if (!asked.keeps() || options.no_page) return false;
  page.title = fmt::format("{} on {}", asked.search.model.name, asked.cluster());
  if (page.engine == "none") page.engine = ServingQuestion().engine;
  page.store = asked.store();
  page.attainment = options.attainment;
  try {
    for (const SloRun& run : page.runs)
      page.launch.push_back(launch_text(page.engine, asked.spec_of(run)));
    write_file(asked.output + ".html", plan_page(page));
    return true;
  } catch (const ConfigError& error) {
    spdlog::warn("no page: {}", error.what());
    return false;
  }
}

std::string written_text(const Asked& asked, bool page) {
  if (!asked.keeps())
    return "nothing is written; -o NAME keeps the deployment, every run and a page of the answer\n";
  return fmt::format("written: {0}.json (moesim run {0}.json), {0}.sqlite with every run{1}\n",
                     asked.output, page ? fmt::format(", {}.html", asked.output) : "");
}

// Layout of the pool that decodes, as anchors name it.
std::string anchored_layout(const PoolSpec& pool) {
  return layout_text(pool.parallel, pool.instances);
}

// Text of what corrects the first deployment: empty without an anchor.
std::string anchored_text(const Asked& asked, const SloRun& first) {
  if (!first.config.contains("anchor")) return "";
  const ExperimentSpec spec = asked.spec_of(first);
  const PoolSpec& pool = spec.pools.back();
  std::string text =
      anchor_line(*pool.anchor, pool.anchored_tpot, pool.anchored_tpot * pool.anchored_ttft);
  if (!pool.anchor->holds_at(anchored_layout(pool)))
    text += paragraph(
        "ANOTHER LAYOUT: the anchor was not measured at {}, so its errors may not hold there",
        anchored_layout(pool));
  return text;
}

}  // namespace

std::shared_ptr<const std::filesystem::path> temporary_folder() {
  std::string name = (std::filesystem::temp_directory_path() / "moesim-plan-XXXXXX").string();
  if (::mkdtemp(name.data()) == nullptr)
    throw ConfigError("{}: cannot be created; set TMPDIR to a folder", name);
  return {new std::filesystem::path(name), [](const std::filesystem::path* folder) {
            std::error_code ignored;
            std::filesystem::remove_all(*folder, ignored);
            delete folder;
          }};
}

OrderedJson anchor_json(const PoolSpec& pool) {
  const auto fit = [](const AnchorFit& of, double factor) {
    return OrderedJson{{"runs", of.runs}, {"factor", factor}, {"leave_one_out", of.leave_one_out}};
  };
  return {{"deployment", pool.anchor->deployment},
          {"layouts", pool.anchor->layouts},
          {"tpot", fit(pool.anchor->tpot, pool.anchored_tpot)},
          {"ttft", fit(pool.anchor->ttft, pool.anchored_tpot * pool.anchored_ttft)},
          {"of_another_layout", !pool.anchor->holds_at(anchored_layout(pool))}};
}

bool give_answer(const AnswerOptions& options, const Asked& asked, const PlanFound& found,
                 const Said& said, Answers& answers) {
  const bool met = !found.best.empty();
  const SloRun& first = first_of(found);
  write_config(asked, first);
  PlanPage page = said.page;
  page.result = met ? fmt::format("{} {}: {}. {}", number_text(first.per_second()), said.unit,
                                  page.table.shapes.front(), tied_text(found.best))
                    : "No deployment meets the limits; this one misses them by least.";
  page.runs = met ? found.best : found.nearest;
  const bool has_page = write_page(options, asked, page);
  if (!met) spdlog::error("{}", said.missed);
  if (options.json) {
    answers.push_back(said.json);
  } else {
    print(fmt::format("{}\n\n{}\n{}{} shapes, of which {} fit in memory; {} runs\n{}",
                      page.question, page.table.text(), page.notes, found.shapes, found.fit,
                      found.runs, written_text(asked, has_page)));
    print(anchored_text(asked, first));
    print(trust_line(first.report, first.config));
    // Last, so that the commands can be copied to the end.
    if (!options.launch.empty()) print("\n" + launch_text(options.launch, asked.spec_of(first)));
  }
  return met;
}

void print_json(const Answers& answers) {
  if (answers.empty()) return;
  print((answers.size() == 1 ? answers.front() : OrderedJson(answers)).dump(1) + "\n");
}

}  // namespace moesim
