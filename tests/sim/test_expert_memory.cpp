// SPDX-License-Identifier: Apache-2.0
// Which experts stand in HBM, when do the others arrive, and what does a layer wait for?
#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include <fmt/format.h>
#include <tbb/global_control.h>

#include "hardware/at.hpp"
#include "hardware/rng.hpp"
#include "sim/serving/simulator.hpp"
#include "tests/support.hpp"

namespace moesim::test_expert_memory {
namespace {

using Catch::Matchers::Contains;
using namespace test;

struct Replayed {
  int hits = 0;
  std::vector<int> evictions;
  std::vector<int> held;
};

Replayed replay_trace(const Json& policy, const std::vector<int>& trace, int capacity) {
  const int keys = *std::max_element(trace.begin(), trace.end()) + 1;
  const auto cache = expert_memories().make(ConfigNode(policy, "test"))->cache(keys, capacity);
  Replayed replayed;
  for (const int key : trace) {
    const bool hit = cache->holds(key);
    replayed.hits += hit ? 1 : 0;
    cache->use(key);
    if (hit) continue;
    const ExpertCache::Admission admission = cache->admit(key, {});
    if (admission.evicted >= 0) replayed.evictions.push_back(admission.evicted);
  }
  for (int key = 0; key < keys; ++key) {
    if (cache->holds(key)) replayed.held.push_back(key);
  }
  return replayed;
}

// Belady's bound: gives up whose next use is furthest away. With `may_stream` a newcomer that is
// wanted latest does not come in: no cache can do better.
int belady_hits(const std::vector<int>& trace, std::size_t capacity, bool may_stream) {
  std::set<int> held;
  int hits = 0;
  for (std::size_t i = 0; i < trace.size(); ++i) {
    if (!held.insert(trace[i]).second) {
      ++hits;
      continue;
    }
    if (held.size() <= capacity) continue;
    const auto next_use = [&](int key) {
      if (key == trace[i] && !may_stream) return trace.begin();
      return std::find(trace.begin() + static_cast<std::ptrdiff_t>(i) + 1, trace.end(), key);
    };
    held.erase(std::max_element(held.begin(), held.end(),
                                [&](int a, int b) { return next_use(a) < next_use(b); }));
  }
  return hits;
}

TEST_CASE("oracle cache_traces: LRU and aging LFU hit, evict and hold exactly") {
  if (!has_shared()) {
    WARN("skipped: ../shared is absent");
    return;
  }
  const Json oracle = ConfigNode::from_file(shared_dir() / "oracles/cache_traces.json").json();
  const std::map<std::string, Json> policies{
      {"lru", {{"type", "lru"}}}, {"lfu_aging", {{"type", "lfu_aging"}, {"aging_period", 8}}}};
  for (const auto& [name, one] : oracle.at("cases").items()) {
    const auto trace = one.at("trace").get<std::vector<int>>();
    const int capacity = one.at("capacity");
    for (const auto& [policy, node] : policies) {
      CAPTURE(name, policy);
      const Replayed replayed = replay_trace(node, trace, capacity);
      CHECK(replayed.hits == one.at(policy).at("hits"));
      CHECK(replayed.evictions == one.at(policy).at("evictions").get<std::vector<int>>());
      CHECK(replayed.held == one.at(policy).at("final").get<std::vector<int>>());
    }
    CHECK(belady_hits(trace, at(capacity), false) == one.at("belady_hits"));
  }
}

TEST_CASE("no policy hits more often than Belady's") {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    CAPTURE(seed);
    Rng rng(seed, "test/cache");
    std::vector<int> trace(300);
    for (int& key : trace) key = static_cast<int>(12 * rng.uniform() * rng.uniform());
    const int capacity = 1 + static_cast<int>(rng.below(8));
    const int bound = belady_hits(trace, at(capacity), true);
    for (const char* policy : {"lru", "lfu_aging", "static_hot"}) {
      CHECK(replay_trace({{"type", policy}}, trace, capacity).hits <= bound);
    }
  }
}

// One GPU whose experts take 10 s over the host link, with a GEMM of 1 s per active slot.
struct OneGpu {
  ExpertMemoryPlan plan;
  ExpertPlacement placement;
  std::vector<ExpertLoad> seen;
  std::vector<std::vector<std::int32_t>> tokens;  // of the step under way, [layers][slots]
  double gemm_seconds = 1;
  ExpertMemoryTally tally{};

  OneGpu(const std::string& memory, int layers, int experts, std::vector<ExpertLoad> load = {})
      : plan(*read_expert_memory(config(memory), expert_memories(), prefetches())),
        seen(std::move(load)) {
    std::vector<int> all(at(experts));
    std::iota(all.begin(), all.end(), 0);
    for (int l = 0; l < layers; ++l) placement.emplace_back(experts, std::vector(1, all));
  }
  RankMemory memory() const { return {plan, placement, 0, seen, Bytes(10), 1}; }
  double run(RankMemory& memory, int layer, double now) {
    const auto gemm = [&](std::span<const std::int32_t> slots) {
      const auto active =
          std::count_if(slots.begin(), slots.end(), [](std::int32_t t) { return t > 0; });
      return Seconds(gemm_seconds * static_cast<double>(active));
    };
    const auto tokens_of = [&](int l) { return std::span<const std::int32_t>(tokens[at(l)]); };
    return memory.run(layer, Time(to_duration(Seconds(now))), tokens_of, gemm, tally).count();
  }
};

std::string lru(const std::string& rest) {
  return R"({"type": "lru", "host": {"bandwidth": "1 B/s", "latency": "0 s", "source": "a test"}, )" +
         rest + "}";
}

TEST_CASE("residents run at once, the others as they arrive, and the last of them streams") {
  OneGpu gpu(lru(R"("slots_per_gpu": 2)"), 1, 4, {{4, 3, 2, 1}});
  RankMemory memory = gpu.memory();  // holds 0 and 1
  gpu.tokens = {{1, 0, 5, 7}};
  // 0 runs until 1. Most tokens first: 3 takes the place of 1 and is there at 10, done at 11; 2
  // finds both pinned and streams: there at 20, done at 21.
  CHECK(gpu.run(memory, 0, 100) == 21);
  CHECK(gpu.tally.hits == 1);
  CHECK(gpu.tally.misses == 2);
  CHECK(gpu.tally.streamed == 1);
  CHECK(gpu.tally.host == Bytes(20));
  // 0 and 3 are held now.
  gpu.tokens = {{1, 0, 0, 1}};
  CHECK(gpu.run(memory, 0, 200) == 2);
}

TEST_CASE("the bounce slot is free again when its expert has run") {
  OneGpu gpu(lru(R"("slots_per_gpu": 1)"), 1, 3, {{3, 2, 1}});
  gpu.gemm_seconds = 15;
  RankMemory memory = gpu.memory();
  gpu.tokens = {{1, 1, 1}};
  // 0 until 15; 1 there at 10, runs until 30; 2 is fetched from 30 to 40 and runs until 55.
  CHECK(gpu.run(memory, 0, 0) == 55);
}

TEST_CASE("what is fetched ahead is there, or on its way, or too late to begin") {
  const std::string memory =
      lru(R"("slots_per_layer": 1, "prefetch": {"type": "oracle", "accuracy": 1})");
  OneGpu gpu(memory, 2, 2, {{2, 1}, {2, 1}});
  gpu.tokens = {{1, 0}, {0, 1}};
  const auto second_layer_at = [&](double now) {
    RankMemory fresh = gpu.memory();  // holds slot 0 of each layer
    gpu.tally = {};
    CHECK(gpu.run(fresh, 0, 0) == 1);
    return gpu.run(fresh, 1, now);
  };
  // The link is idle from 1 on: the expert of layer 1 is there at 11.
  CHECK(second_layer_at(20) == 1);
  CHECK(gpu.tally.hits == 2);
  CHECK(gpu.tally.prefetches_used == 1);
  CHECK(second_layer_at(5) == 7);  // waits until 11
  CHECK(gpu.tally.late == 1);
  CHECK(gpu.tally.misses == 1);
  CHECK(gpu.tally.host == Bytes(10));
  CHECK(second_layer_at(1) == 11);  // a demand: 10, and 1 to run
  CHECK(gpu.tally.prefetches == 0);
  CHECK(gpu.tally.host == Bytes(10));
}

TEST_CASE("a demand waits for a transfer that has begun, and a wrong guess is waste") {
  OneGpu gpu(lru(R"("slots_per_layer": 1, "prefetch": {"type": "oracle", "accuracy": 0})"), 2, 2,
             {{2, 1}, {2, 1}});
  RankMemory memory = gpu.memory();  // slot 0 of each layer
  gpu.tokens = {{1, 0}, {1, 0}};
  CHECK(gpu.run(memory, 0, 0) == 1);
  // From 1 to 11 slot 1 of layer 1 takes the place of slot 0, which is wanted at 5 and follows from
  // 11 to 21. It may take the place back: no computation waits for 1.
  CHECK(gpu.run(memory, 1, 5) == 17);
  CHECK(gpu.tally.prefetches == 1);
  CHECK(gpu.tally.prefetches_used == 0);
  CHECK(gpu.tally.prefetches_wasted == 1);
  CHECK(gpu.tally.streamed == 0);
  CHECK(gpu.tally.host == Bytes(20));
}

TEST_CASE("history names what ran last, and fetches nothing that would push out as good a guess") {
  OneGpu gpu(lru(R"("slots_per_layer": 1, "prefetch": "history")"), 2, 3);
  RankMemory memory = gpu.memory();  // nothing seen: slot 0 of each layer
  gpu.tokens = {{1, 0, 0}, {0, 2, 1}};
  gpu.run(memory, 0, 0);
  gpu.run(memory, 1, 100);  // 1 takes the place of 0, 2 streams
  gpu.run(memory, 0, 200);  // 1 and 2 are foreseen, and 1 is held
  CHECK(gpu.run(memory, 1, 300) == 11);
  CHECK(gpu.tally.prefetches == 0);
  CHECK(gpu.tally.streamed == 2);
}

TEST_CASE("an expert on NVMe goes through DRAM, after those that stand there") {
  OneGpu gpu(lru(R"("slots_per_gpu": 1, "nvme": {"dram_slots_per_gpu": 2, "bandwidth": "0.1 B/s",
                    "latency": "0 s", "source": "a test"})"),
             1, 4, {{4, 3, 2, 1}});
  RankMemory memory = gpu.memory();  // HBM: 0; DRAM: 0 and 1
  gpu.tokens = {{0, 1, 9, 0}};
  // 1 first, though it has fewer tokens: there at 10, done at 11. 2 is in DRAM at 100, there at
  // 110.
  CHECK(gpu.run(memory, 0, 0) == 111);
  CHECK(gpu.tally.nvme == Bytes(10));
  CHECK(gpu.tally.host == Bytes(20));
}

TEST_CASE("static_hot never changes: what it does not hold streams every time") {
  const std::string memory = R"({"type": "static_hot", "slots_per_gpu": 2, "host":
      {"bandwidth": "1 B/s", "latency": "2 s", "source": "a test"}})";
  OneGpu gpu(memory, 1, 3, {{1, 3, 2}});
  RankMemory held = gpu.memory();  // 1 and 2
  gpu.tokens = {{1, 1, 1}};
  for (const double now : {0.0, 100.0}) CHECK(gpu.run(held, 0, now) == 13);
  CHECK(gpu.tally.streamed == 2);
}

TEST_CASE("every prefetch ends used, wasted or not yet needed, and every byte has a cause") {
  for (const char* prefetch :
       {R"("history")", R"("popularity")", R"({"type": "oracle", "accuracy": 0.7})"}) {
    for (const char* slots : {R"("slots_per_gpu": 9)", R"("slots_per_layer": 2)"}) {
      CAPTURE(prefetch, slots);
      OneGpu gpu(lru(fmt::format(R"({}, "prefetch": {}, "lookahead": 2)", slots, prefetch)), 5, 6);
      RankMemory memory = gpu.memory();
      Rng rng(3, "test/prefetch");
      double now = 0;
      std::int64_t accesses = 0;
      for (int step = 0; step < 60; ++step) {
        gpu.tokens.assign(5, std::vector<std::int32_t>(6));
        for (auto& layer : gpu.tokens) {
          for (int i = 0; i < 4; ++i)
            ++layer[at(static_cast<int>(6 * rng.uniform() * rng.uniform()))];
          accesses += std::count_if(layer.begin(), layer.end(), [](auto t) { return t > 0; });
        }
        for (int layer = 0; layer < 5; ++layer) {
          const double took = gpu.run(memory, layer, now);
          REQUIRE(took >= 1);
          now += took + 12 * rng.uniform();
        }
      }
      const ExpertMemoryTally& t = gpu.tally;
      CHECK(t.hits + t.misses == accesses);
      const auto open = t.prefetches - t.prefetches_used - t.prefetches_wasted;
      CHECK((open >= 0 && open <= 4));
      CHECK(t.host == 10.0 * Bytes(double(t.misses - t.late + t.prefetches)));
    }
  }
}

Experiment quick(const Json& set) {
  const auto file = source_dir() / "configs/quick.json";
  Json json = ConfigNode::from_file(file).json();
  json["workload"]["requests"] = 24;
  json["workload"]["lengths"] = {{"type", "fixed"}, {"prompt", 64}, {"output", 24}};
  json["workload"]["gating"]["requests"] = 24;
  json["measurement"]["warmup"] = 0;
  json.merge_patch(set);
  TraceLibrary traces;
  return load_experiment(ConfigNode(json, file), traces);
}

Json memory_of(int slots_per_layer, const Json& rest = Json::object()) {
  Json memory{{"type", "lru"},
              {"slots_per_layer", slots_per_layer},
              {"host", {{"bandwidth", "25 GB/s"}, {"latency", "10 us"}, {"source", "a test"}}}};
  memory.update(rest);
  return {{"expert_memory", memory}};
}

TEST_CASE("a memory that holds every slot is the resident one") {
  const OrderedJson all = run(quick(memory_of(24))).document();
  const OrderedJson resident = run(quick(Json::object())).document();
  CHECK(all["metrics"] == resident["metrics"]);
  CHECK(all["memory"] == resident["memory"]);
  CHECK(all["expert_memory"]["hit_rate"] == 1);
  CHECK(all["expert_memory"]["stall_seconds"] == 0);
  CHECK(resident["expert_memory"]["type"] == "resident");
}

TEST_CASE("fewer slots in HBM leave more for the KV cache and cost time") {
  double kv = 0, tpot = 0;
  for (const int slots : {24, 16, 8}) {
    CAPTURE(slots);
    const OrderedJson report = run(quick(memory_of(slots))).document();
    CHECK(report["memory"]["kv_bytes"].get<double>() > kv);
    CHECK(report["metrics"]["median_tpot_ms"].get<double>() > tpot);
    kv = report["memory"]["kv_bytes"];
    tpot = report["metrics"]["median_tpot_ms"];
  }
}

TEST_CASE("a perfect prefetch stalls less than none, and threads change nothing", "[threads]") {
  const auto stall = [](const Json& prefetch) {
    return run(quick(memory_of(12, {{"prefetch", prefetch}}))).document();
  };
  const OrderedJson none = stall("none"), oracle = stall("oracle");
  CHECK(oracle["expert_memory"]["stall_seconds"].get<double>() <
        none["expert_memory"]["stall_seconds"].get<double>());
  CHECK(oracle["expert_memory"]["prefetch"]["used"].get<int>() > 0);
  const tbb::global_control one(tbb::global_control::max_allowed_parallelism, 1);
  CHECK(stall("oracle").dump() == oracle.dump());
}

TEST_CASE("a memory that cannot be simulated is refused with the reason") {
  const auto error = [](const Json& memory) {
    return config_error([&] { quick({{"expert_memory", memory}}); });
  };
  CHECK_THAT(error({{"type", "lru"}}), Contains("slots_per_layer"));
  Json memory = memory_of(8)["expert_memory"];
  memory["slots_per_gpu"] = 100;
  CHECK_THAT(error(memory), Contains("expected one of"));
  memory = memory_of(8)["expert_memory"];
  memory["host"].erase("source");
  CHECK_THAT(error(memory), Contains("source"));
  memory = memory_of(8, {{"prefetch", "histroy"}})["expert_memory"];
  CHECK_THAT(error(memory), Contains("history"));
  memory = memory_of(8)["expert_memory"];
  memory["host"]["bandwidth"] = "0 GB/s";
  CHECK_THAT(error(memory),
             Contains("/expert_memory/host/bandwidth: expected a bandwidth above zero"));
}

TEST_CASE("experts below HBM stay where they are, and a step of them is not cut in two") {
  const auto beside = [](const char* key, const Json& value) {
    Json set = memory_of(8);
    set[key] = value;
    return config_error([&] { quick(set); });
  };
  CHECK(beside("rebalancing", "none").empty());
  CHECK_THAT(beside("rebalancing", "eplb_periodic"),
             Contains("/rebalancing: \"rebalancing\" is not modelled with \"expert_memory\""));
  CHECK_THAT(beside("failures", Json::array({{{"gpu", 2}, {"at", "1 s"}}})),
             Contains("/failures: \"failures\" is not modelled with \"expert_memory\""));
  CHECK_THAT(beside("overlap", "two_batch"),
             Contains("/overlap: \"two_batch\" is not modelled with \"expert_memory\""));
}

TEST_CASE("a step that the expert buffers cannot hold is made smaller, and counted") {
  const Json chunked{
      {"scheduling",
       {{"type", "chunked_prefill"}, {"max_num_batched_tokens", 256}, {"max_num_seqs", 64}}}};
  Json small = chunked;
  small["expert_buffers"] = {{"tokens_per_rank", 40}};
  const OrderedJson whole = run(quick(chunked)).document(), cut = run(quick(small)).document();
  CHECK(whole["expert_buffers"]["steps_cut"] == 0);
  CHECK(cut["expert_buffers"]["steps_cut"].get<int>() > 0);
  CHECK(cut["metrics"]["completed"] == 24);
  CHECK(cut["memory"]["buffers_bytes"].get<double>() <
        whole["memory"]["buffers_bytes"].get<double>());
  CHECK(cut["memory"]["kv_bytes"].get<double>() > whole["memory"]["kv_bytes"].get<double>());
}

TEST_CASE("low-latency kernels keep a place for every token at every slot") {
  // quick.json: 8 ranks of up to 64 decoding sequences, 192 slots, d = 2048; prefill sends 2048
  // tokens per rank to one place each: 16384 rows, in and out, in bf16. Low latency has 4 T E (2 d
  // + d / 32) bytes.
  const auto buffers = [](const char* dispatch, int sequences) {
    return quick({{"token_routing", {{"decode", "even"}}},
                  {"scheduling", {{"max_num_seqs", sequences}}},
                  {"dispatch", {{"decode", {{"type", dispatch}, {"combine", nullptr}}}}}})
        .decode()
        .memory.buffers;
  };
  for (const int sequences : {64, 512}) {
    const Bytes more = buffers("low_latency", sequences) - buffers("all_to_all", sequences);
    CHECK(more == Bytes(4.0 * sequences * 192 * (2 * 2048 + 64) - 2.0 * 16384 * 2048 * 2));
  }
  // As DeepEP allocated for 448 experts of 5,120 values (vllm#57894): 35.55 and 31.94 GiB.
  const auto deep_ep = dispatches().make(config(R"("low_latency")"));
  const auto gib = [&](double tokens) {
    return deep_ep->buffer_rows(tokens, 8, 448) * 2 * 5120 * 2 / (1 << 30);
  };
  CHECK_THAT(gib(2048), WithinAbs(35.55, .005));
  CHECK_THAT(gib(1840), WithinAbs(31.94, .005));
  CHECK(deep_ep->buffer_limit() < Bytes(gib(2048) * (1 << 30)));
  CHECK(deep_ep->buffer_limit() > Bytes(gib(1840) * (1 << 30)));
}

}  // namespace
}  // namespace moesim::test_expert_memory
