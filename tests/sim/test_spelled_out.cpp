// SPDX-License-Identifier: Apache-2.0
// Do the short forms of an experiment mean what their objects mean?
#include "sim/experiment/spelled_out.hpp"
#include "tests/support.hpp"
#include "tests/tiny_experiment.hpp"

namespace moesim::test_spelled_out {
namespace {

using Catch::Matchers::Contains;

Json config_with(const char* pointer, const Json& value) {
  Json json = test::tiny_experiment(Json::object());
  json[Json::json_pointer(pointer)] = value;
  return test::load(json).config;
}

TEST_CASE("a text is the object that it is short for") {
  CHECK(config_with("/engine", "none") == config_with("/engine", {{"name", "none"}}));
  CHECK(config_with("/precision", "fp8") ==
        config_with("/precision", {{"experts", "fp8"}, {"attention", "fp8"}}));
  CHECK(config_with("/precision", "nvfp4/fp8") ==
        config_with("/precision", {{"experts", "nvfp4"}, {"attention", "fp8"}}));
  // After four bits the others stay as the model's files store them, here in nothing said: bf16.
  CHECK(config_with("/precision", "nvfp4") ==
        config_with("/precision", {{"experts", "nvfp4"}, {"attention", "bf16"}}));
  const Json preset = config_with("/workload/gating", "qwen3")["workload"]["gating"];
  CHECK(preset["type"] == "topical");
  CHECK(preset["preset"] == "qwen3");
  CHECK(config_with("/workload/gating", preset) == config_with("/workload/gating", "qwen3"));
  CHECK(config_with("/workload/prefill_gating", "olmoe")["workload"]["prefill_gating"]["preset"] ==
        "olmoe");
  // A gating's own name goes before.
  CHECK(config_with("/workload/gating", "uniform")["workload"]["gating"]["type"] == "uniform");
}

TEST_CASE("pools have short forms of their own") {
  Json json = test::tiny_experiment(Json::object());
  const Json parallel = {{"dp", 4}, {"ep", 4}};
  json.erase("parallel");
  json["pools"] = {{"prefill", {{"parallel", parallel}, {"precision", "fp8"}}},
                   {"decode", {{"parallel", parallel}, {"engine", "none"}}}};
  const Json config = test::load(json).config;
  CHECK(config.at("/pools/prefill/precision/experts"_json_pointer) == "fp8");
  CHECK(config.at("/pools/decode/precision/experts"_json_pointer) == "bf16");
  CHECK(config.at("/pools/decode/engine/name"_json_pointer) == "none");
}

TEST_CASE("an engine's name brings its preset, as the object does") {
  const Json base = {{"cluster", "h100x8"},
                     {"model", "gpt_oss_20b"},
                     {"parallel", {{"dp", 8}}},
                     {"workload",
                      {{"arrivals", {{"type", "closed_loop"}, {"concurrency", 8}}},
                       {"lengths", {{"type", "fixed"}, {"prompt", 20}, {"output", 30}}},
                       {"requests", 8}}}};
  Json text = base, object = base;
  text["engine"] = "vllm";
  object["engine"] = {{"name", "vllm"}};
  const Experiment experiment = test::load(text);
  CHECK(experiment.config == test::load(object).config);
  // The gating that it leaves out is that of the model's family, which is said.
  CHECK(experiment.config.at("/workload/gating/preset"_json_pointer) == "gpt_oss");
  CHECK_THAT(remarks_of(experiment).at(0), Contains("by the statistics of gpt-oss"));
}

TEST_CASE("a text that is short for nothing is refused at its place") {
  const auto refused = [](const char* pointer, const char* value) {
    Json json = test::tiny_experiment(Json::object());
    json[Json::json_pointer(pointer)] = value;
    return test::refused(json);
  };
  CHECK_THAT(refused("/precision", "fp9"), Contains(":/precision: there is no precision \"fp9\""));
  CHECK_THAT(refused("/engine", "vlm"), Contains(":/engine/name: ") && Contains("vllm"));
  CHECK_THAT(refused("/workload/gating", "qwen"), Contains(":/workload/gating/type: "));
}

}  // namespace
}  // namespace moesim::test_spelled_out
