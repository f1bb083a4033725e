// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <span>
#include <string_view>
#include <utility>

#include "hardware/registry.hpp"

namespace moesim {

/// A policy that a config chose, for when what it is made with is known.
template <class Product, class... Context>
class PolicyChoice {
 public:
  using Table = Registry<Product, Context...>;

  /// Policy that `node` names: "metro" or {"type": "metro", ...options}. Its object may hold keys
  /// of the table `beside`, which the caller reads. The table's texts outlive this. Throws
  /// ConfigError if there is no such name.
  PolicyChoice(const Table& table, const ConfigNode& node, KeyTable beside = no_keys)
      : kind_(table.kind()),
        node_(node.as_policy()),
        entry_(chosen(table, ConfigReader(node_, beside))),
        beside_(beside) {}

  std::string_view name() const { return entry_.name; }
  /// Node of the choice, for errors about it.
  const ConfigNode& node() const { return node_; }

  /// Reads its options, which become part of the resolved config, defaults included. Throws
  /// ConfigError if one is unknown, or the constructor refuses.
  MadeOf<Product> make(Context... context) const {
    return read_object(node_, beside_, [&](ConfigReader& reader) {
      reader.policy(kind_, std::span(&entry_.name, 1));
      reader.add(entry_.keys);
      for (const Key& key : beside_()) reader.optional(key.name);
      return entry_.make(reader, context...);
    });
  }

 private:
  static typename Table::Entry chosen(const Table& table, ConfigReader reader) {
    return table.chosen(reader);
  }

  std::string_view kind_;
  ConfigNode node_;
  typename Table::Entry entry_;
  KeyTable beside_;
};

}  // namespace moesim
