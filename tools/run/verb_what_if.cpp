// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <sstream>

#include <fmt/format.h>
#include <tbb/parallel_invoke.h>

#include "hardware/at.hpp"
#include "hardware/parse_json.hpp"
#include "sim/engines/serving_engine.hpp"
#include "sim/report/metric_catalogue.hpp"
#include "sim/serving/simulator.hpp"
#include "tools/cli/duration.hpp"
#include "tools/cli/experiment_options.hpp"
#include "tools/cli/output.hpp"
#include "tools/cli/remarks.hpp"
#include "tools/cli/table.hpp"
#include "tools/cli/trust.hpp"
#include "tools/cli/verbs.hpp"
#include "tools/run/report_text.hpp"

namespace moesim {

namespace {

struct WhatIfOptions {
  ExperimentOptions experiment;
  int redundant = -1;
  bool metro = false, json = false;
  std::string ep, engine, fail;
};

// An event of "failures", of "gpu=1,at=60s,for=30s".
Json outage_of(const std::string& option) {
  const auto refuse = [&](std::string_view what) {
    throw ConfigError(
        "--fail {}: {}; expected e.g. gpu=1,at=60s,for=30s, also instance=N or node=N; "
        "without \"for\" what stopped stays away",
        option, what);
  };
  Json event;
  std::istringstream parts(option);
  for (std::string part; std::getline(parts, part, ',');) {
    const std::size_t equals = std::min(part.find('='), part.size());
    const std::string key = part.substr(0, equals),
                      value = part.substr(std::min(equals + 1, part.size()));
    if (key == "at" || key == "for") {
      event[key == "at" ? "at" : "recovers_after"] = duration_of("--fail", value);
    } else if (key == "gpu" || key == "instance" || key == "node") {
      event[key] = json_or_text(value);
      if (!event[key].is_number_unsigned()) refuse(fmt::format("\"{}\" is no number", value));
    } else {
      refuse(fmt::format("\"{}\" is not known", part));
    }
  }
  if (!event.contains("at")) refuse("the time from the start of the run is missing");
  if (!event.contains("gpu") && !event.contains("instance") && !event.contains("node"))
    refuse("what stops is missing");
  return event;
}

// Failures need each token priced, also in the run without them, which is compared.
Json priced_by_token(Json config) {
  config["fidelity"] = "exact";
  if (config.contains("pools"))
    for (Json& pool : config["pools"]) pool.erase("fidelity");
  return config;
}

// A key of the groups that decode, their own from now on. A pool's key replaces the whole of that
// beside the pools.
Json& own_of_decoders(Json& config, const char* key) {
  if (!config.contains("pools")) return config[key];
  Json& pool = config["pools"]["decode"];
  if (!pool.contains(key) && config.contains(key)) pool[key] = config[key];
  if (both_pools_have(config, key)) config.erase(key);
  return pool[key];
}

// Experts of the decoding groups over all their GPUs, or every one sliced over them.
int ep_of(const ParallelPlan& now, std::string_view asked) {
  return asked.empty() ? now.ep : asked == "on" ? now.expert_gpus() : 1;
}

void add_copies(Json& config, int redundant, const Deployment& e, int ep) {
  if (e.model.experts == 0) throw ConfigError("--redundant: the model has no experts");
  if (redundant > 0 && ep == 1) {
    throw ConfigError(e.parallel.expert_gpus() == 1
                          ? "--redundant: one GPU holds all experts, and copies have no place"
                          : "--redundant: every expert is cut over all GPUs (ep 1), and copies "
                            "need several EP ranks; give --ep on too");
  }
  Json& placement = own_of_decoders(config, "placement");
  if (placement.is_null()) placement = Json::object();
  placement = ConfigNode(placement, "what-if", "/placement").as_policy().json();
  if (!placement.contains("type")) placement["type"] = "eplb";
  placement["replication"] = 1 + double(redundant) / e.model.experts;
}

// METRO needs the choices of the whole group. A dispatch that tells them stays as it is.
void route_by_metro(Json& config, const Deployment& e) {
  own_of_decoders(config, "token_routing")["decode"] = "metro";
  const std::vector<PhaseSpec>& phases = e.phases;  // of a dense model: none
  if (!phases.empty() && phases[at(StepKind::decode)].dispatch->gives_global_counts()) return;
  own_of_decoders(config, "dispatch")["decode"] = {{"type", "all_gather"},
                                                   {"combine", "all_to_all"}};
}

// The preset of another engine. Of the one before nothing stays, version and recipe are its own. A
// scheduler that some engine has becomes that of the other one.
void change_engine(Json& group, const ServingEngine& engine) {
  group["engine"] = {{"name", engine.name}};
  if (!group.contains("scheduling")) return;
  Json& scheduling = group["scheduling"];
  if (scheduling.is_object() && !scheduling.contains("type")) return;
  Json& type = scheduling.is_object() ? scheduling["type"] : scheduling;
  if (std::ranges::any_of(serving_engines(), [&](const auto& e) { return type == e.scheduler(); }))
    type = engine.scheduler();
}

// Both pools get the engine.
void change_engines(Json& config, const ServingEngine& engine) {
  change_engine(config, engine);
  if (!config.contains("pools")) return;
  for (const char* name : {"prefill", "decode"}) change_engine(config["pools"][name], engine);
  config.erase("engine");
}

// Another engine by --set leaves the scheduler as it is.
std::string remark_on_engine(const ConfigNode& base, const ConfigNode& other,
                             const WhatIfOptions& options) {
  const auto named = [](const ConfigNode& config) { return engine_of(config.json()); };
  const std::string engine = named(other);
  if (!options.engine.empty() || engine.empty() || named(base) == engine) return "";
  return fmt::format(
      "--set changes no other key: the scheduler stays, and the version and the recipe unless they "
      "are set too; --engine {} takes those of {}",
      engine, engine);
}

// `e` is what decodes in `base`.
ConfigNode changed(const ConfigNode& base, const Deployment& e, const WhatIfOptions& options) {
  Json config = base.json();
  if (!options.engine.empty()) change_engines(config, *find_engine(options.engine));
  const int ep = ep_of(e.parallel, options.ep);
  if (ep != e.parallel.ep) own_of_decoders(config, "parallel")["ep"] = ep;
  // Copies have no place where every GPU has a slice of each expert.
  const bool loses_copies = ep == 1 && e.parallel.ep > 1 && e.replication > 1;
  if (options.redundant >= 0 || loses_copies)
    add_copies(config, std::max(0, options.redundant), e, ep);
  if (options.metro) route_by_metro(config, e);
  if (!options.fail.empty())
    own_of_decoders(config, "failures") = {{"events", {outage_of(options.fail)}}};
  for (const std::string& change : options.experiment.overrides) apply_override(config, change);
  for (const std::string& change : options.experiment.overrides)
    refuse_change_beside_pools(config, change);
  if (config == base.json()) {
    if (!options.ep.empty()) {
      throw ConfigError(
          "--ep {} changes nothing: one GPU holds all experts, or experts are {} already",
          options.ep, options.ep == "on" ? "whole" : "cut over all GPUs");
    }
    throw ConfigError(
        "what-if: nothing is changed; give --set /key=value, --engine, --redundant, --ep, --metro "
        "or --fail");
  }
  return {std::move(config), base.file()};
}

constexpr std::array figures{&metric("slo_attainment"),    &metric("request_throughput"),
                             &metric("output_throughput"), &metric("median_ttft_ms"),
                             &metric("p90_ttft_ms"),       &metric("median_tpot_ms"),
                             &metric("p90_tpot_ms"),       &metric("decode_max_activated_mean")};

// "+12.3 %", "x 72"; "" where there is no ratio.
std::string ratio_text(double before, double after) {
  constexpr double large = 10;
  if (before == 0) return "";
  const double ratio = after / before;
  return ratio >= large ? fmt::format("x {:.3g}", ratio)
                        : fmt::format("{:+.1f} %", 100 * (ratio - 1));
}

// The figures that change. The share within limits is one of runs that have some.
std::string figures_text(const Report& before, const Report& after) {
  const bool limits =
      !before.context.config.at("slo").empty() || !after.context.config.at("slo").empty();
  Table table({"", "as it is", "changed", "by"});
  bool any = before.measurement.state != after.measurement.state;
  for (const Metric* figure : figures) {
    const auto a = figure->value(before), b = figure->value(after);
    if ((!a && !b) || (figure->name == "slo_attainment" && !limits)) continue;
    const std::string old = a ? number_text(*a) : "-", now = b ? number_text(*b) : "-";
    if (old == now) continue;
    any = true;
    const std::string_view unit = figure->key().unit;
    const std::string label =
        unit.empty() ? std::string(figure->label) : fmt::format("{}, {}", figure->label, unit);
    table.add({label, old, now, a && b ? ratio_text(*a, *b) : ""});
  }
  table.add({"state", before.measurement.state, after.measurement.state, ""});
  return any ? table.text()
             : fmt::format("no figure changes; the state is {}\n", after.measurement.state);
}

// Time that a mean step of one kind spends on a part, in ms.
struct PartChange {
  std::string part;
  double before = 0, after = 0;
  double by() const { return after - before; }
};

std::vector<PartChange> parts_of(const StepKindStats& before, const StepKindStats& after) {
  std::vector<PartChange> parts;
  for (const auto& [name, ms] : before.parts_mean_ms) {
    const double* other = metric_values::find(after.parts_mean_ms, name);
    const PartChange change{name, ms, other == nullptr ? 0 : *other};
    if (change.before > 0 || change.after > 0) parts.push_back(change);
  }
  std::ranges::stable_sort(parts, std::ranges::greater(),
                           [](const PartChange& part) { return std::abs(part.by()); });
  return parts;
}

// Which operations make the mean step of a kind longer or shorter, the most first.
std::string causes_text(std::string_view kind, const StepKindStats& before,
                        const StepKindStats& after) {
  if (before.steps == 0 || after.steps == 0) return "";
  constexpr double shown = .0005;  // ms
  Table table({fmt::format("a {} step, ms", kind), "as it is", "changed", "by"});
  const auto add = [&](const PartChange& part) {
    table.add({part.part, fmt::format("{:.3f}", part.before), fmt::format("{:.3f}", part.after),
               fmt::format("{:+.3f}", part.by())});
  };
  std::vector<PartChange> parts = parts_of(before, after);
  std::erase_if(parts, [](const PartChange& part) { return std::abs(part.by()) < shown; });
  if (parts.empty()) return "";
  add({"all", before.mean_ms, after.mean_ms});
  for (const PartChange& part : parts) add(part);
  return fmt::format(
      "\n{}share of the time: {:.0f} % as it is, {:.0f} % changed; decodes a rank: {:.1f}, "
      "{:.1f}\n",
      table.text(), 100 * before.share_of_time, 100 * after.share_of_time,
      before.mean_decode_tokens_per_rank, after.mean_decode_tokens_per_rank);
}

std::string to_text(const Report& before, const Report& after, const Json& patch) {
  std::string text = "changed:\n";
  for (const Json& change : patch)
    text += indented(fmt::format("  {} {}", change.at("path").get<std::string>(),
                                 change.contains("value") ? change.at("value").dump() : "removed"),
                     4);
  text += "\n" + figures_text(before, after);
  for (const OutageStats& outage : after.pool.failures) text += outage_text(outage);
  for (const auto& [kind, steps] : before.pool.steps.by_kind) {
    const StepKindStats* other = metric_values::find(after.pool.steps.by_kind, kind);
    if (other != nullptr) text += causes_text(kind, steps, *other);
  }
  return text;
}

OrderedJson to_json(const Report& before, const Report& after, const Json& patch) {
  OrderedJson json{{"changed", patch}, {"figures", OrderedJson::object()}};
  for (const Metric* figure : figures) {
    const auto a = figure->value(before), b = figure->value(after);
    if (a && b) json["figures"][std::string(figure->name)] = {*a, *b};
  }
  json["state"] = {before.measurement.state, after.measurement.state};
  for (const auto& [kind, steps] : before.pool.steps.by_kind) {
    const StepKindStats* other = metric_values::find(after.pool.steps.by_kind, kind);
    if (other == nullptr || steps.steps == 0 || other->steps == 0) continue;
    OrderedJson& row = json["step_ms"][std::string(kind)];
    row["all"] = {steps.mean_ms, other->mean_ms};
    for (const PartChange& part : parts_of(steps, *other))
      row[part.part] = {part.before, part.after};
  }
  return json;
}

int run(const WhatIfOptions& options) {
  ExperimentOptions as_it_is = options.experiment;
  as_it_is.overrides.clear();
  TraceLibrary traces;
  const ConfigNode read = as_it_is.read();
  const ConfigNode base =
      options.fail.empty() ? read : ConfigNode(priced_by_token(read.json()), read.file());
  Remarks remarks;
  const Experiment first = remarks.say_of(load_experiment(base, traces));
  const ConfigNode other = changed(base, first.decode(), options);
  remarks.say(remark_on_engine(base, other, options));
  const Experiment second = remarks.say_of(load_experiment(other, traces));
  Report before, after;
  tbb::parallel_invoke([&] { before = moesim::run(first); }, [&] { after = moesim::run(second); });
  remarks.say(remark_on_recordings(recordings_of(first.decode()), before));
  remarks.say(remark_on_recordings(recordings_of(second.decode()), after));
  const Json patch = Json::diff(base.json(), other.json());
  print(options.json ? to_json(before, after, patch).dump(1) + "\n"
                     : to_text(before, after, patch));
  return 0;
}

}  // namespace

Action setup_what_if(CLI::App& command) {
  const auto options = std::make_shared<WhatIfOptions>();
  options->experiment.add_to(command);
  option(command, "--engine", options->engine,
         "another serving engine, with its scheduler and its newest preset",
         CLI::IsMember(std::vector<std::string>(engine_names().begin(), engine_names().end())));
  option(command, "--redundant", options->redundant,
         "number of redundant experts, over all GPUs of a decoding group", CLI::Range(0, 1 << 16));
  option(command, "--ep", options->ep, "expert parallelism of the groups that decode",
         CLI::IsMember({"on", "off"}));
  command.add_flag(
      "--metro", options->metro,
      "METRO routes the decodes' tokens; by all-gather, if the dispatch does not tell all choices");
  command.add_option("--fail", options->fail,
                     "what stops, and when: gpu=1,at=60s,for=30s; also instance=N, node=N. gpu is "
                     "of a group that decodes. Both runs then price each token");
  command.add_flag("--json", options->json, "print JSON instead of tables");
  command.footer(
      "Runs CONFIG as it is and changed, under the same seed. Prints in two columns what changes, "
      "with the operations that make a step longer or shorter. Rows that do not change are left "
      "out.\n"
      "  moesim what-if plan.json --redundant 32\n"
      "  moesim what-if plan.json --ep off\n"
      "  moesim what-if plan.json --engine sglang\n"
      "  moesim what-if plan.json --fail gpu=1,at=60s,for=60s\n"
      "  moesim what-if plan.json --set /rebalancing=null\n"
      "  moesim what-if plan.json --redundant 32 --metro\n"
      "  moesim what-if plan.json --set '/workload/arrivals/rate=2 /s'");
  return [options] { return run(*options); };
}

}  // namespace moesim
