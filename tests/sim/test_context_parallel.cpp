// SPDX-License-Identifier: Apache-2.0
// Does a KV cache that GPUs of a rank share by tokens (DCP) take the time, links and memory that it
// should?
#include <cmath>

#include <tbb/global_control.h>

#include "models/context_parallel.hpp"
#include "models/launches.hpp"
#include "models/memory.hpp"
#include "sim/experiment/pools.hpp"
#include "sim/serving/simulator.hpp"
#include "sim/serving/typical_step.hpp"
#include "sim/step/context_parallel.hpp"
#include "tests/step_parts.hpp"
#include "tests/support.hpp"
#include "tests/tiny_experiment.hpp"

namespace moesim::test_context_parallel {
namespace {

using Catch::Matchers::Contains;
using test::config_error;
using test::seconds_of;
using test::sum;
using test::WithinAbs;
using test::WithinRel;

MoeModel zoo(const std::string& name) {
  return read_model(ConfigNode::from_file(test::source_dir() / "models/zoo" / (name + ".json")));
}

// Nodes of eight GPUs of 3.35 TB/s and 450 GB/s a direction. A collective takes 10 us, and its
// bytes at the full rate; kernels start at once and reach their peaks.
ClusterSpec plain_cluster() {
  ClusterSpec cluster =
      read_cluster(ConfigNode::from_file(test::source_dir() / "hardware/clusters/h100x16.json"));
  GpuSpec& gpu = cluster.gpu;
  gpu.hbm_bandwidth = BytesPerSecond(3.35e12);
  gpu.scale_up_bandwidth = BytesPerSecond(450e9);
  for (auto& [kernel, constants] : gpu.collectives)
    constants = {
        .launch = Seconds(10e-6), .per_gpu = {}, .bandwidth_share = 1, .ramp = {}, .source = ""};
  for (auto& [kernel, constants] : gpu.kernels)
    constants = {.launch = {},
                 .bandwidth_share = 1,
                 .peak_share = {{Precision::bf16, 1.0}},
                 .overlap = 1e9,
                 .source = ""};
  return cluster;
}

ParallelPlan striped(int tp, int dcp, DcpMerge merge) {
  return {.tp = tp, .ep = tp, .dcp = dcp, .dcp_merge = merge};
}

// --- what travels ---

TEST_CASE("a query of 128 heads is gathered, and its outputs found together, in so many bytes") {
  const Fabric fabric(plain_cluster());
  const CacheHeads heads = zoo("deepseek_v3").layers.back().mixer->cache_heads(8);
  const auto received = [](const CollectiveCost& cost) {
    return (cost.nvlink + cost.network).value() / 8;
  };
  // tp 8, dcp 8, one token: 128 x 576 x 2 x 7/8, and 128 x 512 x 2 x 7/8 with 128 x 4 x 7/8.
  const StripeExchange all_to_all =
      stripe_exchange(fabric, striped(8, 8, DcpMerge::all_to_all), heads, {.queries = 1});
  CHECK(received(all_to_all.queries) == 129'024);
  CHECK(received(all_to_all.outputs) == 115'136);
  CHECK(all_to_all.log_sum_exps.time == Seconds{});
  CHECK(all_to_all.context.time == Seconds{});
  // Reduced, the outputs are as many; the log-sum-exps of all heads come from seven others.
  const StripeExchange reduced =
      stripe_exchange(fabric, striped(8, 8, DcpMerge::reduce_scatter), heads, {.queries = 1});
  CHECK(received(reduced.queries) == 129'024);
  CHECK(received(reduced.outputs) == 114'688);
  CHECK(received(reduced.log_sum_exps) == 7 * 128 * 4);
  // Four of the eight GPUs share a cache: each group gathers half of the heads from three others.
  const StripeExchange four =
      stripe_exchange(fabric, striped(8, 4, DcpMerge::all_to_all), heads, {.queries = 1});
  CHECK((four.queries.nvlink / 4).value() == 64 * 576 * 2 * 3.0 / 4);
  // The context of prompts: (1 - 1/8) of its bytes.
  const StripeExchange prompt =
      stripe_exchange(fabric, striped(8, 8, DcpMerge::all_to_all), heads, {.context = Bytes(8e6)});
  CHECK_THAT(received(prompt.context), WithinRel(7e6, 1e-12));
}

TEST_CASE("a group of two nodes exchanges over the network") {
  const Fabric fabric(plain_cluster());
  const CacheHeads heads = zoo("deepseek_v3").layers.back().mixer->cache_heads(16);
  const StripeReads reads{.queries = 32};
  const StripeExchange near =
      stripe_exchange(fabric, striped(16, 8, DcpMerge::reduce_scatter), heads, reads);
  const StripeExchange far =
      stripe_exchange(fabric, striped(16, 16, DcpMerge::reduce_scatter), heads, reads);
  CHECK(near.queries.network == Bytes{});
  // Each node receives once what the eight GPUs of the other have: 32 queries of 8 heads.
  CHECK(far.queries.network.value() == 2 * 8 * 32 * 8 * 576 * 2);
  CHECK(far.queries.time > near.queries.time);
}

// --- what a layer takes ---

double attention_seconds(const MoeModel& model, const ParallelPlan& plan, int sequences,
                         double context, const GpuSpec& gpu) {
  std::vector<Operation> operations;
  const std::vector<SequenceWork> work(static_cast<std::size_t>(sequences),
                                       {1, static_cast<std::int32_t>(context) - 1});
  const PrecisionPlan precision{};
  model.layers.back().mixer->core({model.hidden, plan, precision, gpu}, work, operations);
  double seconds = 0;
  for (const Operation& operation : operations) seconds += operation.cost.time.count();
  return seconds;
}

TEST_CASE("DCP pays from some 67,000 tokens at one sequence, from 3,900 at 32") {
  const MoeModel model = zoo("deepseek_v3");
  const ClusterSpec cluster = plain_cluster();
  const Fabric fabric(cluster);
  const ParallelPlan plan = striped(8, 8, DcpMerge::all_to_all), whole{.tp = 8, .ep = 8};
  const CacheHeads heads = model.layers.back().mixer->cache_heads(8);
  const auto exchanged = [&](int sequences) {
    const StripeExchange exchange =
        stripe_exchange(fabric, plan, heads, {.queries = double(sequences)});
    return (exchange.queries.time + exchange.outputs.time).count();
  };
  // Two latencies, and 244,160 B a token at 450 GB/s.
  CHECK_THAT(exchanged(1), WithinRel(20e-6 + 244'160 / 450e9, 1e-9));
  CHECK_THAT(exchanged(32), WithinRel(20e-6 + 32 * 244'160 / 450e9, 1e-9));
  // Beside the cache each GPU reads the queries and outputs of 112 heads more, and sums eight
  // partial outputs of 16 heads to one. The rest is (1 - 1/8) of the cache, of 1,152 B a token.
  const auto saved = [&](int sequences, double context) {
    const double beside =
        sequences * (112 * (576 + 512) * 2.0 + (8 + 1) * 16 * 512 * 2.0) / 3.35e12;
    const double difference = attention_seconds(model, whole, sequences, context, cluster.gpu) -
                              attention_seconds(model, plan, sequences, context, cluster.gpu);
    return difference + beside;
  };
  CHECK_THAT(saved(32, 65'536), WithinRel(32.0 * 65'536 * 1152 * 7 / 8 / 3.35e12, 1e-9));
  const auto break_even = [&](int sequences) {
    double low = 1, high = 1e6;
    while (high - low > 8) {
      const double middle = std::floor((low + high) / 16) * 8;
      (saved(sequences, middle) < exchanged(sequences) ? low : high) = middle;
    }
    return high;
  };
  // Two latencies alone take 66,468 tokens.
  CHECK_THAT(break_even(1), WithinRel(66e3, 0.04));
  CHECK_THAT(break_even(32), WithinRel(3.9e3, 0.01));
}

// --- a step ---

// Latent attention of 8 heads.
Json latent_model() {
  Json model = test::tiny_experiment(Json::object())["model"];
  model["attention"] = {{"query_heads", 8}, {"q_lora", 64},  {"kv_lora", 64},
                        {"qk_nope", 32},    {"qk_rope", 16}, {"v_dim", 32}};
  return model;
}

Json striped_json(int dcp, Json set = Json::object()) {
  Json json =
      test::tiny_experiment({{"parallel", {{"dp", 1}, {"tp", 8}, {"ep", 8}}},
                             {"dispatch", {{"prefill", "all_gather"}, {"decode", "all_gather"}}}});
  json["model"] = latent_model();
  if (dcp > 1) json["parallel"]["dcp"] = dcp;
  json.merge_patch(set);
  return json;
}
Experiment striped_tiny(int dcp, Json set = Json::object()) {
  return test::load(striped_json(dcp, std::move(set)));
}

TEST_CASE("attention's arithmetic is the same in sum, and its reads of the cache fall") {
  const ExplainedStep whole = explain_step(striped_tiny(1), decode_step(8, 4096));
  const auto row_of = [](const ExplainedStep& step, std::string_view name) {
    ExplainedOperation found{};
    for (const ExplainedOperation& row : step.operations)
      if (row.name == name) found = row;
    return found;
  };
  for (const int dcp : {2, 4, 8}) {
    CAPTURE(dcp);
    for (const char* merge : {"reduce_scatter", "all_to_all"}) {
      const ExplainedStep step = explain_step(
          striped_tiny(dcp, {{"parallel", {{"dcp_merge", merge}}}}), decode_step(8, 4096));
      CHECK_THAT(step.cost.flops, WithinRel(whole.cost.flops, 1e-12));
      CHECK(row_of(step, "attention_decode").flops == row_of(whole, "attention_decode").flops);
      CHECK(row_of(step, "attention_decode").hbm_bytes <
            row_of(whole, "attention_decode").hbm_bytes);
      CHECK(row_of(step, "dcp_gather_queries").calls == 3);
      CHECK(row_of(step, "merge_partial_outputs").calls == 3);
      CHECK((row_of(step, "dcp_gather_lse").calls == 3) == (merge[0] == 'r'));
      CHECK_THAT(sum(step.cost.parts), WithinRel(step.cost.total.count(), 1e-9));
    }
  }
}

TEST_CASE("layers that keep states take no part: their heads are cut as without DCP") {
  const MoeModel next = zoo("qwen3_next_80b_a3b");  // 12 of 48 layers have a cache, of two KV heads
  CHECK(stripe_fault(next, 8, 4).empty());
  CHECK(most_stripes(next, 8) == 4);
  const ParallelPlan whole{.tp = 8, .ep = 8}, shared = striped(8, 4, DcpMerge::all_to_all);
  const KvLayout a = kv_layout(next, whole, {}), b = kv_layout(next, shared, {});
  CHECK(a.state_blocks == b.state_blocks);
  CHECK(b.block_tokens == 4 * a.block_tokens);
  const auto of_layer = [&](const ParallelPlan& plan) {
    return kernel_launches(next, plan, {}, Fusions{});
  };
  // Queries, outputs and the kernel that weighs, in a layer with a cache alone.
  CHECK(of_layer(shared) - of_layer(whole) == 3 * 12);
}

TEST_CASE("groups of a rank and ranks of a group exchange side by side") {
  const auto added = [](int dp, int tp, int dcp) {
    const Json plan{{"parallel", {{"dp", dp}, {"tp", tp}, {"ep", 8}, {"dcp_merge", "all_to_all"}}}};
    Json without = plan;
    without["parallel"]["dcp_merge"] = nullptr;
    const StepCost with = explain_step(striped_tiny(dcp, plan), decode_step(8, 256)).cost;
    const StepCost whole = explain_step(striped_tiny(1, without), decode_step(8, 256)).cost;
    return (with.all_reduce.nvlink - whole.all_reduce.nvlink).value();
  };
  // Of 8 queries in 3 layers, H heads on a group: each of its GPUs receives (1 - 1/c) of H (80 +
  // 64) numbers in bf16 and H log-sum-exps in fp32.
  const auto expected = [](int groups, int dcp, double heads) {
    return groups * dcp * 8 * 3 * (1 - 1.0 / dcp) * heads * (2 * 144 + 4);
  };
  CHECK_THAT(added(1, 8, 8), WithinRel(expected(1, 8, 8), 1e-9));
  CHECK_THAT(added(1, 8, 2), WithinRel(expected(4, 2, 2), 1e-9));
  CHECK_THAT(added(2, 4, 4), WithinRel(expected(2, 4, 8), 1e-9));
}

TEST_CASE("the first chunk of a prompt gathers no context, a later one all before it") {
  const Experiment e = striped_tiny(8);
  const Deployment& d = e.decode();
  const auto gathered = [&](std::int32_t context) {
    StepModel model = step_model(d);
    RowSource rows(d.trace, d.prefill_trace, d.bind_odd_only, d.seed);
    StepBatch batch;
    batch.ranks.emplace_back();
    add_sequence(batch, rows, rows.bind(), Phase::prefill, {16, context}, 0);
    StepCost cost;
    std::vector<ExplainedOperation> explain;
    model.price({batch, d.rules.of(StepKind::prefill), d.placement, rows}, cost, &explain);
    for (const ExplainedOperation& row : explain)
      if (row.name == "dcp_gather_context") return cost.all_reduce.nvlink.value();
    return 0.0;
  };
  CHECK(gathered(0) == 0);
  // 80 numbers in bf16, to each of 8 GPUs 7/8 of them, in 3 layers.
  CHECK_THAT(gathered(3200) - gathered(1600), WithinRel(1600 * 160 * 7 * 3, 1e-9));
}

TEST_CASE("queries of grouped attention meet the part of the cache that their GPUs share") {
  // 8 query heads and 2 KV heads on tp 8: four GPUs hold the same head.
  Json model = test::tiny_experiment(Json::object())["model"];
  model["attention"]["kv_heads"] = 2;
  const auto step = [&](int dcp) {
    Json json = striped_json(dcp);
    json["model"] = model;
    return explain_step(test::load(json), decode_step(8, 4096));
  };
  const ExplainedStep whole = step(1), four = step(4);
  CHECK_THAT(four.cost.flops, WithinRel(whole.cost.flops, 1e-12));
  // A GPU reads 3/4 less of a head of 64 keys and values in bf16 of 8 sequences in 3 layers, and
  // three more heads of queries and outputs, which are also weighed: read and written, of 4 heads.
  const double cache = 8 * 3 * 4096.0 * 128 * 2 * 0.75;
  const double beside = 8 * 3 * (3 * 128 * 2 + 2 * 4 * 64 * 2.0);
  const double writes = 8 * 3 * 0.75 * 128 * 2;  // of the new tokens into the cache
  CHECK_THAT((whole.cost.hbm_bytes - four.cost.hbm_bytes) / 8,
             WithinRel(cache - beside + writes, 1e-3));
}

// --- memory ---

TEST_CASE("the cache has room for dcp times as many tokens") {
  const Deployment whole = striped_tiny(1).decode();
  for (const int dcp : {2, 4, 8}) {
    const Deployment d = striped_tiny(dcp).decode();
    CHECK(d.memory.kv_blocks == whole.memory.kv_blocks);
    CHECK(d.kv_layout.block == whole.kv_layout.block);
    CHECK(d.kv_layout.block_tokens == dcp * whole.kv_layout.block_tokens);
    CHECK_THAT(
        kv_bytes_per_token(d.model, d.parallel, d.precision).value(),
        WithinRel(kv_bytes_per_token(whole.model, whole.parallel, whole.precision).value() / dcp,
                  1e-12));
    // The GPU with the first token has most: 129 tokens on 8 GPUs are 17 on the first.
    CHECK(d.kv_layout.blocks_for(16 * dcp) == 1);
    CHECK(d.kv_layout.blocks_for(16 * dcp + 1) == 2);
  }
}

TEST_CASE("a request that no GPU can hold alone is served by GPUs that share its cache") {
  // Room for 26 blocks of 16 tokens: 416 tokens, or 3,328 on eight GPUs.
  const auto completed = [](int dcp) {
    Json set{{"workload",
              {{"lengths", {{"type", "fixed"}, {"prompt", 1500}, {"output", 30}}},
               {"requests", 12},
               {"arrivals", {{"type", "closed_loop"}, {"concurrency", 2}}}}}};
    Json json = striped_json(dcp, set);
    const Experiment e = test::load(json);
    Experiment small = e;
    small.pools.back().memory.kv_blocks = 26;
    return test::serve(small).document().at("/metrics/completed"_json_pointer).get<int>();
  };
  CHECK(completed(1) == 0);
  CHECK(completed(8) == 12);
}

TEST_CASE("GPUs that hold the same cache send each stripe once") {
  const auto transfer = [](int dcp) {
    Json json = striped_json(1, {{"cluster", "../hardware/clusters/h100x32.json"}});
    json["pools"] = {{"prefill", Json::object()},
                     {"decode",
                      {{"parallel", {{"dp", 1}, {"tp", 8}, {"ep", 8}, {"dcp", dcp}}},
                       {"scheduling", {{"type", "decode_only"}, {"max_num_seqs", 8}}}}}};
    return kv_transfer(test::load(json), 16'384);
  };
  const KvTransferCost whole = transfer(1), eighth = transfer(8);
  CHECK_THAT(eighth.bytes.value(), WithinRel(whole.bytes.value() / 8, 1e-12));
  CHECK(eighth.all < whole.all);
  CHECK(eighth.exposed <= whole.exposed);
}

// --- runs ---

TEST_CASE("a cache shared by one GPU is not shared: the report is the same") {
  OrderedJson without = run(striped_tiny(1)).document();
  Json one = striped_json(1);
  one["parallel"]["dcp"] = 1;
  OrderedJson with = run(test::load(one)).document();
  for (OrderedJson* report : {&without, &with}) report->erase("context");
  CHECK(without.dump() == with.dump());
}

TEST_CASE("runs with DCP lose no request, alone, in a pipeline, with halves, drafts and prefixes") {
  const std::vector<Json> worlds{
      Json::object(),
      {{"parallel", {{"tp", 4}, {"ep", 4}, {"dcp", 4}, {"pp", 2}}}},
      {{"parallel", {{"dp", 2}, {"tp", 4}, {"dcp", 2}}}, {"overlap", "two_batch"}},
      {{"speculative", {{"num_speculative_tokens", 2}, {"acceptance_rate", 0.7}}}},
      {{"kv_cache", {{"prefix_caching", true}}}},
      {{"kv_cache", {{"prefix_caching", true}, {"tiers", {{{"capacity", "1 GB"}}}}}}},
      {{"parallel", {{"dcp_merge", "all_to_all"}}}, {"fidelity", "sampled"}}};
  for (const Json& world : worlds) {
    CAPTURE(world.dump());
    const OrderedJson report = run(striped_tiny(8, world)).document();
    CHECK(report.at("/metrics/completed"_json_pointer).get<int>() == 120);
    CHECK(report.at("/kv/block_tokens"_json_pointer).get<int>() % 32 == 0);
  }
}

TEST_CASE("a run with DCP is the same with one thread and with two", "[threads]") {
  const auto report = [](std::size_t threads) {
    const tbb::global_control limit(tbb::global_control::max_allowed_parallelism, threads);
    return run(striped_tiny(4)).document().dump();
  };
  CHECK(report(1) == report(2));
}

// --- what is refused ---

TEST_CASE("what cannot be shared by tokens is refused with what can") {
  const auto refused = [](const Json& model, Json parallel) {
    Json json = striped_json(1, {{"parallel", std::move(parallel)}});
    json["model"] = model;
    return config_error([&] { test::load(json); });
  };
  const Json latent = latent_model();
  CHECK_THAT(refused(latent, {{"dcp", 16}}),
             Contains("/parallel/dcp: 16 is more than the 8 of tp 8 GPUs that hold the same KV "
                      "heads; use 1, 2, 4, 8"));
  CHECK_THAT(refused(latent, {{"dcp", 3}}), Contains("3 does not divide the 8 of tp 8 GPUs"));
  Json grouped = test::tiny_experiment(Json::object())["model"];
  CHECK_THAT(refused(grouped, {{"dcp", 4}}), Contains("more than the 2 of tp 8 GPUs"));
  grouped["attention"]["kv_heads"] = 8;
  CHECK_THAT(refused(grouped, {{"dcp", 2}}),
             Contains("no two of tp 8 GPUs hold the same KV heads"));
  grouped["attention"]["kv_heads"] = 4;
  grouped["layers"] =
      Json::array({{{"repeat", 3}, {"pattern", Json::array({{{"ffn", "moe"}, {"window", 128}}})}}});
  CHECK_THAT(refused(grouped, {{"dcp", 2}}),
             Contains("windows of 128 tokens") && Contains("whole"));
  Json sparse = latent;
  sparse["attention"]["index_heads"] = 4;
  sparse["attention"]["index_dim"] = 32;
  sparse["attention"]["index_top"] = 64;
  CHECK_THAT(refused(sparse, {{"dcp", 2}}), Contains("index keys of its sparse attention"));
  CHECK_THAT(refused(latent, {{"dcp", 2}, {"ffn_gpus", 4}, {"ep", 4}}),
             Contains("DCP is not modelled with AFD"));
  CHECK_THAT(refused(latent, {{"dcp_merge", "all_to_all"}}), Contains("is of DCP alone"));
  CHECK_THAT(stripe_fault(zoo("deepseek_v4_flash"), 8, 2), Contains("no layer caches KV heads"));
  CHECK(most_stripes(zoo("deepseek_v3"), 8) == 8);
  CHECK(most_stripes(zoo("qwen3_235b_a22b"), 8) == 2);
  CHECK(most_stripes(zoo("qwen3_235b_a22b"), 4) == 1);
}

}  // namespace
}  // namespace moesim::test_context_parallel
