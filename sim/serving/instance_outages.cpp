// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "sim/serving/instance.hpp"

// Methods of an EP group for GPUs that stop and come back.
namespace moesim {

// A rank stops: what ran and waited on it has lost its KV cache.
void Instance::drop_requests_of(Rank& rank, OutageRecord& record,
                                std::vector<std::uint32_t>& requests) {
  for (std::size_t i = 0; i < rank.running.size(); ++i) {
    write_back(rank, i);
    requests.push_back(rank.running[i].request);
    record.tokens_lost += rank.running[i].computed;
  }
  for (const Sequence& sequence : rank.queue.waiting()) requests.push_back(sequence.request);
  rank.running.clear();
  rank.progress.clear();
  rank.queue.clear();
  rank.sending.clear();
  rank.plan.clear();
  rank.kv = empty_cache(at(&rank - ranks_.data()));
  rank.kv_tokens = 0;
  rank.down = true;
}

// KV blocks that no rank which is up can use, because experts stand there.
std::int64_t Instance::set_aside() const {
  std::int64_t blocks = 0;
  for (const Rank& rank : ranks_) blocks += rank.down ? 0 : rank.kv.set_aside();
  return blocks;
}

// Experts take so many blocks of a rank: what does not fit beside them has lost its KV cache. Of
// those on their way to a decode pool, which computes them again, the last ones go last.
void Instance::make_room(Rank& rank, std::int64_t blocks, OutageRecord& record) {
  const auto lacks = [&] { return rank.kv.free_blocks() + rank.kv.set_aside() < blocks; };
  for (; lacks() && !rank.running.empty(); ++record.preempted) {
    record.tokens_lost += rank.running.back().computed;
    preempt_last(rank);
  }
  for (; lacks(); rank.sending.pop_back()) rank.kv.finish(rank.sending.back());
  rank.kv.set_aside(blocks);
}

Instance::Stopped Instance::fail(const Outage& outage, Time now) {
  ++changes_;
  const std::int64_t aside = set_aside();
  OutageRecord& record = layout_.stop(outage, now);
  if (stepping_) record.step_lost = to_seconds(now - summary_.start);
  stepping_ = false;
  // A step that is lost has admitted sequences, whose tokens nobody has looked at.
  for (Rank& rank : ranks_) rank.steady = false;
  drop_abandoned();
  Stopped stopped;
  for (const int rank : outage.dp_ranks) {
    drop_requests_of(ranks_[at(rank)], record, stopped.requests);
  }
  std::sort(stopped.requests.begin(), stopped.requests.end());
  for (const std::uint32_t id : stopped.requests) {
    requests_[id].state = RequestRecord::State::waiting;
    requests_[id].kv_arrived = false;
  }
  record.requests = std::ssize(stopped.requests);
  stopped.time = layout_.make_whole(record);
  for_experts_ = layout_.kv_blocks();
  for (Rank& rank : ranks_) {
    if (!rank.down) make_room(rank, for_experts_, record);
  }
  record.kv_blocks = std::max<std::int64_t>(set_aside() - aside, 0);
  return stopped;
}

Seconds Instance::recover(const Outage& outage, Time now) {
  ++changes_;
  for (const int rank : outage.dp_ranks) ranks_[at(rank)].down = false;
  const Seconds time = layout_.recover(outage, now);
  for_experts_ = layout_.kv_blocks();
  for (Rank& rank : ranks_) {
    if (!rank.down) rank.kv.set_aside(for_experts_);
  }
  return time;
}

}  // namespace moesim
