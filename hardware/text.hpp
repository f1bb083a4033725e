// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cctype>
#include <charconv>
#include <optional>
#include <string>
#include <string_view>

namespace moesim {

/// Returns a text with its capitals made small.
inline std::string lower(std::string_view text) {
  std::string small(text);
  for (char& c : small) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return small;
}

/// Returns a name as files are written: small letters and digits, and "_" for any other character.
inline std::string file_name_of(std::string_view name) {
  std::string file = lower(name);
  const auto is_other = [](unsigned char c) { return std::isalnum(c) == 0; };
  std::ranges::replace_if(file, is_other, '_');
  return file;
}

/// Number that a whole text is; nothing if it is something else.
template <class Number>
std::optional<Number> try_number(std::string_view text) {
  Number number{};
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc() || rest != end) return std::nullopt;
  return number;
}

}  // namespace moesim
