// SPDX-License-Identifier: Apache-2.0
#include "tools/config/keys_markdown.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "sim/experiment/experiment.hpp"
#include "sim/report/cluster_report.hpp"
#include "tools/config/config_keys.hpp"
#include "tools/sweep/sweep.hpp"

namespace moesim {

namespace {

constexpr std::string_view introduction =
    R"(# Keys: unit, default and meaning

`tools/docs/write` writes this page from `moesim keys --markdown`. Do not edit this page.

A key is named by its JSON pointer, as `--set` takes the pointer. `N` is a place in a list. A name in capitals means
any of several names. The word *required* means that a key has no default.

)";

constexpr std::string_view key_heads = "| key | value | default | meaning |\n|---|---|---|---|\n";

// A text that means itself in a cell of a table; as code, only the cell's end has a meaning.
std::string cell(std::string_view text, std::string_view special = R"(|*<>\)") {
  std::string escaped;
  for (const char c : text) {
    if (special.find(c) != std::string_view::npos) escaped += '\\';
    escaped += c;
  }
  return escaped;
}

std::string name_of(const Key& key) {
  if (key.name == "*") return key.registry.empty() ? "NAME" : "POLICY";
  if (key.name == "/*") return "JSON POINTER";
  return std::string(key.name);
}

std::string default_cell(const KeyDefault& value) {
  if (value.kind == KeyDefault::Kind::required) return "*required*";
  return value.kind == KeyDefault::Kind::literal ? fmt::format("`{}`", cell(value.text, "|"))
                                                 : cell(value.text);
}

// The row of one key. The names that may stand for NAME are said with the meaning.
std::string row_of(const Key& key, const std::string& pointer) {
  std::string meaning(key.meaning);
  if (!key.names.empty()) meaning += fmt::format("; NAME: {}", fmt::join(key.names, " | "));
  if (!key.registry.empty()) meaning += fmt::format("; POLICY: of {}", key.registry);
  return fmt::format("| `{}` | {} | {} | {} |\n", pointer, cell(form_text(key.form)),
                     default_cell(key.by_default), cell(meaning));
}

// A row for every key and for the keys below it, of each table once.
std::string rows_of(std::span<const Key> keys, const std::string& above,
                    std::vector<KeyTable>& shown) {
  std::string rows;
  for (const Key& key : keys) {
    const std::string pointer = above + name_of(key);
    rows += row_of(key, pointer);
    for (const Form* form = &key.form; form != nullptr; form = form->or_else) {
      const bool list = form->kind == Form::Kind::list;
      const Form& inner = list ? *form->element : *form;
      if (inner.keys == nullptr || inner.keys == no_keys || inner.partial) continue;
      if (std::ranges::count(shown, inner.keys) > 0) continue;
      shown.push_back(inner.keys);
      rows += rows_of(inner.keys(), pointer + (list ? "/N/" : "/"), shown);
    }
  }
  return rows;
}

// A key with keys below it is a section of its own; the others share the first one.
std::string experiment_sections() {
  std::string plain, sections;
  for (const Key& key : experiment_keys()) {
    std::vector<KeyTable> shown;
    const std::string rows = rows_of({&key, 1}, "/", shown);
    if (shown.empty())
      plain += rows;
    else
      sections += fmt::format("### {}\n\n{}{}\n", key.name, key_heads, rows);
  }
  return fmt::format("## Experiments\n\n{}{}\n{}", key_heads, plain, sections);
}

std::string policy_sections(const PolicyRows& policies) {
  std::string text = "## Policies\n\n";
  for (const auto& [registry, rows] : policies) {
    text += fmt::format("### Policies of {}\n\n| policy | what the policy does |\n|---|---|\n",
                        registry);
    std::string options;
    for (const PolicyRow& row : rows) {
      text += fmt::format("| `{}` | {} |\n", row.name, cell(row.summary));
      std::vector<KeyTable> shown;
      options += rows_of(row.keys(), fmt::format("{}: ", row.name), shown);
    }
    if (!options.empty()) text += fmt::format("\n{}{}", key_heads, options);
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

std::string report_section(std::string_view title, const std::vector<ReportKey>& keys) {
  std::string text =
      fmt::format("## {}\n\n| key | unit | better | meaning |\n|---|---|---|---|\n", title);
  for (const ReportKey& key : keys) {
    text += fmt::format("| `{}` | {} | {} | {} |\n", key.pointer, cell(key.unit),
                        better_text(key.better), cell(key.meaning));
  }
  return text;
}

}  // namespace

std::string keys_markdown(const PolicyRows& policies) {
  std::vector<KeyTable> shown;
  return fmt::format("{}{}{}## Sweeps\n\n{}{}\n{}\n{}", introduction, experiment_sections(),
                     policy_sections(policies), key_heads, rows_of(sweep_keys(), "/", shown),
                     report_section("Reports", report_keys()),
                     report_section("Reports with deployments", cluster_report_keys()));
}

}  // namespace moesim
