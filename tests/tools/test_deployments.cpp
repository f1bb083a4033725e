// SPDX-License-Identifier: Apache-2.0
// Does plan look at the deployments that it says it does?
#include <algorithm>
#include <iterator>
#include <set>

#include <fmt/format.h>

#include "tests/support.hpp"
#include "tools/plan/deployments.hpp"
#include "traces/gating/presets.hpp"

namespace moesim::test_deployments {
namespace {

using Catch::Matchers::Contains;

// 32 GPUs that all reach each other, and a model of 64 experts.
ClusterSpec one_domain() {
  ClusterSpec cluster;
  cluster.gpus_per_node = 8;
  cluster.nodes = 4;
  cluster.scale_up_domain = 32;
  return cluster;
}
MoeModel some_model() {
  MoeModel model;
  model.experts = 64;
  return model;
}

BoundedShape shape(int dp, int pp, double prefill, double decode) {
  PlannedDeployment planned;
  planned.decode = {{.dp = dp, .ep = dp, .pp = pp}, 32 / (dp * pp)};
  TuneBound bound;
  bound.goodput = std::min(prefill, decode);
  bound.prefill = prefill;
  bound.decode = decode;
  return {planned, bound};
}

int gpus_of(const PlannedGroup& group) { return group.parallel.gpus() * group.instances; }

std::vector<PlannedDeployment> some_pools() {
  return pools({shape(4, 1, 100, 50), shape(12, 1, 70, 100)}, some_model(), one_domain());
}

bool distinct(const std::vector<PlannedDeployment>& all) {
  return std::ranges::all_of(
      all, [&](const PlannedDeployment& one) { return std::ranges::count(all, one) == 1; });
}

TEST_CASE("drafts are tried in full, in part and not at all, where they are asked for") {
  PlannedDeployment deployment = shape(4, 1, 1, 1).shape;
  CHECK(with_drafts(deployment).size() == 1);
  deployment.drafts = 5;
  std::vector<std::string> tried;
  for (const PlannedDeployment& each : with_drafts(deployment)) tried.push_back(each.drafts_text());
  CHECK(tried == std::vector<std::string>{"5 drafts", "no drafts", "1 draft", "2 drafts"});
  deployment.drafts = 1;
  CHECK(with_drafts(deployment).size() == 2);
}

TEST_CASE("plan takes the routing statistics that a model names, or those of other families") {
  MoeModel model = some_model();
  const auto gating = [&] {
    return base_deployment(ServingQuestion{}, model, std::nullopt).at("workload").at("gating");
  };
  CHECK(gating().at("preset") == preset_of_other_families);
  // Half of the requests are served: as many as a rank's limit on sequences.
  CHECK(gating().at("requests").get<int>() / 2 >= 512);
  model.gating_preset = "gemma4";
  CHECK(gating().at("preset") == "gemma4");
  model.gating_preset = "gemma5";
  CHECK_THROWS_AS(gating(), ConfigError);
}

TEST_CASE("plan asks for weights as stored, or in the precision that it is told") {
  const MoeModel moe = some_model();
  MoeModel dense;
  const StoredPrecision stored{.plan = {.experts = Precision::bf16, .attention = Precision::fp8},
                               .said_by = "test"};
  const auto asked = [&](std::string precision, std::string kv, const MoeModel& model, bool known) {
    const ServingQuestion question{.precision = std::move(precision),
                                   .kv_cache_dtype = std::move(kv)};
    const Json base =
        base_deployment(question, model, known ? std::optional(stored) : std::nullopt);
    return base.contains("precision") ? base.at("precision") : Json();
  };
  // Left out, the precisions are those of the model's files.
  CHECK(asked("", "", moe, true).is_null());
  CHECK(asked("", "", moe, false).is_null());
  CHECK(asked("fp8_block", "", moe, true) ==
        Json{{"experts", "fp8_block"}, {"attention", "fp8_block"}});
  // Checkpoints of four bits convert experts; those of dense models convert everything.
  CHECK(asked("nvfp4", "", moe, true) ==
        Json{{"experts", "nvfp4"}, {"attention", "bf16"}, {"ffn", "nvfp4"}});
  CHECK(asked("nvfp4", "", moe, false) == Json{{"experts", "nvfp4"}, {"attention", "bf16"}});
  CHECK(asked("nvfp4", "", dense, true) == Json{{"experts", "nvfp4"}, {"attention", "nvfp4"}});
  CHECK(asked("int4/bf16", "fp8", moe, true) ==
        Json{{"experts", "int4"}, {"attention", "bf16"}, {"kv_cache", "fp8"}});
  CHECK(asked("", "fp8", moe, true) == Json{{"kv_cache", "fp8"}});
  // Values of vLLM's and SGLang's option of that name.
  for (const char* fp8 : {"fp8_e4m3", "fp8_e5m2", "fp8_inc"})
    CHECK(asked("", fp8, moe, true) == Json{{"kv_cache", "fp8"}});
  for (const char* bf16 : {"bf16", "bfloat16", "float16"})
    CHECK(asked("", bf16, moe, true) == Json{{"kv_cache", "bf16"}});
  CHECK(asked("", "auto", moe, true).is_null());
  CHECK_THROWS_WITH(asked("", "fp8_ds_mla", moe, true), Contains("\"fp8_ds_mla\""));
  CHECK_THROWS_WITH(asked("fp9", "", moe, true), Contains("--precision") && Contains("nvfp4"));
  CHECK_THROWS_WITH(asked("fp8/", "", moe, true), Contains("--precision"));
  CHECK_THROWS_WITH(asked("", "fp9", moe, true), Contains("--kv-cache-dtype"));
}

TEST_CASE("pools: the best prefills of each depth, and decode on all that is left") {
  // A pipeline that is bounded lower than four flat layouts; groups of 12 leave GPUs over.
  const std::vector<BoundedShape> bounded{
      shape(4, 1, 100, 50), shape(8, 1, 99, 60), shape(6, 1, 98, 55),
      shape(5, 1, 97, 40),  shape(3, 2, 90, 30), shape(2, 2, 89, 30),
      shape(4, 2, 88, 30),  shape(1, 2, 87, 30), shape(12, 1, 70, 100)};
  MoeModel model;
  model.experts = 120;  // which all of them divide
  const std::vector<PlannedDeployment> all = pools(bounded, model, one_domain());
  std::set<std::pair<int, int>> prefill;  // dp and depth
  bool wide = false;
  for (const PlannedDeployment& planned : all) {
    REQUIRE(planned.apart());
    const PlannedGroup &p = *planned.prefill, &d = planned.decode;
    CHECK(gpus_of(p) + gpus_of(d) <= 32);
    prefill.emplace(p.parallel.dp, p.parallel.pp);
    CHECK(d.parallel.ep == d.parallel.dp);
    if (d.parallel.dp > 12) {
      wide = true;
      CHECK(gpus_of(p) + gpus_of(d) == 32);
      CHECK(d.instances == 1);
    }
  }
  CHECK(distinct(all));
  CHECK(prefill == std::set<std::pair<int, int>>{{4, 1}, {8, 1}, {6, 1}, {3, 2}, {2, 2}, {1, 2}});
  CHECK(wide);
}

TEST_CASE("pools: a group is widened to no more GPUs than experts or an NVLink domain") {
  const std::vector<BoundedShape> bounded{shape(4, 1, 100, 50), shape(12, 1, 70, 100)};
  const auto widest = [&](const MoeModel& model, const ClusterSpec& cluster) {
    int most = 0;
    for (const PlannedDeployment& planned : pools(bounded, model, cluster))
      most = std::max(most, planned.decode.parallel.dp);
    return most;
  };
  const int wide = widest(some_model(), one_domain());
  CHECK(wide > 12);
  MoeModel few = some_model();
  few.experts = 12;
  CHECK(widest(few, one_domain()) == 12);
  ClusterSpec nodes = one_domain();
  nodes.scale_up_domain = 8;
  CHECK(widest(some_model(), nodes) == 12);
}

TEST_CASE("what prefills is laid out in every other way on as many GPUs") {
  const PlannedDeployment planned = some_pools().front();
  const std::vector<PlannedDeployment> all =
      with_prefill_layouts(planned, some_model(), one_domain(), Layouts::usual);
  REQUIRE(all.front() == planned);
  CHECK(distinct(all));
  // One that travels by DeepEP already is not looked at twice.
  PlannedDeployment direct = planned;
  direct.prefill->travel = Travel::deep_ep;
  CHECK(distinct(with_prefill_layouts(direct, some_model(), one_domain(), Layouts::usual)));
  std::set<int> depths;
  for (const PlannedDeployment& other : all) {
    CHECK(gpus_of(*other.prefill) == gpus_of(*planned.prefill));
    CHECK(other.decode == planned.decode);
    depths.insert(other.prefill->parallel.pp);
  }
  CHECK(depths == std::set<int>{1, 2, 4});
}

TEST_CASE("all layouts of what prefills are the usual ones, and each with PCP over its ranks") {
  const PlannedDeployment planned = some_pools().front();
  const auto of = [&](Layouts which) {
    return with_prefill_layouts(planned, some_model(), one_domain(), which);
  };
  std::vector<PlannedDeployment> all = of(Layouts::all);
  CHECK(distinct(all));
  std::set<int> shared;
  std::erase_if(all, [&](const PlannedDeployment& other) {
    const ParallelPlan& plan = other.prefill->parallel;
    if (plan.pcp == 1) return false;
    CHECK(plan.pcp == plan.tp);
    CHECK_THAT(other.shape(), Contains(fmt::format("tp{} pcp{}", plan.tp, plan.pcp)));
    shared.insert(plan.pcp);
    return true;
  });
  CHECK(shared == std::set<int>{2, 4});
  CHECK(all == of(Layouts::usual));
}

TEST_CASE("a pool that only decodes has no prompts to share") {
  BoundedShape divided = shape(4, 1, 200, 200);
  divided.shape.decode.parallel = {.dp = 2, .tp = 2, .ep = 4, .pcp = 2};
  const std::vector<PlannedDeployment> all =
      pools({divided, shape(4, 1, 100, 50)}, some_model(), one_domain());
  REQUIRE_FALSE(all.empty());
  for (const PlannedDeployment& each : all) CHECK(each.decode.parallel.pcp == 1);
  CHECK(std::ranges::any_of(
      all, [](const PlannedDeployment& each) { return each.prefill->parallel.pcp == 2; }));
}

TEST_CASE("experts and their exchange in one kernel, where whole experts are over all GPUs") {
  const PlannedDeployment together = shape(4, 1, 100, 50).shape;
  const std::vector<PlannedDeployment> fused = with_one_kernel(together);
  REQUIRE(fused.size() == 2);
  CHECK(fused.front() == together);
  CHECK(fused.back().routing() == "even+MegaMoE");
  PlannedDeployment sliced = together;
  sliced.decode.parallel.ep = 2;
  CHECK(with_one_kernel(sliced).size() == 1);
  PlannedDeployment gathered = together;  // METRO's steps gather tokens
  gathered.metro = true;
  CHECK(with_one_kernel(gathered).size() == 1);
  PlannedDeployment apart = some_pools().front();
  CHECK(with_one_kernel(apart).size() == 3);
  CHECK(with_one_kernel(apart).back().prefill->travel == Travel::mega_moe);
}

TEST_CASE("where nothing prefills apart there are no other layouts of it") {
  const PlannedDeployment together = shape(4, 1, 100, 50).shape;
  CHECK(with_prefill_layouts(together, some_model(), one_domain(), Layouts::all) ==
        std::vector{together});
}

TEST_CASE("of the usual layouts those are looked at that the engine can start") {
  const MoeModel model =
      read_model(ConfigNode::from_file(test::source_dir() / "models/zoo" / "qwen3_30b_a3b.json"));
  const auto all = shapes(PlannedDeployment(), model, one_domain());
  const auto mixes = [](const PlannedDeployment& planned) {
    return planned.decode.parallel.dp > 1 && planned.decode.parallel.tp > 1;
  };
  const auto left = [&](const char* engine, Layouts which) {
    return startable(all, {{"engine", {{"name", engine}}}}, model, PrecisionPlan{}, which);
  };
  REQUIRE(std::ranges::any_of(all, mixes));
  CHECK(std::ranges::none_of(left("trtllm", Layouts::usual), mixes));
  CHECK(std::ranges::count_if(all, mixes) + std::ssize(left("trtllm", Layouts::usual)) ==
        std::ssize(all));
  for (const char* engine : {"sglang", "none"}) CHECK(left(engine, Layouts::usual) == all);
  CHECK(left("trtllm", Layouts::all) == all);
  PlannedDeployment apart = all.front();
  apart.prefill = std::ranges::find_if(all, mixes)->decode;
  CHECK(startable({apart}, {{"engine", {{"name", "trtllm"}}}}, model, {}, Layouts::usual).empty());
}

TEST_CASE("vLLM has one way to the experts for both phases, and no stages where it decodes apart") {
  const MoeModel model =
      read_model(ConfigNode::from_file(test::source_dir() / "models/zoo" / "qwen3_30b_a3b.json"));
  const auto all = shapes(PlannedDeployment(), model, one_domain());
  const auto left = [&](std::vector<PlannedDeployment> planned) {
    return startable(std::move(planned), {{"engine", {{"name", "vllm"}}}}, model, {},
                     Layouts::usual);
  };
  std::vector<PlannedDeployment> one_way = all;
  for (PlannedDeployment& planned : one_way)
    if (planned.decode.travel == Travel::deep_ep) planned.decode.travel = Travel::all_to_all;
  REQUIRE(one_way != all);
  CHECK(left(all) == one_way);
  // Apart each server does one of them.
  PlannedDeployment apart = *std::ranges::find_if(
      all, [](const auto& planned) { return planned.decode.travel == Travel::deep_ep; });
  apart.prefill = apart.decode;
  CHECK(left({apart}) == std::vector{apart});
  apart.prefill = PlannedGroup{.parallel = {1, 1, 1, 2}};
  CHECK(left({apart}) == std::vector{apart});
  apart.decode = {.parallel = {1, 1, 1, 2}};
  CHECK(left({apart}).empty());
}

TEST_CASE("SGLang starts no slices of fp8 experts that are no whole blocks") {
  // Experts of 768: two parts are three blocks each, four are of 192.
  const MoeModel model =
      read_model(ConfigNode::from_file(test::source_dir() / "models/zoo" / "qwen3_30b_a3b.json"));
  const auto starts = [&](const char* engine, int tp, Precision experts) {
    PlannedDeployment planned;
    planned.decode.parallel = {1, tp, 1, 1};
    PrecisionPlan precision;
    precision.experts = experts;
    return !startable({planned}, {{"engine", {{"name", engine}}}}, model, precision, Layouts::usual)
                .empty();
  };
  CHECK(starts("sglang", 2, Precision::fp8_block));
  CHECK_FALSE(starts("sglang", 4, Precision::fp8_block));
  CHECK(starts("sglang", 4, Precision::fp8));
  CHECK(starts("vllm", 4, Precision::fp8_block));
}

TEST_CASE("EP that does not divide the experts has copies that fill its GPUs, or is not tried") {
  const MoeModel model =
      read_model(ConfigNode::from_file(test::source_dir() / "models/zoo" / "qwen3_30b_a3b.json"));
  ClusterSpec three = one_domain();
  three.nodes = 1;
  three.gpus_per_node = three.scale_up_domain = 3;
  const auto all = shapes(PlannedDeployment(), model, three);
  const auto by_three = [](const PlannedDeployment& planned) {
    return planned.decode.parallel.ep == 3;
  };
  REQUIRE(std::ranges::any_of(all, by_three));
  for (const PlannedDeployment& planned : all)  // 128 experts: 43 slots on each of three GPUs
    CHECK(planned.replication == (by_three(planned) ? 129. / 128 : 1));
  const auto left = [&](Precision experts) {
    PrecisionPlan precision;
    precision.experts = experts;
    return startable(all, {{"engine", {{"name", "sglang"}}}}, model, precision, Layouts::usual);
  };
  CHECK(left(Precision::bf16) == all);
  CHECK(std::ranges::none_of(left(Precision::mxfp4), by_three));
  const auto pairs = [](const PlannedDeployment& planned) {
    return planned.decode.parallel.gpus() == 2 && planned.decode.instances == 1;
  };
  CHECK(std::ranges::any_of(all, pairs));  // one of three GPUs is idle
}

TEST_CASE("all layouts are the usual ones, and PCP, DCP, slices, GPUs for experts alone") {
  ClusterSpec node = one_domain();
  node.nodes = 1;
  node.scale_up_domain = 8;
  const auto looked_at = [&](const char* name, Layouts which) {
    const MoeModel model = read_model(
        ConfigNode::from_file(test::source_dir() / "models/zoo" / (std::string(name) + ".json")));
    return shapes(PlannedDeployment(), model, node, which);
  };
  using Words = std::set<std::string>;
  // DCP, "tp dcp". Latent attention: over all of tp or half of it. Four KV heads: over two of tp 8.
  for (const auto& [name, stripes] :
       {std::pair{"deepseek_v3", Words{"8 8", "8 4", "4 4", "4 2", "2 2"}},
        std::pair{"qwen3_235b_a22b", Words{"8 2"}}}) {
    const std::vector<PlannedDeployment> usual = looked_at(name, Layouts::usual);
    std::vector<PlannedDeployment> all = looked_at(name, Layouts::all);
    Words striped, sliced, apart, divided;
    std::erase_if(all, [&](const PlannedDeployment& planned) {
      const ParallelPlan& plan = planned.decode.parallel;
      const int dp = plan.dp, tp = plan.tp, ep = plan.ep;
      const bool between = ep > 1 && ep < dp * tp;
      if (plan.pcp > 1) {
        CHECK(plan.pcp == tp);
        CHECK_FALSE(planned.plain());
        divided.insert(fmt::format("{} {} {}", dp, tp, ep));
        return true;
      }
      if (plan.dcp == 1 && !plan.afd() && !between) return false;
      if (plan.dcp > 1) {
        striped.insert(fmt::format("{} {}", tp, plan.dcp));
        CHECK_THAT(planned.shape(), Contains("dcp"));
        CHECK_FALSE(planned.plain());
      } else if (plan.afd()) {
        apart.insert(fmt::format("{} {} {}", dp, tp, ep));
        CHECK_THAT(planned.shape(), Contains(fmt::format("ffn{}", ep)));
        CHECK_FALSE(planned.plain());
        // Attention's GPUs and experts' GPUs send to each other: nothing is gathered.
        CHECK(planned.decode.travel != Travel::as_engine);
        for (const PlannedDeployment& copies : with_copies(planned, some_model()))
          CHECK_FALSE(copies.metro);
      } else {
        sliced.insert(fmt::format("{} {} {}", dp, tp, ep));
      }
      return true;
    });
    CHECK(all == usual);
    CHECK(striped == stripes);
    // "dp tp ep": of usual groups of 2, 4 and 8 with ranks of several GPUs.
    CHECK(divided.contains("1 8 8"));
    CHECK(divided.contains("4 2 8"));
    CHECK_FALSE(divided.contains("8 1 8"));
    // "dp tp ep" of groups of 4 and 8; two GPUs have nothing between 1 and 2. Pipelines of two
    // stages have those of groups of 4.
    CHECK(sliced == Words{"1 4 2", "2 2 2", "4 1 2", "1 8 2", "1 8 4", "2 4 2", "2 4 4", "4 2 2",
                          "4 2 4", "8 1 2", "8 1 4"});
    // "dp tp ffn_gpus" of groups of 2, 4 and 8: heads are not cut in 3 or 6.
    CHECK(apart == Words{"1 1 1", "3 1 1", "2 1 2", "1 2 2", "1 1 3", "6 1 2", "4 1 4", "1 4 4",
                         "2 1 6", "1 2 6"});
  }
}

TEST_CASE("plain shapes are tensor parallelism alone, with or without experts over the same GPUs") {
  const auto plain = [](int dp, int tp, int ep, int pp) {
    PlannedDeployment planned;
    planned.decode.parallel = {dp, tp, ep, pp};
    return planned.plain();
  };
  CHECK(plain(1, 8, 1, 1));
  CHECK(plain(1, 8, 8, 1));
  CHECK(plain(1, 1, 1, 1));
  CHECK_FALSE(plain(2, 4, 8, 1));
  CHECK_FALSE(plain(1, 4, 4, 2));
  const PlannedDeployment apart = some_pools().front();
  CHECK(apart.apart());
  CHECK_FALSE(apart.plain());
}

TEST_CASE("what is chosen stands in an experiment, and is found there again") {
  for (const char* engine : {"vllm", "none"}) {
    const ServingQuestion question{.model = "qwen3_30b_a3b", .cluster = "h100x8", .engine = engine};
    Json base = base_deployment(question, some_model(), std::nullopt);
    CHECK(choices_in(base) == PlannedDeployment());
    base["speculative"] = {{"num_speculative_tokens", 3}, {"acceptance_rate", .7}};
    std::vector<PlannedDeployment> planned =
        shapes(choices_in(base), some_model(), one_domain(), Layouts::all);
    std::ranges::move(some_pools(), std::back_inserter(planned));
    // In the pools: prompts shared by tokens, and one kernel.
    planned.push_back(planned.back());
    planned.back().prefill->parallel = {.dp = 1, .tp = 4, .ep = 4, .pcp = 4};
    planned.back().decode.travel = Travel::mega_moe;
    for (const PlannedDeployment& each : planned) {
      for (PlannedDeployment other : with_copies(each, some_model())) {
        if (other.metro && other.decode.travel == Travel::mega_moe) continue;
        CAPTURE(engine, other.shape(), other.routing());
        other.chunk = 4096;
        other.sequences = 64;
        other.drafts = 3;
        const Json experiment = with_choices(base, other);
        CHECK(choices_in(experiment) == other);
        CHECK(with_choices(experiment, other) == experiment);
        // What was chosen before leaves nothing behind.
        CHECK(with_choices(experiment, each) == with_choices(base, each));
        CHECK(experiment.at("workload") == base.at("workload"));
        CHECK(experiment.contains("pools") == other.apart());
        // Drafts take tokens of a step that decodes alone.
        if (other.apart() && other.drafts > 0)
          CHECK(experiment.at("pools").at("decode").at("scheduling").at("max_num_batched_tokens") ==
                64 * (1 + other.drafts));
      }
    }
  }
}

}  // namespace
}  // namespace moesim::test_deployments
