// SPDX-License-Identifier: Apache-2.0
#include "sim/experiment/trace_fits.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <tbb/task_arena.h>

namespace moesim {

template <class Value>
std::shared_ptr<const Value> Memo<Value>::get(const std::string& key,
                                              const std::function<Value()>& make) {
  std::shared_ptr<Entry> entry;
  {
    const std::lock_guard lock(mutex_);
    if (entries_.size() == held_ && !entries_.contains(key)) entries_.clear();
    std::shared_ptr<Entry>& found = entries_[key];
    if (!found) found = std::make_shared<Entry>();
    entry = found;
  }
  // Isolated, so that a thread that waits for parts of this value takes up no other point, which
  // might wait for the value.
  std::call_once(entry->made, [&] {
    tbb::this_task_arena::isolate([&] { entry->value = std::make_shared<const Value>(make()); });
  });
  return entry->value;
}

template class Memo<ExpertStatistics>;
template class Memo<ExpertPlacement>;
template class Memo<RoutingTrace>;

std::shared_ptr<const ExpertStatistics> TraceFits::seen(std::span<const RoutingTrace* const> traces,
                                                        const Observation& what) {
  const std::string key =
      fmt::format("{} {} {} {} {} {}", what.fitted_half, what.workloads, what.coactivation,
                  what.sample.batches, what.sample.tokens, what.sample.seed);
  return seen_.get(key, [&] { return observe(traces, what); });
}

}  // namespace moesim
