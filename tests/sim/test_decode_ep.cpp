// SPDX-License-Identifier: Apache-2.0
// Experts cut otherwise in decode steps: does each step cost what it costs under its own cut, and
// are the weights paid for, in memory or on links?
#include "sim/step/cut_anew.hpp"
#include "tests/tiny_experiment.hpp"

namespace moesim::test_decode_ep {
namespace {

using namespace test;

// Each attention rank on one of four GPUs, prompts and decodes in steps of their own.
Json cut(const Json& parallel, const Json& set = Json::object()) {
  Json plan{{"dp", 4}, {"tp", 1}, {"ep", 4}};
  plan.merge_patch(parallel);
  Json json = tiny_experiment(
      {{"parallel", plan},
       {"placement", {{"replication", 1}}},
       {"scheduling",
        {{"type", "prefill_first"}, {"max_num_batched_tokens", 64}, {"max_num_seqs", 8}}},
       {"dispatch", {{"prefill", "all_gather"}, {"decode", "all_gather"}}}});
  json.merge_patch(set);
  return json;
}

Seconds time_of(const Json& json, const StepContent& content) {
  return explain_step(load(json), content).totals.front();
}

ParallelPlan plan(int ep) { return {.dp = 4, .ep = ep}; }

TEST_CASE("a step costs what it costs where all steps are cut as its own phase is") {
  const StepContent decode = decode_step(6, 40), prefill = prefill_step(20);
  for (const int ep : {1, 2}) {
    CAPTURE(ep);
    const Json by_phase = cut({{"decode_ep", ep}});
    CHECK(time_of(by_phase, decode) == time_of(cut({{"ep", ep}}), decode));
    CHECK(time_of(by_phase, prefill) == time_of(cut(Json::object()), prefill));
    CHECK(time_of(by_phase, decode) != time_of(cut(Json::object()), decode));
    // Steps that hold both run as prefill steps do.
    const StepContent both = mixed_step(4, 40, 16);
    CHECK(time_of(by_phase, both) == time_of(cut(Json::object()), both));
  }
}

TEST_CASE("the weights of both cuts are in HBM, or room for a layer that moves") {
  const auto budget = [](const Json& json) { return load(json).decode().memory; };
  const MemoryBudget one = budget(cut(Json::object()));
  const MemoryBudget sliced = budget(cut({{"ep", 1}}));
  const MemoryBudget twice = budget(cut({{"decode_ep", 1}}));
  CHECK_THAT(twice.experts.value(), WithinRel((one.experts + sliced.experts).value(), 1e-12));
  const MemoryBudget moved = budget(cut({{"decode_ep", 1}, {"decode_weights", "moved"}}));
  CHECK(moved.experts == one.experts);
  // A third of the experts of three layers.
  CHECK_THAT((moved.buffers - one.buffers).value(), WithinRel(one.experts.value() / 3, 1e-9));
  // Copies are of each cut's own slots.
  const Json copies{{"placement", {{"replication", 1.5}}}};
  CHECK_THAT((budget(cut({{"decode_ep", 2}}, copies)).experts).value(),
             WithinRel(one.experts.value() * 2.5, 1e-12));
}

TEST_CASE("what moves between two cuts is what GPUs lack") {
  const Fabric fabric(
      read_cluster(ConfigNode::from_file(source_dir() / "hardware/clusters/h100x16.json")));
  const Bytes weights(64e9);
  const auto bytes = [&](int from, int to) {
    return cut_anew(fabric, plan(from), plan(to), weights).nvlink.value();
  };
  CHECK(bytes(4, 4) == 0);
  // Of its quarter a GPU keeps a quarter: it sends and gets 3/16, four GPUs 3/4.
  CHECK_THAT(bytes(4, 1), WithinRel(64e9 * 3 / 4, 1e-12));
  CHECK_THAT(bytes(1, 4), WithinRel(bytes(4, 1), 1e-12));
  // Of two ranks each has two GPUs, which swap halves of what they have.
  CHECK_THAT(bytes(4, 2), WithinRel(64e9 / 2, 1e-12));
}

TEST_CASE("weights that move are charged before each step of another cut, and nothing else is") {
  const Json moved = cut({{"decode_ep", 1}, {"decode_weights", "moved"}});
  struct Changes : RunObserver {
    std::vector<StepKind> rules;
    std::vector<double> rebalancing;
    void step_ended(const StepRecord& record, Time) override {
      rules.push_back(record.step.rule);
      double seconds = 0;
      for (const double part : record.cost.parts[static_cast<std::size_t>(Part::rebalancing)])
        seconds += part;
      rebalancing.push_back(seconds);
    }
  } seen;
  const Experiment e = load(moved);
  CHECK(serve(e, {&seen}).document()["metrics"]["completed"] == 120);
  const Bytes weights = e.decode().memory.experts * 4;
  const Seconds once = cut_anew(Fabric(e.decode().cluster), plan(4), plan(1), weights).time;
  // At the start weights stand as prompts need them.
  StepKind before = StepKind::prefill;
  int moves = 0;
  for (std::size_t i = 0; i < seen.rules.size(); ++i) {
    const bool moves_now = (seen.rules[i] == StepKind::decode) != (before == StepKind::decode);
    CHECK_THAT(seen.rebalancing[i], WithinRel(moves_now ? once.count() : 0.0, 1e-9));
    moves += moves_now;
    before = seen.rules[i];
  }
  CHECK(moves > 3);
}

TEST_CASE("runs with two cuts serve all, sampled and with drafts, and their configs again") {
  for (const Json& set :
       {Json::object(), Json{{"fidelity", "sampled"}},
        Json{{"speculative", {{"num_speculative_tokens", 2}, {"acceptance_rate", 0.7}}}}}) {
    const Report report = run(load(cut({{"decode_ep", 2}}, set)));
    CHECK(report.document()["metrics"]["completed"] == 120);
    const Json again = Json::parse(report.document()["context"]["config"].dump());
    CHECK(run(load(again)).document().dump() == report.document().dump());
  }
}

TEST_CASE("what two cuts are not modelled with is refused with its reason") {
  const auto says = [](const Json& parallel, const Json& set, const char* what) {
    CAPTURE(what);
    CHECK(refused(cut(parallel, set)).find(what) != std::string::npos);
  };
  const Json one{{"decode_ep", 1}};
  says({{"decode_ep", 4}}, Json::object(), "so that all steps are cut alike");
  says({{"decode_ep", 3}}, Json::object(), "decode_ep 3 does not divide");
  says({{"decode_weights", "moved"}}, Json::object(), "is of decode_ep alone");
  says({{"decode_ep", 1}, {"ffn_gpus", 4}}, Json::object(), "neither with AFD");
  says(one, {{"rebalancing", {{"type", "eplb_periodic"}, {"step_interval", 9}}}},
       "\"rebalancing\"");
  says(one, {{"failures", Json::array({{{"gpu", 1}, {"at", "1 ms"}}})}}, "\"failures\"");
  says({{"decode_ep", 2}, {"decode_weights", "moved"}}, {{"placement", {{"replication", 1.5}}}},
       "copies of experts while weights move");
  says(one,
       {{"pools",
         {{"prefill", Json::object()},
          {"decode", {{"scheduling", {{"type", "decode_only"}, {"max_num_seqs", 8}}}}}}}},
       "give each pool its own \"ep\"");
}

}  // namespace
}  // namespace moesim::test_decode_ep
