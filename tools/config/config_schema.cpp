// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "hardware/parse_json.hpp"
#include "sim/experiment/shared_cluster.hpp"
#include "tools/config/config_keys.hpp"
#include "tools/sweep/sweep.hpp"

namespace moesim {

namespace {

bool is_required(const Key& key) { return key.by_default.kind == KeyDefault::Kind::required; }

OrderedJson number_schema(std::string_view type, Range range) {
  OrderedJson schema{{"type", type}};
  if (std::isfinite(range.min)) schema["minimum"] = range.min;
  if (std::isfinite(range.max)) schema["maximum"] = range.max;
  return schema;
}

// A number, a prefix and a unit.
OrderedJson quantity_schema(std::string_view units) {
  return {{"type", "string"}, {"pattern", fmt::format("^[0-9][0-9.eE+-]* *({})$", units)}};
}

class Schema {
 public:
  explicit Schema(const PolicyRows& policies) : policies_(policies) {}

  OrderedJson root(std::string_view title, std::span<const Key> keys) const {
    OrderedJson schema{{"$schema", "https://json-schema.org/draft/2020-12/schema"},
                       {"title", title}};
    schema.update(object(keys, false));
    return schema;
  }

  /// Every table of policies under its name.
  OrderedJson definitions() const {
    OrderedJson all;
    for (const auto& [registry, rows] : policies_) all[registry] = policy(rows, no_keys);
    return all;
  }

 private:
  OrderedJson object(std::span<const Key> keys, bool partial) const {
    OrderedJson schema = empty_object();
    add(schema, keys, partial);
    return schema;
  }

  static OrderedJson empty_object() {
    return {{"type", "object"},
            {"properties", OrderedJson::object()},
            {"required", OrderedJson::array()},
            {"additionalProperties", false}};
  }

  void add(OrderedJson& schema, std::span<const Key> keys, bool partial) const {
    for (const Key& key : keys) {
      if (key.name == "/*") {
        schema["patternProperties"]["^/"] = property(key);
        continue;
      }
      if (key.name != "*") schema["properties"][key.name] = property(key);
      for (const std::string_view name : key.names) schema["properties"][name] = property(key);
      if (!key.registry.empty()) {
        for (const PolicyRow& row : policies_.at(key.registry))
          schema["properties"][row.name] = property(key);
      }
      if (is_required(key) && !partial) schema["required"].push_back(key.name);
    }
  }

  OrderedJson property(const Key& key) const {
    OrderedJson schema = of(key.form);
    schema["description"] = key.meaning;
    if (key.by_default.kind == KeyDefault::Kind::words)
      schema["description"] = fmt::format("{} (left out: {})", key.meaning, key.by_default.text);
    if (key.by_default.kind == KeyDefault::Kind::literal)
      schema["default"] = OrderedJson(json_or_text(key.by_default.text));
    return schema;
  }

  OrderedJson of(const Form& form) const {
    if (form.or_else == nullptr) return one(form);
    OrderedJson either = OrderedJson::array();
    for (const Form* f = &form; f != nullptr; f = f->or_else) either.push_back(one(*f));
    return {{"anyOf", either}};
  }

  OrderedJson one(const Form& form) const {
    using Kind = Form::Kind;
    switch (form.kind) {
      case Kind::number: return number_schema("number", form.range);
      case Kind::integer: return number_schema("integer", form.range);
      case Kind::flag: return {{"type", "boolean"}};
      case Kind::text:
      case Kind::file: return {{"type", "string"}};
      case Kind::bytes: return quantity_schema("([kMGTPE]|[KMGT]i)?B");
      case Kind::bytes_per_second: return quantity_schema("([kMGTPE]|[KMGT]i)?[Bb]/s");
      case Kind::flops_per_second: return quantity_schema("([kMGTPE]|[KMGT]i)?FLOP/s");
      case Kind::per_second: return quantity_schema("([kMGTPE]|[KMGT]i)?/s");
      case Kind::watts: return quantity_schema("([kMGTPE]|[KMGT]i)?W");
      case Kind::time: return quantity_schema("ns|us|ms|s|min|h");
      case Kind::choice: return {{"enum", form.names}};
      case Kind::list: return {{"type", "array"}, {"items", of(*form.element)}};
      case Kind::object: return form.bare ? typed(form) : object(form.keys(), form.partial);
      case Kind::policy:
        if (form.keys == no_keys) return {{"$ref", fmt::format("#/$defs/{}", form.registry)}};
        return policy(policies_.at(form.registry), form.keys);
      case Kind::foreign: return marked(form.names);
      case Kind::any: return OrderedJson::object();
    }
    return {};
  }

  /// An object or the bare text of its "type".
  OrderedJson typed(const Form& form) const {
    OrderedJson schema = object(form.keys(), form.partial);
    return {{"anyOf", {schema["properties"]["type"], schema}}};
  }

  /// A row that needs no options by its bare name, or any with "type" and its options.
  OrderedJson policy(std::span<const PolicyRow> rows, KeyTable beside) const {
    OrderedJson names = OrderedJson::array(), either = OrderedJson::array();
    for (const PolicyRow& row : rows) {
      if (std::ranges::none_of(row.keys(), is_required)) names.push_back(row.name);
      OrderedJson schema = empty_object();
      schema["properties"]["type"] = {{"const", row.name}};
      schema["required"].push_back("type");
      schema["description"] = row.summary;
      add(schema, row.keys(), false);
      add(schema, beside(), false);
      either.push_back(std::move(schema));
    }
    either.insert(either.begin(), OrderedJson{{"enum", names}});
    return {{"anyOf", either}};
  }

  /// A format of another program, known by one of its keys.
  static OrderedJson marked(std::span<const std::string_view> names) {
    OrderedJson either = OrderedJson::array();
    for (const std::string_view name : names)
      either.push_back({{"required", OrderedJson::array({name})}});
    return {{"type", "object"}, {"anyOf", either}};
  }

  const PolicyRows& policies_;
};

}  // namespace

OrderedJson experiment_schema(const PolicyRows& policies) {
  const Schema schema(policies);
  OrderedJson root = schema.root("moesim experiment", experiment_keys());
  // Keys that an EP group needs may be in "pools", or come from an engine's preset. Keys other than
  // the cluster's may be in "deployments".
  const auto is_in = [](std::span<const Key> keys, std::string_view name) {
    return std::ranges::find(keys, name, &Key::name) != keys.end();
  };
  OrderedJson always = OrderedJson::array(), one = OrderedJson::array(), group = one;
  for (const Key& key : experiment_keys()) {
    if (!is_required(key)) continue;
    (is_in(group_keys(), key.name)        ? group
     : is_in(deployment_keys(), key.name) ? one
                                          : always)
        .push_back(key.name);
  }
  const auto with = [&](OrderedJson names) {
    names.insert(names.end(), one.begin(), one.end());
    return OrderedJson{{"required", std::move(names)}};
  };
  root["required"] = always;
  root["anyOf"] = {with(group),
                   with(OrderedJson::array({"pools"})),
                   with(OrderedJson::array({"engine"})),
                   {{"required", OrderedJson::array({"deployments"})}}};
  root["$defs"] = schema.definitions();
  return root;
}

OrderedJson sweep_schema(const PolicyRows& policies) {
  return Schema(policies).root("moesim sweep", sweep_keys());
}

}  // namespace moesim
