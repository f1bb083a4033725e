// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstddef>
#include <type_traits>

namespace moesim {

/// An id or an enumerator as the index of its element, v[at(expert)], and a count as a size. Ids
/// and counts are signed and not negative.
template <class Number>
requires std::integral<Number> || std::is_enum_v<Number>
constexpr std::size_t at(Number number) { return static_cast<std::size_t>(number); }

}  // namespace moesim
