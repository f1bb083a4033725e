// SPDX-License-Identifier: Apache-2.0
// Reports as values: is every key documented, and do catalogue and document say the same?
#include <set>

#include "sim/report/metric_catalogue.hpp"
#include "tests/tiny_experiment.hpp"

namespace moesim::test_report {
namespace {

// Runs that between them have every section.
std::vector<Report> reports() {
  const Json pools = {
      {"pools",
       {{"prefill", {{"instances", 2}}},
        {"decode", {{"scheduling", {{"type", "decode_only"}, {"max_num_seqs", 8}}}}}}}};
  Json moving = pools;
  moving["pools"]["decode"]["instances"] = 2;
  moving["pool_roles"] = {{"type", "thresholds"},
                          {"interval", "1 ms"},
                          {"sample", "1 ms"},
                          {"switch_time", "1 ms"},
                          {"prefill_queue_scale_up_threshold", 1e9},
                          {"prefill_queue_scale_down_threshold", 1e9},
                          {"decode_kv_scale_up_threshold", 0},
                          {"decode_kv_scale_down_threshold", 0}};
  const Json memory = {
      {"expert_memory",
       {{"type", "lru"},
        {"slots_per_layer", 4},
        {"host", {{"bandwidth", "25 GB/s"}, {"latency", "10 us"}, {"source", "a test"}}}}}};
  const Json hot = {
      {"placement", {{"replication", 1}}},
      {"measurement", {{"hot_rank_threshold", 1.01}}},
      {"rebalancing", {{"type", "eplb_periodic"}, {"step_interval", 20}, {"window_size", 20}}}};
  const Json objectives = {
      {"slo", {{"ttft", "2 ms"}, {"tpot", "1 ms"}, {"e2el", "1 s"}}},
      {"workload",
       {{"timeout", "12 ms"},
        {"cancellation", {{"share", 0.1}, {"mean_after", "5 ms"}}},
        {"classes", {{{"name", "a"}, {"share", 0.5}}, {{"name", "b"}, {"share", 0.5}}}}}},
      {"speculative", {{"num_speculative_tokens", 2}, {"acceptance_rate", 0.7}}}};
  const Json failures = {{"instances", 2},
                         {"placement", {{"replication", 1}}},
                         {"charges", {{"request_routing", "1 us"}}},
                         {"failures", Json::array({{{"gpu", 1}, {"at", "10 ms"}}})}};
  const Json sampled = {
      {"fidelity", "sampled"},
      {"power", {{"overhead_per_gpu", "500 W"}, {"pue", 1.2}, {"dollars_per_kwh", 0.1}}}};
  const Json apart = {{"parallel", {{"ffn_gpus", 4}}}};
  const Json sessions = {{"workload",
                          {{"lengths", nullptr},
                           {"arrivals", {{"concurrency", 4}}},
                           {"requests", 24},
                           {"sessions",
                            {{"type", "generated"},
                             {"turns", 3},
                             {"first", 9},
                             {"new", 3},
                             {"output", 4},
                             {"max_context", {{"at", 22}, {"do", "compact"}}}}}}}};
  const Json brings = {{"token_routing", {{"decode", {{"type", "quota"}, {"min_tokens", 1}}}}},
                       {"dispatch", {{"decode", "ids_all_gather"}}},
                       {"charges", {{"token_routing", "by_candidates"}}}};
  const Json near = {{"model", {{"experts", {{"shared_width", 256}}}}},
                     {"shared_expert", "fused"},
                     {"measurement", {{"locality", true}}}};
  const Json aligned = {
      {"prefill_alignment", {{"type", "vllm_interval"}, {"prefill_schedule_interval", 2}}}};
  Json trees = sessions;
  trees["workload"]["sessions"]["fan_out"] = {{"children", 2}};
  Json tiers = sessions;
  tiers["kv_cache"] = {{"prefix_caching", true},
                       {"tiers",
                        {{{"capacity", "1 GB"}},
                         {{"capacity", "2 GB"}, {"name", "disk"}, {"bandwidth", "7 GB/s"}}}}};
  tiers["measurement"] = {{"slowest_sessions", 2}};
  Json shared_link = tiers;
  shared_link.update(memory);
  shared_link["host_link"] = "equal";
  std::vector<Report> all;
  for (const Json& set : {Json::object(), pools, moving, memory, hot, objectives, failures, sampled,
                          apart, sessions, trees, tiers, shared_link, brings, near, aligned}) {
    all.push_back(run(test::load_tiny(set)));
  }
  // Prompts of two that fit, and replies that do not.
  Experiment tight = test::load_tiny(
      {{"parallel", {{"dp", 1}, {"tp", 1}, {"ep", 1}}},
       {"placement", {{"replication", 1}}},
       {"workload", {{"lengths", {{"prompt", 20}, {"output", 30}}}, {"requests", 8}}}});
  tight.decode().memory.kv_blocks = 5;
  all.push_back(run(tight));
  return all;
}

// Pointers to everything in a document that is no object or list of objects.
void add_leaves(const OrderedJson& value, const std::string& pointer,
                std::set<std::string>& leaves) {
  if (pointer == "/context/config") {
    leaves.insert(pointer);
  } else if (value.is_object()) {
    for (const auto& [key, part] : value.items()) add_leaves(part, pointer + "/" + key, leaves);
  } else if (value.is_array() && !value.empty() && value.front().is_object()) {
    add_leaves(value.front(), pointer + "/0", leaves);
  } else if (!(value.is_array() && value.empty())) {
    leaves.insert(pointer);
  }
}

TEST_CASE("every key of a report is documented, and every documented key is found in a report") {
  std::set<std::string> leaves, seen;
  for (const Report& report : reports()) add_leaves(report.document(), "", leaves);
  for (const std::string& pointer : leaves) {
    CAPTURE(pointer);
    const ReportKey* key = find_report_key(pointer);
    REQUIRE(key != nullptr);
    CHECK_FALSE(key->meaning.empty());
    seen.insert(key->pointer);
  }
  // What takes measured tables, files or anchors that a test of the simulator has not.
  const std::set<std::string> elsewhere{"/breakdown/measured_share",
                                        "/breakdown/interpolated_share",
                                        "/breakdown/carried_over_share",
                                        "/anchored/deployment",
                                        "/anchored/runs",
                                        "/anchored/leave_one_out_error",
                                        "/anchored/tpot_factor",
                                        "/anchored/ttft_factor"};
  const auto is_above_others = [](const std::string& pointer) {
    return std::ranges::any_of(report_keys(), [&](const ReportKey& key) {
      return key.pointer.starts_with(pointer + "/");
    });
  };
  for (const ReportKey& key : report_keys()) {
    // The prefill pool's sections are those of the decode pool.
    if (key.pointer.starts_with("/pools/prefill/") || elsewhere.contains(key.pointer)) continue;
    if (is_above_others(key.pointer)) continue;
    INFO(key.pointer);
    CHECK(seen.contains(key.pointer));
  }
}

TEST_CASE("a metric of the catalogue is the number that the report has at its pointer") {
  std::set<std::string_view> names;
  for (const Metric& metric : metric_catalogue) {
    CAPTURE(metric.name);
    CHECK(names.insert(metric.name).second);
    CHECK_FALSE(metric.key().meaning.empty());
  }
  for (const Report& report : reports()) {
    const OrderedJson document = report.document();
    for (const Metric& metric : metric_catalogue) {
      CAPTURE(metric.name);
      const OrderedJson::json_pointer place{std::string(metric.pointer)};
      const OrderedJson there = document.contains(place) ? document.at(place) : OrderedJson();
      const std::optional<double> value = metric.value(report);
      REQUIRE(value.has_value() == there.is_number());
      if (value) CHECK(*value == there.get<double>());
    }
  }
}

TEST_CASE("under uniform routing a step activates as many experts as its tokens would") {
  // 16 tokens that choose 8 of 128: 128 x (1 - (15 / 16)^16).
  CHECK_THAT(uniformly_active(128, 8, 16), test::WithinRel(82.43, 1e-4));
  CHECK(uniformly_active(128, 8, 1) == 8);
  CHECK(uniformly_active(0, 0, 16) == 0);
  // Eight requests in each of two experiments; every one replays a recording of its own.
  const auto decode = [](const char* gating, const Json& change = Json::object()) {
    Json set{{"workload",
              {{"arrivals", {{"type", "closed_loop"}, {"concurrency", 8}}},
               {"gating", {{"type", gating}, {"requests", 512}}}}}};
    set.merge_patch(change);
    return run(test::load_tiny(set)).pool.experts.by_step_kind.back().second.summary;
  };
  const ExpertSummary uniform = decode("uniform"), popular = decode("popularity");
  CHECK_THAT(uniform.active_experts_mean, test::WithinRel(uniform.uniform_experts_mean, .02));
  CHECK(popular.active_experts_mean < .97 * popular.uniform_experts_mean);
  // Micro-batches activate experts of their own: both figures are sums over them.
  const Json two_batch{{"type", "two_batch"}, {"decode_tokens", 1}, {"prefill_tokens", 1}};
  for (const Json& change : {Json{{"parallel", {{"pp", 2}}}}, Json{{"overlap", two_batch}}}) {
    INFO(change.dump());
    const ExpertSummary of_two = decode("uniform", change);
    CHECK_THAT(of_two.active_experts_mean, test::WithinRel(of_two.uniform_experts_mean, .03));
    CHECK(of_two.uniform_experts_mean > uniform.uniform_experts_mean);
  }
}

TEST_CASE("attainment along a run: of its halves, and how far chance moves it") {
  const auto along = [](const char* ttft, const char* rate) {
    const Json set{{"slo", {{"ttft", ttft}}},
                   {"workload",
                    {{"arrivals", {{"type", "poisson"}, {"rate", rate}, {"concurrency", nullptr}}},
                     {"requests", 400}}}};
    return run(test::load_tiny(set));
  };
  const Report light = along("1 s", "100 /s");
  REQUIRE(light.measurement.attainment);
  CHECK(light.measurement.attainment->first_half == 1);
  CHECK(light.measurement.attainment->second_half == 1);
  CHECK(light.measurement.attainment->standard_error == 0);
  // A backlog: those that come first still keep a limit that the later ones miss.
  const Report heavy = along("20 ms", "20000 /s");
  REQUIRE(heavy.measurement.attainment);
  const AttainmentAlong& growing = *heavy.measurement.attainment;
  CHECK(growing.second_half < growing.first_half);
  CHECK(growing.standard_error > 0);
  CHECK_THAT((growing.first_half + growing.second_half) / 2,
             test::WithinAbs(heavy.metrics.slo_attainment, .01));
  CHECK_FALSE(run(test::load_tiny(Json::object())).measurement.attainment);
}

TEST_CASE("a report with a share above 1 or a number that is none is not written") {
  Report report = run(test::load_tiny(Json::object()));
  report.metrics.mfu = 1.5;
  CHECK_THROWS_AS(report.document(), std::logic_error);
  report.metrics.mfu = 0.5;
  CHECK_NOTHROW(report.document());
  report.metrics.duration_s = std::nan("");
  CHECK_THROWS_AS(report.document(), std::logic_error);
}

TEST_CASE("names in capitals and places of lists stand for any of several") {
  CHECK(find_report_key("/steps/decode/mean_ms")->pointer == "/steps/KIND/mean_ms");
  CHECK(find_report_key("/steps/by_rule/decode/share_of_time")->pointer ==
        "/steps/by_rule/KIND/share_of_time");
  CHECK(find_report_key("/over_time/17/imbalance")->pointer == "/over_time/N/imbalance");
  CHECK(find_report_key("/pools/prefill/steps/decode/mean_ms") != nullptr);
  CHECK(find_report_key("/steps/decode/mean_s") == nullptr);
  CHECK(find_report_key("/steps/decode/mean_ms/deeper") == nullptr);
}

}  // namespace
}  // namespace moesim::test_report
