// SPDX-License-Identifier: Apache-2.0
#include "hardware/engine_version.hpp"

#include <charconv>
#include <cmath>

namespace moesim {

EngineVersion engine_named(std::string_view folder) {
  const std::size_t dash = folder.find('-');
  if (dash == std::string_view::npos) return {std::string(folder), ""};
  return {std::string(folder.substr(0, dash)), std::string(folder.substr(dash + 1))};
}

std::array<int, 4> numbers_of(std::string_view version) {
  std::array<int, 4> numbers{};
  std::size_t next = 0;
  const char* end = version.data() + version.size();
  for (const char* c = version.data(); c < end && next < numbers.size();) {
    const auto [rest, failed] = std::from_chars(c, end, numbers[next]);
    next += failed == std::errc() ? 1 : 0;
    c = failed == std::errc() ? rest : c + 1;
  }
  return numbers;
}

double distance(std::string_view one_version, std::string_view other_version) {
  const auto a = numbers_of(one_version), b = numbers_of(other_version);
  double apart = 0;
  for (std::size_t i = 0; i < a.size(); ++i) apart = apart * 1000 + (a[i] - b[i]);
  return std::abs(apart);
}

}  // namespace moesim
