// SPDX-License-Identifier: Apache-2.0
// Are constants of power those that measured kernels have?
#include <fmt/format.h>

#include "hardware/rng.hpp"
#include "tests/support.hpp"
#include "tests/temporary.hpp"
#include "tools/lab/validation/power_calibration.hpp"

namespace moesim::test_power_calibration {

using Catch::Matchers::Contains;
using test::WithinRel;

namespace {

GpuSpec h200() {
  return read_gpu(ConfigNode(test::bare_gpu(test::source_dir() / "hardware/gpus/h200.json"),
                             test::source_dir() / "hardware/gpus/h200.json"));
}

constexpr std::string_view head =
    "gpu,engine,version,family,op,kernel,model,shape,us,watts,limit_watts,millijoules\n";

}  // namespace

TEST_CASE("a fit finds the constants that made its points") {
  GpuPower truth{.limit = Watts(700), .idle = Watts(130)};
  truth.classes.fill({Watts(160), 0.7, 1.4, 1.5});
  truth.classes[static_cast<std::size_t>(PowerClass::memory)] = {Watts(150), 0.9, 0, 1.3};
  truth.classes[static_cast<std::size_t>(PowerClass::exchanges)] = {Watts(131), 0.4, 0, 2};
  PowerPoints measured{.limit = truth.limit};
  Rng rng(1, "test");
  for (std::size_t i = 0; i < power_class_names.size(); ++i) {
    const auto kind = static_cast<PowerClass>(i);
    for (int n = 0; n < 400; ++n) {
      const double loads = rng.uniform();
      const double arithmetic = truth.of(kind).arithmetic > 0 ? 0.7 * rng.uniform() : 0;
      const double watts = truth.draw(kind, loads, arithmetic).value();
      measured.points.push_back({kind, loads, arithmetic, watts, 10, fmt::format("{}", n)});
      measured.watts.push_back(watts);
    }
  }
  measured.watts.insert(measured.watts.end(), 100, 130);
  const FittedPower fit = fit_power(measured);
  CHECK(fit.power.idle == Watts(130));
  for (std::size_t i = 0; i < power_class_names.size(); ++i) {
    CAPTURE(power_class_names[i]);
    // Constants are written with three digits.
    CHECK(fit.errors[i].median < 0.01);
    CHECK(fit.errors[i].left_out > 20);
    CHECK(fit.errors[i].left_out < 60);
    CHECK_THAT(fit.errors[i].energy, WithinRel(1, 0.01));
    CHECK_THAT(fit.power.classes[i].floor.value(), WithinRel(truth.classes[i].floor.value(), 0.05));
  }
}

TEST_CASE("a measured row becomes shares of the data sheet's rates") {
  // 2 * 1024 * 4096 * 4096 = 34.36 GFLOP in 50 us are .6945 of 989.5 TFLOP/s; 4096^2 weights and
  // 2 * 1024 * 4096 rows of 2 B each are 50.33 MB, .2097 of 4.8 TB/s.
  const test::TemporaryFolder folder;
  const auto file = folder.write(
      "power.csv",
      std::string(head) +
          "H200-SXM-141GB,vllm,0.22.0,gemm,gemm,k,,gemm_dtype=bfloat16 m=1024 n=4096 k=4096,50,"
          "600,700,30\n"
          // 8192 * 4096 * 2 B in 20 us: .6991.
          "H200-SXM-141GB,vllm,0.22.0,computescale,c,k,,m=8192 k=4096 quant_dtype=fp8,20,500,700,"
          "10\n"
          // 16.8 times the peak: left out.
          "H200-SXM-141GB,vllm,0.22.0,gemm,gemm,k,,gemm_dtype=bfloat16 m=1024 n=4096 k=4096,1,"
          "600,700,1\n"
          // A kernel that no roofline knows counts for idle alone.
          "H200-SXM-141GB,vllm,0.22.0,gdn,gdn,k,,phase=context,9,128,700,1\n"
          // 8 GPUs: 2 * 7/8 * 2^28 * 2 B = 939.5 MB in 1,500 us are .6959 of B200's 900 GB/s.
          "B200-SXM-180GB,vllm,0.22.0,custom_allreduce,a,k,,allreduce_dtype=bfloat16 num_gpus=8 "
          "message_size=268435456,1500,430,1000,645\n"
          "B200-SXM-180GB,vllm,0.22.0,gdn,gdn,k,,phase=context,9,240,1000,1\n");
  const PowerPoints read = read_power_points(file, "h200", h200());
  CHECK(read.limit == Watts(700));
  CHECK(read.watts == std::vector<double>{600, 500, 600, 128});
  REQUIRE(read.points.size() == 2);
  CHECK(read.points[0].kind == PowerClass::gemm);
  CHECK_THAT(read.points[0].arithmetic, WithinRel(0.6945, 1e-3));
  CHECK_THAT(read.points[0].loads, WithinRel(0.2097, 1e-3));
  CHECK(read.points[1].kind == PowerClass::memory);
  CHECK_THAT(read.points[1].loads, WithinRel(0.6991, 1e-3));
  CHECK(read.points[1].arithmetic == 0);
  REQUIRE(read.exchanges_elsewhere.size() == 1);
  CHECK_THAT(read.exchanges_elsewhere[0].loads, WithinRel(0.6959, 1e-3));
  // 190 of the 760 W above B200's idle.
  CHECK_THAT(read.exchanges_elsewhere[0].watts, WithinRel(0.25, 1e-9));
}

TEST_CASE("a table of power without rows of a class is refused") {
  const test::TemporaryFolder folder;
  const auto file = folder.write("power.csv", head);
  CHECK_THAT(test::config_error([&] { fit_power(read_power_points(file, "h200", h200())); }),
             Contains("no row of this GPU"));
}

}  // namespace moesim::test_power_calibration
