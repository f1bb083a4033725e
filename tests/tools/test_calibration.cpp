// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <fstream>

#include "tests/support.hpp"
#include "tests/temporary.hpp"
#include "tools/validation/calibration.hpp"
#include "tools/validation/validation.hpp"

using namespace moesim;
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

TEST_CASE("calibration finds the constants that made its points, and notes their range") {
  OperationPredictor predictor(test::source_dir());
  GpuSpec truth = predictor.gpu("h100");
  KernelConstants& constants = truth.kernels[KernelFamily::gemm];
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
  const KernelConstants& found = gpu.kernel(KernelFamily::gemm);
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
