// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <string_view>

#include "hardware/config.hpp"

namespace moesim {

/// The value of a key whose row gives these names, as the enumeration that has them in this order.
template <class Enum, std::size_t N>
Enum choice(ConfigReader& reader, std::string_view key,
            const std::array<std::string_view, N>& names) {
  return static_cast<Enum>(reader.choice(key, names));
}

}  // namespace moesim
