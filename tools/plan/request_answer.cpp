// SPDX-License-Identifier: Apache-2.0
#include "tools/plan/request_answer.hpp"

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <type_traits>

#include <fmt/format.h>

#include "hardware/find_value.hpp"
#include "sim/placement/placement.hpp"
#include "tools/cli/output.hpp"
#include "tools/cli/table.hpp"
#include "tools/plan/stages.hpp"
#include "traces/gating/presets.hpp"

namespace moesim {

namespace {

std::string margin(const SloRun& run, const Metric& metric, const char* limit) {
  const auto left = margin_of(run, limit);
  const std::string text = metric_text(run, metric);
  if (!left) return text;
  if (*left < -1) return fmt::format("{} ({:.3g} x)", text, 1 - *left);
  return fmt::format("{} ({:+.0f} %)", text, 100 * *left);
}

// Joules of the GPUs for an output token; nothing where that is not known.
std::optional<double> joules(const SloRun& run) {
  return found_number(run.report, std::string(metric("joules_per_output_token").pointer));
}

std::string joules_text(const SloRun& run) {
  const auto value = joules(run);
  return value ? fmt::format("{:.3g}", *value) : "-";
}

std::string rate_or_dash(const std::vector<std::optional<double>>& rates, std::size_t i) {
  return i < rates.size() && rates[i] ? fmt::format("{:.4g}", *rates[i]) : "-";
}

// Slots per expert: an EP group has as many slots on each rank.
double copies_of(const PlannedDeployment& chosen, int experts) {
  const int ranks = chosen.decode.parallel.ep;
  return double(ranks) * slots_for_replication(experts, ranks, chosen.replication) / experts;
}

int gpus_of(const PlannedDeployment& chosen) {
  const auto of_group = [](const PlannedGroup& group) {
    return group.instances * group.parallel.gpus();
  };
  return of_group(chosen.decode) + (chosen.prefill ? of_group(*chosen.prefill) : 0);
}

// "1", "1 and 2", "1, 2 and 4"
std::string numbers_text(const std::vector<std::size_t>& rows) {
  std::string text;
  for (std::size_t i = 0; i < rows.size(); ++i)
    text += (i == 0 ? "" : i + 1 == rows.size() ? " and " : ", ") + std::to_string(rows[i] + 1);
  return text;
}

// The pool that binds a deployment of two: "decode pool (dp4 ep4)"; "" where that is not known.
std::string binding_pool(const SloRun& run) {
  const PlannedDeployment chosen = choices_of(run);
  const std::string limit = limit_text(run), shape = chosen.shape();
  const std::string_view between = ", decode ";
  const std::size_t at = shape.find(between);
  if (!chosen.apart() || at == shape.npos) return "";
  if (limit == "TPOT")
    return fmt::format("decode pool ({}, {})", shape.substr(at + between.size()), chosen.routing());
  constexpr std::string_view first = "prefill ";
  return limit == "TTFT"
             ? fmt::format("prefill pool ({})", shape.substr(first.size(), at - first.size()))
             : "";
}

// Common properties of several rows, once for all of them: a pool that binds, and ties.
std::string shared_text(const std::vector<SloRun>& runs) {
  std::map<std::string, std::vector<std::size_t>> by_pool;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    if (const std::string pool = binding_pool(runs[i]); !pool.empty()) by_pool[pool].push_back(i);
  }
  std::string text;
  for (const auto& [pool, rows] : by_pool) {
    if (rows.size() > 1) text += paragraph("{}: the same {} binds", numbers_text(rows), pool);
  }
  if (const std::string tied = tied_text(runs); !tied.empty()) text += paragraph(tied);
  return text;
}

// Legend of what ranks the rows, and what their columns say.
std::string legend(bool by_energy) {
  const std::string ranked =
      by_energy ? "Ranked by J/token, of the deployments that sustain most requests. req/s: the "
                  "heaviest load that lasts in a steady state. "
                : "Ranked by req/s: the heaviest load that lasts in a steady state. ";
  return paragraph(
      ranked +
      "The best ran under three seeds of arrivals and routing, and so did the best of the other "
      "kind unless it sustains less than half. The others ran under one. met: requests within the "
      "limits, in the mean of the seeds. Latencies are of the first seed; another one may set the "
      "load. +5 %: met under 5 % more load, the least of the seeds that ran under it. " +
      (by_energy ? "J/token: what the GPUs draw, over output tokens. "
                 : "$/M: a million output tokens. ") +
      "In brackets: what is left to the limit.");
}

// The best of each kind side by side.
std::string kinds_text(const Plan& plan) {
  const auto best_of = [&](bool apart) {
    const auto run = best_of_kind(plan.best, apart);
    return run == plan.best.end()
               ? std::string("none that fits meets the limits")
               : fmt::format("{} req/s ({})", run->rate.substr(0, run->rate.find(' ')),
                             run - plan.best.begin() + 1);
  };
  return fmt::format("best aggregated: {}; best disaggregated: {}\n", best_of(false),
                     best_of(true));
}

// The least that a request alone gets, where nothing keeps the limits.
std::string least_text(const Plan& plan) {
  std::string text;
  const auto add = [&](const char* name, const std::optional<Plan::Least>& least) {
    if (!least) return;
    text += fmt::format("least {} possible: {} ms ({})\n", name, number_text(1e3 * least->seconds),
                        least->shape);
  };
  add("TTFT", plan.least_ttft);
  add("TPOT", plan.least_tpot);
  return text;
}

// Experts of a decode step; null where the run's store does not say.
const Json* decode_experts(const SloRun& run) {
  return find_value(run.report, "/experts/by_step_kind/decode");
}

// "experts active in a layer of a decode step of 1: 83.0 of 128 (uniform routing: 125.9)"
std::string active_text(const SloRun& first, const MoeModel& model) {
  const Json* experts = decode_experts(first);
  if (experts == nullptr) return "";
  const bool several = choices_in(first.config).decode.parallel.pp > 1;
  return fmt::format(
      "experts active in a layer of a decode step of 1: {:.1f} of {}{} (uniform routing: {:.1f})\n",
      experts->at("active_experts_mean").get<double>(), model.experts,
      several ? ", summed over micro-batches" : "",
      experts->at("uniform_experts_mean").get<double>());
}

OrderedJson binds_json(const SloRun& run) {
  OrderedJson json{{"limit", limit_text(run)}};
  if (const auto busy = busy_part(run)) {
    json["part"] = busy->part;
    json["share"] = busy->share;
    json["bound_by"] = busy->bound_by;
  }
  return json;
}

OrderedJson to_json(const SloRun& run) {
  OrderedJson json{{"shape", choices_of(run).shape()},
                   {"rate", run.per_second()},
                   {"state", state_of(run)},
                   {"seeds", run.draws},
                   {"goodput", run.per_second() * run.trial.attainment},
                   {"slo_attainment", run.trial.attainment},
                   {"binds", binds_json(run)},
                   {"config", run.config},
                   {"metrics", run.report.at("metrics")}};
  if (run.heavier)
    json["heavier"] = {{"more", run.heavier->more},
                       {"slo_attainment", run.heavier->attainment},
                       {"binds", run.heavier->binds}};
  if (const Json* experts = decode_experts(run)) json["experts"] = *experts;
  if (run.report.contains("energy")) json["energy"] = run.report.at("energy");
  for (const char* limit : {"ttft", "tpot"}) {
    if (const auto left = margin_of(run, limit)) json["margins"][limit] = *left;
  }
  return json;
}

// Whose statistics synthetic routing has: "DeepSeek-V3 and R1 (gating preset deepseek_r1), another
// family".
std::string statistics_of(const MoeModel& model) {
  const auto [preset, of_another_family] = preset_of(model);
  return fmt::format("{} (gating preset {}){}", preset.family, preset.name,
                     of_another_family ? ", another family" : "");
}

// Remark: with more requests in flight than distinct synthetic ones are served (half of them), some
// of a batch are equal.
std::string repeats_of(const SloRun& first) {
  const Json& metrics = first.report.at("metrics");
  const double in_flight =
      metrics.at("request_throughput").get<double>() * metrics.value("mean_e2el_ms", 0.0) / 1e3;
  const int served = first.config.at("workload").at("gating").at("requests").get<int>() / 2;
  if (in_flight <= served) return "";
  return fmt::format(
      " {:.0f} requests are in flight and {} distinct synthetic ones are served: real batches may "
      "activate more experts.",
      in_flight, served);
}

// Routing that nobody recorded.
std::string doubts(const Plan& plan, const MoeModel& model) {
  const bool tried =
      std::ranges::any_of(plan.uniform, [](const auto& rate) { return rate.has_value(); });
  if (!tried) return "";
  return paragraph(
      "Routing is synthetic, by the statistics of {}. uniform: the load sustained if every expert "
      "is as likely as any other. --trace takes recordings.{}",
      statistics_of(model), repeats_of(plan.best.front()));
}

}  // namespace

std::string cost_text(const SloRun& run, const ClusterSpec& cluster) {
  const double output = number_at(run.report, "/metrics/output_throughput", 0);
  if (!cluster.gpu.price || output <= 0) return "-";
  constexpr double seconds_per_hour = 3600;
  return fmt::format("{:.2f}", cluster.gpu.price->dollars_per_hour * cluster.gpus() /
                                   seconds_per_hour / output * 1e6);
}

std::string price_text(const std::optional<Price>& price) {
  if (!price) return "no price of this GPU is known; --price gives one\n";
  return paragraph("price: ${:.2f} per GPU-hour ({})", price->dollars_per_hour, price->source);
}

std::string tied_text(const std::vector<SloRun>& runs) {
  std::vector<std::size_t> equal;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    if (runs[i].per_second() * load_step >= runs.front().per_second()) equal.push_back(i);
  }
  return equal.size() < 2 ? ""
                          : fmt::format(
                                "{} tie: their loads are at most a step of 1.6 % apart, which the "
                                "search cannot tell from a difference",
                                numbers_text(equal));
}

AnswerTable request_table(const Plan& plan, const PlanSearch& search, bool by_energy) {
  const std::vector<SloRun>& runs = plan.best.empty() ? plan.nearest : plan.best;
  AnswerTable table;
  table.head = {"copies",
                "routing",
                "chunk",
                "seqs",
                "req/s",
                "met",
                "+5 %",
                "uniform",
                "p90 TTFT ms",
                "p90 TPOT ms",
                by_energy ? "J/token" : "$/M"};
  const bool dense = search.model.experts == 0;
  const bool drafts = choices_in(search.base).drafts > 0;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const SloRun& run = runs[i];
    const PlannedDeployment chosen = choices_of(run);
    const int gpus = gpus_of(chosen), all = search.cluster.gpus();
    const std::string busy = busy_text(run);
    table.add(
        fmt::format("{}{}{}", chosen.shape(),
                    gpus < all ? fmt::format(", {} of {} GPUs", gpus, all) : "",
                    drafts ? ", " + chosen.drafts_text() : ""),
        fmt::format("{} binds{}", limit_text(run), busy.empty() ? "" : "; " + busy),
        {dense ? "-" : number_text(copies_of(chosen, search.model.experts)), chosen.routing(),
         std::to_string(chosen.chunk), std::to_string(chosen.sequences),
         run.rate.substr(0, run.rate.find(' ')), percent(run.trial.attainment, 0),
         run.heavier ? percent(run.heavier->attainment, 0) : "-", rate_or_dash(plan.uniform, i),
         margin(run, metric("p90_ttft_ms"), "ttft"), margin(run, metric("p90_tpot_ms"), "tpot"),
         by_energy ? joules_text(run) : cost_text(run, search.cluster)});
  }
  return table;
}

std::string request_notes(const Plan& plan, const MoeModel& model, bool by_energy) {
  const std::string ranked = plan.best.empty()
                                 ? least_text(plan)
                                 : shared_text(plan.best) + kinds_text(plan) + legend(by_energy);
  return ranked + active_text(first_of(plan), model) + doubts(plan, model);
}

OrderedJson request_json(const Plan& plan, const PlanSearch& search) {
  OrderedJson json{{"cluster", gpus_text(search.cluster)},
                   {"shapes", plan.shapes},
                   {"fit", plan.fit},
                   {"runs", plan.runs}};
  json["best"] = OrderedJson::array();
  for (std::size_t i = 0; i < plan.best.size(); ++i) {
    OrderedJson& run = json["best"].emplace_back(to_json(plan.best[i]));
    if (i < plan.uniform.size() && plan.uniform[i]) run["uniform_routing_rate"] = *plan.uniform[i];
  }
  if (!plan.nearest.empty()) json["nearest"] = to_json(plan.nearest.front());
  const auto add = [&](const char* key, const std::optional<Plan::Least>& least) {
    if (least) json[key] = {{"seconds", least->seconds}, {"shape", least->shape}};
  };
  add("least_ttft", plan.least_ttft);
  add("least_tpot", plan.least_tpot);
  return json;
}

void rank_by_energy(Plan& plan) {
  std::vector<std::size_t> order(plan.best.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  constexpr double unknown = std::numeric_limits<double>::infinity();
  std::ranges::stable_sort(order, {},
                           [&](std::size_t i) { return joules(plan.best[i]).value_or(unknown); });
  const auto ranked = [&](const auto& values) {
    std::remove_cvref_t<decltype(values)> sorted;
    for (const std::size_t i : order) sorted.push_back(values[i]);
    return sorted;
  };
  plan.uniform.resize(plan.best.size());
  plan.best = ranked(plan.best);
  plan.uniform = ranked(plan.uniform);
}

}  // namespace moesim
