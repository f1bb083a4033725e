// SPDX-License-Identifier: Apache-2.0
#include "tools/config/key_rows.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "sim/experiment/experiment.hpp"

namespace moesim {

namespace {

constexpr std::string_view basic_pointers[] = {
    "/cluster", "/model",     "/engine",        "/parallel", "/workload",
    "/slo",     "/placement", "/token_routing", "/dispatch", "/scheduling"};

// Keys that most experiments of users and of this repository set, each between spaces. All others
// are expert keys.
constexpr std::string_view usual_pointers =
    " /instances /request_routing /max_model_len /seed /engine/name /engine/version "
    "/engine/recipe /parallel/dp /parallel/tp /parallel/ep /parallel/pp /parallel/dcp "
    "/parallel/ffn_gpus /parallel/micro_batches /pools /pools/prefill /pools/decode /kv_transfer "
    "/precision /precision/experts /precision/attention /precision/kv_cache "
    "/precision/activations /placement/replication /placement/load /placement/load/from "
    "/placement/load/disjoint /token_routing/prefill /token_routing/decode /token_routing/mixed "
    "/dispatch/prefill /dispatch/decode /rebalancing /charges /charges/token_routing /overlap "
    "/overlap/type /speculative /speculative/num_speculative_tokens /speculative/acceptance_rate "
    "/kv_cache /kv_cache/gpu_memory_utilization /kv_cache/prefix_caching /kv_cache/tiers "
    "/kv_cache/tiers/N/name /kv_cache/tiers/N/capacity /kv_cache/tiers/N/bandwidth "
    "/workload/arrivals /workload/lengths /workload/sessions /workload/requests /workload/gating "
    "/slo/ttft /slo/tpot /slo/e2el /expert_memory /expert_memory/slots_per_gpu "
    "/expert_memory/host /measurement /measurement/warmup /measurement/expert_counts ";

KeyLevel level_of(std::string_view pointer) {
  if (std::ranges::count(basic_pointers, pointer) > 0) return KeyLevel::basic;
  const bool usual = usual_pointers.find(fmt::format(" {} ", pointer)) != usual_pointers.npos;
  return usual ? KeyLevel::usual : KeyLevel::expert;
}

class Walk {
 public:
  // Lists the tables of these keys under them, not under other keys that have the same tables.
  void claim(const Key& key) {
    for (const Form* form = &key.form; form != nullptr; form = form->or_else)
      if (form->keys != nullptr) shown_.emplace(form->keys, "/" + shown_name(key));
  }

  void add(std::span<const Key> keys, const std::string& above) {
    for (const Key& key : keys) {
      const std::string pointer = above + shown_name(key);
      rows_.push_back({pointer, &key, {}, level_of(pointer)});
      for (const Form* form = &key.form; form != nullptr; form = form->or_else) {
        const bool list = form->kind == Form::Kind::list;
        add_below(list ? *form->element : *form, pointer + (list ? "/N" : ""));
      }
    }
  }

  std::vector<KeyRow> rows() && { return std::move(rows_); }

 private:
  void add_below(const Form& form, const std::string& pointer) {
    // A pool's keys are the experiment's own.
    if (form.keys == nullptr || form.keys == no_keys || form.partial) return;
    const std::string& shown = shown_.emplace(form.keys, pointer).first->second;
    if (shown == pointer)
      add(form.keys(), pointer + "/");
    else if (!pointer.starts_with(shown + "/"))
      rows_.push_back({pointer + "/...", nullptr, shown});
  }

  std::vector<KeyRow> rows_;
  std::map<KeyTable, std::string> shown_;
};

// Keys of an experiment, basic ones first.
std::vector<Key> by_level() {
  std::vector<Key> keys;
  for (const std::string_view pointer : basic_pointers)
    keys.push_back(*std::ranges::find(experiment_keys(), pointer.substr(1), &Key::name));
  for (const Key& key : experiment_keys())
    if (level_of(fmt::format("/{}", key.name)) != KeyLevel::basic) keys.push_back(key);
  return keys;
}

// Groups of a report that have the rows of another group.
struct RepeatedGroup {
  std::string_view group, as;
};
constexpr RepeatedGroup repeated[] = {
    {"/pools/prefill", ""},
    {"/turns/first", "/turns/all"},
    {"/turns/later", "/turns/all"},
    {"/turns/after_compaction", "/turns/all"},
    {"/turns/by_number/TURNS", "/turns/all"},
    {"/experts/by_step_kind/KIND", "/experts"},
    {"/afd/ffn_memory", "/memory"},
    {"/pools/decode/instances/N", "/instances/N"},
    {"/communication/combine", "/communication/dispatch"},
    {"/communication/tp_all_reduce", "/communication/dispatch"},
};

}  // namespace

std::string shown_name(const Key& key) {
  if (key.name == "*") return key.registry.empty() ? "NAME" : "POLICY";
  if (key.name == "/*") return "JSON POINTER";
  return std::string(key.name);
}

std::vector<KeyRow> rows_of(std::span<const Key> keys, const std::string& above) {
  Walk walk;
  walk.add(keys, above);
  return std::move(walk).rows();
}

std::vector<KeyRow> experiment_rows() {
  static const std::vector<Key> keys = by_level();
  Walk walk;
  for (const Key& key : keys) walk.claim(key);
  walk.add(keys, "/");
  return std::move(walk).rows();
}

std::vector<ReportKey> folded(const std::vector<ReportKey>& keys) {
  std::map<std::string_view, const ReportKey*> by_pointer;
  for (const ReportKey& key : keys) by_pointer[key.pointer] = &key;
  std::vector<ReportKey> rows;
  const RepeatedGroup* last = nullptr;
  for (const ReportKey& key : keys) {
    const auto group = std::ranges::find_if(repeated, [&](const RepeatedGroup& one) {
      return key.pointer.starts_with(fmt::format("{}/", one.group));
    });
    if (group == std::end(repeated)) {
      rows.push_back(key);
      continue;
    }
    const std::string as = std::string(group->as) + key.pointer.substr(group->group.size());
    const auto twin = by_pointer.find(as);
    if (twin == by_pointer.end() || twin->second->unit != key.unit ||
        twin->second->meaning != key.meaning) {
      rows.push_back(key);
    } else if (last != group) {
      rows.push_back({fmt::format("{}/...", group->group), "", Better::neither,
                      fmt::format("as {}/...", group->as)});
      last = group;
    }
  }
  return rows;
}

}  // namespace moesim
