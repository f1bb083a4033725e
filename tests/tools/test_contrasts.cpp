// SPDX-License-Identifier: Apache-2.0
// Which measured runs differ in one thing, and how right are predictions of which is better?
#include <algorithm>

#include "tests/support.hpp"
#include "tools/cli/trust.hpp"
#include "tools/lab/validation/contrast_report.hpp"
#include "tools/lab/validation/scorecard.hpp"

namespace moesim::test_contrasts {

using namespace moesim::test;
using Catch::Matchers::Contains;
using Catch::Matchers::WithinRel;

namespace {

ValidatedPoint point(const std::string& id, const std::string& metric, double measured,
                     double predicted) {
  MeasuredPoint p;
  p.id = id;
  p.category = "e2e";
  p.gpu = "H200-SXM-141GB";
  p.model = "DeepSeek-R1";
  p.operation = "online serving vllm 0.19.0, aggregated, closed loop";
  p.precision = "fp8_block";
  p.metric = metric;
  p.gpus = p.tp = 8;
  p.concurrency = 16;
  p.prompt = 1024;
  p.output = 101;
  p.value = measured;
  Prediction prediction;
  prediction.value = predicted;
  return {p, prediction, {}};
}

// A run on one GPU of 2 TB/s, of weights of one byte.
ServingRun run(const std::string& id) {
  return {.id = id,
          .gpu = "a",
          .model = "M",
          .engine = {"vllm", "0.18.0"},
          .precision = "fp8",
          .layout = "TP1",
          .gpus = 1,
          .concurrency = 8,
          .prompt = 1024,
          .output = 128,
          .hbm_bandwidth = 2e12,
          .weight_bytes = 1,
          .measured = {100, 10, 50},
          .predicted = {100, 10, 50}};
}

// Each pair as "gpu: one other".
std::vector<std::string> pairs_of(const std::vector<ServingRun>& runs) {
  std::vector<std::string> pairs;
  for (const Contrast& c : contrasts_of(runs))
    pairs.push_back(std::string(difference_names[std::size_t(c.differs)]) + ": " + c.one + " " +
                    c.other);
  return pairs;
}
using Pairs = std::vector<std::string>;

// Lines joined again.
std::string unwrapped(std::string text) {
  std::ranges::replace(text, '\n', ' ');
  return text;
}

}  // namespace

TEST_CASE("two rows make a run, and its tokens/s follow from requests in flight") {
  // A request takes 100 ms + 100 x 9 ms = 1 s: 16 x 101 tokens/s on 8 GPUs. Predicted are 2 s.
  const auto runs = serving_runs(
      {point("e2e-1-ttft", "TTFT", 100, 200), point("e2e-1-tpot", "TPOT", 9, 18),
       point("e2e-2", "output_tok_s_per_gpu", 300, 330), point("e2e-3-tpot", "TPOT", 9, 9)},
      source_dir());
  REQUIRE(runs.size() == 2);  // of the third the TTFT is missing
  CHECK(runs[0].id == "e2e-1");
  CHECK(runs[0].gpu == "h200");
  CHECK(runs[0].layout == "TP8");
  CHECK(runs[0].engine.version == "0.19.0");
  CHECK_THAT(runs[0].hbm_bandwidth, WithinRel(4.8e12, 1e-9));
  CHECK_THAT(runs[0].weight_bytes, WithinRel(1 + 4. / 16384, 1e-9));
  CHECK_THAT(runs[0].measured.per_gpu, WithinRel(202., 1e-9));
  CHECK_THAT(runs[0].predicted.per_gpu, WithinRel(101., 1e-9));
  CHECK(runs[1].measured.per_gpu == 300);
  CHECK(runs[1].predicted.per_gpu == 330);
  CHECK(runs[1].measured.tpot_ms == 0);
}

TEST_CASE("a run that was skipped or failed is no run, and a figure given twice is refused") {
  ValidatedPoint skipped = point("1-ttft", "TTFT", 100, 100),
                 failed = point("2-ttft", "TTFT", 1, 1);
  skipped.predicted = Skipped{"model unknown"};
  failed.failure = "does not fit";
  CHECK(
      serving_runs({skipped, point("1-tpot", "TPOT", 9, 9), failed, point("2-tpot", "TPOT", 9, 9)},
                   source_dir())
          .empty());
  CHECK_THROWS_WITH(
      serving_runs({point("1-tpot", "TPOT", 9, 9), point("1-tpot", "TPOT", 8, 9)}, source_dir()),
      Contains("run 1") && Contains("twice"));
}

TEST_CASE("precisions of one checkpoint are one precision") {
  ValidatedPoint narrow = point("1", "output_tok_s_per_gpu", 1, 1);
  narrow.point.model = "gpt-oss-120b";
  ValidatedPoint wide = narrow, inputs = narrow;
  narrow.point.precision = "fp4";
  wide.point.precision = "mxfp4 w4a16";
  inputs.point.precision = "w4a8";
  wide.point.id = "2";
  inputs.point.id = "3";
  const auto runs = serving_runs({narrow, wide, inputs}, source_dir());
  CHECK(runs.at(0).precision == "mxfp4");
  CHECK(runs.at(1).precision == "mxfp4");
  CHECK(runs.at(2).precision == "mxfp4-fp8");
}

TEST_CASE("runs are pairs if they differ in one thing, layouts at equal concurrency per GPU") {
  ServingRun base = run("base"), layout = run("layout"), uneven = run("uneven"), gpu = run("gpu"),
             engine = run("engine"), precision = run("precision"), batch = run("batch"),
             model = run("model"), both = run("both");
  layout.layout = uneven.layout = "TP2";
  layout.gpus = uneven.gpus = 2;
  layout.concurrency = 16;
  uneven.concurrency = 8;
  gpu.gpu = both.gpu = "b";
  engine.engine = {"sglang", "0.5.9"};
  precision.precision = both.precision = "bf16";
  batch.concurrency = 64;
  model.model = "N";
  CHECK(pairs_of({base, layout}) == Pairs{"layout: base layout"});
  CHECK(pairs_of({base, uneven}).empty());
  // Whole experts and cut ones at one TP are a pair of their own kind, at equal concurrency.
  ServingRun whole = layout, half = layout;
  whole.id = "whole";
  whole.layout = "TP2 EP2";
  CHECK(pairs_of({layout, whole}) == Pairs{"experts: whole layout"});
  CHECK(contrasts_of({layout, whole}).at(0).what() == "EP2 against cut");
  half.concurrency = 8;
  CHECK(pairs_of({half, whole}).empty());
  CHECK(pairs_of({base, whole}) == Pairs{"layout: base whole"});
  CHECK(pairs_of({base, gpu}) == Pairs{"gpu: base gpu"});
  CHECK(pairs_of({base, engine}) == Pairs{"engine: engine base"});
  CHECK(pairs_of({base, precision}) == Pairs{"precision: precision base"});
  CHECK(pairs_of({batch, base}) == Pairs{"batch: base batch"});
  CHECK(pairs_of({base, model}).empty());
  CHECK(pairs_of({base, both}).empty());
  base.pools = true;
  CHECK(pairs_of({base, gpu}).empty());
}

TEST_CASE("GPUs are compared at the nearest versions, engines at the newest, batches at the next") {
  const auto of_version = [](const char* id, const char* gpu, const char* version) {
    ServingRun made = run(id);
    made.gpu = gpu;
    made.engine.version = version;
    return made;
  };
  const ServingRun a1 = of_version("a1", "a", "0.1.0"), a4 = of_version("a4", "a", "0.4.0"),
                   b2 = of_version("b2", "b", "0.2.0"), b4 = of_version("b4", "b", "0.4.0"),
                   b9 = of_version("b9", "b", "0.9.0");
  CHECK(pairs_of({a1, a4, b4, b9}) == Pairs{"gpu: a4 b4"});
  CHECK(pairs_of({a1, b2, b9}) == Pairs{"gpu: a1 b2"});
  ServingRun other = run("other");
  other.engine = {"trtllm", "1.0.0"};
  CHECK(pairs_of({a1, a4, other}) == Pairs{"engine: other a4"});
  ServingRun more = run("more"), most = run("most"), offline = run("offline");
  more.concurrency = 16;
  most.concurrency = 32;
  offline.concurrency = 0;
  CHECK(pairs_of({most, offline, run("few"), more}) ==
        Pairs{"batch: few more", "batch: more most"});
}

TEST_CASE("a fitted run is compared with held-out ones alone, if there are any") {
  ServingRun one = run("one"), other = run("other"), third = run("third");
  other.gpu = "b";
  third.gpu = "c";
  one.fitted = other.fitted = true;
  CHECK(pairs_of({one, other}) == Pairs{"gpu: one other"});
  CHECK(pairs_of({one, other, third}) == Pairs{"gpu: one third", "gpu: other third"});
}

TEST_CASE("ratios are of the first run over the other, and rules of thumb have their known sizes") {
  ServingRun one = run("one"), other = run("other");
  one.measured = {100, 8, 60};
  one.predicted = {100, 5, 75};
  other.gpu = "b";
  other.hbm_bandwidth = 8e12;
  const auto contrast = [&] { return contrasts_of({one, other}).at(0); };
  CHECK(contrast().what() == "a against b");
  CHECK_THAT(contrast().per_gpu.measured, WithinRel(1.2, 1e-9));
  CHECK_THAT(contrast().per_gpu.predicted, WithinRel(1.5, 1e-9));
  CHECK_THAT(contrast().tpot->measured, WithinRel(0.8, 1e-9));
  CHECK_THAT(contrast().tpot->predicted, WithinRel(0.5, 1e-9));
  CHECK_THAT(contrast().per_gpu.rule, WithinRel(0.25, 1e-9));
  CHECK(contrast().per_gpu.rule_sign == -1);
  CHECK_THAT(contrast().tpot->rule, WithinRel(4., 1e-9));
  CHECK(contrast().tpot->rule_sign == 1);

  other = run("other");
  other.layout = "TP4";
  other.gpus = 4;
  other.concurrency = 32;
  CHECK(contrast().per_gpu.rule == 1);
  CHECK(contrast().per_gpu.rule_sign == -1);
  CHECK(contrast().tpot->rule_sign == 1);
  other.layout = "DP1";
  other.gpus = 1;
  other.concurrency = 8;
  CHECK(contrast().per_gpu.rule_sign == 0);
  other.layout = "TP1 EP1";  // no rule says which is faster
  CHECK(contrast().differs == Difference::experts);
  CHECK(contrast().per_gpu.rule_sign == 0);

  other = run("other");
  other.precision = "nvfp4";
  other.weight_bytes = 0.5;
  CHECK(contrast().per_gpu.rule == 0.5);
  CHECK(contrast().tpot->rule == 2);

  other = run("other");
  other.concurrency = 32;
  CHECK(contrast().per_gpu.rule == 0.25);
  CHECK(contrast().per_gpu.rule_sign == -1);
  CHECK(contrast().tpot->rule == 1);
  CHECK(contrast().tpot->rule_sign == -1);

  other = run("other");
  other.engine = {"sglang", "0.5"};
  CHECK(contrast().one == "other");
  CHECK(contrast().per_gpu.rule_sign == 1);  // SGLang before vLLM
  one.engine = {"trtllm", "1.0"};
  CHECK(contrast().per_gpu.rule_sign == -1);  // TensorRT-LLM before SGLang
}

TEST_CASE("a score counts signs, and leaves out what measured the same") {
  // Sizes: 2 / 1.6 = 1.25, 1.1 / 0.5 = 2.2, 4 / 2.5 = 1.6; by the rule 2, 4 and 2.
  const ContrastScore score =
      score_of({{.measured = 2, .predicted = 1.6, .rule = 4, .rule_sign = 1},
                {.measured = 0.5, .predicted = 1.1, .rule = 2, .rule_sign = 1},
                {.measured = 4, .predicted = 2.5, .rule = 2, .rule_sign = 0},
                {.measured = 1.019, .predicted = 3},
                {.measured = 0.982, .predicted = 3}});
  CHECK(score.pairs == 3);
  CHECK(score.equal == 2);
  CHECK(score.right == 2);
  CHECK(score.rule_right == 1.5);
  CHECK_THAT(score.size_error_pct, WithinRel(60., 1e-9));
  CHECK_THAT(score.rule_size_error_pct, WithinRel(100., 1e-9));
  CHECK(score_of({{.measured = 2, .predicted = 1}}).right == 0);
  CHECK(score_of({{.measured = 0.97, .predicted = 0.5}}).right == 1);
}

namespace {

// A run of a layout of so many GPUs with its TPOT and tokens/s per GPU, each measured and
// predicted.
struct Figures {
  double measured, predicted;
};
ServingRun served(int gpus, double concurrency, Figures tpot, Figures per_gpu) {
  ServingRun made = run("made");
  made.layout = "TP" + std::to_string(gpus);
  made.gpus = gpus;
  made.concurrency = concurrency;
  made.measured = {100, tpot.measured, per_gpu.measured};
  made.predicted = {100, tpot.predicted, per_gpu.predicted};
  return made;
}

}  // namespace

TEST_CASE("regret is what the choice loses against the best that meets the limit") {
  // Within 10 ms the third is predicted the fastest, and serves 80 of 120; from 15 ms on the
  // fourth, with 120 of 160. The rule takes one GPU: 100 of 120, and then 160 of 160.
  const std::vector<ServingRun> runs{
      served(1, 1, {8, 8}, {100, 90}), served(1, 2, {14, 12}, {160, 150}),
      served(2, 2, {6, 9}, {80, 120}), served(2, 4, {9, 11}, {120, 200})};
  const Regret regret = regret_of(runs, Choice::layout);
  CHECK(regret.choices == 6);
  CHECK(regret.misses == 0);
  CHECK_THAT(regret.mean, WithinRel((1. / 3 + 5 * 0.25) / 6, 1e-9));
  CHECK_THAT(regret.p90, WithinRel(1. / 3, 1e-9));
  CHECK_THAT(regret.rule_mean, WithinRel(1. / 36, 1e-9));
  CHECK_THAT(regret.rule_p90, WithinRel(1. / 6, 1e-9));
  CHECK(regret_of({runs[0], runs[1]}, Choice::layout).choices == 0);
}

TEST_CASE("a choice that misses the limit serves at a concurrency that meets it") {
  // Within 10 ms the second is chosen, which measures 14 ms.
  const ServingRun slow = served(1, 2, {14, 9.5}, {160, 150}),
                   kept = served(1, 1, {8, 8}, {90, 90}), two = served(2, 2, {6, 9}, {80, 70}),
                   four = served(2, 4, {9, 9.9}, {120, 100});
  const Regret regret = regret_of({kept, slow, two, four}, Choice::layout);
  CHECK(regret.misses == 1);
  CHECK_THAT(regret.mean, WithinRel(0.25 / 6, 1e-9));
  // Without a run that meets it, all is lost.
  CHECK_THAT(regret_of({slow, two, four}, Choice::layout).mean, WithinRel(1. / 6, 1e-9));
  // Up to 5 % above the limit is no miss.
  ServingRun near = slow;
  near.measured.tpot_ms = 10.4;
  CHECK(regret_of({near, two, four}, Choice::layout).misses == 0);
  CHECK(regret_of({near, two, four}, Choice::layout).mean == 0);
  // None is predicted to meet 10 ms: the second is nearer to it. From 15 ms on the first is best.
  const Regret late = regret_of({served(1, 1, {9, 13}, {100, 90}), served(2, 2, {9, 12}, {50, 85})},
                                Choice::layout);
  CHECK(late.choices == 6);
  CHECK_THAT(late.mean, WithinRel(0.5 / 6, 1e-9));
}

TEST_CASE("of anything, the rule takes bandwidth, then bytes, then the engine, then fewest GPUs") {
  ServingRun usual = served(1, 1, {5, 5}, {100, 100}), other = served(1, 1, {5, 5}, {40, 40});
  other.engine.version = "0.1";
  const auto regret = [&] { return regret_of({usual, other}, Choice::anything); };
  CHECK(regret_of({usual, other}, Choice::layout).choices == 0);
  CHECK_THAT(regret().rule_mean, WithinRel(0.3, 1e-9));  // the mean of equal ones
  usual.gpus = 2;
  CHECK_THAT(regret().rule_mean, WithinRel(0.6, 1e-9));
  other.engine.name = "vllm";
  usual.engine.name = "trtllm";
  CHECK(regret().rule_mean == 0);
  other.weight_bytes = 0.5;
  CHECK_THAT(regret().rule_mean, WithinRel(0.6, 1e-9));
  usual.hbm_bandwidth = 3e12;
  CHECK(regret().rule_mean == 0);
  CHECK(regret().mean == 0);
  usual.fitted = other.fitted = true;
  CHECK(regret().choices == 6);
  ServingRun elsewhere = run("elsewhere");
  elsewhere.model = "N";
  CHECK(regret_of({usual, other, elsewhere}, Choice::anything).choices == 0);
}

TEST_CASE("the report counts pairs by what differs and by name, and keeps to 100 columns") {
  ServingRun one = run("one"), other = run("other");
  other.gpu = "b";
  other.measured.per_gpu = 100;
  other.predicted.per_gpu = 75;
  const ContrastReport report = contrast_report({one, other});
  const OrderedJson json = to_json(report);
  CHECK(json["runs"] == 2);
  REQUIRE(json["signs"].size() == 2);
  CHECK(json["signs"][0]["differs"] == "gpu");
  CHECK(json["signs"][0]["right"] == 1);
  CHECK_THAT(json["signs"][0]["size_error"].get<double>(), WithinRel(1. / 3, 1e-3));
  CHECK(json["signs"][1]["equal"] == 1);  // TPOT is the same
  REQUIRE(json["pairs"].size() == 1);
  CHECK(json["pairs"][0]["what"] == "a against b");
  CHECK(json["regret"]["anything"]["choices"] == 6);
  CHECK(to_csv(report.contrasts) ==
        "differs,id_one,id_other,one,other,measured_ratio,predicted_ratio,measured_tpot_ratio,"
        "predicted_tpot_ratio\ngpu,one,other,a,b,0.5,0.66667,1,1\n");
  std::istringstream lines(to_text(report));
  for (std::string line; std::getline(lines, line);) CHECK(line.size() <= 100);
}

TEST_CASE("the scorecard tells held-out runs from fitted ones, the worst first") {
  ServingRun good = run("good"), bad = run("bad"), fitted = run("fitted");
  bad.model = "Bad";
  bad.predicted.per_gpu = 75;
  bad.predicted.tpot_ms = 9;
  fitted.model = "Known";
  fitted.fitted = true;
  const std::string page = scorecard({good, bad, fitted}, {"a.csv", "b.csv"});
  CHECK_THAT(unwrapped(page), Contains("--points a.csv,b.csv") && Contains("compares 3 measured"));
  CHECK_THAT(unwrapped(page), Contains("2 runs are held out") && Contains("the other 1,"));
  CHECK_THAT(page, Contains("|TTFT: median, %|p90, %|bias, %|"));
  CHECK_THAT(page,
             Contains("|Bad|a|vllm|0.18.0|fp8|1|50.0|50.0|+50.0|10.0|10.0|-10.0|0.0|0.0|+0.0|"));
  const std::size_t summary = page.find("## Summary"), held_out = page.find("## Held-out runs"),
                    worst = page.find("|Bad|"), best = page.find("|M|"),
                    last = page.find("## Fitted runs"), known = page.find("|Known|");
  CHECK(summary < held_out);
  CHECK(held_out < worst);
  CHECK(worst < best);
  CHECK(best < last);
  CHECK(last < known);
  CHECK(known != std::string::npos);
}

TEST_CASE("a choice between GPUs or engines is told how often validation found the better one") {
  const auto about = [](const Json& scores) {
    std::vector<std::string> names;
    for (const Json& row : scores.at("signs")) names.push_back(row.value("what", "layouts"));
    return names;
  };
  CHECK(about(scores_of_choices({"h100"}, {"vllm"})) == std::vector<std::string>{"layouts"});
  CHECK(about(scores_of_choices({"h200", "b200"}, {"vllm", "trtllm"})) ==
        std::vector<std::string>{"layouts", "b200 against h200", "trtllm against vllm"});
  const Json scores = Json::parse(R"({"signs": [{"pairs": 10, "right": 9, "rule_right": 7.0},
      {"what": "b200 against h200", "pairs": 5, "right": 4, "rule_right": 3.0}],
      "regret": {"mean": 0.027, "rule_mean": 0.21}})");
  const std::string text = choices_text(scores);
  CHECK_THAT(text, Contains("9 of 10 (rule of thumb: 7)") && Contains("h200 in 4 of 5"));
  CHECK_THAT(text, Contains("2.7 %") && Contains("21 %"));
  CHECK(choices_text({}).empty());
}

}  // namespace moesim::test_contrasts
