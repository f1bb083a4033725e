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

}  // namespace

RoutingTrace TraceLibrary::get(const ConfigNode& gating, const MoeModel& model,
                               std::uint64_t seed) {
  std::string layers;
  for (const LayerSpec& layer : model.layers) layers += layer.moe ? 'm' : '-';
  // Everything that a gating can read.
  const std::string key =
      fmt::format("{}\n{}\n{} {} {} {} {} {}\n{}", gating.file().parent_path().string(),
                  gating.json().dump(), model.name, model.experts, model.experts_per_token,
                  model.expert_groups, model.groups_per_token, seed, layers);
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

Traces open_traces(const ExperimentSpec& spec, TraceLibrary& library) {
  const PoolSpec& pool = spec.pools.back();
  Traces traces{library.get(pool.gating, pool.model, pool.seed), {}};
  if (pool.prefill_gating)
    traces.prefill = library.get(*pool.prefill_gating, pool.model, pool.seed);
  return traces;
}

}  // namespace moesim
