// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <span>
#include <string_view>
#include <vector>

namespace moesim {

/// Bounds of a number. They are inclusive.
struct Range {
  double min = -std::numeric_limits<double>::infinity();
  double max = std::numeric_limits<double>::infinity();
};
inline constexpr Range positive_count{1, 9e15};
inline constexpr Range non_negative{0, std::numeric_limits<double>::infinity()};

struct Key;
/// The keys of one kind of object: a function, so that tables of several files may name each other.
using Keys = std::span<const Key>();
using KeyTable = Keys*;

/// Form of what may be under a key. The reader holds values to it; `moesim keys` and the JSON
/// Schema are printed from it.
struct Form {
  enum class Kind {
    number,
    integer,
    flag,
    text,
    file,   ///< a path, relative to the file that names it
    bytes,  ///< quantities: a number with its unit, as text
    bytes_per_second,
    flops_per_second,
    per_second,
    watts,
    time,
    choice,   ///< one of `names`
    list,     ///< of `element`
    object,   ///< with `keys`
    policy,   ///< a row of the table `registry`: a bare name, or an object with "type", its options
              ///< and `keys`
    foreign,  ///< an object of another program's format, known by any of `names`
    any,      ///< whatever is JSON: another reader checks it
  };
  Kind kind;
  Range range{};
  std::span<const std::string_view> names{};
  KeyTable keys = nullptr;
  std::string_view registry{};
  const Form* element = nullptr;
  bool bare = false;     ///< an object that may be written as the bare text of its "type"
  bool partial = false;  ///< an object whose required keys may stand elsewhere
  const Form* or_else = nullptr;

  constexpr bool is_object() const {
    return kind == Kind::object || kind == Kind::policy || kind == Kind::foreign;
  }
  /// This form or another. The other must live as long as the program.
  constexpr Form or_a(const Form& other) const {
    Form either = *this;
    either.or_else = &other;
    return either;
  }
};

/// Default that holds when a key is left out.
struct KeyDefault {
  enum class Kind { required, literal, words };
  Kind kind = Kind::required;
  std::string_view text{};

  constexpr KeyDefault(Kind k, std::string_view t) : kind(k), text(t) {}
  /// A value as it would be written: "16", "none", "50 ms", "{}".
  constexpr KeyDefault(const char* literal) : KeyDefault(Kind::literal, literal) {}
};
inline constexpr KeyDefault required{KeyDefault::Kind::required, ""};
/// Default in words: it depends on something else, or is nothing at all.
constexpr KeyDefault unset(std::string_view words) { return {KeyDefault::Kind::words, words}; }

/// A key of an object. Under the name "*" it is every key that is one of `names` or a row of the
/// table `registry`, and under the name "/*" every JSON pointer.
struct Key {
  std::string_view name;
  Form form;
  KeyDefault by_default;
  std::string_view meaning;  ///< one line
  std::span<const std::string_view> names{};
  std::string_view registry{};
};

inline std::span<const Key> no_keys() { return {}; }

/// Forms by name, for tables.
namespace form {
inline constexpr Form any{Form::Kind::any};
inline constexpr Form flag{Form::Kind::flag};
inline constexpr Form text{Form::Kind::text};
inline constexpr Form file{Form::Kind::file};
inline constexpr Form bytes{Form::Kind::bytes};
inline constexpr Form bytes_per_second{Form::Kind::bytes_per_second};
inline constexpr Form flops_per_second{Form::Kind::flops_per_second};
inline constexpr Form per_second{Form::Kind::per_second};
inline constexpr Form watts{Form::Kind::watts};
inline constexpr Form time{Form::Kind::time};

constexpr Form number(Range range) { return {.kind = Form::Kind::number, .range = range}; }
constexpr Form number(double min, double max) { return number(Range{min, max}); }
constexpr Form integer(Range range) { return {.kind = Form::Kind::integer, .range = range}; }
constexpr Form integer(double min, double max) { return integer(Range{min, max}); }
/// The names must live as long as the program.
constexpr Form choice(std::span<const std::string_view> names) {
  return {.kind = Form::Kind::choice, .names = names};
}
/// Bounds hold for the element, too.
constexpr Form list(const Form& element) { return {.kind = Form::Kind::list, .element = &element}; }
constexpr Form object(KeyTable keys) { return {.kind = Form::Kind::object, .keys = keys}; }
/// An object that may be written as the bare text of its "type".
constexpr Form typed_object(KeyTable keys) {
  return {.kind = Form::Kind::object, .keys = keys, .bare = true};
}
constexpr Form partial_object(KeyTable keys) {
  return {.kind = Form::Kind::object, .keys = keys, .partial = true};
}
constexpr Form policy(std::string_view registry, KeyTable beside = no_keys) {
  return {.kind = Form::Kind::policy, .keys = beside, .registry = registry};
}
constexpr Form foreign(std::span<const std::string_view> names) {
  return {.kind = Form::Kind::foreign, .names = names};
}
}  // namespace form

/// The rows of policy tables, by extension point, as far as documentation goes.
struct PolicyRow {
  std::string_view name, summary;
  KeyTable keys;
};
using PolicyRows = std::map<std::string_view, std::vector<PolicyRow>>;

}  // namespace moesim
