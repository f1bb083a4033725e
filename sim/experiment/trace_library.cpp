// SPDX-License-Identifier: Apache-2.0
#include "sim/experiment/trace_library.hpp"

#include <fmt/format.h>

namespace moesim {

namespace {

// What stands for the trace of a dense model, none of whose layers looks at it: one request of a
// prompt and an output token.
RoutingTrace no_routing(const MoeModel& model) {
  TraceMeta meta;
  meta.model = model.name;
  meta.num_experts = meta.experts_per_token = 1;
  meta.layer_ids = {0};
  meta.synthetic = true;
  return RoutingTrace(std::move(meta), {"none"}, {{0, 2, 1, 0}}, {0, 0});
}

// Everything that a gating can read.
std::string key_of(const ConfigNode& gating, const MoeModel& model, std::uint64_t seed) {
  std::string layers;
  for (const LayerSpec& layer : model.layers) layers += layer.moe ? 'm' : '-';
  return fmt::format("{}\n{}\n{} {} {} {} {} {}\n{}", gating.file().parent_path().string(),
                     gating.json().dump(), model.name, model.experts, model.experts_per_token,
                     model.expert_groups, model.groups_per_token, seed, layers);
}

}  // namespace

RoutingTrace TraceLibrary::get(const ConfigNode& gating, const MoeModel& model,
                               std::uint64_t seed) {
  const std::string key = key_of(gating, model, seed);
  // Constructing the gating records its options in the resolved config, also when the trace is at
  // hand.
  const auto maker = gatings().make(gating);
  if (model.experts == 0) return no_routing(model);
  Entry* entry = nullptr;
  {
    const std::lock_guard lock(mutex_);
    entry = &traces_[key];
  }
  std::call_once(entry->made, [&] { entry->trace = maker->trace(model, seed); });
  return *entry->trace;
}

Traces TraceLibrary::open(const PoolSpec& pool) {
  // Before a trace resolves it, a gating's text is what was written.
  std::string key = key_of(pool.gating, pool.model, pool.seed);
  if (pool.prefill_gating) key += '\n' + key_of(*pool.prefill_gating, pool.model, pool.seed);
  Traces traces{get(pool.gating, pool.model, pool.seed), {}};
  if (pool.prefill_gating) traces.prefill = get(*pool.prefill_gating, pool.model, pool.seed);
  const std::lock_guard lock(mutex_);
  traces.fits = fits_.try_emplace(std::move(key), traces.fits).first->second;
  return traces;
}

Traces open_traces(const ExperimentSpec& spec, TraceLibrary& library) {
  return library.open(spec.pools.back());
}

}  // namespace moesim
