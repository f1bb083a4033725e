// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <charconv>
#include <string>
#include <thread>
#include <type_traits>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "hardware/text.hpp"

namespace moesim {

/// A check of an option that counts: CLI11's own names its range with three hundred digits.
inline auto at_least_one() {
  return [](const std::string& text) -> std::string {
    const auto number = try_number<long long>(text);
    if (!number) return "\"" + text + "\" is not a whole number";
    return *number < 1 ? text + " is too few; at least 1 is expected" : "";
  };
}

/// Properties of an option beside its text.
enum class OptionIs { repeatable, comma_separated, default_shown, mandatory };
using enum OptionIs;

/// Adds an option. `more` are checks of it, and what else it is.
template <class Value, class... More>
CLI::Option* option(CLI::App& command, const char* name, Value& value, const std::string& text,
                    More... more) {
  CLI::Option* const added = command.add_option(name, value, text);
  [[maybe_unused]] const auto adorn = [&](auto what) {  // nothing to adorn without `more`
    if constexpr (std::is_same_v<decltype(what), OptionIs>) {
      if (what == repeatable) added->allow_extra_args(false);
      if (what == comma_separated) added->delimiter(',');
      if (what == default_shown) added->capture_default_str();
      if (what == mandatory) added->required();
    } else {
      added->check(what);
    }
  };
  (adorn(more), ...);
  return added;
}

/// Threads of an option; 0: as many as there are cores.
inline int threads_of(int asked) {
  return asked > 0 ? asked : std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

/// A check of an option that is a seed: what the key "seed" takes.
inline auto a_seed() {
  return [](const std::string& text) -> std::string {
    constexpr long long most = 9'000'000'000'000'000;
    const auto seed = try_number<long long>(text);
    return seed && *seed >= 0 && *seed <= most
               ? ""
               : fmt::format("\"{}\" is no seed; expected a whole number from 0 to {}", text, most);
  };
}

/// A check of an option that is a number within limits: CLI11's own takes nan for one.
inline CLI::Validator a_number(double least, double most) {
  const auto check = [=](const std::string& text) -> std::string {
    const auto number = try_number<double>(text);
    if (!number) return "\"" + text + "\" is not a number";
    return *number >= least && *number <= most
               ? ""
               : fmt::format("{} is out of range; expected {:g} to {:g}", text, least, most);
  };
  return {check, fmt::format("FLOAT in [{:g} - {:g}]", least, most)};
}

/// A check of an option that is a share above 0: 90 may be meant as a percentage.
inline auto a_share() {
  return [](const std::string& text) -> std::string {
    double share = 0;
    const char* const end = text.data() + text.size();
    const auto [last, error] = std::from_chars(text.data(), end, share);
    if (error != std::errc() || (last != end && std::string(last, end) != "%"))
      return "\"" + text + "\" is not a number; expected a share above 0 and at most 1";
    if (last == end && share > 0 && share <= 1) return "";
    const std::string limits = text + " is out of range; expected a share above 0 and at most 1";
    return share > 1 && share <= 100 ? limits + fmt::format("; {:g} % is {:g}", share, share / 100)
                                     : limits;
  };
}

}  // namespace moesim
