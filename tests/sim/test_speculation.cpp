// SPDX-License-Identifier: Apache-2.0
// What do drafts cost, and how many tokens does a verification yield?
#include <cmath>
#include <tuple>

#include "sim/kv_cache/kv_cache.hpp"
#include "sim/serving/simulator.hpp"
#include "sim/serving/speculation.hpp"
#include "tests/support.hpp"
#include "tests/tiny_experiment.hpp"

namespace moesim::test_speculation {
namespace {

using test::load_tiny;
using test::WithinRel;

OrderedJson document(const Json& set) { return run(load_tiny(set)).document(); }

Json speculative(int tokens, double acceptance, Json draft = "mtp") {
  return {{"num_speculative_tokens", tokens},
          {"acceptance_rate", acceptance},
          {"draft", std::move(draft)}};
}

// One request alone: a prompt of 20 in one step, then 29 tokens.
Json alone(const Json& speculation) {
  return {{"speculative", speculation},
          {"workload", {{"arrivals", {{"concurrency", 1}}}, {"requests", 1}}}};
}

TEST_CASE("drafts that never hold yield one token a step, those that always do one more than k") {
  const OrderedJson never = document(alone(speculative(3, 0)));
  CHECK(never["steps"]["decode"]["steps"] == 29);
  CHECK(never["speculative"]["num_drafts"] == 29);
  CHECK(never["speculative"]["num_draft_tokens"] == 3 * 29);
  CHECK(never["speculative"]["mean_acceptance_length"] == 1.0);
  // 29 tokens four at a time are eight steps; the last one yields more than is asked for.
  const OrderedJson always = document(alone(speculative(3, 1)));
  CHECK(always["steps"]["decode"]["steps"] == 8);
  CHECK(always["steps"]["decode"]["mean_decode_tokens"] == 4.0);
  CHECK(always["speculative"]["mean_acceptance_length"] == 4.0);
  CHECK(always["speculative"]["draft_acceptance_rate"] == 1.0);
}

TEST_CASE("a verification yields (1 - a^(k+1)) / (1 - a) tokens in the mean") {
  for (const double a : {.4, .8}) {
    for (const int k : {1, 4}) {
      CAPTURE(a, k);
      const OrderedJson report =
          document({{"speculative", speculative(k, a)},
                    {"workload", {{"lengths", {{"output", 300}}}, {"requests", 48}}}});
      const double expected = (1 - std::pow(a, k + 1)) / (1 - a);
      CHECK_THAT(report["speculative"]["mean_acceptance_length"].get<double>(),
                 WithinRel(expected, .03));
    }
  }
}

// A drafter's shares by position as its authors print them (DSpark on Qwen3-8B, coding): 2.324
// tokens a step; and the lengths that others print.
TEST_CASE("acceptance by position, or a length, says how many tokens a step yields") {
  const auto length_of = [](const Json& said, int drafts) {
    Json speculation = {{"num_speculative_tokens", drafts}, {"draft", "mtp"}};
    speculation.update(said);
    return document({{"speculative", speculation},
                     {"workload",
                      {{"lengths", {{"output", 400}}},
                       {"requests", 64}}}})["speculative"]["mean_acceptance_length"]
        .get<double>();
  };
  const Json shares = {.605, .341, .186, .099, .052, .027, .014};
  CHECK_THAT(length_of({{"acceptance_rates", shares}}, 7), WithinRel(2.324, .02));
  CHECK_THAT(length_of({{"acceptance_length", 2.95}}, 3), WithinRel(2.95, .02));
  CHECK(length_of({{"acceptance_length", 1}}, 3) == 1.0);
  CHECK(length_of({{"acceptance_length", 4}}, 3) == 4.0);
  CHECK(length_of({{"acceptance_rates", {1, 1, 0}}}, 3) == 3.0);
}

// TensorRT-LLM to 1.2 keeps KV of n layers for n drafts. SGLang's draft layer has an embedding and
// a head of its own while the pool is sized: whole with attention DP, else in slices.
TEST_CASE("what engines keep besides for a draft layer comes out of the KV cache") {
  const auto memory = [](const Json& kv) {
    return load_tiny({{"speculative", speculative(3, .5)}, {"kv_cache", kv}});
  };
  const Experiment plain = memory(Json::object());
  const double layers = double(plain.decode().model.layers.size());
  const Experiment each = memory({{"layer_per_draft", true}});
  CHECK_THAT(each.decode().kv_layout.block / plain.decode().kv_layout.block,
             WithinRel((layers + 3) / (layers + 1), 1e-12));
  CHECK(each.decode().memory.weights == plain.decode().memory.weights);

  const Experiment loaded = memory({{"draft_embeddings", true}});
  const auto& [model, parallel] = std::tie(loaded.decode().model, loaded.decode().parallel);
  const double table = 2.0 * model.vocabulary * model.hidden, gpus = parallel.dp * parallel.tp;
  REQUIRE(parallel.dp > 1);
  const Bytes more = loaded.decode().memory.weights - plain.decode().memory.weights;
  CHECK_THAT(more.value(), WithinRel(table * (1 + 1 / gpus), 1e-9));
  CHECK_THAT((plain.decode().memory.kv - loaded.decode().memory.kv) / more, WithinRel(1., 1e-9));
}

TEST_CASE("acceptance that contradicts itself is refused") {
  const auto error_of = [](Json said) {
    said["num_speculative_tokens"] = 2;
    return test::config_error([&] { load_tiny({{"speculative", said}}); });
  };
  using Catch::Matchers::Contains;
  CHECK_THAT(error_of({{"acceptance_rate", nullptr}}), Contains("acceptance"));
  CHECK_THAT(error_of({{"acceptance_rate", .5}, {"acceptance_length", 2}}),
             Contains("expected one of"));
  CHECK_THAT(error_of({{"acceptance_rates", {.5}}}), Contains("each of 2 drafts, found 1"));
  CHECK_THAT(error_of({{"acceptance_rates", {.5, .6}}}), Contains("shares never rise"));
  CHECK_THAT(error_of({{"acceptance_length", 3.5}}), Contains("at most 3 tokens, not 3.5"));
}

// Watches that the blocks held are those of requests under way, and none at the end.
class BlockWatch final : public RunObserver {
 public:
  void step_ended(const StepRecord& record, Time) override { held = record.kv_blocks_held; }
  std::int64_t held = -1;
};

TEST_CASE("tokens and KV blocks are conserved, also when sequences are preempted") {
  std::int64_t preemptions = 0;
  for (const char* scheduler : {"chunked_prefill", "prefill_first", "decode_only", "comm_aware"}) {
    for (const bool caching : {false, true}) {
      CAPTURE(scheduler, caching);
      Experiment e = load_tiny({{"speculative", speculative(3, .6)},
                                {"scheduling", {{"type", scheduler}}},
                                {"kv_cache", {{"prefix_caching", caching}}}});
      e.decode().memory.kv_blocks = 9;  // of 16 tokens; a request needs four
      BlockWatch watch;
      const test::Served report = test::serve(e, {&watch});
      for (const RequestRecord& r : report.requests) {
        REQUIRE(r.state == RequestRecord::State::finished);
        REQUIRE(r.generated == 30);
      }
      CHECK(report.work.generated_tokens == 120 * 30);
      CHECK(watch.held == 0);
      preemptions += report.document()["kv"]["preemptions"].get<std::int64_t>();
    }
  }
  CHECK(preemptions > 0);
}

TEST_CASE("instances draw apart, and none as another one of another seed") {
  const auto draws = [](int seed, int instance) {
    Json json = alone(speculative(3, 0.5));
    json["seed"] = seed;
    const Experiment e = load_tiny(json);
    Speculation speculation(e.decode(), instance);
    std::vector<std::int32_t> accepted;
    for (int i = 0; i < 100; ++i) accepted.push_back(speculation.accept(3));
    return accepted;
  };
  CHECK(draws(1, 0) == draws(1, 0));
  CHECK(draws(1, 1) != draws(1, 0));
  CHECK(draws(1, 1) != draws(2, 0));
}

TEST_CASE("no draft tokens are no speculation, byte for byte") {
  OrderedJson none = document(Json::object()),
              zero = document({{"speculative", speculative(0, .9)}});
  none.erase("context");
  zero.erase("context");
  CHECK(none.dump() == zero.dump());
}

TEST_CASE("drafts that hold are faster, drafts that do not are slower than none") {
  const auto tpot = [](const Json& set) {
    return document(set)["metrics"]["mean_tpot_ms"].get<double>();
  };
  const double none = tpot(Json::object());
  CHECK(tpot({{"speculative", speculative(3, 1)}}) < none);
  CHECK(tpot({{"speculative", speculative(3, 0)}}) > none);
}

TEST_CASE("a given draft time is charged for every draft token, and the parts still add up") {
  const Json timed{{"type", "time"}, {"per_token", "1 ms"}};
  const OrderedJson report = document(alone(speculative(2, .5, timed)));
  const OrderedJson& s = report["speculative"];
  CHECK_THAT(s["draft_seconds"].get<double>(),
             WithinRel(2e-3 * s["num_drafts"].get<double>(), 1e-9));
  for (const Json& draft : {Json("mtp"), timed}) {
    const OrderedJson breakdown =
        document({{"speculative", speculative(2, .5, draft)}})["breakdown"];
    double parts = 0;
    for (const auto& part : breakdown["parts"]) parts += part["seconds"].get<double>();
    CHECK_THAT(parts, WithinRel(breakdown["busy_seconds"].get<double>(), 1e-9));
  }
}

TEST_CASE("an MTP module takes the memory of a layer more, and the time of a pass through it") {
  const Json timed{{"type", "time"}, {"per_token", "0 ms"}};
  const MemoryBudget without =
      load_tiny({{"speculative", speculative(2, .5, timed)}}).decode().memory;
  const MemoryBudget with = load_tiny({{"speculative", speculative(2, .5)}}).decode().memory;
  CHECK_THAT(with.experts.value(), WithinRel(without.experts.value() * 4 / 3, 1e-9));  // 3 layers
  CHECK(with.weights > without.weights);
  CHECK(with.kv_blocks < without.kv_blocks);
  // A pass of one layer with half the tokens (k = 1) costs less than the step of three layers.
  const OrderedJson report = document(alone(speculative(1, .5)));
  const double share = report["speculative"]["draft_share"];
  CHECK(share > .1);
  CHECK(share < .5);
}

TEST_CASE("consecutive tokens of one request activate fewer experts than tokens of many") {
  const auto active = [](int concurrency, int drafts) {
    const OrderedJson report =
        document({{"speculative", speculative(drafts, 1)},
                  {"model", {{"experts", {{"count", 64}, {"per_token", 4}}}}},
                  {"parallel", {{"dp", 1}, {"ep", 1}}},
                  {"placement", {{"replication", 1.0}}},
                  {"scheduling", {{"type", "decode_only"}, {"max_num_batched_tokens", 64}}},
                  {"workload",
                   {{"arrivals", {{"concurrency", concurrency}}},
                    {"lengths", {{"output", 41}}},
                    {"gating", {{"requests", 40}, {"decode_rows", 60}}}}}});
    const OrderedJson& decode = report["experts"]["by_step_kind"]["decode"];
    CHECK_THAT(report["steps"]["decode"]["mean_decode_tokens"].get<double>(), WithinRel(8., .08));
    return decode["active_experts_mean"].get<double>();
  };
  const double verified = active(2, 3), independent = active(8, 0);
  CHECK(verified < .95 * independent);
  CHECK(verified > 8);  // two tokens pick eight at most
}

TEST_CASE("tokens of one step share the gap before it") {
  const OrderedJson metrics = document(alone(speculative(3, 1)))["metrics"];
  CHECK_THAT(metrics["mean_itl_ms"].get<double>(),
             WithinRel(metrics["mean_tpot_ms"].get<double>(), 1e-6));
}

TEST_CASE("a step too small for its drafts is refused") {
  CHECK_THAT(test::config_error([] {
               load_tiny({{"speculative", speculative(8, .5)}});
             }),
             Catch::Matchers::Contains("max_num_seqs x 9 = 72 tokens"));
}

TEST_CASE("attention reads the keys once for all tokens that it verifies") {
  // Four queries at context 100 see 101 + 102 + 103 + 104 keys.
  const SequenceWork verification{4, 100, true};
  const AttentionWork work = attention_work(std::span(&verification, 1), Sight{});
  CHECK(work.decode_sequences == 4);
  CHECK(work.decode_kv_tokens == 104);
  CHECK(work.decode_pairs == 410);
  CHECK(work.prefill_tokens == 0);
}

TEST_CASE("blocks of rejected drafts are free, and only those of known tokens can be hit") {
  const KvLayout layout{16, Bytes(1), 1, {{1, 0}}};
  for (const bool caching : {false, true}) {
    KvCache cache(layout, 10, caching);
    Sequence sequence{7, 31, 0, 30};
    cache.expect(7, 30, prompt_hashes(nullptr, 7, 30, 16));
    cache.grow(sequence, 30);
    sequence.computed = 30;
    cache.grow(sequence, 50, 31);  // the 31st token and 19 drafts
    CHECK(cache.free_blocks() == 6);
    sequence.tokens = 34;  // two drafts hold
    sequence.computed = 33;
    cache.shrink(sequence);
    CHECK(sequence.blocks == 3);
    CHECK(cache.free_blocks() == 7);
    if (caching) CHECK(cache.find(sequence).blocks == 2);
    cache.finish(sequence);
    CHECK(cache.free_blocks() == 10);
  }
}

}  // namespace
}  // namespace moesim::test_speculation
