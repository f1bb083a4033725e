// SPDX-License-Identifier: Apache-2.0
// Is a table of kernel times read whole, or refused?
#include <fstream>
#include <iterator>

#include <fmt/format.h>
#include <zlib.h>

#include "hardware/kernels/gemm.hpp"
#include "hardware/kernels/kernel.hpp"
#include "hardware/tables/kernel_tables.hpp"
#include "hardware/tables/profile_tables.hpp"
#include "hardware/tables/table_file.hpp"
#include "tests/support.hpp"
#include "tests/temporary.hpp"

namespace moesim::test_table_file {
namespace {

using namespace test;

using Catch::Matchers::Contains;

std::string bytes_of(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

// A table of 40 rows as gzip writes it.
std::string compressed(const TemporaryFolder& folder, const std::string& head = "") {
  std::string text = head + "precision,kernel,n,k,m:us\n";
  for (int n = 1; n <= 40; ++n) text += fmt::format("bfloat16,made,{},64,1:{} 2:{}\n", n, n, 2 * n);
  const auto file = folder / "whole.gz";
  const gzFile out = gzopen(file.c_str(), "wb9");
  gzwrite(out, text.data(), static_cast<unsigned>(text.size()));
  gzclose(out);
  return bytes_of(file);
}

int rows_of(const std::filesystem::path& file) {
  int rows = 0;
  read_table(file, [&](const TableRow& row) { rows += row.text("precision") == "bfloat16"; });
  return rows;
}

TEST_CASE("a compressed table that is cut anywhere is refused") {
  const TemporaryFolder folder;
  const std::string whole = compressed(folder);
  CHECK(rows_of(folder.write("t.csv.gz", whole)) == 80);
  for (std::size_t length = 0; length < whole.size(); ++length) {
    INFO(length << " of " << whole.size() << " bytes");
    const auto file = folder.write("t.csv.gz", whole.substr(0, length));
    CHECK_THAT(config_error([&] { rows_of(file); }), Contains("t.csv.gz: is damaged or cut short"));
  }
}

TEST_CASE("a compressed table with a flipped byte is refused, or says the same") {
  const TemporaryFolder folder;
  const std::string whole = compressed(folder);
  for (std::size_t i = 0; i < whole.size(); ++i) {
    std::string bytes = whole;
    bytes[i] = static_cast<char>(bytes[i] ^ 0x24);
    const auto file = folder.write("t.csv.gz", bytes);
    INFO("byte " << i);
    // Of the header, the time, the compressor's level and its system mean nothing.
    if (i >= 4 && i < 10) {
      CHECK(rows_of(file) == 80);
    } else {
      CHECK(config_error([&] { rows_of(file); }) != "");
    }
  }
}

TEST_CASE("a byte order mark is no part of a column's name") {
  const TemporaryFolder folder;
  CHECK(rows_of(folder.write("t.csv.gz", compressed(folder, "\xEF\xBB\xBF"))) == 80);
  CHECK(rows_of(folder.write("t.csv", "\xEF\xBB\xBFprecision\nbfloat16\n")) == 1);
}

// What a profile says of a GEMM, whose table is `text`.
std::string said_of_gemm(const std::string& text) {
  const TemporaryFolder folder;
  std::filesystem::create_directories(folder / "p/vllm-1");
  std::ofstream(folder / "p/vllm-1/gemm.csv") << text;
  Json json = test::bare_gpu(source_dir() / "hardware/gpus/h100.json");
  json["profiles"] = (folder / "p").string();
  return config_error([&] {
    const GpuSpec gpu = with_engine(read_gpu(ConfigNode(json, folder / "gpu.json")), {"vllm", "1"});
    gemm(64, 64, 64, Precision::bf16, Precision::bf16, gpu);
  });
}

TEST_CASE("a table whose header lacks a column, or that has no row, is refused where it is asked") {
  CHECK(said_of_gemm("precision,kernel,n,k,m:us\nbfloat16,made,64,64,64:10\n") == "");
  CHECK_THAT(said_of_gemm("precison,kernel,n,k,m:us\nbfloat16,made,64,64,64:10\n"),
             Contains("gemm.csv:2: the header has no column \"precision\"; it names precison"));
  CHECK_THAT(said_of_gemm("precision,kernel,n,k,m:us\n"),
             Contains("gemm.csv: no row under its header"));
}

TEST_CASE("every shipped table has the columns that are asked of it, and rows that are used") {
  int tables = 0;
  for (const auto& file : std::filesystem::directory_iterator(source_dir() / "hardware/gpus")) {
    const auto gpu = std::make_shared<const GpuSpec>(read_gpu(ConfigNode::from_file(file.path())));
    for (const Profile& profile : gpu->profiles) {
      for (const MeasuredTable* table : measured_tables())
        tables += tables_of(profile, gpu)->of(*table).empty() ? 0 : 1;
    }
  }
  CHECK(tables > 400);
}

}  // namespace
}  // namespace moesim::test_table_file
