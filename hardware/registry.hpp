// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "hardware/config.hpp"

namespace moesim {

/// The table of what can be chosen at one extension point: a row is a name, one line of prose and a
/// constructor. Made explicitly by one function per extension point (`token_routers()`); there are
/// no hidden registrations.
template <class Interface, class... Context>
class Registry {
 public:
  struct Entry {
    std::string_view name;
    std::string_view summary;
    /// Reads the options of this policy; the "type" key has been read. Unread keys are refused
    /// afterwards.
    std::unique_ptr<Interface> (*make)(ConfigReader& options, Context... context);
    /// Those options.
    KeyTable keys = no_keys;
  };

  Registry(std::string_view kind, std::vector<Entry> entries)
      : kind_(kind), entries_(std::move(entries)) {}

  /// One more row, for a program's own policy. Its texts must outlive the registry.
  void add(Entry entry) { entries_.push_back(entry); }

  std::string_view kind() const { return kind_; }
  std::span<const Entry> entries() const { return entries_; }
  std::vector<std::string_view> names() const {
    std::vector<std::string_view> names;
    for (const Entry& entry : entries_) names.push_back(entry.name);
    return names;
  }

  /// What documentation says of them.
  std::vector<PolicyRow> rows() const {
    std::vector<PolicyRow> rows;
    for (const Entry& entry : entries_) rows.push_back({entry.name, entry.summary, entry.keys});
    return rows;
  }

  /// Constructs what `node` names: "metro" or {"type": "metro", ...options}. Throws ConfigError if
  /// there is no such name, an option is unknown, or the constructor refuses.
  std::unique_ptr<Interface> make(const ConfigNode& node, Context... context) const {
    return read_object(node.as_policy(), no_keys,
                       [&](ConfigReader& reader) { return make_from(reader, context...); });
  }

  /// The same from an object that holds other keys beside the policy's, which the caller reads.
  std::unique_ptr<Interface> make_from(ConfigReader& reader, Context... context) const {
    const Entry& entry = entries_[reader.policy(kind_, names())];
    reader.add(entry.keys);
    return entry.make(reader, context...);
  }

 private:
  std::string_view kind_;
  std::vector<Entry> entries_;
};

}  // namespace moesim
