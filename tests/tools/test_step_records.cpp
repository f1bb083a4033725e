// SPDX-License-Identifier: Apache-2.0
// Do steps that an engine recorded come back as they were, and steps of a run at the price that
// they had?
#include <cmath>

#include "tests/support.hpp"
#include "tests/temporary.hpp"
#include "tests/tiny_experiment.hpp"
#include "tools/bench/step_records.hpp"

namespace moesim::test_step_records {
namespace {

using Catch::Matchers::Contains;
using Numbers = std::vector<std::int32_t>;

Json record(int rank, double ended_ms, double seconds, const Json& scheduled) {
  Json all{{"num_prefill_requests", 0},
           {"sum_prefill_tokens", 0},
           {"sum_prefill_kv_tokens", 0},
           {"num_decode_requests", 0},
           {"sum_decode_kv_tokens", 0}};
  all.merge_patch(scheduled);
  return {{"event",
           {{"observed_at_unix_ms", ended_ms},
            {"fpm",
             {{"worker_id", "a"},
              {"dp_rank", rank},
              {"wall_time", seconds},
              {"scheduled_requests", all}}}}}};
}

std::vector<RecordedStep> read(const std::vector<Json>& records, int ranks,
                               bool counts_new = false) {
  const test::TemporaryFolder folder;
  std::string text;
  for (const Json& line : records) text += line.dump() + "\n";
  const auto file = folder.write("steps.jsonl", text);
  return read_step_records(file.string(), ranks, counts_new);
}

TEST_CASE("recorded steps: ranks that end together are one step, and heartbeats are none") {
  const auto steps =
      read({record(0, 1000, .02, {{"num_decode_requests", 2}, {"sum_decode_kv_tokens", 301}}),
            record(1, 1004, .03,
                   {{"num_prefill_requests", 2},
                    {"sum_prefill_tokens", 513},
                    {"sum_prefill_kv_tokens", 64}}),
            record(1, 1020, 0, Json::object()),
            record(0, 1030, .02, {{"num_decode_requests", 1}, {"sum_decode_kv_tokens", 9}})},
           2);
  REQUIRE(steps.size() == 2);
  CHECK(steps[0].seconds == .03);
  CHECK(steps[0].ranks[0].new_tokens == Numbers{1, 1});
  CHECK(steps[0].ranks[0].context == Numbers{150, 151});
  CHECK(steps[0].ranks[0].decodes(0));
  CHECK(steps[0].ranks[1].new_tokens == Numbers{256, 257});
  CHECK(steps[0].ranks[1].context == Numbers{32, 32});
  CHECK_FALSE(steps[0].ranks[1].decodes(1));
  CHECK(steps[1].ranks[0].context == Numbers{9});
  CHECK(steps[1].ranks[1].new_tokens.empty());
}

TEST_CASE("recorded steps: SGLang counts the new tokens of a prompt in its KV tokens") {
  const Json prompt{
      {"num_prefill_requests", 1}, {"sum_prefill_tokens", 100}, {"sum_prefill_kv_tokens", 140}};
  CHECK(read({record(0, 1000, .02, prompt)}, 1, true)[0].ranks[0].context == Numbers{40});
  CHECK(read({record(0, 1000, .02, prompt)}, 1)[0].ranks[0].context == Numbers{140});
}

TEST_CASE("recorded steps that say nothing are refused with their line") {
  const Json good = record(0, 1000, .02, {{"num_decode_requests", 1}, {"sum_decode_kv_tokens", 9}});
  Json bad = good;
  bad["event"]["fpm"].erase("scheduled_requests");
  CHECK_THROWS_WITH(read({good, bad}, 1),
                    Contains("steps.jsonl:2: has no object \"scheduled_requests\""));
  bad = good;
  bad["event"]["fpm"]["dp_rank"] = 3;
  CHECK_THROWS_WITH(read({bad}, 2), Contains("\"dp_rank\" is 3, but the experiment has 2"));
  bad = good;
  bad["event"]["fpm"]["scheduled_requests"]["num_decode_requests"] = -1;
  CHECK_THROWS_WITH(read({bad}, 1), Contains("\"num_decode_requests\""));
  CHECK_THROWS_WITH(read({record(0, 1000, .02, Json::object())}, 1),
                    Contains("no record schedules"));
}

TEST_CASE("law: the recorded steps of a run have the price that they had") {
  // Without experts, of which a record says nothing.
  const Experiment experiment = test::load_tiny(
      {{"model",
        {{"experts", nullptr},
         {"dense_width", 1024},
         {"layers",
          Json::array({{{"repeat", 3}, {"pattern", Json::array({{{"ffn", "dense"}}})}}})}}},
       {"parallel", {{"dp", 1}, {"ep", 1}}},
       {"placement", nullptr}});
  const test::TemporaryFolder folder;
  const std::string file = (folder / "steps.jsonl").string();
  StepRecords records(file);
  test::serve(experiment, {&records});
  records.finish();
  const auto steps = read_step_records(file, 1, false);
  const StepComparison compared = compare_steps(steps, experiment.decode());
  REQUIRE_FALSE(compared.kinds.empty());
  for (const StepErrors& of : compared.kinds) {
    INFO(step_kind_names[static_cast<std::size_t>(of.kind)]);
    // Sequences of a record share its tokens evenly; those of the run did not quite.
    CHECK(of.error < 1e-4);
    CHECK(of.error_p90 < .01);
  }
  CHECK(std::abs(compared.factor - 1) < 1e-4);
  CHECK(compared.decoding > 20);
}

}  // namespace
}  // namespace moesim::test_step_records
