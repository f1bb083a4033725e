// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "hardware/config.hpp"

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

/// One key of the object that a T is written as: its value and what documents it, in one row.
template <class T>
struct Field {
  std::string key, unit;
  Better better = Better::neither;
  std::string meaning;
  std::function<void(OrderedJson& object, const Field&, const T&)> write;
  void (*document)(std::vector<ReportKey>&, ReportKey of_value, const std::string& each);
  std::string each{};  ///< what stands for the names of a map in documentation: "KIND"
};

/// A type with a table of its fields, fields_of(const T*).
template <class T>
concept Section = requires(const T* section) {
  fields_of(section);
};

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
  } else {
    json = value;
  }
  return json;
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
    for (const Field<T>& field : fields_of(static_cast<const T*>(nullptr))) {
      const std::string pointer = field.key.empty() ? above : above + "/" + field.key;
      field.document(keys, {pointer, field.unit, field.better, field.meaning}, field.each);
    }
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

/// A table of fields, row by row. A projection is a member or a function of the section.
template <class T>
class FieldTable {
 public:
  template <class Projection>
  FieldTable& add(std::string_view key, Projection projection, std::string_view meaning,
                  std::string_view unit = "", Better better = Better::neither) {
    return row(key, meaning, unit, better, documents(projection),
               [projection](OrderedJson& object, const Field<T>& field, const T& section) {
                 const auto& value = std::invoke(projection, section);
                 if constexpr (std::is_same_v<std::remove_cvref_t<decltype(value)>, double>) {
                   check_share(field.key, field.unit, value);
                 }
                 put(object, field.key, fields::written(value));
               });
  }
  /// Adds a row of a key that is left out where its value is empty.
  template <class Projection>
  FieldTable& add_if_any(std::string_view key, Projection projection, std::string_view meaning,
                         std::string_view unit = "", Better better = Better::neither) {
    return row(key, meaning, unit, better, documents(projection),
               [projection](OrderedJson& object, const Field<T>& field, const T& section) {
                 const auto& value = std::invoke(projection, section);
                 if (!fields::is_nothing(value)) put(object, field.key, fields::written(value));
               });
  }
  /// Keys of a part that stand among those of the section.
  template <class Projection>
  FieldTable& merge(Projection projection) {
    return row("", "", "", Better::neither, documents(projection),
               [projection](OrderedJson& object, const Field<T>&, const T& section) {
                 OrderedJson part = fields::written(std::invoke(projection, section));
                 for (auto& [key, value] : part.items()) put(object, key, std::move(value));
               });
  }
  /// What stands for the names of the map that was added last: "KIND".
  FieldTable& each(std::string_view name) {
    fields_.back().each = name;
    return *this;
  }
  operator std::vector<Field<T>>() && { return std::move(fields_); }
  operator std::vector<Field<T>>() & { return std::move(fields_); }

 private:
  template <class Projection>
  static auto documents(Projection) {
    using Value = std::remove_cvref_t<std::invoke_result_t<Projection, const T&>>;
    return &fields::document<Value>;
  }
  // Hundreds of rows call this, which the compiler would repeat for each.
  [[gnu::noinline]] FieldTable& row(std::string_view key, std::string_view meaning,
                                    std::string_view unit, Better better,
                                    decltype(Field<T>::document) document,
                                    decltype(Field<T>::write) write) {
    fields_.push_back({std::string(key),
                       std::string(unit),
                       better,
                       std::string(meaning),
                       std::move(write),
                       document,
                       {}});
    return *this;
  }
  std::vector<Field<T>> fields_;
};

}  // namespace moesim
