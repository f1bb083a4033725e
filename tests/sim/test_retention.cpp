// SPDX-License-Identifier: Apache-2.0
// What HBM holds for agents between their turns, and what is loaded before they are back.
#include <fmt/format.h>

#include "sim/kv_cache/kv_cache.hpp"
#include "tests/tiny_experiment.hpp"
#include "traces/requests/lengths.hpp"

namespace moesim::test_retention {
namespace {

using namespace test;

Time at_s(double seconds) { return Time{} + to_duration(Seconds(seconds)); }

KvLayout blocks_of_16() {
  KvLayout layout;
  layout.block_tokens = 16;
  layout.groups.resize(1);
  return layout;
}

// A cache of 8 blocks; requests of 4 whole blocks, prompt and reply, one after the other.
struct Cache {
  KvCache kv{blocks_of_16(), 8, true, false, {}, true};
  std::uint32_t next = 0;

  Sequence begin(AgentName agent) {
    std::vector<BlockHash> known;
    for (BlockHash b = 0; b < 4; ++b) known.push_back(100 * agent + b);
    kv.expect(next, 48, known, agent);
    Sequence sequence{.request = next++, .tokens = 65, .prompt_tokens = 48};
    kv.take_cached(sequence);
    kv.grow(sequence, 64);
    return sequence;
  }
  void serve(AgentName agent) {
    Sequence sequence = begin(agent);
    kv.finish(sequence);
  }
  std::int64_t hit(AgentName agent) const {
    std::vector<BlockHash> known;
    for (BlockHash b = 0; b < 4; ++b) known.push_back(100 * agent + b);
    return kv.find(known, 65).blocks;
  }
};

TEST_CASE("what is held for an agent survives others, until the time has come") {
  Cache free, held;
  free.serve(1);
  held.serve(1);
  held.kv.retain(1, at_s(10));
  CHECK(held.kv.free_blocks() == 4);
  CHECK(free.kv.free_blocks() == 8);
  for (const AgentName other : std::vector<AgentName>{2, 3}) {
    free.serve(other);
    held.serve(other);
  }
  CHECK(free.hit(1) == 0);
  CHECK(held.hit(1) == 4);
  CHECK(held.hit(2) == 0);
  held.kv.pass(at_s(10));
  CHECK(held.kv.free_blocks() == 4);
  held.kv.pass(at_s(10.1));
  CHECK(held.kv.free_blocks() == 8);
  CHECK(held.hit(1) == 4);
}

TEST_CASE("an agent that is back has its blocks, and they are held for it no more") {
  Cache cache;
  cache.serve(1);
  cache.kv.retain(1, Time::max());
  Sequence again = cache.begin(1);
  CHECK(cache.kv.free_blocks() == 4);
  CHECK_FALSE(cache.kv.release_one());
  cache.kv.finish(again);
  CHECK(cache.kv.free_blocks() == 8);
  cache.kv.retain(1, Time::max());
  cache.kv.retain(1, at_s(5));  // announced anew: held once
  CHECK(cache.kv.free_blocks() == 4);
  cache.kv.forget_agent(1);
  CHECK(cache.kv.free_blocks() == 8);
  CHECK_FALSE(cache.kv.remembers(1));
}

TEST_CASE("what would be held longest gives way first") {
  Cache cache;
  cache.serve(1);
  cache.serve(2);
  cache.kv.retain(1, at_s(20));
  cache.kv.retain(2, at_s(10));
  CHECK(cache.kv.free_blocks() == 0);
  CHECK(cache.kv.release_one());
  CHECK(cache.kv.free_blocks() == 4);
  cache.serve(3);
  CHECK(cache.hit(1) == 0);
  CHECK(cache.hit(2) == 4);
  CHECK(cache.kv.release_one());
  CHECK_FALSE(cache.kv.release_one());
}

// ---- runs ----

// Five agents of four turns on one GPU, with pauses.
Json agents(const Json& kv_cache) {
  Json set{{"parallel", {{"dp", 1}, {"tp", 1}, {"ep", 1}}},
           {"placement", {{"replication", 1}}},
           {"scheduling", {{"max_num_batched_tokens", 512}}},
           {"measurement", {{"warmup", 0}}},
           {"kv_cache", {{"prefix_caching", true}}},
           {"workload",
            {{"arrivals", {{"concurrency", 5}}},
             {"lengths", nullptr},
             {"requests", 160},
             {"sessions",
              {{"type", "generated"},
               {"turns", 4},
               {"first", 150},
               {"new", 33},
               {"output", 21},
               {"gap", {{"median", "50 ms"}, {"sigma", 1}}}}}}}};
  set["kv_cache"].update(kv_cache);
  return set;
}
Served run_agents(const Json& kv_cache, std::int64_t blocks = 60) {
  Experiment e = load_tiny(agents(kv_cache));
  e.decode().memory.kv_blocks = blocks;
  return serve(e);
}
Json tier(const char* bandwidth = "1 GB/s") {
  return Json::array({{{"capacity", "1 GB"}, {"write", "write_back"}, {"bandwidth", bandwidth}}});
}
double hits(const Served& served) {
  return served.document()["turns"]["all"]["prefix"]["hit_tokens"].get<double>();
}

TEST_CASE("lru holds nothing: the report is that of a config that does not say it") {
  const OrderedJson unsaid = run_agents(Json::object()).document();
  OrderedJson said = run_agents({{"retention", "lru"}}).document();
  CHECK(said["metrics"] == unsaid["metrics"]);
  CHECK(said["kv"] == unsaid["kv"]);
  CHECK(said["turns"] == unsaid["turns"]);
}

TEST_CASE("agents hit more of what is held for them, and all where all fits") {
  const double none = hits(run_agents(Json::object()));
  for (const char* ttl : {"20 ms", "60 s"}) {
    CAPTURE(ttl);
    const Json retention{{"type", "ttl"}, {"ttl", ttl}};
    CHECK(hits(run_agents({{"retention", retention}})) > none);
    const OrderedJson all = run_agents({{"retention", retention}}, 400).document();
    const OrderedJson& prefix = all["turns"]["all"]["prefix"];
    CHECK(prefix["hit_tokens"] == prefix["ideal_hit_tokens"]);
  }
}

TEST_CASE("laws 1, 4: retention and prefetching keep every token, and leave nothing behind") {
  for (const auto& retention : std::vector<Json>{"lru", {{"type", "ttl"}, {"ttl", "100 ms"}}}) {
    for (const Json& lead : std::vector<Json>{nullptr, "10 ms", "10 s"}) {
      for (const std::int64_t blocks : {27, 60, 400}) {
        for (const int variant : {0, 1, 2}) {
          const bool tiers = variant > 0, moves = variant > 1;
          if (!tiers && !lead.is_null()) continue;
          CAPTURE(retention.dump(), lead.dump(), blocks, variant);
          Json kv{{"retention", retention}};
          if (tiers) kv["tiers"] = tier("20 MB/s");
          if (!lead.is_null()) kv["prefetch_lead"] = lead;
          Json set = agents(kv);
          // Agents move from rank to rank.
          if (moves) set["instances"] = 2, set["request_routing"] = "round_robin";
          Experiment e = load_tiny(set);
          e.decode().memory.kv_blocks = blocks;
          const Served served = serve(e);
          const OrderedJson prefix = served.document()["turns"]["all"]["prefix"];
          std::int64_t prompt = 0, hit = 0;
          for (const RequestRecord& request : served.requests) {
            REQUIRE(request.state == RequestRecord::State::finished);
            REQUIRE(request.cached_tokens < request.prompt_tokens);
            prompt += request.prompt_tokens;
            hit += request.cached_tokens;
          }
          CHECK(prefix["hit_tokens"] == hit);
          CHECK(prefix["computed_tokens"] == prompt - hit);
          CHECK(prefix["hit_tokens"] <= prefix["ideal_hit_tokens"]);
        }
      }
    }
  }
}

// One agent at a time on a cache that another's context pushes out: with no lead each later turn
// waits for its load, with a lead above the load's time none does.
TEST_CASE("what was loaded before an agent is back is not waited for") {
  const auto waited = [](const Json& lead) {
    Json kv{{"tiers", tier("50 MB/s")}};
    if (!lead.is_null()) kv["prefetch_lead"] = lead;
    Json set = agents(kv);
    set["workload"]["arrivals"]["concurrency"] = 2;
    set["workload"]["sessions"]["gap"] = {{"median", "2 s"}, {"sigma", 0.2}};
    Experiment e = load_tiny(set);
    e.decode().memory.kv_blocks = 26;  // of the 20 to 22 that the last turns need
    const Served served = serve(e);
    Duration loading{};
    for (const RequestRecord& request : served.requests) loading += request.loading;
    return std::pair(loading, hits(served));
  };
  const auto [without, hit_without] = waited(nullptr);
  const auto [late, hit_late] = waited("1 ms");
  const auto [early, hit_early] = waited("200 ms");
  CHECK(without > Duration{});
  CHECK(late < without);
  CHECK(early * 4 < late);
  CHECK(hit_early >= .95 * hit_without);
}

TEST_CASE("retention and prefetching that make no sense are refused") {
  const auto refused = [](const Json& kv, bool sessions = true) {
    Json set = agents(kv);
    if (!sessions) set["workload"] = Json::object();
    return config_error([&] { load_tiny(set); });
  };
  const Json held{{"type", "ttl"}, {"ttl", "1 s"}};
  const auto has = [](const std::string& text, const char* part) {
    return text.find(part) != std::string::npos;
  };
  CHECK(has(refused({{"retention", held}}, false), "/kv_cache/retention: only agents"));
  CHECK(has(refused({{"retention", held}, {"prefix_caching", false}}), "found by prefix"));
  CHECK(has(refused({{"tiers", tier()}, {"prefetch_lead", "1 s"}, {"read", "layerwise"}}),
            "/kv_cache/prefetch_lead: needs \"read\": \"parked\""));
  CHECK(has(refused({{"tiers", tier()}, {"prefetch_lead", "1 s"}}, false), "workload/sessions"));
  CHECK(has(refused({{"prefetch_lead", "1 s"}}), "needs \"tiers\""));
  CHECK(has(refused({{"retention", {{"type", "ttl"}}}}), "ttl"));
}

}  // namespace
}  // namespace moesim::test_retention
