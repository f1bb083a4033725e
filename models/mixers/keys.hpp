// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "hardware/config.hpp"
#include "hardware/keys.hpp"

namespace moesim {

/// Numbers of a model's parts in the zoo's format and in a config.json.
inline constexpr Range whole{0, 1e9};
inline constexpr Range at_least_one{1, 1e9};
inline constexpr Form size = form::integer(at_least_one);
inline constexpr Form size_or_none = form::integer(whole);

/// At least one.
inline int count(ConfigReader& r, std::string_view key) {
  return static_cast<int>(r.integer(key, at_least_one));
}
/// A HuggingFace key may be there as null, which says as little as its absence.
bool present(const ConfigReader&, std::string_view key);
/// Must be there; null means none.
int nullable(ConfigReader&, std::string_view key);
/// A key that transformers gives a default.
int optional(ConfigReader&, std::string_view key, int fallback);
bool flagged(ConfigReader&, std::string_view key);

/// Keys that several kinds of attention read from a zoo file.
inline constexpr Key query_heads_key{"query_heads", size, required, "query heads"};
inline constexpr Key value_dim_key{"v_dim", size, unset("GQA's head_dim; MLA needs it"),
                                   "a head's value dimension"};
inline constexpr Key output_gate_key{"output_gate", form::flag, "false",
                                     "a gate of the output is projected too"};

}  // namespace moesim
