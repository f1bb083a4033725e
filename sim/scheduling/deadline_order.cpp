// SPDX-License-Identifier: Apache-2.0
#include "sim/scheduling/deadline_order.hpp"

#include <algorithm>

namespace moesim {

DeadlineQueue order_by_deadline(const QueueView& queue, std::int64_t chunk,
                                std::span<Sequence> waiting) {
  check(queue.price != nullptr, "deadlines are kept by the price of prompts");
  const auto shown = [](const Sequence& sequence) { return sequence.has_token(); };
  const auto can = [&](const Sequence& sequence) {
    const Seconds left = to_seconds(sequence.deadline - queue.now);
    return left >= queue.price->prompt_time(sequence.due(), chunk);
  };
  const auto by_arrival = [](const Sequence& sequence) { return sequence.request; };
  const auto by_deadline = [](const Sequence& sequence) {
    return std::pair(sequence.deadline, sequence.request);
  };
  const auto first_unshown = std::partition(waiting.begin(), waiting.end(), shown);
  const auto first_late = std::partition(first_unshown, waiting.end(), can);
  const DeadlineQueue parts{
      {waiting.begin(), first_unshown}, {first_unshown, first_late}, {first_late, waiting.end()}};
  std::ranges::sort(parts.shown, {}, by_arrival);
  std::ranges::sort(parts.can, {}, by_deadline);
  std::ranges::sort(parts.cannot, {}, by_arrival);
  return parts;
}

}  // namespace moesim
