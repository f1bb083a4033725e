// SPDX-License-Identifier: Apache-2.0
// Which constants decide: figures worked by hand, and a ranking that two charges turn.
#include <algorithm>

#include <tbb/global_control.h>

#include "tests/tiny_experiment.hpp"
#include "tools/lab/study/sensitivity.hpp"

namespace moesim::test_sensitivity {
namespace {

// One request at a time on the group, so that every decode step has one sequence.
Experiment alone(const Json& charges) {
  return test::load_tiny(
      {{"workload", {{"arrivals", {{"concurrency", 1}}}, {"requests", 6}}}, {"charges", charges}});
}

Sensitivity answer(const std::vector<Experiment>& experiments, const Metric& metric) {
  std::vector<std::string> names;
  for (std::size_t i = 0; i < experiments.size(); ++i)
    names.push_back(std::string(1, char('a' + i)));
  const auto done = sensitivity(
      names, experiments, metric, .3, [](std::size_t, std::size_t) {}, [] { return false; });
  REQUIRE(done);
  return *done;
}

const SensitivityRow* row(const Sensitivity& s, std::string_view name) {
  const auto found = std::ranges::find(s.rows, name, &SensitivityRow::name);
  return found == s.rows.end() ? nullptr : &*found;
}

TEST_CASE("a charge of a step moves the time per output token by its share of the charge") {
  const Sensitivity s = answer({alone({{"host_overhead", "2 ms"}})}, metric("median_tpot_ms"));
  const SensitivityRow* host = row(s, "charges host_overhead");
  REQUIRE(host != nullptr);
  CHECK(host->less[0] == Approx(s.as_it_is[0] - .6));
  CHECK(host->more[0] == Approx(s.as_it_is[0] + .6));
  CHECK(s.lead(host->more) == Approx(.6 / s.as_it_is[0]));
  CHECK(s.lower_is_better);
  // What nothing asks for is no row: the tiny model has no latent attention, and no charge a layer.
  CHECK(row(s, "mla_decode launch") == nullptr);
  CHECK(row(s, "charges per_layer") == nullptr);
  CHECK(row(s, "grouped_gemm launch") != nullptr);
  // The two milliseconds are most of the step.
  CHECK(s.rows.front().name == "charges host_overhead");
  CHECK_FALSE(sensitivity_text(s).empty());
}

TEST_CASE("a metric that no request has is refused with the reason") {
  const Experiment nobody_waits = test::load_tiny({{"workload", {{"timeout", "1 us"}}}});
  CHECK_THAT(test::config_error([&] { answer({nobody_waits}, metric("median_tpot_ms")); }),
             Catch::Matchers::Contains("a run has no median_tpot_ms, as none of its") &&
                 Catch::Matchers::Contains("measured requests finished"));
}

TEST_CASE("constants turn a ranking, and come first") {
  // With one sequence a step costs 10 ms in one deployment, and 11 ms in the other.
  const std::vector<Experiment> two{alone({{"per_sequence", "10 ms"}}),
                                    alone({{"host_overhead", "11 ms"}})};
  const Sensitivity s = answer(two, metric("output_throughput"));
  CHECK_FALSE(s.lower_is_better);
  CHECK(s.best(s.as_it_is) == 0);
  CHECK(s.lead(s.as_it_is) > 0);
  REQUIRE(s.rows.size() > 2);
  for (const SensitivityRow& each : s.rows) {
    const bool of_the_two =
        each.name == "charges per_sequence" || each.name == "charges host_overhead";
    CAPTURE(each.name);
    CHECK(s.turns(each) == of_the_two);
  }
  CHECK(s.turns(s.rows[0]));
  CHECK(s.turns(s.rows[1]));
  CHECK(s.lead(row(s, "charges per_sequence")->more) < 0);
  CHECK(s.lead(row(s, "charges per_sequence")->less) > s.lead(s.as_it_is));
  const std::string text = sensitivity_text(s);
  CHECK(text.find("2 if more") != std::string::npos);
  CHECK(text.find("2 of ") != std::string::npos);
}

TEST_CASE("the answer is the same for any number of threads") {
  const std::vector<Experiment> one{test::load_tiny({{"workload", {{"requests", 24}}}})};
  const std::string many = sensitivity_json(answer(one, metric("mean_ttft_ms"))).dump();
  const tbb::global_control single(tbb::global_control::max_allowed_parallelism, 1);
  CHECK(sensitivity_json(answer(one, metric("mean_ttft_ms"))).dump() == many);
}

TEST_CASE("a metric that no run has is refused") {
  const std::string said =
      test::config_error([] { answer({alone(Json::object())}, metric("sampled_step_error")); });
  CHECK(said.find("sampled_step_error") != std::string::npos);
}

}  // namespace
}  // namespace moesim::test_sensitivity
