// SPDX-License-Identifier: Apache-2.0
// Do the sizes and probabilities come out that the literature got wrong (oracle seed_math)?
#include <cmath>

#include "hardware/at.hpp"
#include "hardware/rng.hpp"
#include "models/memory.hpp"
#include "sim/capacity/capacity.hpp"
#include "sim/dispatch/token_traffic.hpp"
#include "tests/support.hpp"
#include "traces/gating/expert_sampler.hpp"

namespace moesim::test_seed_math {
namespace {

using test::WithinAbs;
using test::WithinRel;

MoeModel zoo(const std::string& name) {
  return read_model(ConfigNode::from_file(test::source_dir() / "models/zoo" / (name + ".json")));
}

Json oracle() {
  return ConfigNode::from_file(test::shared_dir() / "oracles/seed_math.json").json();
}

bool absent() {
  if (test::has_shared()) return false;
  WARN("skipped: ../shared is absent");
  return true;
}

LayerPlacement one_slot_each(int experts, int gpus) {
  std::vector<std::vector<int>> on_gpu(at(gpus));
  for (int e = 0; e < experts; ++e) on_gpu[at(e / (experts / gpus))].push_back(e);
  return {experts, on_gpu};
}

double total(const LinkTraffic& copies) {
  double sum = 0;
  for (int gpu = 0; gpu < copies.gpus(); ++gpu)
    sum += copies.near_out[at(gpu)] + copies.far_out[at(gpu)];
  return sum;
}

TEST_CASE("oracle seed_math: an expert's bytes, all parameters, the KV cache of a token") {
  if (absent()) return;
  const Json o = oracle();
  const MoeModel dsv3 = zoo("deepseek_v3");
  CHECK(ffn_parameters(dsv3.hidden, dsv3.expert_width) == o["expert_params_dsv3"]);
  const auto expert = [&](Precision precision) {
    return expert_bytes(dsv3, {}, {.experts = precision}).value();
  };
  const int layers = dsv3.moe_layers();
  CHECK(layers == o["all_moe_layers"]);
  CHECK(expert(Precision::bf16) == o["expert_MB"]["bf16"].get<double>() * 1e6);
  CHECK(expert(Precision::fp8) == o["expert_MB"]["fp8"].get<double>() * 1e6);
  // MXFP4 stores a scale of one byte per 32 values beside them.
  CHECK_THAT(expert(Precision::mxfp4) * 16 / 17,
             WithinRel(o["expert_MB"]["fp4"].get<double>() * 1e6, 1e-12));
  const Json& all = o["expert_all_layers_GB"];
  CHECK_THAT(layers * expert(Precision::bf16), WithinRel(all["bf16"].get<double>() * 1e9, 1e-12));
  CHECK_THAT(layers * expert(Precision::fp8), WithinRel(all["fp8"].get<double>() * 1e9, 1e-12));
  CHECK_THAT(dsv3.experts * layers * expert(Precision::fp8),
             WithinRel(o["check_total_params_B"].get<double>() * 1e9, 1e-12));
  CHECK(kv_bytes_per_token(dsv3, {}, {}).value() == o["mla_kv_bytes_per_token_bf16"]);
  CHECK(kv_bytes_per_token(zoo("qwen3_235b_a22b"), {}, {}).value() ==
        o["qwen3_235b_kv_bytes_per_token_bf16"]);
}

TEST_CASE("oracle seed_math: GPUs that a token of uniform routing visits") {
  if (absent()) return;
  struct Row {
    const char* name;
    int gpus, experts;
  };
  const Json expected = oracle()["distinct_gpus_per_token"];
  for (const Row row :
       {Row{"G8K8E256", 8, 256}, Row{"G16K8E256", 16, 256}, Row{"G8K8E128", 8, 128}}) {
    CAPTURE(row.name);
    constexpr std::size_t tokens = 20000, k = 8;
    ExpertSampler sampler(row.experts, k, 1, 1);
    sampler.set_weights(std::vector<double>(at(row.experts), 1.0));
    Rng rng(1, "test/distinct");
    std::vector<std::uint16_t> ids(tokens * k);
    for (std::size_t t = 0; t < tokens; ++t) sampler.first(std::span(ids).subspan(t * k, k), rng);
    std::vector<std::int32_t> tokens_of_slot(at(row.experts));
    for (const std::uint16_t id : ids) ++tokens_of_slot[id];
    LinkTraffic copies;
    CopyCounter().count(
        one_slot_each(row.experts, row.gpus),
        {tokens_of_slot, static_cast<std::int32_t>(std::set(ids.begin(), ids.end()).size()), ids,
         tokens},
        runs_of(std::vector<std::int32_t>(tokens)), {CopyRule::per_gpu, row.gpus, 1, 1},
        copies);  // from a GPU without experts: no copy stays
    CHECK_THAT(total(copies) / tokens, WithinAbs(expected[row.name].get<double>(), .02));
  }
}

TEST_CASE("oracle seed_math: how likely a batch touches a cold expert") {
  if (absent()) return;
  constexpr int experts = 256, k = 8, draws = 4000;
  ExpertSampler sampler(experts, k, 1, 1);
  sampler.set_weights(std::vector<double>(experts, 1.0));
  Rng rng(2, "test/cold");
  std::vector<std::uint16_t> picks(k);
  const Json cases = oracle()["cold_expert"]["cases"];
  for (const Json& one : cases) {
    const int hot = one["n_hot"], batch = one["B"];
    // 1 - (C(hot, k) / C(experts, k))^B
    double all_hot = 1;
    for (int i = 0; i < k; ++i) all_hot *= double(hot - i) / double(experts - i);
    const double correct = one["correct"];
    CHECK_THAT(1 - std::pow(all_hot, batch), WithinAbs(correct, 1e-12));
    if (batch > 16 || correct > .99) continue;
    int touched = 0;
    for (int draw = 0; draw < draws; ++draw) {
      bool cold = false;
      for (int token = 0; token < batch && !cold; ++token) {
        sampler.first(picks, rng);
        cold = std::any_of(picks.begin(), picks.end(), [&](auto e) { return e >= hot; });
      }
      touched += cold ? 1 : 0;
    }
    CAPTURE(hot, batch);
    CHECK_THAT(double(touched) / draws, WithinAbs(correct, .03));
  }
}

TEST_CASE("oracle seed_math: bytes of an all-to-all, with evenly spread experts") {
  if (absent()) return;
  struct Row {
    int gpus, k, tokens, hidden;
  };
  const Json table = oracle()["seed3_a2a_table"];
  const std::vector<Row> rows{{8, 8, 128, 7168}, {32, 8, 128, 7168}, {8, 2, 128, 6144}};
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const auto [gpus, k, tokens, hidden] = rows[i];
    CAPTURE(table[i]["row"].get<std::string>());
    // One expert per GPU; token t picks the k GPUs from t k on: every source sends to all alike.
    std::vector<std::uint16_t> ids;
    std::vector<std::int32_t> source, tokens_of_slot(at(gpus));
    for (int t = 0; t < tokens; ++t) {
      source.push_back(t * gpus / tokens);
      for (int j = 0; j < k; ++j) {
        ids.push_back(static_cast<std::uint16_t>((t * k + j) % gpus));
        ++tokens_of_slot[ids.back()];
      }
    }
    LinkTraffic copies;
    const auto active = std::ranges::count_if(tokens_of_slot, [](int n) { return n > 0; });
    CopyCounter().count(one_slot_each(gpus, gpus),
                        {tokens_of_slot, static_cast<std::int32_t>(active), ids, source.size()},
                        runs_of(source), {CopyRule::per_selection, gpus}, copies);
    CHECK(total(copies) * hidden * 2 == table[i]["bytes_one_way"]);
    if (table[i].contains("pairs_remote")) CHECK(total(copies) == table[i]["pairs_remote"]);
  }
}

TEST_CASE("oracle seed_math: times and buffers that were off by a unit") {
  if (absent()) return;
  const Json o = oracle();
  const Bytes moved(o["a2a"]["seed_bytes"].get<double>());
  CHECK_THAT((moved / BytesPerSecond(50e9)).count() * 1e3,
             WithinAbs(o["a2a"]["at_50GBs_ms"].get<double>(), 5e-4));
  CHECK_THAT((moved / BytesPerSecond(450e9)).count() * 1e3,
             WithinAbs(o["a2a"]["at_nvlink4_450GBs_ms"].get<double>(), 5e-4));
  // 32 experts of 20 tokens each (512 tokens, top-8 of 256, factor 1.25), d = 7168 in bf16.
  CHECK(32.0 * expert_capacity(1.25, 8, 512, 256) * 7168 * 2 ==
        o["capacity_buffer_MB"]["correct"].get<double>() * 1e6);
  for (const int saved : {45, 90, 135}) {
    CHECK_THAT(40000.0 / (40000 - saved),
               WithinRel(o["throughput_ratio"]["s" + std::to_string(saved)].get<double>(), 1e-12));
  }
}

}  // namespace
}  // namespace moesim::test_seed_math
