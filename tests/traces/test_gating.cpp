// SPDX-License-Identifier: Apache-2.0
// Do generated traces have the statistics that they are made for?
#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <set>

#include <fmt/format.h>

#include "hardware/at.hpp"
#include "sim/placement/placement.hpp"
#include "tests/support.hpp"
#include "tests/temporary.hpp"
#include "tests/trace_meta.hpp"
#include "traces/gating/expert_sampler.hpp"
#include "traces/gating/gating.hpp"
#include "traces/gating/noise.hpp"
#include "traces/halves.hpp"
#include "traces/npy.hpp"
#include "traces/trace_statistics.hpp"

namespace moesim::test_gating {

using namespace moesim::test;

namespace {

MoeModel model_of(int layers, int experts, int k, int groups = 1, int groups_per_token = 1) {
  MoeModel model;
  model.name = "test model";
  model.experts = experts;
  model.experts_per_token = k;
  model.expert_groups = groups;
  model.groups_per_token = groups_per_token;
  model.layers.resize(static_cast<std::size_t>(layers));
  return model;
}

RoutingTrace generated(const std::string& gating, const MoeModel& model, std::uint64_t seed = 1) {
  return gatings().make(config(gating))->trace(model, seed);
}

PopularitySkew skew_of(const RoutingTrace& trace) {
  return popularity_skew(trace.expert_counts(), trace.num_experts());
}

RoutingTrace one_workload(const RoutingTrace& trace) {
  std::vector<TraceRequest> requests;
  for (const TraceRequest& request : trace.requests())
    if (request.workload == 0) requests.push_back(request);
  return trace.with_requests(std::move(requests));
}

std::vector<int> row(const RoutingTrace& trace, std::int64_t index) {
  return trace.visit([&](auto ids) {
    const auto width = static_cast<std::size_t>(trace.row_ids());
    const auto ids_of_row = ids.subspan(static_cast<std::size_t>(index) * width, width);
    return std::vector<int>(ids_of_row.begin(), ids_of_row.end());
  });
}

bool equal_rows(const RoutingTrace& a, const RoutingTrace& b) {
  if (a.tokens() != b.tokens()) return false;
  for (std::int64_t i = 0; i < a.tokens(); ++i)
    if (row(a, i) != row(b, i)) return false;
  return true;
}

/// A trace written by hand: 2 requests of 2 rows, 2 layers, top-1 of 4.
std::filesystem::path tiny_trace(const TemporaryFolder& folder) {
  const std::filesystem::path directory = folder / "tiny";
  const TraceMeta meta = test::trace_meta("tiny", 4, 1, {0, 1});
  write_trace(RoutingTrace(meta, {"law", "math"}, {{0, 2, 0, 0, false}, {2, 2, 0, 1, true}},
                           {0, 1, 2, 3, 0, 2, 1, 3}),
              directory);
  return directory;
}

}  // namespace

TEST_CASE("an outline has two requests of each workload, whose experts are sound but not drawn") {
  const MoeModel model = model_of(3, 10, 4);
  for (const std::string name : {"uniform", "popularity", "topical"}) {
    CAPTURE(name);
    const auto gating = gatings().make(config(
        R"({"type": ")" + name +
        R"(", "requests": 5, "prompt_rows": 2, "decode_rows": 3, "workloads": ["a", "b"]})"));
    const RoutingTrace drawn = gating->trace(model, 1), outline = gating->outline(model, 1);
    outline.check_ids();
    CHECK(outline.layers() == drawn.layers());
    CHECK(outline.tokens() == 2 * 2 * (2 + 3));
    CHECK(outline.meta().phases == drawn.meta().phases);
    CHECK(std::ranges::equal(outline.workloads(), drawn.workloads()));
    REQUIRE(outline.requests().size() == 4);
    for (std::size_t i = 0; i < outline.requests().size(); ++i) {
      const TraceRequest &a = outline.requests()[i], &b = drawn.requests()[i];
      CHECK(std::tie(a.row_start, a.num_tokens, a.prompt_rows, a.workload) ==
            std::tie(b.row_start, b.num_tokens, b.prompt_rows, b.workload));
    }
    CHECK(row(outline, 1) == std::vector<int>{2, 3, 4, 5, 6, 7, 8, 9, 0, 1, 2, 3});
  }
}

TEST_CASE("normals that are added together are those of the stream, in order") {
  constexpr double spread = .7;
  // More than a block, and not a multiple of one.
  std::vector<double> one_by_one(1000, 1.5), together(1000, 1.5);
  Rng a(7, "normals"), b(7, "normals");
  for (double& value : one_by_one) value += spread * a.normal();
  add_normals(together, spread, b);
  for (std::size_t i = 0; i < together.size(); ++i)
    REQUIRE_THAT(together[i], WithinAbs(one_by_one[i], 1e-14));
  CHECK(a.bits() == b.bits());
}

// Builds with sanitizers have no code for wide vectors, others take the widest of the CPU.
TEST_CASE("normals that are added together are the same bits in vectors of any width") {
  std::vector<double> values(1000, 1.5);
  Rng rng(7, "normals");
  add_normals(values, .7, rng);
  CHECK(fnv1a({reinterpret_cast<const char*>(values.data()), 8 * values.size()}) ==
        0x710d39f40a11b4c2);
}

TEST_CASE("the alias method draws each item in proportion to its weight, however they lie") {
  const std::vector<double> weights{GENERATE(
      std::vector<double>{1, 2, 3, 4, 90}, std::vector<double>{5, 5, 5, 5},
      std::vector<double>{100, 1, 1, 1, 1, 1, 1}, std::vector<double>{1, 50, 2, 49, 3, 48, 7})};
  WeightedDraw draw;
  draw.set_weights(std::vector<double>(300, 1.0));  // what was there before leaves nothing
  draw.set_weights(weights);
  Rng rng(1, "alias");
  constexpr int draws = 200'000;
  std::vector<int> seen(weights.size());
  for (int i = 0; i < draws; ++i) ++seen.at(draw.draw(rng));
  for (std::size_t i = 0; i < weights.size(); ++i)
    CHECK_THAT(seen[i] / double{draws}, WithinAbs(weights[i] / draw.total(), .005));
}

TEST_CASE("the sampler draws without replacement in proportion to weight") {
  // Weights 1, 2, 5, two picks: P(2 then 1) = 5/8 * 2/3, P(2 then 0) = 5/8 * 1/3, ...
  ExpertSampler sampler(3, 2, 1, 1);
  sampler.set_weights(std::vector<double>{1, 2, 5});
  Rng rng(1, "test");
  constexpr int draws = 200'000;
  std::array<std::array<int, 3>, 3> seen{};
  std::array<std::uint16_t, 2> picks{};
  for (int i = 0; i < draws; ++i) {
    sampler.first(picks, rng);
    ++seen[picks[0]][picks[1]];
  }
  const std::array<double, 3> weight{1, 2, 5};
  for (std::size_t a = 0; a < 3; ++a)
    for (std::size_t b = 0; b < 3; ++b) {
      const double expected = a == b ? 0 : weight[a] / 8 * weight[b] / (8 - weight[a]);
      CHECK_THAT(seen[a][b] / double{draws}, WithinAbs(expected, 0.005));
    }
}

TEST_CASE("the sampler finishes where one expert has nearly all the weight") {
  ExpertSampler sampler(8, 8, 1, 1);
  sampler.set_weights(std::vector<double>{1e12, 1, 1, 1, 1, 1, 1, 1});
  Rng rng(1, "test");
  std::array<std::uint16_t, 8> picks{};
  sampler.first(picks, rng);
  CHECK(picks[0] == 0);
  CHECK(std::set<int>(picks.begin(), picks.end()).size() == 8);
}

TEST_CASE("a limit of all groups is no limit") {
  // Equal weights: every group limit leaves the marginals uniform, k = 2 of 8 each.
  for (const int groups_per_token : {1, 2, 4}) {
    ExpertSampler sampler(8, 2, 4, groups_per_token);
    sampler.set_weights(std::vector<double>(8, 1.0));
    Rng rng(1, "test");
    std::array<std::uint16_t, 2> picks{};
    std::array<int, 8> seen{};
    constexpr int draws = 80'000;
    for (int i = 0; i < draws; ++i) {
      sampler.first(picks, rng);
      for (const std::uint16_t pick : picks) ++seen[pick];
      if (groups_per_token == 1) CHECK(picks[0] / 2 == picks[1] / 2);
    }
    for (const int count : seen) CHECK_THAT(count / double{draws}, WithinAbs(0.25, 0.006));
  }
}

TEST_CASE("group-limited tokens stay within their groups and prefer the strong ones") {
  const MoeModel model = model_of(2, 64, 8, 8, 4);
  const RoutingTrace trace = generated(
      R"({"type": "topical", "preset": "deepseek_r1", "requests": 8, "prompt_rows": 0})", model);
  trace.check_ids();
  for (std::int64_t token = 0; token < trace.tokens(); ++token) {
    const std::vector<int> picks = row(trace, token);
    for (auto layer = picks.begin(); layer != picks.end(); layer += 8) {
      std::set<int> groups;
      std::for_each(layer, layer + 8, [&](int expert) { groups.insert(expert / 8); });
      REQUIRE(groups.size() <= 4);
    }
  }
}

TEST_CASE("every generator gives distinct ids in range and the shape asked for") {
  const MoeModel model = model_of(3, 16, 4);
  for (const std::string type : {"uniform", "popularity", "topical"}) {
    const RoutingTrace trace = generated(
        R"({"type": ")" + type +
            R"(", "requests": 5, "prompt_rows": 2, "decode_rows": 3, "workloads": ["a", "b"]})",
        model);
    trace.check_ids();
    CHECK(trace.tokens() == 25);
    CHECK(trace.layers() == 3);
    CHECK(trace.experts_per_token() == 4);
    CHECK(trace.meta().synthetic);
    CHECK(trace.recorded("prefill"));
    CHECK(trace.recorded("decode"));
    CHECK(trace.requests()[3].row_start == 15);
    CHECK(trace.requests()[3].prompt_rows == 2);
    CHECK(trace.requests()[3].workload == 1);
  }
}

TEST_CASE("the same seed gives the same rows, another seed others") {
  const MoeModel model = model_of(2, 16, 4);
  const std::string gating = R"({"type": "topical", "requests": 9})";
  CHECK(equal_rows(generated(gating, model), generated(gating, model)));
  CHECK_FALSE(equal_rows(generated(gating, model), generated(gating, model, 2)));
}

TEST_CASE("uniform gating is uniform") {
  const RoutingTrace trace = generated(R"({"type": "uniform"})", model_of(4, 32, 4));
  const PopularitySkew skew = skew_of(trace);
  CHECK(skew.max_over_mean.max < 1.05);  // 8192 tokens per expert: 1.1 % standard deviation
  const std::array lags{1};
  CHECK_THAT(token_overlap(trace, lags, 1).lags[0].share->mean, WithinAbs(0.125, 0.005));
}

TEST_CASE("popularity gating has skew and no memory") {
  const RoutingTrace trace =
      generated(R"({"type": "popularity", "popularity_sigma": 0.6, "popularity_spread": 0})",
                model_of(16, 256, 8));
  // Log-normal of sigma s: variation sqrt(exp(s^2) - 1) = 0.66 and top-12.5 % share
  // 1 - Phi(1.150 - s) = 0.29 of the weights; picks are a little flatter.
  const PopularitySkew skew = skew_of(trace);
  CHECK_THAT(skew.variation.mean, WithinAbs(0.63, 0.05));
  CHECK_THAT(skew.top_eighth_share.mean, WithinAbs(0.285, 0.02));
  const std::array lags{1};
  const TokenOverlap overlap = token_overlap(trace, lags, 1);
  CHECK_THAT(overlap.lags[0].share->mean, WithinAbs(overlap.independent, 0.003));
}

TEST_CASE("the gpt_oss preset has the statistics of gpt-oss-20b") {
  const RoutingTrace trace =
      generated(R"({"type": "topical", "preset": "gpt_oss"})", model_of(24, 32, 4));
  const PopularitySkew pooled = skew_of(trace);
  CHECK_THAT(pooled.max_over_mean.mean, WithinRel(2.62, 0.15));
  CHECK_THAT(pooled.variation.mean, WithinRel(0.71, 0.10));
  CHECK_THAT(pooled.top_eighth_share.mean, WithinRel(0.28, 0.10));
  CHECK_THAT(pooled.gini.mean, WithinRel(0.40, 0.10));
  CHECK(pooled.min_over_mean.mean < 0.1);
  const PopularitySkew single = skew_of(one_workload(trace));
  CHECK_THAT(single.max_over_mean.mean, WithinRel(4.1, 0.15));
  CHECK_THAT(single.variation.mean, WithinRel(1.0, 0.10));
  const std::array lags{1, 128};
  const TokenOverlap overlap = token_overlap(trace, lags, 1);
  CHECK_THAT(overlap.lags[0].share->mean, WithinAbs(0.44, 0.02));
  CHECK_THAT(overlap.lags[1].share->mean, WithinAbs(0.324, 0.025));
  CHECK_THAT(*overlap.same_request, WithinAbs(0.315, 0.02));
  CHECK_THAT(*overlap.different_requests, WithinAbs(0.19, 0.01));
  CHECK_THAT(layer_predictability(trace, 1)->recall_k.mean, WithinAbs(0.62, 0.04));
  const std::array batches{8, 32};
  const auto distinct = distinct_experts(trace, batches, 1);
  CHECK_THAT(distinct[0].decode, WithinRel(17.9, 0.02));
  CHECK_THAT(distinct[1].decode, WithinRel(26.9, 0.02));
  CHECK_THAT(*distinct[1].chunk, WithinRel(19.0, 0.15));
  CHECK_THAT(distinct[0].variance_ratio, WithinRel(8.3, 0.20));
  CHECK(distinct[1].variance_ratio > 2);  // 4.8: large batches still vary too little
}

TEST_CASE("the deepseek_v2_lite preset has the statistics of DeepSeek-V2-Lite") {
  const RoutingTrace trace =
      generated(R"({"type": "topical", "preset": "deepseek_v2_lite"})", model_of(26, 64, 6));
  const PopularitySkew pooled = skew_of(trace);
  CHECK_THAT(pooled.max_over_mean.mean, WithinRel(2.73, 0.15));
  CHECK_THAT(pooled.variation.mean, WithinRel(0.51, 0.12));
  CHECK_THAT(pooled.top_eighth_share.mean, WithinRel(0.25, 0.10));
  const std::array lags{1};
  const TokenOverlap overlap = token_overlap(trace, lags, 1);
  CHECK_THAT(overlap.lags[0].share->mean, WithinAbs(0.279, 0.02));
  CHECK_THAT(*overlap.same_request, WithinAbs(0.167, 0.015));
  CHECK_THAT(*overlap.different_requests, WithinAbs(0.118, 0.01));
  CHECK_THAT(layer_predictability(trace, 1)->recall_k.mean, WithinAbs(0.575, 0.04));
  const std::array batches{8, 32};
  const auto distinct = distinct_experts(trace, batches, 1);
  CHECK_THAT(distinct[0].decode, WithinRel(32.1, 0.03));
  CHECK_THAT(distinct[1].decode, WithinRel(56.4, 0.02));
  CHECK_THAT(*distinct[1].chunk, WithinRel(47.2, 0.05));
  CHECK_THAT(distinct[0].variance_ratio, WithinRel(11.4, 0.30));
  CHECK(distinct[1].variance_ratio > 2.5);  // 8.3
}

TEST_CASE("the deepseek_r1 preset has the per-layer skew of DeepSeek-R1 on GPQA") {
  const RoutingTrace trace = generated(
      R"({"type": "topical", "preset": "deepseek_r1", "requests": 64, "prompt_rows": 0,
          "decode_rows": 100})",
      model_of(58, 256, 8, 8, 4));
  const std::vector<std::int64_t> counts = trace.expert_counts();
  std::vector<double> hottest;
  for (auto layer = counts.begin(); layer != counts.end(); layer += 256)
    hottest.push_back(static_cast<double>(*std::max_element(layer, layer + 256)) /
                      (6400 * 8 / 256));
  std::sort(hottest.begin(), hottest.end());
  CHECK_THAT(hottest[hottest.size() / 2], WithinRel(6.1, 0.15));
  CHECK(hottest.front() > 2.5);  // 3.2 to 13.3
  CHECK(hottest.back() < 18);
  const PopularitySkew pooled = skew_of(trace);
  CHECK_THAT(pooled.top_eighth_share.mean, WithinRel(0.313, 0.08));
  CHECK_THAT(pooled.top_eighth_share.max, WithinAbs(0.45, 0.07));  // .497
}

TEST_CASE("the deepseek_r1 preset has the histogram of DeepSeek-R1's experts on GPQA") {
  if (!has_shared()) {
    WARN("skipped: no shared data");
    return;
  }
  const Json stats =
      ConfigNode::from_file(shared_dir() / "data/routing/deepseek-r1-stats/per_layer_stats.json")
          .json();
  // Experts per layer by their share of the selections, in bins of 0.519 %; mean over layers.
  constexpr std::size_t bins = 10;
  std::array<double, bins> recorded{}, made{};
  const Json& layers = stats.at("gpqa_hist_10bins_of_width_0.519pct_counts");
  for (const Json& layer : layers)
    for (std::size_t i = 0; i < bins; ++i)
      recorded[i] += layer.at(i).get<double>() / static_cast<double>(layers.size());
  const std::vector<std::int64_t> counts =
      generated(R"({"type": "topical", "preset": "deepseek_r1", "requests": 64, "prompt_rows": 0,
                    "decode_rows": 100})",
                model_of(58, 256, 8, 8, 4))
          .expert_counts();
  for (const std::int64_t count : counts) {
    const double percent = 100 * static_cast<double>(count) / (6400 * 8);
    made[std::min(bins - 1, static_cast<std::size_t>(percent / 0.519))] += 1.0 / 58;
  }
  CHECK_THAT(made[0], WithinRel(recorded[0], 0.03));
  CHECK_THAT(made[1], WithinRel(recorded[1], 0.15));
  const auto hot = [](const auto& histogram) {
    return std::accumulate(histogram.begin() + 2, histogram.end(), 0.0);
  };
  CHECK_THAT(hot(made), WithinRel(hot(recorded), 0.15));
}

TEST_CASE("the deepseek_r1_translation preset predicts what EPLB does for DeepSeek-R1") {
  // 1,024 requests; EPLB sees half of each workload's, and a step holds eight tokens of each other
  // one: 4,096.
  const RoutingTrace trace = generated(
      R"({"type": "topical", "preset": "deepseek_r1_translation", "requests": 1024,
          "prompt_rows": 0, "decode_rows": 8})",
      model_of(58, 256, 8, 8, 4));
  Observation half;
  half.fitted_half = true;
  const ExpertStatistics seen = observe(std::array{&trace}, half);
  const std::vector<char> fitted = fitted_half(trace);
  std::vector<std::size_t> others;
  for (std::size_t i = 0; i < fitted.size(); ++i) {
    if (fitted[i] == 0) others.push_back(i);
  }
  const std::vector<std::int64_t> step = trace.expert_counts(others);
  // Of the busiest rank and of the hottest slot over the mean, an expert's tokens split evenly over
  // its slots; mean over layers.
  struct Figures {
    double rank = 0, slot = 0;
  };
  const auto figures = [&](const std::string& policy, int slots_per_gpu) {
    const auto placer = placers().make(config('"' + policy + '"'));
    Figures mean;
    std::size_t expert_of_layer = 0;
    for (const LayerPlacement& layer : place_all(*placer, {256, 32, slots_per_gpu}, seen)) {
      std::vector<double> of_rank(32);
      double hottest = 0;
      for (int slot = 0; slot < layer.slots(); ++slot) {
        const int expert = layer.expert_of_slot(slot);
        const double tokens =
            static_cast<double>(step[expert_of_layer + static_cast<std::size_t>(expert)]) /
            static_cast<double>(layer.slots_of(expert).size());
        of_rank[static_cast<std::size_t>(layer.gpu_of_slot(slot))] += tokens;
        hottest = std::max(hottest, tokens);
      }
      expert_of_layer += 256;
      mean.rank += *std::max_element(of_rank.begin(), of_rank.end()) / 1024 / 58;
      mean.slot += hottest / (4096 * 8.0 / layer.slots()) / 58;
    }
    return mean;
  };
  // TensorRT-LLM, tech blog 4, table 1. Fitted on:
  const Figures as_trained = figures("linear", 8);
  CHECK_THAT(as_trained.rank, WithinRel(2.56, 0.05));
  CHECK_THAT(as_trained.slot, WithinRel(11.9, 0.05));
  // Predicted, with 32 redundant experts (TensorRT-LLM places without regard to expert groups):
  const Figures balanced = figures("eplb", 9);
  CHECK_THAT(balanced.rank, WithinRel(1.11, 0.10));
  CHECK_THAT(balanced.slot, WithinRel(2.8, 0.20));
}

TEST_CASE("the qwen3_one_workload preset activates as few experts as batches of Qwen3-30B-A3B") {
  const RoutingTrace trace =
      one_workload(generated(R"({"type": "topical", "preset": "qwen3_one_workload", "requests": 128,
                    "prompt_rows": 0, "decode_rows": 128})",
                             model_of(48, 128, 8)));
  const std::array batches{64, 1024};
  const auto distinct = distinct_experts(trace, batches, 1);
  CHECK_THAT(distinct[0].decode, WithinRel(60.0, 0.10));
  CHECK_THAT(distinct[1].decode, WithinRel(83.0, 0.10));
  const PopularitySkew skew = skew_of(trace);
  CHECK_THAT(skew.max_over_mean.mean, WithinRel(12.7, 0.15));
  CHECK_THAT(skew.variation.mean, WithinRel(2.1, 0.10));
  CHECK_THAT(skew.top_eighth_share.mean, WithinRel(0.71, 0.10));
}

TEST_CASE("the gemma4 preset has the skew of Gemma 4, all workloads and one") {
  const RoutingTrace trace =
      generated(R"({"type": "topical", "preset": "gemma4", "prompt_rows": 0, "decode_rows": 64})",
                model_of(30, 128, 8));
  const PopularitySkew pooled = skew_of(trace);
  CHECK_THAT(pooled.max_over_mean.mean, WithinRel(8.63, 0.15));
  CHECK_THAT(pooled.variation.mean, WithinRel(1.35, 0.10));
  CHECK_THAT(pooled.top_eighth_share.mean, WithinRel(0.47, 0.10));
  CHECK_THAT(skew_of(one_workload(trace)).variation.mean, WithinRel(1.45, 0.10));
  const std::array lags{1};
  CHECK_THAT(token_overlap(trace, lags, 1).lags[0].share->mean, WithinAbs(0.41, 0.04));
}

TEST_CASE("the olmoe and mixtral presets have the skew of their counts") {
  const auto both = [](const char* preset, const MoeModel& model) {
    const RoutingTrace trace =
        generated(fmt::format(R"({{"type": "topical", "preset": "{}", "prompt_rows": 0,
                                   "decode_rows": 64}})",
                              preset),
                  model);
    return std::pair(skew_of(trace), skew_of(one_workload(trace)));
  };
  const auto [olmoe, olmoe_domain] = both("olmoe", model_of(16, 64, 8));
  CHECK_THAT(olmoe.max_over_mean.mean, WithinRel(2.67, 0.15));
  CHECK_THAT(olmoe.variation.mean, WithinRel(0.47, 0.12));
  CHECK_THAT(olmoe.top_eighth_share.mean, WithinRel(0.25, 0.10));
  CHECK_THAT(olmoe_domain.variation.mean, WithinRel(0.85, 0.15));  // .41 to 1.16
  const auto [mixtral, mixtral_domain] = both("mixtral", model_of(32, 8, 2));
  CHECK_THAT(mixtral.max_over_mean.mean, WithinRel(1.13, 0.05));
  CHECK_THAT(mixtral_domain.variation.mean, WithinRel(0.13, 0.15));  // .10 to .15
}

TEST_CASE("requests of the random_prompts preset have no domain") {
  const RoutingTrace trace =
      generated(R"({"type": "topical", "preset": "random_prompts"})", model_of(12, 64, 6));
  const double one = skew_of(one_workload(trace)).variation.mean;
  CHECK_THAT(one, WithinRel(skew_of(trace).variation.mean, 0.06));
  CHECK(layer_predictability(trace, 1)->recall_k.mean > 0.5);
}

TEST_CASE("layers are independent without topics and foretell each other with them") {
  const MoeModel model = model_of(12, 64, 4);
  const std::string plain = R"({"type": "topical", "preset": "deepseek_r1", "requests": 128)";
  const std::array batches{8};
  const RoutingTrace without = generated(plain + "}", model);
  CHECK_THAT(distinct_experts(without, batches, 1)[0].variance_ratio, WithinAbs(1.0, 0.15));
  const RoutingTrace with =
      generated(plain + R"(, "topics": 16, "topics_per_request": 4, "topic_sigma": 3})", model);
  CHECK(distinct_experts(with, batches, 1)[0].variance_ratio > 2);
  CHECK(layer_predictability(with, 1)->recall_k.mean >
        2 * layer_predictability(without, 1)->recall_k.mean);
}

TEST_CASE("recorded gating replays a trace of the same model as it stands") {
  const TemporaryFolder folder;
  const std::string directory = tiny_trace(folder).string();
  const RoutingTrace trace =
      generated(R"({"type": "recorded", "trace": ")" + directory + "\"}", model_of(2, 4, 1));
  CHECK(trace.tokens() == 4);
  CHECK(row(trace, 1) == std::vector{2, 3});
  CHECK(trace.meta().adapted.empty());
}

TEST_CASE(
    "recorded gating keeps the workloads asked for, and leaves loops out unless told not to") {
  const TemporaryFolder folder;
  const std::string start =
      R"({"type": "recorded", "trace": ")" + tiny_trace(folder).string() + "\", ";
  const MoeModel model = model_of(2, 4, 1);
  const std::string kept = R"("skip_repetition": false)";
  CHECK(
      generated(start + R"("workloads": ["math"], )" + kept + "}", model).requests()[0].row_start ==
      2);
  CHECK(generated(start + kept + "}", model).requests().size() == 2);
  CHECK(generated(start + R"("skip_repetition": true})", model).requests().size() == 1);
  CHECK(generated(start + R"("adapt": false})", model).requests().size() == 1);
  using Catch::Matchers::Contains;
  CHECK_THAT(config_error([&] { generated(start + R"("workloads": ["art"]})", model); }),
             Contains("it has: law, math"));
  CHECK_THAT(config_error([&] {
               generated(start + R"("workloads": ["math"], "skip_repetition": true})", model);
             }),
             Contains("leaves no request"));
}

TEST_CASE("a trace of another model is refused, or its layers replayed in turn if asked") {
  using Catch::Matchers::Contains;
  const TemporaryFolder folder;
  const std::string plain =
      R"({"type": "recorded", "trace": ")" + tiny_trace(folder).string() + "\"";
  const auto refused = [&](const std::string& gating, const MoeModel& model) {
    return config_error([&] { generated(gating, model); });
  };
  CHECK_THAT(refused(plain + "}", model_of(3, 4, 1)), Contains("\"adapt\": true"));
  CHECK_THAT(refused(plain + R"(, "adapt": true})", model_of(2, 8, 1)), Contains("not rescaled"));
  CHECK_THAT(refused(plain + R"(, "adapt": true})", model_of(2, 4, 2)), Contains("not rescaled"));
  CHECK_THAT(refused(R"({"type": "uniform"})", model_of(2, 0, 0)), Contains("no experts"));
  const RoutingTrace adapted = generated(plain + R"(, "adapt": true})", model_of(5, 4, 1));
  CHECK(row(adapted, 1) == std::vector{2, 3, 2, 3, 2});
  CHECK_THAT(adapted.meta().adapted, Contains("2 recorded MoE layers stand for 5"));
}

TEST_CASE("counts gating picks experts exactly as often as they were counted") {
  const TemporaryFolder folder;
  // 100 tokens of two of 6 experts: 0 in every token, 5 in none. Layer 1 the other way round, as
  // two steps that are added up.
  const std::array<std::int64_t, 3> shape{2, 2, 6};
  const std::array<std::int64_t, 24> counts{50, 25, 12, 8, 5, 0, 0, 2, 3, 10, 35, 50,
                                            50, 25, 13, 7, 5, 0, 0, 3, 2, 10, 35, 50};
  write_npy<std::int64_t>(folder / "chat.npy", shape, counts);
  const std::string start =
      R"({"type": "counts", "prompt_rows": 0, "file": ")" + (folder / "chat.npy").string() + "\"";
  const RoutingTrace trace =
      generated(start + R"(, "requests": 50, "decode_rows": 400})", model_of(2, 6, 2));
  trace.check_ids();
  CHECK(trace.workloads().front() == "chat");
  const std::vector<std::int64_t> drawn = trace.expert_counts();
  for (std::size_t i = 0; i < drawn.size(); ++i) {
    CAPTURE(i);
    const std::size_t layer = i / 6, expert = i % 6;
    const double p = double(counts[layer * 6 + expert] + counts[12 + layer * 6 + expert]) / 100;
    CHECK(std::abs(double(drawn[i]) - 20000 * p) <= 4 * std::sqrt(20000 * p * (1 - p)));
  }

  using Catch::Matchers::Contains;
  const auto refused = [&](const std::string& more, const MoeModel& model) {
    return config_error([&] { generated(start + more + "}", model); });
  };
  CHECK_THAT(refused("", model_of(2, 8, 2)), Contains("of 6 experts, the model test model has 8"));
  CHECK_THAT(refused("", model_of(3, 6, 2)), Contains("\"adapt\": true"));
  CHECK(generated(start + R"(, "adapt": true})", model_of(3, 6, 2)).layers() == 3);
  CHECK_THAT(refused("", model_of(2, 6, 3)),
             Contains("expert 0 with 100 of 200 choices; a token takes 3 experts"));
  CHECK_THAT(refused(R"(, "workloads": ["chat"])", model_of(2, 6, 2)), Contains("an .npz file"));
  // Means and shares are loads as counts are; nothing was counted below zero.
  const auto of_load = [&](std::array<double, 2> load) {
    write_npy<double>(folder / "load.npy", std::array<std::int64_t, 2>{1, 2}, load);
    return R"({"type": "counts", "requests": 1, "prompt_rows": 0, "decode_rows": 4000, "file": ")" +
           (folder / "load.npy").string() + "\"}";
  };
  const auto chosen = generated(of_load({1.5, 1.0}), model_of(1, 2, 1)).expert_counts();
  CHECK(std::abs(double(chosen[0]) - 2400) <= 4 * std::sqrt(4000 * .6 * .4));
  CHECK_THAT(config_error([&] {
               generated(of_load({-1, 1}), model_of(1, 2, 1));
             }),
             Contains("expert 0 in layer 0 is -1"));
}

// What is drawn has what was observed, within 2 %, for random targets that a popularity can have.
TEST_CASE("observed gating activates as many experts as were observed") {
  const MoeModel model = model_of(12, 128, 8);
  const std::string start = R"({"type": "observed", "requests": 256, "prompt_rows": 0, )";
  // Qwen3-30B-A3B as LLMServingSim counted: every choice at one token, .87 of even popularity in
  // mid-range.
  const auto even = [](int tokens) { return 128 * (1 - std::pow(1 - 8 / 128., tokens)); };
  const RoutingTrace trace =
      generated(start + fmt::format(R"("active_experts": [{{"tokens": 1, "experts": 8}},
                                                {{"tokens": 16, "experts": {}}}]}})",
                                    .87 * even(16)),
                model);
  trace.check_ids();
  for (const DistinctExperts& found : distinct_experts(trace, std::array{1, 16}, 1))
    CHECK_THAT(found.decode, WithinRel((found.batch == 1 ? 1 : .87) * even(found.batch), .02));

  Rng rng(1, "targets");
  for (int i = 0; i < 8; ++i) {
    // A curve of popularity gating, which has another shape, and of counts.
    const RoutingTrace source = generated(
        fmt::format(R"({{"type": "popularity", "requests": 256, "prompt_rows": 0, "decode_rows": 64,
                         "popularity_sigma": {}, "popularity_spread": 0}})",
                    .2 + 1.3 * rng.uniform()),
        model, at(i));
    const auto wanted = distinct_experts(source, std::array{4, 32}, 2);
    std::string points;
    for (const DistinctExperts& of : wanted)
      points += fmt::format(R"({}{{"tokens": {}, "experts": {}}})", points.empty() ? "" : ", ",
                            of.batch, of.decode);
    const RoutingTrace drawn =
        generated(start + R"("active_experts": [)" + points + "]}", model, at(i));
    const auto found = distinct_experts(drawn, std::array{4, 32}, 3);
    for (std::size_t p = 0; p < found.size(); ++p)
      CHECK_THAT(found[p].decode, WithinRel(wanted[p].decode, .03));
  }

  using Catch::Matchers::Contains;
  const auto refused = [&](const std::string& more) {
    return config_error([&] { gatings().make(config(start + more))->outline(model, 1); });
  };
  CHECK_THAT(
      refused(R"("active_experts": [{"tokens": 16, "experts": 100}]})"),
      Contains("cannot activate so many experts of test model; the nearest are 82.4 with 16"));
  CHECK_THAT(refused(R"("active_experts": []})"), Contains("names no batch"));
  CHECK_THAT(refused(R"("balancedness": 0.5, "active_experts": [{"tokens": 1, "experts": 8}]})"),
             Contains("either active_experts or balancedness"));
  CHECK_THAT(refused(R"("gpus": 8})"), Contains("either active_experts or balancedness"));
  CHECK_THAT(refused(R"("balancedness": 0.99, "tokens": 64})"), Contains("a balancedness of "));
  CHECK_THAT(refused(R"("balancedness": 0.5, "gpus": 7})"),
             Contains("gpus 7 do not divide the model's 128 experts"));
  CHECK_THAT(refused(R"("balancedness": 0.2, "tokens": 64})"), Contains("a balancedness of 0.4"));
}

TEST_CASE("observed gating is as balanced over GPUs as an engine logged") {
  const MoeModel model = model_of(24, 128, 8);
  for (const double wanted : {.45, .6, .75, .85}) {
    for (const int tokens : {64, 256}) {
      if (wanted > .8 && tokens == 64) continue;  // more than equally popular experts have
      CAPTURE(wanted, tokens);
      const RoutingTrace trace = generated(
          fmt::format(R"({{"type": "observed", "requests": 512, "prompt_rows": 0, "decode_rows": 64,
                           "balancedness": {}, "gpus": 8, "tokens": {}}})",
                      wanted, tokens),
          model);
      // Steps of a token of each of `tokens` requests.
      double means = 0, maxima = 0;
      trace.visit([&](auto ids) {
        const auto width = at(trace.row_ids());
        for (std::size_t first = 0; first + at(tokens) <= trace.requests().size();
             first += at(tokens))
          for (std::size_t row = 0; row < 64; row += 8)
            for (std::size_t layer = 0; layer < 24; ++layer) {
              std::array<int, 8> load{};
              for (std::size_t r = first; r < first + at(tokens); ++r)
                for (std::size_t i = 0; i < 8; ++i) {
                  const auto expert =
                      ids[(at(trace.requests()[r].row_start) + row) * width + layer * 8 + i];
                  ++load[at(expert / 16)];
                }
              means += tokens;
              maxima += *std::ranges::max_element(load);
            }
      });
      CHECK_THAT(means / maxima, WithinRel(wanted, .02));
    }
  }
}

TEST_CASE("a generator's options are checked") {
  using Catch::Matchers::Contains;
  const auto refused = [](const std::string& gating) {
    return config_error([&] { gatings().make(config(gating)); });
  };
  CHECK_THAT(refused(R"({"type": "topical", "preset": "gpt5"})"), Contains("deepseek_r1"));
  CHECK_THAT(refused(R"({"type": "topical", "reuse": 1.5})"), Contains("/reuse"));
  CHECK_THAT(refused(R"({"type": "uniform", "prompt_rows": 0, "decode_rows": 0})"),
             Contains("needs rows"));
  CHECK_THAT(refused(R"({"type": "uniform", "workloads": []})"), Contains("names no workload"));
  CHECK_THAT(refused(R"({"type": "uniform", "reuse": 0.5})"), Contains("unknown key \"reuse\""));
}

}  // namespace moesim::test_gating
