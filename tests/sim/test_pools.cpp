// SPDX-License-Identifier: Apache-2.0
// Prefill and decode apart: does every request pass through both pools, and its KV cache over a
// link that is charged?
#include <fmt/format.h>

#include "sim/experiment/pools.hpp"
#include "sim/serving/simulator.hpp"
#include "tests/support.hpp"
#include "tests/tiny_experiment.hpp"

namespace moesim::test_pools {
namespace {

using Catch::Matchers::Contains;
using namespace test;

// A prefill group of 4 GPUs and one of decode.
Json apart(const Json& set = Json::object()) {
  Json json = tiny_experiment(
      {{"pools",
        {{"prefill",
          {{"scheduling",
            {{"type", "chunked_prefill"}, {"max_num_batched_tokens", 64}, {"max_num_seqs", 8}}}}},
         {"decode", {{"scheduling", {{"type", "decode_only"}, {"max_num_seqs", 8}}}}}}}});
  json.merge_patch(set);
  return json;
}

Experiment cramped(const Json& json, std::int64_t prefill_blocks, std::int64_t decode_blocks) {
  Experiment e = load(json);
  e.pools.front().memory.kv_blocks = prefill_blocks;
  e.pools.back().memory.kv_blocks = decode_blocks;
  return e;
}

TEST_CASE("prompts are computed in one pool and tokens decoded in the other") {
  // All requests at once: none arrives later, so that the whole run is measured.
  Json json = apart();
  json["workload"]["arrivals"]["concurrency"] = 120;
  const Served report = serve(load(json));
  const OrderedJson document = report.document();
  CHECK(document["metrics"]["completed"] == 120);
  const OrderedJson& pools = document["pools"];
  // One token of each request comes from its prompt's step; nothing else is computed twice.
  const OrderedJson& prefill = pools["prefill"]["instances"][0];
  const OrderedJson& decode = pools["decode"]["instances"][0];
  CHECK(prefill["output_tokens"] == 120);
  CHECK(prefill["prefill_tokens"] == 120.0 * 20);
  CHECK(prefill["decode_tokens"] == 0.0);
  CHECK(decode["output_tokens"] == 120 * 29);
  CHECK(decode["prefill_tokens"] == 0.0);
  CHECK(decode["decode_tokens"] == 120.0 * 29);
  CHECK(pools["kv_transfer"]["transfers"] == 120);
  CHECK(pools["kv_transfer"]["level"] == "nvlink");
  for (const RequestRecord& r : report.requests) {
    REQUIRE(r.generated == r.output_tokens);
    REQUIRE(r.prefill);
    CHECK(r.prefill->instance == 0);
    CHECK(r.instance == 1);
    CHECK(r.prefill->kv_exposed.count() > 0);
  }
  // The sections of the decode pool stand at the top.
  CHECK(document["steps"]["prefill"]["steps"] == 0);
  CHECK(pools["prefill"]["steps"]["decode"]["steps"] == 0);
  CHECK(run(load(json)).document().dump() == document.dump());
}

TEST_CASE("the resolved config of a run with pools is a config that gives the same run") {
  const Report first = run(load(apart()));
  const Json config = Json::parse(first.document()["context"]["config"].dump());
  for (const auto& [key, value] : config.items()) CHECK(!both_pools_have(config, key));
  refuse_keys_beside_pools({config, "config.json"});
  OrderedJson again = run(load(config)).document(), before = first.document();
  again.erase("context");
  before.erase("context");
  CHECK(again.dump() == before.dump());
}

TEST_CASE("a lone request's KV cache takes what its bytes take on the link") {
  const auto lone = [](const char* sends, const char* level) {
    Json json = apart({{"kv_transfer", {{"level", level}, {"sends", sends}}}});
    json["workload"]["requests"] = 1;
    return json;
  };
  for (const char* level : {"nvlink", "network"}) {
    CAPTURE(level);
    const Experiment e = load(lone("whole", level));
    const KvTransferCost cost = kv_transfer(e, 20);
    // 3 layers of K and V, 4 heads of 64, bf16; 20 tokens are two blocks of 16.
    CHECK_THAT(cost.bytes.value(), WithinRel(3 * 2 * 4 * 64 * 2 * 32.0, 1e-12));
    CHECK(cost.exposed == cost.all);
    const Served serial = serve(e);
    CHECK_THAT(to_seconds(serial.requests[0].prefill->kv_exposed).count(),
               WithinRel(cost.all.count(), 1e-6));
    // The prompt's step is long enough to hide all layers but the last.
    const Served overlapped = serve(load(lone("layer", level)));
    const Seconds step =
        to_seconds(overlapped.requests[0].first_token - overlapped.requests[0].arrival);
    const KvTransferCost last_layer = kv_transfer(load(lone("layer", level)), 20);
    CHECK(last_layer.exposed < last_layer.all);
    const double exposed = std::max(last_layer.exposed.count(), (cost.all - step).count());
    CHECK_THAT(to_seconds(overlapped.requests[0].prefill->kv_exposed).count(),
               WithinRel(exposed, 1e-6));
    // The first gap holds the transfer, TTFT does not.
    CHECK(serial.document()["metrics"]["mean_ttft_ms"] ==
          overlapped.document()["metrics"]["mean_ttft_ms"]);
    CHECK(serial.document()["metrics"]["mean_e2el_ms"] >
          overlapped.document()["metrics"]["mean_e2el_ms"]);
  }
}

TEST_CASE("of a prompt in two steps the second step's share of the KV cache is exposed") {
  const auto cost = [](const char* sends) {
    Json json = apart({{"kv_transfer", {{"sends", sends}}}});
    json["workload"]["lengths"] = {{"type", "fixed"}, {"prompt", 112}, {"output", 2}};
    return kv_transfer(load(json), 112);  // steps of 64 tokens
  };
  const KvTransferCost whole = cost("whole"), chunks = cost("chunk");
  CHECK(chunks.all == whole.all);
  CHECK(chunks.exposed < whole.exposed);
  CHECK(chunks.exposed > cost("layer").exposed);
}

// A lone request: its prompt, the transfer, and steps of one token.
TEST_CASE("a client sees the first token when the engine's decode server shows it") {
  const auto lone = [](const char* first_token) {
    Json json = apart({{"kv_transfer", {{"sends", "whole"}, {"first_token", first_token}}}});
    json["workload"]["requests"] = 1;
    return serve(load(json));
  };
  const Served prefill = lone("prefill"), admission = lone("admission"), again = lone("decode");
  const auto at = [](const Served& report) { return report.requests[0]; };
  const Duration transfer = at(prefill).prefill->kv_exposed;
  CHECK(at(admission).first_token == at(prefill).first_token + transfer);
  CHECK(at(admission).last_token == at(prefill).last_token);
  // The decode server computes the first token once more, and then all others.
  const auto steps = [](const Served& report) {
    return report.document()["steps"]["decode"]["steps"].get<int>();
  };
  CHECK(steps(admission) == steps(prefill));
  CHECK(steps(again) == steps(prefill) + 1);
  CHECK(at(again).first_token > at(admission).first_token);
  CHECK(at(again).last_token > at(admission).last_token);
  for (const Served* report : {&prefill, &admission, &again}) {
    CHECK(at(*report).generated == at(*report).output_tokens);
    CHECK(report->document()["metrics"]["completed"] == 1);
    CHECK(report->document()["pools"]["prefill"]["instances"][0]["output_tokens"] ==
          (report == &again ? 0 : 1));
    CHECK(report->document()["pools"]["decode"]["instances"][0]["output_tokens"] ==
          (report == &again ? 30 : 29));
  }
  // What a decode server waits for is then no gap between tokens.
  const auto longest_gap = [](const Served& report) {
    return report.document()["metrics"]["p99_itl_ms"].get<double>();
  };
  CHECK(longest_gap(admission) <= longest_gap(prefill));
}

TEST_CASE("where decode has few seats, waiting for one is part of TTFT and not of TPOT") {
  const auto metrics = [](const char* first_token) {
    Json json = apart({{"kv_transfer", {{"first_token", first_token}}}});
    json["pools"]["decode"]["scheduling"]["max_num_seqs"] = 1;
    return serve(load(json)).document()["metrics"];
  };
  const OrderedJson prefill = metrics("prefill"), admission = metrics("admission");
  CHECK(admission["mean_ttft_ms"].get<double>() > 2 * prefill["mean_ttft_ms"].get<double>());
  CHECK(admission["mean_tpot_ms"].get<double>() < .7 * prefill["mean_tpot_ms"].get<double>());
  for (const char* same : {"mean_e2el_ms", "output_throughput", "total_token_throughput"})
    CHECK_THAT(admission[same].get<double>(), WithinRel(prefill[same].get<double>(), 1e-9));
  // A token that is computed twice counts once.
  const auto total_over_output = [](const OrderedJson& of) {
    return of["total_token_throughput"].get<double>() / of["output_throughput"].get<double>();
  };
  CHECK_THAT(total_over_output(metrics("decode")), WithinRel(total_over_output(prefill), .03));
}

TEST_CASE("KV caches leave one after the other over the link of their rank") {
  // Four prompts of 16 tokens fill one step of 64 on one rank: they are ready at once.
  Json json = apart({{"kv_transfer", {{"sends", "whole"}}},
                     {"parallel", {{"dp", 1}, {"tp", 1}, {"ep", 1}}},
                     {"placement", {{"type", "linear"}, {"replication", 1.0}}}});
  json["workload"]["lengths"] = {{"type", "fixed"}, {"prompt", 16}, {"output", 2}};
  json["workload"]["arrivals"] = {{"type", "closed_loop"}, {"concurrency", 4}};
  json["workload"]["requests"] = 4;
  const Experiment e = load(json);
  const double one = kv_transfer(e, 16).all.count();
  const Served report = serve(e);
  for (std::size_t i = 0; i < 4; ++i) {
    CHECK_THAT(to_seconds(report.requests[i].prefill->kv_exposed).count(),
               WithinRel(one * double(i + 1), 1e-6));
  }
}

TEST_CASE("KV caches that arrive at one moment join one decode step") {
  // Four equal prompts, one on each prefill rank: computed in one step, they arrive together.
  Json json = apart({{"kv_transfer", {{"sends", "whole"}}}});
  json["workload"]["lengths"] = {{"type", "fixed"}, {"prompt", 16}, {"output", 3}};
  json["workload"]["arrivals"] = {{"type", "closed_loop"}, {"concurrency", 4}};
  json["workload"]["requests"] = 4;
  const Served report = serve(load(json));
  CHECK(report.document()["steps"]["decode"]["steps"] == 2);
  for (const RequestRecord& r : report.requests) {
    CHECK(r.last_token == report.requests[0].last_token);
  }
}

TEST_CASE("a GPU of the decode pool receives what it will hold, whatever the prefill pool's tp") {
  const auto bytes = [](int prefill_tp, int decode_tp, int prefill_pp = 1, int decode_pp = 1) {
    const auto plan = [](int tp, int pp) {
      return Json{{"dp", 1}, {"tp", tp}, {"ep", tp}, {"pp", pp}};
    };
    Json json = apart({{"placement", {{"type", "linear"}, {"replication", 1.0}}}});
    json["model"]["attention"]["kv_heads"] = 2;
    json["model"]["layers"][0]["repeat"] = 4;
    json["pools"]["prefill"]["parallel"] = plan(prefill_tp, prefill_pp);
    json["pools"]["decode"]["parallel"] = plan(decode_tp, decode_pp);
    return kv_transfer(load(json), 32);
  };
  // 4 layers of K and V, 2 heads of 64, bf16, 32 tokens.
  const double once = 4 * 2 * 2 * 64 * 2 * 32.0;
  for (const int prefill_tp : {1, 2, 4}) {
    CAPTURE(prefill_tp);
    CHECK_THAT(bytes(prefill_tp, 1).bytes.value(), WithinRel(once, 1e-12));
    CHECK_THAT(bytes(prefill_tp, 2).bytes.value(), WithinRel(once, 1e-12));
    // Four GPUs for two heads: each head is held twice.
    CHECK_THAT(bytes(prefill_tp, 4).bytes.value(), WithinRel(2 * once, 1e-12));
  }
  CHECK_THAT(bytes(1, 1, 2, 2).bytes.value(), WithinRel(once, 1e-12));
  CHECK_THAT(bytes(1, 1, 2, 1).bytes.value(), WithinRel(once, 1e-12));
  CHECK_THAT(bytes(1, 1, 1, 2).bytes.value(), WithinRel(once, 1e-12));
  // The last layer is one layer, however few its stage has.
  for (const int stages : {2, 4}) {
    CHECK(bytes(1, 1, stages, stages).exposed == bytes(1, 1).exposed);
    CHECK(bytes(1, 1, stages, stages).all < bytes(1, 1).all);
  }
}

TEST_CASE("a prefill GPU sends its share to every decode GPU that keeps a copy") {
  // Times of as many tokens as make latency and the cost of small messages vanish.
  const auto time = [](int prefill_tp, int decode_tp, int kv_heads) {
    const auto plan = [](int tp) { return Json{{"dp", 1}, {"tp", tp}, {"ep", tp}}; };
    Json json = apart({{"placement", {{"type", "linear"}, {"replication", 1.0}}},
                       {"kv_transfer", {{"level", "network"}}}});
    json["model"]["attention"]["kv_heads"] = kv_heads;
    json["pools"]["prefill"]["parallel"] = plan(prefill_tp);
    json["pools"]["decode"]["parallel"] = plan(decode_tp);
    const Experiment e = load(json);
    return (kv_transfer(e, 1 << 24).all - kv_transfer(e, 1 << 23).all).count();
  };
  const double all = time(1, 1, 1);  // one head, as MLA has one latent
  CHECK_THAT(time(1, 2, 1), WithinRel(2 * all, 1e-2));
  CHECK_THAT(time(1, 4, 1), WithinRel(4 * all, 1e-2));
  CHECK_THAT(time(2, 4, 1), WithinRel(2 * all, 1e-2));
  CHECK_THAT(time(4, 4, 1), WithinRel(all, 1e-2));
  CHECK_THAT(time(4, 1, 1), WithinRel(all, 1e-2));
  const double heads = time(1, 1, 2);
  CHECK_THAT(time(1, 2, 2), WithinRel(heads, 1e-2));
  CHECK_THAT(time(1, 4, 2), WithinRel(2 * heads, 1e-2));
  CHECK_THAT(time(2, 4, 2), WithinRel(heads, 1e-2));
  CHECK_THAT(time(4, 4, 2), WithinRel(heads / 2, 1e-2));
}

TEST_CASE("links on which a KV cache takes longer than the clock runs are refused") {
  const auto error = [](const Json& network) {
    Json json = apart({{"kv_transfer", {{"level", "network"}}}});
    Json cluster = ConfigNode::from_file(source_dir() / "hardware/clusters/h100x16.json").json();
    cluster["gpu"] = "../hardware/gpus/h100.json";
    cluster["network"].merge_patch(network);
    json["cluster"] = cluster;
    const Experiment e = load(json);
    return config_error([&] { run(e); });
  };
  CHECK_THAT(error({{"bandwidth", "0.001 B/s"}}), Contains("100 days"));
  CHECK_THAT(error({{"latency", "720 h"}}), Contains("100 days"));
}

TEST_CASE("no request is lost, and no block, under any router, with cramped caches") {
  for (const auto& entry : request_routers().entries()) {
    CAPTURE(entry.name);
    // A prompt of 20 takes two blocks; with all its output (49) four.
    const Experiment e = cramped(apart({{"request_routing", std::string(entry.name)},
                                        {"kv_cache", {{"prefix_caching", true}}}}),
                                 3, 6);
    const Report report = run(e);  // checks that all blocks are free at the end
    REQUIRE(report.document()["metrics"]["completed"] == 120);
    CHECK(report.document()["kv"]["preemptions"] > 0);
  }
}

TEST_CASE("ranks and whole groups of either pool may fail") {
  const auto outages = [](const Json& events, int instances) {
    return Json{{"instances", instances}, {"failures", events}};
  };
  const Json rank = Json::array({{{"gpu", 2}, {"at", "4 ms"}, {"recovers_after", "5 ms"}}});
  const Json group = Json::array({{{"instance", 1}, {"at", "4 ms"}, {"recovers_after", "8 ms"}}});
  for (const char* pool : {"prefill", "decode"}) {
    for (const char* scheduler : {"decode_only", "chunked_prefill"}) {
      for (const bool whole : {false, true}) {
        CAPTURE(pool, scheduler, whole);
        Json json = apart({{"kv_transfer", {{"sends", "whole"}}}});
        json["pools"]["decode"]["scheduling"] = {
            {"type", scheduler}, {"max_num_seqs", 8}, {"max_num_batched_tokens", 64}};
        json["pools"][pool].merge_patch(outages(whole ? group : rank, whole ? 2 : 1));
        const Served report = serve(load(json));
        CHECK(report.document()["metrics"]["completed"] == 120);
        for (const RequestRecord& r : report.requests) REQUIRE(r.generated == r.output_tokens);
      }
    }
  }
}

TEST_CASE("a prompt whose rank stops while its KV cache is on the way is computed again") {
  Json json = apart({{"kv_transfer", {{"sends", "whole"}}}});
  json["workload"]["requests"] = 1;
  json["pools"]["decode"]["scheduling"] = {
      {"type", "chunked_prefill"}, {"max_num_seqs", 8}, {"max_num_batched_tokens", 64}};
  const auto recomputed = [](const Report& report) {
    return report.document()["pools"]["decode"]["instances"][0]["prefill_tokens"].get<double>();
  };
  const Served whole = serve(load(json));
  const RequestRecord& request = whole.requests[0];
  CHECK(recomputed(whole) == 0);
  const auto halfway = to_seconds(request.first_token - Time{} + request.prefill->kv_exposed / 2);
  json["pools"]["prefill"]["failures"] =
      Json::array({{{"gpu", request.prefill->rank}, {"at", fmt::format("{} s", halfway.count())}}});
  const Served broken = serve(load(json));
  // 20 tokens of the prompt and the one that the prefill pool had emitted.
  CHECK(recomputed(broken) == 21);
  CHECK(broken.requests[0].generated == 30);
  CHECK(broken.requests[0].first_token == request.first_token);
  CHECK(broken.requests[0].last_token > request.last_token);
}

TEST_CASE("a prompt that either pool can never hold is rejected and holds up nobody") {
  // The prefill pool needs two blocks for 20 tokens, the decode pool four for 49.
  for (const auto& [prefill, decode] : {std::pair(1, 100), std::pair(100, 3)}) {
    const Report report = run(cramped(apart(), prefill, decode));
    CHECK(report.document()["metrics"]["rejected"] == 120);
    CHECK(report.document()["metrics"]["completed"] == 0);
  }
  CHECK(run(cramped(apart(), 2, 4)).document()["metrics"]["completed"] == 120);
}

TEST_CASE("requests of one output token never see the decode pool") {
  Json json = apart();
  json["workload"]["lengths"] = {{"type", "fixed"}, {"prompt", 20}, {"output", 1}};
  const Served report = serve(load(json));
  CHECK(report.document()["metrics"]["completed"] == 120);
  CHECK(report.document()["pools"]["kv_transfer"]["transfers"] == 0);
  for (const RequestRecord& r : report.requests) CHECK(r.instance == 0);
}

// A copy of a shipped cluster, whose NIC has this bandwidth.
Json cluster_of(const char* file, const char* gpu, const char* nic) {
  Json cluster = ConfigNode::from_file(source_dir() / "hardware/clusters" / file).json();
  cluster["gpu"] = gpu;
  cluster["network"]["bandwidth"] = nic;
  return cluster;
}

TEST_CASE("each pool may have a cluster of its own, and computes as it does on that alone") {
  const Json slow = cluster_of("h100x8.json", "../hardware/gpus/h100.json", "25 GB/s");
  const Json fast = cluster_of("b200x8.json", "../hardware/gpus/b200.json", "50 GB/s");
  const auto on = [](const Json& prefill, const Json& decode) {
    Json json =
        apart({{"pools", {{"prefill", {{"cluster", prefill}}}, {"decode", {{"cluster", decode}}}}},
               {"kv_transfer", {{"level", "network"}}}});
    json["workload"]["requests"] = 1;
    return load(json);
  };
  const Experiment both = on(slow, fast);
  const auto both_slow =
      on(slow, cluster_of("h100x8.json", "../hardware/gpus/h100.json", "26 GB/s"));
  const auto both_fast =
      on(cluster_of("b200x8.json", "../hardware/gpus/b200.json", "51 GB/s"), fast);
  // The slower NIC is the way, whichever pool has it.
  CHECK_THAT(kv_transfer(both, 200'000).all / kv_transfer(both_fast, 200'000).all,
             WithinAbs(2, .2));
  CHECK(kv_transfer(both, 200'000).all == kv_transfer(on(fast, slow), 200'000).all);
  const OrderedJson report = run(both).document();
  const auto steps = [](const OrderedJson& document, const char* pool, const char* kind) {
    const OrderedJson& of = std::string_view(pool) == "decode" ? document : document["pools"][pool];
    return of["steps"][kind]["mean_ms"].get<double>();
  };
  CHECK(steps(report, "prefill", "prefill") ==
        steps(run(both_slow).document(), "prefill", "prefill"));
  CHECK(steps(report, "decode", "decode") == steps(run(both_fast).document(), "decode", "decode"));
  CHECK(steps(report, "decode", "decode") != steps(run(both_slow).document(), "decode", "decode"));
  // What is by the GPU's peak counts each GPU's own.
  const auto bandwidth = [](const Experiment& e) {
    double sum = 0;
    for (const Deployment& pool : e.pools)
      sum += pool.cluster.gpu.hbm_bandwidth.value() * gpus_of(pool);
    return sum;
  };
  const double read = report["metrics"]["mbu"].get<double>() * bandwidth(both) *
                      report["metrics"]["duration_s"].get<double>();
  const OrderedJson alone = run(both_fast).document();
  CHECK_THAT(read, WithinRel(alone["metrics"]["mbu"].get<double>() * bandwidth(both_fast) *
                                 alone["metrics"]["duration_s"].get<double>(),
                             1e-6));
  // The resolved config is one that gives the same run.
  const Json config = Json::parse(report["context"]["config"].dump());
  CHECK(config["pools"]["prefill"]["cluster"] == slow);
  CHECK(run(load(config)).document()["metrics"].dump() == report["metrics"].dump());
}

TEST_CASE("pools may be on any two shipped clusters, and KV caches find their way") {
  std::vector<std::string> clusters;
  for (const auto& entry : std::filesystem::directory_iterator(source_dir() / "hardware/clusters"))
    clusters.push_back(entry.path().string());
  int pairs = 0;
  for (const std::string& prefill : clusters) {
    for (const std::string& decode : clusters) {
      if (prefill == decode) continue;
      INFO(prefill << " " << decode);
      const ClusterSpec wide = read_cluster(ConfigNode::from_file(decode));
      const int tp = std::min(16, wide.gpus());  // more than some clusters for prefill have
      Json json = apart(
          {{"model", {{"attention", {{"query_heads", 16}}}}},
           {"placement", {{"replication", 1}}},
           {"pools",
            {{"prefill", {{"cluster", prefill}, {"parallel", {{"dp", 1}, {"tp", 8}, {"ep", 8}}}}},
             {"decode",
              {{"cluster", decode}, {"parallel", {{"dp", 1}, {"tp", tp}, {"ep", tp}}}}}}}});
      const Experiment e = load(json);
      CHECK(kv_transfer(e, 2000).all > Seconds{});
      ++pairs;
    }
  }
  CHECK(pairs >= 462);
}

TEST_CASE("a name and a path of one file are one cluster") {
  const auto named = [](const char* prefill, const char* decode) {
    return load(apart(
        {{"pools", {{"prefill", {{"cluster", prefill}}}, {"decode", {{"cluster", decode}}}}}}));
  };
  const char* path = "../hardware/clusters/h100x16.json";
  const Experiment one = named("h100x16", path);
  CHECK(one_cluster(one.pools.front(), one.pools.back()));
  CHECK(!one.kv_link->network);
  const Experiment two = named("h100x8", path);
  CHECK(!one_cluster(two.pools.front(), two.pools.back()));
}

TEST_CASE("pools on two clusters that cannot be are refused in a sentence") {
  const auto with = [](const Json& set, const Json& more = Json::object()) {
    Json json = apart({{"pools", {{"prefill", set}}}});
    json.merge_patch(more);
    return refused(json);
  };
  const Json other{{"cluster", "../hardware/clusters/b200x8.json"}};
  CHECK(with(other).empty());
  CHECK_THAT(with(other, {{"kv_transfer", {{"level", "nvlink"}}}}),
             Contains("/kv_transfer/level") && Contains("two clusters"));
  Json many = other;
  many["instances"] = 3;
  CHECK_THAT(with(many), Contains("3 instances of 4 GPUs take 12, but 8 x B200 has 8"));
  CHECK_THAT(with(other, {{"pool_roles", {{"type", "thresholds"}}}}),
             Contains("groups do not move between clusters"));
}

TEST_CASE("pools that make no sense are refused in a sentence") {
  CHECK(refused(apart()).empty());
  const auto with = [](const char* pool, const Json& set) {
    return apart({{"pools", {{pool, set}}}});
  };
  CHECK_THAT(refused(with("prefill", {{"instances", 4}})),
             Contains("16 GPUs for prefill and 4 for decode are 20"));
  CHECK_THAT(refused(with("decode", {{"workload", {{"requests", 3}}}})),
             Contains("/pools/decode/workload: applies to both pools"));
  CHECK_THAT(
      refused(
          with("prefill",
               {{"scheduling",
                 {{"type", "decode_only"}, {"max_num_batched_tokens", 64}, {"max_num_seqs", 8}}}})),
      Contains("computes no prompts"));
  CHECK_THAT(refused(with("decode",
                          {{"precision",
                            {{"experts", "bf16"}, {"attention", "bf16"}, {"kv_cache", "fp8"}}}})),
             Contains("different precisions"));
  CHECK_THAT(refused(with("decode", {{"schedulin", 1}})), Contains("schedulin"));
  CHECK_THAT(refused(apart({{"failures", Json::array()}})), Contains("/failures"));
  CHECK_THAT(refused(apart({{"pools", {{"both", Json::object()}}}})), Contains("both"));
  Json far = with("decode", {{"instances", 2}});
  CHECK(refused(far).empty());
  far["kv_transfer"] = {{"level", "nvlink"}};
  CHECK_THAT(refused(far), Contains("NVLink joins 8 GPUs, the pools have 12"));
  Json near = apart({{"cluster", "../hardware/clusters/h100x8.json"}});
  near["kv_transfer"] = {{"level", "network"}};
  CHECK_THAT(refused(near), Contains("one NVLink domain"));
}

}  // namespace
}  // namespace moesim::test_pools
