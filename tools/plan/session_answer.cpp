// SPDX-License-Identifier: Apache-2.0
#include "tools/plan/session_answer.hpp"

#include <fmt/format.h>

#include "hardware/find_value.hpp"
#include "tools/cli/output.hpp"
#include "tools/cli/table.hpp"

namespace moesim {

namespace {

constexpr const char* first_ttft_pointer = "/turns/first/p90_ttft_ms";
constexpr const char* later_ttft_pointer = "/turns/later/p90_ttft_ms";
constexpr const char* tpot_pointer = "/metrics/p90_tpot_ms";
constexpr const char* completion_pointer = "/sessions/p90_completion_s";
constexpr const char* output_pointer = "/metrics/output_throughput";
constexpr const char* hits_pointer = "/turns/all/prefix/hit_rate";
constexpr const char* ideal_pointer = "/turns/all/prefix/ideal_hit_rate";

std::string text_of(const SloRun& run, const char* pointer, double scale = 1) {
  const auto value = found_number(run.report, pointer);
  return value ? number_text(*value * scale) : "-";
}

std::string share_of(const SloRun& run, const char* pointer) {
  const auto value = found_number(run.report, pointer);
  return value ? percent(*value) : "-";
}

std::string router_of(const SloRun& run) {
  const Json& router = run.config.at("request_routing");
  return router.is_string() ? router.get<std::string>() : router.at("type").get<std::string>();
}

OrderedJson json_of(const SloRun& run, int gpus) {
  OrderedJson json{{"shape", choices_of(run).shape()},
                   {"sessions", run.per_second()},
                   {"sessions_per_gpu", run.per_second() / gpus},
                   {"state", state_of(run)},
                   {"seeds", run.draws},
                   {"slo_attainment", run.trial.attainment},
                   {"config", run.config},
                   {"metrics", run.report.at("metrics")}};
  for (const char* part : {"sessions", "turns"}) {
    if (run.report.contains(part)) json["report"][part] = run.report.at(part);
  }
  if (run.heavier)
    json["heavier"] = {{"more", run.heavier->more},
                       {"slo_attainment", run.heavier->attainment},
                       {"binds", run.heavier->binds}};
  return json;
}

}  // namespace

std::string tier_text(const SessionPlanned& plan, const std::string& host_memory) {
  if (!plan.no_tier.empty()) return paragraph("No tier of host memory: " + plan.no_tier);
  if (plan.tiers.empty() || !plan.single_seed) return "";
  const double without = plan.single_seed->per_second();
  std::string text;
  for (const TierWorth& tier : plan.tiers) {
    const double with = tier.run ? tier.run->per_second() : 0;
    text += text.empty() ? fmt::format("{} of host memory a node are worth ", host_memory)
                         : std::string(", ");
    text += fmt::format("{:.0f} % {} sessions with {} ({:.0f} in place of {:.0f})",
                        100 * std::abs(with / without - 1), with < without ? "fewer" : "more",
                        tier.write, with, without);
  }
  return paragraph(text + ". One seed.");
}

AnswerTable session_table(const SessionPlanned& plan, int gpus) {
  AnswerTable table;
  table.head = {
      "sessions",       "per\nGPU",       "met",      "hits",       "ideal", "out/s\n/GPU",
      "first\nTTFT ms", "later\nTTFT ms", "TPOT\nms", "session\ns", "chunk", "router"};
  for (const SloRun& run : plan.best.empty() ? plan.nearest : plan.best) {
    const PlannedDeployment chosen = choices_of(run);
    std::string remark;
    if (run.heavier)
      remark =
          fmt::format("{:.0f} % more sessions: {} binds, met by {:.0f} %", 100 * run.heavier->more,
                      run.heavier->binds, 100 * run.heavier->attainment);
    const std::string busy = busy_text(run);
    if (!busy.empty()) remark += (remark.empty() ? "" : "; ") + busy;
    // Where the time of a session has no limit, runs are too short to say it.
    table.add(
        fmt::format("{}, {}{}", chosen.shape(), chosen.routing(),
                    plan.drafts ? ", " + chosen.drafts_text() : ""),
        remark,
        {number_text(run.per_second()), number_text(run.per_second() / gpus),
         percent(run.trial.attainment, 0), share_of(run, hits_pointer),
         share_of(run, ideal_pointer), text_of(run, output_pointer, 1. / gpus),
         text_of(run, first_ttft_pointer), text_of(run, later_ttft_pointer),
         text_of(run, tpot_pointer), plan.times_sessions ? text_of(run, completion_pointer) : "-",
         std::to_string(chosen.chunk), router_of(run)});
  }
  return table;
}

std::string session_notes(const SessionPlanned& plan, const std::string& host_memory) {
  const std::string too_long = plan.too_long.empty() ? "" : plan.too_long + "\n";
  if (plan.best.empty()) return too_long;
  return too_long +
         paragraph(
             "Ranked by sessions alive at a time within the limits. The first ran under three "
             "seeds, the others under one. met: turns within TTFT and TPOT. hits: prompt tokens "
             "found in the KV cache; ideal: by an endless one. out/s/GPU: output tokens/s of a "
             "GPU. Times are p90s.") +
         tier_text(plan, host_memory);
}

OrderedJson session_json(const SessionPlanned& plan, int gpus) {
  const TurnMeans& means = plan.means;
  OrderedJson json{{"shapes", plan.shapes},
                   {"fit", plan.fit},
                   {"runs", plan.runs},
                   {"mean_turn",
                    {{"prompt_tokens", means.prompt},
                     {"computed_tokens", means.computed},
                     {"output_tokens", means.output},
                     {"gap_s", means.gap},
                     {"turns_per_session", means.turns}}},
                   {"sampled",
                    {{"sessions", means.sessions},
                     {"sessions_too_long", means.too_long},
                     {"turns", means.served + means.rejected},
                     {"turns_rejected", means.rejected}}}};
  json["best"] = OrderedJson::array();
  for (const SloRun& run : plan.best) json["best"].push_back(json_of(run, gpus));
  if (!plan.nearest.empty()) json["nearest"] = json_of(plan.nearest.front(), gpus);
  if (plan.single_seed) json["sessions_of_one_seed"] = plan.single_seed->per_second();
  for (const TierWorth& tier : plan.tiers) {
    OrderedJson& row = json["tiers"].emplace_back(OrderedJson{{"write", tier.write}});
    row["sessions"] = tier.run ? tier.run->per_second() : 0;
    if (tier.run) row["run"] = json_of(*tier.run, gpus);
  }
  if (!plan.no_tier.empty()) json["no_tier"] = plan.no_tier;
  return json;
}

}  // namespace moesim
