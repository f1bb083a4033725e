// SPDX-License-Identifier: Apache-2.0
// Does every placement put the experts where its source puts them, and nothing where it must not?
#include <algorithm>
#include <array>
#include <cmath>
#include <fstream>

#include <fmt/format.h>

#include "hardware/rng.hpp"
#include "sim/placement/eplb.hpp"
#include "sim/placement/placement_file.hpp"
#include "tests/support.hpp"
#include "traces/npy.hpp"

using namespace moesim;
using namespace moesim::test;

namespace {

using Slots = std::vector<int>;

std::unique_ptr<Placer> placer(const std::string& name) {
  return placers().make(config(fmt::format("\"{}\"", name)));
}

Slots slots_of(const LayerPlacement& placement) {
  Slots experts;
  for (int slot = 0; slot < placement.slots(); ++slot) {
    experts.push_back(placement.expert_of_slot(slot));
  }
  return experts;
}

Slots place(const std::string& name, PlacementProblem problem) {
  const ExpertLoad load(static_cast<std::size_t>(problem.experts), 1.0);
  return slots_of(placer(name)->place(problem, load, 0));
}

std::vector<int> to_vector(std::span<const std::int32_t> values) {
  return {values.begin(), values.end()};
}

ExpertLoad random_load(Rng& rng, int experts) {
  ExpertLoad load;
  for (int i = 0; i < experts; ++i) load.push_back(static_cast<double>(rng.below(10000)));
  return load;
}

std::vector<std::filesystem::path> oracles(const std::string& prefix) {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(shared_dir() / "oracles")) {
    if (entry.path().filename().string().starts_with(prefix)) files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

// A file that is there while a test looks at it.
class TemporaryFile {
 public:
  explicit TemporaryFile(const std::string& name)
      : path_(std::filesystem::temp_directory_path() / ("moesim_test_placement_" + name)) {}
  TemporaryFile(const std::string& name, const std::string& text) : TemporaryFile(name) {
    std::ofstream(path_) << text;
  }
  ~TemporaryFile() { std::filesystem::remove(path_); }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

std::string load_error(const std::string& json) {
  const TemporaryFile file("load.json", json);
  return config_error([&] { read_load(file.path()); });
}

std::string placement_error(const std::string& json) {
  return config_error([&] { read_placement(config(json)); });
}

}  // namespace

TEST_CASE("a placement knows an expert's slots, and its first slot on each GPU") {
  // GPU 0 holds expert 0 twice: two slots, one host.
  const LayerPlacement placement(3, {{0, 0, 1}, {2, 0}});
  CHECK(placement.experts() == 3);
  CHECK(placement.gpus() == 2);
  CHECK(placement.slots() == 5);
  CHECK(placement.first_slot(1) == 3);
  CHECK(placement.first_slot(2) == 5);
  CHECK(placement.gpu_of_slot(2) == 0);
  CHECK(placement.expert_of_slot(3) == 2);
  CHECK(to_vector(placement.slots_of(0)) == Slots{0, 1, 4});
  CHECK(to_vector(placement.hosts_of(0)) == Slots{0, 4});
  CHECK(to_vector(placement.hosts_of(2)) == Slots{3});
}

TEST_CASE("a placement that loses an expert or holds an unknown one is refused") {
  CHECK_THROWS_WITH(LayerPlacement(3, {{0, 1}, {1, 0}}), "expert 2 has no slot");
  CHECK_THROWS_WITH(LayerPlacement(2, {{0, 1}, {2}}), "GPU 1 holds expert 2; expected 0 to 1");
  CHECK_THROWS_AS(LayerPlacement(2, {{0, -1, 1}}), std::invalid_argument);
}

TEST_CASE("a replication ratio is rounded up to whole slots per GPU") {
  CHECK(slots_for_replication(128, 8, 1.0) == 16);
  CHECK(slots_for_replication(128, 8, 1.125) == 18);
  CHECK(slots_for_replication(256, 16, 1.5) == 24);
  CHECK(slots_for_replication(160, 16, 1.1) == 11);  // 1.1 * 160 is a hair above 176 in binary
  CHECK(slots_for_replication(32, 8, 1.1) == 5);     // 4.4
  CHECK(slots_for_replication(10, 4, 1.0) == 3);
  CHECK(config_error([] { slots_for_replication(8, 4, 0.9); }) ==
        "replication 0.9 is out of range; expected at least 1 (one slot per expert) and at most 4 "
        "(every expert on every GPU)");
  CHECK_THROWS_AS(slots_for_replication(8, 4, std::nan("")), ConfigError);
}

TEST_CASE("linear puts experts in blocks, and redundant slots start again at expert 0") {
  CHECK(place("linear", {4, 2, 2}) == Slots{0, 1, 2, 3});
  CHECK(place("linear", {4, 2, 3}) == Slots{0, 1, 2, 3, 0, 1});
  CHECK(place("linear", {5, 2, 3}) == Slots{0, 1, 2, 3, 4, 0});
}

TEST_CASE("round_robin puts expert e on GPU e mod G, and a copy never beside its original") {
  CHECK(place("round_robin", {4, 2, 2}) == Slots{0, 2, 1, 3});
  // The second lap starts one GPU further: the copy of 0 on GPU 1, of 1 on GPU 0.
  CHECK(place("round_robin", {4, 2, 3}) == Slots{0, 2, 1, 1, 3, 0});
  // 5 experts on 2 GPUs: the sixth slot is GPU 1's anyway.
  CHECK(place("round_robin", {5, 2, 3}) == Slots{0, 2, 4, 1, 3, 0});
}

TEST_CASE("EPLB replicates the hottest expert and packs by load") {
  // Loads 90 10 10 10 on 2 GPUs x 3 slots. The fifth and sixth slot go to expert 0 (90, then 45);
  // 30 each on three slots. By load: 30 -> GPU 0, 30 -> GPU 1, 30 -> GPU 0 (tie), 10 -> GPU 1 (40),
  // 10 -> GPU 1 (50), and expert 3 to what is left, GPU 0.
  const EplbMap map = eplb({4, 2, 3}, ExpertLoad{90, 10, 10, 10});
  CHECK(map.phy2log == Slots{0, 0, 3, 0, 1, 2});
  CHECK(map.logcnt == Slots{3, 1, 1, 1});
  CHECK(map.log2phy == std::vector<Slots>{{0, 3, 1}, {4}, {5}, {2}});
}

TEST_CASE("EPLB matches DeepSeek's, slot for slot") {
  if (!has_shared()) {
    WARN("skipped: ../shared is absent");
    return;
  }
  for (const auto& file : oracles("eplb_")) {
    DYNAMIC_SECTION(file.filename().string()) {
      const Json oracle = ConfigNode::from_file(file).json();
      const Json& input = oracle.at("input");
      const Json& output = oracle.at("output");
      const int gpus = input.at("num_gpus");
      const auto layers = input.at("weight").get<std::vector<ExpertLoad>>();
      for (std::size_t layer = 0; layer < layers.size(); ++layer) {
        const PlacementProblem problem{static_cast<int>(layers[layer].size()), gpus,
                                       input.at("num_replicas").get<int>() / gpus,
                                       input.at("num_nodes"), input.at("num_groups")};
        const EplbMap map = eplb(problem, layers[layer]);
        auto log2phy = output.at("log2phy").at(layer).get<std::vector<Slots>>();
        for (Slots& slots : log2phy) std::erase(slots, -1);
        CHECK(map.phy2log == output.at("phy2log").at(layer).get<Slots>());
        CHECK(map.log2phy == log2phy);
        CHECK(map.logcnt == output.at("logcnt").at(layer).get<Slots>());
      }
    }
  }
}

TEST_CASE("every placer gives every expert a slot and every GPU as many, on random problems") {
  Rng rng(1, "test/placement");
  for (int round = 0; round < 50; ++round) {
    const int nodes = 1 << rng.below(3);
    const int groups = 1 << rng.below(4);
    const int gpus = nodes * static_cast<int>(1 + rng.below(4));
    const int experts = groups * gpus * static_cast<int>(1 + rng.below(4));
    const int slots = experts / gpus + static_cast<int>(rng.below(4));
    const PlacementProblem problem{experts, gpus, slots, nodes, groups};
    const ExpertLoad load = random_load(rng, experts);
    for (const auto& entry : placers().entries()) {
      CAPTURE(entry.name, experts, gpus, slots, nodes, groups);
      const LayerPlacement layer = placer(std::string(entry.name))->place(problem, load, round);
      CHECK(layer.experts() == experts);
      CHECK(layer.slots() == gpus * slots);
      for (int gpu = 0; gpu < gpus; ++gpu) CHECK(layer.first_slot(gpu) == gpu * slots);
    }
  }
}

TEST_CASE("hierarchical EPLB keeps each expert group, and all copies from it, on one node") {
  Rng rng(2, "test/placement");
  const PlacementProblem problem{64, 8, 12, 2, 8};
  const LayerPlacement layer = placer("eplb")->place(problem, random_load(rng, 64), 0);
  for (int group = 0; group < 8; ++group) {
    const int node = layer.gpu_of_slot(layer.slots_of(group * 8)[0]) / 4;
    for (int expert = group * 8; expert < group * 8 + 8; ++expert) {
      for (const int slot : layer.slots_of(expert)) CHECK(layer.gpu_of_slot(slot) / 4 == node);
    }
  }
}

TEST_CASE("nodes that do not divide the groups make EPLB go over all GPUs at once") {
  Rng rng(3, "test/placement");
  const ExpertLoad load = random_load(rng, 16);
  CHECK(eplb({16, 4, 6, 3, 4}, load).phy2log == eplb({16, 4, 6, 1, 1}, load).phy2log);
}

TEST_CASE("a placement without a solution is refused with what would be right") {
  const auto error = [](PlacementProblem problem, ExpertLoad load) {
    return config_error([&] { placer("eplb")->place(problem, load, 0); });
  };
  CHECK(error({4, 2, 1}, ExpertLoad(4)) ==
        "1 slots on each of 2 GPUs cannot hold 4 experts; expected at least 2 slots per GPU");
  CHECK(error({4, 2, 2}, ExpertLoad(3)) == "the load has 3 experts; expected 4");
  CHECK(error({2, 2, 1}, {1, std::nan("")}) ==
        "the load of expert 1 is nan; expected a finite number >= 0");
  CHECK(error({2, 2, 1}, {-1, 0}) == "the load of expert 0 is -1; expected a finite number >= 0");
  CHECK(error({6, 2, 3, 1, 4}, ExpertLoad(6)) ==
        "eplb: 4 expert groups do not divide 6 experts evenly");
  CHECK(error({6, 3, 2, 2, 2}, ExpertLoad(6)) == "eplb: 2 nodes do not divide 3 GPUs evenly");
  CHECK(error({0, 2, 3}, {}) == "placement of 0 experts on 2 GPUs; expected at least 1 of each");
}

TEST_CASE("before anything was seen, EPLB gives way to the linear map") {
  const PlacementProblem problem{4, 2, 3};
  const auto slots = [&](const std::string& name) {
    return slots_of(place_unseen(*placer(name), problem, 2).at(1));
  };
  CHECK(slots("eplb") == place("linear", problem));
  CHECK(slots("round_robin") == place("round_robin", problem));
}

TEST_CASE("a placement file is read back as it was written") {
  const ExpertPlacement equal{LayerPlacement(3, {{0, 1}, {2, 0}}),
                              LayerPlacement(3, {{2, 1}, {1, 0}})};
  const OrderedJson json = placement_json(equal);
  CHECK(json.dump() ==
        R"({"num_gpus":2,"num_experts":3,"physical_to_logical_map":[[0,1,2,0],[2,1,1,0]]})");
  CHECK(read_placement(config(json.dump())) == equal);

  const ExpertPlacement unequal{LayerPlacement(3, {{0, 1, 2}, {2}})};
  const OrderedJson by_gpu = placement_json(unequal);
  CHECK(by_gpu.dump() == R"({"num_gpus":2,"num_experts":3,"experts_on_gpu":[[[0,1,2],[2]]]})");
  CHECK(read_placement(config(by_gpu.dump())) == unequal);
}

TEST_CASE("a placement file says where it is wrong") {
  using Catch::Matchers::EndsWith;
  CHECK_THAT(placement_error(R"({"num_gpus":2,"physical_to_logical_map":[[0,1,2,3],[0,1,2,2]]})"),
             EndsWith("inline.json:/physical_to_logical_map/1: expert 3 has no slot"));
  CHECK_THAT(
      placement_error(R"({"num_gpus":2,"num_experts":5,"physical_to_logical_map":[[0,1,2,3]]})"),
      EndsWith("/physical_to_logical_map/0: expert 4 has no slot"));
  CHECK_THAT(
      placement_error(R"({"num_gpus":2,"num_experts":3,"physical_to_logical_map":[[0,1,2,3]]})"),
      EndsWith("/physical_to_logical_map/0: GPU 1 holds expert 3; expected 0 to 2"));
  CHECK_THAT(placement_error(R"({"num_gpus":2,"physical_to_logical_map":[[0,1],[0,1,1,0]]})"),
             EndsWith("/physical_to_logical_map/1: has 4 slots; expected 2 as in the first layer"));
  CHECK_THAT(placement_error(R"({"num_gpus":2,"physical_to_logical_map":[[0,1,0]]})"),
             EndsWith("/physical_to_logical_map/0: 3 slots do not fill 2 GPUs evenly"));
  CHECK_THAT(placement_error(R"({"num_gpus":2,"experts_on_gpu":[[[0],[1],[0]]]})"),
             EndsWith("/experts_on_gpu/0: lists 3 GPUs; expected num_gpus = 2"));
  CHECK_THAT(placement_error(R"({"num_gpus":1,"physical_to_logical_map":[[0,-1]]})"),
             Catch::Matchers::Contains("/physical_to_logical_map/0/1: -1 is out of range"));
  CHECK_THAT(placement_error(R"({"num_gpus":1,"physical_to_logical_map":[]})"),
             EndsWith("/physical_to_logical_map: has no layers"));
  CHECK_THAT(placement_error(R"({"num_gpus":1})"),
             EndsWith("\"physical_to_logical_map\" is missing"));
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
  using Catch::Matchers::EndsWith;
  CHECK_THAT(load_error(R"({"load": [[1, 2], [3]]})"),
             EndsWith("/load/1: has 1 experts; expected 2"));
  CHECK_THAT(load_error(R"({"load": [[1, -2]]})"), Catch::Matchers::Contains("/load/0/1: -2"));
  CHECK_THAT(load_error(R"({"load": []})"), EndsWith("/load: has no layers"));

  const TemporaryFile npy("load.npy");
  const std::vector<float> tokens{1, -1};
  write_npy<float>(npy.path(), std::array<std::int64_t, 2>{1, 2}, tokens);
  CHECK_THAT(config_error([&] { read_load(npy.path()); }),
             EndsWith("the load of expert 1 in layer 0 is -1; expected a finite number >= 0"));
  write_npy<float>(npy.path(), std::array<std::int64_t, 1>{2}, tokens);
  CHECK_THAT(config_error([&] { read_load(npy.path()); }), EndsWith("found [2]"));
}
