// SPDX-License-Identifier: Apache-2.0
// Two pools and one tier: the decode pool writes replies that the prefill pool finds.
#include "tests/tiny_experiment.hpp"

namespace moesim::test_decode_offload {
namespace {

using test::load_tiny;

// Agents of four turns; a host for each prefill rank and a pool for all, without time.
Json apart(bool offload) {
  const Json fast = "1000000000 TB/s";
  return {{"parallel", {{"dp", 1}, {"tp", 1}, {"ep", 1}}},
          {"placement", {{"replication", 1}}},
          {"scheduling", {{"type", "chunked_prefill"}, {"max_num_batched_tokens", 512}}},
          {"measurement", {{"warmup", 0}}},
          {"request_routing", "round_robin"},
          {"workload",
           {{"arrivals", {{"concurrency", 5}}},
            {"lengths", nullptr},
            {"requests", 120},
            {"sessions",
             {{"type", "generated"},
              {"turns", 4},
              {"first", 150},
              {"new", 33},
              {"output", 40},
              {"gap", {{"median", "1 s"}, {"sigma", 0.1}}}}}}},
          {"pools",
           {{"prefill",
             {{"instances", 2},
              {"kv_cache",
               {{"prefix_caching", true},
                {"tiers",
                 {{{"name", "host"}, {"capacity", "1 MB"}, {"bandwidth", fast}},
                  {{"name", "pool"},
                   {"capacity", "1 TB"},
                   {"per", "cluster"},
                   {"path", "direct"},
                   {"bandwidth", fast}}}}}}}},
            {"decode", {{"instances", 3}, {"kv_cache", {{"prefix_caching", true}}}}}}},
          {"kv_transfer", {{"decode_offload", offload}}}};
}

TEST_CASE("prefill finds all of a context where decode ranks write what they fill") {
  const OrderedJson without = run(load_tiny(apart(false))).document(),
                    with = run(load_tiny(apart(true))).document();
  const OrderedJson &computed = without["turns"]["all"]["prefix"],
                    &found = with["turns"]["all"]["prefix"];
  CHECK(found["hit_tokens"] == found["ideal_hit_tokens"]);
  CHECK(found["queried_tokens"] == computed["queried_tokens"]);
  // Each later turn computes its prompt's new tokens, and no reply of 40 tokens or two blocks.
  const double later = 3. / 4 * 120;
  CHECK(computed["computed_tokens"].get<double>() - found["computed_tokens"].get<double>() >=
        later * 32);
  const auto pool_writes = [](const OrderedJson& json) {
    return json["pools"]["prefill"]["tiers"]["pool"]["write"]["bytes"].get<double>();
  };
  CHECK(pool_writes(with) > pool_writes(without));
  CHECK(with["metrics"]["completed"] == 120);
  // Decode ranks only write: the tiers are the prefill pool's.
  CHECK_FALSE(with.contains("tiers"));
}

TEST_CASE("replies that are not used again are written and never found") {
  Json set = apart(true);
  set["workload"]["sessions"]["reuse_output"] = false;
  const OrderedJson with = run(load_tiny(set)).document();
  set["kv_transfer"]["decode_offload"] = false;
  const OrderedJson without = run(load_tiny(set)).document();
  CHECK(with["turns"]["all"]["prefix"] == without["turns"]["all"]["prefix"]);
}

TEST_CASE("decode_offload is refused where pools do not share a tier") {
  const auto refused = [](const Json& changes) {
    Json set = apart(true);
    set.merge_patch(changes);
    return test::config_error([&] { load_tiny(set); });
  };
  const auto has = [](const std::string& text, const char* part) {
    return text.find("/kv_transfer/decode_offload: ") != std::string::npos &&
           text.find(part) != std::string::npos;
  };
  CHECK(refused(Json::object()).empty());
  CHECK(has(refused({{"pools", {{"prefill", {{"kv_cache", {{"tiers", Json::array()}}}}}}}}),
            "\"per\": \"cluster\""));
  CHECK(has(refused({{"pools", {{"decode", {{"kv_cache", {{"prefix_caching", false}}}}}}}}),
            "\"prefix_caching\": true"));
  CHECK(has(refused({{"pools", {{"decode", {{"kv_cache", {{"block_size", 32}}}}}}}}),
            "must be equal"));
  const Json own{{"capacity", "1 GB"}};
  CHECK(has(refused({{"pools", {{"decode", {{"kv_cache", {{"tiers", {own}}}}}}}}}),
            "give decode none"));
}

}  // namespace
}  // namespace moesim::test_decode_offload
