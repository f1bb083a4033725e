// SPDX-License-Identifier: Apache-2.0
// Does plan say why more GPUs sustain more than in proportion, with figures of the two deployments?
#include <algorithm>

#include "tests/support.hpp"
#include "tests/tiny_experiment.hpp"
#include "tools/plan/scaling.hpp"

namespace moesim::test_scaling {
namespace {

/// A run at this rate whose requests decode for `decodes_ms`. Experts have 29 GB in all.
SloRun run_at(const char* rate, double decodes_ms, const Json& set) {
  Json config = test::tiny_experiment(
      {{"model", {{"experts", {{"width", 200'000}}}}}, {"placement", {{"replication", 1}}}});
  config.merge_patch(set);
  SloRun run;
  run.rate = rate;
  run.config = config;
  run.report = {{"metrics", {{"mean_e2el_ms", 100 + decodes_ms}, {"mean_ttft_ms", 100}}}};
  return run;
}

std::string text_of(const SloRun& fewer, const SloRun& more) {
  const std::filesystem::path folder = test::source_dir() / "tests";
  std::string text = superlinear_text({&fewer, "4 x A", 4, folder}, {&more, "8 x A", 8, folder});
  std::ranges::replace(text, '\n', ' ');  // where lines break
  return text;
}

TEST_CASE("more GPUs that sustain more than in proportion have more KV cache and sequences") {
  const SloRun four = run_at("10 /s", 2000, {{"parallel", {{"dp", 4}, {"ep", 4}}}});
  const SloRun eight = run_at("30 /s", 2000, {{"parallel", {{"dp", 8}, {"ep", 8}}}});
  const std::string text = text_of(four, eight);
  CHECK_THAT(text, Catch::Matchers::StartsWith(
                       "8 x A sustain 3.00 times as much as 4 x A: weights leave "));
  const double before = test::load(four.config).decode().memory.kv.value() / 1e9,
               now = test::load(eight.config).decode().memory.kv.value() / 1e9;
  CHECK(now - before > 3);  // half of the experts' 7.4 GB
  CHECK_THAT(text, Catch::Matchers::Contains(fmt::format("{:.0f} GB of a decode GPU", now)));
  CHECK_THAT(text, Catch::Matchers::Contains(fmt::format("not {:.0f} GB;", before)));
  // 10 /s for 2 s on 4 GPUs, 30 /s for 2 s on 8.
  CHECK_THAT(text, Catch::Matchers::Contains("8 sequences decode on a GPU, not 5 "));
  CHECK(text.find("GPUs decode,") == text.npos);
}

TEST_CASE("GPUs that only add up need no reason") {
  const SloRun four = run_at("10 /s", 2000, Json::object());
  const SloRun eight = run_at("20.2 /s", 2000, {{"instances", 2}});
  CHECK(text_of(four, eight).empty());
  CHECK(text_of(eight, four).empty());
  // As many GPUs of each kind hold as much: what is left to say is the batch.
  CHECK_THAT(text_of(four, run_at("22 /s", 2500, {{"instances", 2}})),
             Catch::Matchers::Equals(
                 "8 x A sustain 2.20 times as much as 4 x A: 7 sequences decode on a GPU, not 5 "));
}

}  // namespace
}  // namespace moesim::test_scaling
