// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "hardware/config.hpp"
#include "hardware/units.hpp"

namespace moesim {

/// Which of two numbers under one key is the better one, all else being equal.
enum class Better { neither, more, less };

/// A key of a report, for documentation and tools.
struct ReportKey {
  /// "/metrics/mfu". A name in capitals stands for any of several, as in "/steps/KIND/mean_ms", and
  /// N for a place in a list.
  std::string pointer;
  std::string unit;  ///< "ms", "share of time"; empty where there is none
  Better better = Better::neither;
  std::string meaning;
};

/// Values by name, in an order that means something. JSON objects.
template <class T>
using Named = std::vector<std::pair<std::string, T>>;

/// Throws std::logic_error for a share above 1.
void check_share(std::string_view key, std::string_view unit, double value);

/// Sets a key of an object. Hundreds of rows call this, which the compiler would repeat for each.
void put(OrderedJson& object, const std::string& key, OrderedJson value);

template <class T>
struct Field;
/// The keys of the object that a T is written as, in their order.
template <class T>
using Fields = std::vector<Field<T>>;

/// A type with a table of its fields, rows_of(const T*).
template <class T>
concept Section = requires(const T* section) {
  rows_of(section);
};
/// That table, made once.
template <Section T>
const Fields<T>& fields_of(const T* section) {
  static const Fields<T> rows = rows_of(section);
  return rows;
}

namespace fields {

template <class T>
struct Shape {
  static constexpr bool optional = false, list = false, named = false;
};
template <class T>
struct Shape<std::optional<T>> : Shape<void> {
  using Value = T;
  static constexpr bool optional = true;
};
template <class T>
struct Shape<std::vector<T>> : Shape<void> {
  using Value = T;
  static constexpr bool list = true;
};
template <class T>
struct Shape<std::vector<std::pair<std::string, T>>> : Shape<void> {
  using Value = T;
  static constexpr bool named = true;
};

/// A value as JSON: nothing is null, a section an object of its fields.
template <class T>
OrderedJson written(const T& value) {
  OrderedJson json;
  if constexpr (Section<T>) {
    for (const Field<T>& field : fields_of(&value)) field.write(json, field, value);
  } else if constexpr (Shape<T>::optional) {
    if (value) json = written(*value);
  } else if constexpr (Shape<T>::list) {
    json = OrderedJson::array();
    for (const auto& element : value) json.push_back(written(element));
  } else if constexpr (Shape<T>::named) {
    json = OrderedJson::object();
    for (const auto& [name, element] : value) put(json, name, written(element));
  } else if constexpr (std::is_same_v<T, Time>) {
    json = to_seconds(value - Time{}).count();
  } else if constexpr (std::is_same_v<T, Seconds>) {
    json = value.count();
  } else if constexpr (requires { value.value(); }) {  // a quantity
    json = value.value();
  } else {
    json = value;
  }
  return json;
}

template <class T>
void document_all(std::vector<ReportKey>& keys, const std::string& above, const Fields<T>& rows) {
  for (const Field<T>& field : rows) {
    const std::string pointer = field.key.empty() ? above : above + "/" + field.key;
    field.document(keys, {pointer, field.unit, field.better, field.meaning}, field.each);
  }
}

/// Adds the keys of a value that stands under `key.pointer`, those of its parts included.
template <class T>
void document(std::vector<ReportKey>& keys, ReportKey key, const std::string& each) {
  if constexpr (Shape<T>::optional) {
    document<typename Shape<T>::Value>(keys, std::move(key), each);
  } else if constexpr (Shape<T>::list) {
    if constexpr (Section<typename Shape<T>::Value>) key.pointer += "/N";
    document<typename Shape<T>::Value>(keys, std::move(key), each);
  } else if constexpr (Shape<T>::named) {
    key.pointer += "/" + each;
    document<typename Shape<T>::Value>(keys, std::move(key), each);
  } else if constexpr (Section<T>) {
    const std::string above = key.pointer;
    if (!key.meaning.empty()) keys.push_back(std::move(key));
    document_all(keys, above, fields_of(static_cast<const T*>(nullptr)));
  } else {
    keys.push_back(std::move(key));
  }
}

template <class T>
bool is_nothing(const T& value) {
  if constexpr (Shape<T>::optional) return !value.has_value();
  if constexpr (Shape<T>::list || Shape<T>::named) return value.empty();
  return false;
}

}  // namespace fields

/// Marks a key that is left out where its value is empty.
inline constexpr struct IfAny {
} if_any;
/// Marks a part whose keys stand among those of the section.
inline constexpr struct MergedPart {
} merged;

/// A key of the object that a T is written as: its value and what documents it, in one row. A
/// projection is a member or a function of the section. What follows a slash in the key stands for
/// the names of a map in documentation: "parts/PART".
template <class T>
struct Field {
  template <class Projection>
  Field(std::string_view name, Projection projection, std::string_view what,
        std::string_view in = "", Better which = Better::neither)
      : Field(name, what, in, which, documents(projection),
              [projection](OrderedJson& object, const Field& field, const T& section) {
                const auto& value = std::invoke(projection, section);
                if constexpr (std::is_same_v<std::remove_cvref_t<decltype(value)>, double>) {
                  check_share(field.key, field.unit, value);
                }
                put(object, field.key, fields::written(value));
              }) {}
  template <class Projection>
  Field(IfAny, std::string_view name, Projection projection, std::string_view what,
        std::string_view in = "", Better which = Better::neither)
      : Field(name, what, in, which, documents(projection),
              [projection](OrderedJson& object, const Field& field, const T& section) {
                const auto& value = std::invoke(projection, section);
                if (!fields::is_nothing(value)) put(object, field.key, fields::written(value));
              }) {}
  /// A part that is made of members of the section itself.
  Field(std::string_view name, Fields<T> part)
      : Field(
            name, "", "", Better::neither,
            [part](std::vector<ReportKey>& keys, const ReportKey& of_part, const std::string&) {
              fields::document_all(keys, of_part.pointer, part);
            },
            [part](OrderedJson& object, const Field& field, const T& section) {
              OrderedJson json;
              for (const Field& row : part) row.write(json, row, section);
              put(object, field.key, std::move(json));
            }) {}
  template <class Projection>
  Field(MergedPart, Projection projection, std::string_view names = "")
      : Field(std::string("/").append(names), "", "", Better::neither, documents(projection),
              [projection](OrderedJson& object, const Field&, const T& section) {
                OrderedJson part = fields::written(std::invoke(projection, section));
                for (auto& [name, value] : part.items()) put(object, name, std::move(value));
              }) {}

  std::string key, each;  ///< what stands for the names of a map in documentation: "KIND"
  std::string unit;
  Better better = Better::neither;
  std::string meaning;
  std::function<void(OrderedJson& object, const Field&, const T&)> write;
  std::function<void(std::vector<ReportKey>&, ReportKey of_value, const std::string& each)>
      document;

 private:
  // Hundreds of rows call this, which the compiler would repeat for each.
  [[gnu::noinline]] Field(std::string_view name, std::string_view what, std::string_view in,
                          Better which, decltype(Field::document) documented,
                          decltype(Field::write) written)
      : key(name.substr(0, name.find('/'))),
        each(name.substr(std::min(name.find('/'), name.size() - 1) + 1)),
        unit(in),
        better(which),
        meaning(what),
        write(std::move(written)),
        document(std::move(documented)) {}
  template <class Projection>
  static auto documents(Projection) {
    using Value = std::remove_cvref_t<std::invoke_result_t<Projection, const T&>>;
    return &fields::document<Value>;
  }
};

}  // namespace moesim
