// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

// How a pool that prefills hands requests over to one that decodes.
namespace moesim {

/// When a prompt's KV cache leaves the prefill pool: after the first token, after each step, or as
/// each layer is computed.
enum class KvSends : std::uint8_t { whole, chunk, layer };
inline constexpr std::array<std::string_view, 3> kv_sends_names{"whole", "chunk", "layer"};
/// When a client is shown the token that the prefill pool computes: at once, or as the decode pool
/// admits the request. Or the decode pool computes the token again.
enum class FirstToken : std::uint8_t { prefill, admission, decode };
inline constexpr std::array<std::string_view, 3> first_token_names{"prefill", "admission",
                                                                   "decode"};

}  // namespace moesim
