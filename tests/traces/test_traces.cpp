// SPDX-License-Identifier: Apache-2.0
// Are routing traces read as they were written, and are their statistics right?
#include <algorithm>
#include <cmath>
#include <fstream>
#include <optional>

#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "tests/support.hpp"
#include "tests/temporary.hpp"
#include "tests/trace_meta.hpp"
#include "traces/npy.hpp"
#include "traces/routing_trace.hpp"
#include "traces/trace_statistics.hpp"

namespace moesim::test_traces {

using namespace moesim::test;
using Catch::Matchers::Contains;

namespace {

/// An .npy file of version 1 with this header literal and data, padded as numpy pads.
std::string npy_file(std::string header, const std::string& data, char version = 1) {
  const std::size_t prefix = version == 1 ? 10 : 12;
  header.append(63 - (prefix + header.size()) % 64, ' ');
  header += '\n';
  std::string text = "\x93NUMPY";
  text +=
      {version, 0, static_cast<char>(header.size() & 255), static_cast<char>(header.size() >> 8)};
  if (version > 1) text += {0, 0};
  return text + header + data;
}

std::string literal(const std::string& type, const std::string& shape,
                    const std::string& order = "False") {
  return "{'descr': '" + type + "', 'fortran_order': " + order + ", 'shape': " + shape + ", }";
}

template <class T>
std::string bytes_of_values(std::initializer_list<T> values) {
  return {reinterpret_cast<const char*>(values.begin()), values.size() * sizeof(T)};
}

/// 3 requests of 2, 1 and 2 rows, 2 layers, top-2 of 4.
RoutingTrace small_trace() {
  TraceMeta meta;
  meta.model = "tiny";
  meta.source = "hand-written";
  meta.num_experts = 4;
  meta.experts_per_token = 2;
  meta.layer_ids = {1, 2};
  meta.phases = {"prefill", "decode"};
  return RoutingTrace(
      meta, {"law", "math"}, {{0, 2, 1, 0, false}, {2, 1, 0, 1, true}, {3, 2, 2, 0, false}},
      {0, 1, 2, 3, /**/ 0, 2, 2, 3, /**/ 0, 1, 1, 0, /**/ 3, 0, 2, 3, /**/ 0, 1, 3, 2});
}

const std::string good_meta =
    R"({"format": "moesim-routing-trace", "version": 1, "model": "tiny", "num_experts": 4,
        "experts_per_token": 2, "layer_ids": [1, 2], "ids": "logical", "phases": ["decode"]})";
const std::string good_requests = "{\"row_start\": 0, \"num_tokens\": 2, \"prompt_rows\": 0}\n";

/// What opening this trace says; rows: uint8 [n, 2, 2].
std::string open_error(const std::string& meta, const std::string& requests,
                       const std::string& ids) {
  const TemporaryFolder folder;
  folder.write("meta.json", meta);
  folder.write("requests.jsonl", requests);
  folder.write("topk_ids.npy", ids);
  return config_error([&] { RoutingTrace::open(folder.path()); });
}

std::string ids_file(std::initializer_list<std::uint8_t> ids) {
  return npy_file(literal("|u1", "(" + std::to_string(ids.size() / 4) + ", 2, 2)"),
                  bytes_of_values(ids));
}

/// `place` of a real trace, or nothing and a visible skip.
std::optional<RoutingTrace> shared_trace(const std::string& name) {
  if (has_shared()) return RoutingTrace::open(shared_dir() / "data" / "routing" / name);
  WARN("skipped: ../shared is absent");
  return std::nullopt;
}

// The most that this process has held until now, in KiB.
long most_memory() {
  rusage used{};
  ::getrusage(RUSAGE_SELF, &used);
  return used.ru_maxrss;
}

}  // namespace

TEST_CASE("an .npy file is read as it was written, whatever its type") {
  const TemporaryFolder folder;
  const std::array<std::int64_t, 2> shape{2, 3};
  const auto round_trip = [&]<class T>(std::array<T, 6> values) {
    write_npy(folder / "a.npy", shape, std::span<const T>(values));
    const NpyArray array = NpyArray::open(folder / "a.npy");
    CHECK(array.type() == npy_type<T>);
    CHECK(std::equal(values.begin(), values.end(), array.as<T>().begin()));
    CHECK(std::vector<std::int64_t>(array.shape().begin(), array.shape().end()) ==
          std::vector<std::int64_t>{2, 3});
    CHECK(array.to_doubles()[5] == static_cast<double>(values[5]));
  };
  round_trip(std::array<std::uint8_t, 6>{1, 2, 3, 4, 5, 255});
  round_trip(std::array<std::uint16_t, 6>{1, 2, 3, 4, 5, 65535});
  round_trip(std::array<std::int16_t, 6>{1, 2, 3, 4, 5, -6});
  round_trip(std::array<std::int32_t, 6>{1, 2, 3, 4, 5, -70000});
  round_trip(std::array<std::int64_t, 6>{1, 2, 3, 4, 5, -(1LL << 40)});
  round_trip(std::array<std::uint32_t, 6>{1, 2, 3, 4, 5, 4294967295});
  round_trip(std::array<std::uint64_t, 6>{1, 2, 3, 4, 5, 1ULL << 60});
  round_trip(std::array<std::int8_t, 6>{1, 2, 3, 4, 5, -128});
  round_trip(std::array<float, 6>{1, 2, 3, 4, 5, 0.5F});
  round_trip(std::array<double, 6>{1, 2, 3, 4, 5, 0.1});
}

TEST_CASE("format versions 1 to 3, scalars, empty arrays and half floats are read") {
  const TemporaryFolder folder;
  for (const char version : {'\1', '\2', '\3'}) {
    const auto file = folder.write(
        "a.npy", npy_file(literal("<u2", "(2,)"), bytes_of_values<std::uint16_t>({7, 8}), version));
    CHECK(NpyArray::open(file).as<std::uint16_t>()[1] == 8);
  }
  CHECK(
      NpyArray::open(folder.write("s.npy", npy_file(literal("|u1", "()"), "\x05"))).to_doubles() ==
      std::vector<double>{5});
  CHECK(NpyArray::open(folder.write("e.npy", npy_file(literal("<f8", "(0, 3)"), ""))).elements() ==
        0);
  // binary16: 1.0, -2.0, the least subnormal 2^-24, infinity.
  const auto half = NpyArray::open(folder.write(
      "h.npy", npy_file(literal("<f2", "(4,)"),
                        bytes_of_values<std::uint16_t>({0x3c00, 0xc000, 0x0001, 0x7c00}))));
  CHECK(half.to_doubles() == std::vector<double>{1, -2, 0x1p-24, INFINITY});
}

TEST_CASE("arrays in Fortran order and of big-endian numbers are those in C order") {
  const TemporaryFolder folder;
  // [[1, 2, 3], [4, 5, 6]], column by column.
  const auto columns =
      folder.write("f.npy", npy_file(literal("<u2", "(2, 3)", "True"),
                                     bytes_of_values<std::uint16_t>({1, 4, 2, 5, 3, 6})));
  CHECK(NpyArray::open(columns).to_doubles() == std::vector<double>{1, 2, 3, 4, 5, 6});
  const NpyArray open = NpyArray::open(columns);
  CHECK(std::ranges::equal(open.as<std::uint16_t>(), std::array{1, 2, 3, 4, 5, 6}));
  const auto big = folder.write(
      "b.npy", npy_file(literal(">i4", "(2,)"), std::string("\0\0\1\0\xff\xff\xff\xfe", 8)));
  CHECK(NpyArray::open(big).to_doubles() == std::vector<double>{256, -2});
  const auto truth =
      folder.write("t.npy", npy_file(literal("|b1", "(3,)"), std::string("\1\0\1", 3)));
  CHECK(NpyArray::open(truth).to_doubles() == std::vector<double>{1, 0, 1});
  const auto empty = folder.write("e.npy", npy_file(literal("<f8", "(0, 3)", "True"), ""));
  CHECK(NpyArray::open(empty).to_doubles().empty());
}

TEST_CASE("an .npy file that cannot be meant is refused with one line") {
  const TemporaryFolder folder;
  const auto refused = [&](const std::string& text) {
    const std::string message = config_error([&] { NpyArray::open(folder.write("a.npy", text)); });
    CHECK_THAT(message, Contains("a.npy: ") && !Contains("\n"));
    return message;
  };
  const std::string four(4, '\0');
  CHECK_THAT(refused("PK\x03\x04 not this"), Contains("not an .npy file"));
  CHECK_THAT(refused("\x93NUM"), Contains("not an .npy file"));
  CHECK_THAT(refused(std::string("\x93NUMPY\1", 7)), Contains("ends inside its header"));
  CHECK_THAT(refused(std::string("\x93NUMPY\1\0\xff\xff{", 11)),
             Contains("ends inside its header"));
  CHECK_THAT(refused(npy_file(literal("|u1", "(4,)"), four, 4)), Contains("version 4"));
  CHECK_THAT(refused(npy_file(literal("|O", "(4,)"), four)), Contains("type '|O'"));
  CHECK_THAT(refused(npy_file(literal("<c8", "(1,)"), four)), Contains("type '<c8'"));
  CHECK_THAT(refused(npy_file(literal("", "(1,)"), four)), Contains("type ''"));
  CHECK_THAT(refused(npy_file(literal("|u1", "(5,)"), four)), Contains("4 bytes of data"));
  CHECK_THAT(refused(npy_file(literal("|u1", "(3,)"), four)), Contains("4 bytes of data"));
  CHECK_THAT(refused(npy_file(literal("<f8", "(4294967296, 4294967296)"), four)),
             Contains("too large"));
  CHECK_THAT(refused(npy_file(literal("|u1", "(9223372036854775807, 2)"), four)),
             Contains("too large"));
  CHECK_THAT(refused(npy_file(literal("|u1", "(99999999999999999999,)"), four)),
             Contains("malformed shape"));
  CHECK_THAT(refused(npy_file(literal("|u1", "(-4,)"), four)), Contains("malformed shape"));
  CHECK_THAT(refused(npy_file(literal("|u1", "(4)"), four)), Contains("malformed shape"));
  CHECK_THAT(refused(npy_file(literal("|u1", "[4]"), four)), Contains("'(' expected"));
  CHECK_THAT(refused(npy_file(literal("|u1", "(4,)") + "x", four)), Contains("after its header"));
  CHECK_THAT(refused(npy_file("{'descr': '|u1', 'shape': (4,)}", four)), Contains("without"));
  CHECK_THAT(refused(npy_file("{'descr': '|u1', 'descr': '|u1'}", four)), Contains("twice"));
  CHECK_THAT(refused(npy_file("{'descr': [('a', '<i4')], 'shape': (1,)}", four)),
             Contains("structured"));
  CHECK_THAT(refused(npy_file("{descr: '|u1'}", four)), Contains("a string expected"));
  CHECK_THAT(refused(npy_file(literal("|u1", "(4,)", "Maybe"), four)),
             Contains("True or False expected"));
}

TEST_CASE("what is no readable file is refused at once") {
  const TemporaryFolder folder;
  const auto refused = [&](const std::string& name) {
    return config_error([&] { NpyArray::open(folder / name); });
  };
  CHECK_THAT(refused("absent.npy"), Contains("No such file"));
  folder.write("empty.npy", "");
  CHECK_THAT(refused("empty.npy"), Contains("is empty"));
  std::filesystem::create_directory(folder / "folder.npy");
  CHECK_THAT(refused("folder.npy"), Contains("not a regular file"));
  REQUIRE(::mkfifo((folder / "pipe.npy").c_str(), 0600) == 0);
  CHECK_THAT(refused("pipe.npy"), Contains("not a regular file"));
}

TEST_CASE("a 10 GB trace opens without being read") {
  const TemporaryFolder folder;
  // 10^8 rows of 24 layers, top-4 of 32: a hole in the file reads as zeros, so that only the
  // checked ends need real rows.
  constexpr std::int64_t rows = 100'000'000, row_bytes = 96;
  const std::string header = npy_file(literal("|u1", "(100000000, 24, 4)"), "");
  std::string end_rows;
  for (int group = 0; group < 4096 * 24; ++group) end_rows += {0, 1, 2, 3};
  const auto file = folder.write("topk_ids.npy", header + end_rows);
  std::filesystem::resize_file(file,
                               header.size() + std::size_t{rows * row_bytes} - end_rows.size());
  std::ofstream(file, std::ios::binary | std::ios::app) << end_rows;
  folder.write("requests.jsonl", R"({"row_start": 0, "num_tokens": 100000000, "prompt_rows": 0})");
  folder.write("meta.json",
               R"({"format": "moesim-routing-trace", "version": 1, "model": "big",
                   "num_experts": 32, "experts_per_token": 4, "ids": "logical",
                   "layer_ids": [0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23],
                   "phases": ["decode"]})");
  const long before = most_memory();
  const RoutingTrace trace = RoutingTrace::open(folder.path());
  CHECK(most_memory() - before < 64 * 1024);
  CHECK(trace.tokens() == rows);
  // Row 4096 lies in the hole, whose zeros name one expert four times.
  CHECK_THAT(config_error([&] { trace.check_ids(); }),
             Contains("row 4096, layer 0: expert 0 twice"));
}

TEST_CASE("a long trace streams through without staying in memory") {
  // A hole of 264 MB: every token picks the one expert.
  constexpr std::int64_t rows = 33'000'000, row_bytes = 8;
  const TemporaryFolder folder;
  const std::string header = npy_file(literal("<i4", fmt::format("({}, 2, 1)", rows)), "");
  std::filesystem::resize_file(folder.write("topk_ids.npy", header),
                               header.size() + std::size_t{rows * row_bytes});
  folder.write("requests.jsonl",
               fmt::format(R"({{"row_start": 0, "num_tokens": {}, "prompt_rows": 0}})", rows));
  folder.write("meta.json",
               R"({"format": "moesim-routing-trace", "version": 1, "model": "big",
                   "num_experts": 1, "experts_per_token": 1, "ids": "logical",
                   "layer_ids": [0, 1], "phases": ["decode"]})");
  const long before = most_memory();
  const RoutingTrace trace = RoutingTrace::open(folder.path());
  trace.check_ids();
  CHECK(trace.expert_counts() == std::vector<std::int64_t>{rows, rows});
  CHECK(most_memory() - before < 160 * 1024);
}

TEST_CASE("a trace is read as it was written") {
  const TemporaryFolder folder;
  const RoutingTrace written = small_trace();
  write_trace(written, folder / "trace");
  const RoutingTrace read = RoutingTrace::open(folder / "trace");
  CHECK(read.tokens() == 5);
  CHECK(read.layers() == 2);
  CHECK(read.meta().layer_ids == std::vector{1, 2});
  CHECK(read.meta().source == "hand-written");
  CHECK(read.recorded("prefill"));
  CHECK(read.requests().size() == 3);
  CHECK(read.requests()[1].row_start == 2);
  CHECK(read.requests()[1].has_repetition);
  CHECK(read.workloads()[static_cast<std::size_t>(read.requests()[1].workload)] == "math");
  CHECK(read.requests()[2].decode_rows() == 0);
  CHECK(read.expert_counts() == written.expert_counts());
  // Nothing half-written is left behind.
  const std::filesystem::directory_iterator files(folder / "trace");
  CHECK(std::distance(begin(files), end(files)) == 3);
}

TEST_CASE("ids of more than 256 experts take two bytes each and come back as they were") {
  const TraceMeta meta = test::trace_meta("wide", 300, 2, {0});
  const RoutingTrace written(meta, {"any"}, {{0, 2, 0, 0, false}}, {0, 299, 256, 1});
  const TemporaryFolder folder;
  write_trace(written, folder / "trace");
  CHECK(NpyArray::open(folder / "trace/topk_ids.npy").type() == NpyType::u2);
  std::vector<std::int64_t> expected(300);
  for (const std::size_t expert : {0U, 1U, 256U, 299U}) expected[expert] = 1;
  CHECK(written.expert_counts() == expected);
  CHECK(RoutingTrace::open(folder / "trace").expert_counts() == expected);
}

TEST_CASE("what cannot be written is named, and nothing half-written is left") {
  const TemporaryFolder folder;
  const std::array<double, 1> values{1};
  CHECK_THAT(config_error([&] {
               write_npy(folder / "absent/a.npy", std::array<std::int64_t, 1>{1},
                         std::span<const double>(values));
             }),
             Contains("absent/a.npy: cannot be written: No such file"));
  folder.write("file", "");
  CHECK_THAT(config_error([&] { write_trace(small_trace(), folder / "file/trace"); }),
             Contains("file/trace: cannot be made"));
  std::filesystem::create_directories(folder / "trace/topk_ids.npy");
  CHECK_THAT(config_error([&] { write_trace(small_trace(), folder / "trace"); }),
             Contains("topk_ids.npy: cannot be written"));
  const std::filesystem::directory_iterator files(folder / "trace");
  CHECK(std::distance(begin(files), end(files)) == 1);
}

TEST_CASE("expert counts are those of the requests asked for") {
  const RoutingTrace trace = small_trace();
  // Layer 1 rows: 01 02 01 30 01; layer 2 rows: 23 23 10 23 32.
  CHECK(trace.expert_counts() == std::vector<std::int64_t>{5, 3, 1, 1, 1, 1, 4, 4});
  const std::vector<std::size_t> second{1};
  CHECK(trace.expert_counts(second) == std::vector<std::int64_t>{1, 1, 0, 0, 1, 1, 0, 0});
  CHECK(trace.with_requests({trace.requests()[1]}).expert_counts() == trace.expert_counts(second));
}

TEST_CASE("a good trace opens, and each fault is named with its file and line") {
  const std::string ids = ids_file({0, 1, 2, 3, 0, 1, 2, 3});
  CHECK(open_error(good_meta, good_requests, ids).empty());

  CHECK_THAT(open_error(good_meta, "\n" + good_requests + "{\"row_start\": 1}\n", ids),
             Contains("requests.jsonl:3") && Contains("num_tokens"));
  CHECK_THAT(open_error(good_meta, good_requests + "[1]\n", ids),
             Contains("requests.jsonl:2: is not a JSON object"));
  CHECK_THAT(open_error(good_meta, good_requests + good_requests, ids),
             Contains("requests.jsonl:2: row 0 also belongs to the request of line 1"));
  CHECK_THAT(open_error(good_meta, R"({"row_start": 1, "num_tokens": 2, "prompt_rows": 0})", ids),
             Contains("requests.jsonl:1") && Contains("rows 1 to 2 of a trace of 2 rows"));
  CHECK_THAT(open_error(good_meta, R"({"row_start": 0, "num_tokens": 2, "prompt_rows": 3})", ids),
             Contains("prompt_rows 3 exceeds num_tokens 2"));
  CHECK_THAT(open_error(good_meta, R"({"row_start": -1, "num_tokens": 2, "prompt_rows": 0})", ids),
             Contains("row_start"));
  CHECK_THAT(open_error(good_meta, "\n", ids), Contains("holds no request"));

  CHECK_THAT(open_error(good_meta, good_requests, ids_file({0, 1, 2, 3, 0, 1, 2, 4})),
             Contains("topk_ids.npy: row 1, layer 2: expert 4; ids are 0 to 3"));
  CHECK_THAT(open_error(good_meta, good_requests, ids_file({0, 1, 2, 3, 3, 3, 2, 1})),
             Contains("row 1, layer 1: expert 3 twice"));
  CHECK_THAT(open_error(good_meta, good_requests,
                        npy_file(literal("<i4", "(2, 2, 2)"),
                                 bytes_of_values<std::int32_t>({0, 1, 2, 3, 0, 1, 2, -1}))),
             Contains("row 1, layer 2: expert -1; ids are 0 to 3"));
  CHECK_THAT(open_error(good_meta, good_requests,
                        npy_file(literal("<i2", "(1, 2, 2)"), std::string(8, '\0'))),
             Contains("type i2; save them as u1, u2 or i4"));
  CHECK_THAT(open_error(good_meta, good_requests,
                        npy_file(literal("|u1", "(1, 2, 3)"), std::string(6, '\0'))),
             Contains("shape (1, 2, 3)") && Contains("[tokens, 2 layers, 2 ids]"));
}

TEST_CASE("a trace's meta.json is checked") {
  const auto with = [](const std::string& key, const Json& value) {
    Json meta = Json::parse(good_meta);
    meta[key] = value;
    return open_error(meta.dump(), good_requests, ids_file({0, 1, 2, 3, 0, 1, 2, 3}));
  };
  CHECK(with("commit", "abc").empty());  // recorders note what they like
  CHECK_THAT(with("experts_per_token", 5), Contains("5 experts per token of 4 experts"));
  CHECK_THAT(with("ids", "physical"), Contains("/ids"));
  CHECK_THAT(with("version", 2), Contains("/version"));
  CHECK_THAT(with("format", "other"), Contains("/format"));
  CHECK_THAT(with("phases", {"encode"}), Contains("one of: prefill, decode"));
  CHECK_THAT(with("layer_ids", Json::array()), Contains("names no layer"));
  CHECK_THAT(with("layer_ids", {1, 2, 3}), Contains("shape (2, 2, 2)"));
  const TemporaryFolder folder;
  CHECK_THAT(config_error([&] { RoutingTrace::open(folder / "absent"); }),
             Contains("is not a directory"));
}

TEST_CASE("popularity skew of hand-worked counts") {
  // One layer of 8 experts: 1 1 1 1 1 1 1 9, mean 2: max/mean 4.5; variance (7*1 + 49)/8 = 7;
  // the hottest eighth is one expert with 9/16; Gini = 2*(28 + 72)/(8*16) - 9/8 = 0.4375.
  const std::vector<std::int64_t> counts{1, 1, 9, 1, 1, 1, 1, 1};
  const PopularitySkew skew = popularity_skew(counts, 8);
  CHECK(skew.max_over_mean.mean == 4.5);
  CHECK(skew.min_over_mean.mean == 0.5);
  CHECK_THAT(skew.variation.mean, WithinRel(std::sqrt(7.0) / 2, 1e-12));
  CHECK(skew.top_eighth_share.mean == 9.0 / 16);
  CHECK_THAT(skew.gini.mean, WithinRel(0.4375, 1e-12));
}

TEST_CASE("layers that choose alike move as one") {
  // Four requests of one token; 1 of 4 experts in each layer. A batch of two activates one expert
  // or two, in layers 0 and 1 alike; in layer 2 always two.
  const auto ratio = [](std::vector<std::uint16_t> ids) {
    const TraceMeta meta = test::trace_meta("by hand", 4, 1, {0, 1, 2});
    const RoutingTrace trace(meta, {"a"}, {{0, 1, 0, 0}, {1, 1, 0, 0}, {2, 1, 0, 0}, {3, 1, 0, 0}},
                             std::move(ids));
    const std::array batches{2};
    return distinct_experts(trace, batches, 1)[0].variance_ratio;
  };
  CHECK_THAT(ratio({0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1}), WithinRel(3.0, 1e-9));
  CHECK_THAT(ratio({0, 0, 0, 0, 0, 1, 1, 1, 2, 1, 1, 3}), WithinRel(2.0, 1e-9));
}

TEST_CASE("statistics of a trace small enough to work by hand") {
  const RoutingTrace trace = small_trace();
  const std::array batches{1, 2};
  const auto distinct = distinct_experts(trace, batches, 1);
  CHECK(distinct[0].decode == 2);
  CHECK(distinct[0].variance_ratio == 1);  // a token always activates two
  CHECK(distinct[0].uniform == 2);
  CHECK_THAT(distinct[0].independent, WithinRel(2.0, 1e-12));
  // Consecutive rows of a request: (01,02), (30,01) in layer 1 are 3 distinct; in layer 2 (23,23)
  // and (23,32) are 2.
  CHECK(*distinct[1].chunk == 2.5);
  CHECK_THAT(distinct[1].uniform, WithinRel(4 * (1 - 0.25), 1e-12));
  const std::array lags{1, 2};
  const TokenOverlap overlap = token_overlap(trace, lags, 1);
  CHECK(overlap.lags[0].share->min == 0.5);
  CHECK(overlap.lags[0].share->max == 1.0);
  CHECK_FALSE(overlap.lags[1].share);
  CHECK(*overlap.same_request == 0.75);
  const std::array ranks{2, 3};
  const std::array batch{3};
  const auto imbalance = rank_imbalance(trace, ranks, batch, 1);
  REQUIRE(imbalance.size() == 1);  // 3 ranks do not divide 4 experts
  CHECK(imbalance[0].max_over_mean >= 1);
}

TEST_CASE("DeepSeek-V2-Lite's recorded routing has its known statistics") {
  const auto trace = shared_trace("deepseek-v2-lite");
  if (!trace) return;
  CHECK(trace->tokens() == 33'279);
  CHECK(trace->requests().size() == 213);
  const PopularitySkew skew = popularity_skew(trace->expert_counts(), 64);
  CHECK_THAT(skew.max_over_mean.mean, WithinAbs(2.73, 0.005));
  CHECK_THAT(skew.max_over_mean.max, WithinAbs(3.42, 0.005));
  CHECK_THAT(skew.variation.mean, WithinAbs(0.51, 0.005));
  CHECK_THAT(skew.top_eighth_share.mean, WithinAbs(0.25, 0.005));
  CHECK_THAT(skew.gini.mean, WithinAbs(0.27, 0.005));
  const std::array batches{8, 64};
  const auto distinct = distinct_experts(*trace, batches, 1);
  CHECK_THAT(distinct[0].decode, WithinRel(31.9, 0.02));
  CHECK_THAT(distinct[0].independent, WithinRel(32.8, 0.002));
  CHECK_THAT(distinct[0].uniform, WithinRel(34.9, 0.002));
  CHECK_THAT(*distinct[0].chunk, WithinRel(26.3, 0.02));
  CHECK_THAT(distinct[1].decode, WithinRel(62.0, 0.01));
  CHECK_THAT(distinct[0].variance_ratio, WithinRel(11.4, 0.05));
  const std::array ranks{8};
  const std::array batch{64};
  CHECK_THAT(rank_imbalance(*trace, ranks, batch, 1)[0].max_over_mean, WithinRel(1.378, 0.015));
  const std::array lags{1, 128};
  const TokenOverlap overlap = token_overlap(*trace, lags, 1);
  CHECK_THAT(overlap.lags[0].share->mean, WithinAbs(0.279, 0.005));
  CHECK_THAT(overlap.lags[1].share->mean, WithinAbs(0.160, 0.005));
  CHECK_THAT(*overlap.same_request, WithinAbs(0.167, 0.005));
  CHECK_THAT(*overlap.different_requests, WithinAbs(0.118, 0.005));
  CHECK_THAT(overlap.independent, WithinAbs(0.118, 0.0006));
  const auto layers = layer_predictability(*trace, 1);
  CHECK_THAT(layers->recall_k.mean, WithinAbs(0.57, 0.02));
  CHECK_THAT(layers->recall_2k.mean, WithinAbs(0.77, 0.02));
  CHECK_THAT(layers->popularity_recall_k, WithinAbs(0.20, 0.02));
}

TEST_CASE("gpt-oss-20b's recorded routing has its known statistics") {
  const auto trace = shared_trace("gpt-oss-20b");
  if (!trace) return;
  CHECK(trace->tokens() == 215'438);
  CHECK(trace->requests().size() == 703);
  const PopularitySkew skew = popularity_skew(trace->expert_counts(), 32);
  CHECK_THAT(skew.max_over_mean.mean, WithinAbs(2.62, 0.005));
  CHECK_THAT(skew.variation.mean, WithinAbs(0.71, 0.005));
  CHECK_THAT(skew.top_eighth_share.mean, WithinAbs(0.28, 0.005));
  CHECK_THAT(skew.gini.mean, WithinAbs(0.40, 0.005));
  CHECK_THAT(skew.min_over_mean.mean, WithinAbs(0.04, 0.005));
  const std::array batches{8, 64};
  const auto distinct = distinct_experts(*trace, batches, 1);
  CHECK_THAT(distinct[0].decode, WithinRel(18.1, 0.02));
  CHECK_THAT(*distinct[0].chunk, WithinRel(12.9, 0.02));
  CHECK_THAT(distinct[1].decode, WithinRel(29.1, 0.01));
  CHECK_THAT(distinct[1].independent, WithinRel(29.0, 0.002));
  CHECK_THAT(distinct[0].variance_ratio, WithinRel(8.3, 0.05));
  const std::array ranks{8};
  const std::array batch{64};
  CHECK_THAT(rank_imbalance(*trace, ranks, batch, 1)[0].max_over_mean, WithinRel(1.510, 0.015));
  const std::array lags{1, 8};
  const TokenOverlap overlap = token_overlap(*trace, lags, 1);
  CHECK_THAT(overlap.lags[0].share->mean, WithinAbs(0.440, 0.005));
  CHECK_THAT(overlap.lags[0].share->max, WithinAbs(0.59, 0.01));
  CHECK_THAT(overlap.lags[1].share->mean, WithinAbs(0.350, 0.005));
  CHECK_THAT(*overlap.same_request, WithinAbs(0.315, 0.005));
  CHECK_THAT(*overlap.different_requests, WithinAbs(0.191, 0.005));
  const auto layers = layer_predictability(*trace, 1);
  CHECK_THAT(layers->recall_k.mean, WithinAbs(0.62, 0.02));
  CHECK_THAT(layers->recall_2k.mean, WithinAbs(0.83, 0.02));
}

TEST_CASE("the shipped sample is a valid synthetic trace of gpt-oss-20b's shape") {
  const RoutingTrace trace = RoutingTrace::open(source_dir() / "traces" / "samples" / "small");
  CHECK(trace.meta().synthetic);
  CHECK(trace.layers() == 24);
  CHECK(trace.num_experts() == 32);
  CHECK(trace.experts_per_token() == 4);
  CHECK(trace.workloads().size() == 4);
  CHECK(trace.recorded("prefill"));
  CHECK(trace.recorded("decode"));
}

}  // namespace moesim::test_traces
