// SPDX-License-Identifier: Apache-2.0
// Does the paged KV cache hold, share, forget and find blocks as vLLM's does?
#include <set>

#include <fmt/format.h>

#include "hardware/rng.hpp"
#include "sim/kv_cache/kv_plan.hpp"
#include "sim/serving/simulator.hpp"
#include "tests/support.hpp"
#include "tests/temporary.hpp"
#include "tests/tiny_experiment.hpp"
#include "traces/requests/lengths.hpp"
#include "traces/requests/request_trace.hpp"

namespace moesim::test_kv_cache {
namespace {

using Catch::Matchers::Contains;
using namespace test;

const KvLayout layout{16, Bytes(1), 1, {{1, 0}}};

Sequence waiting(std::uint32_t request, std::int32_t tokens) {
  return {request, tokens, 0, tokens, 0};
}

// A sequence whose prompt has these ids, one for each 32 tokens, expected by the cache.
Sequence arrive(KvCache& cache, std::uint32_t request, std::int32_t tokens,
                std::vector<std::uint64_t> ids) {
  const PromptIds prompt = ids_of_blocks(tokens, 32, ids);
  cache.expect(request, tokens, prompt_hashes(&prompt, request, tokens, 16));
  return waiting(request, tokens);
}

// How many blocks are free when these give up theirs.
std::int64_t freed(const KvCache& cache, const std::vector<Sequence>& sequences) {
  KvPlan plan(layout, 0, &cache, false);
  for (const Sequence& sequence : sequences) plan.preempt(sequence);
  return plan.free_blocks();
}

TEST_CASE("block hashes are equal as far as the prompts are, and never after") {
  const auto of_three = [](std::uint64_t last) {
    return ids_of_blocks(96, 32, std::vector<std::uint64_t>{7, 8, last});
  };
  const PromptIds a = of_three(9), b = of_three(10);
  const auto of_a = prompt_hashes(&a, 1, 96, 16), of_b = prompt_hashes(&b, 2, 96, 16);
  REQUIRE(of_a.size() == 6);
  for (std::size_t i = 0; i < 6; ++i) CHECK((of_a[i] == of_b[i]) == (i < 4));
  CHECK(std::set(of_a.begin(), of_a.end()).size() == 6);
  // A block that ends in the second id's tokens is told apart by the second id.
  CHECK(prompt_hashes(&a, 1, 96, 48).front() == prompt_hashes(&b, 2, 96, 48).front());
  // Without ids a prompt is like no other.
  CHECK(prompt_hashes(nullptr, 1, 96, 16) != prompt_hashes(nullptr, 2, 96, 16));
}

TEST_CASE("a prompt finds the whole blocks it shares, but computes its last token") {
  KvCache cache(layout, 100, true);
  Sequence first = arrive(cache, 1, 64, {5, 6});
  cache.take_cached(first);
  CHECK(first.computed == 0);
  cache.grow(first, 64);
  CHECK(cache.free_blocks() == 96);
  // Equal prompts: 4 blocks are there, yet at most (64 - 1) / 16 = 3 are taken.
  Sequence equal = arrive(cache, 2, 64, {5, 6});
  CHECK(cache.find(equal).blocks == 3);
  CHECK(cache.find(equal).in_use == 3);
  cache.take_cached(equal);
  CHECK(equal.computed == 48);
  CHECK(cache.free_blocks() == 96);
  CHECK(freed(cache, {equal}) == 0);
  // The fourth block is computed again, and each keeps its copy.
  cache.grow(equal, 64);
  CHECK(cache.free_blocks() == 95);
  CHECK(freed(cache, {equal}) == 1);
  CHECK(freed(cache, {equal, first}) == 5);
  cache.finish(first);
  CHECK(cache.free_blocks() == 96);
  cache.finish(equal);
  CHECK(cache.free_blocks() == 100);
  CHECK(cache.find(arrive(cache, 3, 65, {5, 6, 7})).blocks == 4);
}

TEST_CASE("of two copies the second is found when the first is gone") {
  KvCache cache(layout, 8, true);
  // Neither has a full block when the other comes, so that both compute all four.
  Sequence first = arrive(cache, 1, 64, {5, 6}), second = arrive(cache, 2, 64, {5, 6});
  for (const std::int32_t tokens : {8, 64}) {
    for (Sequence* sequence : {&first, &second}) {
      cache.grow(*sequence, tokens);
      sequence->computed = tokens;
    }
  }
  CHECK(cache.free_blocks() == 0);
  const Sequence third = arrive(cache, 3, 65, {5, 6, 7});
  CHECK(cache.find(third).in_use == 4);
  cache.finish(first);
  CHECK(cache.find(third).blocks == 4);
  CHECK(cache.find(third).in_use == 0);  // the first copy, which no sequence holds
  Sequence stranger = arrive(cache, 4, 64, {50, 51});
  cache.grow(stranger, 64);
  CHECK(cache.find(third).blocks == 4);
  CHECK(cache.find(third).in_use == 4);
}

TEST_CASE("a module that drafts from hidden states computes the last block of a hit again") {
  KvCache cache(layout, 100, true, true);
  Sequence first = arrive(cache, 1, 64, {5, 6});
  CHECK(cache.find(first).blocks == 0);
  cache.grow(first, 64);
  CHECK(cache.find(arrive(cache, 2, 64, {5, 6})).blocks == 2);
  CHECK(cache.find(arrive(cache, 3, 65, {5, 6, 7})).blocks == 3);
  CHECK(cache.find(arrive(cache, 4, 20, {5})).blocks == 0);
}

TEST_CASE("a prompt finds on paper what those before it in the step fill, and not what they take") {
  KvCache cache(layout, 10, true);
  Sequence old = arrive(cache, 1, 96, {1, 2, 3});
  cache.grow(old, 96);
  cache.finish(old);
  const Sequence first = arrive(cache, 2, 112, {7, 8, 9, 10}),
                 again = arrive(cache, 3, 97, {1, 2, 3, 4}),
                 equal = arrive(cache, 4, 112, {7, 8, 9, 10});
  KvPlan plan(layout, cache.free_blocks(), &cache, true);
  CHECK(plan.find(again).blocks == 6);
  CHECK(plan.find(equal).blocks == 0);
  plan.admit(first, plan.find(first), 80);
  CHECK(plan.free_blocks() == 5);
  CHECK(plan.find(equal).blocks == 5);
  CHECK(plan.find(equal).in_use == 5);
  // Four blocks were never taken; the fifth was the far end of the old prefix.
  CHECK(plan.find(again).blocks == 5);
  CHECK(plan.find(again).in_use == 0);
  CHECK(cache.find(again).blocks == 6);
}

TEST_CASE("freed blocks stay good for a hit until they are taken, the far end of a prefix first") {
  KvCache cache(layout, 8, true);
  Sequence first = arrive(cache, 1, 96, {1, 2, 3});
  cache.take_cached(first);
  cache.grow(first, 96);
  cache.finish(first);
  // 8 blocks: 6 hold the prefix. A stranger takes the 2 unused ones, then the prefix's last 2.
  Sequence stranger = arrive(cache, 2, 64, {50, 51});
  cache.take_cached(stranger);
  cache.grow(stranger, 64);
  Sequence again = arrive(cache, 3, 97, {1, 2, 3, 4});
  CHECK(cache.find(again).blocks == 4);
  CHECK(cache.find(again).in_use == 0);
  CHECK(cache.free_blocks() == 4);
}

TEST_CASE("a hit makes a prefix young again") {
  KvCache cache(layout, 6, true);
  for (const std::uint32_t request : {1U, 2U, 1U}) {
    Sequence sequence = arrive(cache, request, 33, {request, 90 + request});
    cache.take_cached(sequence);
    cache.grow(sequence, 33);
    cache.finish(sequence);
  }
  // Of 6 blocks 4 hold the two prefixes. Prefix 1 was used last: four new blocks take the two empty
  // ones and prefix 2.
  Sequence stranger = arrive(cache, 9, 64, {50, 51});
  cache.take_cached(stranger);
  cache.grow(stranger, 64);
  CHECK(cache.find(arrive(cache, 1, 33, {1, 91})).blocks == 2);
  CHECK(cache.find(arrive(cache, 2, 33, {2, 92})).blocks == 0);
}

TEST_CASE("a preempted sequence finds what it had computed, generated tokens included") {
  KvCache cache(layout, 10, true);
  Sequence sequence = waiting(1, 20);
  cache.expect(1, 20, prompt_hashes(nullptr, 1, 20, 16));
  cache.take_cached(sequence);
  cache.grow(sequence, 20);
  sequence.computed = 20;
  for (sequence.tokens = 21; sequence.tokens <= 40; ++sequence.tokens) {
    cache.grow(sequence, sequence.tokens);
    sequence.computed = sequence.tokens;
  }
  cache.preempt(sequence);
  CHECK(cache.free_blocks() == 10);
  CHECK(sequence.blocks == 0);
  cache.take_cached(sequence);
  CHECK(sequence.computed == 32);
}

// Reference for what is cached: sets of blocks by hash and a list in order of release, searched one
// by one.
TEST_CASE("blocks are conserved, and what is cached of a prompt is its beginning") {
  Rng rng(1, "test/kv_cache");
  KvCache cache(layout, 60, true);
  std::vector<Sequence> held;
  std::uint32_t request = 0;
  for (int round = 0; round < 3000; ++round) {
    if (held.size() < 6 && rng.below(2) == 0) {
      std::vector<std::uint64_t> ids;
      std::uint64_t id = 0;
      const auto tokens = static_cast<std::int32_t>(1 + rng.below(150));
      for (int i = 0; i < (tokens + 31) / 32; ++i) ids.push_back(id = 3 * id + 1 + rng.below(2));
      Sequence sequence = arrive(cache, ++request, tokens, ids);
      const CacheHit hit = cache.find(sequence);
      // Taking a block that no sequence holds takes a free one.
      const std::int64_t free = cache.free_blocks();
      if (layout.blocks_for(tokens) - hit.in_use > free) {
        cache.finish(sequence);
        continue;
      }
      cache.take_cached(sequence);
      REQUIRE(sequence.blocks == hit.blocks);
      REQUIRE(cache.free_blocks() == free - (hit.blocks - hit.in_use));
      REQUIRE(sequence.computed < tokens);
      cache.grow(sequence, tokens);
      REQUIRE(cache.free_blocks() == free - (layout.blocks_for(tokens) - hit.in_use));
      sequence.computed = tokens;
      held.push_back(sequence);
    } else if (!held.empty()) {
      const auto i = static_cast<std::ptrdiff_t>(rng.below(held.size()));
      const Sequence& leaves = held[static_cast<std::size_t>(i)];
      const std::int64_t frees = freed(cache, {leaves});
      const std::int64_t free = cache.free_blocks();
      cache.finish(held[static_cast<std::size_t>(i)]);
      REQUIRE(cache.free_blocks() == free + frees);
      held.erase(held.begin() + i);
    }
  }
  for (Sequence& sequence : held) cache.finish(sequence);
  CHECK(cache.free_blocks() == 60);
}

// ---- layers with windows ----

// One group that sees all, and one of aligned chunks of 64 tokens (Llama 4) or of a window of 33.
const KvLayout chunks{16, Bytes(1), 1, {{1, 0}, {1, 64, true}}};
const KvLayout sliding{16, Bytes(1), 1, {{1, 0}, {1, 33}}};

// Computes all of a sequence in steps of 16 tokens and lets go of it.
void serve(KvCache& cache, Sequence sequence) {
  cache.take_cached(sequence);
  while (sequence.computed < sequence.tokens) {
    const std::int32_t next = std::min(sequence.computed + 16, sequence.tokens);
    cache.grow(sequence, next);
    sequence.computed = next;
  }
  cache.finish(sequence);
}

TEST_CASE("a hit on chunked layers needs the chunk that the next token stands in, and no other") {
  KvCache cache(chunks, 100, true);
  const std::vector<std::uint64_t> ids{1, 2, 3, 4, 5, 6};  // 192 tokens
  Sequence first = arrive(cache, 1, 180, ids);
  cache.grow(first, 180);
  CHECK(cache.free_blocks() == 100 - 12 - 12);
  first.computed = 180;
  // What is computed next stands in the third chunk, of 128 to 191: eight blocks lie behind it.
  cache.grow(first, 181);
  CHECK(cache.free_blocks() == 100 - 12 - 4);
  // They are found where a hit ends in their chunk; one that ends in the third needs that alone.
  CHECK(cache.find(arrive(cache, 2, 112, ids)).blocks == 6);
  Sequence far = arrive(cache, 3, 180, ids);
  CHECK(cache.find(far).blocks == 11);
  CHECK(cache.find(far).in_use == 11 + 3);
  cache.take_cached(far);
  CHECK(far.computed == 176);
  CHECK(far.blocks == 11 + 3);
  CHECK(cache.free_blocks() == 84);
}

TEST_CASE("where a chunk is forgotten a hit goes back to its beginning, which needs none of it") {
  // 24 blocks: a prompt of 160 tokens takes 10 and 10; of the second group none but the last chunk
  // is held at its end.
  KvCache cache(chunks, 24, true);
  const std::vector<std::uint64_t> ids{1, 2, 3, 4, 5};
  serve(cache, arrive(cache, 1, 160, ids));
  CHECK(cache.free_blocks() == 24);
  const Sequence again = arrive(cache, 2, 160, ids);
  CHECK(cache.find(again).blocks == 9);
  // A stranger takes 10 blocks: 4 that were never taken, then what was let go of first, the chunks
  // that the prompt left behind: from the far end of each on.
  Sequence stranger = arrive(cache, 3, 80, {50, 51, 52});
  cache.grow(stranger, 80);
  CHECK(cache.free_blocks() == 14);
  CHECK(cache.find(again).blocks == 9);
  CHECK(cache.find(arrive(cache, 4, 60, ids)).blocks == 0);
  CHECK(cache.find(arrive(cache, 5, 65, ids)).blocks == 4);
  CHECK(cache.find(arrive(cache, 6, 65, ids)).in_use == 0);
}

TEST_CASE("a hit on sliding layers needs the window before its end") {
  KvCache cache(sliding, 100, true);
  const std::vector<std::uint64_t> ids{1, 2, 3, 4, 5, 6};
  Sequence first = arrive(cache, 1, 192, ids);
  cache.grow(first, 192);
  first.computed = 192;
  cache.grow(first, 193);  // sees 160 to 192, and lets go of ten blocks
  CHECK(cache.free_blocks() == 100 - 13 - 3);
  Sequence equal = arrive(cache, 2, 192, ids);
  CHECK(cache.find(equal).blocks == 11);
  CHECK(cache.find(equal).in_use == 11 + 1);  // two of its window are free, and good still
  cache.take_cached(equal);
  CHECK(equal.computed == 176);
  CHECK(equal.blocks == 11 + 2);
}

TEST_CASE("what a plan finds and takes on paper is what the cache then does, over windows too") {
  const auto shape = GENERATE(KvLayout{16, Bytes(1), 1, {{1, 0}}}, chunks, sliding,
                              KvLayout{16, Bytes(1), 1, {{1, 0}, {1, 64, true}, {1, 64, true}}},
                              KvLayout{16, Bytes(1), 1, {{1, 0}, {1, 33}, {1, 64, true}}},
                              KvLayout{16, Bytes(1), 1, {{1, 17}}});
  const auto seed = GENERATE(1U, 2U, 3U);
  Rng rng(seed, "test/kv_plan");
  KvCache cache(shape, 150, true);
  std::vector<Sequence> running;
  std::vector<Sequence> waiting_ones;
  std::uint32_t request = 0;
  std::int64_t hits = 0;
  for (int step = 0; step < 1500; ++step) {
    while (waiting_ones.size() < 3) {
      std::vector<std::uint64_t> ids;
      std::uint64_t id = 0;
      const auto tokens = static_cast<std::int32_t>(1 + rng.below(260));
      for (int i = 0; i < (tokens + 31) / 32; ++i) ids.push_back(id = 3 * id + 1 + rng.below(2));
      waiting_ones.push_back(arrive(cache, ++request, tokens, ids));
    }
    KvPlan plan(shape, cache.free_blocks(), &cache, true);
    std::vector<std::int32_t> given;
    for (const Sequence& sequence : running) {
      const std::int32_t tokens = std::max(1, std::min(sequence.due(), 48));
      const bool fits = plan.wanted(sequence, tokens) <= plan.free_blocks();
      const std::int64_t left = plan.free_blocks() - plan.wanted(sequence, tokens);
      if (fits) {
        plan.grow(sequence, tokens, plan.wanted(sequence, tokens));
        REQUIRE(plan.free_blocks() == left);
      }
      given.push_back(fits ? tokens : 0);
    }
    std::vector<CacheHit> found;
    for (Sequence sequence : waiting_ones) {
      if (running.size() + found.size() >= 6) break;
      const CacheHit hit = plan.find(sequence);
      sequence.computed = static_cast<std::int32_t>(hit.blocks) * 16;
      const std::int32_t tokens = std::min(sequence.due(), 48);
      const std::int64_t blocks =
          shape.blocks_in_step(sequence.computed, sequence.computed + tokens) - hit.in_use;
      if (blocks > plan.free_blocks()) break;
      plan.admit(sequence, hit, tokens);
      found.push_back(hit);
      hits += hit.blocks;
    }
    // The same in the cache itself.
    for (std::size_t i = 0; i < running.size(); ++i) {
      if (given[i] == 0) continue;
      Sequence& sequence = running[i];
      sequence.tokens = std::max(sequence.tokens, sequence.computed + given[i]);
      cache.grow(sequence, sequence.computed + given[i]);
      sequence.computed += given[i];
    }
    for (std::size_t i = 0; i < found.size(); ++i) {
      Sequence sequence = waiting_ones[i];
      cache.take_cached(sequence);
      REQUIRE(sequence.computed == found[i].blocks * 16);
      const std::int32_t tokens = std::min(sequence.due(), 48);
      cache.grow(sequence, sequence.computed + tokens);
      sequence.computed += tokens;
      running.push_back(sequence);
    }
    waiting_ones.erase(waiting_ones.begin(),
                       waiting_ones.begin() + static_cast<std::ptrdiff_t>(found.size()));
    REQUIRE(cache.free_blocks() == plan.free_blocks());
    // Some leave; where nothing moved all do.
    const bool stuck = found.empty() && std::ranges::all_of(given, [](auto n) { return n == 0; });
    for (std::size_t i = running.size(); i-- > 0;) {
      if (!stuck && rng.below(8) != 0) continue;
      cache.finish(running[i]);
      running.erase(running.begin() + static_cast<std::ptrdiff_t>(i));
    }
  }
  CHECK(hits > 500);
  for (Sequence& sequence : running) cache.finish(sequence);
  CHECK(cache.free_blocks() == 150);
}

Json mooncake(const Json& changes) {
  Json json = ConfigNode::from_file(source_dir() / "configs/quick.json").json();
  json["workload"].erase("lengths");
  json["workload"]["arrivals"] = {
      {"type", "trace"},
      {"speedup", 2},
      {"file", "../../shared/data/requests/mooncake_fast25/conversation_trace.jsonl"}};
  json["workload"]["requests"] = 150;
  json["cluster"] = "../hardware/clusters/h100x8.json";
  json["measurement"]["warmup"] = 0;
  json["max_model_len"] = 131'072;  // the longest conversation has 126,527 tokens
  json["kv_cache"]["prefix_caching"] = true;
  json.merge_patch(changes);
  return json;
}

Served run_mooncake(const Json& changes) {
  TraceLibrary traces;
  const auto file = source_dir() / "configs/inline.json";
  return test::serve(load_experiment(ConfigNode(mooncake(changes), file), traces));
}

double hit_rate(const Report& report) {
  return report.document().at("/kv/prefix_hit_rate"_json_pointer).get<double>();
}

TEST_CASE("the hits on Mooncake's conversations stay below those of a cache without end") {
  if (!has_shared()) {
    WARN("skipped: ../shared is absent");
    return;
  }
  // What one endless cache would hit: leading blocks of 512 tokens seen before, all but the last
  // token.
  const RequestTrace trace =
      read_request_trace(shared_dir() / "data/requests/mooncake_fast25/conversation_trace.jsonl");
  std::set<std::uint64_t> seen;
  double blocks = 0, hit_blocks = 0, tokens = 0, hit_tokens = 0;
  for (std::size_t r = 0; r < trace.rows.size(); ++r) {
    const Request& request = trace.rows[r].request;
    const std::vector<PromptIds::Span>& ids = request.prompt_ids->spans;
    const auto known = std::ranges::find_if_not(
                           ids, [&](auto id) { return seen.contains(id); }, &PromptIds::Span::id) -
                       ids.begin();
    blocks += double(ids.size());
    hit_blocks += double(known);
    if (r < 150) {
      tokens += request.prompt_tokens;
      hit_tokens += std::min(512 * int(known), request.prompt_tokens - 1);
    }
    for (const PromptIds::Span& span : ids) seen.insert(span.id);
  }
  CHECK_THAT(hit_blocks / blocks, WithinAbs(0.3664, 5e-5));
  const Served report = run_mooncake(Json::object());
  CHECK(hit_rate(report) > 0);
  CHECK(hit_rate(report) <= hit_tokens / tokens);
  // One rank holds every prefix, so it comes closer than eight that each hold their own.
  const Json one_rank{{"parallel", {{"dp", 1}, {"tp", 8}, {"ep", 8}}}};
  const Served one = run_mooncake(one_rank);
  CHECK(hit_rate(one) > hit_rate(report));
  CHECK(hit_rate(one) <= hit_tokens / tokens);
  for (const RequestRecord& r : one.requests) {
    REQUIRE(r.state == RequestRecord::State::finished);
    REQUIRE(r.cached_tokens < r.prompt_tokens);
  }
}

TEST_CASE("sequences that share a prefix survive a cache too small for all of them") {
  if (!has_shared()) {
    WARN("skipped: ../shared is absent");
    return;
  }
  TraceLibrary traces;
  Json json = mooncake({{"workload", {{"requests", 60}}}, {"parallel", {{"dp", 2}, {"tp", 4}}}});
  json["workload"]["arrivals"]["speedup"] = 50;
  Experiment e = load_experiment(ConfigNode(json, source_dir() / "configs/inline.json"), traces);
  std::int64_t longest = 0;
  for (std::int64_t i = 0; i < 60; ++i) {
    Rng rng(1, "unused");
    const Request request = e.decode().workload.lengths->request(i, rng);
    longest = std::max<std::int64_t>(longest, request.prompt_tokens + request.output_tokens);
  }
  e.decode().memory.kv_blocks = e.decode().kv_layout.blocks_for(longest);
  const Served report = test::serve(e);
  CHECK(report.document().at("/kv/preemptions"_json_pointer) > 0);
  CHECK(hit_rate(report) > 0);
  for (const RequestRecord& r : report.requests) {
    REQUIRE(r.state == RequestRecord::State::finished);
    REQUIRE(r.generated == r.output_tokens);
  }
}

TEST_CASE("prefix caching where nothing is shared changes nothing but the words of the report") {
  Json json = ConfigNode::from_file(source_dir() / "configs/quick.json").json();
  json["workload"]["requests"] = 64;
  const auto bytes = [&](bool caching) {
    json["kv_cache"]["prefix_caching"] = caching;
    TraceLibrary traces;
    OrderedJson document =
        run(load_experiment(ConfigNode(json, source_dir() / "configs/inline.json"), traces))
            .document();
    document.erase("context");
    document["kv"].erase("prefix_caching");
    return document.dump();
  };
  CHECK(bytes(true) == bytes(false));
}

std::string refused(const Json& json) {
  TraceLibrary traces;
  return config_error(
      [&] { load_experiment(ConfigNode(json, source_dir() / "configs/inline.json"), traces); });
}

// Requests as Mooncake writes them; the third to the fifth begin like the first. With the last,
// like none, measuring ends.
std::int64_t conversation_hits(const char* model) {
  const TemporaryFile file("conversations.jsonl", R"(
{"timestamp": 0, "input_length": 1200, "output_length": 5, "hash_ids": [0, 1, 2]}
{"timestamp": 40, "input_length": 600, "output_length": 3, "hash_ids": [3, 4]}
{"timestamp": 9000, "input_length": 1300, "output_length": 4, "hash_ids": [0, 1, 5]}
{"timestamp": 15000, "input_length": 1700, "output_length": 2, "hash_ids": [0, 1, 5, 6]}
{"timestamp": 20000, "input_length": 512, "output_length": 6, "hash_ids": [0]}
{"timestamp": 25000, "input_length": 64, "output_length": 6, "hash_ids": [7]}
)");
  Json json =
      mooncake({{"model", std::string("../models/zoo/") + model + ".json"},
                {"parallel", {{"dp", 1}, {"tp", 8}}},
                {"placement", {{"type", "linear"}, {"replication", 1}, {"load", nullptr}}}});
  json["workload"]["gating"] = {
      {"type", "uniform"}, {"requests", 16}, {"prompt_rows", 16}, {"decode_rows", 16}};
  json["workload"]["arrivals"]["file"] = file.path().string();
  json["workload"]["requests"] = 6;
  TraceLibrary traces;
  const ConfigNode node(json, source_dir() / "configs/inline.json");
  return test::serve(load_experiment(node, traces))
      .document()
      .at("/kv/prefix_hit_tokens"_json_pointer)
      .get<std::int64_t>();
}

TEST_CASE("prompts find over windows and chunks what they find without") {
  // 1,024 of 1,300; of 1,700 the 81 whole blocks of these 1,300; of 512 all but the last block.
  for (const char* model : {"qwen3_30b_a3b", "gpt_oss_20b", "llama_4_scout"}) {
    CAPTURE(model);
    CHECK(conversation_hits(model) == 1024 + 81 * 16 + 31 * 16);
  }
}

TEST_CASE("prefix caching is refused where layers keep a state") {
  const TemporaryFile file(
      "one.jsonl", R"({"timestamp": 0, "input_length": 512, "output_length": 5, "hash_ids": [0]})");
  Json json = mooncake({{"model", "../models/zoo/qwen3_next_80b_a3b.json"}});
  json["workload"]["arrivals"]["file"] = file.path().string();
  json["workload"]["requests"] = 1;
  CHECK_THAT(refused(json), Contains("prefix_caching: is not modelled for states that layers"));
}

}  // namespace
}  // namespace moesim::test_kv_cache
