// SPDX-License-Identifier: Apache-2.0
#include "sim/experiment/trace_library.hpp"

#include <algorithm>

#include <fmt/format.h>

namespace moesim {

namespace {

// Trace of a dense model, none of whose layers looks at it: one request of a prompt and an output
// token.
RoutingTrace no_routing(const MoeModel& model) {
  TraceMeta meta;
  meta.model = model.name;
  meta.num_experts = meta.experts_per_token = 1;
  meta.layer_ids = {0};
  meta.synthetic = true;
  return RoutingTrace(std::move(meta), {"none"}, {{0, 2, 1, 0}}, {0, 0});
}

// Everything that a gating can read, and what is asked of it. Before a trace resolves it, its text
// is what was written.
std::string key_of(const ConfigNode& gating, const PoolSpec& pool, TraceLibrary::Holds holds) {
  const MoeModel& model = pool.model;
  std::string layers;
  for (const LayerSpec& layer : model.layers) layers += layer.moe ? 'm' : '-';
  return fmt::format("{}\n{}\n{} {} {} {} {} {}\n{}\n{}", gating.file().parent_path().string(),
                     gating.json().dump(), model.name, model.experts, model.experts_per_token,
                     model.expert_groups, model.groups_per_token, pool.seed, layers,
                     holds == TraceLibrary::Holds::outlines ? "outline" : "trace");
}

}  // namespace

RoutingTrace TraceLibrary::get(const std::string& key, const ConfigNode& gating,
                               const PoolSpec& pool, Holds holds, std::string& remark) {
  // Constructing the gating records its options in the resolved config, also when the trace is at
  // hand.
  const auto maker = gatings().make(gating);
  if (remark.empty()) remark = maker->remark();
  if (pool.model.experts == 0) return no_routing(pool.model);
  return *traces_.get(key, [&] {
    return holds == Holds::outlines ? maker->outline(pool.model, pool.seed)
                                    : maker->trace(pool.model, pool.seed);
  });
}

Traces TraceLibrary::open(const ExperimentSpec& spec) {
  const PoolSpec& pool = spec.pools.back();
  const bool by_gain =
      std::ranges::any_of(spec.pools, [](const PoolSpec& any) { return any.placed.by_gain; });
  const Holds holds = by_gain ? Holds::traces : holds_;
  std::string key = key_of(pool.gating, pool, holds);
  std::string remark;
  Traces traces{get(key, pool.gating, pool, holds, remark), {}};
  if (pool.prefill_gating) {
    const std::string prefill = key_of(*pool.prefill_gating, pool, holds);
    traces.prefill = get(prefill, *pool.prefill_gating, pool, holds, remark);
    key += '\n' + prefill;
  }
  traces.remark = std::move(remark);
  const std::lock_guard lock(mutex_);
  traces.fits = fits_.try_emplace(std::move(key), traces.fits).first->second;
  return traces;
}

}  // namespace moesim
