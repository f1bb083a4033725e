// SPDX-License-Identifier: Apache-2.0
// Do tiers of the KV cache hold, move and forget blocks as they should, and does a run wait for
// them?
#include <limits>
#include <map>
#include <set>

#include <fmt/format.h>

#include "hardware/rng.hpp"
#include "sim/kv_tiers/kv_tier.hpp"
#include "sim/serving/simulator.hpp"
#include "sim/serving/step_time_estimate.hpp"
#include "tests/temporary.hpp"
#include "tests/tiny_experiment.hpp"

namespace moesim::test_kv_tiers {
namespace {

using Catch::Matchers::Contains;
using namespace test;

Time at_s(double seconds) { return Time{} + to_duration(Seconds(seconds)); }

// ---- links ----

// Seconds at which transfers of these bytes end that begin together, by port.
std::vector<double> ends(TransferLink link, const std::vector<std::pair<int, Bytes>>& transfers) {
  for (const auto& [port, bytes] : transfers) link.start(port, bytes, Time{});
  std::vector<double> seconds(transfers.size());
  while (const std::optional<Time> next = link.next()) {
    std::vector<TransferId> landed;
    link.land(*next, landed);
    for (const TransferId id : landed) seconds[id] = to_seconds(*next).count();
  }
  return seconds;
}

TEST_CASE("known answer 6: two loads on a link take turns, or share it from first to last byte") {
  const TransferLink::Rates rates{.port = BytesPerSecond(10e9)};
  const std::vector<std::pair<int, Bytes>> two{{0, Bytes(1e9)}, {0, Bytes(1e9)}};
  CHECK(ends({LinkShare::fifo, rates, 1}, two) == std::vector{.1, .2});
  CHECK(ends({LinkShare::equal, rates, 1}, two) == std::vector{.2, .2});
  // Unequal ones: 1 GB at 5 GB/s, then the 2 GB left of the other at 10.
  const std::vector<std::pair<int, Bytes>> unequal{{0, Bytes(3e9)}, {0, Bytes(1e9)}};
  CHECK(ends({LinkShare::fifo, rates, 1}, unequal) == std::vector{.3, .4});
  CHECK(ends({LinkShare::equal, rates, 1}, unequal) == std::vector{.4, .2});
  // Other ports are other links.
  CHECK(ends({LinkShare::fifo, rates, 2}, {{0, Bytes(1e9)}, {1, Bytes(2e9)}}) ==
        std::vector{.1, .2});
}

TEST_CASE("known answer 6: ranks share what all links have, and have more when one is done") {
  // 80 GB/s for four links of 32: 20 each; three: 26.7; two: 32, which their own links allow.
  for (const LinkShare share : {LinkShare::fifo, LinkShare::equal}) {
    const TransferLink::Rates rates{.port = BytesPerSecond(32e9), .all = BytesPerSecond(80e9)};
    const auto seconds = ends({share, rates, 4}, {{0, Bytes(20e9)},
                                                  {1, Bytes(20e9 + 80e9 / 3)},
                                                  {2, Bytes(20e9 + 80e9 / 3 + 32e9)},
                                                  {3, Bytes(20e9 + 80e9 / 3 + 64e9)}});
    CHECK_THAT(seconds[0], WithinRel(1., 1e-9));
    CHECK_THAT(seconds[1], WithinRel(2., 1e-9));
    CHECK_THAT(seconds[2], WithinRel(3., 1e-9));
    CHECK_THAT(seconds[3], WithinRel(4., 1e-9));
  }
}

TEST_CASE("a transfer alone takes its latency and its bytes, and a link is busy while it carries") {
  TransferLink link(LinkShare::fifo, {.port = BytesPerSecond(10e9), .latency = Seconds(.002)}, 2);
  std::vector<TransferId> landed;
  link.start(0, Bytes(1e9), at_s(1));
  CHECK(link.next() == at_s(1.102));
  link.land(at_s(3), landed);
  link.start(1, Bytes(2e9), at_s(3));
  link.start(0, Bytes(1e9), at_s(3));
  link.land(at_s(5), landed);
  CHECK(landed == std::vector<TransferId>{0, 2, 1});
  CHECK(link.idle());
  CHECK(link.bytes() == Bytes(4e9));
  // Busy: bytes / bandwidth and latencies, as no link was idle while work waited.
  CHECK_THAT(link.busy(at_s(5)).count(), WithinRel(.4 + 3 * .002, 1e-9));
}

// A piece of b bytes takes .5 or 2.9 us and b / 55 GB/s: one cudaMemcpyBatchAsync for all pieces,
// or one cudaMemcpyAsync for each. H100 over PCIe 5 has 9, 51, 30 and 54 GB/s where this says the
// same.
TEST_CASE(
    "pieces of 32 KiB move at 9 GB/s one by one, at 30 in a batch, and large ones at 51 to 54") {
  const auto rate = [](double piece_us, double bytes) {
    KvTierPlan plan;
    plan.bandwidth = BytesPerSecond(55e9);
    plan.piece_time = Seconds(1e-6 * piece_us);
    return 1e-9 * bytes / load_time(plan, Bytes(bytes), 1).count();
  };
  constexpr double kib = 1024;
  CHECK_THAT(rate(2.9, 32 * kib), WithinAbs(9.37, .01));
  CHECK_THAT(rate(2.9, 2048 * kib), WithinAbs(51.11, .01));
  CHECK_THAT(rate(.5, 32 * kib), WithinAbs(29.91, .01));
  CHECK_THAT(rate(.5, 2048 * kib), WithinAbs(54.29, .01));
}

TEST_CASE("each piece of a transfer takes its time beside the bytes") {
  TransferLink link(
      LinkShare::fifo,
      {.port = BytesPerSecond(10e9), .latency = Seconds(.002), .piece_time = Seconds(.001)}, 1);
  std::vector<TransferId> landed;
  link.start(0, Bytes(1e9), at_s(0), 96);
  CHECK(link.next() == at_s(.1 + .002 + .096));
  link.land(at_s(1), landed);
  link.start(0, Bytes(1e9), at_s(1), 0);
  CHECK(link.next() == at_s(1.102));
  CHECK_THAT(link.alone(Bytes(1e9), 96).count(), WithinRel(.198, 1e-9));
}

// ---- a tier ----

KvTierPlan plan_of(const std::string& tier) {
  const ConfigNode node = config("{\"tiers\": [" + tier + "]}");
  return read_kv_tiers(node.child("tiers"), tier_evictions(), tier_writes(), BytesPerSecond(60e9))
      .front();
}

std::vector<KvTier::Landed> land(KvTier& tier, double seconds) {
  std::vector<KvTier::Landed> landed;
  tier.land(at_s(seconds), landed);
  return landed;
}

TEST_CASE("law 4: a block can be loaded when its copy has landed, and makes room only then") {
  const KvTierPlan plan = plan_of(R"({"capacity": "1 GB", "bandwidth": "1 B/s"})");
  KvTier tier(plan, 2, {Bytes(1)}, 1);
  const std::vector<BlockHash> blocks{1, 2, 3};
  const auto stored = tier.store(0, blocks, at_s(0));
  // The third has no room: both others are on their way.
  REQUIRE(stored.size() == 1);
  CHECK(stored[0].places == std::vector<std::size_t>{0, 1});
  CHECK(tier.holds(1));
  CHECK_FALSE(tier.has(1));
  CHECK_FALSE(tier.holds(3));
  CHECK(tier.next() == at_s(2));
  CHECK(land(tier, 1.9).empty());
  REQUIRE(land(tier, 2).size() == 1);
  CHECK(tier.has(1));
  // What is being loaded makes no room either: the other one does, though it was used last.
  tier.use(0, std::vector<BlockHash>{1, 2});
  tier.load(0, {2}, at_s(2));
  tier.store(0, std::vector<BlockHash>{3}, at_s(2));
  CHECK(tier.holds(2));
  CHECK_FALSE(tier.holds(1));
  const KvTierTally tally = tier.tally(at_s(2));
  CHECK(tally.written == 3);
  CHECK(tally.evicted == 1);
  CHECK(tally.dead == 1);
  CHECK(tally.refused == 1);
}

TEST_CASE("the order of eviction is that of the last use") {
  const KvTierPlan plan = plan_of(R"({"capacity": "1 GB"})");
  KvTier tier(plan, 2, {Bytes(1)}, 1);
  tier.store(0, std::vector<BlockHash>{1, 2}, at_s(0));
  land(tier, 1);
  tier.use(0, std::vector<BlockHash>{1});
  tier.store(0, std::vector<BlockHash>{3}, at_s(1));
  CHECK(tier.holds(1));
  CHECK_FALSE(tier.holds(2));
}

// ---- what sessions announce ----

TEST_CASE("a block is needed when the first of its agents comes back") {
  using State = NextRequest::State;
  const auto due = [](double s) { return NextRequest{State::due, at_s(s), 0}; };
  const NextRequest waits{State::waits, {}, 2}, runs{State::runs, {}, 0}, never;
  BlockOwners owners;
  CHECK(owners.own(7, std::vector<BlockHash>{1, 2}) == std::vector<BlockHash>{1, 2});
  CHECK(owners.own(8, std::vector<BlockHash>{1, 3}) == std::vector<BlockHash>{1, 3});
  CHECK(owners.next(3) == due(0));
  CHECK(owners.announce({7, due(50)}) == std::vector<BlockHash>{1, 2});
  owners.announce({8, due(40)});
  CHECK(owners.next(1) == due(40));
  owners.announce({8, runs});
  CHECK(owners.next(1) == due(50));
  CHECK(owners.next(3) == runs);
  owners.announce({7, waits});
  CHECK(owners.next(1) == runs);
  // After a compaction the agent needs less of what it had.
  CHECK(owners.own(7, std::vector<BlockHash>{1, 4}) == std::vector<BlockHash>{1, 2, 4});
  CHECK_FALSE(owners.has(2));
  owners.announce({8, never});
  CHECK_FALSE(owners.has(3));
  CHECK(owners.has(1));
  CHECK(owners.announce({7, never}) == std::vector<BlockHash>{1, 4});
  CHECK(owners.next(1) == never);
  CHECK(owners.announce({7, due(1)}).empty());
}

// Three agents with a block each: 1 waits for three turns, 2 for one, 3 comes back in an hour.
TEST_CASE("oracle and steps_to_use give up what waits longest; oracle also knows of pauses") {
  for (const auto& [eviction, first_out] : std::map<std::string, std::vector<BlockHash>>{
           {"oracle", {1, 2, 4, 3}}, {"steps_to_use", {1, 2, 3, 4}}, {"lru", {3, 2, 4, 1}}}) {
    CAPTURE(eviction);
    const KvTierPlan plan = plan_of(fmt::format(
        R"({{"capacity": "1 GB", "eviction": "{}", "bandwidth": "1000000000 TB/s"}})", eviction));
    KvTier tier(plan, 4, {Bytes(1)}, 1);
    for (const BlockHash block : std::vector<BlockHash>{3, 2, 4, 1}) {
      tier.own(block, std::vector{block});
      tier.store(0, std::vector{block}, at_s(0));
      land(tier, 0);
    }
    using State = NextRequest::State;
    tier.announce({1, {State::waits, {}, 3}});
    tier.announce({2, {State::waits, {}, 1}});
    tier.announce({3, {State::due, at_s(60), 0}});
    tier.announce({4, {State::due, at_s(3600), 0}});
    for (BlockHash next = 10; const BlockHash out : first_out) {
      CHECK(tier.holds(out));
      tier.own(next, std::vector{next});  // due now
      tier.store(0, std::vector{next++}, at_s(1));
      land(tier, 1);
      CHECK_FALSE(tier.holds(out));
    }
  }
}

// Agents with a block each, asked for in turn: hits of a memory of so many blocks that knows when
// each block is needed next. Without a clock.
std::int64_t hits_of(std::string_view eviction, std::int64_t room,
                     const std::vector<BlockHash>& asked) {
  const auto policy =
      tier_evictions().make(ConfigNode(Json(std::string(eviction)), "test.json").as_policy());
  const auto order = policy->order();
  std::set<BlockHash> held;
  std::int64_t hits = 0;
  for (std::size_t i = 0; i < asked.size(); ++i) {
    const BlockHash block = asked[i];
    if (held.contains(block)) {
      order->use(block);
      ++hits;
    } else {
      if (std::ssize(held) == room) {
        const BlockHash out = *order->victim([](BlockHash) { return false; });
        order->remove(out);
        held.erase(out);
      }
      order->add(block);
      held.insert(block);
    }
    const auto next = std::find(asked.begin() + std::ptrdiff_t(i) + 1, asked.end(), block);
    if (next != asked.end()) {
      order->next_use(block, {NextRequest::State::due, at_s(double(next - asked.begin())), 0});
    } else {
      order->next_use(block, {});
    }
  }
  return hits;
}

TEST_CASE("law 8: without a clock nothing hits more than oracle, and lru more with more room") {
  for (std::uint64_t seed = 1; seed <= 4; ++seed) {
    Rng rng(seed, "test/kv_tiers/oracle");
    std::vector<BlockHash> asked;
    for (int i = 0; i < 2000; ++i)
      asked.push_back(std::min(rng.below(60), seed % 2 == 0 ? rng.below(60) : BlockHash{59}));
    std::int64_t before = 0;
    for (const std::int64_t room : {4, 12, 30, 59}) {
      CAPTURE(seed, room);
      const std::int64_t most = hits_of("oracle", room, asked), lru = hits_of("lru", room, asked);
      CHECK(lru >= before);
      before = lru;
      for (const auto& eviction : tier_evictions().entries()) {
        CAPTURE(eviction.name);
        CHECK(hits_of(eviction.name, room, asked) <= most);
      }
      if (room < 59) CHECK(most > lru * 11 / 10);
    }
  }
}

void fill_and_load(std::string_view eviction) {
  CAPTURE(eviction);
  Rng rng(1, "test/kv_tiers");
  const KvTierPlan plan = plan_of(fmt::format(
      R"({{"capacity": "1 GB", "bandwidth": "3 B/s", "aggregate_bandwidth": "7 B/s", "latency": "50 ms", "link": "equal", "eviction": "{}"}})",
      eviction));
  KvTier tier(plan, 20, {Bytes(1)}, 4);
  std::map<TransferId, std::vector<BlockHash>> storing, loading;
  std::multiset<BlockHash> pinned;
  std::set<BlockHash> on_their_way;
  double now = 0;
  for (int round = 0; round < 4000; ++round) {
    now += rng.uniform();
    for (const KvTier::Landed& landed : land(tier, now)) {
      auto& of = landed.load ? loading : storing;
      for (const BlockHash hash : of.at(landed.transfer)) {
        if (landed.load) {
          pinned.erase(pinned.find(hash));
        } else {
          on_their_way.erase(hash);
          REQUIRE(tier.has(hash));
        }
      }
      of.erase(landed.transfer);
    }
    std::vector<BlockHash> some;
    for (int i = 0; i < 4; ++i) some.push_back(rng.below(40));
    const int port = static_cast<int>(rng.below(4));
    if (rng.below(2) == 0) {
      for (const KvTier::Stored& stored : tier.store(port, some, at_s(now))) {
        for (const std::size_t place : stored.places) {
          storing[stored.transfer].push_back(some[place]);
          on_their_way.insert(some[place]);
        }
      }
    } else {
      std::erase_if(some, [&](BlockHash hash) { return !tier.has(hash); });
      std::ranges::sort(some);
      some.erase(std::unique(some.begin(), some.end()), some.end());
      if (some.empty()) continue;
      loading[tier.load(port, some, at_s(now))] = some;
      pinned.insert(some.begin(), some.end());
    }
    const KvTierTally tally = tier.tally(at_s(now));
    REQUIRE(tier.resident() == tally.written - tally.evicted);
    REQUIRE(tier.resident() <= 20);
    for (const BlockHash hash : pinned) REQUIRE(tier.has(hash));
    for (const BlockHash hash : on_their_way) {
      REQUIRE(tier.holds(hash));
      REQUIRE_FALSE(tier.has(hash));
    }
  }
  const KvTierTally tally = tier.tally(at_s(now));
  CHECK(tally.evicted > 500);
  CHECK(tally.refused > 0);
  // Never faster than a link.
  CHECK(tally.read_busy >= Seconds(.999) * (tally.alone_read / Seconds(1)));
  CHECK(tally.write_busy <= Seconds(4 * now));
}

TEST_CASE("law 3: a tier never holds more than its room, and holds what was stored less evicted") {
  for (const auto& eviction : tier_evictions().entries()) fill_and_load(eviction.name);
}

// ---- runs ----

// One rank on one GPU, with prefix caching and a tier or a list of them: 49,152 B of KV cache for a
// block of 16.
constexpr double block_bytes = 3 * 2 * 4 * 64 * 2 * 16;
Json one_rank(const Json& tiers) {
  Json set{{"parallel", {{"dp", 1}, {"tp", 1}, {"ep", 1}}},
           {"placement", {{"replication", 1}}},
           {"kv_cache", {{"prefix_caching", true}}},
           {"scheduling", {{"max_num_batched_tokens", 128}}},
           {"measurement", {{"warmup", 0}}}};
  if (!tiers.is_null()) set["kv_cache"]["tiers"] = tiers.is_array() ? tiers : Json::array({tiers});
  return set;
}

struct Figures {
  std::vector<std::int32_t> hbm, loaded, computed;  // tokens by request
  std::int64_t written = 0, read = 0;               // blocks
  bool operator==(const Figures&) const = default;
};

// Prompts of 65 tokens, 10 s apart, A or B, with 6 blocks of HBM.
Served serve_a_and_b(const std::string& prompts, const Json& tiers, int seconds_apart = 10,
                     const Json& changes = Json::object()) {
  std::string lines;
  for (std::size_t i = 0; i < prompts.size(); ++i)
    lines += fmt::format(
        R"({{"timestamp": {}, "input_length": 65, "output_length": 1, "hash_ids": [{}]}})"
        "\n",
        1000 * seconds_apart * int(i), int(prompts[i]));
  const TemporaryFile file("prompts.jsonl", lines);
  Json set = one_rank(tiers);
  set["workload"] = {
      {"lengths", nullptr},
      {"arrivals", {{"type", "trace"}, {"concurrency", nullptr}, {"file", file.path().string()}}},
      {"requests", prompts.size()}};
  set.merge_patch(changes);
  Experiment e = load_tiny(set);
  e.decode().memory.kv_blocks = 6;
  return serve(e);
}

Figures a_and_b(const std::string& prompts, const Json& tier) {
  const Served served = serve_a_and_b(prompts, tier);
  Figures figures;
  for (const RequestRecord& request : served.requests) {
    figures.hbm.push_back(request.cached_tokens - request.loaded_tokens);
    figures.loaded.push_back(request.loaded_tokens);
    figures.computed.push_back(request.prompt_tokens - request.cached_tokens);
  }
  const OrderedJson json = served.document();
  if (json.contains("tiers")) {
    const OrderedJson& host = json["tiers"]["host"];
    figures.written = std::llround(host["write"]["bytes"].get<double>() / block_bytes);
    figures.read = std::llround(host["read"]["bytes"].get<double>() / block_bytes);
  }
  return figures;
}

// Copies take no time.
Json host(int blocks, const Json& write) {
  return {{"capacity", fmt::format("{} B", blocks * block_bytes)},
          {"bandwidth", "1000000000 TB/s"},
          {"write", write}};
}

TEST_CASE("known answer 4: what A finds after B, and what was copied for that") {
  struct Row {
    Json tier;
    int loaded, computed, written, read;
  };
  const Row rows[] = {{host(8, "write_through"), 48, 1, 8, 3},
                      {host(8, "write_back"), 48, 1, 6, 3},
                      {host(4, "write_through"), 0, 49, 12, 0},
                      {host(4, "write_back"), 48, 1, 6, 3},
                      {nullptr, 0, 49, 0, 0}};
  for (const Row& row : rows) {
    CAPTURE(row.tier.dump());
    const Figures figures = a_and_b("ABA", row.tier);
    CHECK(figures.hbm == std::vector<std::int32_t>{0, 0, 16});
    CHECK(figures.loaded == std::vector<std::int32_t>{0, 0, row.loaded});
    CHECK(figures.computed == std::vector<std::int32_t>{65, 65, row.computed});
    CHECK(figures.written == row.written);
    CHECK(figures.read == row.read);
  }
}

TEST_CASE("known answer 4: what is there already is not copied again") {
  const auto moved = [](const Json& write) {
    const Figures figures = a_and_b("ABABA", host(8, write));
    return std::pair{figures.written, figures.read};
  };
  CHECK(moved("write_through") == std::pair<std::int64_t, std::int64_t>{8, 9});
  CHECK(moved("write_back") == std::pair<std::int64_t, std::int64_t>{6, 9});
}

// ---- tiers below each other ----

// The same as host(), below it.
Json disk(int blocks, const Json& write, const Json& changes = Json::object()) {
  Json tier = host(blocks, write);
  tier["name"] = "disk";
  tier.merge_patch(changes);
  return tier;
}

// Blocks that a tier's links carried in all.
struct Moved {
  std::int64_t read = 0, passed = 0, kept = 0, written = 0;
  bool operator==(const Moved&) const = default;
};
Moved moved(const Served& served, const char* tier) {
  const OrderedJson stats = served.document()["tiers"][tier];
  const auto blocks = [](double bytes) { return std::llround(bytes / block_bytes); };
  return {blocks(stats["read"]["bytes"]), blocks(stats.value("passed_bytes", 0.)),
          blocks(stats.value("kept_bytes", 0.)), blocks(stats["write"]["bytes"])};
}

// By hand. HBM of 6 blocks, a host of 4 that is written back. B takes A4, A3, A2 from HBM, and the
// host has these three. The second A loads them; B4 and B3 make way meanwhile, when of the host
// only B4 is not pinned: B3 takes its place, and B2 that of A4. The second B finds B1 in HBM, B2
// and B3 in the host; B4 is lost, unless a disk below has it.
TEST_CASE("what a host of 4 blocks gives up is found on the disk of 8 below it") {
  const auto last = [](const Json& tiers) {
    const Served served = serve_a_and_b("ABAB", tiers);
    const RequestRecord& request = served.requests.back();
    const auto on_disk = request.loaded_of_lower[0];
    CHECK(request.cached_tokens - request.loaded_tokens == 16);
    CHECK(request.loaded_of_lower[1] == 0);
    return std::tuple(request.loaded_tokens - on_disk, on_disk,
                      request.prompt_tokens - request.cached_tokens);
  };
  const Json four = host(4, "write_back");
  CHECK(last(four) == std::tuple(32, 0, 17));
  CHECK(last(Json::array({four, disk(8, "write_back")})) == std::tuple(32, 16, 1));
  CHECK(last(Json::array({four, disk(8, "write_through")})) == std::tuple(32, 16, 1));
  // As good as a host of both sizes.
  CHECK(last(host(12, "write_back")) == std::tuple(48, 0, 1));
}

// The host is written A4, A3, A2; B4, B3, B2; and under the second B A4, A3, A2 again. Of these B4
// makes way for B3, A4 for B2, A3 for A4, and A2 for A3. B4 passes from the disk and stays, for
// which B3 goes, and then B2 for A2: the disk is written B4, A4, A3, A2, B3, B2. Where loads go
// directly, nothing stays: B3 makes way for A2, and B2 is left.
TEST_CASE("what two tiers carried, block by block") {
  const auto of = [](const Json& disk) {
    const Served served = serve_a_and_b("ABAB", Json::array({host(4, "write_back"), disk}));
    const OrderedJson json = served.document();
    CHECK(json["kv"]["prefix_hit_tokens_by_tier"] ==
          OrderedJson{{"hbm", 32},
                      {"host", 80},
                      {"disk", json["tiers"]["disk"]["read"]["bytes"].get<double>() > 0 ? 16 : 0}});
    return std::pair(moved(served, "host"), moved(served, "disk"));
  };
  CHECK(of(disk(8, "write_back")) ==
        std::pair(Moved{.read = 6, .passed = 1, .kept = 1, .written = 9},
                  Moved{.read = 1, .written = 6}));
  CHECK(of(disk(8, "write_back", {{"path", "direct"}})) ==
        std::pair(Moved{.read = 5, .written = 9}, Moved{.read = 1, .written = 5}));
  CHECK(of(disk(8, "write_through")) ==
        std::pair(Moved{.read = 6, .passed = 1, .kept = 1, .written = 9},
                  Moved{.read = 1, .written = 6}));
}

// The second B loads 2 blocks from the host at 1 a second, and 1 from the disk.
TEST_CASE("a load from a lower tier takes both links or its own, and ends with the slower one") {
  const auto waits = [](double disk_blocks_per_s, const char* path) {
    Json near = host(4, "write_back");
    near["bandwidth"] = fmt::format("{} B/s", block_bytes);
    near["write_bandwidth"] = "1000000000 TB/s";
    Json far = disk(8, "write_back", {{"path", path}});
    far["bandwidth"] = fmt::format("{} B/s", disk_blocks_per_s * block_bytes);
    far["write_bandwidth"] = "1000000000 TB/s";
    const Served served = serve_a_and_b("ABAB", Json::array({near, far}));
    const RequestRecord& request = served.requests.back();
    CHECK(request.loaded_tokens == 48);
    return to_seconds(request.loading).count();
  };
  CHECK_THAT(waits(2, "staged"), WithinRel(3., 1e-9));
  CHECK_THAT(waits(2, "direct"), WithinRel(2., 1e-9));
  CHECK_THAT(waits(.25, "staged"), WithinRel(4., 1e-9));
  CHECK_THAT(waits(.25, "direct"), WithinRel(4., 1e-9));
}

TEST_CASE("law 4: a hit reaches over HBM and all tiers up to the first block that none has") {
  const KvTierPlan plan = plan_of(R"({"capacity": "1 GB", "bandwidth": "1 B/s"})");
  KvTier lowest(plan, 9, {Bytes(1)}, 2);
  KvTier lower(plan, 9, {Bytes(1)}, 2, {&lowest, 0});
  KvTier first(plan, 9, {Bytes(1)}, 1, {&lower, 1});
  const KvLayout layout = load_tiny(one_rank(nullptr)).decode().kv_layout;
  KvCache cache(layout, 9, true, false, {&first, 0});
  std::vector<BlockHash> prompt = prompt_hashes(nullptr, 1, 16 * 7, 16);
  const auto find = [&](std::int32_t tokens = 16 * 7 + 1) {
    const CacheHit hit = cache.find(prompt, tokens);
    CHECK(hit.blocks == 0);
    return std::tuple(hit.loads, hit.of_lower[0], hit.of_lower[1]);
  };
  // On their way nobody finds them; the first tier's also go down, as write-through has it.
  lower.store(1, std::vector{prompt[1], prompt[3]}, at_s(0));
  lowest.store(1, std::vector{prompt[2], prompt[5]}, at_s(0));
  first.store(0, std::vector{prompt[0]}, at_s(0));
  CHECK(find() == std::tuple(0, 0, 0));
  land(first, 1);
  CHECK(find() == std::tuple(1, 0, 0));
  land(lower, 2), land(lowest, 2);
  // 0 in the first, 1 and 3 in the next, 2 in the last; 4 is nowhere.
  CHECK(find() == std::tuple(4, 2, 1));
  CHECK(find(16 * 3) == std::tuple(2, 1, 0));
  first.store(0, std::vector{prompt[4]}, at_s(2));
  land(first, 3);
  CHECK(find() == std::tuple(6, 2, 2));
  // What is nearer is taken from there: by now the copy of 0 has gone down, too.
  land(lower, 10);
  CHECK(lower.has(prompt[0]));
  CHECK(find() == std::tuple(6, 2, 2));
}

TEST_CASE("copies to a lower tier pin their source, and neither tier holds more than its room") {
  for (const char* write : {"write_through", "write_back"}) {
    CAPTURE(write);
    Rng rng(2, "test/kv_tiers");
    const KvTierPlan far = plan_of(
        fmt::format(R"({{"capacity": "1 GB", "bandwidth": "2 B/s", "write": "{}"}})", write));
    const KvTierPlan near = plan_of(R"({"capacity": "1 GB", "bandwidth": "5 B/s"})");
    KvTier lower(far, 16, {Bytes(1)}, 2);
    std::vector<std::unique_ptr<KvTier>> upper;
    for (int i = 0; i < 2; ++i)
      upper.push_back(
          std::make_unique<KvTier>(near, 7, BlockShard{Bytes(1)}, 1, TierBelow{&lower, i}));
    double now = 0;
    for (int round = 0; round < 4000; ++round) {
      now += rng.uniform();
      for (const auto& tier : upper) land(*tier, now);
      for (const KvTier::Landed& landed : land(lower, now)) {
        if (!landed.load) upper[std::size_t(landed.port)]->copied(landed.transfer);
      }
      std::vector<BlockHash> some;
      for (int i = 0; i < 4; ++i) some.push_back(rng.below(30));
      std::ranges::sort(some);
      some.erase(std::unique(some.begin(), some.end()), some.end());
      const std::size_t rank = rng.below(2);
      KvTier& near_tier = *upper[rank];
      const auto keep_if_in = [&](const KvTier& tier) {
        std::erase_if(some, [&](BlockHash hash) { return !tier.has(hash); });
      };
      switch (rng.below(4)) {
        case 0: near_tier.store(0, some, at_s(now)); break;
        case 1:
          near_tier.use(0, some);
          near_tier.copy_found(0, at_s(now));
          break;
        case 2:
          keep_if_in(near_tier);
          if (!some.empty()) near_tier.load(0, some, at_s(now));
          break;
        default:
          keep_if_in(lower);
          if (some.empty()) break;
          lower.load(int(rank), some, at_s(now));
          near_tier.keep(0, some, at_s(now));
      }
      for (const KvTier* tier : {upper[0].get(), upper[1].get(), &lower}) {
        const KvTierTally tally = tier->tally(at_s(now));
        REQUIRE(tier->resident() == tally.written + tally.kept - tally.evicted);
        REQUIRE(tier->resident() <= tier->capacity());
      }
    }
    CHECK(lower.tally(at_s(now)).written > 30);
    CHECK(upper[0]->tally(at_s(now)).kept > 100);
  }
}

// The last A, which loads 3 blocks in 3 s, with something beside it.
Served loads_three(const std::string& read, const Json& tier_changes, std::string more = "") {
  const TemporaryFile file(
      "prompts.jsonl",
      R"({"timestamp": 0, "input_length": 65, "output_length": 1, "hash_ids": [1]}
{"timestamp": 40000, "input_length": 65, "output_length": 1, "hash_ids": [2]}
{"timestamp": 80000, "input_length": 65, "output_length": 1, "hash_ids": [1]}
)" + more);
  Json tier = host(8, "write_through");
  tier["bandwidth"] = fmt::format("{} B/s", block_bytes);
  tier.merge_patch(tier_changes);
  Json set = one_rank(tier);
  set["kv_cache"]["read"] = read;
  set["workload"] = {
      {"lengths", nullptr},
      {"arrivals", {{"type", "trace"}, {"concurrency", nullptr}, {"file", file.path().string()}}},
      {"requests", more.empty() ? 3 : 4}};
  Experiment e = load_tiny(set);
  e.decode().memory.kv_blocks = 6;
  return serve(e);
}

double ttft(const RequestRecord& request) {
  return to_seconds(request.first_token - request.arrival).count();
}

TEST_CASE("a request waits for its blocks, and with layers one by one for the slower of both") {
  // What the last A computes of 65 tokens, over 64 in the cache.
  const Served parked = loads_three("parked", Json::object());
  REQUIRE(parked.requests.size() == 3);
  CHECK(parked.requests[2].loaded_tokens == 48);
  const double step = to_seconds(parked.requests[2].first_token - parked.requests[2].begun).count();
  CHECK(step > 0);
  CHECK_THAT(ttft(parked.requests[2]), WithinRel(3 + step, 1e-9));
  // It is told how long a request was parked; in blocking steps none is.
  CHECK(parked.requests[2].loading == to_duration(Seconds(3)));
  CHECK(parked.requests[1].loading == Duration{});
  CHECK(loads_three("blocking", Json::object()).requests[2].loading == Duration{});
  CHECK_THAT(ttft(loads_three("blocking", Json::object()).requests[2]), WithinRel(3 + step, 1e-9));
  // Load: a second for each of 3 layers; the step hides behind it but for the last layer.
  CHECK_THAT(ttft(loads_three("layerwise", Json::object()).requests[2]),
             WithinRel(3 + step / 3, 1e-9));
  // Where the step is slower only the first layer's blocks are waited for.
  const double fast = step / 100;
  const Json rate{{"bandwidth", fmt::format("{:.17g} B/s", 3 * block_bytes / fast)}};
  CHECK_THAT(ttft(loads_three("layerwise", rate).requests[2]), WithinRel(fast / 3 + step, 1e-6));
  CHECK_THAT(ttft(loads_three("parked", rate).requests[2]), WithinRel(fast + step, 1e-6));
  // Whatever the load takes: between the slower of both and their sum.
  for (const double load : {.01, .3, 1., 3., 50.}) {
    CAPTURE(load);
    const Json at{{"bandwidth", fmt::format("{:.17g} B/s", 3 * block_bytes / (load * step))}};
    const double waited = ttft(loads_three("layerwise", at).requests[2]);
    CHECK(waited > std::max(load, 1.) * step);
    CHECK(waited < (load + 1) * step);
    CHECK_THAT(ttft(loads_three("blocking", at).requests[2]), WithinRel((load + 1) * step, 1e-6));
  }
  // A latency is waited for once.
  CHECK_THAT(ttft(loads_three("parked", {{"latency", "2 s"}}).requests[2]),
             WithinRel(5 + step, 1e-9));
  const OrderedJson json = parked.document();
  CHECK_THAT(json["tiers"]["host"]["mean_wait_ms"].get<double>(), WithinRel(3000., 1e-9));
}

// Three layers of keys and values: 6 pieces a block, 18 in all.
TEST_CASE("a load takes the time of its pieces, of each layer or of each block") {
  const auto loaded = [](const Json& changes) {
    return to_seconds(loads_three("parked", changes).requests[2].loading).count();
  };
  CHECK_THAT(loaded({{"piece_time", "10 ms"}}), WithinRel(3.18, 1e-9));
  CHECK_THAT(loaded({{"piece_time", "10 ms"}, {"pieces", "layer"}}), WithinRel(3.18, 1e-9));
  CHECK_THAT(loaded({{"piece_time", "10 ms"}, {"pieces", "block"}}), WithinRel(3.03, 1e-9));
  CHECK_THAT(loaded({{"piece_time", "0 us"}}), WithinRel(3., 1e-9));
}

// 65 tokens and 33 of a reply: keys of 97 tokens are 6 whole blocks, of which the prompt fills 4.
// What the next turn asks with is a prompt: 98 tokens of before and 31 more, 8 whole blocks.
TEST_CASE("replies are copied to a tier or stay in HBM until a prompt holds them") {
  const auto written = [](const Json& output, int turns, const char* write) {
    Json set = one_rank(host(64, write));
    set["kv_cache"]["tiers"][0]["bandwidth"] = "1000000000 TB/s";
    if (!output.is_null()) set["kv_cache"]["offload_output"] = output;
    set["workload"] = {{"arrivals", {{"concurrency", 1}}},
                       {"lengths", nullptr},
                       {"requests", 2},
                       {"sessions",
                        {{"type", "generated"},
                         {"turns", turns},
                         {"first", 65},
                         {"new", 31},
                         {"output", 33},
                         {"gap", "1 s"}}}};
    Experiment e = load_tiny(set);
    e.decode().memory.kv_blocks = turns == 1 ? 7 : 100;
    return moved(serve(e), "host").written;
  };
  CHECK(written(nullptr, 1, "write_through") == 2 * 6);
  CHECK(written(true, 1, "write_through") == 2 * 6);
  CHECK(written(false, 1, "write_through") == 2 * 4);
  // HBM of 7 blocks: the second session takes all six of the first.
  CHECK(written(true, 1, "write_back") == 6);
  CHECK(written(false, 1, "write_back") == 4);
  // Turn 2 fills 8 blocks and 2 more of its reply.
  CHECK(written(true, 2, "write_through") == 10);
  CHECK(written(false, 2, "write_through") == 8);
}

TEST_CASE("others compute while a request is parked, and none while all wait") {
  const std::string other =
      R"({"timestamp": 81000, "input_length": 17, "output_length": 2, "hash_ids": [9]})";
  const Served parked = loads_three("parked", Json::object(), other);
  REQUIRE(parked.requests.size() == 4);
  CHECK(parked.requests[3].last_token < at_s(83));
  CHECK(parked.requests[2].first_token > at_s(83));
  const Served blocking = loads_three("blocking", Json::object(), other);
  CHECK(blocking.requests[3].first_token > at_s(83));
}

TEST_CASE("requests that need the same blocks share one load") {
  const std::string same =
      R"({"timestamp": 80001, "input_length": 65, "output_length": 1, "hash_ids": [1]})";
  const Served served = loads_three("parked", Json::object(), same);
  REQUIRE(served.requests.size() == 4);
  CHECK(served.requests[3].cached_tokens == 64);
  CHECK(served.requests[3].loaded_tokens == 0);
  CHECK(served.requests[3].first_token == served.requests[2].first_token);
  const OrderedJson json = served.document();
  CHECK(json["tiers"]["host"]["read"]["transfers"] == 1);
  CHECK(json["tiers"]["host"]["read"]["bytes"] == 3 * block_bytes);
}

TEST_CASE("a hit shorter than it is worth is computed") {
  Json tier = host(8, "write_through");
  const auto loaded = [&](int least) {
    const TemporaryFile file(
        "prompts.jsonl",
        R"({"timestamp": 0, "input_length": 65, "output_length": 1, "hash_ids": [1]}
{"timestamp": 10000, "input_length": 65, "output_length": 1, "hash_ids": [2]}
{"timestamp": 20000, "input_length": 65, "output_length": 1, "hash_ids": [1]}
)");
    Json set = one_rank(tier);
    set["kv_cache"]["min_load_tokens"] = least;
    set["workload"] = {
        {"lengths", nullptr},
        {"arrivals", {{"type", "trace"}, {"concurrency", nullptr}, {"file", file.path().string()}}},
        {"requests", 3}};
    Experiment e = load_tiny(set);
    e.decode().memory.kv_blocks = 6;
    return serve(e).requests[2].loaded_tokens;
  };
  CHECK(loaded(48) == 48);
  CHECK(loaded(49) == 0);
}

// Known answer 7: 98,304 B a token over 54.38 GB/s are 1.808 us, computing takes 20 us: from 2,000
// / (20 - 1.808) = 110 tokens on, which are 7 blocks of 16.
TEST_CASE("known answer 7: a hit of 7 blocks is loaded sooner than computed, one of 6 is not") {
  const Seconds load = Bytes(98304) / BytesPerSecond(54.38e9), compute(20e-6), latency(2e-3);
  CHECK_THAT(load.count(), WithinRel(1.808e-6, 1e-3));
  CHECK(break_even_blocks(latency, load, compute) == 110);  // of one token
  CHECK(break_even_blocks(latency, 16. * load, 16. * compute) == 7);
  CHECK(break_even_blocks(Seconds(0), load, compute) == 1);
  // A load of exactly the same length is not shorter.
  CHECK(break_even_blocks(Seconds(4), Seconds(1), Seconds(2)) == 5);
  CHECK_FALSE(break_even_blocks(latency, compute, compute));
  CHECK_FALSE(break_even_blocks(Seconds(0), compute, load));
}

TEST_CASE("hits are loaded from the break-even on, and none where to compute is always shorter") {
  const auto last = [](const Json& changes) {
    Json tier = host(8, "write_through");
    tier.merge_patch(changes);
    Json set{{"kv_cache", {{"fetch", "if_shorter"}}}};
    const Served served = serve_a_and_b("ABA", tier, 10, set);
    return served.requests.back().loaded_tokens;
  };
  // What a token of a full step of 128 takes, by the step that the first prompt had.
  Experiment e = load_tiny(one_rank(host(8, "write_through")));
  const double computed = 48 * prompt_token_time(e.decode()).count();
  CHECK(computed > 0);
  const auto latency = [](double seconds) { return fmt::format("{:.17g} s", seconds); };
  CHECK(last({{"latency", latency(.99 * computed)}}) == 48);
  CHECK(last({{"latency", latency(1.01 * computed)}}) == 0);
  CHECK(last({{"bandwidth", fmt::format("{:.17g} B/s", 3 * block_bytes / (.99 * computed))}}) ==
        48);
  CHECK(last({{"bandwidth", fmt::format("{:.17g} B/s", 3 * block_bytes / (1.01 * computed))}}) ==
        0);
}

// Known answer 3. Of a prompt of 65,537 tokens 65,536 are in the host, 6,442,450,944 B, and a step
// takes 48 times c, whatever it computes.
TEST_CASE("known answer 3: 65,536 tokens of a host, parked, blocking and layer by layer") {
  const auto ms = [](const char* read, double c_ms) {
    std::string lines;
    for (const int prompt : {1, 2, 1}) {
      std::string ids = fmt::format("{}", 1000 * prompt);
      for (int i = 1; i <= 128; ++i) ids += fmt::format(", {}", 1000 * prompt + i);
      lines += fmt::format(
          R"({{"timestamp": {}, "input_length": 65537, "output_length": 1, "hash_ids": [{}]}})"
          "\n",
          10'000 * (prompt == 2     ? 1
                    : lines.empty() ? 0
                                    : 2),
          ids);
    }
    const TemporaryFile file("prompts.jsonl", lines);
    Json set = one_rank({{"capacity", "20 GB"}, {"bandwidth", "54.38 GB/s"}});
    set["model"] = "../models/zoo/qwen3_30b_a3b.json";
    set["precision"] = {{"experts", "bf16"}, {"attention", "bf16"}, {"kv_cache", "bf16"}};
    set["scheduling"]["max_num_batched_tokens"] = 16384;
    set["max_model_len"] = 131072;
    set["two_term_step"] = {{"a", "0 s"}, {"c", fmt::format("{} ms", 48 * c_ms)}};
    set["kv_cache"]["read"] = read;
    set["workload"] = {
        {"lengths", nullptr},
        {"arrivals", {{"type", "trace"}, {"concurrency", nullptr}, {"file", file.path().string()}}},
        {"requests", 3}};
    Json json = tiny_experiment(set);
    json["model"] = set["model"];
    Experiment e = test::load(json);
    e.decode().memory.kv_blocks = 4097;
    const Served served = serve(e);
    CHECK(served.requests.back().loaded_tokens == 65536);
    return 1e3 * ttft(served.requests.back());
  };
  for (const char* read : {"parked", "blocking"}) {
    CHECK_THAT(ms(read, .5), WithinAbs(118.47 + 24, .01));
    CHECK_THAT(ms(read, 3), WithinAbs(262.47, .01));
  }
  CHECK_THAT(ms("layerwise", .5), WithinAbs(118.47 + .5, .01));
  CHECK_THAT(ms("layerwise", 3), WithinAbs(2.468 + 144, .01));
}

TEST_CASE("law 9: of a hit a drafting module computes the last block again, wherever it was") {
  const auto last = [](const std::string& prompts, const Json& tiers) {
    const Json drafts{
        {"speculative", {{"num_speculative_tokens", 1}, {"acceptance_rate", 0}, {"draft", "mtp"}}}};
    const Served served = serve_a_and_b(prompts, tiers, 10, drafts);
    const RequestRecord& request = served.requests.back();
    const auto on_disk = request.loaded_of_lower[0];
    return std::tuple(request.cached_tokens - request.loaded_tokens,
                      request.loaded_tokens - on_disk, on_disk);
  };
  // Without drafts the second A finds 1 block in HBM and 3 in the host.
  Json near = host(8, "write_through");
  near["capacity"] = "1 GB";
  CHECK(last("AA", near) == std::tuple(48, 0, 0));
  CHECK(last("ABA", near) == std::tuple(16, 32, 0));
  // A first tier that holds nothing of use: one block, which is B's.
  Json one = host(1, "write_back");
  one["capacity"] = fmt::format("{} B", 2 * block_bytes);
  Json far = disk(8, "write_through", {{"capacity", "1 GB"}, {"path", "direct"}});
  const auto [hbm, in_host, on_disk] = last("ABA", Json::array({one, far}));
  CHECK(hbm == 16);
  CHECK(in_host + on_disk == 32);
  CHECK(on_disk > 0);
}

// Sessions that outgrow HBM, over a tier.
Json sessions(const Json& tier, int requests = 160, int lanes = 5) {
  Json set = one_rank(tier);
  set["scheduling"]["max_num_batched_tokens"] = 512;
  set["workload"] = {
      {"arrivals", {{"concurrency", lanes}}},
      {"lengths", nullptr},
      {"requests", requests},
      {"sessions",
       {{"type", "generated"}, {"turns", 4}, {"first", 150}, {"new", 33}, {"output", 21}}}};
  return set;
}

// Tokens that steps computed, and those of them that a preempted request had computed before.
struct ComputedTokens final : RunObserver {
  void step_ended(const StepRecord& record, Time) override {
    all += record.step.prefill_tokens + record.step.decode_tokens;
    again += record.step.recomputed;
    preemptions += record.step.preemptions;
  }
  std::int64_t all = 0, again = 0, preemptions = 0;
};

TEST_CASE("laws 1, 2: prompt tokens were in HBM, a tier, or are computed; what was hit moved") {
  std::vector<Json> tiers;
  const auto add = [&](std::string_view eviction, std::string_view write, const char* link) {
    tiers.push_back({{"capacity", "3 MB"},
                     {"bandwidth", "50 MB/s"},
                     {"link", link},
                     {"eviction", eviction},
                     {"write", write}});
  };
  for (const auto& write : tier_writes().entries()) {
    for (const auto& eviction : tier_evictions().entries()) add(eviction.name, write.name, "fifo");
    add("lru", write.name, "equal");
  }
  tiers.push_back({{"capacity", {{"of_hbm", 3}}}});
  tiers.push_back({{"capacity", "10 MB"}, {"bandwidth", "1 GB/s"}});
  bool again = false;
  for (const char* read : {"parked", "blocking", "layerwise"}) {
    for (const Json& tier : tiers) {
      for (const int blocks : {27, 60}) {
        CAPTURE(read, tier.dump(), blocks);
        Json set = sessions(tier);
        set["kv_cache"]["read"] = read;
        Experiment e = load_tiny(set);
        e.decode().memory.kv_blocks = blocks;
        ComputedTokens computed;
        const Served served = serve(e, {&computed});
        const OrderedJson json = served.document();
        std::int64_t queried = 0, hit = 0, loaded = 0, replies = 0;
        for (const RequestRecord& request : served.requests) {
          REQUIRE(request.state == RequestRecord::State::finished);
          replies += request.output_tokens - 1;  // the last token is not computed
          REQUIRE(request.loaded_tokens <= request.cached_tokens);
          REQUIRE(request.cached_tokens < request.prompt_tokens);
          queried += request.prompt_tokens;
          hit += request.cached_tokens;
          loaded += request.loaded_tokens;
        }
        const OrderedJson& prefix = json["turns"]["all"]["prefix"];
        CHECK(prefix["queried_tokens"] == queried);
        CHECK(prefix["hit_tokens"] == hit);
        CHECK(prefix["loaded_tokens"] == loaded);
        CHECK(prefix["computed_tokens"] == queried - hit);
        // What was preempted is computed again, and counted apart.
        CHECK(computed.all == queried - hit + replies + computed.again);
        if (computed.preemptions == 0) CHECK(computed.again == 0);
        again = again || computed.again > 0;
        CHECK(json["kv"].contains("recomputed_tokens") == (json["kv"]["preemptions"] > 0));
        CHECK(prefix["hit_tokens"] <= prefix["ideal_hit_tokens"]);
        // Of steps until the last arrival.
        const OrderedJson &kv = json["kv"], &by_tier = kv["prefix_hit_tokens_by_tier"];
        CHECK(by_tier["host"] <= loaded);
        CHECK(by_tier["hbm"].get<std::int64_t>() + by_tier["host"].get<std::int64_t>() ==
              kv["prefix_hit_tokens"]);
        const OrderedJson& host = json["tiers"]["host"];
        // Loads of preempted requests, and those given up, are of no first admission.
        const double read_bytes = host["read"]["bytes"];
        CHECK(read_bytes >= double(loaded / 16) * block_bytes);
        if (kv["preemptions"] == 0 && host["given_up_loads"] == 0)
          CHECK(read_bytes == double(loaded / 16) * block_bytes);
        CHECK(host["peak_fill"] <= 1);
        CHECK(host["evicted_bytes"] <= host["write"]["bytes"]);
        CHECK(host["dead_bytes"] <= host["evicted_bytes"]);
      }
    }
  }
  CHECK(again);
}

TEST_CASE("hits are those of HBM and of each tier, and each link carries what was hit behind it") {
  const Json host{{"capacity", "1500 kB"}, {"bandwidth", "50 MB/s"}, {"write", "write_back"}};
  const Json disk{{"name", "disk"}, {"capacity", "4 MB"}, {"bandwidth", "20 MB/s"}};
  const Json pool{{"name", "pool"},
                  {"capacity", "9 MB"},
                  {"bandwidth", "30 MB/s"},
                  {"per", "cluster"},
                  {"aggregate_bandwidth", "40 MB/s"}};
  std::int64_t of_pool = 0;
  for (const char* read : {"parked", "blocking", "layerwise"}) {
    for (const auto& write : tier_writes().entries()) {
      for (const char* path : {"staged", "direct"}) {
        CAPTURE(read, write.name, path);
        Json tiers = Json::array({host, disk, pool});
        tiers[1]["write"] = write.name;
        tiers[2]["write"] = write.name;
        tiers[2]["path"] = path;
        Json set = sessions(tiers);
        set["kv_cache"]["read"] = read;
        Experiment e = load_tiny(set);
        e.decode().memory.kv_blocks = 40;
        const Served served = serve(e);
        const OrderedJson json = served.document();
        std::array<std::int64_t, 3> loaded{};
        for (const RequestRecord& request : served.requests) {
          REQUIRE(request.state == RequestRecord::State::finished);
          const auto& lower = request.loaded_of_lower;
          REQUIRE(lower[0] + lower[1] <= request.loaded_tokens);
          REQUIRE(request.loaded_tokens <= request.cached_tokens);
          loaded[0] += request.loaded_tokens - lower[0] - lower[1];
          loaded[1] += lower[0];
          loaded[2] += lower[1];
        }
        CHECK(loaded[0] > 0);
        CHECK(loaded[1] > 0);
        of_pool += loaded[2];
        const OrderedJson& by_tier = json["kv"]["prefix_hit_tokens_by_tier"];
        std::int64_t hit = 0;
        for (const auto& [name, tokens] : by_tier.items()) hit += tokens.get<std::int64_t>();
        CHECK(by_tier.size() == 4);
        CHECK(hit == json["kv"]["prefix_hit_tokens"]);
        CHECK(json["turns"]["all"]["prefix"]["loaded_tokens"] == loaded[0] + loaded[1] + loaded[2]);
        CHECK(json["turns"]["all"]["prefix"]["hit_tokens"] <=
              json["turns"]["all"]["prefix"]["ideal_hit_tokens"]);
        double through = 0;
        const bool whole =
            json["kv"]["preemptions"] == 0 && json["tiers"]["host"]["given_up_loads"] == 0;
        for (const auto& [depth, name] :
             std::map<std::size_t, std::string>{{2, "pool"}, {1, "disk"}, {0, "host"}}) {
          CAPTURE(name);
          const OrderedJson& tier = json["tiers"][name];
          const double own = double(tier["read"]["bytes"]) - tier.value("passed_bytes", 0.);
          CHECK(own >= double(loaded[depth] / 16) * block_bytes);
          if (whole) CHECK(own == double(loaded[depth] / 16) * block_bytes);
          CHECK(tier["peak_fill"] <= 1);
          CHECK(tier["evicted_bytes"].get<double>() <=
                tier["write"]["bytes"].get<double>() + tier.value("kept_bytes", 0.));
          CHECK(tier["dead_bytes"] <= tier["evicted_bytes"]);
          CHECK(tier.contains("passed_bytes") == (depth == 0));
          if (depth == 1 || (depth == 2 && path == std::string("staged")))
            through += double(tier["read"]["bytes"]);
        }
        CHECK(json["tiers"]["host"]["passed_bytes"] == through);
        CHECK(json["tiers"]["host"]["kept_bytes"] <= through);
      }
    }
  }
  CHECK(of_pool > 0);
}

TEST_CASE("an endless disk below a small host brings the hits of an endless host") {
  const auto prefix = [](const Json& tiers) {
    Experiment e = load_tiny(sessions(tiers));
    e.decode().memory.kv_blocks = 60;
    return run(e).document()["turns"]["all"]["prefix"];
  };
  const Json small{{"capacity", "1 MB"}, {"bandwidth", "1000000000 TB/s"}, {"write", "write_back"}};
  const Json endless{{"name", "disk"},
                     {"capacity", "1 TB"},
                     {"bandwidth", "1000000000 TB/s"},
                     {"write", "write_back"}};
  const OrderedJson both = prefix(Json::array({small, endless}));
  CHECK(both["hit_tokens"] == prefix(endless)["hit_tokens"]);
  CHECK(prefix(small)["hit_tokens"] < .95 * both["hit_tokens"].get<double>());
  // A lower tier without room is none, and so is a first one.
  Json none = endless;
  none["capacity"] = "0 B";
  CHECK(prefix(Json::array({small, none})) == prefix(small));
  none["name"] = "first";
  CHECK(prefix(Json::array({none, endless})) == prefix(endless));
}

TEST_CASE("a pool below the hosts of all ranks holds for each what another computed") {
  Json set = sessions({{"capacity", "2 MB"}, {"bandwidth", "1 GB/s"}}, 240, 12);
  set["parallel"] = {{"dp", 4}, {"tp", 1}, {"ep", 4}};
  set["placement"] = {{"replication", 1.5}};
  const auto served = [&] {
    Experiment e = load_tiny(set);
    e.decode().memory.kv_blocks = 60;
    return serve(e).document();
  };
  const OrderedJson alone = served();
  set["kv_cache"]["tiers"].push_back(
      {{"name", "pool"}, {"per", "cluster"}, {"capacity", "100 MB"}, {"bandwidth", "500 MB/s"}});
  const OrderedJson pooled = served();
  CHECK(pooled["tiers"]["host"]["tiers"] == 4);
  CHECK(pooled["tiers"]["pool"]["tiers"] == 1);
  CHECK(pooled["kv"]["prefix_hit_tokens"] > 1.5 * alone["kv"]["prefix_hit_tokens"].get<double>());
  CHECK(pooled["kv"]["prefix_hit_tokens_by_tier"]["pool"] > 1000);
  CHECK(pooled.dump() == served().dump());
}

TEST_CASE("sessions one by one: the slowest in order, each turn's times in order, tokens in all") {
  Json set = sessions({{"capacity", {{"of_hbm", 3}}}, {"bandwidth", "50 MB/s"}});
  set["measurement"] = {{"slowest_sessions", 4}};
  Experiment e = load_tiny(set);
  e.decode().memory.kv_blocks = 60;
  const Served served = serve(e);
  REQUIRE(served.sessions->slowest->size() == 4);
  double before = std::numeric_limits<double>::infinity();
  double loading = 0;
  for (const SlowSession& session : *served.sessions->slowest) {
    CHECK(session.ended_s - session.begun_s <= before);
    before = session.ended_s - session.begun_s;
    CHECK(session.turns.size() == 4);
    CHECK(session.turns.front().sent_s == session.begun_s);
    CHECK(session.turns.back().last_token_s == session.ended_s);
    for (const TurnSpan& turn : session.turns) {
      CHECK(turn.sent_s <= turn.begun_s - *turn.loading_s + 1e-12);
      CHECK(turn.begun_s <= turn.first_token_s);
      CHECK(turn.first_token_s <= turn.last_token_s);
      CHECK(*turn.loaded_tokens <= turn.cached_tokens);
      if (*turn.loaded_tokens > 0) CHECK(*turn.loading_s > 0);
      loading += *turn.loading_s;
    }
  }
  CHECK(loading > 0);
  // The slowest of all is the longest that the report counts.
  CHECK_THAT(served.sessions->slowest->front().ended_s - served.sessions->slowest->front().begun_s,
             WithinRel(served.sessions->completion.max, 1e-9));
  std::int64_t queried = 0, hit = 0, loaded = 0;
  for (const HitSpan& span : *served.turns->over_time) {
    queried += span.queried_tokens;
    hit += span.hit_tokens;
    loaded += *span.loaded_tokens;
  }
  for (const RequestRecord& request : served.requests) {
    queried -= request.prompt_tokens;
    hit -= request.cached_tokens;
    loaded -= request.loaded_tokens;
  }
  CHECK(queried == 0);
  CHECK(hit == 0);
  CHECK(loaded == 0);
  // Nothing else changes.
  OrderedJson json = served.document(), usual;
  set.erase("measurement");
  Experiment without = load_tiny(set);
  without.decode().memory.kv_blocks = 60;
  usual = serve(without).document();
  CHECK(!usual["sessions"].contains("slowest"));
  json["sessions"].erase("slowest");
  json["turns"].erase("over_time");
  json.erase("context");
  usual.erase("context");
  CHECK(json == usual);
  CHECK(config_error([] {
          load_tiny({{"measurement", {{"slowest_sessions", 4}}}});
        }).find("/measurement/slowest_sessions") != std::string::npos);
}

TEST_CASE("what a tier is for: hits that HBM has forgotten, up to all that an endless cache has") {
  const auto prefix = [](const Json& tier) {
    Experiment e = load_tiny(sessions(tier));
    e.decode().memory.kv_blocks = 60;
    return run(e).document()["turns"]["all"]["prefix"];
  };
  const OrderedJson none = prefix(nullptr);
  const OrderedJson endless = prefix({{"capacity", "1 TB"}, {"bandwidth", "1000000000 TB/s"}});
  CHECK(none["hit_tokens"] < .7 * endless["hit_tokens"].get<double>());
  CHECK(endless["hit_tokens"] == endless["ideal_hit_tokens"]);
  // A copy of what HBM holds adds nothing; what HBM gave up does.
  const Json through{{"capacity", "1 MB"}, {"bandwidth", "1000000000 TB/s"}};
  Json back = through;
  back["write"] = "write_back";
  const auto hits = [&](const Json& tier) { return prefix(tier)["hit_tokens"].get<double>(); };
  CHECK(hits(back) > 1.1 * hits(through));
  CHECK(hits(through) < 1.1 * none["hit_tokens"].get<double>());
}

// Blocks of a list of `most`, the beginning of the last prompt last, that prompts of 4 whole blocks
// hit.
std::int64_t hits_of_list(const std::string& prompts, std::size_t most) {
  std::vector<std::pair<char, int>> list;
  std::int64_t hits = 0;
  for (const char prompt : prompts) {
    for (int b = 0; b < 4 && std::ranges::find(list, std::pair(prompt, b)) != list.end(); ++b)
      ++hits;
    for (int b = 4; b-- > 0;) {
      std::erase(list, std::pair(prompt, b));
      list.emplace_back(prompt, b);
    }
    if (list.size() > most) list.erase(list.begin(), list.end() - std::ptrdiff_t(most));
  }
  return hits;
}

TEST_CASE(
    "bounds: over an endless link write-through hits as the larger memory, write-back as more") {
  Rng rng(1, "test/kv_tiers/bounds");
  std::string prompts;
  for (int i = 0; i < 60; ++i) prompts += char('A' + std::min(rng.below(9), rng.below(9)));
  const auto hits = [&](int host_blocks, const char* write) {
    std::int64_t blocks = 0;
    for (const RequestRecord& request : serve_a_and_b(prompts, host(host_blocks, write)).requests)
      blocks += request.cached_tokens / 16;
    return blocks;
  };
  for (const int blocks : {8, 12, 20, 36}) {
    CAPTURE(blocks);
    CHECK(hits(blocks, "write_through") == hits_of_list(prompts, std::size_t(blocks)));
    CHECK(hits(blocks, "write_back") >= hits_of_list(prompts, std::size_t(blocks)));
    CHECK(hits(blocks, "write_back") <= hits_of_list(prompts, std::size_t(blocks) + 6));
  }
}

TEST_CASE("law 8: write policies change what is copied, not what is hit, while everything fits") {
  for (const int blocks : {60, 4000}) {
    CAPTURE(blocks);
    std::map<std::string, OrderedJson> prefix;
    std::map<std::string, double> written;
    for (const auto& write : tier_writes().entries()) {
      // A pause: what makes room in a step is in the tier only when the step begins.
      Json set =
          sessions({{"capacity", "1 TB"}, {"bandwidth", "1000000000 TB/s"}, {"write", write.name}});
      set["workload"]["sessions"]["gap"] = {{"median", "1 s"}, {"sigma", 1}};
      Experiment e = load_tiny(set);
      e.decode().memory.kv_blocks = blocks;
      const OrderedJson json = run(e).document();
      prefix[std::string(write.name)] = json["turns"]["all"]["prefix"];
      written[std::string(write.name)] = json["tiers"]["host"]["write"]["bytes"];
    }
    for (const auto& [write, hits] : prefix) {
      CAPTURE(write);
      CHECK(hits["hit_tokens"] == hits["ideal_hit_tokens"]);
    }
    CHECK(written["write_through"] > written["write_back"]);
    CHECK((written["write_back"] == 0) == (blocks == 4000));
  }
}

TEST_CASE("live copies nothing of a session that is over, nor of requests outside sessions") {
  const auto document = [](Json set, const char* write) {
    set["kv_cache"]["tiers"][0]["write"] = write;
    Experiment e = load_tiny(set);
    e.decode().memory.kv_blocks = 60;
    return run(e).document();
  };
  const Json tier{{"capacity", "1 TB"}, {"bandwidth", "1000000000 TB/s"}};
  const auto written = [](const OrderedJson& json) {
    return json["tiers"]["host"]["write"]["bytes"].get<double>();
  };
  const OrderedJson back = document(sessions(tier), "write_back"),
                    live = document(sessions(tier), "live");
  CHECK(live["turns"]["all"]["prefix"]["hit_tokens"] ==
        back["turns"]["all"]["prefix"]["hit_tokens"]);
  CHECK(written(live) > 0);
  CHECK(written(live) < .9 * written(back));
  Json alone = one_rank(tier);
  alone["workload"] = {{"arrivals", {{"concurrency", 5}}}, {"requests", 60}};
  CHECK(written(document(alone, "write_back")) > 0);
  CHECK(written(document(alone, "live")) == 0);
}

TEST_CASE("a tier whose link is too slow to be worth a load is none") {
  const auto document = [](const Json& tier) {
    Json set = sessions(tier);
    if (!tier.is_null()) set["kv_cache"]["fetch"] = "if_shorter";
    Experiment e = load_tiny(set);
    e.decode().memory.kv_blocks = 60;
    OrderedJson json = run(e).document();
    json.erase("context");
    if (!tier.is_null()) {
      CHECK(json["tiers"]["host"]["read"]["bytes"] == 0);
      CHECK(json["tiers"]["host"]["write"]["bytes"] > 0);
      CHECK(json["kv"]["prefix_hit_tokens_by_tier"]["host"] == 0);
    }
    return std::tuple(json["metrics"].dump(), json["turns"]["all"]["prefix"]["hit_tokens"].dump(),
                      json["sessions"].dump());
  };
  // Copies to the tier take no time, and hold no block of HBM.
  CHECK(document({{"capacity", "1 GB"},
                  {"write", "write_back"},
                  {"bandwidth", "1 B/s"},
                  {"write_bandwidth", "1000000000 TB/s"}}) == document(nullptr));
}

TEST_CASE("law 6: a tier without room is none, byte for byte") {
  const auto document = [](const Json& tier) {
    Experiment e = load_tiny(sessions(tier));
    e.decode().memory.kv_blocks = 40;
    OrderedJson json = run(e).document();
    json.erase("context");
    return json.dump();
  };
  CHECK(document({{"capacity", "0 B"}}) == document(nullptr));
  CHECK(document({{"capacity", {{"of_hbm", 0}}}}) == document(nullptr));
}

TEST_CASE("ranks of a node share a tier, and one finds what another stored") {
  Json set = sessions({{"capacity", "100 MB"}, {"bandwidth", "1 GB/s"}}, 240, 12);
  set["parallel"] = {{"dp", 4}, {"tp", 1}, {"ep", 4}};
  set["placement"] = {{"replication", 1.5}};
  const auto served = [&](const char* per) {
    set["kv_cache"]["tiers"][0]["per"] = per;
    Experiment e = load_tiny(set);
    e.decode().memory.kv_blocks = 60;
    return serve(e).document();
  };
  const OrderedJson rank = served("rank"), node = served("node");
  CHECK(rank["tiers"]["host"]["tiers"] == 4);
  CHECK(node["tiers"]["host"]["tiers"] == 1);
  // Turns are dealt to ranks in turn: most find their past at another one.
  CHECK(node["kv"]["prefix_hit_tokens"] > 1.5 * rank["kv"]["prefix_hit_tokens"].get<double>());
  CHECK(node.dump() == served("node").dump());
}

TEST_CASE("clients that leave while their blocks are on the way leave nothing behind") {
  for (const char* read : {"parked", "blocking", "layerwise"}) {
    CAPTURE(read);
    Json set = sessions({{"capacity", "20 MB"}, {"bandwidth", "20 MB/s"}}, 300, 8);
    set["kv_cache"]["read"] = read;
    set["workload"]["cancellation"] = {{"share", .4}, {"mean_after", "20 ms"}};
    set["speculative"] = {{"num_speculative_tokens", 1}, {"acceptance_rate", .5}, {"draft", "mtp"}};
    Experiment e = load_tiny(set);
    e.decode().memory.kv_blocks = 40;
    const OrderedJson json = run(e).document();
    CHECK(json["metrics"]["cancelled"] > 20);
    CHECK(json["tiers"]["host"]["read"]["transfers"] > 20);
  }
}

TEST_CASE("prompts and decodes in steps of their own load as well") {
  Json set = sessions({{"capacity", "20 MB"}, {"bandwidth", "100 MB/s"}});
  set["scheduling"]["type"] = "prefill_first";
  Experiment e = load_tiny(set);
  e.decode().memory.kv_blocks = 40;
  const OrderedJson json = run(e).document();
  CHECK(json["metrics"]["completed"] == 160);
  CHECK(json["kv"]["prefix_hit_tokens_by_tier"]["host"] > 1000);
}

// ---- what is refused ----

TEST_CASE("a tier that makes no sense is refused, and the message says where and what to do") {
  const auto refused = [](const Json& tiers, const Json& changes = Json::object()) {
    Json set = sessions(nullptr);
    set["kv_cache"]["tiers"] = tiers;
    set.merge_patch(changes);
    return test::refused(tiny_experiment(set));
  };
  const auto contains = [](const std::string& text) { return Contains(text); };
  const Json host{{"capacity", "1 GB"}};
  CHECK(refused(Json::array({host})).empty());
  const auto below = [&](Json tier) { return refused(Json::array({host, std::move(tier)})); };
  Json disk{{"name", "disk"}, {"capacity", "1 GB"}, {"bandwidth", "7 GB/s"}};
  CHECK(below(disk).empty());
  CHECK_THAT(below(host), contains("/kv_cache/tiers/1: a tier below the first needs its \"bandw"));
  disk["name"] = "host";
  CHECK_THAT(below(disk), contains("/kv_cache/tiers/1: a tier above is called \"host\" too"));
  CHECK_THAT(refused({{{"capacity", "1 GB"}, {"per", "node"}},
                      {{"name", "disk"}, {"capacity", "1 GB"}, {"bandwidth", "7 GB/s"}}}),
             contains("/kv_cache/tiers/1: is shared per rank, the tier above per node"));
  CHECK_THAT(refused({{{"capacity", "0 B"}},
                      {{"name", "disk"}, {"capacity", "1 kB"}, {"bandwidth", "7 GB/s"}}}),
             contains("/kv_cache/tiers/1/capacity: holds less than one KV block"));
  CHECK_THAT(refused(Json::array({host, host, host, host})),
             contains("/kv_cache/tiers: expected at most 3 tiers, found 4"));
  CHECK_THAT(refused(Json::array({Json::object()})), contains("\"capacity\" is missing"));
  CHECK_THAT(refused({host, {{"name", "disk"}, {"capacity", "1 GB"}, {"bandwidth", "7 GB/s"}}},
                     {{"kv_cache", {{"fetch", "if_shorter"}}}}),
             contains("/kv_cache/fetch: \"if_shorter\" compares one tier's link"));
  CHECK_THAT(refused({{{"capacity", "1 kB"}}}),
             contains("/kv_cache/tiers/0/capacity: holds less than one KV block of 0.0492 MB"));
  CHECK_THAT(refused({{{"capacity", "1 GB"}, {"bandwidth", "0 B/s"}}}),
             contains("/kv_cache/tiers/0/bandwidth: a tier needs a bandwidth above 0"));
  CHECK_THAT(refused({{{"capacity", "1 GB"}, {"name", "hbm"}}}), contains("tiers/0/name"));
  CHECK_THAT(refused({{{"capacity", "1 GB"}, {"write", "through"}}}),
             contains("unknown \"through\"; did you mean \"write_through\"? one of: write_through, "
                      "write_back, live"));
  CHECK_THAT(refused({{{"capacity", "1 GB"}, {"size", 3}}}), contains("unknown key \"size\""));
  CHECK_THAT(refused(Json::array({host}), {{"kv_cache", {{"prefix_caching", false}}}}),
             contains("give \"prefix_caching\": true"));
  const Json outage{{"at", "1 s"}, {"gpu", 0}};
  CHECK_THAT(refused(Json::array({host}), {{"failures", Json::array({outage})},
                                           {"parallel", {{"dp", 4}, {"ep", 4}}},
                                           {"placement", {{"replication", 1.5}}}}),
             contains("is not modelled with \"failures\""));
  // A link so slow that a load outlasts the clock.
  Json slow =
      sessions({{"capacity", "1 GB"}, {"bandwidth", "1 GB/s"}, {"write_bandwidth", "1 B/s"}});
  slow["kv_cache"]["tiers"][0]["write"] = "write_back";
  slow["kv_cache"]["tiers"][0]["write_bandwidth"] = "0.0001 B/s";
  Experiment e = load_tiny(slow);
  e.decode().memory.kv_blocks = 40;
  CHECK_THAT(config_error([&] { run(e); }), contains("100 days"));
}

}  // namespace
}  // namespace moesim::test_kv_tiers
