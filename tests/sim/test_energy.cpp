// SPDX-License-Identifier: Apache-2.0
// How much energy does a run take, and where does it go?
#include <numeric>

#include "tests/tiny_experiment.hpp"

namespace moesim::test_energy {

using Catch::Matchers::Contains;
using test::WithinAbs;
using test::WithinRel;

namespace {

constexpr double idle = 100, limit = 700;

/// Power of one class of constants for all kernels.
std::shared_ptr<const GpuPower> power(double floor, double loads, double arithmetic) {
  GpuPower made{.limit = Watts(limit), .idle = Watts(idle), .source = "made for a test"};
  made.classes.fill({Watts(floor), loads, arithmetic, 1});
  made.classes[static_cast<std::size_t>(PowerClass::exchanges)] = {Watts(idle), 0, 0, 1};
  return std::make_shared<const GpuPower>(std::move(made));
}

Experiment drawing(const Json& set, std::shared_ptr<const GpuPower> of) {
  Experiment e = test::load_tiny(set);
  for (Deployment& pool : e.pools) pool.cluster.gpu.power = of;
  return e;
}

double sum(const Energy& energy) {
  return std::accumulate(energy.joules.begin(), energy.joules.end(), 0.0);
}

double share(const EnergyStats& energy, std::string_view name) {
  for (const auto& [key, value] : energy.shares)
    if (key == name) return value;
  return 0;
}

}  // namespace

TEST_CASE("GPUs that always draw alike take that for as long as they are measured") {
  const Report report = test::serve(drawing(Json::object(), power(idle, 0, 0)));
  REQUIRE(report.energy);
  const EnergyStats& energy = *report.energy;
  constexpr int gpus = 4;
  CHECK_THAT(energy.watts_per_gpu, WithinRel(idle, 1e-9));
  CHECK_THAT(energy.share_of_limit, WithinRel(idle / limit, 1e-9));
  CHECK_THAT(energy.joules, WithinRel(idle * gpus * report.metrics.duration_s, 1e-9));
  CHECK_THAT(*energy.joules_per_output_token,
             WithinRel(idle * gpus / report.metrics.output_throughput, 1e-9));
  CHECK_THAT(*energy.joules_per_token,
             WithinRel(idle * gpus / report.metrics.total_token_throughput, 1e-9));
  CHECK_THAT(energy.output_tokens_per_s_per_mw,
             WithinRel(report.metrics.output_throughput / (idle * gpus) * 1e6, 1e-9));
}

TEST_CASE("one GPU alone: a step's energy is the sum over the operations that explain lists") {
  const Json one{{"parallel", {{"dp", 1}, {"tp", 1}, {"ep", 1}}},
                 {"placement", {{"replication", 1}}}};
  const Experiment e = drawing(one, power(150, 0.5, 1));
  const ExplainedStep step = explain_step(e.decode(), decode_step(8, 100));
  double rows = 0, seconds = 0;
  for (const ExplainedOperation& row : step.operations) {
    rows += row.joules;
    seconds += row.seconds;
    // Between idle and limit, whatever it does.
    CHECK(row.joules >= idle * row.seconds * (1 - 1e-9));
    CHECK(row.joules <= limit * row.seconds * (1 + 1e-9));
  }
  const StepCost& cost = step.cost;
  CHECK_THAT(seconds, WithinRel(cost.total.count(), 1e-9));
  CHECK(cost.energy.computing > 0);
  CHECK(cost.energy.computing <= cost.total.count() * (1 + 1e-9));
  const double waits = idle * (cost.total.count() - cost.energy.computing);
  CHECK_THAT(sum(cost.energy) + waits, WithinRel(rows, 1e-9));
}

TEST_CASE("GPUs that compute at the limit and wait at idle: what barriers leave") {
  // Four ranks, one barrier after the other: computing is what no rank waits.
  const Experiment e = drawing(Json::object(), power(limit, 0, 0));
  const StepCost cost = explain_step(e.decode(), decode_step(8, 100)).cost;
  CHECK_THAT(sum(cost.energy), WithinRel(limit * cost.energy.computing, 1e-9));
  // Of all GPUs' time: computing, waits at barriers, and what all of them do alike.
  const double barriers = std::accumulate(cost.idle.begin(), cost.idle.end(), 0.0);
  const auto on = [&](Part part) {
    const auto& row = cost.parts[static_cast<std::size_t>(part)];
    return 4 * std::accumulate(row.begin(), row.end(), 0.0);
  };
  const double others =
      on(Part::dispatch) + on(Part::combine) + on(Part::all_reduce) + on(Part::token_routing);
  const double rest = 4 * cost.total.count() - cost.energy.computing - barriers - others;
  CHECK(rest >= -1e-12);
  // Gaps between kernels and the host, which are part of "other".
  CHECK(rest <= on(Part::other));
}

TEST_CASE("energy is conserved in every layout") {
  const auto layout = GENERATE(
      Json::object(), Json({{"parallel", {{"dp", 2}, {"tp", 2}, {"ep", 4}}}}),
      Json({{"parallel", {{"dp", 1}, {"tp", 8}, {"ep", 8}, {"dcp", 2}}}}),
      Json({{"parallel", {{"dp", 4}, {"tp", 1}, {"ep", 4}, {"pp", 3}}}}),
      Json({{"parallel", {{"dp", 4}, {"ep", 4}, {"ffn_gpus", 4}, {"micro_batches", 2}}}}),
      Json({{"overlap", "two_batch"}}), Json({{"instances", 2}}), Json({{"fidelity", "sampled"}}),
      Json({{"speculative", {{"num_speculative_tokens", 2}, {"acceptance_rate", 0.7}}}}),
      Json({{"pools", {{"prefill", {{"instances", 1}}}, {"decode", {{"instances", 1}}}}}}));
  CAPTURE(layout.dump());
  const Report report = test::serve(drawing(layout, power(150, 0.5, 1)));
  REQUIRE(report.energy);
  double all = 0;
  for (const auto& [name, part] : report.energy->shares) {
    CAPTURE(name);
    CHECK(part >= -1e-9);
    all += part;
  }
  CHECK_THAT(all, WithinRel(1, 1e-9));
  CHECK(share(*report.energy, "experts") > 0);
  CHECK(share(*report.energy, "attention") > 0);
  CHECK(report.energy->watts_per_gpu > idle);
  CHECK(report.energy->watts_per_gpu < limit);
}

TEST_CASE("what the GPUs draw changes nothing but the energy") {
  Experiment known = drawing(Json::object(), power(150, 0.5, 1));
  Experiment unknown = drawing(Json::object(), nullptr);
  OrderedJson with = test::serve(known).document(), without = test::serve(unknown).document();
  CHECK(with.contains("energy"));
  CHECK_FALSE(without.contains("energy"));
  with.erase("energy");
  CHECK(with == without);
}

TEST_CASE("a site draws more by its overhead and its PUE, and pays by the kWh") {
  const Json set{
      {"power", {{"overhead_per_gpu", "575 W"}, {"pue", 1.2}, {"dollars_per_kwh", 0.1}}}};
  const Report report = test::serve(drawing(set, power(idle, 0, 0)));
  REQUIRE(report.energy);
  REQUIRE(report.energy->site);
  const SiteEnergyStats& site = *report.energy->site;
  // (100 + 575) * 1.2 = 810 W.
  CHECK_THAT(site.watts_per_gpu, WithinRel(810, 1e-9));
  const double joules = 810 * 4 / report.metrics.output_throughput;
  CHECK_THAT(site.joules_per_output_token, WithinRel(joules, 1e-9));
  CHECK_THAT(site.output_tokens_per_s_per_mw, WithinRel(1e6 / joules, 1e-9));
  // 3.6 MJ cost 10 cents.
  REQUIRE(site.electricity_per_million_output_tokens);
  CHECK_THAT(*site.electricity_per_million_output_tokens,
             WithinRel(joules * 1e6 / 3.6e6 * 0.1, 1e-9));
  REQUIRE(site.cost_with_electricity);
  CHECK_THAT(*site.cost_with_electricity, WithinRel(*report.metrics.cost_per_million_output_tokens +
                                                        *site.electricity_per_million_output_tokens,
                                                    1e-9));
}

TEST_CASE("a site's power is refused with what is wrong") {
  CHECK_THAT(test::refused(test::tiny_experiment({{"power", {{"pue", 0.9}}}})),
             Contains("/power/pue"));
  CHECK_THAT(test::refused(test::tiny_experiment({{"power", {{"overhead_per_gpu", 500}}}})),
             Contains("/power/overhead_per_gpu"));
  CHECK_THAT(test::refused(test::tiny_experiment({{"power", {{"overhead", "500 W"}}}})),
             Contains("overhead_per_gpu"));
}

}  // namespace moesim::test_energy
