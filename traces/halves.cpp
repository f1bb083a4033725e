// SPDX-License-Identifier: Apache-2.0
#include "traces/halves.hpp"

#include <optional>

#include "hardware/at.hpp"

namespace moesim {

std::vector<char> fitted_half(const RoutingTrace& trace) {
  std::vector<char> fitted;
  std::vector<std::optional<bool>> last_of_workload(trace.workloads().size());
  std::size_t count = 0;
  for (const TraceRequest& request : trace.requests()) {
    std::optional<bool>& last = last_of_workload[at(request.workload)];
    last = last ? !*last : 2 * count <= fitted.size();
    fitted.push_back(*last ? 1 : 0);
    count += *last ? std::size_t{1} : 0;
  }
  return fitted;
}

}  // namespace moesim
