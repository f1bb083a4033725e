// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "hardware/config.hpp"

namespace moesim {

/// Makes policies whose options have been read and checked: as many as are asked for, none of which
/// shares anything with another. Safe from several threads.
template <class Interface, class... Context>
using Factory = std::function<std::unique_ptr<Interface>(Context...)>;

/// A factory of copies of a policy that has not decided anything yet.
template <class Policy>
auto copies_of(Policy policy) {
  return [policy = std::move(policy)] { return std::make_unique<Policy>(policy); };
}

/// Product that a row of a table constructs: one object of that interface, or the factory.
template <class Product>
struct Made {
  using type = std::unique_ptr<Product>;
};
template <class Signature>
struct Made<std::function<Signature>> {
  using type = std::function<Signature>;
};
template <class Product>
using MadeOf = typename Made<Product>::type;

/// The table of what can be chosen at one extension point: a row is a name, one line of prose and a
/// constructor. Made explicitly by one function per extension point (`token_routers()`); there are
/// no hidden registrations. `Product` is an interface; or the Factory of one, where a run makes its
/// own of it.
template <class Product, class... Context>
class Registry {
 public:
  /// The constructor of a row. Reads the options of the policy; the "type" key has been read.
  /// Unread keys are refused afterwards.
  using Maker = MadeOf<Product>(ConfigReader& options, Context... context);
  struct Entry {
    std::string_view name;
    std::string_view summary;
    Maker* make;
    /// The keys of these options.
    KeyTable keys = no_keys;
  };

  Registry(std::string_view kind, std::vector<Entry> entries)
      : kind_(kind), entries_(std::move(entries)) {}

  /// Row of a policy that "type" names as file and class, "my.py:Mine". Set by the one program that
  /// can run such classes, before anything is read; its texts outlive the tables.
  static inline std::function<Entry(const ConfigNode& type)> of_class{};

  /// Adds a row, for a program's own policy. Its texts must outlive the registry.
  void add(Entry entry) { entries_.push_back(entry); }

  std::string_view kind() const { return kind_; }
  std::span<const Entry> entries() const { return entries_; }
  std::vector<std::string_view> names() const {
    std::vector<std::string_view> names;
    for (const Entry& entry : entries_) names.push_back(entry.name);
    return names;
  }

  /// Rows of documentation of each policy.
  std::vector<PolicyRow> rows() const {
    std::vector<PolicyRow> rows;
    for (const Entry& entry : entries_) rows.push_back({entry.name, entry.summary, entry.keys});
    return rows;
  }

  /// Constructs what `node` names: "metro" or {"type": "metro", ...options}. Throws ConfigError if
  /// there is no such name, an option is unknown, or the constructor refuses.
  MadeOf<Product> make(const ConfigNode& node, Context... context) const {
    return read_object(node.as_policy(), no_keys,
                       [&](ConfigReader& reader) { return make_from(reader, context...); });
  }

  /// make() from an object with other keys beside the policy's, which the caller reads.
  MadeOf<Product> make_from(ConfigReader& reader, Context... context) const {
    const Entry entry = chosen(reader);
    reader.add(entry.keys);
    return entry.make(reader, context...);
  }

  /// The row that the object's "type" names. Throws ConfigError if there is none.
  Entry chosen(ConfigReader& reader) const {
    if (!reader.names_class()) return entries_[reader.policy(kind_, names())];
    const ConfigNode type = reader.child("type");
    if (of_class) return of_class(type);
    type.fail(
        "names a class in Python, which this program cannot run; run the command as "
        "`python3 -m moesim`");
  }

 private:
  std::string_view kind_;
  std::vector<Entry> entries_;
};

}  // namespace moesim
