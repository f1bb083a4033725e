// SPDX-License-Identifier: Apache-2.0
#include "tools/config/keys_markdown.hpp"

#include <algorithm>
#include <optional>
#include <regex>
#include <utility>

#include <fmt/format.h>

#include "sim/report/cluster_report.hpp"
#include "tools/config/config_keys.hpp"
#include "tools/config/key_rows.hpp"
#include "tools/sweep/sweep.hpp"

namespace moesim {

namespace {

constexpr std::string_view introduction =
    R"(# Keys: unit, default and meaning

`tools/docs/write` writes this page from `moesim keys --markdown`. Do not edit this page. `moesim keys WORD` searches names and
meanings, also those of [reports](report_keys.md).

A key is named by its JSON pointer, as `--set` takes the pointer. `N` is a place in a list. A name in capitals means
any of several names. The word *required* means that a key has no default. "integer 1.." has no upper bound. Quantities have a
unit: time "50 ms", bytes "80 GB", power "700 W", rates "3.35 TB/s", "989 TFLOP/s", "12 /s". A precision is bf16, fp8, fp8_block,
mxfp4, nvfp4, int4, int4_g32, int4_g64 or int8. `moesim list` says what each policy does.

)";

constexpr std::string_view report_introduction =
    R"(# Keys of a report

`tools/docs/write` writes this page from `moesim keys report --markdown`. Do not edit this page. `N` is a place in a list. A name
in capitals means any of several names. Groups with the rows of another group are one row, and so are statistics of a quantity.

)";

constexpr std::string_view key_heads = "|key|value|default|meaning|\n|---|---|---|---|\n";

// Escapes a text for a cell of a table. In code only the cell's end has a meaning.
std::string cell(std::string_view text, std::string_view special = R"(|*<>\)") {
  std::string escaped;
  for (const char c : text) {
    if (special.find(c) != std::string_view::npos) escaped += '\\';
    escaped += c;
  }
  return escaped;
}

std::string default_cell(const KeyDefault& value) {
  if (value.kind == KeyDefault::Kind::required) return "*required*";
  return value.kind == KeyDefault::Kind::literal ? fmt::format("`{}`", cell(value.text, "|"))
                                                 : cell(value.text);
}

// Forms as the introduction shortens them. Choices are separated by commas, as bars are the
// table's.
constexpr std::pair<std::string_view, std::string_view> shortened[] = {
    {" | ", ", "},
    {"bf16, fp8, fp8_block, mxfp4, nvfp4, int4, int4_g32, int8, int4_g64", "a precision"},
    {": \"50 ms\"", ""},
    {": \"80 GB\"", ""},
    {": \"700 W\"", ""},
    {": \"3.35 TB/s\"", ""},
    {": \"989 TFLOP/s\"", ""},
    {": \"12 /s\"", ""},
};

std::string short_text(std::string text) {
  for (const auto& [full, less] : shortened) {
    for (std::size_t at; (at = text.find(full)) != std::string::npos;)
      text.replace(at, full.size(), less);
  }
  return text;
}

// "integer 1.., object".
std::string value_cell(const Form& form) {
  static const std::regex at_least(" >= ([^ ,]+)");
  return cell(std::regex_replace(short_text(form_text(form)), at_least, " $1.."));
}

// Cells of one key: value, default, meaning. The meaning ends with names that NAME stands for.
std::string cells_of(const Key& key) {
  std::string meaning(key.meaning);
  if (!key.names.empty())
    meaning += short_text(fmt::format("; NAME: {}", fmt::join(key.names, ", ")));
  if (!key.registry.empty()) meaning += fmt::format("; POLICY: of {}", key.registry);
  return fmt::format("{}|{}|{}|\n", value_cell(key.form), default_cell(key.by_default),
                     cell(meaning));
}

std::string line_of(const KeyRow& row) {
  if (row.key == nullptr) return fmt::format("|`{}`|||as `{}/...`|\n", row.pointer, row.as);
  return fmt::format("|`{}`|{}", row.pointer, cells_of(*row.key));
}

std::string level_section(std::string_view title, KeyLevel level, const std::vector<KeyRow>& rows) {
  std::string text = fmt::format("## {}\n\n{}", title, key_heads);
  for (const KeyRow& row : rows)
    if (row.level == level) text += line_of(row);
  return text + '\n';
}

// Expert keys; those below one key with several are a section.
std::string expert_sections(const std::vector<KeyRow>& rows) {
  std::vector<std::pair<std::string, std::string>> groups;
  for (const KeyRow& row : rows) {
    if (row.level != KeyLevel::expert) continue;
    const std::string group = row.pointer.substr(1, row.pointer.find('/', 1) - 1);
    if (groups.empty() || groups.back().first != group) groups.emplace_back(group, "");
    groups.back().second += line_of(row);
  }
  std::string few, sections;
  for (const auto& [group, lines] : groups) {
    constexpr int a_section = 3;
    if (std::ranges::count(lines, '\n') < a_section)
      few += lines;
    else
      sections += fmt::format("### {}\n\n{}{}\n", group, key_heads, lines);
  }
  return fmt::format("## Expert\n\n{}{}\n{}", key_heads, few, sections);
}

// Options that several policies share are one row. A row of the same policies as the row above
// names none.
std::string policy_options(const std::vector<PolicyRow>& policies) {
  std::vector<std::pair<std::string, std::vector<std::string>>> options;
  for (const PolicyRow& policy : policies) {
    for (const KeyRow& row : rows_of(policy.keys(), "")) {
      const std::string cells = fmt::format(
          "`{}`|{}", row.pointer,
          row.key == nullptr ? fmt::format("||as `{}/...`|\n", row.as) : cells_of(*row.key));
      auto same = std::ranges::find(options, cells, &decltype(options)::value_type::first);
      if (same == options.end()) same = options.insert(same, {cells, {}});
      same->second.emplace_back(policy.name);
    }
  }
  std::string text, above;
  for (const auto& [cells, names] : options) {
    const bool all = names.size() == policies.size() && names.size() > 1;
    const std::string whose = all ? "all" : fmt::format("{}", fmt::join(names, ", "));
    text += fmt::format("|{}|{}", whose == above ? "" : whose, cells);
    above = whose;
  }
  return text;
}

std::string policy_sections(const PolicyRows& policies) {
  std::string text = "## Policies\n\n";
  for (const auto& [registry, rows] : policies) {
    text += fmt::format("### Policies of {}\n", registry);
    for (const PolicyRow& row : rows)
      text += fmt::format("{}`{}`", &row == &rows.front() ? "\n" : ", ", row.name);
    text += '\n';
    if (const std::string options = policy_options(rows); !options.empty())
      text +=
          fmt::format("\n|policy|key|value|default|meaning|\n|---|---|---|---|---|\n{}", options);
    text += '\n';
  }
  return text;
}

std::string_view better_text(Better better) {
  switch (better) {
    case Better::more: return "higher";
    case Better::less: return "lower";
    case Better::neither: return "";
  }
  return "";
}

// A key whose last name begins with a statistic: "/a/p90_ms" is "/a/", "p90" and "_ms".
struct Statistic {
  std::string above, name, rest;
};

std::optional<Statistic> statistic_of(const std::string& pointer) {
  static const std::regex form("(.*/)(mean|median|std|p50|p90|p95|p99|max)(_.*)?");
  std::smatch found;
  if (!std::regex_match(pointer, found, form)) return std::nullopt;
  return Statistic{found[1], found[2], found[3]};
}

// Statistics of one quantity as one key, "/a/{mean,p90}_ms", with the meaning of the mean.
std::vector<ReportKey> statistics_folded(const std::vector<ReportKey>& keys) {
  std::vector<ReportKey> rows;
  for (auto key = keys.begin(); key != keys.end();) {
    rows.push_back(*key);
    const auto first = statistic_of(key->pointer);
    std::string names = first ? first->name : "";
    int count = 0;
    for (; key != keys.end(); ++key, ++count) {
      const auto next = statistic_of(key->pointer);
      if (!first || !next || next->above != first->above || next->rest != first->rest) break;
      if (count > 0) names += ',' + next->name;
    }
    if (count == 0) ++key;
    if (count < 2) continue;
    ReportKey& row = rows.back();
    row.pointer = fmt::format("{}{{{}}}{}", first->above, names, first->rest);
    row.meaning = std::regex_replace(row.meaning, std::regex("^mean( of)? ?"), "");
  }
  return rows;
}

std::string report_section(const std::vector<ReportKey>& keys) {
  std::string text = "|key|unit|better|meaning|\n|---|---|---|---|\n";
  for (const ReportKey& key : statistics_folded(folded(keys)))
    text += fmt::format("|`{}`|{}|{}|{}|\n", key.pointer, cell(key.unit), better_text(key.better),
                        cell(key.meaning));
  return text;
}

}  // namespace

std::string keys_markdown(const PolicyRows& policies) {
  const std::vector<KeyRow> rows = experiment_rows();
  std::string text(introduction);
  text += level_section("Basic", KeyLevel::basic, rows);
  text += level_section("Usual", KeyLevel::usual, rows);
  text += expert_sections(rows) + policy_sections(policies);
  text += fmt::format("## Sweeps\n\n{}", key_heads);
  for (const KeyRow& row : rows_of(sweep_keys(), "/")) text += line_of(row);
  return text;
}

std::string report_keys_markdown() {
  return fmt::format("{}{}\n## Reports with deployments\n\n{}", report_introduction,
                     report_section(report_keys()), report_section(cluster_report_keys()));
}

}  // namespace moesim
