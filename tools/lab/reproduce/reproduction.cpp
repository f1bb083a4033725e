// SPDX-License-Identifier: Apache-2.0
#include "tools/lab/reproduce/reproduction.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tools/cli/output.hpp"
#include "tools/sweep/axes.hpp"

namespace moesim {

namespace {

using Answers = std::map<std::string, Json, std::less<>>;

double look_up(const ConfigNode& node, const Answers& measured) {
  const std::string place = node.text();
  const auto colon = place.find(':');
  const auto found = measured.find(place.substr(0, colon));
  if (colon == std::string::npos || found == measured.end())
    node.fail("\"{}\" is not a name:/pointer into \"measured\"", place);
  const Json* value = find_value(found->second, place.substr(colon + 1));
  if (value == nullptr || !value->is_number()) node.fail("there is no number at \"{}\"", place);
  return value->get<double>();
}

double evaluate(const ConfigNode& node, const Answers& measured);

std::vector<double> evaluate_all(const ConfigNode& list, const Answers& measured) {
  std::vector<double> values;
  for (const ConfigNode& node : list.list()) values.push_back(evaluate(node, measured));
  if (values.empty()) list.fail("an operation needs operands");
  return values;
}

double evaluate(const ConfigNode& node, const Answers& measured) {
  if (node.json().is_number()) return node.number();
  if (node.json().is_string()) return look_up(node, measured);
  return read_object(node, [&](ConfigReader& r) {
    constexpr std::array<std::string_view, 7> operations{"sum",    "product", "difference", "ratio",
                                                         "change", "min",     "max"};
    for (const std::string_view operation : operations) {
      if (!r.optional(operation)) continue;
      const std::vector<double> of = evaluate_all(r.child(operation), measured);
      if (operation == "min") return *std::ranges::min_element(of);
      if (operation == "max") return *std::ranges::max_element(of);
      double value = of.front();
      for (std::size_t i = 1; i < of.size(); ++i) {
        if (operation == "sum") value += of[i];
        if (operation == "product") value *= of[i];
        if (operation == "difference") value -= of[i];
        if (operation == "ratio") value /= of[i];
        if (operation == "change") value = 100 * (value / of[i] - 1);
      }
      return value;
    }
    node.fail("expected one of " + join_names(operations));
  });
}

bool within(const ConfigNode& limits, double value) {
  const std::vector<ConfigNode> ends = limits.list();
  if (ends.size() != 2) limits.fail("expected [low, high]");
  return (ends[0].json().is_null() || value >= ends[0].number()) &&
         (ends[1].json().is_null() || value <= ends[1].number());
}

/// Simulated value of a row: one number, or the largest difference of several from what was
/// published of each. Where that was only "below 0", what is above 0 is the difference.
struct Simulated {
  double value = 0;
  std::vector<double> each;
  bool signs_agree = false;  ///< of several numbers, each with what was published of it
};

Simulated simulate_row(ConfigReader& r, const Answers& measured) {
  if (!r.optional("values")) return {evaluate(r.child("value"), measured), {}, false};
  Simulated of{0, evaluate_all(r.child("values"), measured), true};
  const std::vector<ConfigNode> published = r.child("each").list();
  if (published.size() != of.each.size())
    r.node().fail("\"values\" and \"each\" have different lengths");
  for (std::size_t i = 0; i < published.size(); ++i) {
    const bool only_below = published[i].json().is_null();
    const double gap =
        only_below ? std::max(0.0, of.each[i]) : std::abs(of.each[i] - published[i].number());
    of.value = std::max(of.value, gap);
    of.signs_agree = of.signs_agree && of.each[i] * (only_below ? -1 : published[i].number()) >= 0;
  }
  return of;
}

Verdict judge(ConfigReader& r, const Simulated& simulated) {
  if (!r.optional("band")) return Verdict::not_published;
  const bool in_band = within(r.child("band"), simulated.value);
  const bool right_sign =
      simulated.signs_agree || (r.optional("sign") && within(r.child("sign"), simulated.value));
  return in_band ? Verdict::within_band : right_sign ? Verdict::sign_only : Verdict::not_reproduced;
}

std::optional<std::pair<double, double>> two_ends(ConfigReader& r) {
  if (!r.optional("band")) return std::nullopt;
  const std::vector<ConfigNode> ends = r.child("band").list();
  if (ends[0].json().is_null() || ends[1].json().is_null()) return std::nullopt;
  return std::pair(ends[0].number(), ends[1].number());
}

BandKind band_kind(ConfigReader& r, std::string_view unit) {
  if (r.flag_or("ours", false)) return BandKind::ours;
  if (!r.optional("band")) return BandKind::none;
  const auto ends = two_ends(r);
  if (!ends) return BandKind::one_sided;
  const auto [low, high] = *ends;
  if (low == high) return BandKind::exact;
  const double no_change = unit == "x" ? 1 : 0;
  return low <= no_change && no_change <= high ? BandKind::no_change : BandKind::two_sided;
}

ReproducedRow read_row(const ConfigNode& node, const Answers& measured, const Answers* data_sheet) {
  return read_object(node, [&](ConfigReader& r) {
    ReproducedRow row;
    row.what = r.text("what");
    row.published = r.text("published");
    row.unit = r.text_or("unit", "");
    row.number = r.text_or("number", "");
    row.apart = r.text_or("apart", "");
    const Simulated simulated = simulate_row(r, measured);
    row.simulated = simulated.value;
    row.each = simulated.each;
    row.verdict = judge(r, simulated);
    row.band = band_kind(r, row.unit);
    row.ends = two_ends(r);
    if (data_sheet != nullptr) {
      const Simulated again = simulate_row(r, *data_sheet);
      row.data_sheet = again.value;
      row.data_sheet_verdict = judge(r, again);
    }
    row.recorded = static_cast<Verdict>(r.choice("verdict", verdict_names));
    row.reason = r.text_or("reason", "");
    read_object(r.child_or("causes", Json::object()), [&](ConfigReader& causes) {
      for (const std::string& input : causes.all_keys())
        row.causes.push_back({input, evaluate(causes.child(input), measured)});
    });
    const bool misses =
        row.recorded == Verdict::sign_only || row.recorded == Verdict::not_reproduced;
    if (misses && row.reason.empty()) node.fail("a row that is not within band needs a \"reason\"");
    return row;
  });
}

std::string_view name_of(Verdict verdict) { return verdict_names[at(verdict)]; }

std::string verdict_text(const ReproducedRow& row) {
  std::string text(name_of(row.verdict));
  if (row.verdict == Verdict::within_band) {
    if (const std::string place = place_in_band(row); !place.empty()) text += ", " + place;
  }
  if (row.verdict != row.recorded) text += fmt::format(" (recorded: {})", name_of(row.recorded));
  return text;
}

std::string simulated_text(const ReproducedRow& row) {
  const std::string value = number_text(row.simulated) + row.unit;
  if (row.each.empty()) return value;
  std::vector<std::string> texts;
  for (const double one : row.each) texts.push_back(fmt::format("{:.1f}", one));
  return fmt::format("{}; largest difference {}", fmt::join(texts, " / "), value);
}

/// The reason, then what each input changes: "gating; by cause: charge +4.33, gating -0.51".
std::string why_text(const ReproducedRow& row) {
  std::string text = row.reason;
  std::string_view before = text.empty() ? "by cause: " : "; by cause: ";
  for (const Cause& cause : row.causes) {
    const double change = cause.simulated - row.simulated;
    text +=
        fmt::format("{}{} {}{}", before, cause.input, change < 0 ? "" : "+", number_text(change));
    before = ", ";
  }
  return text;
}

std::string counts_as(const ReproducedRow& row) {
  const std::optional<Standing> outcome = standing_of(row);
  if (!outcome || row.band == BandKind::ours) return {};
  const std::string name(standing_names[at(*outcome)]);
  return row.apart.empty() ? name : fmt::format("{}, apart: {}", name, row.apart);
}

using Paths = std::map<std::filesystem::path, std::filesystem::path>;

std::filesystem::path in_folder_of(const std::filesystem::path& file, const std::string& path) {
  return (file.parent_path() / path).lexically_normal();
}

/// The clusters that are to be replaced, by what.
Paths read_data_sheet(const ConfigNode& node) {
  return read_object(node, [&](ConfigReader& files) {
    Paths paths;
    for (const std::string& name : files.all_keys())
      paths[in_folder_of(node.file(), name)] = files.path(name).lexically_normal();
    return paths;
  });
}

/// Sets the cluster that stands for the one of the base of `sweep`, which stands in `file`, unless
/// `set` has it. Answers whether there is one.
bool replace_cluster(const Json& sweep, const std::filesystem::path& file, Json& set,
                     const Paths& clusters) {
  if (!sweep.contains("base") || !sweep.at("base").is_string()) return false;
  const auto base = in_folder_of(file, sweep.at("base").get<std::string>());
  const Json experiment = ConfigNode::from_file(base).json();
  const Json& cluster = set.contains("/cluster") ? set.at("/cluster") : experiment.at("cluster");
  if (!cluster.is_string()) return false;
  const auto found = clusters.find(in_folder_of(base, cluster.get<std::string>()));
  if (found == clusters.end()) return false;
  set["/cluster"] = std::filesystem::absolute(found->second).string();
  return true;
}

/// Returns what is measured, on other clusters; nothing where none is named.
std::optional<ConfigNode> on_clusters(const ConfigNode& measured, const Paths& clusters) {
  Json json = measured.json();
  const std::filesystem::path& file = measured.file();
  const auto replace_in = [&](Json& sweep) {
    Json set = sweep.value("set", Json::object());
    if (!replace_cluster(sweep, file, set, clusters)) return false;
    sweep["set"] = std::move(set);
    return true;
  };
  bool replaced = false;
  if (json.contains("run")) replaced = replace_in(json["run"]);
  if (json.contains("explain")) replaced = replace_in(json["explain"]["sweep"]);
  if (json.contains("frontier")) {
    Json& frontier = json["frontier"];
    const auto sweep_file = in_folder_of(file, frontier.at("sweep").get<std::string>());
    Json set = frontier.value("set", Json::object());
    replaced = replace_cluster(ConfigNode::from_file(sweep_file).json(), sweep_file, set, clusters);
    frontier["set"] = std::move(set);
  }
  if (!replaced) return std::nullopt;
  return ConfigNode(std::move(json), file);
}

/// Everything that was measured, with what stands on the named clusters computed again.
Answers on_data_sheet(const ConfigNode& measured, Answers answers, const Paths& clusters,
                      TraceLibrary& traces) {
  for (auto& [name, answer] : answers) {
    const auto again = on_clusters(measured.child(name), clusters);
    if (again) answer = measure(*again, traces);
  }
  return answers;
}

// Counts of a paper: its numbers by the worst outcome of their rows, rows that are counted apart,
// claims of moesim's own by verdict.
struct Counts {
  std::map<std::string, Standing> numbers;
  std::array<int, standing_names.size()> apart{};
  std::array<int, verdict_names.size()> ours{};
  int not_published = 0;

  void add(const std::string& paper, const ReproducedRow& row) {
    if (row.band == BandKind::ours) {
      ++ours[at(row.verdict)];
      return;
    }
    const std::optional<Standing> outcome = standing_of(row);
    if (!outcome) {
      ++not_published;
    } else if (!row.apart.empty()) {
      ++apart[at(*outcome)];
    } else {
      // A row without a number is one of its own.
      const std::string number =
          paper + ' ' + (row.number.empty() ? std::to_string(numbers.size()) : row.number);
      Standing& worst = numbers.try_emplace(number, *outcome).first->second;
      worst = std::max(worst, *outcome);
    }
  }

  std::array<int, standing_names.size()> outcomes() const {
    std::array<int, standing_names.size()> counts{};
    for (const auto& [number, outcome] : numbers) ++counts[at(outcome)];
    return counts;
  }
};

std::string data_sheet_text(const ReproducedRow& row) {
  return fmt::format("{}{}, {}", number_text(*row.data_sheet), row.unit,
                     verdict_names[at(row.data_sheet_verdict)]);
}

}  // namespace

Reproduction reproduce(const ConfigNode& file) {
  return read_object(file, [&](ConfigReader& r) {
    Reproduction figure;
    figure.name = file.file().stem().string();
    figure.paper = r.text_or("paper", "");
    figure.title = r.text("title");
    figure.source = r.text("source");
    r.flag_or("quick", false);
    for (const ConfigNode& text : r.child("assumed").list()) figure.assumed.push_back(text.text());
    TraceLibrary traces;
    const Answers measured = read_object(r.child("measured"), [&](ConfigReader& names) {
      Answers answers;
      for (const std::string& name : names.all_keys())
        answers.emplace(name, measure(names.child(name), traces));
      return answers;
    });
    std::optional<Answers> data_sheet;
    if (r.optional("data_sheet")) {
      data_sheet = on_data_sheet(r.child("measured"), measured,
                                 read_data_sheet(r.child("data_sheet")), traces);
    }
    for (const ConfigNode& row : r.child("rows").list())
      figure.rows.push_back(read_row(row, measured, data_sheet ? &*data_sheet : nullptr));
    return figure;
  });
}

std::optional<Standing> standing_of(const ReproducedRow& row) {
  switch (row.verdict) {
    case Verdict::not_published: return std::nullopt;
    case Verdict::not_reproduced: return Standing::contradicted;
    case Verdict::sign_only: return Standing::direction;
    case Verdict::within_band: break;
  }
  if (row.band == BandKind::one_sided) return Standing::direction;
  if (row.band != BandKind::no_change) return Standing::hit;
  const auto [low, high] = *row.ends;
  const double no_change = row.unit == "x" ? 1 : 0;
  const double published = (low + high) / 2 - no_change, simulated = row.simulated - no_change;
  const bool at_its_end = low == no_change || high == no_change;
  if (published == 0) return Standing::hit;  // what was published is no change
  return published * simulated > 0 || (simulated == 0 && at_its_end) ? Standing::direction
                                                                     : Standing::contradicted;
}

std::string place_in_band(const ReproducedRow& row) {
  if (!row.ends || row.ends->first == row.ends->second) return {};
  const double middle = (row.ends->first + row.ends->second) / 2;
  const double half = (row.ends->second - row.ends->first) / 2;
  const bool in_percent = row.unit == " %";
  if (!in_percent && middle == 0) return {};
  const double scale = in_percent ? 1 : 100 / std::abs(middle);
  const int decimals = scale * half < 1 ? 2 : scale * half < 10 ? 1 : 0;
  return fmt::format("{:+.{}f} of +-{:.3g} {}", scale * (row.simulated - middle), decimals,
                     scale * half, in_percent ? "points" : "%");
}

std::string results_csv(const std::vector<Reproduction>& figures) {
  std::string text =
      "figure,what,published,simulated,verdict,band,place_in_band,data_sheet,why,number,counts_"
      "as\n";
  for (const Reproduction& figure : figures) {
    for (const ReproducedRow& row : figure.rows) {
      const bool within = row.verdict == Verdict::within_band;
      const std::string cells[] = {figure.name,
                                   row.what,
                                   row.published,
                                   simulated_text(row),
                                   std::string(name_of(row.verdict)),
                                   std::string(band_kind_names[at(row.band)]),
                                   within ? place_in_band(row) : "",
                                   row.data_sheet ? data_sheet_text(row) : "",
                                   why_text(row),
                                   row.number,
                                   counts_as(row)};
      // Figures begin with signs, and are no formulas.
      for (const std::string& cell : cells)
        text += csv_field(cell) + (&cell == std::end(cells) - 1 ? "\n" : ",");
    }
  }
  return text;
}

std::string counts_markdown(const std::vector<Reproduction>& figures) {
  Counts all;
  std::map<std::string, Counts> by_paper;
  for (const Reproduction& figure : figures) {
    for (const ReproducedRow& row : figure.rows) {
      all.add(figure.paper, row);
      by_paper[figure.paper].add(figure.paper, row);
    }
  }
  const auto sum = [](const auto& counts) { return counts[0] + counts[1] + counts[2]; };
  const auto numbers = all.outcomes();
  std::string text = wrapped(
      fmt::format(
          "Of {} published numbers {} are hit, {} agree in direction and {} are contradicted. A "
          "number counts once, by the worst of its rows. Counted apart are {} rows that judge "
          "numbers again under settings that their source may not have ({} hit, {} direction, {} "
          "contradicted). Of {} claims of moesim's own, {} hold, {} agree in sign only and {} do "
          "not hold. For {} more rows nothing is published.",
          sum(numbers), numbers[0], numbers[1], numbers[2], sum(all.apart), all.apart[0],
          all.apart[1], all.apart[2], sum(all.ours), all.ours[0], all.ours[1], all.ours[2],
          all.not_published),
      100, 0);
  text +=
      "\n\n|paper|hit|direction|contradicted|apart|own claims that hold|that do not|\n"
      "|---|---|---|---|---|---|---|\n";
  for (const auto& [paper, counts] : by_paper) {
    const auto of = counts.outcomes();
    text += fmt::format("|{}|{}|{}|{}|{}|{}|{}|\n", paper, of[0], of[1], of[2], sum(counts.apart),
                        counts.ours[0], counts.ours[1] + counts.ours[2]);
  }
  return text;
}

std::string to_text(const Reproduction& figure) {
  std::string text;
  const auto line = [&](std::size_t indent, const std::string& content) {
    text += std::string(indent, ' ') + wrapped(content, 100 - indent, indent + 2) + "\n";
  };
  line(0, figure.name + ": " + figure.title);
  for (const ReproducedRow& row : figure.rows) {
    line(2, row.what);
    line(4, fmt::format("published {}, simulated {}: {}", row.published, simulated_text(row),
                        verdict_text(row)));
    if (row.data_sheet) line(4, "on a data-sheet roofline " + data_sheet_text(row));
    if (const std::string why = why_text(row); !why.empty()) line(4, why);
  }
  return text;
}

}  // namespace moesim
