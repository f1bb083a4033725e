// SPDX-License-Identifier: Apache-2.0
#include "tools/analysis/regimes.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "hardware/rng.hpp"
#include "hardware/shipped.hpp"
#include "sim/serving/simulator.hpp"
#include "tools/cli/gnuplot.hpp"
#include "tools/cli/output.hpp"
#include "tools/cli/table.hpp"

namespace moesim {

namespace {

std::span<const Key> settings_keys() {
  static constexpr Key keys[] = {{"/*", form::any, unset("the base's"), "its value"}};
  return keys;
}

std::span<const Key> named_keys() {
  static constexpr Key keys[] = {{"*", form::object(settings_keys), unset("none"),
                                  "what is set under this name, by JSON pointer"}};
  return keys;
}

RegimeStudy::Named read_named(const ConfigNode& node) {
  RegimeStudy::Named named;
  read_object(node, named_keys, [&](ConfigReader& reader) {
    for (const std::string& name : reader.all_keys()) {
      RegimeStudy::Settings settings;
      const ConfigNode set = reader.child(name);
      if (!set.json().is_object()) set.fail("expected {\"/pointer\": value}");
      for (const auto& [pointer, value] : set.json().items()) {
        if (!pointer.starts_with('/'))
          set.fail(fmt::format("\"{}\" is not a JSON pointer", pointer));
        settings[pointer] = value;
      }
      named.emplace_back(name, std::move(settings));
    }
  });
  if (named.empty()) node.fail("is empty; name at least one");
  return named;
}

// Every combination of one of each list.
RegimeStudy::Named product(const std::vector<RegimeStudy::Named>& lists) {
  RegimeStudy::Named all{{"", {}}};
  for (const RegimeStudy::Named& list : lists) {
    RegimeStudy::Named longer;
    for (const auto& [name, settings] : all) {
      for (const auto& [more, to_set] : list) {
        RegimeStudy::Settings both = settings;
        for (const auto& [pointer, value] : to_set) both[pointer] = value;
        longer.emplace_back(name.empty() ? more : fmt::format("{}, {}", name, more),
                            std::move(both));
      }
    }
    all = std::move(longer);
  }
  return all;
}

void set(Json& config, const RegimeStudy::Settings& settings, const std::filesystem::path& file) {
  for (const auto& [pointer, value] : settings) {  // shorter pointers come first
    try {
      config[Json::json_pointer(pointer)] = value;
    } catch (const Json::exception&) {
      throw ConfigError(
          fmt::format("{}: there is no place {} to set a value at", file.string(), pointer));
    }
  }
}

constexpr const char* ratio = "/placement/replication";

// The ratios a policy is tried at; 0 is the one that it sets itself.
std::vector<double> ratios_of(const RegimeStudy& study, const RegimeStudy::Settings& policy) {
  return policy.contains(ratio) ? std::vector<double>{0} : study.replications;
}

Json point_config(const RegimeStudy& study, const RegimeStudy::Settings& of_case,
                  const RegimeStudy::Settings& policy, double replication) {
  Json config = study.base;
  set(config, of_case, study.base_file);
  set(config, policy, study.base_file);
  if (replication > 0) set(config, {{ratio, replication}}, study.base_file);
  return {{"experiment", std::move(config)},
          {"sequences", study.sequences},
          {"context", study.context},
          {"samples", study.samples}};
}

// Calls with (case, policy, point) in the order of points_of().
template <class Call>
void for_each_point(const RegimeStudy& study, Call&& call) {
  PointMaker points(study.base_file.parent_path());
  for (std::size_t group = 0; group < study.cases.size(); ++group) {
    for (const auto& [name, settings] : study.policies) {
      for (const double replication : ratios_of(study, settings)) {
        call(group, name,
             points.of(point_config(study, study.cases[group].second, settings, replication)));
      }
    }
  }
}

double mean(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

double seconds_of(const StepCost& cost, Part part) {
  const auto& bounds = cost.parts[static_cast<std::size_t>(part)];
  return std::accumulate(bounds.begin(), bounds.end(), 0.0);
}

double mean_activated(const StepCost& cost) {
  double sum = 0;
  for (const LayerOutcome& layer : cost.moe_layers()) sum += layer.load.max_activated;
  return sum / static_cast<double>(std::max<std::size_t>(1, cost.moe_layers().size()));
}

}  // namespace

std::span<const Key> regime_study_keys() {
  static constexpr Form experiment = form::file.or_a(form::any), named = form::object(named_keys),
                        lists = form::list(named), number = form::number(1, 100),
                        numbers = form::list(number), count = form::integer(1, 1e6),
                        counts = form::list(count);
  static constexpr Key keys[] = {
      {"base", experiment, required, "an experiment, or the file of one"},
      {"cases", lists, required, "lists of settings: one of each makes a case"},
      {"policies", named, required, "settings of each; the first is the reference"},
      {"replications", numbers, R"([1.125, 1.25, 1.5])", "of policies that set none"},
      {"sequences", counts, required, "per DP rank, in a decode step"},
      {"context", count, "1024", "tokens of each sequence"},
      {"samples", count, "32", "batches of each size"}};
  return keys;
}

RegimeStudy read_regime_study(const ConfigNode& file) {
  return read_object(file, regime_study_keys, [&](ConfigReader& reader) {
    const ConfigNode base = file_or_inline(reader.child("base"));
    RegimeStudy study{file.json(), base.file(), base.json(), {}, {}, {}, {}, 0, 0};
    std::vector<RegimeStudy::Named> lists;
    for (const ConfigNode& list : reader.child("cases").list()) lists.push_back(read_named(list));
    study.cases = product(lists);
    study.policies = read_named(reader.child("policies"));
    for (const ConfigNode& value : reader.child("replications").list())
      study.replications.push_back(value.number());
    for (const ConfigNode& value : reader.child("sequences").list())
      study.sequences.push_back(static_cast<int>(value.integer()));
    study.context = static_cast<int>(reader.integer("context"));
    study.samples = static_cast<int>(reader.integer("samples"));
    const auto reference = std::find_if(study.policies.begin(), study.policies.end(),
                                        [](const auto& policy) { return policy.first == "none"; });
    if (reference == study.policies.end())
      reader.child("policies").fail("needs \"none\", with which the others are compared");
    std::rotate(study.policies.begin(), reference, reference + 1);
    return study;
  });
}

Sweep points_of(const RegimeStudy& study) {
  Sweep sweep{study.document, study.base_file, {}};
  for_each_point(study, [&](std::size_t, const std::string&, SweepPoint point) {
    const bool known = std::any_of(
        sweep.points.begin(), sweep.points.end(),
        [&](const SweepPoint& other) { return other.config_hash == point.config_hash; });
    if (!known) sweep.points.push_back(std::move(point));
  });
  return sweep;
}

std::string price_regime(const Json& point, const std::filesystem::path& base_file,
                         TraceLibrary& traces) {
  Experiment experiment = load_experiment(ConfigNode(point.at("experiment"), base_file), traces);
  Deployment& deployment = experiment.decode();
  const int ranks = deployment.parallel.dp, context = point.at("context");
  const double kv_tokens =
      static_cast<double>(deployment.memory.kv_blocks) * deployment.kv_layout.block_tokens * ranks;
  Json report{
      {"replication", deployment.replication_effective},
      {"kv_tokens", kv_tokens},
      {"by_global_counts", deployment.rules.of(StepKind::decode).router->needs_global_counts()},
      {"layers", deployment.model.moe_layers()},
      {"batches", Json::array()}};
  const std::uint64_t seed = deployment.seed;
  for (const int sequences : point.at("sequences").get<std::vector<int>>()) {
    Json ms = Json::array(), deciding = Json::array(), activated = Json::array();
    for (int sample = 0; sample < point.at("samples").get<int>(); ++sample) {
      // The batch is drawn by the seed, the same one for every policy.
      deployment.seed = Rng(seed, fmt::format("study/{}/{}", sequences, sample)).bits();
      const ExplainedStep step = explain_step(deployment, StepKind::decode, sequences, context, 0);
      ms.push_back(step.cost.total.count() * 1e3);
      deciding.push_back(seconds_of(step.cost, Part::token_routing) * 1e3);
      activated.push_back(mean_activated(step.cost));
    }
    const int batch = ranks * sequences;
    const double x =
        static_cast<double>(batch) * deployment.model.experts_per_token / deployment.model.experts;
    report["batches"].push_back({{"batch", batch},
                                 {"x", x},
                                 {"fits", double(batch) * context <= kv_tokens},
                                 {"ms", std::move(ms)},
                                 {"deciding_ms", std::move(deciding)},
                                 {"activated", std::move(activated)}});
  }
  return report.dump();
}

std::vector<RegimeRow> regime_rows(const RegimeStudy& study, const StoredSweep& stored) {
  std::map<std::string, const StoredPoint*> by_hash;
  for (const StoredPoint& point : stored.points) by_hash[point.config_hash] = &point;
  std::vector<RegimeRow> rows;
  for_each_point(study, [&](std::size_t group, const std::string& policy, const SweepPoint& point) {
    const auto found = by_hash.find(point.config_hash);
    if (found == by_hash.end() || found->second->status != PointStatus::done) return;
    const Json& report = found->second->report;
    for (const Json& batch : report.at("batches")) {
      rows.push_back({group, policy, report.at("replication"), batch.at("batch"), batch.at("x"),
                      batch.at("ms"), batch.at("activated"), report.at("kv_tokens"),
                      batch.at("fits"), report.at("by_global_counts"), batch.at("deciding_ms"),
                      report.at("layers")});
    }
  });
  std::stable_sort(rows.begin(), rows.end(), [](const RegimeRow& a, const RegimeRow& b) {
    return std::pair(a.group, a.batch) < std::pair(b.group, b.batch);
  });
  return rows;
}

namespace {

// Half the 95 % interval of the mean of values; 0 for a single one.
double margin_of_mean(const std::vector<double>& values) {
  const auto count = static_cast<double>(values.size());
  const double middle = mean(values);
  double squares = 0;
  for (const double value : values) squares += std::pow(value - middle, 2);
  return count > 1 ? 1.96 * std::sqrt(squares / (count - 1) / count) : 0;
}

}  // namespace

PairedGain paired_gain(const std::vector<double>& of, const std::vector<double>& against) {
  std::vector<double> differences = of;
  for (std::size_t i = 0; i < of.size(); ++i) differences[i] -= against[i];
  const double percent = 100 / mean(against);
  return {percent * mean(differences), percent * margin_of_mean(differences)};
}

std::vector<RegimeCell> regime_map(const RegimeStudy& study, const std::vector<RegimeRow>& rows) {
  std::vector<RegimeCell> cells;
  const auto faster = [](const RegimeRow* than, const RegimeRow& row) {
    return than == nullptr || mean(row.ms) < mean(than->ms);
  };
  for (auto first = rows.begin(); first != rows.end();) {
    const auto last = std::find_if(first, rows.end(), [&](const RegimeRow& row) {
      return row.group != first->group || row.batch != first->batch;
    });
    RegimeCell cell;
    for (auto row = first; row != last; ++row) {
      if (row->policy == study.policies.front().first) cell.reference = &*row;
      if (!row->fits) continue;
      if (row->policy.starts_with("metro") && faster(cell.metro, *row)) cell.metro = &*row;
      if (faster(cell.fastest, *row)) cell.fastest = &*row;
    }
    for (auto row = first; row != last && cell.fastest != nullptr; ++row) {
      const PairedGain gap = paired_gain(row->ms, cell.fastest->ms);
      const bool alike = row->fits && gap.percent <= gap.margin;
      if (!alike && &*row != cell.fastest) continue;
      if (cell.cheapest == nullptr || row->kv_tokens > cell.cheapest->kv_tokens)
        cell.cheapest = &*row;
    }
    if (cell.reference != nullptr && cell.fastest != nullptr) cells.push_back(cell);
    first = last;
  }
  return cells;
}

namespace {

// The time of a step that deciding may take, by sample, for each MoE layer, in us.
BreakEven break_even(const RegimeRow& policy, const RegimeRow& rival) {
  std::vector<double> us;
  for (std::size_t i = 0; i < policy.ms.size(); ++i)
    us.push_back(1e3 * (rival.ms[i] - (policy.ms[i] - policy.deciding_ms[i])) / policy.layers);
  return {&policy, &rival, mean(us), margin_of_mean(us)};
}

}  // namespace

std::vector<BreakEven> break_even(const RegimeStudy& study, const std::vector<RegimeRow>& rows) {
  std::vector<BreakEven> all;
  for (const RegimeCell& cell : regime_map(study, rows)) {
    const auto in_cell = [&](const RegimeRow& row) {
      return row.group == cell.fastest->group && row.batch == cell.fastest->batch && row.fits;
    };
    const RegimeRow* rival = nullptr;
    for (const RegimeRow& row : rows) {
      if (!in_cell(row) || row.by_global_counts) continue;
      if (rival == nullptr || mean(row.ms) < mean(rival->ms)) rival = &row;
    }
    if (rival == nullptr) continue;
    for (const auto& [name, settings] : study.policies) {
      std::optional<BreakEven> best;
      for (const RegimeRow& row : rows) {
        if (!in_cell(row) || !row.by_global_counts || row.policy != name) continue;
        const BreakEven one = break_even(row, *rival);
        if (!best || one.us > best->us) best = one;
      }
      if (best) all.push_back(*best);
    }
  }
  return all;
}

namespace {

std::string named(const RegimeRow& row) {
  return row.replication > 1 ? fmt::format("{} {:.4g}x", row.policy, row.replication) : row.policy;
}

std::string signed_percent(const PairedGain& gain) {
  return fmt::format("{:+.1f} +-{:.1f}", gain.percent, gain.margin);
}

double kv_change(const RegimeRow& row, const RegimeRow& reference) {
  return 100 * (row.kv_tokens / reference.kv_tokens - 1);
}

// How long each policy by global counts may take to decide, a line for each batch of a case.
std::string break_even_text(const RegimeStudy& study, const std::vector<BreakEven>& all,
                            std::size_t group) {
  std::vector<std::string> head{"x", "batch", "rival"};
  for (const auto& policy : study.policies) {
    const std::string& name = policy.first;
    const bool decides =
        std::ranges::any_of(all, [&](const BreakEven& one) { return one.policy->policy == name; });
    if (decides) head.push_back(name);
  }
  constexpr std::size_t first_policy = 3;
  Table table(head);
  std::vector<std::string> line;
  const RegimeRow* rival = nullptr;
  const auto end_line = [&] {
    if (!line.empty()) table.add(std::exchange(line, {}));
  };
  for (const BreakEven& one : all) {
    if (one.policy->group != group) continue;
    if (one.rival != rival) {
      end_line();
      rival = one.rival;
      line = {fmt::format("{:.3g}", rival->x), fmt::format("{}", rival->batch), named(*rival)};
      line.resize(head.size(), "-");
    }
    const auto column = std::find(head.begin() + first_policy, head.end(), one.policy->policy);
    line[static_cast<std::size_t>(column - head.begin())] =
        fmt::format("{:+.1f} +-{:.1f}", one.us, one.margin);
  }
  if (rival == nullptr) return "";
  end_line();
  return "break-even, us per MoE layer:\n" + table.text(100) + "\n";
}

}  // namespace

std::string regime_text(const RegimeStudy& study, const std::vector<RegimeRow>& rows) {
  const std::string& reference = study.policies.front().first;
  const std::vector<RegimeCell> cells = regime_map(study, rows);
  const std::vector<BreakEven> decided = break_even(study, rows);
  std::string text;
  for (std::size_t group = 0; group < study.cases.size(); ++group) {
    Table table({"x", "batch", "fastest", "step % of " + reference, "% of metro", "slots %", "KV %",
                 "as fast, most KV"});
    for (const RegimeCell& cell : cells) {
      const RegimeRow& best = *cell.fastest;
      if (best.group != group) continue;
      table.add(
          {fmt::format("{:.3g}", best.x), fmt::format("{}", best.batch), named(best),
           signed_percent(paired_gain(best.ms, cell.reference->ms)),
           cell.metro ? signed_percent(paired_gain(best.ms, cell.metro->ms)) : "-",
           fmt::format("{:+.1f}", paired_gain(best.activated, cell.reference->activated).percent),
           fmt::format("{:+.1f}", kv_change(best, *cell.reference)), named(*cell.cheapest)});
    }
    text += fmt::format("{}\n{}\n{}", study.cases[group].first, table.text(),
                        break_even_text(study, decided, group));
  }
  return text +
         wrapped(
             "x: tokens * k / experts. %: the fastest compared with no replication and with the "
             "fastest metro. Compared are step time (with the 95 % interval over paired "
             "batches), activated slots of the busiest GPU, and KV cache. As fast, most KV: "
             "within the interval of the fastest.") +
         "\n" +
         wrapped(
             "Break-even: how long a policy that needs the counts of all GPUs may take to "
             "decide, in each MoE layer. At that time the policy is as fast as the rival, the "
             "fastest policy without these counts. Below 0: the policy is slower even if "
             "deciding takes no time.") +
         "\n";
}

std::string regime_csv(const RegimeStudy& study, const std::vector<RegimeRow>& rows) {
  std::string csv =
      "case,policy,replication,batch,x,fits,step_ms,deciding_ms,activated,kv_tokens,step_vs_"
      "reference_percent,"
      "margin,activated_vs_reference_percent,margin,step_vs_metro_percent,margin\n";
  const std::vector<RegimeCell> cells = regime_map(study, rows);
  for (const RegimeRow& row : rows) {
    const auto cell = std::find_if(cells.begin(), cells.end(), [&](const RegimeCell& other) {
      return other.fastest->group == row.group && other.fastest->batch == row.batch;
    });
    if (cell == cells.end()) continue;
    const PairedGain step = paired_gain(row.ms, cell->reference->ms);
    const PairedGain slots = paired_gain(row.activated, cell->reference->activated);
    csv += fmt::format(
        "\"{}\",\"{}\",{:.6g},{},{:.6g},{},{:.6g},{:.6g},{:.6g},{:.0f},{:.4f},{:.4f},{:.4f},"
        "{:.4f},",
        study.cases[row.group].first, row.policy, row.replication, row.batch, row.x,
        row.fits ? 1 : 0, mean(row.ms), mean(row.deciding_ms), mean(row.activated), row.kv_tokens,
        step.percent, step.margin, slots.percent, slots.margin);
    if (cell->metro != nullptr) {
      const PairedGain metro = paired_gain(row.ms, cell->metro->ms);
      csv += fmt::format("{:.4f},{:.4f}\n", metro.percent, metro.margin);
    } else {
      csv += ",\n";
    }
  }
  return csv;
}

namespace {

// A policy's step against the reference's over x, at its best ratio for each.
std::string series_of(const std::vector<RegimeCell>& cells, const std::vector<RegimeRow>& rows,
                      std::size_t group, const std::string& policy) {
  std::map<double, double> best;
  for (const RegimeCell& cell : cells) {
    if (cell.fastest->group != group) continue;
    for (const RegimeRow& row : rows) {
      if (row.group != group || row.batch != cell.fastest->batch || row.policy != policy) continue;
      const double percent = paired_gain(row.ms, cell.reference->ms).percent;
      const auto [known, is_new] = best.emplace(row.x, percent);
      if (!is_new) known->second = std::min(known->second, percent);
    }
  }
  std::string places;
  for (const auto& [x, percent] : best) places += fmt::format("{} {}\n", x, percent);
  return places;
}

}  // namespace

void plot_regimes(const RegimeStudy& study, const std::vector<RegimeRow>& rows,
                  const std::filesystem::path& file) {
  plot_terminal(file);  // refuses other endings
  require_writable(file);
  const std::vector<RegimeCell> cells = regime_map(study, rows);
  std::string data, panels, titles;
  std::size_t index = 0;
  int panel = 0;
  for (std::size_t group = 0; group < study.cases.size(); ++group) {
    std::string plot;
    for (std::size_t i = 0; i < study.policies.size(); ++i) {
      const std::string places = series_of(cells, rows, group, study.policies[i].first);
      if (places.empty()) continue;
      data += fmt::format("x {}\n{}\n\n", plot_heading(study.policies[i].first), places);
      plot += fmt::format(
          "{} ARG1 index {} using 1:2 with linespoints pt {} ps 0.6 lw 1.5 dt {} lc rgb '{}' title "
          "columnheader(2)",
          plot.empty() ? "plot" : ",", index++, plot_shapes[i % plot_shapes.size()],
          1 + i / plot_colours.size(), plot_colours[i % plot_colours.size()]);
    }
    if (plot.empty()) continue;
    titles += plot_heading(study.cases[group].first) + " ";
    panels += fmt::format("set title word(ARG4, {}) noenhanced\n{}\n", ++panel, plot);
  }
  const int columns = std::max(1, static_cast<int>(std::ceil(std::sqrt(panel))));
  const int lines = std::max(1, (panel + columns - 1) / columns);
  const std::string script = fmt::format(
      "set terminal {}\nset grid linecolor '#CCCCCC'\nset border 3\nset tics nomirror\n"
      "set key below Left reverse noenhanced\nset logscale x 2\nset xlabel ARG2\n"
      "set ylabel ARG3\nset multiplot layout {},{}\n{}unset multiplot\n",
      plot_terminal(file, columns, lines), lines, columns, panels);
  write_file(file, run_gnuplot(script, data,
                               {"x = tokens * k / experts",
                                "step, % of " + study.policies.front().first, titles}));
}

}  // namespace moesim
