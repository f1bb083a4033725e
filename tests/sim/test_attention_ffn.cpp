// SPDX-License-Identifier: Apache-2.0
// Do attention and experts on GPUs of their own take the time, links and memory that they should?
#include <cmath>
#include <numeric>

#include <tbb/global_control.h>

#include "hardware/rng.hpp"
#include "sim/dispatch/token_traffic.hpp"
#include "sim/serving/simulator.hpp"
#include "sim/serving/typical_step.hpp"
#include "sim/step/attention_ffn.hpp"
#include "tests/step_parts.hpp"
#include "tests/support.hpp"
#include "tests/tiny_experiment.hpp"

namespace moesim::test_attention_ffn {
namespace {

using namespace test;

using Catch::Matchers::Contains;

constexpr Seconds us(1e-6);

// Micro-batches alike, all layers alike.
AfdTimes pass(int micro_batches, int layers, const AfdRound& round) {
  const AfdChain chain{std::vector<AfdRound>(static_cast<std::size_t>(layers), round), {}};
  const std::vector<AfdChain> chains(static_cast<std::size_t>(micro_batches), chain);
  return pass_afd(chains);
}

// --- the recurrence against published closed forms ---

TEST_CASE("three micro-batches hide the wire as MegaScale-Infer says, two do not") {
  const AfdRound round{100 * us, {}, 50 * us, 100 * us, 50 * us};
  // (T_a + T_e + 2 T_c) + T_f (m L - 1), arXiv:2504.02263: 300 + 100 x 182 us.
  const AfdTimes three = pass(3, 61, round);
  CHECK_THAT(three.total.count(), WithinRel(18.5e-3, 1e-12));
  // A round takes every micro-batch 300 us, of which two fill 200: 61 rounds, and the second one
  // starts 100 us later.
  const AfdTimes two = pass(2, 61, round);
  CHECK_THAT(two.total.count(), WithinRel((61 * 300 + 100) * 1e-6, 1e-12));
  const auto idle = [](const AfdTimes& times) {
    return 1 - times.busy_of(AfdStage::attention) / times.total;
  };
  CHECK(idle(three) < 0.02);
  CHECK_THAT(idle(two), WithinAbs(1.0 / 3, 0.01));
  // Two wait for the whole round trip, the wire included.
  CHECK_THAT(two.critical_of(AfdStage::dispatch) / two.total, WithinAbs(1.0 / 6, 0.01));
}

TEST_CASE("three equal stages are all busy with three micro-batches") {
  // 50 ms over 61 layers of three stages (arXiv:2507.19427): 273 us for attention, the wire of both
  // directions, and experts. The last micro-batch has two stages more to pass.
  const Seconds stage(50e-3 / (3 * 61));
  CHECK_THAT(stage.count(), WithinRel(273e-6, 1e-3));
  const AfdTimes times = pass(3, 61, {stage, {}, stage / 2, stage, stage / 2});
  CHECK_THAT(times.total.count(), WithinRel((3 * 61 + 2) * stage.count(), 1e-12));
  for (const AfdStage side : {AfdStage::attention, AfdStage::ffn})
    CHECK_THAT(times.busy_of(side).count(), WithinRel(50e-3, 1e-12));
}

TEST_CASE("the best ratio of attention to experts is where both take as long") {
  // arXiv:2601.21351: 256 requests of an attention instance take 31 ms, r instances' experts 15 +
  // 2.05 r ms; tokens per ms and instance. The pipe fills and drains once a step, which the paper
  // leaves out.
  constexpr int layers = 61, micro_batches = 2;
  const auto throughput = [&](double r) {
    const double pieces = 1e-3 / (layers * micro_batches);
    const AfdTimes times =
        pass(micro_batches, layers,
             {Seconds(31 * pieces), {}, {}, Seconds((15 + 2.05 * r) * pieces), {}});
    return r * 256 / ((r + 1) * times.total.count() * 1e3);
  };
  CHECK_THAT(throughput(4), WithinRel(6.61, 0.01));
  CHECK_THAT(throughput(7.8), WithinRel(7.32, 0.01));
  CHECK_THAT(throughput(16), WithinRel(5.04, 0.01));
  double best = 0;
  for (double r = 1; r < 20; r += 0.1)
    if (best == 0 || throughput(r) > throughput(best)) best = r;
  CHECK_THAT(best, WithinAbs(7.8, 0.05));
}

TEST_CASE("work beside the exchange takes attention's time, not the micro-batch's") {
  // 10 before the exchange, 5 beside it, 20 away: one micro-batch comes round every 30.
  const AfdRound round{10 * us, 5 * us, 5 * us, 10 * us, 5 * us};
  CHECK_THAT(pass(1, 4, round).total.count(), WithinRel(120e-6, 1e-12));
  // Three of them take attention 45 a round.
  const AfdTimes three = pass(3, 100, round);
  CHECK_THAT(three.total.count(), WithinRel(45e-6 * 100, 0.01));
  CHECK_THAT(three.busy_of(AfdStage::attention).count(), WithinRel(45e-6 * 100, 1e-12));
}

TEST_CASE("the critical path is the time, stage by stage") {
  Rng rng(7, "test/afd");
  for (int world = 0; world < 50; ++world) {
    std::vector<AfdChain> chains(1 + rng.below(4));
    Seconds attention{}, alone{};
    for (AfdChain& chain : chains) {
      Seconds own{};
      const auto draw = [&] {
        const Seconds time = rng.uniform() * us;
        own += time;
        return time;
      };
      for (int layer = 0; layer < 9; ++layer) {
        AfdRound& round = chain.rounds.emplace_back();
        round = {draw(), {}, draw(), draw(), draw()};
        attention += round.attention;
      }
      chain.tail = draw();
      attention += chain.tail;
      alone = std::max(alone, own);
    }
    const AfdTimes times = pass_afd(chains);
    const Seconds critical =
        std::accumulate(times.critical.begin(), times.critical.end(), Seconds{});
    CHECK_THAT(critical.count(), WithinRel(times.total.count(), 1e-9));
    CHECK_THAT(times.busy_of(AfdStage::attention).count(), WithinRel(attention.count(), 1e-9));
    CHECK(times.total >= alone * (1 - 1e-9));
    for (const Seconds busy : times.busy) CHECK(times.total >= busy * (1 - 1e-9));
    if (chains.size() == 1) CHECK_THAT(times.total.count(), WithinRel(alone.count(), 1e-9));
  }
}

// --- tokens between the sides ---

TEST_CASE("every copy that attention sends arrives at an expert's GPU, straight") {
  // Two senders, then four GPUs with two experts each; token 0 chose experts of GPUs 2 and 4, token
  // 1 two of GPU 5, token 2 of GPUs 2 and 3.
  const LayerPlacement placement(8, {{0, 1}, {2, 3}, {4, 5}, {6, 7}});
  const std::vector<std::uint16_t> ids{0, 4, 6, 7, 1, 2};
  const std::vector<std::int32_t> tokens_of_slot{1, 1, 1, 0, 1, 0, 1, 1}, source{0, 0, 1};
  CopyCounter counter;
  LinkTraffic copies;
  const CopyPaths paths{CopyRule::per_gpu, 1, 1, 2};
  counter.count(placement, {tokens_of_slot, 6, ids, 3}, runs_of(source), paths, copies);
  REQUIRE(copies.gpus() == 6);
  TrafficMatrix expected(6);
  expected.at(0, 2) = expected.at(0, 4) = expected.at(0, 5) = 1;
  expected.at(1, 2) = expected.at(1, 3) = 1;
  CHECK(copies == LinkTraffic(expected, 1));
  counter.count(placement, {tokens_of_slot, 6, ids, 3}, runs_of(source),
                {CopyRule::per_selection, 1, 1, 2}, copies);
  CHECK(copies.far_in == std::vector<double>{0, 0, 2, 1, 1, 2});
}

// DeepSeek-V3 in few layers, uniformly routed over all experts.
Experiment deepseek(Json set) {
  const auto file = source_dir() / "models/zoo/deepseek_v3.json";
  Json model = ConfigNode::from_file(file).json();
  for (const char* key : {"groups", "groups_per_token"}) model["experts"].erase(key);
  model["layers"] = Json::array({{{"repeat", 4}, {"pattern", Json::array({{{"ffn", "moe"}}})}}});
  Json json = tiny_experiment(
      {{"precision", {{"experts", "bf16"}, {"attention", "bf16"}}},
       {"scheduling",
        {{"type", "decode_only"}, {"max_num_seqs", 1024}, {"max_num_batched_tokens", 1024}}},
       {"placement", {{"type", "linear"}, {"replication", 1}}},
       {"workload",
        {{"gating",
          {{"type", "uniform"}, {"requests", 64}, {"prompt_rows", 1}, {"decode_rows", 16}}}}}});
  json["workload"]["gating"] = {
      {"type", "uniform"}, {"requests", 64}, {"prompt_rows", 1}, {"decode_rows", 16}};
  json["model"] = model;
  json.merge_patch(set);
  return load(json);
}

TEST_CASE("a token is sent to as many GPUs as hold experts that it chose") {
  const Experiment e = deepseek({{"cluster", "../hardware/clusters/h100x32.json"},
                                 {"parallel", {{"dp", 4}, {"ep", 16}, {"ffn_gpus", 16}}}});
  const StepCost cost = explain_step(e, decode_step(256, 64)).cost;
  // 16 (1 - C(240, 8) / C(256, 8)) of 16 GPUs in the mean, of 7,168 values in bf16, each way.
  const double copies = (cost.dispatch.nvlink + cost.dispatch.network).value() / (7168 * 2);
  CHECK_THAT(copies / (4 * 256 * 4), WithinRel(6.52, 0.01));
  CHECK((cost.combine.nvlink + cost.combine.network).value() == copies * 7168 * 2);
}

TEST_CASE("one NIC keeps an expert's GPU below a third of its peak, however many there are") {
  // arXiv:2602.09721: 50 GB/s bring an FFN GPU a copy of 14,336 B in 287 ns, and its 88 MFLOP take
  // 89 ns of 989 TFLOP/s: 31 %.
  Json cluster = ConfigNode::from_file(source_dir() / "hardware/clusters/h100x32.json").json();
  cluster["gpu"] = "../hardware/gpus/h100.json";
  cluster["gpus_per_node"] = 1;
  cluster["scale_up_domain"] = 1;
  cluster["nodes"] = 64;
  const auto flops_share = [&](int ffn_gpus) {
    const Experiment e =
        deepseek({{"cluster", cluster},
                  {"dispatch", {{"prefill", "low_latency"}, {"decode", "low_latency"}}},
                  {"parallel",
                   {{"dp", 32}, {"ep", ffn_gpus}, {"ffn_gpus", ffn_gpus}, {"micro_batches", 3}}}});
    const ExplainedStep step = explain_step(e, decode_step(512, 1));
    // Copies are k a token; each is one expert's work.
    const double flops = 512.0 * 32 * 8 * 4 * 6 * 7168 * 2048;
    return flops / (ffn_gpus * 989.4e12 * step.cost.total.count());
  };
  const double few = flops_share(8), more = flops_share(16);
  CHECK(few > 0.2);
  CHECK(few < 0.31);
  CHECK(more < 0.31);
}

TEST_CASE("both sides take the same time with one thread and with two", "[threads]") {
  const Experiment e = deepseek({{"cluster", "../hardware/clusters/h100x32.json"},
                                 {"parallel", {{"dp", 16}, {"ep", 8}, {"ffn_gpus", 8}}}});
  const auto priced = [&](std::size_t threads) {
    const tbb::global_control limit(tbb::global_control::max_allowed_parallelism, threads);
    return explain_step(e, decode_step(256, 64)).cost;
  };
  const StepCost one = priced(1), two = priced(2);
  CHECK(one.afd->critical == two.afd->critical);
  CHECK(one.parts == two.parts);
  CHECK(one.idle == two.idle);
}

// --- the step ---

Experiment tiny(Json set) { return load_tiny(Json(set)); }

Experiment apart(int micro_batches, Json set = Json::object()) {
  Json json{
      {"parallel", {{"dp", 4}, {"ep", 4}, {"ffn_gpus", 4}, {"micro_batches", micro_batches}}}};
  json.merge_patch(set);
  return tiny(json);
}

TEST_CASE("one micro-batch takes the time of its parts, which are those of GPUs that do both") {
  const StepCost cost = explain_step(apart(1), decode_step(8, 256)).cost;
  const StepCost both = explain_step(tiny(Json::object()), decode_step(8, 256)).cost;
  REQUIRE(cost.afd);
  CHECK_THAT(sum(cost.parts), WithinRel(cost.total.count(), 1e-12));
  for (const Part part : {Part::attention, Part::gate, Part::permute, Part::experts, Part::other})
    CHECK_THAT(seconds_of(cost, part), WithinRel(seconds_of(both, part), 1e-12));
  CHECK(cost.afd->critical == cost.afd->busy);
  CHECK(cost.dispatch.hidden.count() == 0);
  // Without links both are one serial step.
  const auto computing = [](const StepCost& step) {
    return step.total.count() - seconds_of(step, Part::dispatch) - seconds_of(step, Part::combine);
  };
  CHECK_THAT(computing(cost), WithinRel(computing(both), 1e-12));
  CHECK(cost.idle.size() == 8);
}

TEST_CASE("micro-batches keep every token, and their parts add up to the step") {
  for (const int micro_batches : {1, 2, 3, 5}) {
    CAPTURE(micro_batches);
    const StepCost cost = explain_step(apart(micro_batches), decode_step(8, 256)).cost;
    CHECK(cost.micro_batches == micro_batches);
    CHECK_THAT(sum(cost.parts), WithinRel(cost.total.count(), 1e-9));
    double tokens = 0;
    for (const LayerOutcome& layer : cost.layers)
      tokens += std::accumulate(layer.load.tokens.begin(), layer.load.tokens.end(), 0.0);
    // 4 ranks of 8 sequences, top 2, 3 layers.
    CHECK(tokens == 4 * 8 * 2 * 3);
    for (const Traffic& traffic : {cost.dispatch, cost.combine})
      CHECK(traffic.hidden <= traffic.time * (1 + 1e-9));
    for (const double idle : cost.idle) {
      CHECK(idle >= -1e-12);
      CHECK(idle <= cost.total.count() * (1 + 1e-9));
    }
  }
  // Fewer sequences than micro-batches: as many as there are.
  CHECK(explain_step(apart(5), decode_step(2, 256)).cost.micro_batches == 2);
}

TEST_CASE("shared experts run while tokens are away if asked to") {
  Json model = tiny_experiment({})["model"];
  model["experts"]["shared_width"] = 4096;
  const auto step = [&](const char* overlap) {
    return explain_step(apart(1, {{"model", model}, {"overlap", overlap}}), decode_step(8, 256))
        .cost;
  };
  const StepCost after = step("none"), beside = step("shared_expert");
  REQUIRE(seconds_of(after, Part::shared_experts) > 0);
  CHECK(beside.total < after.total);
  for (std::size_t stage = 0; stage < 4; ++stage)
    CHECK_THAT(beside.afd->busy[stage].count(), WithinRel(after.afd->busy[stage].count(), 1e-9));
  CHECK_THAT(sum(beside.parts), WithinRel(beside.total.count(), 1e-9));
}

TEST_CASE("the slowest of r attention ranks is as late as the largest of r normal variables") {
  // Contexts of one sequence per rank, with a standard deviation of 1,000 tokens.
  constexpr int draws = 300;
  constexpr double mean = 8000, deviation = 1000;
  const std::vector<std::pair<int, double>> expected{{2, 0.56}, {4, 1.03}, {8, 1.42}};
  for (const auto& of_ranks : expected) {
    const int ranks = of_ranks.first;
    const double largest = of_ranks.second;
    CAPTURE(ranks);
    const Experiment e =
        tiny({{"parallel", {{"dp", ranks}, {"ep", 4}, {"ffn_gpus", 4}, {"micro_batches", 1}}}});
    const Deployment& d = e.decode();
    StepModel model = step_model(d);
    RowSource rows(d.trace, d.prefill_trace, d.bind_odd_only, d.seed);
    Rng rng(static_cast<std::uint64_t>(ranks), "test/contexts");
    const auto wait_with = [&](auto&& context_of) {
      StepBatch batch;
      for (int r = 0; r < ranks; ++r) {
        batch.ranks.emplace_back();
        add_sequence(batch, rows, rows.bind(), Phase::decode, {1, context_of(r)}, 0);
      }
      StepCost cost;
      model.price({batch, d.rules.of(StepKind::decode), d.placement, rows}, cost);
      const Seconds other_side = cost.total - cost.afd->busy_of(AfdStage::attention);
      return std::accumulate(cost.idle.begin(), cost.idle.begin() + ranks, 0.0) / ranks -
             other_side.count();
    };
    // What a standard deviation of one rank's context takes: the others wait that long.
    const double unit = wait_with([&](int r) {
                          return static_cast<std::int32_t>(r == 0 ? mean + deviation : mean);
                        }) *
                        ranks / (ranks - 1);
    double waited = 0;
    for (int draw = 0; draw < draws; ++draw) {
      waited += wait_with([&](int) {
        const double normal = std::sqrt(-2 * std::log(1 - rng.uniform())) *
                              std::cos(6.283185307179586 * rng.uniform());
        return static_cast<std::int32_t>(mean + deviation * normal);
      });
    }
    CHECK_THAT(waited / draws / unit, WithinAbs(largest, 0.1));
  }
}

// --- memory ---

TEST_CASE("weights of both sides are the model's, and no GPU of the experts holds KV cache") {
  const Experiment e = tiny({{"parallel", {{"dp", 1}, {"ep", 4}, {"ffn_gpus", 4}}}});
  const MemoryBudget& attention = e.decode().memory;
  REQUIRE(e.decode().ffn_memory);
  const MemoryBudget& ffn = *e.decode().ffn_memory;
  CHECK(attention.experts.value() == 0);
  CHECK(attention.replicas.value() == 0);
  CHECK(ffn.weights.value() == 0);
  CHECK(ffn.kv_blocks == 0);
  CHECK_THAT(attention.weights.value() + 4 * ffn.experts.value(),
             WithinRel(2 * count_parameters(e.decode().model).total, 1e-12));
  // 16 experts and 8 replicas of 3 x 512 x 256 in bf16, in 3 layers.
  CHECK(4 * (ffn.experts + ffn.replicas).value() == 24.0 * 3 * 3 * 512 * 256 * 2);
  CHECK(attention.kv > tiny(Json::object()).decode().memory.kv);
  CHECK_FALSE(tiny(Json::object()).decode().ffn_memory);
}

TEST_CASE("experts that their own GPUs cannot hold are refused with what to change") {
  const std::string why = config_error([] {
    deepseek({{"cluster", "../hardware/clusters/h100x32.json"},
              {"model", "deepseek_v3"},
              {"parallel", {{"dp", 16}, {"ep", 4}, {"ffn_gpus", 4}}}});
  });
  CHECK_THAT(why, Contains("missing per GPU of the experts") && Contains("\"ffn_gpus\""));
}

// --- runs ---

TEST_CASE("a run with attention and experts apart loses no request and reports both sides") {
  for (const char* routing : {"even", "metro"}) {
    const char* dispatch = routing == std::string("even") ? "all_to_all" : "ids_all_gather";
    const OrderedJson report =
        run(apart(2, {{"token_routing", {{"prefill", "even"}, {"decode", routing}}},
                      {"dispatch", {{"prefill", "all_to_all"}, {"decode", dispatch}}}}))
            .document();
    CHECK(report.at("/metrics/completed"_json_pointer).get<int>() == 120);
    const OrderedJson& afd = report.at("afd");
    CHECK(afd.at("attention_gpus").get<int>() == 4);
    double critical = 0;
    for (const auto& [stage, share] : afd.at("critical_path").items())
      critical += share.get<double>();
    CHECK_THAT(critical, WithinRel(1, 1e-9));
    for (const char* side : {"attention", "ffn"}) {
      const double idle = afd.at(side + std::string("_idle_share")).get<double>();
      const double stragglers = afd.at(side + std::string("_straggler_share")).get<double>();
      CHECK(idle > 0);
      CHECK(stragglers >= 0);
      CHECK(stragglers <= idle);
    }
  }
  CHECK_FALSE(run(tiny(Json::object())).document().contains("afd"));
}

TEST_CASE("prefill passes both sides as decode does, alone or in a pool") {
  const ExplainedStep prefill = explain_step(apart(2), prefill_step(64));
  CHECK(prefill.cost.micro_batches == 2);
  CHECK_THAT(sum(prefill.cost.parts), WithinRel(prefill.cost.total.count(), 1e-9));
  const Report report = run(load(
      tiny_experiment({{"parallel", {{"dp", 2}, {"ep", 2}}},
                       {"pools",
                        {{"prefill", Json::object()},
                         {"decode",
                          {{"parallel", {{"dp", 4}, {"ep", 4}, {"ffn_gpus", 4}}},
                           {"scheduling", {{"type", "decode_only"}, {"max_num_seqs", 8}}}}}}}})));
  const OrderedJson document = report.document();
  CHECK(document.at("/metrics/completed"_json_pointer).get<int>() == 120);
  CHECK(document.contains("afd"));
  CHECK_FALSE(document.at("/pools/prefill"_json_pointer).contains("afd"));
}

TEST_CASE("a tier of the KV cache has blocks of attention's GPUs alone") {
  const Json tier = {{"kv_cache", {{"prefix_caching", true}, {"tiers", {{{"capacity", "1 GB"}}}}}}};
  const double bytes =
      run(apart(2, tier)).document().at("/tiers/host/capacity_bytes"_json_pointer).get<double>();
  CHECK(bytes <= 1e9);
  CHECK_THAT(bytes, WithinRel(1e9, 0.001));
}

TEST_CASE("sampled steps pass both sides like exact ones") {
  const auto step_ms = [](const char* fidelity) {
    return run(apart(3, {{"fidelity", fidelity}}))
        .document()
        .at("/steps/decode/mean_ms"_json_pointer)
        .get<double>();
  };
  CHECK_THAT(step_ms("sampled"), WithinRel(step_ms("exact"), 0.05));
}

TEST_CASE("drafts and moving experts pass both sides") {
  const Report report = run(apart(
      2, {{"speculative", {{"num_speculative_tokens", 2}, {"acceptance_rate", 0.7}}},
          {"rebalancing", {{"type", "eplb_periodic"}, {"step_interval", 20}, {"window_size", 20}}},
          {"placement", {{"type", "eplb"}, {"replication", 1.5}}}}));
  const OrderedJson document = report.document();
  CHECK(document.at("/metrics/completed"_json_pointer).get<int>() == 120);
  double critical = 0;
  for (const auto& [stage, share] : document.at("/afd/critical_path"_json_pointer).items())
    critical += share.get<double>();
  CHECK_THAT(critical, WithinRel(1, 1e-9));
  CHECK(document.at("/afd/critical_path/rebalancing"_json_pointer).get<double>() > 0);
}

TEST_CASE("what does not go with attention and experts apart is refused by name") {
  const auto refused = [](Json set) { return config_error([&] { apart(2, std::move(set)); }); };
  CHECK_THAT(refused({{"overlap", "two_batch"}}),
             Contains("/overlap") && Contains("\"two_batch\" is not modelled with ffn_gpus") &&
                 Contains("micro_batches"));
  CHECK_THAT(refused({{"overlap", "combine_attention"}}), Contains("combine_attention"));
  CHECK_THAT(refused({{"parallel", {{"pp", 2}}}}), Contains("AFD is not modelled with pp 2"));
  CHECK_THAT(refused({{"dispatch", {{"prefill", "all_to_all"}, {"decode", "all_gather"}}}}),
             Contains("/dispatch") && Contains("all tokens on every GPU"));
  CHECK_THAT(refused({{"dispatch", {{"prefill", "auto"}, {"decode", "all_to_all"}}}}),
             Contains("/dispatch"));
  CHECK_THAT(refused({{"expert_memory", {{"type", "lru"}, {"hbm_experts", 8}}}}),
             Contains("expert_memory"));
  CHECK_THAT(refused({{"parallel", {{"ep", 3}}}}), Contains("ep 3 does not divide ffn_gpus = 4"));
  CHECK_THAT(refused({{"parallel", {{"ffn_gpus", 13}, {"ep", 13}}}}),
             Contains("dp * tp + ffn_gpus = 17 GPUs, but"));
  CHECK_THAT(config_error([] {
               tiny({{"parallel", {{"micro_batches", 2}}}});
             }),
             Contains("/parallel/micro_batches") && Contains("ffn_gpus"));
}

}  // namespace
}  // namespace moesim::test_attention_ffn
