// SPDX-License-Identifier: Apache-2.0
// Does a layer whose tokens travel in the experts' kernel (MegaMoE) take the time that the kernel
// takes, and send the bytes that its tokens have?
#include <cmath>

#include "hardware/kernels/experts.hpp"
#include "hardware/tables/kernel_tables.hpp"
#include "sim/experiment/experiment.hpp"
#include "sim/serving/typical_step.hpp"
#include "tests/step_parts.hpp"
#include "tests/support.hpp"

namespace moesim::test_mega_moe {
namespace {

using Catch::Matchers::Contains;
using test::config_error;
using test::seconds_of;
using test::WithinRel;

GpuSpec priced_by_sglang(const std::string& gpu) {
  return with_engine(
      read_gpu(ConfigNode::from_file(test::source_dir() / "hardware/gpus" / (gpu + ".json"))),
      {"sglang", ""});
}

// DeepSeek-V4-Pro's experts over so many ranks.
GroupedGemm layer(const GpuSpec& gpu, double ranks) {
  return {{.hidden = 7168,
           .width = 3072,
           .weights = Precision::mxfp4,
           .activations = Precision::fp8_block,
           .kernel = ExpertKernel::mega_moe,
           .experts = 384,
           .top_k = 6,
           .held = 384 / ranks},
          gpu};
}

// Every one of the rank's experts has as many rows.
double us(const GroupedGemm& gemm, int experts, int rows_of_each) {
  const std::vector<std::int32_t> tokens(static_cast<std::size_t>(experts), rows_of_each);
  return gemm.cost(gemm.rows(tokens)).time.count() * 1e6;
}

// The source's rows of balanced draws: each rank has the same tokens, and its experts share them.
TEST_CASE("a MegaMoE layer takes what was measured, by the experts and rows of its rank") {
  const GpuSpec gb300 = priced_by_sglang("gb300"), gb200 = priced_by_sglang("gb200");
  // EP8, 48 experts a rank: 128 and 1,024 tokens a rank are 16 and 128 rows of an expert.
  CHECK_THAT(us(layer(gb300, 8), 48, 16), WithinRel(357., .1));
  CHECK_THAT(us(layer(gb300, 8), 48, 128), WithinRel(453., .1));
  CHECK_THAT(us(layer(gb200, 8), 48, 16), WithinRel(363., .1));
  // EP32, 12 experts a rank: 256 tokens a rank are 128 rows of an expert.
  CHECK_THAT(us(layer(gb300, 32), 12, 128), WithinRel(185., .1));
  CHECK_THAT(us(layer(gb200, 32), 12, 128), WithinRel(198., .1));
  // Prompts: EP8, 8,192 tokens a rank.
  CHECK_THAT(us(layer(gb300, 8), 48, 1024), WithinRel(2645., .1));
}

// METRO's law holds in the one kernel too: weights of active experts set the time of few tokens.
TEST_CASE("a MegaMoE layer takes longer with more active experts, never less") {
  const GroupedGemm gemm = layer(priced_by_sglang("gb300"), 8);
  double before = 0;
  for (const int active : {1, 2, 4, 8, 16, 24, 32, 48}) {
    std::vector<std::int32_t> tokens(48);
    for (int row = 0; row < 96; ++row) ++tokens[static_cast<std::size_t>(row % active)];
    const double time = gemm.cost(gemm.rows(tokens)).time.count();
    CHECK(time >= before);
    before = time;
  }
  CHECK(us(gemm, 48, 2) > 2 * us(gemm, 12, 8));
}

Json experiment(const Json& set) {
  Json json{{"engine", {{"name", "sglang"}}},
            {"cluster", "gb200_nvl72"},
            {"model", "deepseek_v4_pro"},
            {"parallel", {{"dp", 8}, {"tp", 1}, {"ep", 8}}},
            {"instances", 9},
            {"scheduling",
             {{"type", "chunked_prefill"}, {"max_num_batched_tokens", 256}, {"max_num_seqs", 128}}},
            {"workload",
             {{"arrivals", {{"type", "closed_loop"}, {"concurrency", 64}}},
              {"lengths", {{"type", "fixed"}, {"prompt", 100}, {"output", 20}}},
              {"gating",
               {{"type", "uniform"}, {"requests", 64}, {"prompt_rows", 8}, {"decode_rows", 20}}},
              {"requests", 64}}},
            {"placement", "linear"},
            {"dispatch", {{"prefill", "mega_moe"}, {"decode", "mega_moe"}}}};
  json.merge_patch(set);
  return json;
}

Experiment load(const Json& set) {
  TraceLibrary traces;
  return load_experiment(ConfigNode(experiment(set), "test.json"), traces);
}

TEST_CASE("a step by MegaMoE has no time of dispatch and combine, but their bytes") {
  const auto step = [](const char* dispatch) {
    return explain_step(load({{"dispatch", {{"prefill", dispatch}, {"decode", dispatch}}}}),
                        decode_step(128, 512))
        .cost;
  };
  const StepCost fused = step("mega_moe"), apart = step("low_latency");
  CHECK(seconds_of(fused, Part::dispatch) == 0);
  CHECK(seconds_of(fused, Part::combine) == 0);
  CHECK(seconds_of(apart, Part::dispatch) > 0);
  // Tokens that leave their GPU travel as often; the kernel pulls them in fp8.
  CHECK_THAT(fused.combine.nvlink.value(), WithinRel(apart.combine.nvlink.value(), 1e-12));
  CHECK(fused.dispatch.nvlink < apart.dispatch.nvlink);
  CHECK(fused.layers.front().exchange.name == "mega_moe");
  CHECK(fused.total < apart.total);
}

TEST_CASE("MegaMoE is refused where no kernel was measured, or the layer is another") {
  const auto error = [](const Json& set) { return config_error([&] { load(set); }); };
  CHECK_THAT(error({{"precision", {{"experts", "fp8_block"}}}}), Contains("experts in fp8_block"));
  CHECK_THAT(error({{"engine", {{"name", "none"}}},
                    {"token_routing", {{"prefill", "even"}, {"decode", "even"}}},
                    {"request_routing", "round_robin"}}),
             Contains("no measured table"));
  CHECK_THAT(error({{"cluster", "h200x8"}, {"instances", 1}}), Contains("no measured table"));
  CHECK_THAT(error({{"parallel", {{"dp", 8}, {"ep", 4}}}}), Contains("experts cut over several"));
  CHECK_THAT(error({{"parallel", {{"dp", 1}, {"tp", 8}}}}), Contains("do not travel"));
  CHECK_THAT(error({{"shared_expert", "fused"}}), Contains("shared expert"));
}

}  // namespace
}  // namespace moesim::test_mega_moe
