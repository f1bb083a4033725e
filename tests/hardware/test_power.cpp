// SPDX-License-Identifier: Apache-2.0
// What does a GPU draw?
#include <cmath>

#include "hardware/gpu.hpp"
#include "hardware/kernels/gemm.hpp"
#include "hardware/shipped.hpp"
#include "tests/support.hpp"

namespace moesim::test_power {

using Catch::Matchers::Contains;
using namespace test;

namespace {

GpuPower power(PowerConstants all, double idle, double limit) {
  GpuPower made{.limit = Watts(limit), .idle = Watts(idle), .source = "made for a test"};
  made.classes.fill(all);
  return made;
}

Json h200_with(const Json& power) {
  Json gpu = test::bare_gpu(source_dir() / "hardware/gpus/h200.json");
  gpu["kernels"].erase("as");
  gpu["power"] = power;
  return gpu;
}

std::string refused(const Json& power) {
  return config_error(
      [&] { read_gpu(ConfigNode(h200_with(power), source_dir() / "tests/gpu.json")); });
}

Json measured() {
  Json kernels;
  for (const std::string_view name : power_class_names)
    kernels[std::string(name)] = {{"floor", "150 W"}, {"loads", 1}, {"exponent", 1}};
  return {{"limit", "700 W"}, {"idle", "130 W"}, {"kernels", kernels}, {"source", "a test"}};
}

}  // namespace

TEST_CASE("a kernel draws by the shares of both rates, at most the limit") {
  // (.5 * .4 + 1 * .3)^2 = .25 of the 600 W above the floor.
  const GpuPower p = power({Watts(100), 0.5, 1, 2}, 90, 700);
  CHECK_THAT(p.draw(PowerClass::gemm, 0.4, 0.3).value(), WithinRel(250, 1e-6));
  CHECK(p.draw(PowerClass::gemm, 0, 0) == Watts(100));
  CHECK(p.draw(PowerClass::gemm, 1, 1) == Watts(700));
  // What is loaded from the L2 alone counts as the HBM's whole rate.
  CHECK(p.draw(PowerClass::gemm, 1.6, 0) == p.draw(PowerClass::gemm, 1, 0));
}

TEST_CASE("Vidur-Energy's form is a case of ours") {
  // P = P_idle + (P_max - P_idle) (u / u_sat)^gamma, u the MFU, at most u_sat; A100: 100 W, 400 W,
  // .45, .7 (arXiv 2507.11417).
  const double saturated = 0.45, gamma = 0.7;
  const GpuPower a100 = power({Watts(100), 0, 1 / saturated, gamma}, 100, 400);
  for (const double mfu : {0.05, 0.2, 0.45, 0.6}) {
    const double vidur = 100 + 300 * std::pow(std::min(mfu, saturated) / saturated, gamma);
    CHECK_THAT(a100.draw(PowerClass::experts, 0.8, mfu).value(), WithinRel(vidur, 1e-6));
  }
  CHECK_THAT(a100.draw(PowerClass::experts, 0, 0.2).value(), WithinRel(270.06, 1e-4));
}

TEST_CASE("a GPU that was not measured draws as its sibling, scaled by both limits") {
  // Idle doubles with the limit; 57 W above idle of 570 W are 114 W of 1140 W.
  const GpuPower sibling = power({Watts(187), 0.5, 1, 2, PowerCalibration{10, 0.1, 0.2}}, 130, 700);
  const GpuPower own = scaled_to(Watts(1400), sibling);
  CHECK_THAT(own.idle.value(), WithinRel(260, 1e-12));
  CHECK_THAT(own.of(PowerClass::memory).floor.value(), WithinRel(374, 1e-12));
  CHECK(own.of(PowerClass::memory).loads == 0.5);
  CHECK_FALSE(own.of(PowerClass::memory).calibration);
  CHECK(own.by_sibling);
  CHECK(own.draw(PowerClass::memory, 1, 1) == Watts(1400));
}

TEST_CASE("a kernel's cost says what the GPU draws meanwhile") {
  GpuSpec gpu = read_gpu(ConfigNode(h200_with(measured()), source_dir() / "tests/gpu.json"));
  const Cost cost = gemm(4096, 4096, 4096, Precision::bf16, Precision::bf16, gpu);
  // One weight of 1 on the loads: floor + (limit - floor) u.
  const double share = cost.work.hbm.value() / 4.8e12 / cost.time.count();
  CHECK_THAT(cost.draw.value(), WithinRel(150 + 550 * share, 1e-6));
  gpu.power = nullptr;
  const Cost unknown = gemm(4096, 4096, 4096, Precision::bf16, Precision::bf16, gpu);
  CHECK(unknown.draw == Watts(0));
  CHECK(unknown.time == cost.time);
}

TEST_CASE("a GPU file's power is refused with what is wrong") {
  CHECK(refused(measured()).empty());
  Json wrong = measured();
  wrong["limit"] = 700;
  CHECK_THAT(refused(wrong), Contains("/power/limit") && Contains("unit"));
  wrong = measured();
  wrong["idle"] = "700 W";
  CHECK_THAT(refused(wrong), Contains("/power/idle") && Contains("below the limit"));
  wrong = measured();
  wrong["kernels"].erase("memory");
  CHECK_THAT(refused(wrong), Contains("memory"));
  wrong = measured();
  wrong["as"] = "h200";
  CHECK_THAT(refused(wrong), Contains("\"as\""));
  wrong = {{"limit", "400 W"}, {"as", "a100_80g"}, {"source", "a test"}};
  CHECK_THAT(refused(wrong), Contains("no measured power"));
}

TEST_CASE("shipped GPUs draw between idle and limit, more for more load") {
  int known = 0;
  for (const std::string& name : shipped_names(Shipped::gpu)) {
    CAPTURE(name);
    const GpuSpec gpu =
        read_gpu(ConfigNode::from_file(source_dir() / "hardware/gpus" / (name + ".json")));
    if (!gpu.power) continue;
    ++known;
    CHECK_FALSE(gpu.power->source.empty());
    for (std::size_t i = 0; i < power_class_names.size(); ++i) {
      CAPTURE(power_class_names[i]);
      const auto kind = static_cast<PowerClass>(i);
      Watts before = gpu.power->idle;
      for (const double share : {0.0, 0.25, 0.5, 1.0}) {
        const Watts draw = gpu.power->draw(kind, share, share);
        CHECK(draw >= before);
        before = draw;
      }
      CHECK(before <= gpu.power->limit);
    }
  }
  CHECK(known >= 8);
}

}  // namespace moesim::test_power
