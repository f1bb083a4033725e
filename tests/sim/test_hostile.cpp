// SPDX-License-Identifier: Apache-2.0
// Is input that is written wrong on purpose refused in one line, without a crash and without
// taking all memory? What the fuzz targets found stands here too.
#include <cmath>

#include <fmt/format.h>
#include <sys/stat.h>

#include "hardware/parse_json.hpp"
#include "sim/placement/files/placement_file.hpp"
#include "sim/report/report.hpp"
#include "sim/serving/simulator.hpp"
#include "tests/support.hpp"
#include "tests/temporary.hpp"
#include "tests/tiny_experiment.hpp"
#include "traces/expert_load.hpp"
#include "traces/npy.hpp"
#include "traces/requests/request_trace.hpp"
#include "traces/routing_trace.hpp"

namespace moesim::test_hostile {
namespace {

using Catch::Matchers::Contains;
using test::TemporaryFolder;

// The message of the refusal, which must be one line.
template <class Fn>
std::string refusal(Fn&& fn) {
  std::string message = test::config_error(fn);
  CHECK(message.find('\n') == std::string::npos);
  return message;
}

std::string nested(std::size_t depth) { return std::string(depth, '[') + std::string(depth, ']'); }

// An .npy file of version 1 with this shape and 8 bytes of u1 behind its header.
std::string npy_of_shape(std::string_view shape, std::string_view type = "|u1") {
  std::string header =
      fmt::format("{{'descr': '{}', 'fortran_order': False, 'shape': {}, }}", type, shape);
  header.append(127 - (10 + header.size()) % 128, ' ');
  header += '\n';
  std::string file = "\x93NUMPY";
  file +=
      {'\1', '\0', static_cast<char>(header.size() & 255), static_cast<char>(header.size() >> 8)};
  return file + header + std::string(8, '\1');
}

TEST_CASE("JSON nested a million deep is refused, not followed") {
  CHECK(parse_json(nested(64)).is_array());
  CHECK_THAT(refusal([] { parse_json(nested(65)); }), Contains("nested deeper than 64"));
  const TemporaryFolder here;
  for (const std::string& text : {nested(1'000'000), std::string(1'000'000, '['),
                                  std::string(1'000'000, '{'), "{\"a\": " + nested(70) + "}"}) {
    const auto file = here.write("deep.json", text);
    CHECK_THAT(refusal([&] { ConfigNode::from_file(file); }), Contains("nested deeper than 64"));
    CHECK_THAT(refusal([&] { read_request_trace(file); }), Contains("is not a request trace"));
    CHECK_THAT(refusal([&] { read_placement(file); }), Contains("deep.json"));
  }
  // Brackets in texts open nothing, an escaped quote does not end one.
  const Json text = std::string(500, '[') + "\"" + std::string(500, '{');
  CHECK(parse_json(text.dump()) == text);
  Json config = Json::object();
  apply_override(config, "/a=" + nested(1000));
  CHECK(config.at("a").is_string());
}

TEST_CASE("what is no file is refused by every reader, and none waits for a pipe") {
  const TemporaryFolder here;
  const auto empty = here.write("empty", "");
  const auto pipe = here / "pipe", loop = here / "loop", nothing = here / "nothing";
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  std::filesystem::create_symlink(loop, loop);
  std::filesystem::create_directory(here / "folder");
  for (const auto& path : {empty, pipe, loop, nothing, here / "folder"}) {
    CAPTURE(path.string());
    CHECK_THAT(refusal([&] { ConfigNode::from_file(path); }), Contains(path.string()));
    CHECK_THAT(refusal([&] { NpyArray::open(path); }), Contains(path.string()));
    CHECK_THAT(refusal([&] { read_request_trace(path); }), Contains(path.string()));
    CHECK_THAT(refusal([&] { read_placement(path); }), Contains(path.string()));
    CHECK_THAT(refusal([&] { read_load(path); }), Contains(path.string()));
    CHECK_THAT(refusal([&] { RoutingTrace::open(path); }), Contains(path.string()));
  }
}

TEST_CASE("a symbolic link to a file is as good as the file") {
  const TemporaryFolder here;
  const auto file = here.write("load.json", R"({"load": [[1, 2]]})");
  std::filesystem::create_symlink(file, here / "link.json");
  CHECK(read_load(here / "link.json") == read_load(file));
}

TEST_CASE("a JSON file larger than memory is not read") {
  const TemporaryFolder here;
  const auto file = here.write("huge.json", "{}");
  std::filesystem::resize_file(file, std::uintmax_t{1} << 40);  // sparse
  CHECK_THAT(refusal([&] { ConfigNode::from_file(file); }), Contains("at most 1 GiB"));
}

TEST_CASE("shapes that no file can hold are refused before anything is multiplied out") {
  const TemporaryFolder here;
  const auto error = [&](std::string_view shape, std::string_view type = "|u1") {
    return refusal([&] { NpyArray::open(here.write("a.npy", npy_of_shape(shape, type))); });
  };
  CHECK(error("(8,)").empty());
  CHECK_THAT(error("(1152921504606846976,)"), Contains("needs 1152921504606846976"));  // 2^60
  CHECK_THAT(error("(4294967296, 4294967296)"), Contains("too large for any file"));   // 2^64
  CHECK_THAT(error("(4294967296, 4294967296, 0)"), Contains("too large for any file"));
  CHECK_THAT(error("(2305843009213693952,)", "<f8"), Contains("too large for any file"));
  CHECK_THAT(error("(99999999999999999999,)"), Contains("malformed shape"));
  CHECK_THAT(error("(-8,)"), Contains("malformed shape"));
  CHECK_THAT(error("(8"), Contains("malformed"));
  CHECK_THAT(error("(9,)"), Contains("holds 8 bytes"));
  CHECK_THAT(error("(7,)"), Contains("holds 8 bytes"));
  CHECK_THAT(error("(1,)", "|O"), Contains("elements of type '|O'"));
}

TEST_CASE("every way to cut an .npy file short is refused") {
  const TemporaryFolder here;
  const std::string whole = npy_of_shape("(8,)");
  for (std::size_t bytes = 0; bytes < whole.size(); ++bytes) {
    CAPTURE(bytes);
    const auto file = here.write("cut.npy", whole.substr(0, bytes));
    REQUIRE(!refusal([&] { NpyArray::open(file); }).empty());
  }
}

TEST_CASE("a routing trace with impossible rows or ids is refused") {
  const TemporaryFolder here;
  here.write("meta.json", R"({"format": "moesim-routing-trace", "version": 1, "model": "x",
      "num_experts": 4, "experts_per_token": 2, "layer_ids": [0, 1], "ids": "logical",
      "phases": ["decode"]})");
  const auto error = [&](std::string_view request, std::initializer_list<std::int32_t> ids) {
    here.write("requests.jsonl", request);
    const std::array<std::int64_t, 3> shape{std::ssize(ids) / 4, 2, 2};
    const std::vector<std::int32_t> flat(ids);
    write_npy<std::int32_t>(here / "topk_ids.npy", shape, flat);
    return refusal([&] { RoutingTrace::open(here / ""); });
  };
  const std::string good = R"({"row_start": 0, "num_tokens": 1, "prompt_rows": 0})";
  CHECK(error(good, {0, 1, 2, 3}).empty());
  CHECK_THAT(error(good, {0, 1, 2, -1}), Contains("row 0, layer 1: expert -1; ids are 0 to 3"));
  CHECK_THAT(error(good, {0, 1, 2, 1 << 30}), Contains("ids are 0 to 3"));
  CHECK_THAT(error(good, {0, 1, 2, 2}), Contains("expert 2 twice"));
  for (const char* tokens : {"1152921504606846976", "9e15", "2"}) {
    CHECK_THAT(
        error(fmt::format(R"({{"row_start": 0, "num_tokens": {}, "prompt_rows": 0}})", tokens),
              {0, 1, 2, 3}),
        Contains("requests.jsonl:1"));
  }
  CHECK_THAT(error(R"({"row_start": -1, "num_tokens": 1, "prompt_rows": 0})", {0, 1, 2, 3}),
             Contains("row_start: -1 is out of range"));
  CHECK_THAT(error(good + "\n" + nested(100), {0, 1, 2, 3}), Contains("requests.jsonl:2"));
}

TEST_CASE("request traces with impossible times or lengths are refused") {
  const TemporaryFolder here;
  const auto error = [&](std::string_view text) {
    return refusal([&] { read_request_trace(here.write("requests", text)); });
  };
  const auto azure = [](std::string_view time) {
    return fmt::format("TIMESTAMP,ContextTokens,GeneratedTokens\n{},1,1\n", time);
  };
  CHECK(error(azure("2023-11-16 18:15:46.6805900")).empty());
  CHECK_THAT(error(azure("9999-11-16 18:15:46")), Contains(":2: \"9999"));
  CHECK_THAT(error(azure("0000-01-01 00:00:00")), Contains("is not a time"));
  CHECK_THAT(error(azure("2023-02-30 00:00:00")), Contains("is not a time"));
  for (const char* zone : {"+", "+1", "+01:0", "+25:00", "-01:60", "+01:00x", "CET"})
    CHECK_THAT(error(azure("2023-11-16 18:15:46" + std::string(zone))), Contains("is not a time"));
  const std::string ours = "arrival_s,prompt_tokens,output_tokens\n";
  CHECK(error(ours + "-3e9,1,1\n3e9,1,1\n").empty());
  for (const char* time : {"nan", "inf", "-inf", "1e300", "9e9", "-9e9"}) {
    CHECK_THAT(error(ours + time + ",1,1\n"), Contains("is not a time in seconds"));
  }
  for (const char* tokens : {"0", "-1", "1152921504606846976", "1e30", "nan", "1.5"}) {
    CHECK_THAT(error(ours + "1," + tokens + ",1\n"), Contains("tokens"));
    CHECK_THAT(error(ours + "1,1," + tokens + "\n"), Contains("tokens"));
  }
}

TEST_CASE("a placement with impossible counts is refused") {
  const TemporaryFolder here;
  const auto error = [&](std::string_view text) {
    return refusal([&] { read_placement(here.write("placement", text)); });
  };
  CHECK_THAT(error(R"({"num_gpus": 1, "num_experts": 16777216, "experts_on_gpu": [[[0]]]})"),
             Contains("num_experts: 16777216 is out of range"));
  CHECK_THAT(error(R"({"num_gpus": 0, "num_experts": 1, "experts_on_gpu": [[]]})"),
             Contains("num_gpus: 0 is out of range"));
  CHECK_THAT(error(R"({"num_gpus": 1, "experts_on_gpu": [[[-1]]]})"), Contains("-1 is out of"));
  CHECK_THAT(error(R"({"num_gpus": 1, "experts_on_gpu": [[[1152921504606846976]]]})"),
             Contains("is out of range"));
  CHECK_THAT(error(npy_of_shape("(2, 4)")), Contains("give \"gpus\" next to the file"));
  std::string wide = npy_of_shape("(1, 1, 65544)");
  wide.append(65536, '\1');
  CHECK_THAT(error(wide), Contains("has 65544 experts; at most 65536"));
}

Json tiny(const std::string& set) { return test::tiny_experiment(Json::parse(set)); }

Experiment load(const Json& json) {
  TraceLibrary traces;
  return load_experiment(ConfigNode(json, test::source_dir() / "tests" / "hostile.json"), traces);
}

TEST_CASE("an experiment that no machine could hold, or no clock time, is refused") {
  const auto error = [](const std::string& set) { return refusal([&] { run(load(tiny(set))); }); };
  CHECK_THAT(error(R"({"workload": {"requests": 1e15}})"), Contains("requests: "));
  CHECK_THAT(error(R"({"workload": {"gating": {"requests": 1000000, "prompt_rows": 1000000}}})"),
             Contains("expert ids"));
  CHECK_THAT(error(R"({"workload": {"timeout": "1e30 s"}})"), Contains("longer than 720 h"));
  CHECK_THAT(error(R"({"failures": [{"gpu": 1, "at": "1e300 h"}]})"),
             Contains("longer than 720 h"));
  for (const char* type : {"poisson", "constant"}) {
    CHECK_THAT(
        error(fmt::format(
            R"({{"workload": {{"arrivals": {{"type": "{}", "rate": "1e-30 /s", "concurrency": null}}}}}})",
            type)),
        Contains("longer than the 60 days"));
  }
  Json slow = tiny("{}");
  const auto clusters = test::source_dir() / "hardware/clusters";
  slow["cluster"] = ConfigNode::from_file(clusters / "h100x16.json").json();
  slow["cluster"]["gpu"] = test::bare_gpu(clusters / "../gpus/h100.json");
  slow["cluster"]["gpu"]["hbm_bandwidth"] = "1e-9 B/s";
  CHECK_THAT(refusal([&] { run(load(slow)); }), Contains("beyond the 100 days"));
}

TEST_CASE("a client that would leave after the end of time stays to the end of the run") {
  const Report report =
      run(load(tiny(R"({"workload": {"cancellation": {"share": 1, "mean_after": "720 h"}}})")));
  CHECK(report.document()["metrics"]["completed"] == 120);
}

TEST_CASE("NaN and infinity are found wherever they stand in a report") {
  OrderedJson document = {{"a", {{"b", {1, 2.5, nullptr, "nan", true}}}},
                          {"c", OrderedJson::array()}};
  CHECK(all_numbers_finite(document));
  for (const double bad : {std::nan(""), HUGE_VAL, -HUGE_VAL}) {
    document["a"]["b"][1] = bad;
    CHECK_FALSE(all_numbers_finite(document));
    CHECK_FALSE(all_numbers_finite(OrderedJson(bad)));
  }
}

TEST_CASE("more GPUs or bytes than can be counted are refused") {
  const auto refused = [](const Json& set) {
    Json json = test::tiny_experiment(Json::object());
    const auto folder = test::source_dir() / "hardware";
    json["cluster"] = ConfigNode::from_file(folder / "clusters/h100x8.json").json();
    json["cluster"]["gpu"] = test::bare_gpu(folder / "gpus/h100.json");
    json["cluster"].merge_patch(set);
    return refusal([&] { test::load(json); });
  };
  CHECK(refused(Json::object()).empty());
  CHECK_THAT(refused({{"nodes", 1000000}, {"gpus_per_node", 1000000}}),
             Contains("/cluster/nodes: 1000000 nodes of 1000000 GPUs are 1000000000000 GPUs"));
  for (const char* capacity : {"1e16 B", "1e25 B", "1e30 B"}) {
    CHECK_THAT(refused({{"gpu", {{"hbm_capacity", capacity}}}}), Contains("at most 1 PB"));
  }
}

TEST_CASE("text that is not UTF-8 is refused where it comes in") {
  Json json = test::tiny_experiment(Json::object());
  for (const char* change :
       {"/workload/gating/preset=\xff", "/workload/gating/workloads=[\"\xff\"]", "/\xff=1"}) {
    CHECK_THAT(refusal([&] { apply_override(json, change); }), Contains("UTF-8"));
  }
}

}  // namespace
}  // namespace moesim::test_hostile
