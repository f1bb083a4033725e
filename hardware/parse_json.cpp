// SPDX-License-Identifier: Apache-2.0
#include "hardware/parse_json.hpp"

#include <fmt/format.h>

namespace moesim {

namespace {

constexpr int deepest = 64;

// Brackets that are open at once, outside of strings.
bool too_deep(std::string_view text) {
  int open = 0;
  bool in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      in_string = c != '"';
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      if (++open > deepest) return true;
    } else if (c == ']' || c == '}') {
      --open;
    }
  }
  return false;
}

// Python's json writes floats that JSON has no word for; they become null.
std::string without_python_words(std::string_view text) {
  std::string plain;
  plain.reserve(text.size());
  bool in_string = false;
  for (std::size_t i = 0; i < text.size();) {
    const auto word = [&]() -> std::string_view {
      for (const std::string_view one : {"NaN", "Infinity", "-Infinity"}) {
        if (!in_string && text.substr(i, one.size()) == one) return one;
      }
      return {};
    }();
    if (!word.empty()) {
      plain += "null";
      i += word.size();
      continue;
    }
    if (text[i] == '"') in_string = !in_string;
    if (in_string && text[i] == '\\' && i + 1 < text.size()) plain += text[i++];
    plain += text[i++];
  }
  return plain;
}

Json parse_strictly(std::string_view text) {
  if (too_deep(text))
    throw ConfigError(fmt::format("nested deeper than {} lists and objects", deepest));
  try {
    return Json::parse(text);
  } catch (const Json::exception& error) {
    // A number such as 1e999 is refused with another type of exception than wrong syntax, and
    // without a place.
    const std::string_view message = error.what();
    const auto place = message.find("at line");
    throw ConfigError(
        fmt::format("not JSON {}", message.substr(place == message.npos ? 0 : place)));
  }
}

}  // namespace

Json parse_json(std::string_view text) {
  try {
    return parse_strictly(text);
  } catch (const ConfigError&) {
    const std::string plain = without_python_words(text);
    if (plain == text) throw;
    return parse_strictly(plain);
  }
}

Json json_or_text(std::string_view text) {
  try {
    return parse_strictly(text);
  } catch (const ConfigError&) {
    return std::string(text);
  }
}

}  // namespace moesim
