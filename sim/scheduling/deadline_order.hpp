// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>

#include "sim/scheduling/scheduler.hpp"

namespace moesim {

/// A queue in order of deadlines: parts of the span that was put in order.
struct DeadlineQueue {
  std::span<Sequence>
      shown;                ///< clients have seen a token of these: preempted, or off a failed rank
  std::span<Sequence> can;  ///< first tokens can be there in time
  std::span<Sequence> cannot;  ///< too late, though each were computed at once and alone
};

/// Earliest deadline first [EDF], over what waits:
///   laxity = deadline - now - time of the prompt alone, in pieces of `chunk` tokens
/// First come those whose clients have seen a token, in order of arrival. Then by deadline those
/// whose laxity is not below zero, ties by arrival. Then those of which it is, by arrival: under
/// overload EDF alone would let each late request make the next one late. The time is that of all
/// tokens which the queue says are to be computed; a prefix that is cached is found later.
DeadlineQueue order_by_deadline(const QueueView&, std::int64_t chunk, std::span<Sequence> waiting);

}  // namespace moesim
