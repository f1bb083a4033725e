// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "hardware/units.hpp"

namespace moesim {

/// The next request of the workload is due.
struct RequestArrives {};
/// A client's pause has ended: the workload may have a request to send.
struct PauseEnds {};
/// A client has waited as long as it wants to: for its first token, for its last one, or until it
/// leaves whatever it has got. Stale when the request has left, or the token come, before.
struct ClientLeaves {
  enum class Because : std::uint8_t { no_first_token, not_finished, cancelled };
  std::uint32_t request = 0;
  Because because = Because::cancelled;
};
/// An EP group finished a forward step, or stands ready again after a stop.
struct StepEnds {
  int instance = 0;
  std::int64_t serial = 0;  ///< of the step; stale when an outage has ended it
};
struct EngineReady {
  int instance = 0;
  std::int64_t serial = 0;
};
/// GPUs of an EP group stop, or come back: which, its failure plan says.
struct OutageBegins {
  int instance = 0;
  std::size_t outage = 0;
};
struct OutageEnds {
  int instance = 0;
  std::size_t outage = 0;
};
/// The KV cache of a prompt has come from the prefill pool to the decode pool.
struct KvArrives {
  std::uint32_t request = 0;
};

/// A pool's router has spent its time on a request, which a rank is now chosen for. Stale when the
/// request has left before.
struct RouterDecides {
  int pool = 0;
  std::uint32_t request = 0;
};

/// A transfer between HBM and a tier below it may have landed. Stale when others have made it
/// slower.
struct BlocksLand {
  int tier = 0;
};

/// An agent will be back soon: a rank begins to load its blocks.
struct PrefetchBegins {
  int instance = 0;
  std::size_t rank = 0;
  AgentName agent = 0;
};

/// Groups are looked at that may change pools.
struct PoolsLookedAt {};

/// An EP group that has left one pool serves in the other.
struct RoleTaken {
  int instance = 0;  ///< there
};

/// Everything that can happen. Events are values: they can be compared, printed and asserted on.
using Happening = std::variant<RequestArrives, PauseEnds, ClientLeaves, StepEnds, EngineReady,
                               OutageBegins, OutageEnds, KvArrives, RouterDecides, BlocksLand,
                               PrefetchBegins, PoolsLookedAt, RoleTaken>;

struct Event {
  Time at;
  std::uint64_t sequence = 0;
  Happening what;
};

/// Owns the clock. Events leave in (time, sequence) order, so that ties are first come, first
/// served.
class EventQueue {
 public:
  Time now() const { return now_; }
  bool empty() const { return heap_.empty(); }
  /// True if the next event is at now(), too.
  bool more_now() const { return !heap_.empty() && heap_.front().at == now_; }

  /// Throws std::logic_error if `at` is before now().
  void schedule(Time at, Happening what) {
    check(at >= now_, "an event was scheduled in the past");
    heap_.push_back({at, next_sequence_++, what});
    std::push_heap(heap_.begin(), heap_.end(), later);
  }

  /// Takes the earliest event and moves the clock to it; nothing when the queue is empty.
  std::optional<Event> pop() {
    if (heap_.empty()) return std::nullopt;
    std::pop_heap(heap_.begin(), heap_.end(), later);
    const Event event = heap_.back();
    heap_.pop_back();
    now_ = event.at;
    return event;
  }

 private:
  static bool later(const Event& a, const Event& b) {
    return std::pair(a.at, a.sequence) > std::pair(b.at, b.sequence);
  }

  std::vector<Event> heap_;
  Time now_{};
  std::uint64_t next_sequence_ = 0;
};

}  // namespace moesim
