// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "sim/serving/simulator.hpp"
#include "sim/serving/typical_step.hpp"
#include "tests/support.hpp"

namespace moesim::test {

/// 16 experts in three layers, 6 slots on each of 4 GPUs, 24 requests under way, 120 in all;
/// changed by `set`, a merge patch. Kernels go by data sheets: no table holds so small a model, and
/// reading tables takes longer than the run. Paths are relative to tests/.
inline Json tiny_experiment(const Json& set) {
  Json json = {
      {"engine", {{"name", "none"}}},
      {"cluster", "../hardware/clusters/h100x16.json"},
      {"model",
       {{"name", "tiny"},
        {"source", "made for a test"},
        {"hidden", 512},
        {"vocabulary", 1024},
        {"tied_embeddings", false},
        {"attention", {{"query_heads", 8}, {"kv_heads", 4}, {"head_dim", 64}}},
        {"experts", {{"count", 16}, {"per_token", 2}, {"width", 256}}},
        {"layers", Json::array({{{"repeat", 3}, {"pattern", Json::array({{{"ffn", "moe"}}})}}})}}},
      {"precision", {{"experts", "bf16"}, {"attention", "bf16"}}},
      {"parallel", {{"dp", 4}, {"tp", 1}, {"ep", 4}}},
      {"scheduling",
       {{"type", "chunked_prefill"}, {"max_num_batched_tokens", 64}, {"max_num_seqs", 8}}},
      {"workload",
       {{"arrivals", {{"type", "closed_loop"}, {"concurrency", 24}}},
        {"lengths", {{"type", "fixed"}, {"prompt", 20}, {"output", 30}}},
        {"gating",
         {{"type", "topical"}, {"requests", 12}, {"prompt_rows", 20}, {"decode_rows", 30}}},
        {"requests", 120}}},
      {"placement", {{"type", "linear"}, {"replication", 1.5}}},
      {"token_routing", {{"prefill", "even"}, {"decode", "even"}}},
      {"dispatch", {{"prefill", "all_to_all"}, {"decode", "all_to_all"}}},
      {"request_routing", "round_robin"},
      {"seed", 1}};
  json.merge_patch(set);
  return json;
}

/// An experiment written in a test, loaded.
inline Experiment load(const Json& json) {
  TraceLibrary traces;
  return load_experiment(ConfigNode(json, source_dir() / "tests" / "tiny.json"), traces);
}
inline Experiment load_tiny(const Json& set) { return load(tiny_experiment(set)); }

/// A report, and the requests that it is about.
struct Served : Report {
  std::vector<RequestRecord> requests;
};
inline Served serve(const Experiment& experiment, std::vector<RunObserver*> observers = {}) {
  RequestLog log;
  observers.push_back(&log);
  return {run(experiment, {}, observers), log.requests()};
}

/// Why it is refused, or "".
inline std::string refused(const Json& json) {
  return config_error([&] { load(json); });
}

}  // namespace moesim::test
