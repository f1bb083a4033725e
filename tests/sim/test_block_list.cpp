// SPDX-License-Identifier: Apache-2.0
// Is a list of blocks in the order of what happened to them, and does a cache find chains whatever
// followed their blocks before?
#include <algorithm>
#include <list>
#include <set>

#include "hardware/rng.hpp"
#include "sim/kv_cache/kv_cache.hpp"
#include "sim/kv_tiers/block_list.hpp"
#include "tests/support.hpp"

namespace moesim::test_block_list {
namespace {

const KvLayout layout{4, Bytes(1), 1, {{1, 0}}};

}  // namespace

TEST_CASE("blocks are in the order in which they were appended or moved to the end") {
  Rng rng(7, "block list");
  BlockList blocks;
  std::list<BlockHash> expected;
  for (int i = 0; i < 20000; ++i) {
    const BlockHash hash = rng.below(200) * 0x9e3779b97f4a7c15ULL;
    const auto there = std::ranges::find(expected, hash);
    REQUIRE(blocks.contains(hash) == (there != expected.end()));
    switch (rng.below(3)) {
      case 0:
        if (there != expected.end()) break;
        blocks.append(hash);
        expected.push_back(hash);
        break;
      case 1:
        if (there == expected.end()) break;
        blocks.to_the_end(hash);
        expected.splice(expected.end(), expected, there);
        break;
      default:
        REQUIRE(blocks.erase(hash) == (there != expected.end()));
        if (there != expected.end()) expected.erase(there);
    }
    REQUIRE(blocks.size() == expected.size());
    if (!expected.empty()) REQUIRE(blocks.oldest() == expected.front());
  }
  // The order of all of them, each pinned in turn.
  std::set<BlockHash> pinned;
  for (const BlockHash hash : expected) {
    CHECK(blocks.oldest([&](BlockHash held) { return pinned.contains(held); }) == hash);
    pinned.insert(hash);
  }
  CHECK(!blocks.oldest([](BlockHash) { return true; }));
}

// Nothing is taken for other tokens here: what was filled once is found.
TEST_CASE("a chain is found whichever chain its blocks were last part of") {
  Rng rng(3, "chains");
  KvCache cache(layout, 4000, true);
  std::set<BlockHash> filled;
  for (std::uint32_t request = 0; request < 300; ++request) {
    // Few names in any order: what follows a block changes all the time.
    std::vector<BlockHash> names(1 + rng.below(12));
    for (BlockHash& name : names) name = 1 + rng.below(30);
    std::vector<BlockHash> unique;
    for (const BlockHash name : names)
      if (std::ranges::find(unique, name) == unique.end()) unique.push_back(name);
    const auto tokens = static_cast<std::int32_t>(unique.size() * 4 + 1);
    Sequence sequence{request, tokens, 0, tokens, 0};
    cache.expect(request, tokens, unique);
    std::int64_t leading = 0;
    while (leading < std::ssize(unique) && filled.contains(unique[std::size_t(leading)])) ++leading;
    const bool beginning = std::all_of(unique.begin() + leading, unique.end(),
                                       [&](BlockHash name) { return !filled.contains(name); });
    if (!beginning) {  // no chain of a served prompt has a hole
      cache.finish(sequence);
      continue;
    }
    cache.take_cached(sequence);
    CHECK(sequence.blocks == leading);
    CHECK(sequence.computed == leading * 4);
    cache.grow(sequence, tokens);
    sequence.computed = tokens;
    cache.shrink(sequence);
    filled.insert(unique.begin(), unique.end());
    cache.finish(sequence);
  }
  CHECK(filled.size() == 30);
}

}  // namespace moesim::test_block_list
