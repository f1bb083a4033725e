// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tsl/robin_map.h>
#include <tsl/robin_set.h>

#include "sim/kv_tiers/kv_tiers.hpp"

namespace moesim {

/// A block's name is a hash already.
struct AsItIs {
  std::size_t operator()(BlockHash hash) const { return hash; }
};

/// Tables by a block's name. They lie flat in memory: of a million blocks in any order a look into
/// std::unordered_map waits for memory three times, here once. Nothing may depend on their order.
template <class Value>
using BlockMap = tsl::robin_map<BlockHash, Value, AsItIs>;
using BlockSet = tsl::robin_set<BlockHash, AsItIs>;

/// Small numbers next to each other are not next to each other in a table.
struct Spread {
  std::size_t operator()(std::int32_t number) const {
    return (std::uint64_t{static_cast<std::uint32_t>(number)} * 0x9e3779b97f4a7c15U) >> 32;
  }
};

}  // namespace moesim
