// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <fstream>

#include "hardware/fabric.hpp"
#include "hardware/kernels/gemm.hpp"
#include "sim/experiment/experiment.hpp"
#include "tests/support.hpp"
#include "tests/temporary.hpp"
#include "tools/bench/serving_deployment.hpp"
#include "tools/bench/trtllm_bench.hpp"
#include "tools/bench/validation.hpp"
#include "tools/lab/validation/calibration.hpp"
#include "tools/lab/validation/engine_fit.hpp"
#include "tools/lab/validation/family_calibration.hpp"

namespace moesim::test_calibration {

using Catch::Matchers::Contains;
using Catch::Matchers::WithinRel;

namespace {

MeasuredPoint gemm_point(int m, int n, int k) {
  MeasuredPoint point;
  point.id = "made";
  point.category = "gemm";
  point.gpu = "H100-SXM-80GB";
  point.operation =
      "dense GEMM M=" + std::to_string(m) + " N=" + std::to_string(n) + " K=" + std::to_string(k);
  point.precision = "bfloat16";
  point.metric = "kernel_time";
  point.gpus = point.nodes = 1;
  return point;
}

}  // namespace

TEST_CASE("least squares find what made the data, within bounds, whatever a few wild points say") {
  // y = a + b x with a = 2, b = 3, and two of twelve points ten times too large.
  const auto residuals = [](std::span<const double> x) {
    std::vector<double> logs;
    for (int i = 0; i < 12; ++i) {
      const double measured = (2 + 3.0 * i) * (i % 6 == 5 ? 10 : 1);
      logs.push_back(std::log((x[0] + x[1] * i) / measured));
    }
    return logs;
  };
  const std::vector<Unknown> free{{1, 0.01, 100}, {1, 0.01, 100}};
  const auto fitted = fit_least_squares(free, residuals, 0.01);
  CHECK_THAT(fitted[0], WithinRel(2.0, 0.02));
  CHECK_THAT(fitted[1], WithinRel(3.0, 0.02));
  const std::vector<Unknown> bounded{{1, 0.01, 100}, {1, 0.01, 2.5}};
  CHECK_THAT(fit_least_squares(bounded, residuals)[1], WithinRel(2.5, 1e-6));
}

namespace {

// Runs of models of these many layers on one GPU each, as an engine of these constants gives them.
std::vector<EngineRun> made_runs(const EngineConstants& truth, const std::vector<double>& layers) {
  std::vector<EngineRun> runs;
  for (const double n : layers) {
    for (const double sequences : {4.0, 16.0, 64.0}) {
      EngineRun run;
      run.layers = n;
      run.launches = 20 * n;
      run.sequences = sequences;
      run.deployment = run.group = std::to_string(n);
      run.bare_tpot_ms = 0.05 * n + 0.02 * sequences;
      run.bare_ttft_ms = 20 + 5 * run.bare_tpot_ms;
      run.tpot_ms = truth.tpot_ms(run);
      run.ttft_ms = truth.ttft_ms(run);
      runs.push_back(run);
    }
  }
  return runs;
}

}  // namespace

TEST_CASE("an engine's constants are found in its runs, and predict models left out") {
  const EngineConstants truth{9, 140, 20, 50, 5};
  const auto runs = made_runs(truth, {24, 36, 48, 61, 80, 94});
  const EngineConstants fitted = fit_engine(runs);
  CHECK_THAT(fitted.per_layer_us, WithinRel(truth.per_layer_us, 0.01));
  CHECK_THAT(fitted.per_step_us, WithinRel(truth.per_step_us, 0.01));
  CHECK_THAT(fitted.per_sequence_us, WithinRel(truth.per_sequence_us, 0.01));
  CHECK_THAT(fitted.latency_per_launch_us, WithinRel(truth.latency_per_launch_us, 0.01));
  CHECK(fitted.admission_steps == truth.admission_steps);
  // Others are drawn towards these, and predict all the same.
  const auto others = made_runs({14, 500, 10, 15, 12}, {24, 36, 48, 61, 80, 94});
  const HeldOutErrors errors = held_out_errors(others);
  CHECK(errors.tpot < 0.05);
  CHECK(errors.ttft < 0.1);
  CHECK(fit_engine(others).admission_steps > 8);
}

TEST_CASE("what first tokens take longer is fitted where the client is known, or everywhere") {
  const EngineConstants truth{9, 140, 20, 50, 5};
  auto runs = made_runs(truth, {24, 36, 48, 61, 80, 94});
  for (EngineRun& run : runs) {
    run.knows_client = run.layers > 40;
    if (!run.knows_client) run.ttft_ms *= 5;
  }
  CHECK_THAT(fit_engine(runs).latency_per_launch_us, WithinRel(truth.latency_per_launch_us, 0.01));
  for (EngineRun& run : runs) {
    run.knows_client = false;
    run.ttft_ms = truth.ttft_ms(run);
  }
  CHECK_THAT(fit_engine(runs).latency_per_launch_us, WithinRel(truth.latency_per_launch_us, 0.01));
}

TEST_CASE("runs of one model give an engine's constants near the typical ones, and predict it") {
  // 60 layers of 12 us and a step of 400 us are as 60 of 16.2 and one of 150.
  const EngineConstants truth{12, 400, 10, 30, 4};
  const auto runs = made_runs(truth, {60});
  const EngineConstants fitted = fit_engine(runs);
  CHECK(fitted.per_layer_us > 5);
  CHECK(fitted.per_step_us > 50);
  for (const EngineRun& run : runs) CHECK_THAT(fitted.tpot_ms(run), WithinRel(run.tpot_ms, 0.06));
}

TEST_CASE(
    "a preset's constants are those that hold for all runs, and are replaced in their place") {
  const OrderedJson preset = OrderedJson::parse(R"({"settings": [
    {"set": {"/charges/host_overhead": "300 us", "/charges/per_layer": "9 us",
             "/charges/per_sequence": "18 us"}, "source": "old"},
    {"set": {"/api_server/latency_per_launch": "80 us", "/api_server/admission_steps": 5},
     "source": "old"},
    {"when": {"models": ["GLM"]}, "set": {"/api_server/admission_steps": 50}, "source": "kept"}]})");
  CHECK(constants_of(preset).per_step_us == 300);
  CHECK_THAT(constants_of(preset).latency_per_launch_us, WithinRel(80.0, 1e-9));
  CHECK(constants_of(preset).admission_steps == 5);
  const OrderedJson changed = with_constants(preset, {1, 2, 3, 4, 6}, "new");
  CHECK(constants_of(changed).per_layer_us == 1);
  CHECK(constants_of(changed).admission_steps == 6);
  CHECK(changed["settings"][1]["source"] == "new");
  CHECK(changed["settings"][2] == preset["settings"][2]);
}

TEST_CASE("experts that EPLB has placed: a level load, and nothing to gain for one expert a rank") {
  OperationPredictor predictor(test::source_dir());
  const auto price = [&](int ranks, int tokens, const char* distribution, int slots = 256) {
    MeasuredPoint point;
    point.id = "made";
    point.category = "moe_kernel";
    point.gpu = "H200-SXM-141GB";
    point.operation = "experts hidden=7168 width=2048 experts=256 top_k=8 kernel=cutlass slots=" +
                      std::to_string(slots);
    point.source = "trtllm-1.3.0rc10";
    point.precision = "fp8_block";
    point.distribution = distribution;
    point.ep = ranks;
    point.tokens = tokens;
    point.gpus = point.nodes = 1;
    return std::get<Prediction>(predictor.predict(point)).value;
  };
  // Two ranks of 128 experts share a skewed load almost evenly: rows and active experts are those
  // of a balanced layer.
  CHECK_THAT(price(2, 16384, "power_law_1.2_eplb"), WithinRel(price(2, 16384, "balanced"), 0.03));
  CHECK(price(32, 16384, "power_law_1.2") > 1.5 * price(32, 16384, "power_law_1.2_eplb"));
  CHECK_THAT(price(256, 4096, "power_law_1.2_eplb"),
             WithinRel(price(256, 4096, "power_law_1.2"), 0.1));
  // One expert a rank cannot be moved, but it can be shared: 512 slots are two a rank.
  CHECK(price(256, 16384, "power_law_1.2_eplb", 512) < price(256, 16384, "power_law_1.2_eplb"));
  // Few tokens: every copy that serves one is read.
  CHECK(price(8, 64, "power_law_1.2_eplb", 512) > price(8, 64, "power_law_1.2_eplb"));
}

TEST_CASE("families are fitted to the constants that made their calls, each precision's own") {
  MeasuredGpu made{OperationPredictor(test::source_dir()).gpu("h100"), {}};
  KernelConstants& truth = made.gpu.kernels[&gemm_kernel];
  truth.by_precision = {{Precision::bf16, {Seconds(7e-6), 0.6, 3}},
                        {Precision::fp8_block, {Seconds(12e-6), 0.8, 1.5}}};
  truth.peak_share = {{Precision::bf16, 0.4}, {Precision::fp8_block, 0.7}};
  for (const Precision precision : {Precision::bf16, Precision::fp8_block}) {
    for (const int m : {1, 16, 64, 256, 1024, 4096, 16384}) {
      for (const int n : {512, 1024, 2048, 4096, 6144, 8192, 12288, 16384}) {
        const Operands operands{precision, precision};
        FamilyCall call;
        call.kernel = &gemm_kernel;
        call.operands = operands;
        call.shape = std::to_string(n);
        call.work = gemm_work(m, n, 4096, operands, {truth.tile_m, truth.tile_n}, made.gpu.sms);
        call.us = 1;
        call.us = ratio_of(call, made.gpu);
        made.calls.push_back(call);
      }
    }
  }
  const MeasuredGpu* const gpus[] = {&made};
  const KernelConstants found = fit_families(gpus).at(&gemm_kernel);
  for (const auto& [precision, own] : truth.by_precision) {
    CHECK_THAT(found.of(precision).launch.count(), WithinRel(own.launch.count(), 0.03));
    CHECK_THAT(found.of(precision).bandwidth_share, WithinRel(own.bandwidth_share, 0.03));
    CHECK_THAT(found.peak_share.at(precision), WithinRel(truth.peak_share.at(precision), 0.03));
  }
  // Shapes that were left out are predicted by the others.
  for (const auto& [kind, errors] : errors_of_shapes_left_out(made))
    for (const double error : errors) CHECK(std::abs(error) < 0.02);
}

TEST_CASE("calibration finds the constants that made its points, and notes their range") {
  OperationPredictor predictor(test::source_dir());
  GpuSpec truth = predictor.gpu("h100");
  KernelConstants& constants = truth.kernels[&gemm_kernel];
  constants.by_precision.clear();
  constants.launch = Seconds(7e-6);
  constants.bandwidth_share = 0.6;
  constants.peak_share = {{Precision::bf16, 0.4}};
  constants.overlap = 3;
  std::vector<MeasuredPoint> points;
  for (const int m : {1, 16, 64, 256, 1024, 4096, 16384}) {
    for (const int n : {2048, 8192}) {
      points.push_back(gemm_point(m, n, 4096));
      points.back().value = std::get<Prediction>(predictor.predict(points.back(), truth)).value;
    }
  }
  GpuSpec gpu = predictor.gpu("h100");
  const auto fitted = calibrate(points, "h100", predictor, gpu, "made");
  REQUIRE(fitted.size() == 1);
  CHECK(fitted[0].points == 14);
  CHECK(fitted[0].median_error < 0.03);
  const KernelConstants& found = gpu.kernel(gemm_kernel);
  CHECK_THAT(found.launch.count(), WithinRel(7e-6, 0.06));
  CHECK_THAT(found.bandwidth_share, WithinRel(0.6, 0.06));
  CHECK_THAT(found.peak_share.at(Precision::bf16), WithinRel(0.4, 0.06));
  CHECK_THAT(found.source, Contains("calibrated on 14 points"));
  CHECK(found.reach(Precision::bf16).evidence(1e7, 1e9) == Evidence::calibrated);
  CHECK(found.reach(Precision::fp8).evidence(1e7, 1e9) == Evidence::extrapolated);
}

TEST_CASE("a points file is read by its header; what is not a number is refused at its line") {
  const test::TemporaryFile points_file("points.csv");
  const std::filesystem::path& file = points_file.path();
  std::ofstream(file) << "id,category,gpu,op,metric,value\n"
                         "a,gemm,H100,\"M=1, \"\"N\"\"=2\",kernel_time,3.5\n";
  const auto points = read_points(file);
  REQUIRE(points.size() == 1);
  CHECK(points[0].operation == "M=1, \"N\"=2");
  CHECK(points[0].value == 3.5);
  std::ofstream(file) << "id,category,gpu,metric,value\na,gemm,H100,kernel_time,fast\n";
  CHECK_THROWS_WITH(read_points(file), Contains("points.csv:2: value \"fast\" is not a number"));
}

TEST_CASE("a deployment whose GPU runs other kernels needs no file beside that GPU's own") {
  MeasuredPoint point = gemm_point(1, 1, 1);
  point.category = "prefill";
  point.model = "DeepSeek-V3";
  point.precision = "fp8_block";
  point.gpus = point.ep = 32;
  point.nodes = 4;
  point.operation = "SGLang prefill EP32";
  for (const char* name : {"H100-SXM-80GB", "H800-SXM"}) {  // with tables; with a sibling
    point.gpu = name;
    const Json experiment = deployment_json(point, test::source_dir()).experiment;
    const ClusterSpec cluster = read_cluster(ConfigNode(experiment.at("cluster"), "points.json"));
    CHECK(cluster.gpus() == 32);
    CHECK(cluster.gpu.name.starts_with(point.gpu.substr(0, 4)));
  }
}

// DeepSeek-R1 on 8 H200 by hand: (8 x 143,771 MiB - 671.0e9 B) x .95 = 473 GiB; 61 layers, keys and
// values of 7,168 numbers, 2 B each: 3.34 GiB for 2,048 tokens, so 141.9 requests and 283.8 tokens;
// 55.0 GiB for 33,792, so 8.6 requests.
TEST_CASE(
    "trtllm-bench's limits follow from memory, lengths and a rule, no rank takes more than fit") {
  const auto bench = [](double output) {
    MeasuredPoint point;
    point.category = "e2e";
    point.gpu = "H200-SXM-141GB";
    point.model = "DeepSeek-R1";
    point.operation = "trtllm-bench offline max throughput";
    point.precision = "fp8_block";
    point.prompt = 1024;
    point.output = output;
    point.gpus = point.dp = point.ep = 8;
    point.tp = point.nodes = 1;
    return point;
  };
  const auto deployed = [](const MeasuredPoint& point) {
    Json config = deployment_json(point, test::source_dir()).experiment;
    config["workload"].update({{"arrivals", {{"type", "closed_loop"}, {"concurrency", 8}}},
                               {"lengths",
                                {{"type", "fixed"},
                                 {"prompt", static_cast<int>(point.prompt)},
                                 {"output", static_cast<int>(point.output)}}},
                               {"requests", 8}});
    TraceLibrary traces;
    return load_experiment(ConfigNode(config, "validate.json"), traces).decode();
  };
  const Deployment d = deployed(bench(1024));
  CHECK(d.charges.per_sequence.count() == 4.5e-6);
  CHECK(d.precision.kv_cache == Precision::fp8);
  const BenchLimits limits = trtllm_bench_limits(d, bench(1024));
  CHECK(limits.max_batch_size == 384);
  CHECK(limits.max_num_tokens == 2048);
  CHECK(limits.graph_sizes == std::vector{1, 2, 4, 8, 16, 32, 64, 128, 256, 384});
  const BenchLimits longer = trtllm_bench_limits(d, bench(32768));
  CHECK(longer.max_batch_size == d.memory.kv_blocks / (33792 / 32));
  CHECK(longer.max_batch_size < 64);
  // No prompt is cut: 1,024 + 64 tokens and more.
  CHECK(longer.max_num_tokens == 2048);
}

TEST_CASE(
    "errors are medians over a category; skipped points are counted apart, failed ones wrong") {
  const auto made = [](double measured, double predicted) {
    ValidatedPoint p{gemm_point(1, 1, 1), Prediction{predicted, ""}, {}};
    p.point.value = measured;
    return p;
  };
  std::vector<ValidatedPoint> points{made(100, 90), made(100, 130), made(100, 105)};
  CategoryErrors c = errors_by_category(points).at("gemm");
  CHECK(c.n == 3);
  CHECK_THAT(c.median_abs_pct, WithinRel(10.0, 1e-9));  // of 5, 10, 30
  CHECK_THAT(c.p90_abs_pct, WithinRel(30.0, 1e-9));
  CHECK_THAT(c.bias_pct, WithinRel(5.0, 1e-9));  // of -10, 5, 30
  points.push_back({gemm_point(1, 1, 1), Skipped{"why"}, {}});
  points.push_back({gemm_point(1, 1, 1), Skipped{}, "boom"});
  c = errors_by_category(points).at("gemm");
  CHECK(c.n == 4);
  CHECK(c.skipped == 1);
  CHECK(c.failed == 1);
  CHECK(c.p90_abs_pct == 100);
}

}  // namespace moesim::test_calibration
