// SPDX-License-Identifier: Apache-2.0
#include "tools/run/report_text.hpp"

#include <algorithm>
#include <numeric>
#include <optional>

#include <fmt/format.h>

#include "hardware/at.hpp"
#include "tools/cli/output.hpp"
#include "tools/cli/table.hpp"
#include "tools/cli/trust.hpp"

namespace moesim {

namespace {

// Text of what was held back, what moved and what stopped, when anything did.
std::string events_of(const PoolStats& pool) {
  std::string text;
  if (const auto& held = pool.prefill_alignment)
    text += paragraph(
        "{}: prompts held back in {:.1f} % of the steps, {:.1f} ms for each request in the mean",
        held->type, 100 * held->share_of_steps, held->mean_wait_ms);
  const RebalancingLog& moved = pool.rebalancing;
  if (moved.plans > 0)
    text += paragraph(
        "rebalanced {} times: {} layers, {:.1f} GB; engine stopped for {:.3f} s, steps slowed by "
        "{:.3f} s",
        moved.plans, moved.layers_switched, (moved.nvlink + moved.network).value() / 1e9,
        moved.stalled.count(), moved.slowdown.count());
  for (const OutageStats& stats : pool.failures) text += outage_text(stats);
  return text;
}

// Text of where groups of two pools were over the run.
std::string roles_of(const PoolsStats& pools) {
  if (!pools.roles) return "";
  const PoolRolesStats& roles = *pools.roles;
  std::string text =
      fmt::format("groups that prefilled {:.2f}, that decoded {:.2f} in the mean; {} changed",
                  roles.mean_prefill_groups, roles.mean_decode_groups, roles.changes);
  if (roles.mean_drain_s) text += fmt::format(", draining for {:.3g} s", *roles.mean_drain_s);
  if (roles.mean_switch_s && *roles.mean_switch_s > 0)
    text += fmt::format(" and switching for {:.3g} s", *roles.mean_switch_s);
  return paragraph(
      text + fmt::format("; {} of group time was in neither pool", percent(roles.away_share)));
}

// A line per EP group, where there are several.
std::string groups_of(const Report& report) {
  if (!report.pools && !report.instances) return "";
  Table table({"group", "steps", "mean ms", "busy", "output tokens", "KV mean", "peak", "hits"});
  const auto add = [&](const std::string& name, const std::vector<InstanceStats>& instances) {
    for (const InstanceStats& group : instances)
      table.add({fmt::format("{} {}", name, group.instance), fmt::format("{}", group.steps),
                 fixed_text(group.mean_step_ms, 3), percent(group.utilization),
                 fmt::format("{}", group.output_tokens), percent(group.kv_mean_utilization),
                 percent(group.kv_peak_utilization), percent(group.prefix_hit_rate)});
  };
  if (!report.pools) {
    add("instance", *report.instances);
    return "\n" + table.text();
  }
  add("prefill", report.pools->prefill.groups.instances);
  add("decode", report.pools->decode.instances);
  const KvTransferStats& kv = report.pools->kv_transfer;
  return fmt::format(
             "above this line: throughput and latency of both pools, all else of the decode "
             "pool\n\n{}KV caches sent over {}: {}, {:.1f} GB; {} ms each, {} of them after the "
             "first token\n",
             table.text(), kv.level, kv.transfers, kv.bytes / 1e9, fixed_text(kv.mean_ms, 2),
             fixed_text(kv.mean_exposed_ms, 2)) +
         roles_of(*report.pools);
}

std::string abandoned(const Metrics& metrics) {
  if (!metrics.timed_out) return "";
  return fmt::format(", {} timed out, {} cancelled", *metrics.timed_out,
                     metrics.cancelled.value_or(0));
}

// Text of the state: is throughput that of a steady state, and how much was asked for?
std::string state_of(const MeasurementStats& measurement, const Summary& tpot) {
  const std::optional<double>& offered = measurement.offered_request_rate;
  const std::string& state = measurement.state;
  const std::string load = offered ? fmt::format("offered {} /s", fixed_text(offered, 2))
                           : state == "offline" ? "all requests at once"
                                                : "closed loop";
  std::string text =
      fmt::format("{}, served {} /s: ", load, fixed_text(measurement.served_request_rate, 2));
  if (state == "stable") text += "STABLE";
  // The load of one part of a run is by chance some percent above that of another.
  constexpr double telling = 0.1;
  const double grown_ms = 1e3 * measurement.tpot_growth * (measurement.end_s - measurement.begin_s);
  if (state == "stable" && grown_ms > telling * tpot.mean)
    text += fmt::format(", but TPOT grows by {} ms a second. Raise /workload/requests.",
                        number_text(1e3 * measurement.tpot_growth));
  if (state == "overloaded")
    text += "OVERLOADED: the wait for a first token grows without end. Lower the load.";
  if (state == "unsteady")
    text +=
        "NO STEADY STATE: fewer requests leave than arrive between warm-up and last arrival. Raise "
        "/workload/requests.";
  if (state == "offline")
    text += "OFFLINE: all requests wait from the start. TTFT is mostly the wait in the queue.";
  if (state == "too_short") {
    text +=
        "RUN TOO SHORT: after the warm-up no request arrived, a group ran fewer than four steps, "
        "or less time passed than a request takes. Rates include ramp-up and ramp-down. Raise "
        "/workload/requests.";
  } else if (measurement.window == "whole") {
    text += " All requests arrived before the warm-up ended: figures are of the whole run.";
  }
  return paragraph(text);
}

// The objectives and the share of the requests that met them, where the experiment has some.
std::string slo_of(const Report& report) {
  const Metrics& m = report.metrics;
  const Json& slo = report.context.config.at("slo");
  if (slo.empty() || !m.attainment) return "";
  std::string limits;
  for (const auto& [name, limit] : slo.items()) {
    const std::string_view upper = name == "e2el" ? "E2E" : name == "tpot" ? "TPOT" : "TTFT";
    limits += fmt::format("{}{} {}", limits.empty() ? "" : ", ", upper, limit.get<std::string>());
  }
  return fmt::format("SLO ({}) met by {} of the requests; goodput {} requests/s\n", limits,
                     percent(m.slo_attainment), fixed_text(m.request_goodput, 2));
}

// The step kind that takes most of the time.
const std::pair<std::string, ExpertKindStats>* usual_kind(const PoolStats& pool) {
  double most = 0;
  const std::pair<std::string, ExpertKindStats>* usual = nullptr;
  for (const auto& routed : pool.experts.by_step_kind) {
    for (const auto& [kind, step] : pool.steps.by_kind) {
      if (kind != routed.first || step.share_of_time <= most) continue;
      most = step.share_of_time;
      usual = &routed;
    }
  }
  return usual;
}

// How much an EP rank's total is above the mean rank's, as a ratio.
double above_mean(const std::vector<std::int64_t>& totals, std::size_t rank) {
  const double sum = std::accumulate(totals.begin(), totals.end(), 0.0);
  if (rank >= totals.size() || sum <= 0) return 0;
  return static_cast<double>(totals[rank]) * static_cast<double>(totals.size()) / sum;
}

// The layer of a GPU in which its EP rank is most above the mean rank, by activated experts, or,
// where it is not, by tokens.
std::string busiest_layer(const PoolStats& pool, const ServedModel& e, int gpu) {
  const auto* usual = usual_kind(pool);
  if (usual == nullptr || e.parallel.ep == 1) return "";
  const ParallelPlan& plan = e.parallel;
  if (!plan.expert_rank(gpu)) return ". The GPU is for attention and holds no experts";
  const auto rank = at(*plan.expert_rank(gpu));
  const auto layers = static_cast<int>(e.model.layers.size());
  constexpr double similar = 1.01;
  const auto busiest = [&](auto&& totals_of) {
    double worst = similar;
    const ExpertLayerStats* found = nullptr;
    for (const ExpertLayerStats& layer : usual->second.layers) {
      const double ratio = above_mean(totals_of(layer), rank);
      if (plan.stage_of(layer.layer, layers) != gpu / plan.stage_gpus() || ratio <= worst) continue;
      worst = ratio;
      found = &layer;
    }
    return found;
  };
  const auto activated = [](const ExpertLayerStats& layer) -> const std::vector<std::int64_t>& {
    return layer.rank_activated.total_by_rank;
  };
  const auto tokens = [](const ExpertLayerStats& layer) -> const std::vector<std::int64_t>& {
    return layer.rank_tokens.total_by_rank;
  };
  double steps = 0;
  for (const auto& [kind, of] : pool.steps.by_kind) {
    if (kind == usual->first) steps = static_cast<double>(of.steps);
  }
  if (const ExpertLayerStats* layer = busiest(activated)) {
    const auto its = static_cast<double>(activated(*layer)[rank]);
    return fmt::format(
        ". Its EP load is highest in layer {}: rank {} activates {:.1f} experts in a {} step for "
        "{:.0f} tokens, the mean rank {:.1f}",
        layer->layer, rank, its / steps, usual->first,
        static_cast<double>(tokens(*layer)[rank]) / steps,
        its / above_mean(activated(*layer), rank) / steps);
  }
  if (const ExpertLayerStats* layer = busiest(tokens)) {
    const auto its = static_cast<double>(tokens(*layer)[rank]);
    return fmt::format(
        ". Its EP load is highest in layer {}: rank {} computes {:.0f} tokens in a {} step, the "
        "mean rank {:.0f}, and activates no more experts",
        layer->layer, rank, its / steps, usual->first,
        its / above_mean(tokens(*layer), rank) / steps);
  }
  return fmt::format(". Its expert load is average (EP rank {}), so the cause is elsewhere", rank);
}

// The GPU for which the others wait most, the one that waits least itself, and why.
std::string straggler_of(const PoolStats& pool, const Deployment& e) {
  const BreakdownStats& breakdown = pool.breakdown;
  const std::vector<double>& idle = breakdown.barrier_idle_seconds_per_gpu;
  if (idle.size() < 2 || breakdown.busy_seconds <= 0) return "";
  const auto last = std::ranges::min_element(idle);
  const double mean =
      std::accumulate(idle.begin(), idle.end(), 0.0) / static_cast<double>(idle.size());
  constexpr double worth_saying = .005;  // of the time
  if (mean - *last < worth_saying * breakdown.busy_seconds) return "";
  const auto gpu = static_cast<int>(last - idle.begin());
  return paragraph(
      "straggler: GPU {} (waits {:.1f} % of the time at barriers; mean of all GPUs {:.1f} %){}",
      gpu, 100 * *last / breakdown.busy_seconds, 100 * mean / breakdown.busy_seconds,
      busiest_layer(pool, e, gpu));
}

std::string latency_table(const Metrics& metrics) {
  Table table({"latency, ms", "mean", "median", "p90", "p99"});
  const auto add = [&](const char* name, const Summary& of) {
    table.add({name, ms_text(of, &Summary::mean), ms_text(of, &Summary::p50),
               ms_text(of, &Summary::p90), ms_text(of, &Summary::p99)});
  };
  add("ttft", metrics.ttft);
  add("tpot", metrics.tpot);
  add("itl", metrics.itl);
  add("e2el", metrics.e2el);
  return table.text() + fmt::format("mean ttft: ingress {} ms, queue {} ms, prefill {} ms\n\n",
                                    fixed_text(metrics.ingress_ms, 2),
                                    fixed_text(metrics.queue_ms, 2),
                                    fixed_text(metrics.prefill_ms, 2));
}

// A row for each class of requests, with what it is owed.
std::string class_table(const Report& report, const OfferedLoad& e) {
  if (report.classes.empty()) return "";
  Table table({"class", "requests", "ttft ms, median", "p99", "due in", "in time", "all objectives",
               "goodput/s"});
  for (std::size_t i = 0; i < report.classes.size(); ++i) {
    const ClassStats& stats = report.classes[i].second;
    const auto& due = e.classes[i].slo.ttft;
    table.add({report.classes[i].first, fmt::format("{}", stats.requests),
               ms_text(stats.ttft, &Summary::p50), ms_text(stats.ttft, &Summary::p99),
               due ? fixed_text(due->count() * 1e3, 0) : "-",
               due ? percent(*stats.attainment->ttft) : "-",
               stats.attainment ? percent(stats.slo_attainment) : "-",
               fixed_text(stats.request_goodput, 2)});
  }
  return table.text() + "\n";
}

std::string step_table(const PoolStats& pool) {
  Table table({"steps", "count", "mean ms", "time", "decodes/rank", "max activated", "max tokens",
               "balance"});
  for (const auto& [kind, step] : pool.steps.by_kind) {
    for (const auto& [routed, experts] : pool.experts.by_step_kind) {
      if (routed != kind) continue;
      const ExpertSummary& of = experts.summary;
      table.add({kind, fmt::format("{}", step.steps), fixed_text(step.mean_ms, 3),
                 percent(step.share_of_time), fixed_text(step.mean_decode_tokens_per_rank),
                 fixed_text(of.max_activated_mean, 2), fixed_text(of.max_tokens_mean),
                 fixed_text(of.balancedness, 3)});
    }
  }
  return table.text() + "\n";
}

// "experts active in a layer of a decode step: 83.0 of 128 (uniform routing: 125.9)"
std::string active_text(const PoolStats& pool, const Deployment& e) {
  const auto* usual = usual_kind(pool);
  if (usual == nullptr) return "";
  const ExpertSummary& of = usual->second.summary;
  const bool several = e.parallel.micro_batches > 1 || e.parallel.pp > 1 || e.overlap.two_batch;
  const char* each = several ? ", summed over micro-batches" : "";
  return fmt::format(
      "experts active in a layer of a {} step: {:.1f} of {}{} (uniform routing: {:.1f})\n",
      usual->first, of.active_experts_mean, e.model.experts, each, of.uniform_experts_mean);
}

// With AFD how long each side waits, and what the time of steps consists of.
std::string afd_text(const PoolStats& pool) {
  if (!pool.afd) return "";
  const AfdStats& afd = *pool.afd;
  std::string path;
  for (const auto& [stage, share] : afd.critical_path)
    path += fmt::format("{}{} {}", path.empty() ? "" : ", ", stage, percent(share));
  return paragraph(
      "GPUs for attention wait {} of the time, GPUs for experts {}, of which {} for their slowest "
      "rank; critical path: {}",
      percent(afd.attention_idle_share), percent(afd.ffn_idle_share),
      percent(afd.ffn_straggler_share), path);
}

// Text of where the time of steps goes, and what experts, buffers and KV cache made of it.
std::string pool_text(const PoolStats& pool, const Deployment& e) {
  std::string parts;
  for (const auto& [part, entry] : pool.breakdown.parts) {
    if (entry.share < .005) continue;
    parts += fmt::format("{}{} {}", parts.empty() ? "" : ", ", part, percent(entry.share));
  }
  std::string text = active_text(pool, e) + paragraph("time goes to " + parts) + afd_text(pool);
  const CoverageStats& decode = pool.routing_coverage.back().second;
  text += fmt::format(
      "barriers idle {}, KV cache {} used, peak {}{}\n", percent(pool.breakdown.barrier_idle_share),
      percent(pool.kv.mean_utilization), percent(pool.kv.peak_utilization),
      pool.sampled ? ""
                   : fmt::format("; routing rows recorded {} (decode)", percent(decode.recorded)));
  if (pool.sampled) {
    const SampledStats& sampled = *pool.sampled;
    text += fmt::format(
        "steps drawn from {} samples; {} checked exactly: time {:+.1f} +- {:.1f} %, at worst "
        "{:+.0f} %\n",
        sampled.samples, sampled.spot_checks, 100 * sampled.step_time_error,
        100 * sampled.standard_error, 100 * sampled.worst_step_error);
  }
  text += straggler_of(pool, e);
  if (const auto& memory = pool.expert_memory.transfers)
    text +=
        fmt::format("experts: {} of runs found them in HBM; layers waited {} s for the others\n",
                    percent(memory->hit_rate), fixed_text(memory->stall.count(), 2));
  const ExpertStats& experts = pool.experts;
  if (experts.dropped != 0 || experts.rerouted != 0 || experts.delayed != 0)
    text +=
        fmt::format("selections dropped {}, rerouted {}, delayed {}\n", percent(experts.dropped),
                    percent(experts.rerouted), percent(experts.delayed));
  const std::int64_t cut = pool.expert_buffers.steps_cut;
  if (cut > 0) text += fmt::format("{} steps were made smaller: expert buffers were full\n", cut);
  return text;
}

// How much of the prompts stood in the KV cache already.
std::string prefixes_of(const KvStats& kv) {
  if (!kv.prefix_caching) return "";
  return fmt::format("prefix cache: {} of the prompts' tokens were there, {} of {}\n",
                     percent(kv.prefix_hit_rate), kv.prefix_hit_tokens, kv.prefix_queried_tokens);
}

// "tier host: 12.3 % of the prompts' tokens were loaded; fill 81 %, link busy 3 % in, 5 % out; ..."
std::string tiers_of(const PoolStats& pool) {
  std::string text;
  for (const auto& [name, tier] : pool.tiers) {
    const auto hits = std::ranges::find(pool.kv.prefix_hit_tokens_by_tier, name,
                                        &std::pair<std::string, std::int64_t>::first);
    const double loaded =
        double(hits->second) / std::max<double>(1, double(pool.kv.prefix_queried_tokens));
    text += fmt::format(
        "tier {}: {} of the prompts' tokens were loaded; a load took {:.1f} ms, p99 {:.1f} ms\n"
        "  fill {}, links busy {} reading and {} writing; {:.3g} GB read, {:.3g} GB written\n",
        name, percent(loaded), tier.mean_wait_ms, tier.p99_wait_ms, percent(tier.mean_fill),
        percent(tier.read.busy_share), percent(tier.write.busy_share), tier.read.bytes / 1e9,
        tier.write.bytes / 1e9);
  }
  return text;
}

// "sessions     92 finished, 29.6 turns; 808.9 s, p90 1338.6 s; ..."
std::string sessions_of(const Report& report) {
  if (!report.sessions) return "";
  const SessionStats& s = *report.sessions;
  std::string text =
      fmt::format("sessions     {} finished, {} broken, {} open{}\n", s.finished, s.broken, s.open,
                  s.too_long ? fmt::format("; {} had a turn beyond max_context", *s.too_long) : "");
  if (s.measured > 0)
    text += fmt::format(
        "  of {} measured: {:.1f} turns, {:.1f} s, p90 {:.1f} s; service {:.0f} %, queue {:.0f} %, "
        "gaps {:.0f} %\n",
        s.measured, s.mean_turns, s.completion.mean, s.completion.p90,
        100 * s.share_of_time.service, 100 * s.share_of_time.queue, 100 * s.share_of_time.gap);
  const auto turns = [&](const char* which, const std::optional<TurnGroupStats>& group) {
    if (!group) return;
    text += fmt::format(
        "  {} turns: TTFT {:.0f} ms, p90 {:.0f} ms; {:.0f} of {:.0f} prompt tokens computed\n",
        which, group->ttft.mean, group->ttft.p90, group->mean_computed_tokens,
        group->mean_prompt_tokens);
  };
  turns("first", report.turns->first);
  turns("later", report.turns->later);
  return text;
}

std::string energy_of(const Report& report) {
  if (!report.energy) return "energy: the draw of this GPU is not known (its file has no power)\n";
  const EnergyStats& energy = *report.energy;
  if (!energy.joules_per_output_token) return "";
  const auto most =
      std::ranges::max_element(energy.shares, {}, &std::pair<std::string, double>::second);
  std::string text = fmt::format(
      "energy       {:.3g} J an output token, {:.3g} J a token; most in {} ({:.0f} %)\n"
      "             {:.0f} W a GPU, {:.0f} % of the limit\n",
      *energy.joules_per_output_token, *energy.joules_per_token, most->first, 100 * most->second,
      energy.watts_per_gpu, 100 * energy.share_of_limit);
  if (!energy.site) return text;
  text += fmt::format("  of the site {:.3g} J an output token, {:.0f} W a GPU\n",
                      energy.site->joules_per_output_token, energy.site->watts_per_gpu);
  if (const auto dollars = energy.site->electricity_per_million_output_tokens)
    text += fmt::format("  a million output tokens take {:.3f} dollars of electricity\n", *dollars);
  return text;
}

}  // namespace

std::string ms_text(const Summary& of, double Summary::*value) {
  return fixed_text(of.count == 0 ? std::nullopt : std::optional(of.*value), 2);
}

std::string outage_text(const OutageStats& stats) {
  const OutageRecord& outage = stats.outage;
  return paragraph(
      "{} stopped at {:.3f} s{}: {} requests moved, {} experts lost, engine stopped for {:.3f} s",
      outage.what, to_seconds(outage.at).count(),
      outage.recovered ? fmt::format(", back at {:.3f} s", to_seconds(*outage.recovered).count())
                       : "",
      outage.requests, outage.experts_lost, (outage.stopped + outage.stopped_again).count());
}

std::string report_text(const Report& report, const Deployment& e, const std::string& rejections) {
  const Metrics& m = report.metrics;
  if (m.completed == 0 && m.timed_out) {
    return fmt::format("no request finished: {} rejected{}\n", m.rejected, abandoned(m)) +
           (rejections.empty() ? "" : "rejected: " + rejections + "\n");
  }
  if (m.completed == 0) {
    return paragraph("no request finished: {} of {} were rejected: {}", m.rejected,
                     m.measured_requests, rejections);
  }
  std::string text;
  if (e.cluster.gpu.tables == nullptr || e.expert_cluster().gpu.tables == nullptr)
    text = "family constants: no table of measured kernels is behind this run\n";
  text += fmt::format(
      "{} requests finished, {} rejected{}; {:.1f} s measured\n"
      "throughput   {:.0f} tokens/s with prompts, {:.0f} output; {:.1f} output per GPU; {:.2f} "
      "requests/s\n{}\n",
      m.completed, m.rejected, abandoned(m), m.duration_s, m.total_token_throughput,
      m.output_throughput, m.tokens_per_s_per_gpu, m.request_throughput,
      state_of(report.measurement, m.tpot) + slo_of(report));
  if (!rejections.empty()) text += "rejected: " + rejections + "\n";
  text += latency_table(m) + class_table(report, e) + step_table(report.pool) +
          pool_text(report.pool, e);
  text += sessions_of(report) + prefixes_of(report.pool.kv) + tiers_of(report.pool);
  if (report.anchored)
    text += anchor_line(*e.anchor, report.anchored->tpot_factor, report.anchored->ttft_factor);
  text += groups_of(report) + events_of(report.pool);
  text += energy_of(report);
  if (m.cost_per_million_output_tokens)
    text += fmt::format("a million output tokens cost {} dollars\n",
                        fixed_text(m.cost_per_million_output_tokens, 2));
  return text;
}

}  // namespace moesim
