// SPDX-License-Identifier: Apache-2.0
// Do batches of every preset activate as many experts as recorded and published ones?
#include <array>
#include <set>

#include "tests/support.hpp"
#include "traces/gating/gating.hpp"
#include "traces/gating/presets.hpp"
#include "traces/trace_statistics.hpp"

namespace moesim::test_presets {

using namespace moesim::test;

namespace {

struct Shape {
  int layers, experts, k, groups = 1, groups_per_token = 1;
};

MoeModel model_of(const Shape& shape) {
  MoeModel model;
  model.name = "test model";
  model.experts = shape.experts;
  model.experts_per_token = shape.k;
  model.expert_groups = shape.groups;
  model.groups_per_token = shape.groups_per_token;
  model.layers.resize(static_cast<std::size_t>(shape.layers));
  return model;
}

RoutingTrace trace_of(std::string_view preset, const Shape& shape, const char* rows) {
  return gatings()
      .make(config(fmt::format(R"({{"type": "topical", "preset": "{}", {}}})", preset, rows)))
      ->trace(model_of(shape), 1);
}

/// One token of each of so many requests: distinct experts in a layer, mean over layers.
double decode(const RoutingTrace& trace, int batch) {
  return distinct_experts(trace, std::array{batch}, 1)[0].decode;
}

/// The same where all requests are of one workload: mean over the workloads.
double decode_of_one_workload(const RoutingTrace& trace, int batch) {
  double sum = 0;
  const int workloads = static_cast<int>(trace.workloads().size());
  for (int workload = 0; workload < workloads; ++workload) {
    std::vector<TraceRequest> requests;
    for (const TraceRequest& request : trace.requests())
      if (request.workload == workload) requests.push_back(request);
    sum += decode(trace.with_requests(std::move(requests)), batch);
  }
  return sum / workloads;
}

enum class Of { mixture, one_workload };

struct Figure {
  std::string_view preset;
  Shape shape;
  Of of;
  int batch;
  double low, high;  ///< as recorded or published
  double tolerance;  ///< beyond low and high
};

constexpr Shape gpt_oss_20b{24, 32, 4}, v2_lite{26, 64, 6}, r1{58, 256, 8, 8, 4};
constexpr Shape qwen3{48, 128, 8}, gemma4{30, 128, 8}, olmoe{16, 64, 8}, mixtral{32, 8, 2};

constexpr Figure figures[] = {
    // Counted in the recordings: one token of each of so many requests.
    {"gpt_oss", gpt_oss_20b, Of::mixture, 8, 18.1, 18.1, .03},
    {"gpt_oss", gpt_oss_20b, Of::mixture, 16, 23.2, 23.2, .03},
    {"gpt_oss", gpt_oss_20b, Of::mixture, 32, 27.0, 27.0, .03},
    {"gpt_oss", gpt_oss_20b, Of::mixture, 64, 29.2, 29.2, .03},
    {"gpt_oss", gpt_oss_20b, Of::one_workload, 8, 14.9, 17.4, 0},  // by subject of the benchmarks
    {"deepseek_v2_lite", v2_lite, Of::mixture, 8, 32.3, 32.3, .03},
    {"deepseek_v2_lite", v2_lite, Of::mixture, 16, 45.5, 45.5, .03},
    {"deepseek_v2_lite", v2_lite, Of::mixture, 32, 56.3, 56.3, .03},
    {"deepseek_v2_lite", v2_lite, Of::one_workload, 16, 37.3, 45.9, .02},
    // Tokens drawn independently from how often GPQA picks each expert; of the experts that it
    // picks least, by the published histogram, all are alike (high) or spread evenly (low).
    {"deepseek_r1", r1, Of::mixture, 8, 53.6, 54.2, .02},
    {"deepseek_r1", r1, Of::mixture, 16, 90.6, 93.0, .02},
    {"deepseek_r1", r1, Of::mixture, 32, 138.1, 145.1, .02},
    {"deepseek_r1", r1, Of::mixture, 64, 185.0, 200.7, .02},
    {"deepseek_r1", r1, Of::mixture, 128, 219.4, 241.1, .02},
    // arXiv:2511.02237, tables 4 and 10: from the mean of Qwen3-30B-A3B's benchmarks to the highest
    // of Qwen3-235B-A22B's. Its batches have 16 sequences at most.
    {"qwen3", qwen3, Of::one_workload, 16, 48.8, 56.0, .04},
    // arXiv:2511.07776: one batch of HH-RLHF each.
    {"qwen3_one_workload", qwen3, Of::one_workload, 64, 60, 60, .10},
    // Tokens drawn independently from the recorded counts of experts, all workloads or one.
    {"gemma4", gemma4, Of::mixture, 8, 40.4, 40.4, .05},
    {"gemma4", gemma4, Of::mixture, 16, 60.0, 60.0, .05},
    {"gemma4", gemma4, Of::mixture, 32, 80.6, 80.6, .05},
    {"gemma4", gemma4, Of::mixture, 64, 98.0, 98.0, .05},
    {"gemma4", gemma4, Of::one_workload, 16, 53.6, 58.8, .03},
    {"olmoe", olmoe, Of::mixture, 8, 39.7, 39.7, .03},
    {"olmoe", olmoe, Of::mixture, 16, 53.4, 53.4, .03},
    {"olmoe", olmoe, Of::one_workload, 16, 43.1, 53.5, 0},
    {"mixtral", mixtral, Of::mixture, 4, 5.4, 5.4, .02},
    {"mixtral", mixtral, Of::one_workload, 8, 7.1, 7.2, .02},
};

}  // namespace

TEST_CASE("batches of a preset activate as many experts as recorded and published ones") {
  std::string_view made;
  std::optional<RoutingTrace> trace;
  for (const Figure& figure : figures) {
    if (figure.preset != made)
      trace = trace_of(figure.preset, figure.shape,
                       R"("requests": 256, "prompt_rows": 0, "decode_rows": 16)");
    made = figure.preset;
    const double active = figure.of == Of::mixture ? decode(*trace, figure.batch)
                                                   : decode_of_one_workload(*trace, figure.batch);
    CAPTURE(figure.preset, figure.batch, figure.of == Of::mixture, active);
    CHECK(active > figure.low * (1 - figure.tolerance));
    CHECK(active < figure.high * (1 + figure.tolerance));
  }
}

TEST_CASE("a mixture of the qwen3 preset activates more than one workload, as recordings do") {
  const RoutingTrace trace =
      trace_of("qwen3", qwen3, R"("requests": 256, "prompt_rows": 0, "decode_rows": 16)");
  const double one = decode_of_one_workload(trace, 16);
  // DeepSeek-V2-Lite 1.07, gpt-oss-20b 1.09, OLMoE 1.13.
  CHECK(decode(trace, 16) / one > 1.05);
  CHECK(decode(trace, 16) / one < 1.20);
  // In one workload the preset of that name activates still fewer.
  const RoutingTrace in_step = trace_of("qwen3_one_workload", qwen3,
                                        R"("requests": 256, "prompt_rows": 0, "decode_rows": 16)");
  CHECK(decode_of_one_workload(in_step, 16) < .8 * one);
}

TEST_CASE("a prompt of the gpt_oss preset activates as many experts of gpt-oss-120b as one did") {
  const RoutingTrace trace =
      trace_of("gpt_oss", {36, 128, 4}, R"("requests": 16, "prompt_rows": 512, "decode_rows": 0)");
  const double chunk = *distinct_experts(trace, std::array{512}, 1)[0].chunk;
  CHECK(chunk > 72);  // ggml-org/llama.cpp#15346: 72 to 95 in the first eight layers
  CHECK(chunk < 95);
}

TEST_CASE("every preset says its family and its source, and every model of the zoo has one") {
  std::set<std::string_view> names;
  for (const GatingPreset& preset : gating_presets) {
    names.insert(preset.name);
    CHECK_FALSE(preset.family.empty());
    CHECK_FALSE(preset.source.empty());
  }
  for (const auto& file : std::filesystem::directory_iterator(source_dir() / "models" / "zoo")) {
    const MoeModel model = read_model(ConfigNode::from_file(file.path()));
    CAPTURE(model.name);
    const auto [preset, of_another_family] = preset_of(model);
    CHECK(of_another_family == model.gating_preset.empty());
    CHECK(names.contains(preset.name));
  }
  CHECK(names.size() == gating_presets.size());
  CHECK(names.contains(preset_of_other_families));
}

}  // namespace moesim::test_presets
