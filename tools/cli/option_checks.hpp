// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <charconv>
#include <string>

namespace moesim {

/// A check of an option that counts: CLI11's own names its range with three hundred digits.
inline auto at_least_one() {
  return [](const std::string& text) -> std::string {
    long long number = 0;
    const char* const end = text.data() + text.size();
    const auto [last, error] = std::from_chars(text.data(), end, number);
    if (error != std::errc() || last != end) return "\"" + text + "\" is not a whole number";
    return number < 1 ? text + " is too few; at least 1 is expected" : "";
  };
}

}  // namespace moesim
