// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <queue>
#include <vector>

#include "sim/experiment/pools.hpp"
#include "sim/report/write_up.hpp"
#include "sim/requests/requests.hpp"

// Ways of a request that take time apart from steps.
namespace moesim {

inline constexpr Seconds last_end{8.64e6};  ///< 100 days, of the clock's 106

/// When something ends that begins at `begin`. A run may outlast the clock on hardware slow enough.
inline Time end_of(Seconds length, const char* what, Time begin) {
  if (to_seconds(begin) + length > last_end)
    throw ConfigError(
        "{} of {:.3g} s would end beyond the 100 days that can be simulated; give the "
        "cluster higher rates, or fewer and shorter requests",
        what, length.count());
  return begin + to_duration(length);
}

/// A request's way from its client to the engine. Workers tokenize prompts in the order in which
/// they were sent, each one prompt at a time.
class Ingress {
 public:
  Ingress(const ApiServer& server, int ranks)
      : server_(server), idle_from_({}, std::vector<Time>(at(server.tokenizer_workers * ranks))) {}

  /// When the engine has a request that is sent at `sent`. Calls are in the order of these times.
  Time ready(Time sent, std::int32_t prompt_tokens) {
    const Seconds work = server_.per_request + server_.tokenization * double(prompt_tokens);
    const Time done = std::max(sent, idle_from_.top()) + to_duration(work);
    idle_from_.pop();
    idle_from_.push(done);
    return done + to_duration(std::max(server_.latency - server_.per_request, Seconds{}));
  }

 private:
  const ApiServer& server_;
  // Times from which workers are idle, soonest first: a fleet has thousands.
  std::priority_queue<Time, std::vector<Time>, std::greater<>> idle_from_;
};

/// Links over which the ranks of a prefill pool send KV caches. One carries one after the other,
/// and so do last layers follow each other.
class KvLinks {
 public:
  KvLinks() = default;
  KvLinks(const KvLink& spec, std::size_t groups, int ranks)
      : whole_(spec.sends == KvSends::whole), links_(groups, std::vector<Link>(at(ranks))) {}

  /// Sends a prompt's KV cache now, and returns when it is there. It leaves from the prompt's first
  /// step on, or after the first token. Notes the way in the request.
  Time send(RequestRecord& request, const KvTransferCost& cost, Time now) {
    Link& link = links_[at(request.instance)][at(request.rank)];
    const Time ready = whole_ ? now : request.begun;
    const Seconds exposed = cost.exposed;
    const char* const what = "the transfer of a KV cache";
    link.idle = end_of(cost.all, what, std::max(ready, link.idle));
    link.delivered = std::max(link.idle, end_of(exposed, what, std::max(now, link.delivered)));
    const Time alone = std::max(ready + to_duration(cost.all), now + to_duration(exposed));
    request.prefill = std::make_shared<const PrefillRecord>(
        PrefillRecord{request.instance, request.rank, request.routing, link.delivered - now});
    ++sent_.transfers;
    sent_.bytes += cost.bytes;
    sent_.on_links += cost.all;
    sent_.waited += to_seconds(link.delivered - alone);
    sent_.exposed += to_seconds(link.delivered - now);
    return link.delivered;
  }
  const KvTransferTally& sent() const { return sent_; }

 private:
  struct Link {
    Time idle{};       // from when on it carries nothing
    Time delivered{};  // when the last KV cache was there
  };
  bool whole_ = true;
  std::vector<std::vector<Link>> links_;  // [group][rank]
  KvTransferTally sent_;
};

}  // namespace moesim
