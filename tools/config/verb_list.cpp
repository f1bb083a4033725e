// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <functional>

#include <fmt/format.h>

#include "hardware/fabric.hpp"
#include "hardware/shipped.hpp"
#include "models/moe_model.hpp"
#include "sim/capacity/capacity.hpp"
#include "sim/dispatch/dispatch.hpp"
#include "sim/draft_choice/draft_choice.hpp"
#include "sim/expert_memory/expert_memory.hpp"
#include "sim/kv_cache/retention.hpp"
#include "sim/kv_tiers/kv_tiers.hpp"
#include "sim/placement/placement.hpp"
#include "sim/pool_roles/pool_roles.hpp"
#include "sim/prefill_alignment/prefill_alignment.hpp"
#include "sim/rebalancing/rebalancer.hpp"
#include "sim/request_routing/request_router.hpp"
#include "sim/scheduling/scheduler.hpp"
#include "sim/token_routing/token_routing.hpp"
#include "tools/cli/output.hpp"
#include "tools/cli/verbs.hpp"
#include "traces/gating/gating.hpp"
#include "traces/gating/presets.hpp"
#include "traces/requests/arrivals.hpp"
#include "traces/requests/lengths.hpp"
#include "traces/sessions/sessions.hpp"

namespace moesim {

namespace {

using Rows = std::vector<std::pair<std::string, std::string>>;

struct Kind {
  std::string name;
  std::function<Rows()> rows;  // asked of what is listed alone: to describe a GPU reads its file
};

template <class R>
Kind kind_of(const R& registry) {
  return {std::string(registry.kind()), [&registry] {
            Rows rows;
            for (const auto& entry : registry.entries())
              rows.emplace_back(std::string(entry.name), std::string(entry.summary));
            return rows;
          }};
}

Kind presets_of_gating() {
  return {"presets", [] {
            Rows rows;
            for (const GatingPreset& preset : gating_presets)
              rows.emplace_back(preset.name, fmt::format("{}: {}", preset.family, preset.source));
            return rows;
          }};
}

// Kind of what ships and has a short name.
Kind kind_of(const char* name, Shipped which, std::string (*describe)(const ConfigNode&)) {
  return {name, [which, describe] {
            Rows rows;
            for (const std::string& shipped : shipped_names(which)) {
              const ConfigNode file = ConfigNode::from_file(*shipped_file(which, shipped));
              rows.emplace_back(shipped, describe(file));
            }
            return rows;
          }};
}

std::string describe_model(const ConfigNode& file) {
  const MoeModel model = read_model(file);
  const ParameterCount parameters = count_parameters(model);
  const std::string experts =
      model.experts == 0 ? "dense"
                         : fmt::format("{} of {} experts in {} layers", model.experts_per_token,
                                       model.experts, model.moe_layers());
  return fmt::format("{}: {:.4g} B parameters, {:.3g} B active; {}", model.name,
                     parameters.total / 1e9, parameters.active / 1e9, experts);
}

std::string describe_gpu(const ConfigNode& file) {
  const GpuSpec gpu = read_gpu(file);
  const bool fitted = file.json().contains("kernels");
  return fmt::format("{}: {:.0f} GiB at {:.3g} TB/s, {:.5g} TFLOP/s in bf16; {}", gpu.name,
                     gpu.hbm_capacity.value() / (1 << 30), gpu.hbm_bandwidth.value() / 1e12,
                     gpu.peak(Precision::bf16, Precision::bf16).value() / 1e12,
                     fitted ? "constants fitted" : "data sheet alone");
}

std::string describe_cluster(const ConfigNode& file) {
  const ClusterSpec cluster = read_cluster(file);
  return fmt::format("{}: {} GPUs, NVLink domains of {}", cluster.name, cluster.gpus(),
                     cluster.scale_up_domain);
}

std::vector<Kind> all_kinds() {
  return {kind_of(placers()),
          kind_of(token_routers()),
          kind_of(dispatches()),
          kind_of(rebalancers()),
          kind_of(pool_roles()),
          kind_of(prefill_alignments()),
          kind_of(draft_choices()),
          kind_of(capacity_rules()),
          kind_of(expert_memories()),
          kind_of(prefetches()),
          kind_of(retentions()),
          kind_of(tier_evictions()),
          kind_of(tier_writes()),
          kind_of(schedulers()),
          kind_of(request_routers()),
          kind_of(gatings()),
          presets_of_gating(),
          kind_of(request_arrivals()),
          kind_of(request_lengths()),
          kind_of(session_kinds()),
          kind_of("models", Shipped::model, describe_model),
          kind_of("gpus", Shipped::gpu, describe_gpu),
          kind_of("clusters", Shipped::cluster, describe_cluster)};
}

}  // namespace

Action setup_list(CLI::App& command) {
  struct ListOptions {
    std::string wanted, csv;
    bool json = false;
  };
  const auto options = std::make_shared<ListOptions>();
  command.add_option("KIND", options->wanted,
                     "one extension point, or presets (of synthetic gating), models, gpus, "
                     "clusters (default: all)");
  command.add_option("--csv", options->csv, "write every row, named as in JSON, to this file");
  command.add_flag("--json", options->json, "print JSON instead of text");
  return [options] {
    const std::vector<Kind> kinds = all_kinds();
    const std::string& wanted = options->wanted;
    std::vector<std::string_view> names;
    for (const Kind& kind : kinds) names.push_back(kind.name);
    require_writable(options->csv);
    if (!wanted.empty() && std::ranges::find(names, wanted) == names.end()) {
      throw ConfigError("list: there is no kind \"{}\"; one of: {}", wanted, join_names(names));
    }
    std::string text;
    OrderedJson rows = OrderedJson::array();
    for (const Kind& kind : kinds) {
      if (!wanted.empty() && kind.name != wanted) continue;
      text += fmt::format("{}\n", kind.name);
      for (const auto& [name, summary] : kind.rows()) {
        text += indented(fmt::format("  {:<20} {}", name, summary), 23);
        rows.push_back({{"kind", kind.name}, {"name", name}, {"summary", summary}});
      }
    }
    if (!options->csv.empty()) write_file(options->csv, csv_of(rows));
    print(options->json ? OrderedJson{{"rows", rows}}.dump(1) + "\n" : text);
    return 0;
  };
}

}  // namespace moesim
