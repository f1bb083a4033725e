// SPDX-License-Identifier: Apache-2.0
// Do experiments that share a library get the placements that they would get alone, each made once?
#include <atomic>

#include <tbb/parallel_for.h>

#include "sim/experiment/experiment.hpp"
#include "tests/support.hpp"
#include "tests/tiny_experiment.hpp"

namespace moesim::test_trace_fits {
namespace {

ConfigNode tiny(const Json& set) {
  return {test::tiny_experiment(set), test::source_dir() / "tests" / "tiny.json"};
}

TEST_CASE("experiments that share their traces have the placements that each would have alone") {
  TraceLibrary shared;
  std::size_t different = 0;
  ExpertPlacement last;
  for (const char* type : {"eplb", "joint", "flat", "coactivation", "random", "linear"}) {
    for (const double replication : {1.0, 1.5}) {
      for (const bool disjoint : {false, true}) {
        for (const bool one_workload : {false, true}) {
          for (const int seed : {disjoint ? 1 : 2}) {
            Json load{{"disjoint", disjoint}};
            if (one_workload) load["workloads"] = Json{"chat"};
            const ConfigNode config =
                tiny({{"placement", {{"type", type}, {"replication", replication}, {"load", load}}},
                      {"seed", seed}});
            TraceLibrary own;
            const Deployment alone = load_experiment(config, own).decode();
            const Deployment first = load_experiment(config, shared).decode();
            const Deployment again = load_experiment(config, shared).decode();
            CHECK(first.placement == alone.placement);
            CHECK(again.placement == alone.placement);
            CHECK(first.seen == alone.seen);
            CHECK(again.seen == alone.seen);
            if (alone.placement != last) ++different;
            last = alone.placement;
          }
        }
      }
    }
  }
  CHECK(different > 20);  // of 48: what decides a placement is in what was varied
}

TEST_CASE(
    "a library of outlines gives what fits where, and draws where copies go by what was seen") {
  const auto of = [](TraceLibrary::Holds holds, const Json& placement) {
    TraceLibrary library(holds);
    return load_experiment(tiny({{"placement", placement}}), library).decode();
  };
  using enum TraceLibrary::Holds;
  const auto uniform = R"({"type": "eplb", "replication": 1.5})"_json;
  const Deployment drawn = of(traces, uniform), outlined = of(outlines, uniform);
  CHECK(outlined.seen != drawn.seen);  // nothing was drawn
  CHECK(outlined.trace.tokens() < drawn.trace.tokens());
  CHECK(outlined.memory.kv_blocks == drawn.memory.kv_blocks);
  CHECK(outlined.placement.front().slots() == drawn.placement.front().slots());
  const auto by_gain = R"({"type": "eplb", "replication": 1.5, "copies": "by_gain"})"_json;
  CHECK(of(outlines, by_gain).placement == of(traces, by_gain).placement);
  CHECK(of(outlines, by_gain).seen == of(traces, by_gain).seen);
  // Nor does an outline that the library has already stand for the trace.
  TraceLibrary library(outlines);
  load_experiment(tiny({{"placement", uniform}}), library);
  CHECK(load_experiment(tiny({{"placement", by_gain}}), library).decode().seen ==
        of(traces, by_gain).seen);
}

TEST_CASE("a memo makes a value once, whatever asks for it, and begins anew after 64",
          "[threads]") {
  Memo<ExpertPlacement> memo;
  std::atomic<int> made = 0;
  const auto make = [&] {
    ++made;
    return ExpertPlacement{LayerPlacement(1, {{0}})};
  };
  std::atomic<std::size_t> layers = 0;
  tbb::parallel_for(0, 1000, [&](int) { layers += memo.get("a", make)->size(); });
  CHECK(layers == 1000);
  CHECK(made == 1);
  for (int i = 0; i < 63; ++i) memo.get(std::to_string(i), make);
  CHECK(made == 64);
  memo.get("a", make);
  CHECK(made == 64);
  memo.get("one more", make);
  memo.get("a", make);
  CHECK(made == 66);
}

TEST_CASE("a value that could not be made is tried again") {
  Memo<ExpertPlacement> memo;
  CHECK_THROWS_AS(memo.get("a", []() -> ExpertPlacement { throw ConfigError("no"); }), ConfigError);
  CHECK(memo.get("a", [] { return ExpertPlacement{}; })->empty());
}

}  // namespace
}  // namespace moesim::test_trace_fits
