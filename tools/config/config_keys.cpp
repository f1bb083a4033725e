// SPDX-License-Identifier: Apache-2.0
#include "tools/config/config_keys.hpp"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "sim/experiment/experiment.hpp"
#include "tools/cli/output.hpp"
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

// "name   what may stand there; default: meaning", and the keys below it, of each table once.
std::string tree(std::span<const Key> keys, std::size_t depth, std::vector<KeyTable>& shown) {
  std::string text;
  for (const Key& key : keys) {
    std::string name(key.name);
    if (name == "*") name = key.registry.empty() ? "NAME" : "POLICY";
    if (name == "/*") name = "/JSON/POINTER";
    std::string meaning(key.meaning);
    if (!key.names.empty()) meaning += fmt::format("; NAME: {}", fmt::join(key.names, " | "));
    if (!key.registry.empty()) meaning += fmt::format("; POLICY: of {}", key.registry);
    text += wrapped(fmt::format("{:{}}{:<{}} {}; {}: {}", "", 2 * depth, name, 30 - 2 * depth,
                                form_text(key.form), default_text(key.by_default), meaning),
                    100, 33) +
            '\n';
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
  return wrapped(fmt::format("  {:<28} {}", row.name, row.summary), 100, 33) + '\n' +
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

[[noreturn]] void fail_unknown(const PolicyRows& policies, std::vector<std::string_view> names,
                               std::string_view wanted) {
  std::vector<std::string_view> all = names;
  for (const auto& [registry, rows] : policies) {
    for (const PolicyRow& row : rows) all.push_back(row.name);
  }
  const std::string_view nearest = nearest_name(wanted, all);
  const std::string hint = nearest.empty() ? "" : fmt::format("did you mean \"{}\"? ", nearest);
  throw ConfigError(
      fmt::format("keys: there is no key, no extension point and no policy \"{}\"; {}a policy of "
                  "moesim list, or one of: {}",
                  wanted, hint, join_names(names)));
}

}  // namespace

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
  if (text.empty()) fail_unknown(policies, std::move(names), wanted);
  text.pop_back();
  return text;
}

}  // namespace moesim
