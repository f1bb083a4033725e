// SPDX-License-Identifier: Apache-2.0
// How much of its prompts would a sequence of requests find in a cache of so many blocks?
#include <algorithm>
#include <bit>
#include <cmath>
#include <list>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "hardware/rng.hpp"
#include "tests/support.hpp"
#include "traces/requests/request_trace.hpp"
#include "traces/requests/reuse.hpp"

namespace moesim::test_reuse {

using namespace moesim::test;

namespace {

using Ids = std::vector<std::uint64_t>;
using Prompts = std::vector<std::shared_ptr<const PromptIds>>;

constexpr std::int32_t block = 10;

// Prompts of whole blocks but for a last one of a single token.
Prompts prompts_of(const std::vector<Ids>& ids) {
  Prompts prompts;
  for (const Ids& of : ids) {
    const std::int64_t tokens = (std::ssize(of) - 1) * block + 1;
    prompts.push_back(std::make_shared<const PromptIds>(ids_of_blocks(tokens, block, of)));
  }
  return prompts;
}

// What a list of blocks, the least recent first, hits if it is never longer than `most`.
std::int64_t hits_of_list(const Prompts& prompts, std::size_t most) {
  std::list<std::uint64_t> cache;
  std::int64_t hits = 0;
  for (const auto& prompt : prompts) {
    std::int64_t before = 0;
    for (const PromptIds::Span& span : prompt->spans) {
      if (span.end >= prompt->tokens() || std::ranges::find(cache, span.id) == cache.end()) break;
      hits += span.end - std::exchange(before, span.end);
    }
    for (std::size_t i = prompt->spans.size(); i-- > 0;) {
      cache.remove(prompt->spans[i].id);
      cache.push_back(prompt->spans[i].id);
    }
    while (cache.size() > most) cache.pop_front();
  }
  return hits;
}

TEST_CASE("a block is hit if fewer blocks than fit were used since: by hand") {
  // B puts three blocks after A's. Of A then its first block is the fourth most recent, its second
  // the fifth; the third is partial, of one token, which is computed in any case.
  const ReuseCurve curve = reuse_curve(prompts_of({{1, 2, 3}, {7, 8, 9}, {1, 2, 3}}));
  CHECK(curve.queried_tokens == 3 * 21);
  CHECK(curve.distinct_blocks == 6);
  CHECK(curve.hits(3) == 0);
  CHECK(curve.hits(4) == 10);
  CHECK(curve.hits(5) == 20);
  CHECK(curve.ideal() == 20);
  // A block is of no use without those before it: 2 was used after 1 was forgotten.
  CHECK(reuse_curve(prompts_of({{1, 2, 3}, {1, 2, 4}, {7, 2, 5}, {1, 2, 6}})).hits(3) == 20);
}

TEST_CASE("T turns that each add whole blocks hit (T - 1) / (T + 1) of an endless cache") {
  for (const std::int64_t turns : {6, 8}) {
    Prompts prompts;
    Ids ids;
    for (std::int64_t turn = 1; turn <= turns; ++turn) {
      for (int i = 0; i < 4; ++i) ids.push_back(ids.size());
      // One token more than whole blocks, so that all of these can be hit.
      Ids all = ids;
      all.push_back(static_cast<std::uint64_t>(1000 + turn));
      prompts.push_back(std::make_shared<const PromptIds>(
          ids_of_blocks(std::ssize(ids) * block + 1, block, all)));
    }
    const ReuseCurve curve = reuse_curve(prompts);
    CHECK(curve.ideal() == 4 * block * turns * (turns - 1) / 2);
    CHECK(curve.queried_tokens - turns == 4 * block * turns * (turns + 1) / 2);
  }
}

TEST_CASE("law 8: the curve is what a cache of each size hits, and never falls") {
  Rng rng(1, "reuse");
  std::vector<Ids> ids;
  for (int i = 0; i < 300; ++i) {
    Ids& prompt = ids.emplace_back();
    // Chains over few names, so that prompts begin with each other.
    std::uint64_t chain = 0;
    for (std::uint64_t length = 2 + rng.below(6); length > 0; --length) {
      chain = chain * 5 + 1 + rng.below(3);
      prompt.push_back(chain);
    }
  }
  const Prompts prompts = prompts_of(ids);
  const ReuseCurve curve = reuse_curve(prompts);
  std::int64_t before = 0;
  for (std::size_t blocks = 1; blocks < 200; ++blocks) {
    const std::int64_t hits = curve.hits(static_cast<std::int64_t>(blocks));
    REQUIRE(hits == hits_of_list(prompts, blocks));
    REQUIRE(hits >= before);
    before = hits;
  }
  CHECK(before > 0);
  CHECK(curve.ideal() == hits_of_list(prompts, 100'000));
}

TEST_CASE("a cache that knows what comes keeps what comes soonest: by hand") {
  // Room for 4 blocks. After A A1, A2 come third and B1, B2 never: A1 and A2 stay. LRU keeps B's.
  const Prompts prompts = prompts_of({{1, 2, 3}, {7, 8, 9}, {1, 2, 4}, {1, 2, 5}});
  CHECK(most_hits(prompts, 4) == 40);
  CHECK(most_hits(prompts, 2) == 40);
  CHECK(most_hits(prompts, 1) == 20);
  CHECK(most_hits(prompts, 0) == 0);
  CHECK(reuse_curve(prompts).hits(2) == 20);
  CHECK(reuse_curve(prompts).hits(4) == 30);
}

// All orders in which blocks can make room, over a few short prompts.
std::int64_t best_of_all(const Prompts& prompts, std::size_t most, std::size_t at,
                         const std::set<std::uint64_t>& cache) {
  if (at == prompts.size()) return 0;
  std::int64_t hits = 0;
  for (const PromptIds::Span& span : prompts[at]->spans) {
    if (span.end >= prompts[at]->tokens() || !cache.contains(span.id)) break;
    hits = span.end;
  }
  std::set<std::uint64_t> all = cache;
  for (const PromptIds::Span& span : prompts[at]->spans) all.insert(span.id);
  const std::vector<std::uint64_t> ids(all.begin(), all.end());
  std::int64_t best = 0;
  for (std::uint32_t kept = 0; kept < 1u << ids.size(); ++kept) {
    const auto size = static_cast<std::size_t>(std::popcount(kept));
    if (size != std::min(most, ids.size())) continue;
    std::set<std::uint64_t> next;
    for (std::size_t i = 0; i < ids.size(); ++i) {
      if ((kept >> i & 1) != 0) next.insert(ids[i]);
    }
    best = std::max(best, best_of_all(prompts, most, at + 1, next));
  }
  return hits + best;
}

// Chains over few names, so that prompts begin with each other.
std::vector<Ids> random_chains(int prompts, std::uint64_t longest, std::uint64_t names,
                               const std::string& seed) {
  Rng rng(1, seed);
  std::vector<Ids> ids;
  for (int i = 0; i < prompts; ++i) {
    Ids& prompt = ids.emplace_back();
    std::uint64_t chain = 0;
    for (std::uint64_t length = 2 + rng.below(longest - 1); length > 0; --length) {
      chain = chain * 5 + 1 + rng.below(names);
      prompt.push_back(chain);
    }
  }
  return ids;
}

TEST_CASE("law 8: no order of making room hits more than the one that knows what comes") {
  for (int trial = 0; trial < 12; ++trial) {
    const Prompts few = prompts_of(random_chains(4, 3, 2, fmt::format("few {}", trial)));
    for (const std::size_t most : {1U, 2U, 3U})
      REQUIRE(most_hits(few, std::int64_t(most)) == best_of_all(few, most, 0, {}));
  }
  const Prompts prompts = prompts_of(random_chains(300, 7, 3, "reuse"));
  const ReuseCurve lru = reuse_curve(prompts);
  std::int64_t before = 0;
  bool more = false;
  for (std::int64_t blocks = 0; blocks < 200; blocks += 7) {
    const std::int64_t hits = most_hits(prompts, blocks);
    REQUIRE(hits >= lru.hits(blocks));
    REQUIRE(hits >= before);
    more = more || hits > lru.hits(blocks);
    before = hits;
  }
  CHECK(more);
  CHECK(most_hits(prompts, lru.distinct_blocks) == lru.ideal());
}

TEST_CASE("Mooncake's conversations hit as counted before, to the hundredth of a per cent") {
  if (!has_shared()) {
    WARN("skipped: ../shared is absent");
    return;
  }
  const auto curve_of = [](const char* file) {
    Prompts prompts;
    for (const RequestTrace::Row& row :
         read_request_trace(shared_dir() / "data/requests/mooncake_fast25" / file).rows)
      prompts.push_back(row.request.prompt_ids);
    return reuse_curve(prompts);
  };
  const auto per_cent = [](std::int64_t hits, const ReuseCurve& of) {
    return std::round(1e4 * double(hits) / double(of.queried_tokens)) / 100;
  };
  // LRU of whole blocks of 512 tokens at 64 Ki, 256 Ki, 1 Mi, 4 Mi and 16 Mi tokens; llmtrafficlens
  // has 4.2, 4.3, 5.6, 18.5, 34.2 and 37.4.
  const ReuseCurve conversation = curve_of("conversation_trace.jsonl");
  const std::vector<std::pair<std::int64_t, double>> at{
      {64, 4.27}, {256, 4.30}, {1024, 5.60}, {4096, 18.50}, {16384, 34.13}};
  for (const auto& [thousands, share] : at) {
    CAPTURE(thousands);
    CHECK(per_cent(conversation.hits(thousands * 1024 / 512), conversation) == share);
  }
  CHECK(per_cent(conversation.ideal(), conversation) == 37.34);
  const ReuseCurve synthetic = curve_of("synthetic_trace.jsonl");
  CHECK(per_cent(synthetic.ideal(), synthetic) == 65.04);
  for (const auto& [blocks, share] :
       std::vector<std::pair<std::int64_t, double>>{{1000, 8.6}, {3000, 19.4}, {10000, 43.1}})
    CHECK(std::abs(per_cent(synthetic.hits(blocks), synthetic) - share) < .051);
}

}  // namespace
}  // namespace moesim::test_reuse
