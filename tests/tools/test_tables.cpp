// SPDX-License-Identifier: Apache-2.0
// Do measured tables say what was measured, and nothing that the data sheet forbids?
#include <cmath>
#include <fstream>

#include "hardware/kernel_tables.hpp"
#include "hardware/rng.hpp"
#include "tests/support.hpp"
#include "tests/temporary.hpp"
#include "tools/validation/table_calibration.hpp"

using namespace moesim;
using namespace moesim::test;

namespace {

GpuSpec gpu(const std::string& name) {
  return read_gpu(ConfigNode::from_file(source_dir() / "hardware/gpus" / (name + ".json")));
}

GroupedRows rows_of(std::int64_t tokens, std::int64_t active) {
  return {active, tokens, tokens, active};
}

}  // namespace

TEST_CASE("a table's own point is what was measured, and says so") {
  const GpuSpec h100 = with_engine(gpu("h100"), {"vllm", "0.19.0"});
  const auto file = source_dir() / "hardware/profiles/h100/vllm-0.19.0/gemm.csv";
  int seen = 0;
  read_table(file, [&](const TableRow& row) {
    if (row.text("precision") != "bfloat16" || ++seen % 40 != 0) return;
    const auto time =
        h100.tables->time(GemmCall{"bfloat16", row.number("m"), row.number("n"), row.number("k")});
    REQUIRE(time);
    CHECK_THAT(time->time.count() * 1e6, WithinRel(row.number("us"), 1e-5));
    CHECK(time->evidence == Evidence::measured);
  });
  CHECK(seen > 1000);
}

TEST_CASE("no table makes a kernel faster than the data sheet allows") {
  Rng rng(1, "shapes");
  const auto octaves = [&](double top) { return std::round(std::exp2(top * rng.uniform())); };
  for (const char* name : {"a100_80g", "b200", "gb300", "h20"}) {
    const GpuSpec spec = with_engine(gpu(name), {"sglang", ""});
    for (int i = 0; i < 60; ++i) {
      const double m = octaves(15), n = 64 * octaves(9), k = 64 * octaves(8);
      const Precision p = i % 2 == 0 ? Precision::bf16 : Precision::fp8;
      const double seconds = gemm(m, n, k, p, p, spec).time.count();
      CHECK(seconds >= n * k * bytes_per_element(p) / spec.hbm_bandwidth.value());
      CHECK(seconds >= 2 * m * n * k / spec.peak(p, p).value());
    }
  }
}

TEST_CASE("equal tokens never take less time on more active experts, with tables too") {
  for (const char* engine : {"vllm", "sglang", "trtllm"}) {
    for (const char* name : {"a100_80g", "h200", "b200"}) {
      const GpuSpec spec = with_engine(gpu(name), {engine, ""});
      const GroupedGemm experts(
          {7168, 2048, Precision::bf16, Precision::bf16, KernelFamily::grouped_gemm, 256, 8}, spec);
      for (const std::int64_t tokens : {40, 300, 5000}) {
        double before = 0;
        for (std::int64_t active = 1; active <= 40; ++active) {
          const double time = experts.cost(rows_of(tokens, active), 512).time.count();
          CHECK(time >= before * (1 - 1e-12));
          before = time;
        }
        const double few = experts.cost(rows_of(tokens, 8), 512).time.count();
        // Where reading weights is most of the time, five times as many are clearly slower.
        if (tokens == 40) CHECK(before > 1.2 * few);
      }
    }
  }
}

TEST_CASE("Triton's other tiles above 128 tokens show on A100, where they were measured") {
  const GpuSpec a100 = with_engine(gpu("a100_80g"), {"sglang", "0.5.10"});
  const GroupedGemm experts(
      {2048, 768, Precision::bf16, Precision::bf16, KernelFamily::grouped_gemm, 128, 8}, a100);
  const auto us = [&](double tokens) {
    return experts.cost(rows_of(std::llround(8 * tokens), 128), tokens).time.count() * 1e6;
  };
  // 751.6 and 1,146.9 us with sglang 0.5.10, which the tables of 0.5.9 do not hold themselves.
  CHECK_THAT(us(128), WithinRel(751.6, 0.06));
  CHECK_THAT(us(256), WithinRel(1146.9, 0.06));
}

TEST_CASE("a GPU without tables takes its sibling's shares, scaled by its own data sheet") {
  const GpuSpec b200 = with_engine(gpu("b200"), {"vllm", ""});
  const GpuSpec b300 = with_engine(gpu("b300"), {"vllm", ""});
  const Cost own = gemm(4096, 8192, 8192, Precision::bf16, Precision::bf16, b200);
  const Cost carried = gemm(4096, 8192, 8192, Precision::bf16, Precision::bf16, b300);
  CHECK(own.evidence != Evidence::carried_over);
  CHECK(carried.evidence == Evidence::carried_over);
  CHECK_THAT(carried.time / own.time, WithinRel(b200.peak(Precision::bf16, Precision::bf16) /
                                                    b300.peak(Precision::bf16, Precision::bf16),
                                                0.02));
  CHECK(gpu("b300").tables == nullptr);
}

TEST_CASE("an engine's nearest version goes before others, and engines before siblings") {
  const std::vector<Profile> profiles{{{"sglang", "0.5.9"}, "a"},
                                      {{"vllm", "0.14.0"}, "b"},
                                      {{"vllm", "0.19.0"}, "c"},
                                      {{"vllm", "0.24.0"}, "d"}};
  const auto first = [&](const EngineVersion& e) { return by_nearness(profiles, e)[0].folder; };
  CHECK(first({"vllm", "0.18.1"}) == "c");
  CHECK(first({"vllm", "0.10"}) == "b");
  CHECK(first({"vllm", ""}) == "d");
  CHECK(first({"sglang", "0.5.14"}) == "a");
  CHECK(by_nearness(profiles, {"sglang", "0.5.14"}).size() == 4);
}

TEST_CASE("thinned tables predict what they leave out within the tolerance") {
  const TemporaryFolder folder;
  const auto engine = folder.path() / "raw/vllm-1.0";
  std::filesystem::create_directories(engine);
  const GpuSpec h100 = gpu("h100");
  {
    std::ofstream out(engine / "gemm.csv");
    out << "precision,kernel,m,n,k,us\n";
    for (int m = 1; m <= 4096; m *= 2)
      for (int n = 512; n <= 8192; n *= 2)
        for (int k = 512; k <= 8192; k *= 2)
          out << "bfloat16,made," << m << ',' << n << ',' << k << ','
              << 1.3 * locate(GemmCall{"bfloat16", double(m), double(n), double(k)}, h100).rough_us
              << '\n';
  }
  const auto tables = calibrate_tables(folder.path() / "raw", h100, folder.path() / "thin", 0.02);
  REQUIRE(tables.size() == 1);
  CHECK(tables[0].rows == 325);
  CHECK(tables[0].kept < 200);
  CHECK(tables[0].points.median < 0.01);
  GpuSpec made = h100;
  made.profiles = {{{"vllm", "1.0"}, folder.path() / "thin/vllm-1.0"}};
  made = with_engine(made, {"vllm", "1.0"});
  const GemmCall call{"bfloat16", 64, 1024, 2048};
  CHECK_THAT(made.tables->time(call)->time.count() * 1e6,
             WithinRel(1.3 * locate(call, h100).rough_us, 0.01));
}
