// SPDX-License-Identifier: Apache-2.0
// One link brings offloaded experts and KV blocks: who waits for whom, and for how long?
#include "sim/expert_memory/host_link.hpp"
#include "sim/kv_tiers/transfer_link.hpp"
#include "tests/tiny_experiment.hpp"

namespace moesim::test_host_link {
namespace {

using test::load_tiny;
using test::WithinAbs;

Time at_s(double seconds) { return Time{} + to_duration(Seconds(seconds)); }
Duration long_s(double seconds) { return to_duration(Seconds(seconds)); }

// Blocks need the link until 10 s. One expert of 4 s begins at once, the next one after it.
TEST_CASE("by hand: experts and blocks on one link, one after the other or with half each") {
  struct Row {
    HostLink first;
    double expert, blocks, next_expert, blocks_then;
  };
  for (const auto& [first, expert, blocks, next_expert, blocks_then] :
       {Row{HostLink::kv_first, 14, 10, 18, 10}, Row{HostLink::experts_first, 4, 14, 8, 18},
        Row{HostLink::equal, 8, 14, 16, 18}}) {
    CAPTURE(std::size_t(first));
    SharedHostLink link(first, at_s(10));
    CHECK(link.bring_expert(at_s(0), long_s(4)) == at_s(expert));
    CHECK(link.blocks_until() == at_s(blocks));
    CHECK(link.bring_expert(at_s(expert), long_s(4)) == at_s(next_expert));
    CHECK(link.blocks_until() == at_s(blocks_then));
    // When the blocks are there, an expert is alone.
    CHECK(link.bring_expert(at_s(20), long_s(4)) == at_s(24));
    CHECK(link.blocks_until() == at_s(blocks_then));
  }
  // Of an expert that takes longer than the blocks only the first part is shared.
  SharedHostLink equal(HostLink::equal, at_s(1));
  CHECK(equal.bring_expert(at_s(0), long_s(4)) == at_s(5));
  CHECK(equal.blocks_until() == at_s(2));
  CHECK(SharedHostLink().bring_expert(at_s(3), long_s(2)) == at_s(5));
}

// Two transfers of 10 s on port 0, one on port 1. At 5 s port 0 stands still for 3 s.
TEST_CASE("a port that is held up lands later by as much, others as before") {
  for (const LinkShare share : {LinkShare::fifo, LinkShare::equal}) {
    CAPTURE(std::size_t(share));
    TransferLink link(share, {.port = BytesPerSecond(1)}, 2);
    const TransferId a = link.start(0, Bytes(10), at_s(0)), b = link.start(0, Bytes(10), at_s(0)),
                     c = link.start(1, Bytes(10), at_s(0));
    CHECK(link.idle(0, at_s(0)) == at_s(20));
    link.hold_up(0, long_s(3), at_s(5));
    CHECK(link.end(a) == at_s(share == LinkShare::fifo ? 13 : 23));
    CHECK(link.end(b) == at_s(23));
    CHECK(link.end(c) == at_s(10));
    CHECK(link.idle(0, at_s(5)) == at_s(23));
    std::vector<TransferId> landed;
    link.land(at_s(23), landed);
    CHECK(landed.size() == 3);
    CHECK(link.idle(0, at_s(24)) == at_s(24));
    CHECK(link.bytes() == Bytes(30));
  }
}

// Four agents on one GPU whose contexts do not fit HBM, and experts that do not either.
Json both(const Json& host_link) {
  Json set{
      {"parallel", {{"dp", 1}, {"tp", 1}, {"ep", 1}}},
      {"placement", {{"replication", 1}}},
      {"scheduling", {{"max_num_batched_tokens", 512}}},
      {"expert_memory",
       {{"type", "lru"},
        {"slots_per_layer", 8},
        {"prefetch", "history"},
        {"host", {{"bandwidth", "50 GB/s"}, {"latency", "10 us"}, {"source", "test"}}}}},
      {"kv_cache",
       {{"prefix_caching", true},
        {"tiers", {{{"capacity", "1 GB"}, {"bandwidth", "2 GB/s"}, {"write", "write_back"}}}}}},
      {"workload",
       {{"arrivals", {{"concurrency", 5}}},
        {"lengths", nullptr},
        {"requests", 80},
        {"sessions",
         {{"type", "generated"}, {"turns", 4}, {"first", 150}, {"new", 33}, {"output", 21}}}}}};
  if (!host_link.is_null()) set["host_link"] = host_link;
  return set;
}

// Seconds for which blocks held up experts, over the whole run.
struct HeldUp final : RunObserver {
  void step_ended(const StepRecord& record, Time) override {
    experts += record.cost.expert_memory.for_blocks.count();
  }
  double experts = 0;
};

struct Ran {
  OrderedJson json;
  double experts = 0;  // held up, seconds
  double blocks() const { return json["tiers"]["host"]["held_up_seconds"].get<double>(); }
};
Ran ran(const Json& config) {
  Experiment e = load_tiny(config);
  e.decode().memory.kv_blocks = 60;
  HeldUp held_up;
  RunObserver* const observers[] = {&held_up};
  const OrderedJson json = run(e, {}, observers).document();
  return {json, held_up.experts};
}

TEST_CASE("law: who goes first waits for nothing, and equals wait for each other equally long") {
  const OrderedJson apart = ran(both(nullptr)).json;
  CHECK_FALSE(apart["expert_memory"].contains("held_up_seconds"));
  CHECK_FALSE(apart["tiers"]["host"].contains("held_up_seconds"));
  REQUIRE(apart["tiers"]["host"]["read"]["transfers"] > 10);

  const Ran kv = ran(both("kv_first"));
  CHECK(kv.blocks() == 0);
  CHECK(kv.experts > 0);
  CHECK(kv.json["expert_memory"]["held_up_seconds"] > 0);
  CHECK(kv.json["expert_memory"]["stall_seconds"] > apart["expert_memory"]["stall_seconds"]);

  const Ran first = ran(both("experts_first"));
  CHECK(first.experts == 0);
  CHECK(first.blocks() > 0);
  CHECK(first.json["tiers"]["host"]["mean_wait_ms"] > apart["tiers"]["host"]["mean_wait_ms"]);

  const Ran equal = ran(both("equal"));
  CHECK(equal.blocks() > 0);
  CHECK_THAT(equal.experts, WithinAbs(equal.blocks(), 1e-6));
  CHECK(equal.experts < kv.experts);
  CHECK(equal.blocks() < first.blocks());
}

TEST_CASE("KV caches that leave for a decode pool hold up copies to a tier on the same link") {
  const auto document = [](const Json& host_link) {
    Json set{{"parallel", {{"dp", 1}, {"tp", 1}, {"ep", 1}}},
             {"placement", {{"replication", 1}}},
             {"instances", 8},
             {"kv_transfer", {{"level", "network"}}},
             {"cluster", "../hardware/clusters/h100x16.json"},
             {"workload",
              {{"arrivals", {{"concurrency", 40}}},
               {"lengths", {{"type", "fixed"}, {"prompt", 64}, {"output", 4}}},
               {"requests", 200}}},
             {"pools",
              {{"prefill",
                {{"kv_cache",
                  {{"prefix_caching", true},
                   {"tiers", {{{"capacity", "1 GB"}, {"bandwidth", "100 MB/s"}}}}}}}},
               {"decode", Json::object()}}}};
    if (!host_link.is_null()) set["pools"]["prefill"]["host_link"] = host_link;
    return run(load_tiny(set)).document();
  };
  const OrderedJson apart = document(nullptr)["pools"]["prefill"],
                    shared = document("kv_first")["pools"]["prefill"];
  CHECK_FALSE(apart["tiers"]["host"].contains("held_up_seconds"));
  CHECK(shared["tiers"]["host"]["held_up_seconds"] > 0);
  CHECK(shared["tiers"]["host"]["write"]["busy_share"] >
        apart["tiers"]["host"]["write"]["busy_share"]);
  CHECK(shared["tiers"]["host"]["write"]["bytes"] == apart["tiers"]["host"]["write"]["bytes"]);
}

TEST_CASE("a host link that nothing shares is refused, and the message says what to do") {
  const auto refused = [](const Json& changes) {
    return test::config_error([&] { load_tiny(changes); });
  };
  Json no_tier = both("equal");
  no_tier["kv_cache"] = {{"prefix_caching", true}};
  CHECK(refused(no_tier).find("/host_link: the KV cache has no tier") != std::string::npos);
  Json no_experts = both("equal");
  no_experts.erase("expert_memory");
  CHECK(refused(no_experts).find("/host_link: only a tier uses this link") != std::string::npos);
  CHECK(refused(both("kv first")).find("one of: kv_first, experts_first, equal") !=
        std::string::npos);
}

}  // namespace
}  // namespace moesim::test_host_link
