// SPDX-License-Identifier: Apache-2.0
#include "tools/config/config_keys.hpp"

#include <algorithm>
#include <cmath>
#include <sstream>

#include <fmt/format.h>

#include "hardware/text.hpp"
#include "sim/experiment/experiment.hpp"
#include "sim/report/cluster_report.hpp"
#include "tools/cli/output.hpp"
#include "tools/config/key_rows.hpp"
#include "tools/config/report_keys.hpp"
#include "tools/sweep/sweep.hpp"

namespace moesim {

namespace {

std::string range_text(Range range) {
  const bool bounded = range.max < 1e9;  // beyond, a bound is there for arithmetic alone
  if (bounded) return fmt::format(" {}..{}", range.min, range.max);
  return std::isfinite(range.min) ? fmt::format(" >= {}", range.min) : "";
}

}  // namespace

std::string form_text(const Form& form) {
  using Kind = Form::Kind;
  std::string text;
  switch (form.kind) {
    case Kind::number: text = "number" + range_text(form.range); break;
    case Kind::integer: text = "integer" + range_text(form.range); break;
    case Kind::flag: text = "true | false"; break;
    case Kind::text: text = "text"; break;
    case Kind::file: text = "file"; break;
    case Kind::bytes: text = "bytes: \"80 GB\""; break;
    case Kind::bytes_per_second: text = "rate: \"3.35 TB/s\""; break;
    case Kind::flops_per_second: text = "rate: \"989 TFLOP/s\""; break;
    case Kind::per_second: text = "rate: \"12 /s\""; break;
    case Kind::watts: text = "power: \"700 W\""; break;
    case Kind::time: text = "time: \"50 ms\""; break;
    case Kind::choice: text = fmt::format("{}", fmt::join(form.names, " | ")); break;
    case Kind::list: text = fmt::format("list of {}", form_text(*form.element)); break;
    case Kind::object: text = form.bare ? "its type | object" : "object"; break;
    case Kind::policy: text = fmt::format("a policy of {}", form.registry); break;
    case Kind::foreign: text = fmt::format("object with {}", fmt::join(form.names, " or ")); break;
    case Kind::any: text = "any JSON"; break;
  }
  return form.or_else == nullptr ? text : text + " | " + form_text(*form.or_else);
}

namespace {

std::string default_text(const KeyDefault& value) {
  switch (value.kind) {
    case KeyDefault::Kind::required: return "required";
    case KeyDefault::Kind::literal: return fmt::format("default {}", value.text);
    case KeyDefault::Kind::words: return fmt::format("else {}", value.text);
  }
  return "";
}

// "name   forms; default: meaning".
std::string line(const std::string& name, const Key& key) {
  std::string meaning(key.meaning);
  if (!key.names.empty()) meaning += fmt::format("; NAME: {}", fmt::join(key.names, " | "));
  if (!key.registry.empty()) meaning += fmt::format("; POLICY: of {}", key.registry);
  return indented(fmt::format("{:<30} {}; {}: {}", name, form_text(key.form),
                              default_text(key.by_default), meaning),
                  33);
}

// Lines of keys and of the keys below them, of each table once.
std::string tree(std::span<const Key> keys, std::size_t depth, std::vector<KeyTable>& shown) {
  std::string text;
  for (const Key& key : keys) {
    text += line(std::string(2 * depth, ' ') + shown_name(key), key);
    for (const Form* form = &key.form; form != nullptr; form = form->or_else) {
      const Form& inner = form->kind == Form::Kind::list ? *form->element : *form;
      // A pool's keys are the experiment's own.
      if (inner.keys == nullptr || inner.partial || std::ranges::count(shown, inner.keys) > 0)
        continue;
      if (inner.keys != no_keys) shown.push_back(inner.keys);
      text += tree(inner.keys(), depth + 1, shown);
    }
  }
  return text;
}

std::string policy_text(const PolicyRow& row) {
  std::vector<KeyTable> shown;
  return indented(fmt::format("  {:<28} {}", row.name, row.summary), 33) +
         tree(row.keys(), 2, shown);
}

std::string policies_text(std::string_view registry, const std::vector<PolicyRow>& rows) {
  std::string text = fmt::format("policies of {}\n", registry);
  for (const PolicyRow& row : rows) text += policy_text(row);
  return text + '\n';
}

// A policy of this name in each table that has one: eplb places, and places again.
std::string policies_named(const PolicyRows& policies, std::string_view name) {
  std::string text;
  for (const auto& [registry, rows] : policies) {
    const auto row = std::ranges::find(rows, name, &PolicyRow::name);
    if (row == rows.end()) continue;
    const std::string options =
        row->keys().empty()
            ? fmt::format("    (no keys of its own; for the keys around it: moesim keys {})\n",
                          registry)
            : "";
    text += fmt::format("a policy of {}\n{}{}\n", registry, policy_text(*row), options);
  }
  return text;
}

// Finds a word in names and texts, whatever its case.
class Search {
 public:
  explicit Search(std::string_view word) : word_(lower(word)) {}

  void keys(std::string_view title, const std::vector<KeyRow>& rows) {
    std::string lines;
    for (const KeyRow& row : rows) {
      if (row.key == nullptr) continue;
      const bool named = std::ranges::any_of(row.key->names, [&](auto name) { return has(name); });
      if (named || has(row.pointer) || has(row.key->meaning)) lines += line(row.pointer, *row.key);
    }
    add(title, lines);
  }
  void policies(const std::string& registry, const std::vector<PolicyRow>& rows) {
    std::string lines;
    for (const PolicyRow& row : rows) {
      if (has(row.name) || has(row.summary))
        lines += indented(fmt::format("{:<30} {}", row.name, row.summary), 33);
    }
    add("policies of " + registry, lines);
    for (const PolicyRow& row : rows)
      keys(fmt::format("options of {}, a policy of {}", row.name, registry),
           rows_of(row.keys(), ""));
  }
  void report(std::string_view title, const std::vector<ReportKey>& keys) {
    std::string lines;
    for (const ReportKey& key : folded(keys)) {
      if (has(key.pointer) || has(key.meaning)) lines += report_line(key);
    }
    add(title, lines);
  }
  std::string found() && { return std::move(text_); }

 private:
  bool has(std::string_view text) const { return lower(text).find(word_) != std::string::npos; }
  void add(std::string_view title, const std::string& lines) {
    if (!lines.empty()) text_ += fmt::format("{}{}\n{}", text_.empty() ? "" : "\n", title, lines);
  }

  std::string word_, text_;
};

// A pointer into a config as rows of keys write it: a list's element is N, a pool's keys are the
// experiment's own.
std::string as_row(std::string_view pointer) {
  for (const std::string_view pool : {"/pools/prefill/", "/pools/decode/"})
    if (pointer.starts_with(pool)) pointer.remove_prefix(pool.size() - 1);
  std::string row;
  std::istringstream parts{std::string(pointer.substr(1))};
  for (std::string part; std::getline(parts, part, '/');) {
    const bool number = !part.empty() && part.find_first_not_of("0123456789") == part.npos;
    row += "/" + (number ? "N" : part);
  }
  return row;
}

// The keys at a pointer and below it, where the pointer leads into options of policies as well.
std::string keys_at(const PolicyRows& policies, const std::string& pointer) {
  const auto lines_at = [](const std::vector<KeyRow>& rows, const std::string& place) {
    std::string lines;
    for (const KeyRow& row : rows) {
      if (row.key == nullptr) continue;
      if (row.pointer == place || row.pointer.starts_with(place + "/"))
        lines += line(row.pointer, *row.key);
    }
    return lines;
  };
  const std::vector<KeyRow> experiment = experiment_rows();
  if (std::string own = lines_at(experiment, pointer); !own.empty())
    return "keys of an experiment\n" + own;
  std::string text;
  for (const KeyRow& row : experiment) {
    if (row.key == nullptr || !pointer.starts_with(row.pointer + "/")) continue;
    for (const Form* form = &row.key->form; form != nullptr; form = form->or_else) {
      if (form->kind != Form::Kind::policy) continue;
      for (const PolicyRow& policy : policies.at(form->registry)) {
        const std::string lines =
            lines_at(rows_of(policy.keys(), ""), pointer.substr(row.pointer.size() + 1));
        if (lines.empty()) continue;
        text += fmt::format("{}options of {}, a policy of {}\n{}", text.empty() ? "" : "\n",
                            policy.name, form->registry, lines);
      }
    }
  }
  return text;
}

std::string search(const PolicyRows& policies, std::string_view word) {
  if (word.starts_with('/')) {
    if (std::string found = keys_at(policies, as_row(word)); !found.empty()) return found;
  }
  Search search(word);
  search.keys("keys of an experiment", experiment_rows());
  for (const auto& [registry, rows] : policies) search.policies(std::string(registry), rows);
  search.keys("keys of a sweep", rows_of(sweep_keys(), "/"));
  search.report("keys of a report", report_keys());
  search.report("keys of a report with deployments", cluster_report_keys());
  return std::move(search).found();
}

[[noreturn]] void fail_unknown(const PolicyRows& policies, std::vector<std::string_view> names,
                               std::string_view wanted) {
  for (const auto& [registry, rows] : policies) {
    for (const PolicyRow& row : rows) names.push_back(row.name);
  }
  const std::string_view nearest = nearest_name(wanted, names);
  throw ConfigError("keys: \"{}\" is in no name and no text of a key or policy; {}", wanted,
                    nearest.empty() ? "moesim keys --all prints all"
                                    : fmt::format("did you mean \"{}\"?", nearest));
}

}  // namespace

std::string basic_keys_text() {
  std::string text, usual;
  for (const KeyRow& row : experiment_rows()) {
    if (row.level == KeyLevel::basic) text += line(row.pointer, *row.key);
    if (row.level == KeyLevel::usual) usual += fmt::format(" {}", row.pointer);
  }
  return text + '\n' + wrapped("usual keys:" + usual, 100, 2) +
         "\n\nmoesim keys WORD: the keys of an object, or those whose name or text has the word; "
         "--all: every key\n";
}

std::string keys_text(const PolicyRows& policies, std::string_view wanted) {
  std::string text, trees;
  std::vector<std::string_view> names;
  for (const Key& key : experiment_keys()) {
    names.push_back(key.name);
    std::vector<KeyTable> shown;
    if (wanted.empty() || wanted == key.name) trees += tree({&key, 1}, 0, shown);
  }
  if (!trees.empty()) text += trees + '\n';
  for (const auto& [registry, rows] : policies) {
    names.push_back(registry);
    if (wanted.empty() || wanted == registry) text += policies_text(registry, rows);
  }
  names.push_back("sweep");
  if (wanted.empty() || wanted == "sweep") {
    std::vector<KeyTable> shown;
    text += "a sweep's file\n" + tree(sweep_keys(), 1, shown) + '\n';
  }
  if (text.empty()) text = policies_named(policies, wanted);
  if (text.empty()) text = search(policies, wanted) + '\n';
  if (text == "\n") fail_unknown(policies, std::move(names), wanted);
  text.pop_back();
  return text;
}

}  // namespace moesim
