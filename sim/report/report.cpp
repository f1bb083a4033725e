// SPDX-License-Identifier: Apache-2.0
#include "sim/report/report.hpp"

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include <fmt/format.h>

namespace moesim {

using enum Better;

// ---- the tables: what stands in a report, in its order

const std::vector<Field<ReportContext>>& fields_of(const ReportContext*) {
  using S = ReportContext;
  static const std::vector<Field<S>> rows =
      FieldTable<S>()
          .add("moesim", &S::moesim, "version of the simulator")
          .add("seed", &S::seed, "seed of every random stream")
          .add("config", &S::config,
               "the experiment with every key, defaults included: runs again");
  return rows;
}

const std::vector<Field<AnchorStats>>& fields_of(const AnchorStats*) {
  using S = AnchorStats;
  static const std::vector<Field<S>> rows =
      FieldTable<S>()
          .add("deployment", &S::deployment, "deployment whose measured runs correct this run")
          .add("runs", &S::runs, "measured runs of the fit")
          .add("leave_one_out_error", &S::leave_one_out_error,
               "median |predicted / measured - 1| of runs left out of the fit")
          .add("tpot_factor", &S::tpot_factor, "on step times")
          .add("ttft_factor", &S::ttft_factor, "on times to first tokens");
  return rows;
}

const std::vector<Field<Attainment>>& fields_of(const Attainment*) {
  using S = Attainment;
  static const std::vector<Field<S>> rows =
      FieldTable<S>()
          .add_if_any("ttft", &S::ttft, "requests that met slo/ttft", "share of requests", more)
          .add_if_any("tpot", &S::tpot, "requests that met slo/tpot", "share of requests", more)
          .add_if_any("e2el", &S::e2el, "requests that met slo/e2el", "share of requests", more);
  return rows;
}

namespace {

// mean_ttft_ms, median_ttft_ms, ... of one latency; null where no request has it.
void add_latency(FieldTable<Metrics>& table, std::string_view name, std::string_view what,
                 Summary Metrics::*latency) {
  struct Statistic {
    std::string_view name, what;
    double Summary::*value;
  };
  constexpr std::array<Statistic, 7> statistics{{{"mean", "mean", &Summary::mean},
                                                 {"median", "median", &Summary::p50},
                                                 {"std", "standard deviation", &Summary::std},
                                                 {"p50", "median", &Summary::p50},
                                                 {"p90", "90th percentile", &Summary::p90},
                                                 {"p95", "95th percentile", &Summary::p95},
                                                 {"p99", "99th percentile", &Summary::p99}}};
  for (const Statistic& statistic : statistics) {
    table.add(
        fmt::format("{}_{}_ms", statistic.name, name),
        [latency, value = statistic.value](const Metrics& metrics) {
          const Summary& summary = metrics.*latency;
          return summary.count == 0 ? std::nullopt : std::optional(summary.*value);
        },
        fmt::format("{} of {}", statistic.what, what), "ms", less);
  }
}

}  // namespace

const std::vector<Field<Metrics>>& fields_of(const Metrics*) {
  using S = Metrics;
  static const std::vector<Field<S>> rows = [] {
    FieldTable<S> table;
    table.add("completed", &S::completed, "requests of the whole run that finished", "", more)
        .add("rejected", &S::rejected, "requests that no rank can ever hold", "", less)
        .add_if_any("timed_out", &S::timed_out, "requests whose client gave up waiting", "", less)
        .add_if_any("cancelled", &S::cancelled, "requests whose client left before the end", "",
                    less)
        .add_if_any("timeout_share", &S::timeout_share, "measured requests that timed out",
                    "share of requests", less)
        .add_if_any("cancelled_share", &S::cancelled_share, "measured requests that were cancelled",
                    "share of requests", less)
        .add("measured_requests", &S::measured_requests, "requests that arrived while measured")
        .add("completed_while_measured", &S::completed_while_measured,
             "requests that finished while measured")
        .add("duration_s", &S::duration_s, "length of what was measured", "s")
        .add("request_throughput", &S::request_throughput, "requests that finish", "1/s", more)
        .add("request_goodput", &S::request_goodput,
             "requests that finish within every objective of the SLO", "1/s", more)
        .add("slo_attainment", &S::slo_attainment,
             "requests that met every objective; rejected and timed-out ones met none",
             "share of requests", more)
        .add_if_any("attainment", &S::attainment, "")
        .add("output_throughput", &S::output_throughput, "tokens emitted", "tokens/s", more)
        .add(
            "total_token_throughput", &S::total_token_throughput,
            "tokens emitted, and prompt tokens of requests with their first token; without prompts "
            "that arrive computed (decode_only)",
            "tokens/s", more);
    add_latency(table, "ttft", "time to first token, from arrival", &S::ttft);
    table
        .add_if_any("mean_ingress_ms", &S::ingress_ms,
                    "part of mean_ttft_ms: from sending a request until the engine has its tokens",
                    "ms", less)
        .add_if_any("mean_queue_ms", &S::queue_ms,
                    "part of mean_ttft_ms: from the arrival of the tokens until the first step of "
                    "the prompt",
                    "ms", less)
        .add_if_any("mean_prefill_ms", &S::prefill_ms,
                    "part of mean_ttft_ms: from the first step of the prompt until the first token",
                    "ms", less);
    add_latency(table, "tpot", "(E2EL - TTFT) / (output tokens - 1) of each request", &S::tpot);
    add_latency(table, "itl", "time between two tokens of a request", &S::itl);
    add_latency(table, "e2el", "time from arrival to the last token", &S::e2el);
    table
        .add("tokens_per_s_per_gpu", &S::tokens_per_s_per_gpu, "output_throughput / GPUs",
             "tokens/s", more)
        .add("tokens_per_s_per_user", &S::tokens_per_s_per_user, "1000 / median_tpot_ms",
             "tokens/s", more)
        .add("total_tokens_per_s_per_gpu", &S::total_tokens_per_s_per_gpu,
             "total_token_throughput / GPUs", "tokens/s", more)
        .add("mfu", &S::mfu,
             "2 flops per active weight and computed token, of the GPUs' peak at the experts' "
             "precision",
             "share", more)
        .add("mbu", &S::mbu, "HBM bytes read and written, of the GPUs' bandwidth", "share", more)
        .add("cost_per_million_output_tokens", &S::cost_per_million_output_tokens,
             "all GPUs at the price of their hour; null without a price", "dollars", less);
    return std::vector<Field<S>>(std::move(table));
  }();
  return rows;
}

const std::vector<Field<ClassStats>>& fields_of(const ClassStats*) {
  using S = ClassStats;
  const auto ms = [](Summary S::*latency, double Summary::*value) {
    return [latency, value](const S& of_class) {
      const Summary& summary = of_class.*latency;
      return summary.count == 0 ? std::nullopt : std::optional(summary.*value);
    };
  };
  static const std::vector<Field<S>> rows =
      FieldTable<S>()
          .add("requests", &S::requests, "requests of the class that arrived while measured")
          .add("mean_ttft_ms", ms(&S::ttft, &Summary::mean), "mean time to first token", "ms", less)
          .add("p50_ttft_ms", ms(&S::ttft, &Summary::p50), "median of the same", "ms", less)
          .add("p99_ttft_ms", ms(&S::ttft, &Summary::p99), "99th percentile of the same", "ms",
               less)
          .add("mean_tpot_ms", ms(&S::tpot, &Summary::mean), "mean time per output token", "ms",
               less)
          .add("p99_tpot_ms", ms(&S::tpot, &Summary::p99), "99th percentile of the same", "ms",
               less)
          .add_if_any("attainment", &S::attainment, "")
          .add("slo_attainment", &S::slo_attainment,
               "requests that met every objective of the class", "share of requests", more)
          .add("request_goodput", &S::request_goodput,
               "requests that finish within every objective of the class", "1/s", more);
  return rows;
}

const std::vector<Field<SiteEnergyStats>>& fields_of(const SiteEnergyStats*) {
  using S = SiteEnergyStats;
  static const std::vector<Field<S>> rows =
      FieldTable<S>()
          .add("watts_per_gpu", &S::watts_per_gpu, "(watts_per_gpu + overhead_per_gpu) x pue", "W",
               less)
          .add("joules_per_output_token", &S::joules_per_output_token,
               "of the site, over tokens emitted", "J", less)
          .add("joules_per_token", &S::joules_per_token, "the same, over prompt tokens as well",
               "J", less)
          .add("output_tokens_per_s_per_mw", &S::output_tokens_per_s_per_mw,
               "output_throughput over the site's megawatts", "tokens/s", more)
          .add_if_any("electricity_per_million_output_tokens",
                      &S::electricity_per_million_output_tokens, "at dollars_per_kwh", "dollars",
                      less)
          .add_if_any("cost_with_electricity_per_million_output_tokens", &S::cost_with_electricity,
                      "price of the GPUs and electricity, where the price holds no electricity",
                      "dollars", less);
  return rows;
}

const std::vector<Field<EnergyStats>>& fields_of(const EnergyStats*) {
  using S = EnergyStats;
  static const std::vector<Field<S>> rows =
      FieldTable<S>()
          .add("joules", &S::joules, "drawn by all GPUs while measured", "J")
          .add("joules_per_output_token", &S::joules_per_output_token, "joules over tokens emitted",
               "J", less)
          .add("joules_per_token", &S::joules_per_token,
               "joules over tokens emitted, and prompt tokens of requests with their first token",
               "J", less)
          .add("watts_per_gpu", &S::watts_per_gpu, "mean draw of a GPU", "W")
          .add("share_of_limit", &S::share_of_limit, "mean draw over the data sheet's limit",
               "share")
          .add("output_tokens_per_s_per_mw", &S::output_tokens_per_s_per_mw,
               "output_throughput over the GPUs' megawatts", "tokens/s", more)
          .add("tokens_per_s_per_mw", &S::tokens_per_s_per_mw,
               "total_token_throughput over the GPUs' megawatts", "tokens/s", more)
          .add("shares", &S::shares,
               "joules of computing by part; of exchanges what is above waiting; waits: barriers, "
               "links, gaps between kernels; between_steps: no step under way",
               "share of energy")
          .each("PART")
          .add_if_any("site", &S::site, "with overhead and PUE, where power is given")
          .add("source", &S::source, "where the power of GPUs comes from");
  return rows;
}

const std::vector<Field<AttainmentAlong>>& fields_of(const AttainmentAlong*) {
  using S = AttainmentAlong;
  static const std::vector<Field<S>> rows =
      FieldTable<S>()
          .add("first_half", &S::first_half, "early requests that met every objective",
               "share of requests")
          .add("second_half", &S::second_half,
               "late requests that met every objective: fewer if a backlog grows",
               "share of requests")
          .add("standard_error", &S::standard_error, "slo_attainment in ten stretches of the run",
               "share of requests")
          .add("whole_run", &S::whole_run,
               "requests of the whole run that met every objective, warm-up and end included",
               "share of requests");
  return rows;
}

const std::vector<Field<MeasurementStats>>& fields_of(const MeasurementStats*) {
  using S = MeasurementStats;
  static const std::vector<Field<S>> rows =
      FieldTable<S>()
          .add("window", &S::window, "measured part of the run: steady, after_warm_up or whole")
          .add("state", &S::state,
               "is the run steady? stable, unsteady, overloaded, too_short or offline")
          .add("begin_s", &S::begin_s, "when measuring began", "s")
          .add("end_s", &S::end_s, "when it ended", "s")
          .add("offered_request_rate", &S::offered_request_rate,
               "requests that arrive; null in a closed loop", "1/s")
          .add("served_request_rate", &S::served_request_rate, "requests that leave", "1/s", more)
          .add("ttft_growth", &S::ttft_growth,
               "growth of TTFT from the first quarter of the requests to the last, 0 if it may be "
               "chance",
               "s/s")
          .add("tpot_growth", &S::tpot_growth, "growth of TPOT, as that of TTFT", "s/s")
          .add_if_any("attainment", &S::attainment, "");
  return rows;
}

const std::vector<Field<SessionShares>>& fields_of(const SessionShares*) {
  using S = SessionShares;
  static const std::vector<Field<S>> rows =
      FieldTable<S>()
          .add("service", &S::service, "from the first step of a prompt to the last token",
               "share of time")
          .add("queue", &S::queue, "from sending a request to the first step of its prompt",
               "share of time", less)
          .add_if_any("join", &S::join, "waiting for agents that the main agent has started",
                      "share of time", less)
          .add("gap", &S::gap, "between a reply and the next turn", "share of time");
  return rows;
}

const std::vector<Field<TurnSpan>>& fields_of(const TurnSpan*) {
  using S = TurnSpan;
  static const std::vector<Field<S>> rows =
      FieldTable<S>()
          .add("agent", &S::agent, "of its session, in order of their beginning; 0: the main one")
          .add("turn", &S::turn, "of its agent, from 0")
          .add("sent_s", &S::sent_s, "when its client sent the turn", "s")
          .add("begun_s", &S::begun_s, "when the first step of its prompt began", "s")
          .add("first_token_s", &S::first_token_s, "when its first token came", "s")
          .add("last_token_s", &S::last_token_s, "when its last token came", "s")
          .add_if_any("loading_s", &S::loading_s,
                      "parked while blocks came from a tier, where there are any", "s")
          .add("prompt_tokens", &S::prompt_tokens, "tokens of its prompt", "tokens")
          .add("cached_tokens", &S::cached_tokens, "of these, cached at first admission", "tokens")
          .add_if_any("loaded_tokens", &S::loaded_tokens,
                      "of these, loaded from tiers, where there are any", "tokens")
          .add("output_tokens", &S::output_tokens, "tokens of its reply", "tokens");
  return rows;
}

const std::vector<Field<SlowSession>>& fields_of(const SlowSession*) {
  using S = SlowSession;
  static const std::vector<Field<S>> rows =
      FieldTable<S>()
          .add("session", &S::session, "its number, in order of their beginning")
          .add("begun_s", &S::begun_s, "when its first request was sent", "s")
          .add("ended_s", &S::ended_s, "when its last reply ended", "s")
          .add("turns", &S::turns, "a turn, in order of their requests");
  return rows;
}

const std::vector<Field<HitSpan>>& fields_of(const HitSpan*) {
  using S = HitSpan;
  static const std::vector<Field<S>> rows =
      FieldTable<S>()
          .add("begin_s", &S::begin_s, "from here on", "s")
          .add("end_s", &S::end_s, "to here", "s")
          .add("queried_tokens", &S::queried_tokens, "prompt tokens of turns sent in this time",
               "tokens")
          .add("hit_tokens", &S::hit_tokens, "of these, cached at first admission", "tokens")
          .add_if_any("loaded_tokens", &S::loaded_tokens,
                      "of these, loaded from tiers, where there are any", "tokens");
  return rows;
}

const std::vector<Field<SessionStats>>& fields_of(const SessionStats*) {
  using S = SessionStats;
  const auto seconds = [](double Summary::*value) {
    return [value](const S& sessions) {
      const Summary& summary = sessions.completion;
      return summary.count == 0 ? std::nullopt : std::optional(summary.*value);
    };
  };
  static const std::vector<Field<S>> rows =
      FieldTable<S>()
          .add("finished", &S::finished, "sessions of the whole run whose last turn was answered",
               "", more)
          .add("broken", &S::broken, "sessions that ended with a turn rejected or abandoned", "",
               less)
          .add("open", &S::open, "sessions that had turns left when the run ended")
          .add_if_any("too_long", &S::too_long,
                      "sessions with a turn beyond max_context, where they end, drop it or compact",
                      "", less)
          .add("measured", &S::measured,
               "finished sessions that ended after measuring began; the next rows are theirs")
          .add("mean_completion_s", seconds(&Summary::mean),
               "mean time from the first request to the last reply", "s", less)
          .add("p50_completion_s", seconds(&Summary::p50), "median of the same", "s", less)
          .add("p90_completion_s", seconds(&Summary::p90), "90th percentile of the same", "s", less)
          .add("p99_completion_s", seconds(&Summary::p99), "99th percentile of the same", "s", less)
          .add("mean_turns", &S::mean_turns, "turns of a session")
          .add("share_of_time", &S::share_of_time, "where the time of sessions went")
          .add("throughput", &S::throughput, "sessions that finish", "1/s", more)
          .add("mean_alive", &S::mean_alive, "sessions under way")
          .add("mean_requests_in_flight", &S::mean_requests_in_flight,
               "requests sent and not yet answered")
          .add_if_any("slowest", &S::slowest,
                      "a session that took longest, where measurement/slowest_sessions asks");
  return rows;
}

const std::vector<Field<PrefixStats>>& fields_of(const PrefixStats*) {
  using S = PrefixStats;
  static const std::vector<Field<S>> rows =
      FieldTable<S>()
          .add("queried_tokens", &S::queried_tokens, "prompt tokens", "tokens")
          .add("hit_tokens", &S::hit_tokens, "prompt tokens that were cached at first admission",
               "tokens", more)
          .add("computed_tokens", &S::computed_tokens, "prompt tokens that were not", "tokens",
               less)
          .add_if_any("loaded_tokens", &S::loaded_tokens,
                      "hits that were loaded from tiers, where there are any", "tokens")
          .add("ideal_hit_tokens", &S::ideal_hit_tokens,
               "hits of one endless cache, in whole KV blocks", "tokens")
          .add("hit_rate", &S::hit_rate, "hit / queried", "share of tokens", more)
          .add("ideal_hit_rate", &S::ideal_hit_rate, "ideal hit / queried", "share of tokens");
  return rows;
}

const std::vector<Field<TurnGroupStats>>& fields_of(const TurnGroupStats*) {
  using S = TurnGroupStats;
  const auto ms = [](double Summary::*value) {
    return [value](const S& turns) { return turns.ttft.*value; };
  };
  static const std::vector<Field<S>> rows =
      FieldTable<S>()
          .add("requests", &S::requests, "turns that arrived while measured, and finished")
          .add("mean_ttft_ms", ms(&Summary::mean), "mean time to first token", "ms", less)
          .add("p50_ttft_ms", ms(&Summary::p50), "median of the same", "ms", less)
          .add("p90_ttft_ms", ms(&Summary::p90), "90th percentile of the same", "ms", less)
          .add("p99_ttft_ms", ms(&Summary::p99), "99th percentile of the same", "ms", less)
          .add("mean_prompt_tokens", &S::mean_prompt_tokens, "tokens of a prompt", "tokens")
          .add("mean_computed_tokens", &S::mean_computed_tokens,
               "prompt tokens that were not cached", "tokens", less)
          .add("mean_output_tokens", &S::mean_output_tokens, "tokens of a reply", "tokens")
          .add("prefix", &S::prefix, "where prompt tokens came from");
  return rows;
}

const std::vector<Field<TurnStats>>& fields_of(const TurnStats*) {
  using S = TurnStats;
  static const std::vector<Field<S>> rows =
      FieldTable<S>()
          .add_if_any("all", &S::all, "all turns")
          .add_if_any("first", &S::first, "the first turns of sessions")
          .add_if_any("later", &S::later, "all other turns")
          .add_if_any("after_compaction", &S::after_compaction,
                      "turns with a shorter prompt than the turn before")
          .add("by_number", &S::by_number, "turns by their number: 1, 2, 3-4, 5-8, ..")
          .each("TURNS")
          .add_if_any("over_time", &S::over_time,
                      "a 24th of the run, where measurement/slowest_sessions asks");
  return rows;
}

const std::vector<Field<StepKindStats>>& fields_of(const StepKindStats*) {
  using S = StepKindStats;
  static const std::vector<Field<S>> rows =
      FieldTable<S>()
          .add("steps", &S::steps, "steps that held prefill, decode or both (mixed)")
          .add("seconds", &S::seconds, "their sum", "s")
          .add("share_of_time", &S::share_of_time, "share of the time of all steps",
               "share of time")
          .add("mean_ms", &S::mean_ms, "a step", "ms", less)
          .add("mean_prefill_tokens", &S::mean_prefill_tokens, "prompt tokens in a step", "tokens")
          .add("mean_decode_tokens", &S::mean_decode_tokens, "decode tokens in a step", "tokens",
               more)
          .add("mean_decode_tokens_per_rank", &S::mean_decode_tokens_per_rank,
               "decode tokens in a step and DP rank", "tokens")
          .add("mean_dummy_ranks", &S::mean_dummy_ranks,
               "DP ranks that ran a dummy token because others had work")
          .add("decode_tokens_per_s_per_gpu", &S::decode_tokens_per_s_per_gpu,
               "decode tokens over the time of these steps and the GPUs of a group", "tokens/s",
               more)
          .add("parts_mean_ms", &S::parts_mean_ms, "a step's critical path, by part", "ms", less)
          .each("PART");
  return rows;
}

const std::vector<Field<RuleShares>>& fields_of(const RuleShares*) {
  using S = RuleShares;
  static const std::vector<Field<S>> rows =
      FieldTable<S>()
          .add("share_of_steps", &S::share_of_steps,
               "steps that were routed by the policies of prefill, decode or mixed",
               "share of steps")
          .add("share_of_time", &S::share_of_time, "the time of these steps", "share of time");
  return rows;
}

const std::vector<Field<StepStats>>& fields_of(const StepStats*) {
  using S = StepStats;
  static const std::vector<Field<S>> rows =
      FieldTable<S>().merge(&S::by_kind).each("KIND").add("by_rule", &S::by_rule, "").each("KIND");
  return rows;
}

const std::vector<Field<Distribution>>& fields_of(const Distribution*) {
  using S = Distribution;
  static const std::vector<Field<S>> rows = FieldTable<S>()
                                                .add("mean", &S::mean, "mean")
                                                .add("p50", &S::p50, "median")
                                                .add("p95", &S::p95, "95th percentile")
                                                .add("p99", &S::p99, "99th percentile")
                                                .add("max", &S::max, "largest");
  return rows;
}

const std::vector<Field<RankDistribution>>& fields_of(const RankDistribution*) {
  using S = RankDistribution;
  static const std::vector<Field<S>> rows = FieldTable<S>().merge(&S::steps).add(
      "total_by_rank", &S::total_by_rank, "sum over the steps, [EP rank]");
  return rows;
}

const std::vector<Field<ExpertLayerStats>>& fields_of(const ExpertLayerStats*) {
  using S = ExpertLayerStats;
  static const std::vector<Field<S>> rows =
      FieldTable<S>()
          .add("layer", &S::layer, "number of the layer in the model")
          .add("rank_activated", &S::rank_activated,
               "activated experts of an EP rank in a step: over (rank, step)")
          .add("rank_tokens", &S::rank_tokens,
               "expert tokens of an EP rank in a step: over (rank, step)")
          .add("expert_tokens", &S::expert_tokens,
               "tokens of a logical expert in a step: over (expert, step)");
  return rows;
}

const std::vector<Field<HotRankEvents>>& fields_of(const HotRankEvents*) {
  using S = HotRankEvents;
  static const std::vector<Field<S>> rows =
      FieldTable<S>()
          .add("layer_steps", &S::layer_steps,
               "(layer, step) pairs whose busiest rank had more than hot_rank_threshold times the "
               "mean tokens",
               "", less)
          .add("worst", &S::worst, "largest ratio seen", "max/mean", less);
  return rows;
}

const std::vector<Field<ExpertSummary>>& fields_of(const ExpertSummary*) {
  using S = ExpertSummary;
  static const std::vector<Field<S>> rows =
      FieldTable<S>()
          .add("max_activated_mean", &S::max_activated_mean,
               "activated experts of the busiest EP rank, mean over (layer, step)", "", less)
          .add("activated_mean", &S::activated_mean, "activated experts of an EP rank", "", less)
          .add("active_experts_mean", &S::active_experts_mean, "logical experts with tokens")
          .add("uniform_experts_mean", &S::uniform_experts_mean,
               "logical experts that as many tokens would have under uniform routing, experts x "
               "(1 - (1 - k / experts)^tokens)")
          .add("max_tokens_mean", &S::max_tokens_mean, "expert tokens of the busiest EP rank", "",
               less)
          .add("tokens_mean", &S::tokens_mean, "expert tokens of an EP rank")
          .add("balancedness", &S::balancedness, "tokens_mean / max_tokens_mean", "mean/max", more)
          .add("imbalance", &S::imbalance, "max_tokens_mean / tokens_mean", "max/mean", less)
          .add("cv", &S::cv, "coefficient of variation of tokens over EP ranks", "", less)
          .add("gemm_occupancy", &S::gemm_occupancy, "rows of padded GEMMs that hold tokens",
               "share of rows", more)
          .add_if_any("imbalance_with_shared", &S::imbalance_with_shared,
                      "imbalance when tokens of the shared expert count too", "max/mean", less)
          .add_if_any("own_gpu_share", &S::own_gpu_share,
                      "selections that the EP rank of their token serves", "share of selections",
                      more)
          .add_if_any("own_domain_share", &S::own_domain_share,
                      "selections served within the NVLink domain of their token",
                      "share of selections", more)
          .add_if_any("step_copies_mean", &S::step_copies_mean,
                      "copies of experts that a step brings for a layer", "", less)
          .add_if_any("step_copy_bytes_mean", &S::step_copy_bytes_mean,
                      "what these send over links", "B", less)
          .add("hot_rank_events", &S::hot_rank_events, "");
  return rows;
}

const std::vector<Field<ExpertKindStats>>& fields_of(const ExpertKindStats*) {
  using S = ExpertKindStats;
  static const std::vector<Field<S>> rows =
      FieldTable<S>().merge(&S::summary).add_if_any("layers", &S::layers, "");
  return rows;
}

const std::vector<Field<HottestRank>>& fields_of(const HottestRank*) {
  using S = HottestRank;
  static const std::vector<Field<S>> rows =
      FieldTable<S>()
          .add("time_s", &S::time_s, "when the step ended", "s")
          .add("layer", &S::layer, "number of the layer in the model")
          .add("rank", &S::rank, "EP rank")
          .add("ratio", &S::ratio, "its tokens over the mean of all ranks", "max/mean", less);
  return rows;
}

const std::vector<Field<ExpertStats>>& fields_of(const ExpertStats*) {
  using S = ExpertStats;
  static const std::vector<Field<S>> rows =
      FieldTable<S>()
          .merge(&S::summary)
          .add("by_step_kind", &S::by_step_kind, "")
          .each("KIND")
          .add("replicas", &S::replicas, "physical experts of a layer beyond the logical ones")
          .add("replication_effective", &S::replication_effective,
               "physical over logical experts, as the slots came out", "", less)
          .add("dropped", &S::dropped, "selections of the gate that no expert ran",
               "share of selections", less)
          .add("rerouted", &S::rerouted, "selections that another expert ran",
               "share of selections", less)
          .add("delayed", &S::delayed, "selections left for the next step, of all of the gate", "",
               less)
          .add("hot_rank_threshold", &S::hot_rank_threshold, "measurement/hot_rank_threshold",
               "max/mean")
          .add_if_any("hottest_ranks", &S::hottest_ranks, "")
          .add_if_any("tokens_per_expert_by_workload", &S::tokens_per_expert_by_workload,
                      "[layer][logical expert] tokens of the whole run, by workload tag")
          .each("WORKLOAD");
  return rows;
}

const std::vector<Field<PrefetchStats>>& fields_of(const PrefetchStats*) {
  using S = PrefetchStats;
  static const std::vector<Field<S>> rows =
      FieldTable<S>()
          .add("issued", &S::issued, "transfers that began ahead of a layer")
          .add("used", &S::used, "prefetched experts that the next layer used", "", more)
          .add("late", &S::late, "misses that waited for the rest of their prefetch", "", less)
          .add("wasted", &S::wasted, "prefetched experts that the next layer did not use", "",
               less);
  return rows;
}

const std::vector<Field<ExpertTransferStats>>& fields_of(const ExpertTransferStats*) {
  using S = ExpertTransferStats;
  static const std::vector<Field<S>> rows =
      FieldTable<S>()
          .add("hits", &S::hits, "experts that ran and stood in HBM when their layer began", "",
               more)
          .add("misses", &S::misses, "experts that ran and did not", "", less)
          .add("hit_rate", &S::hit_rate, "hits / (hits + misses)", "share of runs", more)
          .add("streamed", &S::streamed, "misses that were fetched without staying", "", less)
          .add("prefetch", &S::prefetch, "")
          .add("host_bytes", &S::host_bytes, "fetched from DRAM", "B", less)
          .add("nvme_bytes", &S::nvme_bytes, "fetched from NVMe", "B", less)
          .add("stall_seconds", &S::stall_seconds,
               "extra time of MoE layers compared with all experts in HBM", "s", less)
          .add_if_any("held_up_seconds", &S::held_up_seconds,
                      "more time of transfers as KV blocks use the host link, all GPUs", "s", less)
          .add("host_source", &S::host_source, "where the host link's figures come from");
  return rows;
}

const std::vector<Field<ExpertMemoryStats>>& fields_of(const ExpertMemoryStats*) {
  using S = ExpertMemoryStats;
  static const std::vector<Field<S>> rows =
      FieldTable<S>()
          .add("type", &S::type, "policy; resident: every expert is in HBM")
          .merge(&S::transfers);
  return rows;
}

const std::vector<Field<ExpertBufferStats>>& fields_of(const ExpertBufferStats*) {
  using S = ExpertBufferStats;
  static const std::vector<Field<S>> rows =
      FieldTable<S>()
          .add("tokens_per_rank", &S::tokens_per_rank,
               "tokens of a rank and step for which dispatch buffers have room", "tokens")
          .add("steps_cut", &S::steps_cut, "steps that were smaller because they were full", "",
               less)
          .add("rank_steps_cut", &S::rank_steps_cut, "(rank, step) pairs of these", "", less);
  return rows;
}

const std::vector<Field<PrefillAlignmentStats>>& fields_of(const PrefillAlignmentStats*) {
  using S = PrefillAlignmentStats;
  static const std::vector<Field<S>> rows =
      FieldTable<S>()
          .add("type", &S::type, "policy that holds prompts back")
          .add("steps_held", &S::steps_held, "steps without prompts that ranks could have computed")
          .add("share_of_steps", &S::share_of_steps, "of all steps", "share of steps")
          .add("tokens_held", &S::tokens_held,
               "prompt tokens that these steps could have computed, counted in each", "tokens")
          .add("mean_wait_ms", &S::mean_wait_ms,
               "time that prompts were held, over all requests that arrived", "ms", less);
  return rows;
}

const std::vector<Field<TrafficStats>>& fields_of(const TrafficStats*) {
  using S = TrafficStats;
  static const std::vector<Field<S>> rows =
      FieldTable<S>()
          .add("seconds", &S::seconds, "time that links were busy", "s", less)
          .add("hidden_seconds", &S::hidden_seconds, "seconds hidden behind computation", "s")
          .add("share_of_busy_time", &S::share_of_busy_time, "seconds over all steps' time",
               "share of time", less)
          .add("nvlink_bytes", &S::nvlink_bytes, "over NVLink", "B", less)
          .add("network_bytes", &S::network_bytes, "over the network", "B", less);
  return rows;
}

const std::vector<Field<LayerTrafficStats>>& fields_of(const LayerTrafficStats*) {
  using S = LayerTrafficStats;
  static const std::vector<Field<S>> rows =
      FieldTable<S>()
          .merge(&S::all)
          .add("mean_us_per_layer", &S::mean_us_per_layer, "mean over (MoE layer, step)", "us",
               less)
          .add("p99_us_per_layer", &S::p99_us_per_layer, "99th percentile of the same", "us", less);
  return rows;
}

const std::vector<Field<CommunicationStats>>& fields_of(const CommunicationStats*) {
  using S = CommunicationStats;
  static const std::vector<Field<S>> rows =
      FieldTable<S>()
          .add("layers_by_dispatch", &S::layers_by_dispatch, "(layer, step) pairs that it carried")
          .each("DISPATCH")
          .add("dispatch", &S::dispatch, "tokens to the GPUs of their experts")
          .add("combine", &S::combine, "results back")
          .add("tp_all_reduce", &S::tp_all_reduce,
               "all-reduces within tensor-parallel ranks, exchanges of DCP");
  return rows;
}

const std::vector<Field<PartStats>>& fields_of(const PartStats*) {
  using S = PartStats;
  static const std::vector<Field<S>> rows =
      FieldTable<S>()
          .add("seconds", &S::seconds, "on the critical path of steps", "s", less)
          .add("share", &S::share, "share of the time of all steps", "share of time")
          .add_if_any("bound_by", &S::bound_by, "seconds by the resource that bounds them", "s")
          .each("RESOURCE");
  return rows;
}

const std::vector<Field<BreakdownStats>>& fields_of(const BreakdownStats*) {
  using S = BreakdownStats;
  static const std::vector<Field<S>> rows =
      FieldTable<S>()
          .add("busy_seconds", &S::busy_seconds, "all steps' time, over all EP groups", "s")
          .add("parts", &S::parts, "")
          .each("PART")
          .add("bound_by", &S::bound_by, "steps' time by what bounds it", "s")
          .each("RESOURCE")
          .add("extrapolated_share", &S::extrapolated_share,
               "time predicted by constants beyond what they were fitted on", "share of time", less)
          .add("unmeasured_share", &S::unmeasured_share,
               "time predicted by constants never measured on this GPU", "share of time", less)
          .add("barrier_idle_share", &S::barrier_idle_share, "GPU time spent waiting at barriers",
               "share of time", less)
          .add("barrier_idle_seconds_per_gpu", &S::barrier_idle_seconds_per_gpu,
               "waiting at barriers, [GPU of a group]", "s", less)
          .add("exposed_communication_share", &S::exposed_communication_share,
               "communication that no computation hides", "share of time", less)
          .add_if_any("measured_share", &S::measured_share,
                      "time of kernels at points that a table measured", "share of time", more)
          .add_if_any("interpolated_share", &S::interpolated_share,
                      "time of kernels between points of a table", "share of time")
          .add_if_any("carried_over_share", &S::carried_over_share,
                      "time of kernels that a table of another GPU measured", "share of time")
          .add_if_any("charged_share", &S::charged_share,
                      "time of no kernel, as \"charges\" say: gaps, the host, token routing",
                      "share of time");
  return rows;
}

const std::vector<Field<RoutingChargeStats>>& fields_of(const RoutingChargeStats*) {
  using S = RoutingChargeStats;
  static const std::vector<Field<S>> rows =
      FieldTable<S>()
          .add("fixed_us", &S::fixed_us, "GPU time of the policy in a layer", "us")
          .add("per_128_active_us", &S::per_128_active_us,
               "further time for each 128 active experts", "us");
  return rows;
}

const std::vector<Field<ChargeStats>>& fields_of(const ChargeStats*) {
  using S = ChargeStats;
  static const std::vector<Field<S>> rows =
      FieldTable<S>()
          .add("source", &S::source, "where the charges come from")
          .add("top_k_of_all_tokens_us", &S::top_k_of_all_tokens_us,
               "time of the gate when hidden states are gathered first", "us")
          .add("host_overhead_us", &S::host_overhead_us, "once per step", "us")
          .add_if_any("token_routing", &S::token_routing, "")
          .each("POLICY");
  return rows;
}

const std::vector<Field<MemoryStats>>& fields_of(const MemoryStats*) {
  using S = MemoryStats;
  static const std::vector<Field<S>> rows =
      FieldTable<S>()
          .add("capacity_bytes", &S::capacity_bytes, "HBM of a GPU", "B")
          .add("usable_bytes", &S::usable_bytes, "capacity x gpu_memory_utilization", "B")
          .add("weights_bytes", &S::weights_bytes, "everything but routed experts", "B")
          .add("experts_bytes", &S::experts_bytes, "routed experts, one copy of each", "B")
          .add("replicas_bytes", &S::replicas_bytes, "redundant slots", "B")
          .add("buffers_bytes", &S::buffers_bytes,
               "exchange buffers, activations, logits, rebalance buffer", "B")
          .add("rebalance_buffer_bytes", &S::rebalance_buffer_bytes, "buffers for rebalancing", "B")
          .add("kv_bytes", &S::kv_bytes, "left for the KV cache", "B", more);
  return rows;
}

const std::vector<Field<AfdStats>>& fields_of(const AfdStats*) {
  using S = AfdStats;
  static const std::vector<Field<S>> rows =
      FieldTable<S>()
          .add("attention_gpus", &S::attention_gpus, "GPUs of a group that hold KV cache")
          .add("ffn_gpus", &S::ffn_gpus, "GPUs of a group that hold experts")
          .add("micro_batches", &S::micro_batches, "parts of a step in flight between the sides")
          .add("attention_idle_share", &S::attention_idle_share,
               "GPU time that attention's GPUs wait, for each other or for experts",
               "share of time", less)
          .add("ffn_idle_share", &S::ffn_idle_share,
               "GPU time that the experts' GPUs wait, for each other or for tokens",
               "share of time", less)
          .add("attention_straggler_share", &S::attention_straggler_share,
               "part of that wait for the slowest attention rank", "share of time", less)
          .add("ffn_straggler_share", &S::ffn_straggler_share,
               "part of that wait for the slowest expert rank: what skew costs", "share of time",
               less)
          .add("dispatch_busy_share", &S::dispatch_busy_share, "links to the experts in use",
               "share of time")
          .add("combine_busy_share", &S::combine_busy_share, "links from the experts in use",
               "share of time")
          .add("critical_path", &S::critical_path, "what the time of steps consists of",
               "share of time")
          .each("STAGE")
          .add("ffn_memory", &S::ffn_memory, "HBM of a GPU of the experts");
  return rows;
}

const std::vector<Field<KvStats>>& fields_of(const KvStats*) {
  using S = KvStats;
  static const std::vector<Field<S>> rows =
      FieldTable<S>()
          .add("block_tokens", &S::block_tokens, "tokens of a block", "tokens")
          .add("blocks_per_rank", &S::blocks_per_rank, "blocks of a DP rank")
          .add("mean_utilization", &S::mean_utilization, "blocks held, over steps' time", "share")
          .add("peak_utilization", &S::peak_utilization, "most blocks held at a time", "share",
               less)
          .add("preemptions", &S::preemptions, "requests that lost their blocks to others", "",
               less)
          .add("prefix_caching", &S::prefix_caching, "whether blocks are shared between prompts")
          .add("prefix_queried_tokens", &S::prefix_queried_tokens, "prompt tokens looked up",
               "tokens")
          .add("prefix_hit_tokens", &S::prefix_hit_tokens, "queried tokens that were cached",
               "tokens", more)
          .add("prefix_hit_rate", &S::prefix_hit_rate, "hits / queried", "share of tokens", more)
          .add_if_any("prefix_hit_tokens_by_tier", &S::prefix_hit_tokens_by_tier,
                      "hits by where they stood, where there is a tier", "tokens")
          .each("TIER")
          .add_if_any("prefix_loaded_rate", &S::prefix_loaded_rate,
                      "hits loaded from tiers / queried", "share of tokens")
          .add_if_any("recomputed_tokens", &S::recomputed_tokens,
                      "tokens computed again after preemptions", "tokens", less);
  return rows;
}

const std::vector<Field<TierLinkStats>>& fields_of(const TierLinkStats*) {
  using S = TierLinkStats;
  static const std::vector<Field<S>> rows =
      FieldTable<S>()
          .add("transfers", &S::transfers, "transfers that began")
          .add("bytes", &S::bytes, "what the transfers carried, on all GPUs", "B")
          .add("busy_share", &S::busy_share, "of a rank's link, of the run's time", "share of time",
               less);
  return rows;
}

const std::vector<Field<TierStats>>& fields_of(const TierStats*) {
  using S = TierStats;
  static const std::vector<Field<S>> rows =
      FieldTable<S>()
          .add("per", &S::per, "who shares one")
          .add("tiers", &S::tiers, "how many there are")
          .add("capacity_blocks", &S::capacity_blocks, "blocks that the first one holds")
          .add("capacity_bytes", &S::capacity_bytes, "the same in bytes", "B")
          .add("read", &S::read, "from the tier to HBM")
          .add("write", &S::write, "from HBM, or the tier above, to the tier")
          .add_if_any("passed_bytes", &S::passed_bytes,
                      "read from lower tiers through this one, where there are any", "B")
          .add_if_any("kept_bytes", &S::kept_bytes, "of these, what stayed", "B")
          .add("evicted_bytes", &S::evicted_bytes, "what made room for other blocks", "B", less)
          .add("dead_bytes", &S::dead_bytes, "evicted without having been read", "B", less)
          .add("refused_bytes", &S::refused_bytes, "not stored, because all else was pinned", "B",
               less)
          .add("mean_fill", &S::mean_fill, "of the capacity, over the run's time", "share")
          .add("peak_fill", &S::peak_fill, "of the capacity, at most", "share")
          .add("given_up_loads", &S::given_up_loads,
               "loads whose blocks were taken before the request ran", "", less)
          .add("mean_wait_ms", &S::mean_wait_ms, "mean time of a load", "ms", less)
          .add("p99_wait_ms", &S::p99_wait_ms, "99th percentile of the same", "ms", less)
          .add_if_any("held_up_seconds", &S::held_up_seconds,
                      "more time of transfers as other loads use the host link, all ranks", "s",
                      less);
  return rows;
}

// Keys as vLLM counts.
const std::vector<Field<RouterStats>>& fields_of(const RouterStats*) {
  using S = RouterStats;
  static const std::vector<Field<S>> rows =
      FieldTable<S>()
          .add("decision_us", &S::decision_us, "time for each request", "us", less)
          .add("most_per_second", &S::most_per_second, "requests that it can route at most", "1/s",
               more)
          .add("decisions", &S::decisions, "requests that it routed, over the whole run")
          .add("busy_share", &S::busy_share, "of the whole run, it decided", "", less)
          .add("mean_wait_ms", &S::mean_wait_ms,
               "from a request's arrival at the router to the end of its decision; part of TTFT",
               "ms", less);
  return rows;
}

const std::vector<Field<SampledStats>>& fields_of(const SampledStats*) {
  using S = SampledStats;
  static const std::vector<Field<S>> rows =
      FieldTable<S>()
          .add("samples", &S::samples, "steps that others were drawn from")
          .add("spot_checks", &S::spot_checks, "steps of the run that were also priced exactly")
          .add("step_time_error", &S::step_time_error,
               "time of steps, sampled / exact - 1, as the run's steps are mixed", "relative")
          .add("standard_error", &S::standard_error,
               "standard error of step_time_error, from the differences of checks", "relative")
          .add("worst_step_error", &S::worst_step_error, "error of the worst checked step",
               "relative");
  return rows;
}
const std::vector<Field<SpeculationStats>>& fields_of(const SpeculationStats*) {
  using S = SpeculationStats;
  static const std::vector<Field<S>> rows =
      FieldTable<S>()
          .add("num_drafts", &S::num_drafts, "verifications of a sequence in a step")
          .add("num_draft_tokens", &S::num_draft_tokens, "drafts that were verified", "tokens")
          .add("num_accepted_tokens", &S::num_accepted_tokens, "drafts that held", "tokens", more)
          .add("draft_acceptance_rate", &S::draft_acceptance_rate, "accepted / drafted", "share",
               more)
          .add("mean_acceptance_length", &S::mean_acceptance_length,
               "tokens that a verification yields, its own included", "tokens", more)
          .add("draft_seconds", &S::draft_seconds, "steps spent on drafting", "s", less)
          .add("draft_share", &S::draft_share, "share of the time of all steps", "share of time",
               less);
  return rows;
}

const std::vector<Field<CoverageStats>>& fields_of(const CoverageStats*) {
  using S = CoverageStats;
  static const std::vector<Field<S>> rows =
      FieldTable<S>()
          .add("tokens", &S::tokens, "tokens whose experts came from rows of a trace", "tokens")
          .add("recorded", &S::recorded, "rows of the bound recording, of the right phase",
               "share of tokens", more)
          .add("borrowed", &S::borrowed, "rows of the recording's other phase", "share of tokens",
               less)
          .add("wrapped", &S::wrapped, "past the recording's end: rows of the next one",
               "share of tokens", less)
          .add("synthetic", &S::synthetic, "made by a generator", "share of tokens");
  return rows;
}

const std::vector<Field<RebalancingLog::Event>>& fields_of(const RebalancingLog::Event*) {
  using S = RebalancingLog::Event;
  static const std::vector<Field<S>> rows =
      FieldTable<S>()
          .add(
              "at_s", [](const S& s) { return to_seconds(s.at).count(); }, "when it was planned",
              "s")
          .add("step", &S::step, "step of the group")
          .add("layers", &S::layers, "layers whose placement changes")
          .add(
              "bytes", [](const S& s) { return s.bytes.value(); }, "over links", "B", less)
          .add("imbalance_before", &S::imbalance_before, "as planned", "max/mean", less)
          .add("imbalance_after", &S::imbalance_after, "as planned", "max/mean", less);
  return rows;
}

namespace {

struct MovedBytes {
  double nvlink, network, within_gpus;
};

const std::vector<Field<MovedBytes>>& fields_of(const MovedBytes*) {
  using S = MovedBytes;
  static const std::vector<Field<S>> rows =
      FieldTable<S>()
          .add("nvlink", &S::nvlink, "weights moved over NVLink", "B", less)
          .add("network", &S::network, "weights moved over the network", "B", less)
          .add("within_gpus", &S::within_gpus, "weights copied within a GPU", "B", less);
  return rows;
}

}  // namespace

const std::vector<Field<RebalancingLog>>& fields_of(const RebalancingLog*) {
  using S = RebalancingLog;
  static const std::vector<Field<S>> rows =
      FieldTable<S>()
          .add("count", &S::plans, "plans that moved something")
          .add("declined", &S::declined, "plans that found nothing worth moving")
          .add("layers_switched", &S::layers_switched, "layers whose new weights arrived")
          .add(
              "bytes",
              [](const S& s) {
                return MovedBytes{s.nvlink.value(), s.network.value(), s.copied.value()};
              },
              "")
          .add(
              "planning_seconds", [](const S& s) { return s.planning.count(); }, "to plan", "s",
              less)
          .add(
              "stall_seconds", [](const S& s) { return s.stalled.count(); },
              "the engine stood still, planning included", "s", less)
          .add(
              "transfer_seconds", [](const S& s) { return s.moving.count(); },
              "weights were under way, by their time on free links", "s", less)
          .add(
              "slowdown_seconds", [](const S& s) { return s.slowdown.count(); },
              "extra time of steps while weights travelled", "s", less)
          .add("events", &S::events, "")
          .add(
              "events_left_out", [](const S& s) { return s.plans - std::ssize(s.events); },
              "plans that are not listed");
  return rows;
}

const std::vector<Field<OutageRecord>>& fields_of(const OutageRecord*) {
  using S = OutageRecord;
  static const std::vector<Field<S>> rows =
      FieldTable<S>()
          .add("what", &S::what, "what stopped")
          .add("gpus", &S::gpus, "its GPUs")
          .add(
              "at_s", [](const S& s) { return to_seconds(s.at).count(); }, "when it stopped", "s")
          .add(
              "step_lost_seconds", [](const S& s) { return s.step_lost.count(); },
              "time lost with the aborted step", "s", less)
          .add("requests_moved", &S::requests, "to other ranks", "", less)
          .add("kv_tokens_lost", &S::tokens_lost, "KV cache tokens that are computed again",
               "tokens", less)
          .add("experts_lost", &S::experts_lost, "(layer, expert) pairs of which no copy was left",
               "", less)
          .add(
              "bytes_moved", [](const S& s) { return s.moved.value(); }, "weights over links", "B",
              less)
          .add(
              "bytes_reloaded", [](const S& s) { return s.reloaded.value(); },
              "weights from outside", "B", less)
          .add(
              "stopped_seconds", [](const S& s) { return s.stopped.count(); },
              "no GPU computed: detection, movement, reloading", "s", less)
          .add(
              "recovered_at_s",
              [](const S& s) {
                return s.recovered ? std::optional(to_seconds(*s.recovered).count()) : std::nullopt;
              },
              "when it came back; null if it did not", "s")
          .add(
              "bytes_moved_back", [](const S& s) { return s.moved_back.value(); },
              "weights over links after that", "B", less)
          .add(
              "stopped_again_seconds", [](const S& s) { return s.stopped_again.count(); },
              "no GPU computed while experts moved back", "s", less);
  return rows;
}

const std::vector<Field<OutageStats>>& fields_of(const OutageStats*) {
  using S = OutageStats;
  static const std::vector<Field<S>> rows =
      FieldTable<S>()
          .merge(&S::outage)
          .add("gpu_seconds_down", &S::gpu_seconds_down, "its GPUs times the time away", "s", less)
          .add_if_any("kv_blocks_given_up", &S::kv_blocks,
                      "KV blocks that all ranks which are up gave up for experts", "", less)
          .add_if_any("kv_given_up_seconds", &S::kv_seconds, "until the blocks held KV again", "s",
                      less)
          .add_if_any("requests_preempted", &S::preempted, "that held these blocks", "", less)
          .add_if_any("instance", &S::instance, "the EP group, where there are several");
  return rows;
}

const std::vector<Field<TimeBucket>>& fields_of(const TimeBucket*) {
  using S = TimeBucket;
  static const std::vector<Field<S>> rows =
      FieldTable<S>()
          .add("begin_s", &S::begin_s, "when its first step began", "s")
          .add("end_s", &S::end_s, "when its last step ended", "s")
          .add("steps", &S::steps, "steps of the bucket")
          .add("mean_step_ms", &S::mean_step_ms, "a step", "ms", less)
          .add("mean_itl_ms", &S::mean_itl_ms,
               "time between two tokens of a request; null where no second token fell", "ms", less)
          .add("output_tokens", &S::output_tokens, "tokens emitted", "tokens", more)
          .add("imbalance", &S::imbalance, "tokens of the busiest EP rank over the mean",
               "max/mean", less)
          .add("balancedness", &S::balancedness, "the inverse", "mean/max", more)
          .add("rebalancing_seconds", &S::rebalancing_seconds,
               "time that rebalancing took from steps", "s", less)
          .add("concurrency", &S::concurrency, "requests in a step, weighted with its time")
          .add("kv_utilization", &S::kv_utilization, "blocks held, over steps' time", "share");
  return rows;
}

const std::vector<Field<PoolStats>>& fields_of(const PoolStats*) {
  using S = PoolStats;
  static const std::vector<Field<S>> rows =
      FieldTable<S>()
          .add("steps", &S::steps, "the steps of all EP groups, by what they held")
          .add("experts", &S::experts, "what the MoE layers did")
          .add("expert_memory", &S::expert_memory, "where experts were found")
          .add("expert_buffers", &S::expert_buffers, "room for tokens on their way to experts")
          .add_if_any("prefill_alignment", &S::prefill_alignment,
                      "prompts that ranks held back to prefill together")
          .add("communication", &S::communication, "what went over links")
          .add("breakdown", &S::breakdown, "where the time of steps goes")
          .add_if_any("afd", &S::afd, "attention and experts on GPUs of their own")
          .add("charges", &S::charges, "what is charged besides kernels and links")
          .add("memory", &S::memory, "HBM of a GPU")
          .add("kv", &S::kv, "the KV cache")
          .add_if_any("tiers", &S::tiers, "memories below HBM that keep its blocks, whole run")
          .each("TIER")
          .add_if_any("speculative", &S::speculative, "speculative decoding, where there is any")
          .add_if_any("request_router", &S::request_router,
                      "the request router's own time, where \"charges\" has one")
          .add_if_any("sampled", &S::sampled,
                      "how far samples are off, where steps are drawn from them")
          .add("routing_coverage", &S::routing_coverage, "which rows of the trace the tokens took")
          .each("PHASE")
          .add("rebalancing", &S::rebalancing, "moves of experts while serving")
          .add("failures", &S::failures, "an outage of GPUs")
          .add("over_time", &S::over_time,
               "the whole run in up to 100 buckets of equally many steps");
  return rows;
}

const std::vector<Field<InstanceStats>>& fields_of(const InstanceStats*) {
  using S = InstanceStats;
  static const std::vector<Field<S>> rows =
      FieldTable<S>()
          .add("instance", &S::instance, "number of the EP group")
          .add("steps", &S::steps, "its steps")
          .add("mean_step_ms", &S::mean_step_ms, "a step", "ms", less)
          .add("utilization", &S::utilization, "time that it computed", "share of time")
          .add("barrier_idle_share", &S::barrier_idle_share, "GPU time spent waiting at barriers",
               "share of time", less)
          .add("output_tokens", &S::output_tokens, "tokens emitted", "tokens", more)
          .add("prefill_tokens", &S::prefill_tokens, "prompt tokens computed", "tokens")
          .add("decode_tokens", &S::decode_tokens, "decode tokens computed", "tokens")
          .add("kv_mean_utilization", &S::kv_mean_utilization, "blocks held, over steps' time",
               "share")
          .add("kv_peak_utilization", &S::kv_peak_utilization, "most blocks held at a time",
               "share", less)
          .add("prefix_hit_rate", &S::prefix_hit_rate, "prompt tokens that were cached",
               "share of tokens", more)
          .add("preemptions", &S::preemptions, "requests that lost their blocks to others", "",
               less);
  return rows;
}

const std::vector<Field<PoolGroups>>& fields_of(const PoolGroups*) {
  using S = PoolGroups;
  static const std::vector<Field<S>> rows =
      FieldTable<S>()
          .add("gpus", &S::gpus, "GPUs of the pool")
          .add("instances", &S::instances, "an EP group of the pool");
  return rows;
}

const std::vector<Field<PrefillPoolStats>>& fields_of(const PrefillPoolStats*) {
  using S = PrefillPoolStats;
  static const std::vector<Field<S>> rows = FieldTable<S>().merge(&S::groups).merge(&S::pool);
  return rows;
}

const std::vector<Field<KvTransferStats>>& fields_of(const KvTransferStats*) {
  using S = KvTransferStats;
  static const std::vector<Field<S>> rows =
      FieldTable<S>()
          .add("level", &S::level, "nvlink or network")
          .add("transfers", &S::transfers, "KV caches sent")
          .add("bytes", &S::bytes, "their sum", "B")
          .add("mean_ms", &S::mean_ms, "mean time of a KV cache on its link", "ms", less)
          .add("mean_wait_ms", &S::mean_wait_ms, "mean wait for a busy link", "ms", less)
          .add("mean_exposed_ms", &S::mean_exposed_ms,
               "from the first token to the KV cache's arrival, waiting included", "ms", less);
  return rows;
}

const std::vector<Field<RoleChangeStats>>& fields_of(const RoleChangeStats*) {
  using S = RoleChangeStats;
  static const std::vector<Field<S>> rows =
      FieldTable<S>()
          .add("instance", &S::instance, "number of the EP group, the same in both pools")
          .add("to", &S::to, "the pool that got the group")
          .add("at_s", &S::at_s, "when the group took no more requests", "s")
          .add_if_any("drain_s", &S::drain_s, "until its requests had finished", "s", less)
          .add_if_any("switch_s", &S::switch_s, "from then until it took requests", "s", less);
  return rows;
}

const std::vector<Field<PoolRolesStats>>& fields_of(const PoolRolesStats*) {
  using S = PoolRolesStats;
  static const std::vector<Field<S>> rows =
      FieldTable<S>()
          .add("changes", &S::changes, "groups that were asked to change pools")
          .add_if_any("mean_drain_s", &S::mean_drain_s, "mean drain, of groups that drained", "s",
                      less)
          .add_if_any("mean_switch_s", &S::mean_switch_s, "mean switch, of groups that changed",
                      "s", less)
          .add("mean_prefill_groups", &S::mean_prefill_groups,
               "groups that took requests to prefill, over the run's time")
          .add("mean_decode_groups", &S::mean_decode_groups, "the same to decode")
          .add("away_share", &S::away_share, "group time in neither pool: draining, or switching",
               "share of time", less)
          .add("events", &S::events, "each change, in order of time");
  return rows;
}

const std::vector<Field<PoolsStats>>& fields_of(const PoolsStats*) {
  using S = PoolsStats;
  static const std::vector<Field<S>> rows =
      FieldTable<S>()
          .add("prefill", &S::prefill, "the prefill pool, with the sections above")
          .add("decode", &S::decode, "the decode pool; its sections are above")
          .add("kv_transfer", &S::kv_transfer, "KV caches from the one to the other")
          .add_if_any("roles", &S::roles, "groups that move between the pools, where some may");
  return rows;
}

const std::vector<Field<Report>>& fields_of(const Report*) {
  using S = Report;
  static const std::vector<Field<S>> rows =
      FieldTable<S>()
          .add("context", &S::context, "what was run")
          .add_if_any("anchored", &S::anchored, "corrections by measured runs, where there are any")
          .add("metrics", &S::metrics,
               "throughput and latency over all GPUs, as `vllm bench serve` names them")
          .add_if_any("classes", &S::classes, "requests by class, where they have classes")
          .each("CLASS")
          .add_if_any("energy", &S::energy, "of all GPUs, where their power is known")
          .add("measurement", &S::measurement, "measured part of the run")
          .add_if_any("sessions", &S::sessions, "sessions, where requests are turns of them")
          .add_if_any("turns", &S::turns, "turns of sessions, where there are any")
          .merge(&S::pool)
          .add_if_any("pools", &S::pools, "prefill and decode apart, where they are")
          .add_if_any("instances", &S::instances, "an EP group, where one pool has several");
  return rows;
}

// ---- what the tables are for

namespace {

bool is_share(std::string_view unit) {
  return unit == "share" || unit.starts_with("share of ") || unit == "mean/max";
}

bool stands_for_several(std::string_view name) {
  return !name.empty() && std::ranges::all_of(name, [](char c) { return c >= 'A' && c <= 'Z'; });
}

// Whether a pointer is one that a documented pointer stands for.
bool is_one_of(std::string_view pointer, std::string_view documented) {
  const auto cut = [](std::string_view& rest) {
    const std::size_t end = std::min(rest.find('/', 1), rest.size());
    const std::string_view first = rest.substr(0, end);
    rest.remove_prefix(end);
    return first;
  };
  while (!pointer.empty() && !documented.empty()) {
    const std::string_view key = cut(pointer), name = cut(documented);
    if (key != name && !stands_for_several(name.substr(1))) return false;
  }
  return pointer.empty() && documented.empty();
}

}  // namespace

void put(OrderedJson& object, const std::string& key, OrderedJson value) {
  object[key] = std::move(value);
}

void check_share(std::string_view key, std::string_view unit, double value) {
  constexpr double rounding = 1e-9;
  if (is_share(unit) && value > 1 + rounding) {
    throw std::logic_error(fmt::format("a share of a report, {}, is {}", key, value));
  }
}

const std::vector<ReportKey>& report_keys() {
  static const std::vector<ReportKey> keys = [] {
    std::vector<ReportKey> all;
    fields::document<Report>(all, {}, "");
    return all;
  }();
  return keys;
}

const ReportKey* find_report_key(std::string_view pointer) {
  const std::vector<ReportKey>& keys = report_keys();
  const auto found = std::ranges::find_if(
      keys, [&](const ReportKey& key) { return is_one_of(pointer, key.pointer); });
  return found == keys.end() ? nullptr : &*found;
}

OrderedJson Report::document() const {
  OrderedJson json = fields::written(*this);
  check(all_numbers_finite(json), "a report holds a number that is not finite");
  return json;
}

bool all_numbers_finite(const OrderedJson& document) {
  if (document.is_number_float()) return std::isfinite(document.get<double>());
  return std::all_of(document.begin(), document.end(), [](const OrderedJson& value) {
    return (!value.is_structured() && !value.is_number_float()) || all_numbers_finite(value);
  });
}

}  // namespace moesim
