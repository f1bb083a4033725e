// SPDX-License-Identifier: Apache-2.0
// Do placements and loads come back from every file format as they went in, and are bad ones
// refused?
#include <array>

#include <fmt/format.h>

#include "sim/placement/files/placement_file.hpp"
#include "sim/placement/files/plain_yaml.hpp"
#include "sim/placement/placement_score.hpp"
#include "sim/replay/replay.hpp"
#include "tests/support.hpp"
#include "tests/temporary.hpp"
#include "tests/tiny_experiment.hpp"
#include "traces/expert_load.hpp"
#include "traces/gating/gating.hpp"
#include "traces/npy.hpp"

namespace moesim::test_placement_files {

using namespace moesim::test;
using Catch::Matchers::Contains;
using Catch::Matchers::EndsWith;

namespace {

ExpertPlacement read_text(const std::string& text, PlacementContext context = {}) {
  const TemporaryFile file("placement", text);
  return read_placement(file.path(), context);
}

std::string refused_file(const std::string& text, PlacementContext context = {}) {
  return config_error([&] { read_text(text, context); });
}

std::string load_error(const std::string& json) {
  const TemporaryFile file("load.json", json);
  return config_error([&] { read_load(file.path()); });
}

// Ids ascend on each GPU, so that even .npy keeps the order.
ExpertPlacement equal_placement() {
  return {LayerPlacement(3, {{0, 1}, {0, 2}}), LayerPlacement(3, {{1, 2}, {0, 1}})};
}
ExpertPlacement unequal_placement() { return {LayerPlacement(3, {{0, 1, 2}, {2}})}; }

Json yaml(const std::string& text) { return parse_plain_yaml(text, "f.yaml"); }
std::string yaml_error(const std::string& text) {
  return config_error([&] { yaml(text); });
}

}  // namespace

TEST_CASE("every format is written as its engine writes it") {
  const ExpertPlacement placement = equal_placement();
  CHECK(placement_bytes(placement, PlacementFormat::sglang) ==
        R"({"physical_to_logical_map":[[0,1,0,2],[1,2,0,1]]})"
        "\n");
  CHECK(placement_bytes(placement, PlacementFormat::sglang, {.first = 1}) ==
        R"({"physical_to_logical_map":[[0,1,2,0],[0,1,0,2],[1,2,0,1]]})"
        "\n");
  CHECK(placement_bytes(placement, PlacementFormat::trtllm, {.numbers = {3, 5}}) ==
        "num_slots: 4\nlayer_updates_per_iter: 0\ninitial_global_assignments:\n"
        "  3: [0, 1, 0, 2]\n  5: [1, 2, 0, 1]\n");
  CHECK(placement_bytes({placement[0]}, PlacementFormat::vllm_ascend) ==
        R"({"moe_layer_count":1,"layer_list":[{"layer_id":0,"device_count":2,"device_list":[)"
        R"({"device_id":0,"device_expert":[0,1]},{"device_id":1,"device_expert":[0,2]}]}]})"
        "\n");
  CHECK(placement_bytes(unequal_placement(), PlacementFormat::sglang) ==
        R"({"num_gpus":2,"num_experts":3,"experts_on_gpu":[[[0,1,2],[2]]]})"
        "\n");
}

TEST_CASE("every format is read back as it was written") {
  for (std::size_t format = 0; format < placement_format_names.size(); ++format) {
    CAPTURE(placement_format_names[format]);
    for (const int first_layer : {0, 3}) {
      const std::string text = placement_bytes(
          equal_placement(), static_cast<PlacementFormat>(format), {.first = first_layer});
      CHECK(read_text(text, {2, first_layer}) == equal_placement());
    }
    if (static_cast<PlacementFormat>(format) == PlacementFormat::trtllm) continue;
    const std::string text =
        placement_bytes(unequal_placement(), static_cast<PlacementFormat>(format));
    CHECK(read_text(text) == unequal_placement());
  }
}

TEST_CASE("what a format cannot hold is not written") {
  CHECK(config_error([] { placement_bytes(unequal_placement(), PlacementFormat::trtllm); }) ==
        "trtllm files hold as many slots on every GPU in every layer, which this placement does "
        "not; use another format");
  const ExpertPlacement twice{LayerPlacement(2, {{0, 0}, {0, 1}})};
  CHECK(config_error([&] { placement_bytes(twice, PlacementFormat::npy); }) ==
        "npy files cannot hold expert 0 twice on GPU 0, as layer 0 does; use another format");
}

TEST_CASE("a placement file says where it is wrong") {
  CHECK_THAT(refused_file(R"({"num_gpus":2,"physical_to_logical_map":[[0,1,2,3],[0,1,2,2]]})"),
             EndsWith(":/physical_to_logical_map/1: expert 3 has no slot; "
                      "/physical_to_logical_map/0 has expert 3"));
  CHECK_THAT(refused_file(R"({"num_gpus":2,"physical_to_logical_map":[[0,1],[0,9]]})"),
             EndsWith(":/physical_to_logical_map/0: expert 2 has no slot; "
                      "/physical_to_logical_map/1 has expert 9"));
  CHECK_THAT(
      refused_file(R"({"num_gpus":2,"num_experts":5,"physical_to_logical_map":[[0,1,2,3]]})"),
      EndsWith("/physical_to_logical_map/0: expert 4 has no slot"));
  CHECK_THAT(
      refused_file(R"({"num_gpus":2,"num_experts":3,"physical_to_logical_map":[[0,1,2,3]]})"),
      EndsWith("/physical_to_logical_map/0: GPU 1 holds expert 3; expected 0 to 2"));
  CHECK_THAT(refused_file(R"({"num_gpus":2,"physical_to_logical_map":[[0,1],[0,1,1,0]]})"),
             EndsWith("/physical_to_logical_map/1: has 4 slots; expected 2 as in the first layer"));
  CHECK_THAT(refused_file(R"({"num_gpus":2,"physical_to_logical_map":[[0,1,0]]})"),
             EndsWith("/physical_to_logical_map/0: 3 slots do not fill 2 GPUs evenly"));
  CHECK_THAT(refused_file(R"({"num_gpus":2,"experts_on_gpu":[[[0],[1],[0]]]})"),
             EndsWith("/experts_on_gpu/0: lists 3 GPUs; expected num_gpus = 2"));
  CHECK_THAT(refused_file(R"({"num_gpus":1,"physical_to_logical_map":[[0,-1]]})"),
             Contains("/physical_to_logical_map/0/1: -1 is out of range"));
  CHECK_THAT(refused_file(R"({"num_gpus":1,"physical_to_logical_map":[]})"),
             EndsWith("/physical_to_logical_map: has no layers"));
  CHECK_THAT(refused_file(R"({"num_gpus":1,"physical_to_logical_map":[[0]]})", {0, 1}),
             EndsWith("/physical_to_logical_map: has 1 layers, none from layer 1 on"));
  CHECK_THAT(refused_file(R"({"num_gpus":1,"physical_to_logical_map":[[0]]})", {2, 0}),
             EndsWith("/num_gpus: the file is for 1 GPUs; expected 2"));
  CHECK_THAT(
      refused_file(R"({"physical_to_logical_map":[[0]]})"),
      EndsWith("does not say how many GPUs its slots fill (\"num_gpus\"); give \"gpus\" next to "
               "the file"));
  CHECK_THAT(
      refused_file(R"({"num_gpus":1,"physical_to_logical_map":[[0]],"experts_on_gpu":[[[0]]]})"),
      EndsWith("has both physical_to_logical_map and experts_on_gpu; expected one"));
  CHECK_THAT(refused_file(R"({"num_gpus":1})"), Contains("is not a placement; expected"));
  CHECK_THAT(refused_file(" "), EndsWith("is empty"));
}

TEST_CASE("TensorRT-LLM's files are read as PyYAML writes them, and as JSON") {
  const ExpertPlacement expected = equal_placement();
  // Default style: lists as blocks, not indented below their key.
  CHECK(read_text(
            "initial_global_assignments:\n  3:\n  - 0\n  - 1\n  - 0\n  - 2\n  4:\n  - 1\n  - 2\n"
            "  - 0\n  - 1\nlayer_updates_per_iter: 0\nnum_slots: 4\n",
            {2, 3}) == expected);
  // Lists inline, folded at the line width.
  CHECK(read_text("# EP2\ninitial_global_assignments:\n  3: [0, 1,\n    0, 2]\n  4: [1, 2, 0, 1]\n"
                  "num_slots: 4\nep_size: 2\n") == expected);
  CHECK(read_text(R"({"num_slots": 4, "initial_global_assignments":)"
                  R"( {"4": [1, 2, 0, 1], "3": [0, 1, 0, 2]}})",
                  {2, 0}) == expected);
}

TEST_CASE("a TensorRT-LLM file says where it is wrong") {
  const PlacementContext two{2, 0};
  CHECK_THAT(refused_file("num_slots: 4\ninitial_global_assignments: {0: [0, 1]}\n", two),
             EndsWith("/initial_global_assignments/0: has 2 slots; expected num_slots = 4"));
  CHECK_THAT(
      refused_file("num_slots: 2\ninitial_global_assignments: {0: [0, 1], 1: [0, 0]}\n", two),
      EndsWith("/initial_global_assignments/1: expert 1 has no slot; "
               "/initial_global_assignments/0 has expert 1"));
  CHECK_THAT(refused_file("num_slots: 2\ninitial_global_assignments: {first: [0, 1]}\n", two),
             EndsWith("\"first\" is not a layer; expected each layer's number once"));
  CHECK_THAT(refused_file("num_slots: 2\ninitial_global_assignments: {0: [0, 1]}\n"),
             Contains("does not say how many GPUs its slots fill (\"ep_size\")"));
  CHECK_THAT(refused_file("num_slots: 2\nslots: 3\ninitial_global_assignments: {0: [0, 1]}\n", two),
             Contains("unknown key \"slots\""));
}

TEST_CASE("an expert_map.json says where it is wrong") {
  const auto file = [](int layers, int layer, int devices, int device, const std::string& ids) {
    return fmt::format(R"({{"moe_layer_count":{},"layer_list":[{{"layer_id":{},"device_count":{},)"
                       R"("device_list":[{{"device_id":{},"device_expert":{}}}]}}]}})",
                       layers, layer, devices, device, ids);
  };
  CHECK(read_text(file(1, 0, 1, 0, "[1, 0]")) == ExpertPlacement{LayerPlacement(2, {{1, 0}})});
  CHECK_THAT(refused_file(file(2, 0, 1, 0, "[0]")),
             EndsWith("/layer_list: has 1 entries; its neighbour key says 2"));
  CHECK_THAT(refused_file(file(1, 3, 1, 0, "[0]")),
             EndsWith("/layer_list/0/layer_id: is 3; expected 0, in order from 0"));
  CHECK_THAT(refused_file(file(1, 0, 2, 0, "[0]")),
             EndsWith("/layer_list/0/device_list: has 1 entries; its neighbour key says 2"));
  CHECK_THAT(refused_file(file(1, 0, 1, 7, "[0]")),
             EndsWith("/layer_list/0/device_list/0/device_id: is 7; expected 0, in order from 0"));
  CHECK_THAT(refused_file(file(1, 0, 1, 0, "[1]")),
             EndsWith("/layer_list/0: expert 0 has no slot"));
  CHECK_THAT(refused_file(file(1, 0, 1, 0, "[0]"), {4, 0}),
             EndsWith("/layer_list/0/device_count: is 1; expected 4"));
}

TEST_CASE("a placement of 0 and 1 says where it is wrong") {
  const auto npy = [](std::array<std::int64_t, 3> shape, const std::vector<std::uint8_t>& held) {
    return npy_bytes<std::uint8_t>(shape, held);
  };
  CHECK(read_text(npy({2, 1, 2}, {1, 0, 1, 1})) ==
        ExpertPlacement{LayerPlacement(2, {{0}, {0, 1}})});
  CHECK_THAT(refused_file(npy({2, 1, 2}, {1, 0, 1, 0})), EndsWith(":[:, 0]: expert 1 has no slot"));
  CHECK_THAT(refused_file(npy({2, 1, 2}, {1, 0, 2, 1})),
             EndsWith("[1, 0, 0] is 2; expected 0 or 1"));
  CHECK_THAT(refused_file(npy({2, 1, 2}, {1, 0, 1, 1}), {4, 0}),
             EndsWith("has 2 GPUs; expected 4"));
  const std::vector<float> reals{1, 1};
  CHECK_THAT(refused_file(npy_bytes<float>(std::array<std::int64_t, 3>{1, 1, 2}, reals)),
             EndsWith("or vLLM's [layers, slots]; found f4 [1, 1, 2]"));
  const std::vector<std::uint8_t> flat{1, 1};
  CHECK_THAT(refused_file(npy_bytes<std::uint8_t>(std::array<std::int64_t, 2>{1, 2}, flat)),
             EndsWith("give \"gpus\" next to the file"));
}

TEST_CASE("a placement file without end is refused before it fills memory") {
  const TemporaryFile zeros("placement.yaml", "0");
  std::filesystem::resize_file(zeros.path(), std::uintmax_t{5} << 30);
  CHECK_THAT(config_error([&] { read_placement(zeros.path(), {}); }),
             EndsWith("placement.yaml: is too large; a placement has at most 1 GiB"));
}

TEST_CASE("plain YAML reads mappings, lists and whole numbers") {
  CHECK(yaml("a: 1\nb:\n  c: -2  # why\n\n  d: [3, 4,]\n\"5\": []\n") ==
        Json::parse(R"({"a": 1, "b": {"c": -2, "d": [3, 4]}, "5": []})"));
  CHECK(yaml("---\na: {1: [2], x: 3}\nb:\n    - 1\n    - 2\n") ==
        Json::parse(R"({"a": {"1": [2], "x": 3}, "b": [1, 2]})"));
  CHECK(yaml("a: {1: [2,\n 3], 4:\n [5]\n }\n") ==
        Json::parse(R"({"a": {"1": [2, 3], "4": [5]}})"));
}

TEST_CASE("YAML that is more than numbers is refused with its line") {
  CHECK(yaml_error("a: 1\nb: text\n") == "f.yaml:2: has \"text\" where a whole number is expected");
  CHECK(yaml_error("a: 1.5\n") == "f.yaml:1: has \"1.5\" where a whole number is expected");
  CHECK(yaml_error("a: [1, [2]]\n") == "f.yaml:1: has \"\" where a whole number is expected");
  CHECK(yaml_error("a: [1 2]\n") == "f.yaml:1: has \"1 2\" where a whole number is expected");
  CHECK(yaml_error("a: [1, 2\n") == "f.yaml:1: opens a bracket that is never closed");
  CHECK(yaml_error("a: [1] 2\n") == "f.yaml:1: has more than a value: \"2\"");
  CHECK(yaml_error("a: 1\na: 2\n") == "f.yaml:2: has the key a for the second time");
  CHECK(yaml_error("a:\nb: 1\n") == "f.yaml:1: has a key without a value");
  CHECK(yaml_error("a: 1\n  b: 2\n") == "f.yaml:2: is indented more than its siblings");
  CHECK(yaml_error("a:\n    b: 1\n  c: 2\n") == "f.yaml:3: is indented more than its siblings");
  CHECK(yaml_error("  a: 1\nb: 2\n") == "f.yaml:2: is indented less than the lines before it");
  CHECK(yaml_error("a:\n\tb: 1\n") == "f.yaml:2: is indented by a tab; expected spaces");
  CHECK(yaml_error("&x a: 1\n") == "f.yaml:1: has \"&x a\" where a key is expected");
  CHECK(yaml_error("a:1\n") == "f.yaml:1: has no space after \"key:\"");
  CHECK(yaml_error("just words\n") == "f.yaml:1: has no \"key:\"");
  CHECK(yaml_error("- 1\n") == "f.yaml:1: is a list; expected \"key:\" lines");
}

TEST_CASE("a placement from a file is what the file says, if it fits the model") {
  const TemporaryFile file("from_file.json",
                           placement_bytes(equal_placement(), PlacementFormat::sglang));
  const auto placer = placers().make(
      config(fmt::format(R"({{"type": "from_file", "file": "{}"}})", file.path().string())));
  const auto place = [&](PlacementProblem problem, int layer) {
    return placer->place(problem, ExpertLoad(static_cast<std::size_t>(problem.experts)), layer);
  };
  CHECK(place({3, 2, 2}, 0) == equal_placement()[0]);
  CHECK(place({3, 2, 2}, 1) == equal_placement()[1]);
  CHECK(place_unseen(*placer, {3, 2, 2}, 2) == equal_placement());
  const auto error = [&](PlacementProblem problem, int layer) {
    return config_error([&] { place(problem, layer); });
  };
  CHECK_THAT(error({3, 2, 2}, 2), EndsWith(": 2 layers; layer 2 is asked for too"));
  CHECK_THAT(error({4, 2, 2}, 0), EndsWith(": 3 experts; expected 4"));
  CHECK_THAT(error({3, 3, 2}, 0), EndsWith(": 2 GPUs; expected 3"));
  CHECK_THAT(error({3, 2, 3}, 0), EndsWith(": its fullest GPU holds 2 experts, but a GPU has 3 "
                                           "slots; replication 1.3333333333333333 fits"));
  CHECK_THAT(error({2, 2, 1}, 0), EndsWith(": 3 experts; expected 2"));
}

TEST_CASE("a file with rows for dense layers is taken by the model's MoE layers, or refused") {
  // Rows 0 and 2 are dense layers' in a model whose MoE layers are 1 and 3.
  const LayerPlacement dense(3, {{0, 1}, {2, 0}});
  const ExpertPlacement moe = equal_placement();
  const ExpertPlacement rows{dense, moe[0], dense, moe[1]};
  const TemporaryFile file("rows.json", placement_bytes(rows, PlacementFormat::sglang));
  const auto placer = [&](const std::string& more) {
    return placers().make(config(
        fmt::format(R"({{"type": "from_file", "file": "{}"{}}})", file.path().string(), more)));
  };
  PlacementProblem problem{3, 2, 2};
  problem.moe_layers = {1, 3};
  problem.model_layers = 4;
  CHECK(place_unseen(*placer(""), problem, 2) == moe);
  CHECK_THAT(placer("")->remark(problem),
             EndsWith(": has a row for each of the model's 4 layers; those of its 2 MoE layers are "
                      "taken, from row 1 on"));
  const auto error = [&](const std::string& more) {
    return config_error([&] { place_unseen(*placer(more), problem, 2); });
  };
  CHECK_THAT(error(R"(, "first_layer": 1)"),
             EndsWith(": 3 layers; expected 2, the model's MoE layers"));
  problem.model_layers = 5;
  CHECK_THAT(error(""),
             EndsWith(": 4 layers; expected 2, the model's MoE layers, or 5 with dense ones"));
  problem.moe_layers = {0, 1, 2, 3};
  problem.model_layers = 4;
  CHECK(place_unseen(*placer(""), problem, 4) == rows);
  CHECK(placer("")->remark(problem).empty());
  problem.moe_layers = {0, 1, 2};
  problem.model_layers = 3;
  CHECK_THAT(error(""), EndsWith(": 4 layers; expected 3, the model's MoE layers"));
}

TEST_CASE("layers of a file that numbers them are the model's of these numbers") {
  const auto taken = [](const std::vector<int>& numbers, PlacementProblem problem) {
    const ExpertPlacement rows(numbers.size(), LayerPlacement(2, {{0}, {1}}));
    return take_rows("f.yaml", {rows, numbers}, problem);
  };
  // Every second layer has experts, and one drafts.
  PlacementProblem problem;
  problem.moe_layers = {1, 3};
  problem.model_layers = 4;
  problem.draft_layers = 1;
  CHECK(taken({1, 3}, problem).rows == std::vector<std::size_t>{0, 1});
  CHECK(taken({1, 3}, problem).remark.empty());
  CHECK(taken({1, 3, 4}, problem).rows == std::vector<std::size_t>{0, 1});
  CHECK_THAT(taken({1, 3, 4}, problem).remark,
             EndsWith("1 of layers that draft (MTP) is left out"));
  const auto error = [&](const std::vector<int>& numbers) {
    return config_error([&] { taken(numbers, problem); });
  };
  CHECK_THAT(error({1, 2, 3}), Contains("has layers that have no experts in the model: 2;"));
  CHECK_THAT(error({1, 3, 5}), Contains("no experts in the model: 5;"));
  CHECK_THAT(error({1}), Contains("lacks layers 3; the model has 4 layers from 0 on, with experts "
                                  "in 1, 3"));
  problem.draft_layers = 0;
  CHECK_THAT(error({1, 3, 4}), Contains("no experts in the model: 4;"));
}

TEST_CASE("rows without numbers are MoE layers or all layers, with those that draft or not") {
  PlacementProblem problem;
  problem.moe_layers = {1, 2, 3};
  problem.model_layers = 4;
  problem.draft_layers = 1;
  const auto rows = [&](std::size_t count, bool has_dense_layers) {
    const ExpertPlacement layers(count, LayerPlacement(2, {{0}, {1}}));
    return take_rows("f", {layers, {}, has_dense_layers}, problem).rows;
  };
  const std::vector<std::size_t> moe{0, 1, 2}, of_all{1, 2, 3};
  CHECK(rows(3, true) == moe);
  CHECK(rows(4, true) == of_all);
  CHECK(rows(5, true) == of_all);
  CHECK(rows(4, false) == moe);  // lists of MoE layers end with the one that drafts
  CHECK_THAT(config_error([&] { rows(6, true); }), Contains("6 layers; expected 3"));
}

TEST_CASE("run and replay take SGLang's rows of dense layers for what they are") {
  // Tiny has three layers, the first one dense: rows 1 and 2 of the file are its MoE layers'.
  const auto reversed = [](int first) {
    std::vector<std::vector<int>> gpus(4);
    for (int i = 0; i < 16; ++i) gpus[static_cast<std::size_t>(i / 4)].push_back((first + i) % 16);
    return LayerPlacement(16, gpus);
  };
  const ExpertPlacement rows{reversed(0), reversed(3), reversed(6)};
  const TemporaryFile file("rows.json", placement_bytes(rows, PlacementFormat::sglang));
  const auto with = [&](const Json& layers) {
    return tiny_experiment(
        {{"model", {{"dense_width", 512}, {"layers", layers}}},
         {"placement",
          {{"type", "from_file"}, {"file", file.path().string()}, {"replication", 1}}}});
  };
  const auto block = [](const char* ffn, int repeat) {
    return Json{{"repeat", repeat}, {"pattern", Json::array({{{"ffn", ffn}}})}};
  };
  const Experiment e = load(with(Json::array({block("dense", 1), block("moe", 2)})));
  CHECK(e.decode().placement == ExpertPlacement{rows[1], rows[2]});
  REQUIRE(remarks_of(e).size() == 1);
  CHECK_THAT(remarks_of(e).front(), EndsWith("are taken, from row 1 on"));
  CHECK_THAT(test::refused(with(Json::array({block("dense", 2), block("moe", 2)}))),
             Contains("3 layers; expected 2, the model's MoE layers, or 4 with dense ones"));

  const RoutingTrace& trace = e.decode().trace;
  REQUIRE(trace.meta().layer_ids == std::vector<int>{1, 2});
  const TemporaryFile cut("cut.json", placement_bytes({rows[1], rows[2]}, PlacementFormat::sglang));
  const auto replayed = [&](const std::filesystem::path& path) {
    ReplayConfig asked;
    asked.gpus = 4;
    asked.placements = {
        ConfigNode(Json{{"type", "from_file"}, {"file", path.string()}}, "--placement")};
    asked.replications = {1.0};
    asked.routings = {ConfigNode("metro", "--routing")};
    asked.batches = {8};
    asked.seed = 1;
    return replay(trace, asked).front().max_tokens_mean;
  };
  CHECK(replayed(file.path()) == replayed(cut.path()));
}

TEST_CASE("vLLM's map of slots is read where it is said on how many GPUs they stand") {
  const std::vector<std::int64_t> slots{0, 1, 0, 2, 1, 2, 0, 1};
  const TemporaryFile file(
      "vllm.npy", npy_bytes<std::int64_t>(std::array{std::int64_t{2}, std::int64_t{4}}, slots));
  CHECK(read_placement(file.path(), {2, 0}) == equal_placement());
  CHECK_THAT(config_error([&] { read_placement(file.path()); }),
             EndsWith("vllm.npy:/: does not say how many GPUs its slots fill ([layers, slots], as "
                      "vLLM has them); give \"gpus\" next to the file"));
  CHECK_THAT(config_error([&] {
               read_placement(file.path(), {3, 0});
             }),
             EndsWith("vllm.npy:[0]: 4 slots do not fill 3 GPUs evenly"));
  // An experiment knows its group.
  const auto placer = placers().make(
      config(fmt::format(R"({{"type": "from_file", "file": "{}"}})", file.path().string())));
  CHECK(place_unseen(*placer, {3, 2, 2}, 2) == equal_placement());
  const TemporaryFile bad(
      "bad.npy", npy_bytes<std::int64_t>(std::array{std::int64_t{1}, std::int64_t{2}}, {{0, -1}}));
  CHECK_THAT(config_error([&] {
               read_placement(bad.path(), {1, 0});
             }),
             EndsWith("bad.npy:[0]: slot 1 holds -1; expected an expert's number"));
}

TEST_CASE("SGLang's logical counts are a load, summed over the steps of its buffer") {
  const std::vector<ExpertLoad> expected{{1, 2.5}, {3, 0}};
  const TemporaryFile one("one.json", R"({"logical_count": [[1, 2.5], [3, 0]], "rank": 0})");
  CHECK(read_load(one.path()) == expected);
  const TemporaryFile steps("steps.json",
                            R"({"logical_count": [[[1, 2], [1, 0]], [[0, 0.5], [2, 0]]]})");
  CHECK(read_load(steps.path()) == expected);
  CHECK_THAT(
      load_error(R"({"logical_count": [[[1, 2]], [[1]]]})"),
      EndsWith("load.json:/logical_count/1: has 1 layers of 1 experts; expected 1 of 2 as in "
               "the first step"));
  CHECK_THAT(load_error(R"({"logical_count": [[1]], "steps": 2})"),
             Contains("unknown key \"steps\""));
}

TEST_CASE("a score counts the fullest GPU's tokens and copies that stand beside another") {
  // Expert 0 has 3 slots, two slots on GPU 0: of its 30 tokens GPU 0 takes 20, GPU 1 10.
  // GPU 0: 20 + 6 = 26; GPU 1: 10 + 4 = 14; mean 20.
  const ExpertPlacement placement{LayerPlacement(3, {{0, 0, 1}, {2, 0}}),
                                  LayerPlacement(3, {{0, 1}, {2, 0}})};
  const PlacementScore score =
      score_placement(placement, std::vector<ExpertLoad>{{30, 6, 4}, {0, 0, 0}});
  CHECK_THAT(score.layers[0].imbalance, WithinRel(1.3, 1e-12));
  CHECK(score.layers[1].imbalance == 1);
  CHECK_THAT(score.imbalance_mean, WithinRel(1.15, 1e-12));
  CHECK(score.worst_layer == 0);
  CHECK(score.same_gpu_copies == 1);
  CHECK(score.experts_with_copies == std::vector<std::int64_t>{0, 4, 1, 1});
  CHECK(
      to_json(score_placement({LayerPlacement(2, {{0, 0}, {1}})}, std::vector<ExpertLoad>{{3, 1}}))
          .dump() ==
      R"({"imbalance_mean":1.5,"imbalance_worst":1.5,"worst_layer":0,"same_gpu_copies":1,)"
      R"("experts_with_copies":[0,1,1],"layers":[{"imbalance":1.5,"same_gpu_copies":1}]})");
  CHECK(config_error([&] { score_placement(placement, std::vector<ExpertLoad>(1)); }) ==
        "the load has 1 layers; the placement has 2");
  CHECK(config_error([&] { score_placement(placement, std::vector<ExpertLoad>(2)); }) ==
        "the load of layer 0 has 0 experts; the placement has 3");
}

TEST_CASE("DeepSeek-V3's placements in production load and are scored") {
  const auto directory = shared_dir() / "data" / "routing" / "dsv3-placements";
  if (!std::filesystem::exists(directory)) {
    WARN("skipped: ../shared/data/routing/dsv3-placements is absent");
    return;
  }
  const auto scored = [&](const std::string& file, int gpus) {
    const ExpertPlacement placement = read_placement(directory / file, {gpus, 0});
    CHECK(placement.size() == 58);
    CHECK(placement.front().experts() == 256);
    const TemporaryFile again("again.npy", placement_bytes(placement, PlacementFormat::npy));
    CHECK(read_placement(again.path()) == placement);
    return score_placement(placement, uniform_load(placement));
  };
  const PlacementScore contiguous = scored("DSV3_baseline_16_devices_58_MoE_Layers.npy", 16);
  CHECK(contiguous.imbalance_worst == 1);
  CHECK(contiguous.experts_with_copies == std::vector<std::int64_t>{0, 58 * 256});
  const PlacementScore rearranged = scored(
      "placement_pattern_20250626_221356_58_rearrange_layers_58_layers_16_ranks_prefill_"
      "step0to100000.npy",
      16);
  CHECK(rearranged.imbalance_worst == 1);
  CHECK(rearranged.same_gpu_copies == 0);
  // Ten layers have 32 experts twice, the other 48 none.
  const PlacementScore redundant =
      scored("DSV3_0427_GSM8K_decode_RedFullLays_+10_58_MoELayers_32_dies_epmaxdeploy_12.npy", 32);
  CHECK(redundant.experts_with_copies == std::vector<std::int64_t>{0, 58 * 256 - 320, 320});
  // In these a GPU has 9 slots; 8 whole experts and one half weigh 8.5, the mean is 8.
  CHECK_THAT(redundant.imbalance_worst, WithinRel(8.5 / 8, 1e-12));
}

TEST_CASE("no production placement is as even on a load as one that is made for it") {
  const auto directory = shared_dir() / "data" / "routing" / "dsv3-placements";
  if (!std::filesystem::exists(directory)) {
    WARN("skipped: ../shared/data/routing/dsv3-placements is absent");
    return;
  }
  // No load lies beside the placements; this one is as skewed as DeepSeek-R1's.
  const MoeModel model =
      read_model(ConfigNode::from_file(source_dir() / "models" / "zoo" / "deepseek_v3.json"));
  const RoutingTrace trace =
      gatings()
          .make(config(R"({"type": "topical", "preset": "deepseek_r1", "requests": 16,
                           "prompt_rows": 0, "decode_rows": 50})"))
          ->trace(model, 1);
  const ExpertStatistics seen = observe(std::array{&trace});
  const auto fitted = placers().make(config("\"eplb_distinct\""));
  for (const auto& file : std::filesystem::directory_iterator(directory)) {
    if (file.path().extension() != ".npy") continue;
    CAPTURE(file.path().filename().string());
    const ExpertPlacement placement = read_placement(file.path());
    const PlacementScore score = score_placement(placement, seen.load);
    const PlacementProblem problem{256, placement[0].gpus(), 256 / placement[0].gpus()};
    const PlacementScore best = score_placement(place_all(*fitted, problem, seen), seen.load);
    CHECK(score.imbalance_mean > 1.2);
    CHECK(best.imbalance_mean < score.imbalance_mean);
  }
}

TEST_CASE("a load is read from JSON, or from .npy with its steps summed") {
  const TemporaryFile json("load.json", R"({"load": [[1, 2.5], [3, 0]]})");
  CHECK(read_load(json.path()) == std::vector<ExpertLoad>{{1, 2.5}, {3, 0}});

  const TemporaryFile npy("load.npy");
  const std::vector<std::int32_t> tokens{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
  write_npy<std::int32_t>(npy.path(), std::array<std::int64_t, 2>{4, 3}, tokens);
  CHECK(read_load(npy.path()).at(3) == ExpertLoad{10, 11, 12});
  write_npy<std::int32_t>(npy.path(), std::array<std::int64_t, 3>{2, 2, 3}, tokens);
  CHECK(read_load(npy.path()) == std::vector<ExpertLoad>{{1 + 7, 2 + 8, 3 + 9}, {14, 16, 18}});
}

TEST_CASE("a load file says where it is wrong") {
  CHECK_THAT(load_error(R"({"load": [[1, 2], [3]]})"),
             EndsWith("/load/1: has 1 experts; expected 2"));
  CHECK_THAT(load_error(R"({"load": [[1, -2]]})"), Contains("/load/0/1: -2"));
  CHECK_THAT(load_error(R"({"load": []})"), EndsWith("/load: has no layers"));

  const TemporaryFile npy("load.npy");
  const std::vector<float> tokens{1, -1};
  write_npy<float>(npy.path(), std::array<std::int64_t, 2>{1, 2}, tokens);
  CHECK_THAT(config_error([&] { read_load(npy.path()); }),
             EndsWith("the load of expert 1 in layer 0 is -1; expected 0 to 1e15"));
  write_npy<float>(npy.path(), std::array<std::int64_t, 1>{2}, tokens);
  CHECK_THAT(config_error([&] { read_load(npy.path()); }), EndsWith("found [2]"));
}

}  // namespace moesim::test_placement_files
