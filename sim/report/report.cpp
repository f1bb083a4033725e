// SPDX-License-Identifier: Apache-2.0
#include "sim/report/report.hpp"

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include <fmt/format.h>

namespace moesim {

using enum Better;

Fields<ReportContext> rows_of(const ReportContext*) {
  using S = ReportContext;
  return {{"moesim", &S::moesim, "version of the simulator"},
          {"seed", &S::seed, "seed of every random stream"},
          {"config", &S::config, "the experiment with every key, defaults included: runs again"}};
}

Fields<AnchorStats> rows_of(const AnchorStats*) {
  using S = AnchorStats;
  return {{"deployment", &S::deployment, "deployment whose measured runs correct this run"},
          {"runs", &S::runs, "measured runs of the fit"},
          {"leave_one_out_error", &S::leave_one_out_error,
           "median |predicted / measured - 1| of runs left out of the fit"},
          {"tpot_factor", &S::tpot_factor, "on step times"},
          {"ttft_factor", &S::ttft_factor, "on times to first tokens"}};
}

Fields<PoolStats> rows_of(const PoolStats*) {
  using S = PoolStats;
  return {
      {"steps", &S::steps, "the steps of all EP groups, by what they held"},
      {"experts", &S::experts, "what the MoE layers did"},
      {"expert_memory", &S::expert_memory, "where experts were found"},
      {"expert_buffers", &S::expert_buffers, "room for tokens on their way to experts"},
      {if_any, "prefill_alignment", &S::prefill_alignment,
       "prompts that ranks held back to prefill together"},
      {"communication", &S::communication, "what went over links"},
      {"breakdown", &S::breakdown, "where the time of steps goes"},
      {if_any, "afd", &S::afd, "attention and experts on GPUs of their own"},
      {"charges", &S::charges, "what is charged besides kernels and links"},
      {"memory", &S::memory, "HBM of a GPU"},
      {"kv", &S::kv, "the KV cache"},
      {if_any, "tiers/TIER", &S::tiers, "memories below HBM that keep its blocks, whole run"},
      {if_any, "speculative", &S::speculative, "speculative decoding, where there is any"},
      {if_any, "request_router", &S::request_router,
       "the request router's own time, where \"charges\" has one"},
      {if_any, "sampled", &S::sampled, "how far samples are off, where steps are drawn from them"},
      {"routing_coverage/PHASE", &S::routing_coverage, "which rows of the trace the tokens took"},
      {"rebalancing", &S::rebalancing, "moves of experts while serving"},
      {"failures", &S::failures, "an outage of GPUs"},
      {"over_time", &S::over_time, "the whole run in up to 100 buckets of equally many steps"}};
}

Fields<PrefillPoolStats> rows_of(const PrefillPoolStats*) {
  using S = PrefillPoolStats;
  return {{merged, &S::groups}, {merged, &S::pool}};
}

Fields<PoolsStats> rows_of(const PoolsStats*) {
  using S = PoolsStats;
  return {{"prefill", &S::prefill, "the prefill pool, with the sections above"},
          {"decode", &S::decode, "the decode pool; its sections are above"},
          {"kv_transfer", &S::kv_transfer, "KV caches from the one to the other"},
          {if_any, "roles", &S::roles, "groups that move between the pools, where some may"}};
}

Fields<Report> rows_of(const Report*) {
  using S = Report;
  return {{"context", &S::context, "what was run"},
          {if_any, "anchored", &S::anchored, "corrections by measured runs, where there are any"},
          {"metrics", &S::metrics,
           "throughput and latency over all GPUs, as `vllm bench serve` names them"},
          {if_any, "classes/CLASS", &S::classes, "requests by class, where they have classes"},
          {if_any, "energy", &S::energy, "of all GPUs, where their power is known"},
          {"measurement", &S::measurement, "measured part of the run"},
          {if_any, "sessions", &S::sessions, "sessions, where requests are turns of them"},
          {if_any, "turns", &S::turns, "turns of sessions, where there are any"},
          {merged, &S::pool},
          {if_any, "pools", &S::pools, "prefill and decode apart, where they are"},
          {if_any, "instances", &S::instances, "an EP group, where one pool has several"}};
}

namespace {

bool is_share(std::string_view unit) {
  return unit == "share" || unit.starts_with("share of ") || unit == "mean/max";
}

bool stands_for_several(std::string_view name) {
  return !name.empty() && std::ranges::all_of(name, [](char c) { return c >= 'A' && c <= 'Z'; });
}

// True if a documented pointer means this pointer.
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
