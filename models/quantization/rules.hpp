// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <compare>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "hardware/config.hpp"
#include "hardware/text.hpp"
#include "models/quantization/name_list.hpp"
#include "models/quantization/weight_modules.hpp"

namespace moesim {

/// Precision that one kind of module is stored in, and that its weights are multiplied with.
struct Scheme {
  Precision weights, activations;
  auto operator<=>(const Scheme&) const = default;
};
inline constexpr Scheme unconverted{Precision::bf16, Precision::bf16};

/// Rules of a file on modules, in the order in which they count.
struct Rules {
  std::vector<NameList> left_out;  // not converted
  std::optional<NameList> only;    // what it does not name is not converted
  std::optional<NameList> named;   // the first that fits has ...
  std::vector<Scheme> schemes;     // ... the scheme of this place
  Scheme otherwise = unconverted;
  bool experts_alone = false;       // else not converted (gpt-oss)
  std::optional<Scheme> experts{};  // routed experts, where a file says it beside all else

  Scheme of(const WeightModule& module) {
    // Each list sees each module, so that it knows which entries are of none.
    bool out = experts_alone && module.part != WeightPart::experts;
    for (NameList& list : left_out) out = list.names(module) || out;
    if (only && !only->names(module)) out = true;
    const auto place = named ? named->first(module) : std::nullopt;
    if (out) return unconverted;
    if (experts && module.part == WeightPart::experts) return *experts;
    return place ? schemes[*place] : otherwise;
  }

  void for_each_list(const std::function<void(const NameList&)>& take) const {
    for (const NameList& list : left_out) take(list);
    if (only) take(*only);
    if (named) take(*named);
  }
};

/// Reads the rules of one quantisation. Throws ConfigError.
Rules read_rules(const ConfigNode&, std::vector<std::string> prefixes);
/// The precision of tensors of a group of compressed-tensors. Throws ConfigError.
Precision compressed(const Json* tensors, const ConfigNode&);

// Keys of files, which may be absent, null or of another type.

inline bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != text.npos;
}

inline const Json* member(const Json& object, const char* key) {
  const auto found = object.is_object() ? object.find(key) : object.end();
  return object.is_object() && found != object.end() && !found->is_null() ? &*found : nullptr;
}

inline std::string text_of(const Json& object, const char* key) {
  const Json* value = member(object, key);
  return value != nullptr && value->is_string() ? lower(value->get<std::string>()) : "";
}

inline int whole_of(const Json& object, const char* key) {
  const Json* value = member(object, key);
  return value != nullptr && value->is_number_integer() ? value->get<int>() : 0;
}
inline std::vector<std::string> texts_in(const Json* list) {
  std::vector<std::string> texts;
  if (list == nullptr) return texts;
  if (list->is_string()) texts.push_back(list->get<std::string>());
  if (!list->is_array()) return texts;
  for (const Json& entry : *list)
    for (const std::string& text : texts_in(&entry)) texts.push_back(text);
  return texts;
}

}  // namespace moesim
