// SPDX-License-Identifier: Apache-2.0
// Do measured tables say what was measured, and nothing that the data sheet forbids?
#include <algorithm>
#include <cmath>
#include <fstream>
#include <numeric>

#include <fmt/format.h>

#include "hardware/at.hpp"
#include "hardware/fabric.hpp"
#include "hardware/kernels/attention.hpp"
#include "hardware/kernels/cached_context.hpp"
#include "hardware/kernels/experts.hpp"
#include "hardware/kernels/gemm.hpp"
#include "hardware/kernels/kernel.hpp"
#include "hardware/kernels/quantise.hpp"
#include "hardware/rng.hpp"
#include "hardware/tables/kernel_tables.hpp"
#include "models/moe_model.hpp"
#include "tests/support.hpp"
#include "tests/temporary.hpp"
#include "tools/lab/validation/table_calibration.hpp"

namespace moesim::test_tables {

using namespace moesim::test;

namespace {

GpuSpec gpu(const std::string& name) {
  return read_gpu(ConfigNode::from_file(source_dir() / "hardware/gpus" / (name + ".json")));
}

std::optional<TableTime> time_of(const GemmCall& call, const GpuSpec& gpu) {
  return gpu.tables->time(ask(call, gpu));
}

double rough_us(const GemmCall& call, const GpuSpec& gpu) { return ask(call, gpu).place.rough_us; }

// Times that attention cannot go below.
double bytes_of(const AttentionCall& c) {
  return c.batch * c.context * 2 * c.kv_heads * c.head_dim * c.kv_bytes;
}

GroupedRows rows_of(std::int64_t tokens, std::int64_t active) {
  return {active, tokens, tokens, active};
}

}  // namespace

namespace {

constexpr const char* gemm_head = "precision,kernel,m,n,k,us";
constexpr const char* decode_head =
    "precision,kv_precision,kernel,q_heads,kv_heads,head_dim,window,batch,ctx,us";
constexpr const char* experts_head =
    "precision,kernel,hidden,width,top_k,experts,tp,ep,tokens,distribution,us";

// A table with its head, in a folder that may not be there yet.
std::ofstream table(const std::filesystem::path& folder, const char* name, const char* head) {
  std::filesystem::create_directories(folder);
  std::ofstream out(folder / name);
  out << head << '\n';
  return out;
}

// Decodes of 32 heads that share 8 of a cache.
AttentionCall decode_call(double batch, double context, double head_dim = 128,
                          double kv_bytes = 2) {
  return {.kv_bytes = kv_bytes,
          .q_heads = 32,
          .kv_heads = 8,
          .head_dim = head_dim,
          .batch = batch,
          .queries = 1,
          .context = context,
          .pairs = context};
}

// What calibration makes of the tables in "raw".
std::vector<CalibratedTable> calibrated(const TemporaryFolder& folder, const GpuSpec& gpu) {
  return calibrate_tables(folder / "raw", gpu, folder / "made");
}

// GEMMs that take this share of their rough time; of `m` up to `most`, n = k.
void write_gemms(const std::filesystem::path& folder, const GpuSpec& gpu, double share, int most) {
  std::ofstream out = table(folder, "gemm.csv", gemm_head);
  for (int m = 1; m <= most; m *= 2) {
    for (int n = 512; n <= 8192; n *= 2) {
      const GemmCall call{"bfloat16", double(m), double(n), double(n)};
      out << fmt::format("bfloat16,made,{},{},{},{}\n", m, n, n, share * rough_us(call, gpu));
      if (most == 1) return;
    }
  }
}

double share_of(const GemmCall& call, const GpuSpec& gpu) {
  return time_of(call, gpu)->time.count() * 1e6 / rough_us(call, gpu);
}

}  // namespace

TEST_CASE("a table's own point is what was measured, and says so") {
  const GpuSpec h100 = with_engine(gpu("h100"), {"vllm", "0.19.0"});
  const auto file = source_dir() / "hardware/profiles/h100/vllm-0.19.0/gemm.csv.gz";
  int seen = 0;
  read_table(file, [&](const TableRow& row) {
    if (row.text("precision") != "bfloat16" || ++seen % 40 != 0) return;
    const auto time =
        time_of({"bfloat16", row.number("m"), row.number("n"), row.number("k")}, h100);
    REQUIRE(time);
    CHECK_THAT(time->time.count() * 1e6, WithinRel(row.number("us"), 1e-5));
    CHECK(time->evidence == Evidence::measured);
  });
  CHECK(seen > 1000);
}

TEST_CASE("a table without end is refused before it fills memory") {
  const TemporaryFolder folder;
  const auto file = folder.write("gemm.csv", "m");
  std::filesystem::resize_file(file, std::uintmax_t{5} << 30);
  CHECK_THAT(config_error([&] { read_table(file, [](const TableRow&) {}); }),
             Catch::Matchers::EndsWith("gemm.csv: is too large; a table has at most 1 GiB"));
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

TEST_CASE("no table makes experts, attention or links faster than the data sheet allows") {
  Rng rng(1, "calls");
  const auto octaves = [&](double top) { return std::round(std::exp2(top * rng.uniform())); };
  for (const char* name : {"a100_80g", "h200", "gb300", "l40s"}) {
    const GpuSpec spec = with_engine(gpu(name), {"vllm", ""});
    const double hbm = spec.hbm_bandwidth.value();
    const double peak = spec.peak(Precision::bf16, Precision::bf16).value();
    for (int i = 0; i < 30; ++i) {
      const double hidden = 512 * octaves(4), width = 128 * octaves(4);
      const GroupedGemm experts(
          {hidden, width, Precision::bf16, Precision::bf16, ExpertKernel::grouped_gemm, 128, 8},
          spec);
      const double tokens = octaves(12), active = std::min(octaves(7), tokens * 8);
      const double layer =
          experts.cost(rows_of(std::llround(tokens * 8), std::llround(active)), tokens)
              .time.count();
      CHECK(layer >= active * 6 * hidden * width / hbm);
      CHECK(layer >= 6 * hidden * width * tokens * 8 / peak);

      const double batch = octaves(8), context = octaves(14), kv = octaves(3);
      const Work work{.flops = Flops(4 * 8 * kv * 128 * batch * context),
                      .hbm = Bytes(batch * context * 4 * kv * 128)};
      const AttentionShape shape{
          .q_heads = 8 * kv, .kv_heads = kv, .key_dim = 128, .value_dim = 128};
      const Cost decode =
          attention(shape, {batch, batch, batch * context, batch * context, work}, spec);
      CHECK(decode.time.count() >= work.hbm.value() / hbm);
      CHECK(decode.time.count() >= work.flops.value() / peak);

      ClusterSpec cluster;
      cluster.gpu = spec;
      cluster.gpus_per_node = cluster.scale_up_domain = 8;
      cluster.nodes = 1;
      const double bytes = octaves(28);
      CHECK(Fabric(cluster).all_reduce(8, Bytes(bytes)).time.count() >=
            bytes * 7 / 8 / spec.scale_up_bandwidth.value());
    }
  }
}

TEST_CASE("a large message over a slow link is bound by the link, a small one by latency") {
  ClusterSpec cluster;
  cluster.gpu = with_engine(gpu("l40s"), {"vllm", ""});
  cluster.gpus_per_node = cluster.scale_up_domain = 8;
  cluster.nodes = 1;
  CHECK(Fabric(cluster).all_reduce(4, Bytes(32e6)).bound == Resource::nvlink);
  CHECK(Fabric(cluster).all_reduce(4, Bytes(1024)).bound == Resource::latency);
}

TEST_CASE("equal tokens never take less time on more active experts, with tables too") {
  for (const char* engine : {"vllm", "sglang", "trtllm"}) {
    for (const char* name : {"a100_80g", "h200", "b200"}) {
      const GpuSpec spec = with_engine(gpu(name), {engine, ""});
      const GroupedGemm experts(
          {7168, 2048, Precision::bf16, Precision::bf16, ExpertKernel::grouped_gemm, 256, 8}, spec);
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

TEST_CASE("few experts with many rows are not taken for what the table never timed") {
  // 16,384 rows on 8 and on 32 of Qwen3-30B-A3B's experts: 578 and 603 us on an RTX PRO 6000 with
  // vLLM 0.19 (casys-kaist/LLMServingSim@5daddb2); no table has a row near one or two experts.
  const GpuSpec rtx = with_engine(gpu("rtx_pro_6000"), {"vllm", "0.19.0"});
  const GroupedGemm experts(
      {2048, 768, Precision::bf16, Precision::bf16, ExpertKernel::grouped_gemm, 128, 8}, rtx);
  for (const std::int64_t active : {8, 32}) {
    const double us = experts.cost(rows_of(16384, active), 2048).time.count() * 1e6;
    CHECK(us > 300);
    CHECK(us < 1200);
  }
}

TEST_CASE("Triton's other tiles above 128 tokens show on A100, where they were measured") {
  const GpuSpec a100 = with_engine(gpu("a100_80g"), {"sglang", "0.5.10"});
  const GroupedGemm experts(
      {2048, 768, Precision::bf16, Precision::bf16, ExpertKernel::grouped_gemm, 128, 8}, a100);
  const auto us = [&](double tokens) {
    return experts.cost(rows_of(std::llround(8 * tokens), 128), tokens).time.count() * 1e6;
  };
  // 751.6 and 1,146.9 us with sglang 0.5.10, which the tables of 0.5.9 do not hold themselves.
  CHECK_THAT(us(128), WithinRel(751.6, 0.06));
  CHECK_THAT(us(256), WithinRel(1146.9, 0.06));
}

TEST_CASE("a rank of eight changes its tiles above its own 16 experts, not above the layer's 128") {
  const GpuSpec a100 = with_engine(gpu("a100_80g"), {"vllm", "0.14.0"});
  const GroupedGemm experts({.hidden = 2048, .width = 768, .experts = 128, .top_k = 8, .held = 16},
                            a100);
  const auto us = [&](std::int64_t rows, std::int64_t active, double tokens) {
    return experts.cost(rows_of(rows, active), tokens).time.count() * 1e6;
  };
  // With copies a rank activates more experts than any row of eight ranks has: 64, 96 and 128
  // tokens in the EP group. From 128 on the tiles were taken for those of few tokens.
  CHECK(us(110, 22, 96) > .95 * us(75, 20, 64));
  CHECK(us(147, 23, 128) > us(75, 20, 64));
}

TEST_CASE("a GPU without tables takes its sibling's shares, scaled by its own data sheet") {
  const GpuSpec h100 = with_engine(gpu("h100"), {"vllm", ""});
  const GpuSpec h20 = with_engine(gpu("h20"), {"vllm", ""});
  const Cost own = gemm(4096, 8192, 8192, Precision::bf16, Precision::bf16, h100);
  const Cost carried = gemm(4096, 8192, 8192, Precision::bf16, Precision::bf16, h20);
  CHECK(own.evidence != Evidence::carried_over);
  CHECK(carried.evidence == Evidence::carried_over);
  CHECK_THAT(carried.time / own.time, WithinRel(h100.peak(Precision::bf16, Precision::bf16) /
                                                    h20.peak(Precision::bf16, Precision::bf16),
                                                0.03));
  CHECK(gpu("h20").tables == nullptr);
  // A sibling that has one itself, as H200 has, is asked for its own tables only.
  REQUIRE(gpu("h200").sibling);
  CHECK(gpu("mi300x").sibling->sibling == nullptr);
}

TEST_CASE(
    "an engine without tables on a GPU is carried over before another engine there is asked") {
  const TemporaryFolder folder;
  GpuSpec h100 = gpu("h100"), h200 = gpu("h200");
  h100.sibling = nullptr;
  write_gemms(folder.path() / "h100/vllm-1.0", h100, 1.5, 4096);
  write_gemms(folder.path() / "h200/sglang-1.0", h200, 3, 4096);
  h100.profiles = {{{"vllm", "1.0"}, folder.path() / "h100/vllm-1.0"}};
  h200.profiles = {{{"sglang", "1.0"}, folder.path() / "h200/sglang-1.0"}};
  h200.sibling = std::make_shared<const GpuSpec>(h100);
  const GemmCall call{"bfloat16", 64, 1024, 1024};
  const GpuSpec vllm = with_engine(h200, {"vllm", "1.0"});
  CHECK_THAT(share_of(call, vllm), WithinRel(1.5, 1e-3));
  CHECK(time_of(call, vllm)->evidence == Evidence::carried_over);
  CHECK_THAT(share_of(call, with_engine(h200, {"sglang", "1.0"})), WithinRel(3.0, 1e-3));
  CHECK_THAT(share_of(call, with_engine(h200, {"trtllm", "1.0"})), WithinRel(3.0, 1e-3));
}

TEST_CASE("a shape is asked of the nearest version that has the shape") {
  const TemporaryFolder folder;
  GpuSpec h100 = gpu("h100");
  write_gemms(folder.path() / "vllm-1.0", h100, 1.3, 4096);  // n = k = 512 to 8192
  for (std::ofstream out = table(folder / "vllm-2.0", "gemm.csv", gemm_head);
       const int m : {1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096})
    out << fmt::format("bfloat16,made,{},512,512,{}\n", m,
                       2 * rough_us({"bfloat16", double(m), 512, 512}, h100));
  h100.profiles = {{{"vllm", "1.0"}, folder.path() / "vllm-1.0"},
                   {{"vllm", "2.0"}, folder.path() / "vllm-2.0"}};
  const GpuSpec newest = with_engine(h100, {"vllm", "2.0"});
  CHECK_THAT(share_of({"bfloat16", 64, 512, 512}, newest), WithinRel(2.0, 1e-3));
  CHECK_THAT(share_of({"bfloat16", 64, 8192, 8192}, newest), WithinRel(1.3, 1e-3));
}

TEST_CASE("a fast kernel with few rows of a shape wins; one that never had the shape does not") {
  const TemporaryFolder folder;
  GpuSpec h100 = gpu("h100");
  h100.sibling = nullptr;
  const auto decode = [&](double batch, double context, double head_dim) {
    return ask(decode_call(batch, context, head_dim), h100).place.rough_us;
  };
  {
    std::ofstream out = table(folder / "vllm-1.0", "attention_decode.csv", decode_head);
    const auto write = [&](const char* kernel, double head_dim, double context, double share) {
      out << fmt::format("bfloat16,bfloat16,{},32,8,{},0,4,{},{}\n", kernel, head_dim, context - 1,
                         share * decode(4, context, head_dim));
    };
    for (int context = 256; context <= 65536; context *= 2) write("slow", 64, context, 8);
    for (const int context : {256, 4096, 65536}) write("fast", 64, context, 1);
    for (int context = 256; context <= 65536; context *= 2) write("other", 128, context, 0.5);
  }
  h100.profiles = {{{"vllm", "1.0"}, folder.path() / "vllm-1.0"}};
  const GpuSpec spec = with_engine(h100, {"vllm", "1.0"});
  const auto share = [&](double context, double head_dim) {
    const Question question = ask(decode_call(4, context, head_dim), spec);
    return spec.tables->time(question)->time.count() * 1e6 / decode(4, context, head_dim);
  };
  for (const double context : {512.0, 1024.0, 4096.0, 16384.0, 32768.0})
    CHECK_THAT(share(context, 64), WithinRel(1.0, 0.05));
  CHECK_THAT(share(1024, 128), WithinRel(0.5, 0.05));
}

TEST_CASE("a GEMM of 64 rows is not priced by those of 65: kernels take the next tile there") {
  const TemporaryFolder folder;
  GpuSpec h100 = gpu("h100");
  h100.sibling = nullptr;
  {
    std::ofstream out = table(folder / "vllm-1.0", "gemm.csv", gemm_head);
    for (const int m : {1, 17, 33, 64, 65, 66, 81, 97, 129, 257}) {
      const double share = m <= 64 ? 1 : 1.4;
      for (int n = 1024; n <= 16384; n *= 2) {
        // Of 64 rows only far shapes, so that those of 33 and 65 are nearer.
        for (int k = 1024; k <= (m == 64 ? 1024 : 16384); k *= 2) {
          const GemmCall call{"fp8", double(m), double(n), double(k)};
          out << fmt::format("fp8,made,{},{},{},{}\n", m, n, k, share * rough_us(call, h100));
        }
      }
    }
  }
  h100.profiles = {{{"vllm", "1.0"}, folder.path() / "vllm-1.0"}};
  const GpuSpec spec = with_engine(h100, {"vllm", "1.0"});
  for (const double n : {3072., 5120., 12288.}) {
    CHECK_THAT(share_of({"fp8", 64, n, 6144}, spec), WithinRel(1.0, 0.05));
    CHECK_THAT(share_of({"fp8", 65, n, 6144}, spec), WithinRel(1.4, 0.05));
  }
}

TEST_CASE("large caches of 8 bits that only other engines were measured with: their 16 bits say") {
  const TemporaryFolder folder;
  GpuSpec h100 = gpu("h100");
  h100.sibling = nullptr;
  const auto call_of = [](double kv_bytes, double batch) {
    return decode_call(batch, 8192, 128, kv_bytes);
  };
  const auto write = [&](const std::string& engine, std::initializer_list<double> batches,
                         std::initializer_list<std::pair<double, double>> shares) {
    const std::string profile = engine + "-1.0";
    std::ofstream out = table(folder / profile, "attention_decode.csv", decode_head);
    for (const auto& [kv_bytes, share] : shares) {
      for (const double batch : batches)
        out << fmt::format("bfloat16,{},made,32,8,128,0,{},8191,{}\n",
                           kv_bytes < 2 ? "fp8" : "bfloat16", batch,
                           share * ask(call_of(kv_bytes, batch), h100).place.rough_us);
    }
    h100.profiles.push_back({{engine, "1.0"}, folder.path() / profile});
  };
  h100.profiles.clear();
  write("trtllm", {1, 2, 4}, {{1, 1.0}, {2, 1.0}});
  write("vllm", {64, 128, 256}, {{1, 2.0}, {2, 1.25}});
  write("of_16_bits", {1, 2, 4}, {{2, 1.0}});
  REQUIRE(reads_from_hbm(bytes_of(call_of(1, 64)), h100));
  REQUIRE_FALSE(reads_from_hbm(bytes_of(call_of(1, 4)), h100));
  const auto share = [&](const char* engine, double kv_bytes) {
    const GpuSpec spec = with_engine(h100, {engine, "1.0"});
    const Question question = ask(call_of(kv_bytes, 128), spec);
    return spec.tables->time(question)->time.count() * 1e6 / question.place.rough_us;
  };
  CHECK_THAT(share("trtllm", 1), WithinRel(1.25, 1e-3));
  CHECK_THAT(share("trtllm", 2), WithinRel(1.25, 1e-3));
  CHECK_THAT(share("vllm", 1), WithinRel(2.0, 1e-3));    // its own rows
  CHECK_THAT(share("sglang", 1), WithinRel(2.0, 1e-3));  // never measured: nothing speaks for it
  CHECK_THAT(share("of_16_bits", 1), WithinRel(2.0, 1e-3));  // nor with 8 bits
}

TEST_CASE("profiles by nearness: the engine's nearest version first, others' newest first") {
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

TEST_CASE("few points of a nearer version change a farther one's table, less the farther away") {
  const TemporaryFolder folder;
  GpuSpec h100 = gpu("h100");
  write_gemms(folder.path() / "h100/vllm-1.0", h100, 1.3, 4096);
  write_gemms(folder.path() / "h100/vllm-2.0", h100, 1.3 * 2, 1);
  h100.profiles = {{{"vllm", "1.0"}, folder.path() / "h100/vllm-1.0"},
                   {{"vllm", "2.0"}, folder.path() / "h100/vllm-2.0"}};
  const GemmCall known{"bfloat16", 1, 512, 512}, four_octaves{"bfloat16", 16, 512, 512};
  const GpuSpec older = with_engine(h100, {"vllm", "1.0"});
  CHECK_THAT(share_of(known, older), WithinRel(1.3, 1e-4));
  CHECK(time_of(known, older)->evidence == Evidence::measured);
  const GpuSpec newer = with_engine(h100, {"vllm", "2.0"});
  CHECK_THAT(share_of(known, newer), WithinRel(2.6, 1e-4));
  CHECK(time_of(known, newer)->evidence == Evidence::interpolated);
  CHECK_THAT(share_of(four_octaves, newer), WithinRel(1.3 * std::sqrt(2), 1e-4));

  // Where another GPU has the older version only, it changes as its sibling did.
  GpuSpec h200 = gpu("h200");
  write_gemms(folder.path() / "h200/vllm-1.0", h200, 1.5, 4096);
  h200.profiles = {{{"vllm", "1.0"}, folder.path() / "h200/vllm-1.0"}};
  h200.sibling = nullptr;
  CHECK_THAT(share_of(known, with_engine(h200, {"vllm", "2.0"})), WithinRel(1.5, 1e-4));
  h200.sibling = std::make_shared<const GpuSpec>(h100);
  const GpuSpec carried = with_engine(h200, {"vllm", "2.0"});
  CHECK_THAT(share_of(known, carried), WithinRel(3.0, 1e-4));
  CHECK(time_of(known, carried)->evidence == Evidence::interpolated);
}

TEST_CASE("imported tables hold every row, and errors of rows that were left out") {
  const TemporaryFolder folder;
  const GpuSpec h100 = gpu("h100");
  write_gemms(folder.path() / "raw/vllm-1.0", h100, 1.3, 4096);
  const auto tables = calibrated(folder, h100);
  REQUIRE(tables.size() == 1);
  CHECK(tables[0].rows == 65);
  CHECK(tables[0].kept == 65);
  CHECK(tables[0].points.median < 0.01);
  GpuSpec made = h100;
  made.profiles = {{{"vllm", "1.0"}, folder.path() / "made/vllm-1.0"}};
  made = with_engine(made, {"vllm", "1.0"});
  const GemmCall call{"bfloat16", 64, 1024, 1024};
  CHECK_THAT(share_of(call, made), WithinRel(1.3, 1e-3));
  CHECK(time_of(call, made)->evidence == Evidence::measured);
}

TEST_CASE("times of the host's launches are left out: as long whatever the work") {
  const TemporaryFolder folder;
  const GpuSpec h100 = gpu("h100");
  {
    std::ofstream out = table(folder / "raw/vllm-1.0", "gemm.csv", gemm_head);
    for (int m = 1; m <= 8192; m *= 2)
      for (int n = 512; n <= 16384; n *= 2)
        out << fmt::format(
            "fp8_block,made,{},{},4096,{}\n", m, n,
            std::max(100.0, 1.3 * rough_us({"fp8_block", double(m), double(n), 4096}, h100)));
  }
  const auto tables = calibrated(folder, h100);
  REQUIRE(tables.size() == 1);
  const auto& kind = tables[0].kinds.at("fp8_block");
  CHECK(kind.impossible == 0);
  CHECK(kind.host_bound > 50);
  CHECK(tables[0].kept == tables[0].rows - kind.host_bound);
}

TEST_CASE("a prompt is stalled where its block took sixteen times the data sheet's time") {
  for (const MeasuredTable* each : measured_tables()) {
    Sample sample{.group = "bfloat16 fp8_block", .kernel = "made", .place = {}, .us = 6000};
    sample.place.rough_us = 60;
    const bool prefill = each->name == "dsa_prefill_module" || each->name == "msa_prefill_module" ||
                         each->name == "dsv4_csa_prefill_module" ||
                         each->name == "dsv4_hca_prefill_module";
    CAPTURE(each->name);
    CHECK(is_stalled(*each, sample, 3000) == prefill);
    sample.us = 900;
    CHECK_FALSE(is_stalled(*each, sample, 600));
    CHECK(is_stalled(*each, sample, 700) == prefill);
    sample.us = 300;
    CHECK_FALSE(is_stalled(*each, sample, 600));
  }
}

TEST_CASE("rows that no kernel can reach are left out, and tables that are full of them whole") {
  const TemporaryFolder folder;
  const GpuSpec h100 = gpu("h100");
  const auto write = [&](const char* engine, int wrong_of_100) {
    std::ofstream out = table(folder / "raw" / engine, "gemm.csv", gemm_head);
    for (int i = 0; i < 100; ++i) {
      const double n = 1024 + 64 * i;
      // 4096 n 4096 twice over 989.5 TFLOP/s is what its tensor cores allow.
      const double least = 2 * 4096 * n * 4096 / 989.5e12 * 1e6;
      out << "bfloat16,made,4096," << n << ",4096," << (i < wrong_of_100 ? 0.5 : 1.4) * least
          << '\n';
    }
  };
  write("vllm-1.0", 3);
  write("sglang-1.0", 30);
  const auto tables = calibrated(folder, h100);
  REQUIRE(tables.size() == 2);
  CHECK(tables[0].profile == "sglang-1.0");
  CHECK(tables[0].kept == 0);
  CHECK_FALSE(std::filesystem::exists(folder.path() / "made/sglang-1.0/gemm.csv.gz"));
  CHECK(tables[1].rows == 100);
  CHECK(tables[1].kept == 97);
}

namespace {

// GQA decode at 0.7 of HBM; caches that come from HBM at `beyond`.
void write_decodes(const std::filesystem::path& folder, const GpuSpec& gpu, double beyond) {
  std::ofstream out = table(folder, "attention_decode.csv", decode_head);
  for (int batch = 1; batch <= 64; batch *= 2) {
    for (int context = 512; context <= 65536; context *= 2) {
      const AttentionCall call = decode_call(batch, context);
      const double share = reads_from_hbm(bytes_of(call), gpu) ? beyond : 0.7;
      out << fmt::format("bfloat16,bfloat16,made,32,8,128,0,{},{},{}\n", batch, context - 1,
                         5 + bytes_of(call) / gpu.hbm_bandwidth.value() * 1e6 / share);
    }
  }
}

}  // namespace

TEST_CASE("caches that nothing can have read are priced by another engine's, smaller ones not") {
  const TemporaryFolder folder;
  GpuSpec h100 = gpu("h100");
  write_decodes(folder.path() / "raw/trtllm-1.0", h100, 1.5);
  write_decodes(folder.path() / "raw/vllm-1.0", h100, 0.8);
  const auto tables = calibrated(folder, h100);
  REQUIRE(tables.size() == 2);
  CHECK(tables[0].kept < tables[0].rows - 20);
  CHECK(tables[0].kept > 0);
  CHECK(tables[1].kept == tables[1].rows);
  std::ifstream said(folder.path() / "made/left_out.csv");
  std::string line;
  std::getline(said, line);
  CHECK(line == "profile,table,kind,rows,impossible,host_bound,cut,bytes,order,kept");
  std::getline(said, line);
  CHECK(line.starts_with("trtllm-1.0,attention_decode,bfloat16 bfloat16 from HBM,"));
  CHECK(line.ends_with(",none"));

  h100.profiles = {{{"trtllm", "1.0"}, folder.path() / "made/trtllm-1.0"},
                   {{"vllm", "1.0"}, folder.path() / "made/vllm-1.0"}};
  const GpuSpec asked = with_engine(h100, {"trtllm", "1.0"});
  AttentionCall call = decode_call(64, 16384);
  const double bound = bytes_of(call) / h100.hbm_bandwidth.value();
  CHECK_THAT(asked.tables->time(ask(call, asked))->time.count(), WithinRel(bound / 0.8, 0.02));
  call.batch = 2;
  CHECK_FALSE(reads_from_hbm(bytes_of(call), h100));
  CHECK(asked.tables->time(ask(call, asked))->time.count() > 0);
}

namespace {

// Balanced rows of a layer of 128 experts, four of a token, by precision and EP size: 20 us and the
// weights of active experts at 2 TB/s, times `share`.
struct MadeExperts {
  std::string precision, kernel;
  double weight = 2;  // bytes
  double share = 1;   // of the time
  bool ignores_ep = false;
};

void write_experts(const std::filesystem::path& folder, const std::vector<MadeExperts>& kernels) {
  std::ofstream out = table(folder, "experts.csv", experts_head);
  for (const MadeExperts& made : kernels) {
    for (const auto& [width, ep] : {std::pair{2880, 1}, {2880, 8}, {1440, 1}, {1440, 8}}) {
      for (int tokens = 1; tokens <= 4096; tokens *= 2) {
        const double all = std::min(128, 4 * tokens);
        const double active = made.ignores_ep ? all : std::max(1.0, all / ep);
        const double us =
            made.share * (20 + active * 3 * 2880 * width * made.weight / 2e6) + tokens;
        out << fmt::format("{},{},2880,{},4,128,1,{},{},balanced,{}\n", made.precision, made.kernel,
                           width, ep, tokens, us);
      }
    }
  }
}

const CalibratedTable::Kind& kind_of(const std::vector<CalibratedTable>& tables,
                                     const std::string& precision) {
  return tables.at(0).kinds.at(precision);
}

}  // namespace

TEST_CASE("cut layers that take as long as whole ones are left out, the whole ones stay") {
  const TemporaryFolder folder;
  write_experts(folder.path() / "raw/vllm-1.0",
                {{"bfloat16", "sane"}, {"w4a16_mxfp4", "as_if_whole", .5, 1, true}});
  const auto tables = calibrated(folder, gpu("h200"));
  CHECK(kind_of(tables, "bfloat16").left_out() == 0);
  CHECK(kind_of(tables, "w4a16_mxfp4").unlawful[at(TableLaw::cut)] == 26);
  CHECK(kind_of(tables, "w4a16_mxfp4").left_out() == 26);
}

TEST_CASE("so are cut layers that take as long as whole ones for prompts alone") {
  const TemporaryFolder folder;
  {
    std::ofstream out = table(folder.path() / "raw/vllm-1.0", "experts.csv", experts_head);
    for (const auto& [width, ep] : {std::pair{2880, 1}, {2880, 8}, {1440, 1}, {1440, 8}}) {
      for (int tokens = 1; tokens <= 16384; tokens *= 2) {
        const double active = std::max(1.0, std::min(128.0, 4.0 * tokens) / ep);
        out << fmt::format("bfloat16,all_tokens,2880,{},4,128,1,{},{},balanced,{}\n", width, ep,
                           tokens, 20 + active * 3 * 2880 * width * 2 / 2e6 + 3 * tokens);
      }
    }
  }
  const auto tables = calibrated(folder, gpu("h200"));
  CHECK(kind_of(tables, "bfloat16").unlawful[at(TableLaw::cut)] == 2 * 15);
}

TEST_CASE("kernels that take longer for four bits than for sixteen are left out whole") {
  const TemporaryFolder folder;
  write_experts(
      folder.path() / "raw/vllm-1.0",
      {{"bfloat16", "sane"}, {"int4_wo", "slow", .5, 6}, {"fp8_block", "no_gain", 1, 2.2}});
  const auto tables = calibrated(folder, gpu("h200"));
  CHECK(kind_of(tables, "int4_wo").unlawful[at(TableLaw::bytes)] ==
        kind_of(tables, "int4_wo").rows);
  CHECK(kind_of(tables, "fp8_block").left_out() == 0);
}

TEST_CASE("a row that takes twice as long as rows with more work is left out alone") {
  const TemporaryFolder folder;
  write_experts(folder.path() / "raw/vllm-1.0", {{"bfloat16", "sane"}});
  std::ofstream(folder.path() / "raw/vllm-1.0/experts.csv", std::ios::app)
      << "bfloat16,sane,2880,2880,4,128,1,1,48,balanced,20000\n";
  const auto tables = calibrated(folder, gpu("h200"));
  CHECK(kind_of(tables, "bfloat16").unlawful[at(TableLaw::order)] == 1);
  CHECK(tables.at(0).kept == tables.at(0).rows - 1);
}

TEST_CASE("no row of the shipped tables is faster than HBM and tensor cores allow, nor unlawful") {
  for (const char* name :
       {"a100_80g", "h100", "h200", "b200", "b300", "gb200", "gb300", "l40s", "rtx_pro_6000"}) {
    const GpuSpec spec = gpu(name);
    std::size_t all = 0, fast = 0;
    for (const Profile& profile : spec.profiles) {
      for (const MeasuredTable* table : measured_tables()) {
        for (const char* ending : {".csv", ".csv.gz"}) {
          const auto file = profile.folder / (std::string(table->name) + ending);
          if (!std::filesystem::exists(file)) continue;
          std::vector<LawRow> rows;
          read_table(file, [&](const TableRow& row) {
            const std::vector<Sample> samples = samples_of(*table, row, spec, profile.engine);
            for (const Sample& sample : samples) {
              ++all;
              // Times are kept to four digits, loads of experts to three.
              fast += sample.us < sample.place.least_us * (1 - 6e-3) ? 1 : 0;
            }
            rows.push_back({samples.front(), ranks_of_layer(row)});
          });
          if (file.extension() != ".gz") continue;
          const BrokenLaws broken = broken_laws(*table, rows);
          for (const TableLaw law : {TableLaw::cut, TableLaw::order}) {
            CAPTURE(file.string(), table_law_names[at(law)], rows.size());
            CHECK(broken[at(law)].empty());
          }
          // Launches of the host bound these kernels.
          if (table->name == "dsa_prefill_module" && profile.engine.name == "vllm")
            CHECK(std::ranges::none_of(
                rows, [&](const LawRow& row) { return is_stalled(*table, row.sample, 0); }));
        }
      }
    }
    INFO(name);
    CHECK(all > 40000);
    CHECK(fast == 0);
  }
}

TEST_CASE("no attention is faster than HBM and tensor cores allow, whosever kernels it runs") {
  Rng rng(1, "attention");
  const auto octaves = [&](double top) { return std::round(std::exp2(top * rng.uniform())); };
  for (const char* name : {"a100_80g", "h100", "h200", "b200"}) {
    for (const char* engine : {"vllm", "sglang", "trtllm"}) {
      const GpuSpec spec = with_engine(gpu(name), {engine, ""});
      for (int i = 0; i < 40; ++i) {
        CAPTURE(name, engine, i);
        const double batch = octaves(9), context = octaves(17);
        const Precision kv_cache = i % 2 == 0 ? Precision::bf16 : Precision::fp8;
        AttentionLoad load{.sequences = batch,
                           .queries = batch,
                           .context = batch * context,
                           .pairs = batch * context};
        const double peak = spec.peak(kv_cache, kv_cache).value();
        if (i % 4 == 3) {
          const LatentAttentionShape shape{.heads = 16 * octaves(3),
                                           .kv_lora = 512,
                                           .qk_nope = 128,
                                           .qk_rope = 64,
                                           .v_dim = 128,
                                           .kv_cache = kv_cache};
          load.work.hbm = Bytes(load.context * 576 * bytes_per_element(kv_cache));
          load.work.flops = Flops(2 * shape.heads * 1088 * load.pairs);
          CHECK(latent_attention(shape, load, spec).time.count() * (1 + 1e-9) >=
                std::max(load.work.hbm / spec.hbm_bandwidth, load.work.flops / FlopsPerSecond(peak))
                    .count());
          continue;
        }
        const double kv_heads = octaves(3);
        const AttentionShape shape{.q_heads = 8 * kv_heads,
                                   .kv_heads = kv_heads,
                                   .key_dim = 128,
                                   .value_dim = 128,
                                   .kv_cache = kv_cache};
        load.work.hbm = Bytes(load.context * 256 * kv_heads * bytes_per_element(kv_cache));
        CHECK(attention(shape, load, spec).time >= load.work.hbm / spec.hbm_bandwidth);
      }
    }
  }
}

TEST_CASE("a table's row that is no kernel's is refused at its line") {
  const TemporaryFolder folder;
  std::filesystem::create_directories(folder.path() / "raw/vllm-1.0");
  const auto error = [&](const char* table, const std::string& text) {
    const auto file = folder.path() / "raw/vllm-1.0" / table;
    std::ofstream(file) << text;
    const std::string said = config_error([&] { calibrated(folder, gpu("b300")); });
    std::filesystem::remove(file);
    return said;
  };
  using Catch::Matchers::Contains;
  const std::string experts = std::string(experts_head) + '\n';
  CHECK_THAT(error("experts.csv", experts + "fp8,x,2048,768,9,8,1,1,64,power_law_1.2,50\n"),
             Contains("experts.csv:2: top_k"));
  CHECK_THAT(error("experts.csv", experts + "fp8,x,2048,768,2,8,1,16,64,power_law_1.2,50\n"),
             Contains("experts.csv:2: ep"));
  CHECK_THAT(error("experts.csv", experts + "fp8,x,2048,768,2,8,1,1,1e12,balanced,50\n"),
             Contains("experts.csv:2: tokens"));
  CHECK_THAT(error("gemm.csv", "precision,kernel,m,n,k,us\nfp8,x,1,64,64,0\n"),
             Contains("gemm.csv:2: 0 us"));
  CHECK_THAT(error("attention_decode.csv",
                   decode_head + std::string("\nbfloat16,fp8,x,8,0,128,0,1,100,9\n")),
             Contains("attention_decode.csv:2:"));
  CHECK_THAT(error("all_reduce.csv", "gpus,bytes,us\n0,256,3\n"), Contains("all_reduce.csv:2:"));
  CHECK_THAT(error("gemm.csv", "precision,m,n,us\nfp8,1,64,3\n"),
             Contains("gemm.csv:2: the header has no column \"k\""));
  CHECK_THAT(error("notes.txt", "nothing\n"), Contains("no folder <engine>-<version>"));
}

TEST_CASE("the busiest rank of a drawn layer holds all rows alone, and fewer experts when skewed") {
  Rng rng(1, "draws");
  const auto counts = power_law_rank({"power_law_1.2", 500, 8, 128, 1, DrawFill::by_rank}, rng);
  std::int64_t rows = 0;
  for (const std::int32_t n : counts) rows += n;
  CHECK(counts.size() == 128);
  CHECK(rows == 4000);
  const BusiestRank even = rank_load("balanced", 16, 8, 128, 1, Draws{});
  const BusiestRank skewed = rank_load("power_law_1.2", 16, 8, 128, 1, Draws{});
  CHECK(even.rows == skewed.rows);
  CHECK(skewed.active < even.active);
  CHECK(rank_load("power_law_1.2", 512, 8, 128, 8, Draws{}).rows > 512);
}

TEST_CASE("uneven rows of few tokens fill rank 0 where the source filled by id") {
  // One token's eight selections: every expert of 256 is rounded to none.
  const auto active = [](double tokens, double ranks, DrawFill fill) {
    return rank_load("power_law_1.2", tokens, 8, 256, ranks, {.fill = fill}).active;
  };
  CHECK(active(1, 8, DrawFill::by_rank) == 1);
  CHECK(active(1, 8, DrawFill::by_id) == 8);
  CHECK(active(1, 8, DrawFill::by_id_of_none) == 8);
  CHECK(active(2, 16, DrawFill::by_id) > 15);
  CHECK(active(1, 64, DrawFill::by_id) == 4);  // a rank holds no more
  // Four tokens: some experts keep a token, and those of rank 0 that have none get one each.
  CHECK(active(4, 16, DrawFill::by_id) > 12);
  CHECK(active(4, 16, DrawFill::by_rank) < 6);
  CHECK(active(4, 16, DrawFill::by_id_of_none) == active(4, 16, DrawFill::by_rank));
  for (const DrawFill fill : {DrawFill::by_rank, DrawFill::by_id, DrawFill::by_id_of_none}) {
    Rng rng(1, "fill");
    const auto counts = power_law_rank({"power_law_1.01", 4, 8, 256, 1, fill}, rng);
    CHECK(std::accumulate(counts.begin(), counts.end(), 0) == 32);
  }
  const auto of = [](const char* name, const char* engine, const char* version) {
    return draws_of({engine, version}, gpu(name), {}, false).fill;
  };
  CHECK(of("h100", "sglang", "0.5.9") == DrawFill::by_id);
  CHECK(of("h100", "sglang", "0.5.10") == DrawFill::by_rank);
  CHECK(of("h100", "trtllm", "1.2.0rc5") == DrawFill::by_id);
  CHECK(of("h200", "trtllm", "1.2.0rc5") == DrawFill::by_id_of_none);
  CHECK(of("a100_80g", "trtllm", "1.0.0") == DrawFill::by_id_of_none);
  CHECK(of("h200", "trtllm", "1.3.0rc20") == DrawFill::by_rank);
  CHECK(of("h200", "vllm", "0.19.0") == DrawFill::by_rank);
  CHECK(of("h100", "trtllm", "") == DrawFill::by_rank);
}

TEST_CASE("balanced rows in groups: the first ids get most, and all selections are kept") {
  const ExpertsCall layer{.hidden = 7168, .top_k = 8, .experts = 256};
  const auto balanced = [&](const char* engine, const char* version, bool triton = false) {
    return draws_of({engine, version}, gpu("gb200"), layer, triton).balanced;
  };
  using enum Draws::Balanced;
  CHECK(balanced("vllm", "0.24.0") == in_groups);
  CHECK(balanced("vllm", "0.19.0") == even);
  CHECK(balanced("sglang", "0.5.14") == in_groups);
  CHECK(balanced("sglang", "0.5.14", true) == lone);
  CHECK(balanced("trtllm", "1.3.0rc20") == even);
  CHECK(draws_of({"vllm", "0.24.0"}, gpu("gb200"), {.hidden = 6144, .top_k = 8, .experts = 256},
                 false)
            .balanced == even);
  const auto load = [](double tokens, double ranks) {
    return rank_load("balanced", tokens, 8, 256, ranks, {.balanced = in_groups});
  };
  CHECK_THAT(load(1000, 1).rows, WithinRel(8000.0, 1e-9));
  CHECK_THAT(load(1000, 4).rows, WithinRel(0.45 * 8000, 1e-9));
  CHECK_THAT(load(1000, 8).rows, WithinRel(0.3 * 8000, 1e-9));
  CHECK_THAT(load(1e5, 8).active, WithinRel(32.0, 1e-6));
  CHECK_THAT(load(1, 1).active, WithinRel(8.0, 1e-9));  // a token activates its eight
  CHECK(load(64, 1).active < rank_load("balanced", 64, 8, 256, 1, {}).active);
}

TEST_CASE("a lone rank's rows are of SGLang from 0.5.10 on") {
  CHECK_FALSE(times_lone_ranks({"sglang", "0.5.9"}));
  CHECK_FALSE(times_lone_ranks({"sglang", "0.5.6.post2"}));
  CHECK(times_lone_ranks({"sglang", "0.5.10"}));
  CHECK(times_lone_ranks({"sglang", "0.5.14"}));
  CHECK_FALSE(times_lone_ranks({"vllm", "0.19.0"}));
  // One of four ranks' 32 experts, of which a token's eight choices hit all or none.
  const auto counts = lone_rank(16, 8, 128, 4);
  std::int64_t rows = 0;
  for (const std::int32_t n : counts) rows += n;
  CHECK(rows == 16 * 8);
  CHECK(counts[0] >= 16 * 6);
  CHECK(rank_load("balanced", 16, 8, 128, 4, Draws{}).rows == 32);
}

TEST_CASE("a sibling's error is stated wider than a table's own, and draws follow it") {
  const GpuSpec own = with_engine(gpu("h100"), {"vllm", ""});
  const GpuSpec carried = with_engine(gpu("h20"), {"vllm", ""});
  for (const MeasuredTable* table : measured_tables()) {
    CAPTURE(table->name);
    CHECK(carried.tables->error(*table, Evidence::carried_over) >=
          own.tables->error(*table, Evidence::measured));
  }
  TableFactors twice;
  twice["gemm"].fill(2);
  const GemmCall call{"bfloat16", 100, 5000, 3000};
  CHECK_THAT(scaled(*own.tables, twice)->time(ask(call, own))->time / time_of(call, own)->time,
             WithinRel(2.0, 1e-12));
  const Question other = ask(QuantiseCall{100, 5000}, own);
  CHECK(scaled(*own.tables, twice)->time(other)->time == own.tables->time(other)->time);
}

namespace {

struct BlockTable {
  const char* file;  // under hardware/profiles
  bool decode;
  const char* operation;
};

// What the source ran, by the names of its rows; attention over the best blocks as MiniMax-M3 has.
MoeModel model_of(const TableRow& row) {
  const auto names = [&](std::string_view column, std::string_view part) {
    return row.text(column).find(part) != std::string_view::npos;
  };
  if (names("op", "msa")) {
    return read_model(config(R"({"name": "tiny", "source": "made up", "hidden": 6144,
      "vocabulary": 10, "tied_embeddings": false, "dense_width": 8,
      "attention": {"query_heads": 64, "kv_heads": 4, "head_dim": 128, "index_heads": 4,
                    "index_dim": 128, "index_top": 2048, "index_keys_bf16": true},
      "layers": [{"repeat": 1, "pattern": [{"ffn": "dense"}]}]})"));
  }
  const bool pro = row.text("op").find("dsv4") != std::string_view::npos &&
                   row.number("q_heads") * row.number("tp") == 128;
  const char* name = names("op", "dsa") ? (names("model", "GLM") ? "glm_5" : "deepseek_v3_2")
                                        : (pro ? "deepseek_v4_pro" : "deepseek_v4_flash");
  return read_model(
      ConfigNode::from_file(source_dir() / "models/zoo" / fmt::format("{}.json", name)));
}

}  // namespace

// From a model, its layout and the sequences of a step, not from a table's own call.
TEST_CASE("a mixer's step takes what a table measured for the whole block") {
  const GpuSpec b200 = gpu("b200");
  const std::vector<BlockTable> tables{
      {"vllm-0.24.0/dsv4_csa_decode_module", true, "attention_block_decode"},
      {"vllm-0.24.0/dsv4_hca_prefill_module", false, "attention_block_prefill"},
      {"trtllm-1.3.0rc23/dsv4_csa_prefill_module", false, "attention_block_prefill"},
      {"trtllm-1.3.0rc20/dsa_decode_module", true, "attention_block_decode"},
      {"trtllm-1.3.0rc20/dsa_prefill_module", false, "attention_block_prefill"},
      {"vllm-0.24.0/msa_decode_module", true, "attention_block_decode"},
      {"vllm-0.24.0/msa_prefill_module", false, "attention_block_prefill"}};
  for (const BlockTable& table : tables) {
    CAPTURE(table.file);
    const auto file =
        source_dir() / "hardware/profiles/b200" / (std::string(table.file) + ".csv.gz");
    const GpuSpec engine = with_engine(b200, engine_named(file.parent_path().filename().string()));
    int seen = 0;
    read_table(file, [&](const TableRow& row) {
      if (row.text("gemm_type") != "fp8_block" || ++seen % 12 != 0) return;
      if (!table.decode && row.number("isl") == 1) return;  // a prompt of one token is a decode
      const bool fp8 = row.text("kv_precision").starts_with("fp8");
      const MoeModel model = model_of(row);
      const bool compressed = row.text("op").find("dsv4") != std::string_view::npos;
      const int ratio = compressed ? static_cast<int>(row.number("compress_ratio")) : 1;
      const auto layer = std::ranges::find_if(model.layers, [&](const LayerSpec& l) {
        return l.mixer->kept({}, {}).tokens_of_entry == ratio;
      });
      REQUIRE(layer != model.layers.end());
      // What a rank has of all heads says how many share them.
      const double heads = model.hidden == 7168 ? 128 : 64;
      const int tp = static_cast<int>(heads / row.number("q_heads"));
      if (tp < 1) return;
      const ParallelPlan plan{.tp = tp};
      const PrecisionPlan precision{.attention = Precision::fp8_block,
                                    .kv_cache = fp8 ? Precision::fp8 : Precision::bf16,
                                    .activations = Precision::fp8_block};
      const std::vector<SequenceWork> sequences(
          static_cast<std::size_t>(row.number("batch")),
          {static_cast<std::int32_t>(row.number("isl")),
           static_cast<std::int32_t>(row.number("step")), table.decode});
      std::vector<Operation> out;
      layer->mixer->core({model.hidden, plan, precision, engine}, sequences, out);
      REQUIRE(out.size() == 1);
      CHECK(out.front().name == table.operation);
      CAPTURE(row.number("batch"), row.number("isl"), row.number("step"), row.number("q_heads"));
      CHECK_THAT(out.front().cost.time.count() * 1e6, WithinRel(row.number("us"), .02));
    });
    CHECK(seen > 100);
  }
}

}  // namespace moesim::test_tables
