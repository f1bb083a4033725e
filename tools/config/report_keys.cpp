// SPDX-License-Identifier: Apache-2.0
#include "tools/config/report_keys.hpp"

#include <span>
#include <string_view>

#include <fmt/format.h>

#include "tools/cli/output.hpp"

namespace moesim {

namespace {

struct ReportKey {
  std::string_view pointer;  // * is any key or place of a list, ** any number of them
  std::string_view unit;     // "share" is of 1
  std::string_view meaning;
};

// Every number and text of a report, in its order.
std::span<const ReportKey> report_keys() {
  static constexpr ReportKey keys[] = {
      {"/context/moesim", "", "version of the program"},
      {"/context/seed", "", "of everything random"},
      {"/context/config/**", "", "the experiment, defaults and presets filled in"},
      {"/anchored/**", "", "corrections by measured runs of the deployment (\"anchor\")"},
      {"/metrics/completed", "requests", "measured ones that were served"},
      {"/metrics/rejected", "requests", "that no rank could ever hold"},
      {"/metrics/timed_out", "requests", "that were too late for their clients"},
      {"/metrics/cancelled", "requests", "whose clients just left"},
      {"/metrics/timeout_share", "share", "of the measured requests"},
      {"/metrics/cancelled_share", "share", "of the measured requests"},
      {"/metrics/measured_requests", "requests", "that arrived while it was measured"},
      {"/metrics/completed_while_measured", "requests", "what rates are counted from"},
      {"/metrics/duration_s", "s", "that was measured"},
      {"/metrics/request_throughput", "1/s", "requests served"},
      {"/metrics/request_goodput", "1/s", "requests served that meet \"slo\""},
      {"/metrics/slo_attainment", "share", "of the measured requests that meet \"slo\""},
      {"/metrics/attainment/*", "share", "of the measured requests that meet one objective of it"},
      {"/metrics/output_throughput", "tokens/s", "generated"},
      {"/metrics/total_token_throughput", "tokens/s", "generated, and prompts"},
      {"/metrics/*_ttft_ms", "ms", "from arrival to the first token"},
      {"/metrics/*_tpot_ms", "ms", "(last - first token) / (output tokens - 1) of a request"},
      {"/metrics/*_itl_ms", "ms", "between two tokens of a request"},
      {"/metrics/*_e2el_ms", "ms", "from arrival to the last token"},
      {"/metrics/tokens_per_s_per_gpu", "tokens/s", "output_throughput over all GPUs"},
      {"/metrics/tokens_per_s_per_user", "tokens/s", "1 / median TPOT"},
      {"/metrics/total_tokens_per_s_per_gpu", "tokens/s", "the same with prompts"},
      {"/metrics/mfu", "share", "of the GPUs' dense peak that the model's arithmetic used"},
      {"/metrics/mbu", "share", "of HBM bandwidth that was used"},
      {"/metrics/cost_per_million_output_tokens", "$", "where the GPU file has a price"},
      {"/measurement/window", "", "steady, after_warm_up or whole: what was measured"},
      {"/measurement/state", "", "stable, unsteady, overloaded or too_short"},
      {"/measurement/begin_s", "s", "of the window, on the simulated clock"},
      {"/measurement/end_s", "s", "of the window"},
      {"/measurement/offered_request_rate", "1/s", "null of a closed loop"},
      {"/measurement/served_request_rate", "1/s", "leaving while it was measured"},
      {"/steps/*/steps", "steps", "of that kind (prefill, decode, mixed)"},
      {"/steps/*/seconds", "s", "they took"},
      {"/steps/*/share_of_time", "share", "of all steps' time"},
      {"/steps/*/mean_ms", "ms", "of a step"},
      {"/steps/*/mean_prefill_tokens", "tokens", "of the group in a step"},
      {"/steps/*/mean_decode_tokens", "tokens", "of the group in a step"},
      {"/steps/*/mean_decode_tokens_per_rank", "tokens", "of an attention rank"},
      {"/steps/*/mean_dummy_ranks", "ranks", "without work that ran along in a step"},
      {"/steps/*/decode_tokens_per_s_per_gpu", "tokens/s", "of these steps alone"},
      {"/steps/*/parts_mean_ms/*", "ms", "of a step by part, on the slowest rank"},
      {"/steps/by_rule/*/share_of_steps", "share", "of steps under that phase's policies"},
      {"/steps/by_rule/*/share_of_time", "share", "of their time"},
      {"/experts/**/max_activated_mean", "experts", "on the GPU with most, mean of layers, steps"},
      {"/experts/**/activated_mean", "experts", "on the mean GPU"},
      {"/experts/**/active_experts_mean", "experts", "logical, over all GPUs"},
      {"/experts/**/max_tokens_mean", "tokens", "on the GPU with most"},
      {"/experts/**/tokens_mean", "tokens", "on the mean GPU"},
      {"/experts/**/balancedness", "share", "mean over most tokens of a GPU"},
      {"/experts/**/imbalance", "", "most over mean tokens of a GPU"},
      {"/experts/**/cv", "", "standard deviation over mean of the GPUs' tokens"},
      {"/experts/**/gemm_occupancy", "share", "of the rows of expert GEMMs that are tokens"},
      {"/experts/**/hot_rank_events/layer_steps", "", "(layer, step) above hot_rank_threshold"},
      {"/experts/**/hot_rank_events/worst", "", "most over mean tokens of the worst of them"},
      {"/experts/by_step_kind/*/layers/*/layer", "", "of the model, counted from 0"},
      {"/experts/by_step_kind/*/layers/*/rank_activated/**", "experts",
       "of an EP rank in a step; total_by_rank: each rank's sum"},
      {"/experts/by_step_kind/*/layers/*/rank_tokens/**", "tokens", "likewise"},
      {"/experts/by_step_kind/*/layers/*/expert_tokens/**", "tokens", "of an expert in a step"},
      {"/experts/replicas", "slots", "of a layer beyond one per expert"},
      {"/experts/replication_effective", "", "slots over experts"},
      {"/experts/dropped", "share", "of selections that a capacity dropped"},
      {"/experts/rerouted", "share", "that went to another expert"},
      {"/experts/delayed", "share", "that waited for a later step"},
      {"/experts/hot_rank_threshold", "", "as the config has it"},
      {"/experts/hottest_ranks/*/*", "", "when, in which layer, on which EP rank, most over mean"},
      {"/experts/tokens_per_expert_by_workload/**", "tokens", "[layer][expert] of each workload"},
      {"/expert_memory/**", "", "experts below HBM: hits, misses, bytes, seconds waited"},
      {"/expert_buffers/tokens_per_rank", "tokens", "for which dispatch buffers have room"},
      {"/expert_buffers/steps_cut", "steps", "that were made smaller"},
      {"/expert_buffers/rank_steps_cut", "", "ranks of them whose share was"},
      {"/communication/layers_by_dispatch/*", "layers", "of all steps under that dispatch"},
      {"/communication/*/seconds", "s", "that links were busy"},
      {"/communication/*/hidden_seconds", "s", "of them, beside computation"},
      {"/communication/*/share_of_busy_time", "share", "of the steps' time"},
      {"/communication/*/nvlink_bytes", "bytes", "over all GPUs"},
      {"/communication/*/network_bytes", "bytes", "over all GPUs"},
      {"/communication/*/mean_us_per_layer", "us", "of an exchange"},
      {"/communication/*/p99_us_per_layer", "us", "of an exchange"},
      {"/breakdown/busy_seconds", "s", "of all steps"},
      {"/breakdown/parts/*/seconds", "s", "on the critical path"},
      {"/breakdown/parts/*/share", "share", "of busy_seconds"},
      {"/breakdown/parts/*/bound_by/*", "s", "by the resource that bound it"},
      {"/breakdown/bound_by/*", "s", "the same over all parts"},
      {"/breakdown/*_share", "share",
       "of the time: by what its prediction rests on; idle at barriers; exposed communication"},
      {"/breakdown/barrier_idle_seconds_per_gpu/*", "s", "each GPU of a group waited"},
      {"/charges/source", "", "where policies' own times come from"},
      {"/charges/**", "us", "GPU time of a policy in a layer; host time of a step"},
      {"/memory/*_bytes", "bytes", "of a GPU: HBM, usable, and what it is spent on"},
      {"/kv/block_tokens", "tokens", "of a block"},
      {"/kv/blocks_per_rank", "blocks", ""},
      {"/kv/mean_utilization", "share", "of the blocks, over time"},
      {"/kv/peak_utilization", "share", "of the blocks"},
      {"/kv/preemptions", "", "sequences that gave their blocks up"},
      {"/kv/prefix_caching", "", "whether blocks are found again"},
      {"/kv/prefix_queried_tokens", "tokens", "of prompts that were looked up"},
      {"/kv/prefix_hit_tokens", "tokens", "that were found"},
      {"/kv/prefix_hit_rate", "share", ""},
      {"/kv/**", "", "blocks by kind of attention, where there are several"},
      {"/speculative/**", "", "drafts, as vLLM counts them"},
      {"/routing_coverage/*/tokens", "tokens", "of a phase"},
      {"/routing_coverage/*/*", "share",
       "of them: recorded rows, borrowed of another request, wrapped round, synthetic"},
      {"/rebalancing/**", "", "how often experts moved, bytes, and what it cost"},
      {"/failures/**", "", "GPUs that stopped: when, what was moved and lost"},
      {"/over_time/*/*", "", "up to 100 buckets of equally many steps, of the whole run"},
      {"/instances/*/*", "", "each EP group by itself, where there are several"},
      {"/pools/**", "", "the prefill pool's sections, groups of both, KV caches sent"},
      {"/intervals/**", "", "of run --intervals: how far metrics vary"}};
  return keys;
}

}  // namespace

std::string report_keys_text() {
  std::string text;
  for (const ReportKey& key : report_keys()) {
    const std::string unit = key.unit.empty() ? "" : fmt::format("{}: ", key.unit);
    text += wrapped(fmt::format("{:<52} {}{}", key.pointer, unit, key.meaning), 100, 53) + '\n';
  }
  return text;
}

}  // namespace moesim
