// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <initializer_list>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include "hardware/keys.hpp"
#include "hardware/units.hpp"

namespace moesim {

/// Keys sorted, so that equal configs print equal bytes.
using Json = nlohmann::json;
/// Keys in the order they were written: for what people read.
using OrderedJson = nlohmann::ordered_json;

/// The user's input is wrong. what() is one line: where, what is wrong, what would be right.
class ConfigError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
  /// A message with values in its places, as fmt::format() writes them.
  template <class First, class... Rest>
  ConfigError(fmt::format_string<First, Rest...> message, First&& first, Rest&&... rest)
      : ConfigError(fmt::format(message, std::forward<First>(first), std::forward<Rest>(rest)...)) {
  }
};

/// The candidate closest to `name` by edits, or an empty view when none is close enough to be a
/// typo.
std::string_view nearest_name(std::string_view name, std::span<const std::string_view> candidates);

/// "a, b, c"
std::string join_names(std::span<const std::string_view> names);

/// Parses a number with its unit: "3.35 TB/s", "989.5 TFLOP/s", "16 us", "12 /s", "40 GiB", "400
/// Gb/s" (bits). SI prefixes are powers of ten, Ki Mi Gi Ti powers of two. Throws ConfigError
/// (without a place) on anything else.
template <class Q>
Q parse_quantity(std::string_view text);
template <>
Bytes parse_quantity<Bytes>(std::string_view);
template <>
BytesPerSecond parse_quantity<BytesPerSecond>(std::string_view);
template <>
FlopsPerSecond parse_quantity<FlopsPerSecond>(std::string_view);
template <>
PerSecond parse_quantity<PerSecond>(std::string_view);
template <>
Seconds parse_quantity<Seconds>(std::string_view);

/// A JSON value and where it stands: the file that holds it and the pointer to it.
class ConfigNode {
 public:
  ConfigNode(Json value, std::filesystem::path file, std::string pointer = "");

  /// Reads and parses a file, or a text that begins with "{": an object as it stands, in which
  /// paths are relative to the working directory. Throws ConfigError if it is missing, not a
  /// regular file or not JSON.
  static ConfigNode from_file(const std::filesystem::path& file);

  const Json& json() const { return value_; }
  const std::filesystem::path& file() const { return file_; }
  const std::string& pointer() const { return pointer_; }

  /// Everything read from this tree so far, defaults included: the resolved config.
  const Json& resolved() const { return *resolved_; }

  /// Throws ConfigError "file:/pointer: message".
  [[noreturn]] void fail(std::string_view message) const;
  template <class First, class... Rest>
  [[noreturn]] void fail(fmt::format_string<First, Rest...> message, First&& first,
                         Rest&&... rest) const {
    fail(fmt::format(message, std::forward<First>(first), std::forward<Rest>(rest)...));
  }
  /// A path written in this file: relative to the file's folder.
  std::filesystem::path relative(std::string_view path) const;

  ConfigNode child(std::string_view key) const;  // a member of an object that has it
  ConfigNode element(std::size_t index) const;   // an element of an array that has it

  std::string text() const;
  double number(Range range = {}) const;
  std::int64_t integer(Range range = {}) const;
  bool flag() const;
  std::vector<ConfigNode> list() const;
  /// Which of the names that its table gives. Anything else is an error that lists them.
  std::size_t choice() const;
  /// A policy may be written as a bare string: "metro" reads as {"type": "metro"}.
  ConfigNode as_policy() const;
  template <class Q>
  Q quantity() const;

 private:
  friend class ConfigReader;
  void resolve(Json value) const;
  ConfigNode at(Json value, std::string pointer, const Form* form = nullptr) const;
  template <class Predicate>
  bool is_form(Predicate such) const;
  const Form* read_as(std::initializer_list<Form::Kind>) const;
  double number_as(Form::Kind, Range) const;
  std::size_t index_in(std::span<const std::string_view> names) const;

  Json value_;
  std::filesystem::path file_;
  std::string pointer_;
  const Form* form_ = nullptr;  // what the key's table says of it, if it was read through one
  std::shared_ptr<Json> resolved_;
};

/// Reads one JSON object key by key and knows which keys were never read. With a table every key
/// that is asked for must have a row. Its value is held to the row's form, and the row's literal
/// default replaces a missing value; asking for anything else is a bug (std::logic_error). Without
/// one (formats that are not an experiment's) the caller says both. Getters throw ConfigError if
/// the key is missing, of another type or out of range.
class ConfigReader {
 public:
  explicit ConfigReader(ConfigNode node, KeyTable keys = nullptr);

  const ConfigNode& node() const { return node_; }
  bool has(std::string_view key) const;
  /// True if an optional key is there; it counts as known either way.
  bool optional(std::string_view key);
  /// The value under a key, marked as read, for the caller to take apart.
  ConfigNode child(std::string_view key);
  /// child(key), or `fallback` as if it stood there; the key's row gives the default in words.
  ConfigNode child_or(std::string_view key, Json fallback);

  std::string text(std::string_view key) { return child(key).text(); }
  double number(std::string_view key, Range range = {}) { return child(key).number(range); }
  std::int64_t integer(std::string_view key, Range range = {}) { return child(key).integer(range); }
  bool flag(std::string_view key) { return child(key).flag(); }
  std::filesystem::path path(std::string_view key) { return node_.relative(text(key)); }
  template <class Q>
  Q quantity(std::string_view key) {
    return child(key).template quantity<Q>();
  }
  /// Index of the name among those that the key's row gives.
  std::size_t choice(std::string_view key) { return child(key).choice(); }
  /// Index of the name among `names`, where there is no table.
  std::size_t choice(std::string_view key, std::span<const std::string_view> names);

  std::string text_or(std::string_view key, std::string_view fallback);
  double number_or(std::string_view key, double fallback, Range range = {});
  std::int64_t integer_or(std::string_view key, std::int64_t fallback, Range range = {});
  bool flag_or(std::string_view key, bool fallback);
  std::size_t choice_or(std::string_view key, std::span<const std::string_view> names,
                        std::size_t fallback);

  /// True if "type" names a file of Python and a class in it: "my.py:Mine".
  bool names_class() const;
  /// Which row of a table of policies its "type" names. The rows' own keys are then added.
  std::size_t policy(std::string_view registry, std::span<const std::string_view> names);
  void add(KeyTable keys) { tables_.push_back(keys); }

  /// Marks every remaining key as read (free-form objects such as tables keyed by name).
  std::vector<std::string> all_keys();
  /// Keys that were never read.
  std::vector<std::string> unread() const;
  /// Throws ConfigError if a key was never read, naming the nearest key that was.
  void finish() const;

 private:
  const Key* row(std::string_view key) const;
  ConfigNode value(std::string_view key, const Key* row, Json fallback);

  ConfigNode node_;
  std::vector<KeyTable> tables_;
  std::set<std::string, std::less<>> known_;
};

/// Reads an object with `read(reader)` and refuses unread keys, so that strictness cannot be
/// forgotten.
template <class Read>
auto read_object(const ConfigNode& node, KeyTable keys, Read&& read) {
  ConfigReader reader(node, keys);
  if constexpr (std::is_void_v<decltype(read(reader))>) {
    read(reader);
    reader.finish();
  } else {
    auto result = read(reader);
    reader.finish();
    return result;
  }
}
/// Reads an object of a format that has no table of keys.
template <class Read>
auto read_object(const ConfigNode& node, Read&& read) {
  return read_object(node, nullptr, std::forward<Read>(read));
}

/// The file of a policy that is named by file and class, "my.py" of "my.py:Mine"; else "".
std::string_view file_of_class(std::string_view name);

/// Applies "/pointer=value" to a config: value is JSON, or a string where it is not. The parent
/// must exist. Throws ConfigError if the text has no '=' or the pointer leads nowhere.
void apply_override(Json& config, std::string_view pointer_and_value);

}  // namespace moesim
