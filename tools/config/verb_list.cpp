// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "sim/capacity/capacity.hpp"
#include "sim/dispatch/dispatch.hpp"
#include "sim/expert_memory/expert_memory.hpp"
#include "sim/placement/placement.hpp"
#include "sim/rebalancing/rebalancer.hpp"
#include "sim/request_routing/request_router.hpp"
#include "sim/scheduling/scheduler.hpp"
#include "sim/token_routing/token_routing.hpp"
#include "tools/cli/output.hpp"
#include "tools/cli/verbs.hpp"
#include "traces/gating/gating.hpp"
#include "traces/requests/arrivals.hpp"
#include "traces/requests/lengths.hpp"

namespace moesim {

namespace {

struct Kind {
  std::string_view name;
  std::vector<std::pair<std::string_view, std::string_view>> rows;
};

template <class R>
Kind kind_of(const R& registry) {
  Kind kind{registry.kind(), {}};
  for (const auto& entry : registry.entries()) kind.rows.push_back({entry.name, entry.summary});
  return kind;
}

std::vector<Kind> all_kinds() {
  return {kind_of(placers()),     kind_of(token_routers()),    kind_of(dispatches()),
          kind_of(rebalancers()), kind_of(capacity_rules()),   kind_of(expert_memories()),
          kind_of(prefetches()),  kind_of(schedulers()),       kind_of(request_routers()),
          kind_of(gatings()),     kind_of(request_arrivals()), kind_of(request_lengths())};
}

}  // namespace

Action setup_list(CLI::App& command) {
  const auto wanted = std::make_shared<std::string>();
  command.add_option("KIND", *wanted, "one extension point (default: all)");
  return [wanted] {
    const std::vector<Kind> kinds = all_kinds();
    std::vector<std::string_view> names;
    for (const Kind& kind : kinds) names.push_back(kind.name);
    if (!wanted->empty() && std::find(names.begin(), names.end(), *wanted) == names.end()) {
      throw ConfigError(
          fmt::format("list: there is no kind \"{}\"; one of: {}", *wanted, join_names(names)));
    }
    std::string text;
    for (const Kind& kind : kinds) {
      if (!wanted->empty() && kind.name != *wanted) continue;
      text += fmt::format("{}\n", kind.name);
      for (const auto& [name, summary] : kind.rows)
        text += wrapped(fmt::format("  {:<15} {}", name, summary), 100, 18) + "\n";
    }
    print(text);
    return 0;
  };
}

}  // namespace moesim
