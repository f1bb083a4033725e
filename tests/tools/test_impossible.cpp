// SPDX-License-Identifier: Apache-2.0
// Are measured points left out that nothing can have measured, or that no run can stand for?
#include <cmath>

#include "tests/support.hpp"
#include "tools/bench/impossible.hpp"
#include "tools/bench/mlperf.hpp"
#include "tools/bench/predict_serving.hpp"

namespace moesim::test_impossible {

using Catch::Matchers::WithinRel;

namespace {

MeasuredPoint served(const char* metric, double value) {
  MeasuredPoint point;
  point.id = "made";
  point.category = "e2e";
  point.gpu = "H200-SXM-141GB";
  point.model = "gpt-oss-120b";
  point.operation = "online serving vllm 0.18.0, aggregated, closed loop";
  point.precision = "mxfp4 w4a16";
  point.metric = metric;
  point.unit = contains(metric, "tok_s") ? "tok/s/GPU" : "ms";
  point.gpus = point.tp = 2;
  point.nodes = point.dp = point.ep = 1;
  point.prompt = 8192;
  point.output = 1024;
  point.concurrency = 1;
  point.value = value;
  return point;
}

MoeModel zoo(const char* name) {
  return read_model(ConfigNode::from_file(test::source_dir() / "models/zoo" / name));
}

GpuSpec gpu(const char* name) {
  return read_gpu(ConfigNode::from_file(test::source_dir() / "hardware/gpus" / name));
}

ValidatedPoint predicted(MeasuredPoint point) {
  const double value = point.value;
  return {std::move(point), Prediction{value, ""}, {}};
}

}  // namespace

TEST_CASE("a label is impossible below what the data sheets allow, and possible above") {
  const MoeModel model = zoo("gpt_oss_120b.json");
  const GpuSpec h200 = gpu("h200.json");
  const double head = double(model.vocabulary) * model.hidden;
  const double active = count_parameters(model).active;
  // By hand: two GPUs, fp8 at 1,979 TFLOP/s, 4.8 TB/s, half a byte a weight.
  const double ttft_ms = 2 * (active - head) * 8192 / (2 * 1979e12) * 1e3;
  const double tpot_ms = active * .5 / (2 * 4.8e12) * 1e3;
  const double rate = 1979e12 / (2 * (active - head) * (1 + 8192. / 1024));
  const auto why = [&](const char* metric, double value) {
    return why_impossible(served(metric, value), model, h200, .5);
  };
  for (const auto& [metric, bound] : {std::pair{"TTFT", ttft_ms}, std::pair{"TPOT", tpot_ms}}) {
    CHECK(!why(metric, bound * .99).empty());
    CHECK(why(metric, bound * 1.01).empty());
  }
  CHECK(!why("output_tok_s_per_gpu", rate * 1.01).empty());
  CHECK(why("output_tok_s_per_gpu", rate * .99).empty());
  // The point itself is skipped with the reason, and not predicted.
  ServingPredictor predictor(test::source_dir());
  const Predicted result = predictor.predict(served("TPOT", tpot_ms * .9));
  REQUIRE(std::holds_alternative<Skipped>(result));
  CHECK(std::get<Skipped>(result).reason == why("TPOT", tpot_ms * .9));
}

TEST_CASE("a TPOT that jumps fivefold from one request to two is skipped, no other") {
  const auto at = [](double concurrency, double tpot_ms, double prompt = 8192) {
    MeasuredPoint point = served("TPOT", tpot_ms);
    point.concurrency = concurrency;
    point.prompt = prompt;
    return predicted(point);
  };
  std::vector<ValidatedPoint> points{at(2, 51), at(1, 10), at(4, 60), at(2, 49, 1024),
                                     at(1, 10, 1024)};
  skip_jumps(points);
  CHECK(points[0].skipped());
  for (std::size_t i = 1; i < points.size(); ++i) CHECK(!points[i].skipped());
}

TEST_CASE("what a GPU's data sheet alone predicts counts apart, as a roofline") {
  std::vector<ValidatedPoint> points{predicted(served("TPOT", 5)), predicted(served("TPOT", 5))};
  points[1].by_sheet = true;
  std::get<Prediction>(points[1].predicted).value = 10;
  const auto errors = errors_by_category(points);
  CHECK(errors.at("e2e/tpot").n == 1);
  CHECK(errors.at("e2e/tpot").median_abs_pct == 0);
  CHECK(errors.at("roofline e2e/tpot").n == 1);
  CHECK_THAT(errors.at("roofline e2e/tpot").median_abs_pct, WithinRel(100, 1e-9));
  MeasuredPoint amd = served("TPOT", 50);
  amd.gpu = "MI300X";
  CHECK(validate({amd, served("TPOT", 5)}, test::source_dir()).front().by_sheet);
  CHECK(!validate({amd, served("TPOT", 5)}, test::source_dir()).back().by_sheet);
}

TEST_CASE("MLPerf's Offline runs are of its data set, its Server runs are left out") {
  MeasuredPoint offline = served("output_tok_s_total", 5e4);
  offline.operation = "MLPerf Inference v5.1 Offline";
  offline.model = "Mixtral-8x7B";
  offline.precision = "fp8";
  offline.prompt = offline.output = offline.concurrency = 0;
  offline.gpus = 8;
  offline.tp = offline.dp = offline.ep = 0;
  const MlperfTask task = mlperf_task(offline).value();
  CHECK(task.samples == 15000);
  CHECK(!mlperf_task(served("TPOT", 5)));
  // A lognormal of the published mean.
  const Json lengths = mlperf_workload(task, 10)["lengths"];
  for (const auto& [of, mean] : {std::pair{"prompt", 375.}, std::pair{"output", 145.}}) {
    const double sigma = lengths[of]["sigma"];
    CHECK_THAT(double(lengths[of]["median"]) * std::exp(sigma * sigma / 2), WithinRel(mean, 1e-9));
  }
  ServingPredictor predictor(test::source_dir());
  const Predicted result = predictor.predict(offline);
  REQUIRE(std::holds_alternative<Prediction>(result));
  // Eight replicas of one GPU, none faster than its arithmetic.
  const MoeModel model = zoo("mixtral_8x7b.json");
  const double bound = 8 * 1979e12 / (2 * count_parameters(model).active * (1 + 375. / 145));
  CHECK(std::get<Prediction>(result).value < bound);
  CHECK(std::get<Prediction>(result).value > bound / 10);
  MeasuredPoint server = offline;
  server.operation = "MLPerf Inference v5.1 Server";
  CHECK(std::holds_alternative<Skipped>(predictor.predict(server)));
}

}  // namespace moesim::test_impossible
