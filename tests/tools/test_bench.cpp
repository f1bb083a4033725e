// SPDX-License-Identifier: Apache-2.0
// Is what benchmarks write read as they mean it, and refused where it says nothing?
#include <fmt/format.h>

#include "tests/support.hpp"
#include "tests/temporary.hpp"
#include "tools/bench/bench_result.hpp"

namespace moesim::test_bench {

using namespace moesim::test;
using Catch::Matchers::Contains;

namespace {

// As `vllm bench serve --save-result` writes it, with more or other values.
std::string vllm(const std::string& more) {
  Json result = Json::parse(R"({
    "date": "20260203-040506", "endpoint_type": "openai", "model_id": "m", "num_prompts": 200,
    "request_rate": "inf", "burstiness": 1.0, "max_concurrency": 8, "duration": 40.0,
    "completed": 200, "failed": 0, "total_input_tokens": 204800, "total_output_tokens": 25600,
    "request_throughput": 5.0, "output_throughput": 640.0, "total_token_throughput": 5760.0,
    "mean_ttft_ms": 40.0, "median_ttft_ms": 30.0, "mean_tpot_ms": 12.5, "median_tpot_ms": 12.0})");
  const Json changes = Json::parse(more);
  for (const auto& item : changes.items()) result[item.key()] = item.value();
  return result.dump();
}

// As AIPerf writes it, with this "input_config".
std::string aiperf(const std::string& config, const std::string& more = "{}") {
  Json result = Json::parse(R"({
    "request_throughput": {"unit": "requests/sec", "avg": 4.85},
    "request_latency": {"unit": "ms", "avg": 1640.0}, "request_count": {"avg": 200.0},
    "time_to_first_token": {"unit": "ms", "avg": 38.5, "p50": 31.5, "p99": 169.0},
    "inter_token_latency": {"unit": "ms", "avg": 12.5, "p50": 12.75},
    "output_sequence_length": {"avg": 128.0}, "input_sequence_length": {"avg": 1024.0},
    "was_cancelled": false, "error_summary": []})");
  result["input_config"] = Json::parse(config);
  const Json changes = Json::parse(more);
  for (const auto& item : changes.items()) result[item.key()] = item.value();
  return result.dump();
}

std::vector<BenchRun> read(const std::string& text, const std::string& name = "result.json") {
  const TemporaryFile file(name, text);
  return read_bench(file.path());
}
BenchRun only(const std::string& text) {
  const std::vector<BenchRun> runs = read(text);
  REQUIRE(runs.size() == 1);
  return runs.front();
}
std::string load(const std::string& text) { return load_text(only(text).load); }
std::string refused(const std::string& text) {
  return config_error([&] { read(text); });
}
std::string remarks(const std::string& text) {
  std::string all;
  for (const std::string& remark : only(text).remarks) all += remark + "\n";
  return all;
}

}  // namespace

TEST_CASE("a load is read wherever a benchmark writes it, as a number or a text") {
  const std::vector<std::pair<std::string, std::string>> loads{
      {vllm("{}"), "8 in flight"},
      {vllm(R"({"max_concurrency": "8"})"), "8 in flight"},
      {vllm(R"({"max_concurrency": 8, "request_rate": null})"), "8 in flight"},
      {vllm(R"({"max_concurrency": null})"), "all requests at once"},
      {vllm(R"({"max_concurrency": null, "request_rate": 4})"), "4 requests/s"},
      {vllm(R"({"max_concurrency": "None", "request_rate": "4.5"})"), "4.5 requests/s"},
      {vllm(R"({"request_rate": 100.0})"), "100 requests/s, at most 8 in flight"},
      {vllm(R"({"request_rate": 20, "burstiness": 0.5})"),
       "20 requests/s (gamma gaps), at most 8 in flight"},
      {aiperf(R"({"loadgen": {"concurrency": 8}})"), "8 in flight"},
      {aiperf(R"({"concurrency": "8"})"), "8 in flight"},
      {aiperf(R"({"request_rate": 8})"), "8 requests/s (equal gaps)"},
      {aiperf(R"({"loadgen": {"request_rate": 20.0, "request_rate_mode": "constant"}})"),
       "20 requests/s (equal gaps)"},
      {aiperf(R"({"loadgen": {"request_rate": 64.0, "concurrency": 8}})"),
       "64 requests/s, at most 8 in flight"},
      {aiperf(R"({"perf_analyzer": {"stimulus": {"concurrency": 8}}})"), "8 in flight"},
      {aiperf(R"({"perf_analyzer": {"stimulus": {"request_rate": 8.0}}})"),
       "8 requests/s (equal gaps)"},
      {aiperf(R"({"phases": [{"name": "warmup", "type": "concurrency", "concurrency": 2},
                             {"name": "profiling", "type": "concurrency", "concurrency": 8}]})"),
       "8 in flight"},
      {aiperf(R"({"benchmark": {"phases": [{"name": "profiling", "type": "gamma", "rate": 5,
                                            "smoothness": 2, "concurrency": 4}]}})"),
       "5 requests/s (gamma gaps), at most 4 in flight"}};
  for (const auto& [text, expected] : loads) {
    INFO(text);
    CHECK(load(text) == expected);
  }
  // Python writes an infinite rate so.
  std::string endless = vllm(R"({"max_concurrency": null})");
  endless.replace(endless.find("\"inf\""), 5, "Infinity");
  CHECK(load(endless) == "all requests at once");
  std::string even = vllm(R"({"max_concurrency": null, "request_rate": 5, "burstiness": "inf"})");
  CHECK(load(even) == "5 requests/s (equal gaps)");
  even.replace(even.find("\"inf\""), 5, "Infinity");
  CHECK(load(even) == "5 requests/s (equal gaps)");
  CHECK(load_text(read("[" + even + "," + endless + "]")[1].load) == "all requests at once");
}

TEST_CASE("gaps are simulated as the client that was measured spaced them") {
  const auto rescaled = [](const std::string& text) {
    return under_load_of(only(text), {{"workload", Json::object()}})
        .at("workload")
        .at("arrivals")
        .value("rescaled", false);
  };
  const std::string rate = R"({"max_concurrency": null, "request_rate": 20})";
  CHECK(rescaled(vllm(rate)));
  Json sglang = Json::parse(vllm(rate));
  sglang.erase("burstiness");
  CHECK_FALSE(rescaled(sglang.dump()));
  CHECK_FALSE(rescaled(aiperf(R"({"loadgen": {"request_rate": 20.0}})")));
}

TEST_CASE("a load that a file does not say, or that is none, is refused by its place") {
  const std::vector<std::pair<std::string, std::string>> wrong{
      {vllm(R"({"max_concurrency": null, "request_rate": null})"), "does not say its load"},
      {vllm(R"({"max_concurrency": 0})"), "max_concurrency is 0"},
      {vllm(R"({"max_concurrency": 2.5})"), "max_concurrency is 2.5"},
      {vllm(R"({"max_concurrency": "many"})"), "max_concurrency is \"many\""},
      {vllm(R"({"request_rate": 0})"), "request_rate is 0"},
      {vllm(R"({"request_rate": -1})"), "request_rate is -1"},
      {vllm(R"({"ramp_up_strategy": "linear"})"), "ramp_up_strategy"},
      {aiperf("{}"), "does not say its load"},
      {aiperf(R"({"loadgen": {"request_count": 200}})"), "does not say its load"},
      {aiperf(R"({"loadgen": {"fixed_schedule": true}})"), "fixed_schedule"},
      {aiperf(R"({"input": {"fixed_schedule": true}, "loadgen": {"concurrency": 1}})"),
       "fixed_schedule"},
      {vllm(R"({"request_rate": "trace"})"), "recorded times"},
      {vllm(R"({"max_concurrency": null, "max_concurrent_requests": 6})"),
       "recorded times (max_concurrent_requests 6 of 200)"},
      {R"({"timeslices": [)" + aiperf(R"({"loadgen": {"concurrency": 8}})") + "]}",
       "profile_export_aiperf.json"},
      {"\xFF\xFE{}", "is UTF-16; save it as UTF-8"},
      {"\x1F\x8B\x08{}", "is compressed by gzip; unpack it with gunzip"},
      {aiperf(R"({"loadgen": {"user_centric_rate": 3.0}})"), "user_centric"},
      {aiperf(R"({"phases": [{"name": "a", "kind": "profiling", "concurrency": 2},
                             {"name": "b", "kind": "profiling", "concurrency": 8}]})"),
       "2 phases"}};
  for (const auto& [text, words] : wrong) {
    INFO(text);
    const std::string error = refused(text);
    CHECK_THAT(error, Contains(words));
    CHECK_THAT(error, Contains("result.json: "));
    CHECK(error.find('\n') == error.npos);
  }
}

TEST_CASE("a table of figures is refused by the name of what has the load too") {
  CHECK_THAT(config_error([] { read("Metric,avg\nRequest Latency (ms),1640\n", "result.csv"); }),
             Contains("result.csv: is CSV; give the .json"));
}

TEST_CASE("counts that cannot be are refused, and figures that are none are said") {
  CHECK_THAT(refused(vllm(R"({"completed": 199.5})")), Contains("199.5 requests"));
  CHECK_THAT(refused(vllm(R"({"completed": -5})")), Contains("-5 requests"));
  CHECK_THAT(refused(vllm(R"({"completed": 0, "total_input_tokens": 0})")),
             Contains("no request was completed"));
  CHECK_THAT(refused(vllm(R"({"completed": 500})")),
             Contains("500 requests were completed of 200"));
  CHECK_THAT(refused(vllm(R"({"total_output_tokens": 100})")), Contains("0.5 tokens"));
  CHECK_THAT(refused(vllm(R"({"total_input_tokens": -5})")), Contains("-0.025 tokens"));
  CHECK_THAT(refused(vllm(R"({"total_input_tokens": 1000000000000000000})")), Contains("tokens"));
  CHECK_THAT(refused(vllm(R"({"median_tpot_ms": -0.2})")), Contains("median_tpot_ms is -0.2"));
  CHECK_THAT(refused(R"({"median_tpot_ms": 3})"), Contains("cannot be simulated"));
  CHECK_THAT(refused(R"({"mean_latency": 3})"), Contains("has no figure"));
  CHECK_THAT(refused("[1]"), Contains("has no figure"));
  // As trtllm-bench --report_json writes it.
  CHECK_THAT(refused(R"({"request_info": {"num_requests": 64, "avg_input_length": 128.0},
                         "performance": {"request_throughput_req_s": 5.0},
                         "streaming_metrics": {"avg_ttft_ms": 40.0, "avg_tpot_ms": 8.0}})"),
             Contains("result.json: is a report of trtllm-bench") && Contains("--concurrency"));
  CHECK_THAT(remarks(vllm(R"({"mean_ttft_ms": 0, "median_ttft_ms": null})")),
             Contains("mean_ttft_ms, median_ttft_ms"));
  CHECK(only(vllm(R"({"median_tpot_ms": "12.5"})")).figures.at("median_tpot_ms") == 12.5);
  // A request of one token has no time between tokens.
  CHECK(remarks(vllm(R"({"total_output_tokens": 200, "mean_tpot_ms": 0, "median_tpot_ms": 0})"))
            .empty());
}

TEST_CASE("failed and cancelled requests, and lengths and gaps of their own, are remarked") {
  CHECK(remarks(vllm("{}")).empty());
  CHECK_THAT(remarks(vllm(R"({"completed": 150, "failed": 50})")), Contains("50 requests failed"));
  CHECK_THAT(remarks(vllm(R"({"completed": 150})")), Contains("50 requests failed"));
  CHECK_THAT(remarks(vllm(R"({"input_lens": [10, 2038], "output_lens": [128, 128]})")),
             Contains("prompts had 10 to 2038 tokens"));
  CHECK_THAT(remarks(vllm(R"({"random_range_ratio": 0.8})")), Contains("random_range_ratio 0.8"));
  CHECK(remarks(vllm(R"({"burstiness": 1, "random_range_ratio": 0})")).empty());
  const std::string eight = R"({"loadgen": {"concurrency": 8}})";
  CHECK(remarks(aiperf(eight)).empty());
  CHECK_THAT(remarks(aiperf(eight, R"({"was_cancelled": true})")), Contains("was cancelled"));
  CHECK_THAT(remarks(aiperf(eight, R"({"error_request_count": {"avg": 84.0}})")),
             Contains("84 requests failed beside the 200"));
  CHECK_THAT(remarks(aiperf(eight, R"({"error_summary": [{"count": 8}, {"count": 4}]})")),
             Contains("12 requests failed beside the 200"));
  CHECK_THAT(remarks(aiperf(R"({"loadgen": {"concurrency": 8},
                                "input": {"conversation": {"turn": {"mean": 5}}}})")),
             Contains("turns of conversations"));
  CHECK_THAT(remarks(vllm(R"({"accept_length": 2.7})")), Contains("drafted, 2.7 tokens a step"));
  CHECK_THAT(remarks(aiperf(eight, R"({"spec_decode_acceptance_length": {"avg": 3.2}})")),
             Contains("drafted, 3.2 tokens a step"));
  // SGLang's --output-details: "failed" and "num_prompts" are not said, errors are.
  Json detailed = Json::parse(vllm(R"({"errors": ["", "Timeout", "", "Refused"],
                                       "output_lens": [128, 0, 128, 0]})"));
  detailed.erase("failed");
  detailed.erase("num_prompts");
  CHECK_THAT(remarks(detailed.dump()),
             Contains("2 requests failed") && !Contains("outputs had 0 to 128"));
  CHECK_THAT(remarks(vllm(R"({"dataset_name": "generated-shared-prefix"})")),
             Contains("prefixes in common (generated-shared-prefix)"));
  CHECK_THAT(remarks(aiperf(R"({"loadgen": {"concurrency": 8},
                                "input": {"prompt": {"prefix_prompt": {"length": 512}}}})")),
             Contains("prefixes in common (prefix_prompt)"));
  CHECK_THAT(
      remarks(aiperf(R"({"loadgen": {"request_rate": 2, "request_rate_mode": "constant"}})")),
      Contains("equal gaps"));
}

TEST_CASE("gaps that a client counts by step are no figure of a run with drafts") {
  const std::string gaps = R"({"mean_itl_ms": 21.0, "p99_itl_ms": 25.0)";
  const BenchRun plain = only(vllm(gaps + "}"));
  CHECK(plain.figures.at("mean_itl_ms") == 21);
  // vLLM's client and TensorRT-LLM's.
  for (const char* said : {"spec_decode_acceptance_length", "mean_avg_decoded_tokens_per_iter"}) {
    const std::string drafting = vllm(fmt::format("{}, \"{}\": 2.4}}", gaps, said));
    const BenchRun drafted = only(drafting);
    CHECK(drafted.figures.size() == plain.figures.size() - 2);
    CHECK(drafted.figures.at("mean_tpot_ms") == 12.5);
    CHECK_THAT(remarks(drafting), Contains("ITL is left out") && Contains("2.4 tokens a step"));
  }
  // SGLang's client shares the time of a step out among its tokens.
  CHECK(only(vllm(gaps + R"(, "accept_length": 2.4})")).figures.at("mean_itl_ms") == 21);
}

TEST_CASE("appended results are a run each, by line, whatever the file is called") {
  for (const char* name : {"appended.json", "appended.jsonl", "appended.txt"}) {
    const auto runs = read(
        "\xEF\xBB\xBF" + vllm("{}") + "\r\n" + vllm(R"({"max_concurrency": 16})") + "\n\n", name);
    REQUIRE(runs.size() == 2);
    CHECK_THAT(runs[0].where, Contains(std::string(name) + ":1"));
    CHECK(load_text(runs[1].load) == "16 in flight");
  }
  CHECK_THAT(config_error([] { read(vllm("{}") + "\n{\"completed\": 2", "cut.jsonl"); }),
             Contains("cut.jsonl:2: "));
  const auto listed = read("[" + vllm("{}") + "," + vllm("{}") + "]");
  REQUIRE(listed.size() == 2);
  CHECK_THAT(listed[1].where, Contains("result.json:/1"));
  // A wrapper's own note of the load is its results'.
  const Json one = Json::parse(vllm(R"({"max_concurrency": null, "request_rate": null})"));
  CHECK(load(Json{{"max_concurrency", 4}, {"results", one}}.dump()) == "4 in flight");
}

TEST_CASE("latencies are in the unit that stands beside them") {
  for (const char* unit : {"s", "sec", "seconds"}) {
    const std::string ttft =
        R"({"time_to_first_token": {"unit": ")" + std::string(unit) + R"(", "avg": 0.0385}})";
    CHECK_THAT(only(aiperf(R"({"loadgen": {"concurrency": 8}})", ttft)).figures.at("mean_ttft_ms"),
               Catch::Matchers::WithinRel(38.5, 1e-12));
  }
  CHECK_THAT(refused(aiperf(R"({"loadgen": {"concurrency": 8}})",
                            R"({"time_to_first_token": {"unit": "ticks", "avg": 3}})")),
             Contains("\"ticks\""));
}

}  // namespace moesim::test_bench
