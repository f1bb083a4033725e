// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <optional>
#include <stdexcept>
#include <string_view>

#include "sim/report/report.hpp"

namespace moesim {

/// A number of a report that tools show, compare and search by. Its unit, meaning and which way is
/// better are those of its key.
struct Metric {
  std::string_view name;     ///< a column of a store's view `metrics`
  std::string_view heading;  ///< of a column in a terminal
  std::string_view label;    ///< in words, on a page
  std::string_view pointer;  ///< into the report file
  std::optional<double> (*value)(const Report&);

  const ReportKey& key() const;
};

namespace metric_values {

template <auto member>
std::optional<double> overall(const Report& report) {
  const auto value = report.metrics.*member;
  if constexpr (std::is_arithmetic_v<decltype(value)>) {
    return static_cast<double>(value);
  } else {
    return value;
  }
}
template <auto latency, auto statistic>
std::optional<double> of_requests(const Report& report) {
  const Summary& summary = report.metrics.*latency;
  return summary.count == 0 ? std::nullopt : std::optional(summary.*statistic);
}
/// The value that stands under a name; null if there is none.
template <class T>
const T* find(const Named<T>& values, std::string_view name) {
  for (const auto& [key, value] : values) {
    if (key == name) return &value;
  }
  return nullptr;
}
template <auto member>
std::optional<double> of_steps(const Report& report, std::string_view kind) {
  const StepKindStats* steps = find(report.pool.steps.by_kind, kind);
  return steps == nullptr ? std::nullopt : std::optional(steps->*member);
}
template <auto member>
std::optional<double> of_decode_steps(const Report& report) {
  return of_steps<member>(report, "decode");
}
template <auto member>
std::optional<double> of_prefill_steps(const Report& report) {
  return of_steps<member>(report, "prefill");
}
template <auto member>
std::optional<double> of_decode_experts(const Report& report) {
  const ExpertKindStats* experts = find(report.pool.experts.by_step_kind, "decode");
  return experts == nullptr ? std::nullopt : std::optional(experts->summary.*member);
}
template <auto statistic>
std::optional<double> of_sessions(const Report& report) {
  const bool none = !report.sessions || report.sessions->completion.count == 0;
  return none ? std::nullopt : std::optional(report.sessions->completion.*statistic);
}
template <auto member>
std::optional<double> of_energy(const Report& report) {
  return report.energy ? std::optional<double>((*report.energy).*member) : std::nullopt;
}
inline std::optional<double> sampled_step_error(const Report& report) {
  const std::optional<SampledStats>& sampled = report.pool.sampled;
  return sampled && sampled->spot_checks > 0 ? std::optional(sampled->step_time_error)
                                             : std::nullopt;
}
inline std::optional<double> prefix_loaded_rate(const Report& report) {
  return report.pool.kv.prefix_loaded_rate;
}
/// A member of one section of the pool's report.
template <auto section, auto member>
std::optional<double> of_pool(const Report& report) {
  return static_cast<double>(report.pool.*section.*member);
}

}  // namespace metric_values

/// TTFT, TPOT and E2EL without another word are medians.
inline constexpr auto metric_catalogue = [] {
  using namespace metric_values;
  using M = Metrics;
  using S = Summary;
  return std::to_array<Metric>({
      {"completed", "finished", "Requests finished, in number", "/metrics/completed",
       overall<&M::completed>},
      {"rejected", "rejected", "Rejected", "/metrics/rejected", overall<&M::rejected>},
      {"timeout_share", "timed out", "Timed out", "/metrics/timeout_share",
       overall<&M::timeout_share>},
      {"cancelled_share", "cancelled", "Cancelled", "/metrics/cancelled_share",
       overall<&M::cancelled_share>},
      {"slo_attainment", "SLO met", "SLO met", "/metrics/slo_attainment",
       overall<&M::slo_attainment>},
      {"duration_s", "measured s", "Time measured", "/metrics/duration_s", overall<&M::duration_s>},
      {"request_throughput", "requests/s", "Requests finished", "/metrics/request_throughput",
       overall<&M::request_throughput>},
      {"request_goodput", "goodput", "Requests within their SLO", "/metrics/request_goodput",
       overall<&M::request_goodput>},
      {"output_throughput", "output/s", "Output throughput", "/metrics/output_throughput",
       overall<&M::output_throughput>},
      {"total_token_throughput", "tokens/s", "Throughput, prompts too",
       "/metrics/total_token_throughput", overall<&M::total_token_throughput>},
      {"mean_ttft_ms", "mean TTFT", "Mean TTFT", "/metrics/mean_ttft_ms",
       of_requests<&M::ttft, &S::mean>},
      {"median_ttft_ms", "TTFT", "Median TTFT", "/metrics/median_ttft_ms",
       of_requests<&M::ttft, &S::p50>},
      {"p90_ttft_ms", "p90 TTFT", "p90 TTFT", "/metrics/p90_ttft_ms",
       of_requests<&M::ttft, &S::p90>},
      {"p95_ttft_ms", "p95 TTFT", "p95 TTFT", "/metrics/p95_ttft_ms",
       of_requests<&M::ttft, &S::p95>},
      {"p99_ttft_ms", "p99 TTFT", "p99 TTFT", "/metrics/p99_ttft_ms",
       of_requests<&M::ttft, &S::p99>},
      {"mean_tpot_ms", "mean TPOT", "Mean TPOT", "/metrics/mean_tpot_ms",
       of_requests<&M::tpot, &S::mean>},
      {"median_tpot_ms", "TPOT", "Median TPOT", "/metrics/median_tpot_ms",
       of_requests<&M::tpot, &S::p50>},
      {"p90_tpot_ms", "p90 TPOT", "p90 TPOT", "/metrics/p90_tpot_ms",
       of_requests<&M::tpot, &S::p90>},
      {"p95_tpot_ms", "p95 TPOT", "p95 TPOT", "/metrics/p95_tpot_ms",
       of_requests<&M::tpot, &S::p95>},
      {"p99_tpot_ms", "p99 TPOT", "p99 TPOT", "/metrics/p99_tpot_ms",
       of_requests<&M::tpot, &S::p99>},
      {"mean_itl_ms", "mean ITL", "Mean inter-token latency", "/metrics/mean_itl_ms",
       of_requests<&M::itl, &S::mean>},
      {"median_itl_ms", "ITL", "Median inter-token latency", "/metrics/median_itl_ms",
       of_requests<&M::itl, &S::p50>},
      {"p90_itl_ms", "p90 ITL", "p90 inter-token latency", "/metrics/p90_itl_ms",
       of_requests<&M::itl, &S::p90>},
      {"p95_itl_ms", "p95 ITL", "p95 inter-token latency", "/metrics/p95_itl_ms",
       of_requests<&M::itl, &S::p95>},
      {"p99_itl_ms", "p99 ITL", "p99 inter-token latency", "/metrics/p99_itl_ms",
       of_requests<&M::itl, &S::p99>},
      {"mean_e2el_ms", "mean E2EL", "Mean request latency", "/metrics/mean_e2el_ms",
       of_requests<&M::e2el, &S::mean>},
      {"median_e2el_ms", "E2EL", "Median request latency", "/metrics/median_e2el_ms",
       of_requests<&M::e2el, &S::p50>},
      {"p90_e2el_ms", "p90 E2EL", "p90 request latency", "/metrics/p90_e2el_ms",
       of_requests<&M::e2el, &S::p90>},
      {"p95_e2el_ms", "p95 E2EL", "p95 request latency", "/metrics/p95_e2el_ms",
       of_requests<&M::e2el, &S::p95>},
      {"p99_e2el_ms", "p99 E2EL", "p99 request latency", "/metrics/p99_e2el_ms",
       of_requests<&M::e2el, &S::p99>},
      {"mean_session_s", "mean session", "Mean time of a session", "/sessions/mean_completion_s",
       of_sessions<&S::mean>},
      {"p90_session_s", "p90 session", "p90 time of a session", "/sessions/p90_completion_s",
       of_sessions<&S::p90>},
      {"tokens_per_s_per_gpu", "out/s/GPU", "Output throughput per GPU",
       "/metrics/tokens_per_s_per_gpu", overall<&M::tokens_per_s_per_gpu>},
      {"total_tokens_per_s_per_gpu", "tokens/s/GPU", "Throughput per GPU, prompts too",
       "/metrics/total_tokens_per_s_per_gpu", overall<&M::total_tokens_per_s_per_gpu>},
      {"tokens_per_s_per_user", "out/s/user", "Speed for one user",
       "/metrics/tokens_per_s_per_user", overall<&M::tokens_per_s_per_user>},
      {"mfu", "MFU", "Model flops utilisation", "/metrics/mfu", overall<&M::mfu>},
      {"mbu", "MBU", "Memory bandwidth utilisation", "/metrics/mbu", overall<&M::mbu>},
      {"joules_per_output_token", "J/token", "Joules of an output token",
       "/energy/joules_per_output_token", of_energy<&EnergyStats::joules_per_output_token>},
      {"joules_per_token", "J/token, all", "Joules of a token, prompts too",
       "/energy/joules_per_token", of_energy<&EnergyStats::joules_per_token>},
      {"watts_per_gpu", "W/GPU", "Power of a GPU", "/energy/watts_per_gpu",
       of_energy<&EnergyStats::watts_per_gpu>},
      {"output_tokens_per_s_per_mw", "out/s/MW", "Output throughput per megawatt",
       "/energy/output_tokens_per_s_per_mw", of_energy<&EnergyStats::output_tokens_per_s_per_mw>},
      {"decode_step_ms", "step", "Decode step", "/steps/decode/mean_ms",
       of_decode_steps<&StepKindStats::mean_ms>},
      {"prefill_step_ms", "prefill", "Prefill step", "/steps/prefill/mean_ms",
       of_prefill_steps<&StepKindStats::mean_ms>},
      {"decode_sequences", "sequences", "Sequences in a decode step",
       "/steps/decode/mean_decode_tokens", of_decode_steps<&StepKindStats::mean_decode_tokens>},
      {"decode_tokens_per_s_per_gpu", "decode/s/GPU", "Output per GPU in decode steps",
       "/steps/decode/decode_tokens_per_s_per_gpu",
       of_decode_steps<&StepKindStats::decode_tokens_per_s_per_gpu>},
      {"decode_max_activated_mean", "activated", "Activated experts, busiest GPU, decode",
       "/experts/by_step_kind/decode/max_activated_mean",
       of_decode_experts<&ExpertSummary::max_activated_mean>},
      {"decode_max_tokens_mean", "max tok.", "Expert tokens, busiest GPU, decode",
       "/experts/by_step_kind/decode/max_tokens_mean",
       of_decode_experts<&ExpertSummary::max_tokens_mean>},
      {"decode_balancedness", "balance", "Balance of expert tokens, decode",
       "/experts/by_step_kind/decode/balancedness",
       of_decode_experts<&ExpertSummary::balancedness>},
      {"replication_effective", "replication", "Replication", "/experts/replication_effective",
       of_pool<&PoolStats::experts, &ExpertStats::replication_effective>},
      {"exposed_communication_share", "exposed", "Exposed communication",
       "/breakdown/exposed_communication_share",
       of_pool<&PoolStats::breakdown, &BreakdownStats::exposed_communication_share>},
      {"barrier_idle_share", "idle", "Waiting at barriers", "/breakdown/barrier_idle_share",
       of_pool<&PoolStats::breakdown, &BreakdownStats::barrier_idle_share>},
      {"kv_peak_utilization", "KV peak", "KV cache, peak", "/kv/peak_utilization",
       of_pool<&PoolStats::kv, &KvStats::peak_utilization>},
      {"preemptions", "preempted", "Preemptions", "/kv/preemptions",
       of_pool<&PoolStats::kv, &KvStats::preemptions>},
      {"prefix_loaded_rate", "loaded", "Prompt tokens loaded from tiers", "/kv/prefix_loaded_rate",
       prefix_loaded_rate},
      {"sampled_step_error", "sampling", "Step time by samples against exact",
       "/sampled/step_time_error", sampled_step_error},
      {"kv_bytes", "KV cache", "Room for the KV cache", "/memory/kv_bytes",
       [](const Report& report) { return std::optional(report.pool.memory.kv.value()); }},
  });
}();

/// A row of the catalogue; a name that is none of it does not compile.
consteval const Metric& metric(std::string_view name) {
  for (const Metric& row : metric_catalogue) {
    if (row.name == name) return row;
  }
  throw std::logic_error("no metric of this name");
}

}  // namespace moesim
