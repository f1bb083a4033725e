// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "sim/serving/instance.hpp"

// Methods of an EP group for tiers below the HBM of its ranks.
namespace moesim {

// Notes what of a request is loaded from tiers as it is first admitted.
void Instance::note_loads(const Sequence& sequence, const CacheHit& hit) {
  RequestRecord& request = requests_[sequence.request];
  if (request.preemptions > 0 || request.generated > 0) return;
  const std::int32_t block = deployment_.kv_layout.block_tokens;
  request.loaded_tokens = static_cast<std::int32_t>(hit.loads) * block;
  for (std::size_t t = 0; t < hit.of_lower.size(); ++t)
    request.loaded_of_lower[t] = static_cast<std::int32_t>(hit.of_lower[t]) * block;
}

// A sequence, which waits no more, begins to load, or waits for what another loads.
void Instance::park(Rank& rank, Sequence sequence) {
  const CacheHit hit = rank.kv.begin_load(sequence);
  check(hit.loads > 0 || rank.kv.loads(), "a sequence is parked for blocks that nothing loads");
  note_loads(sequence, hit);
  rank.queue.park({sequence, hit.loads, planned_at_});
}

// Carries out a plan that does nothing but park sequences.
void Instance::park_alone() {
  for (Rank& rank : ranks_) {
    for (std::size_t i = 0; i < rank.plan.admitted_tokens.size(); ++i) {
      park(rank, rank.queue.take_first());
    }
    rank.plan.admitted_tokens.clear();
  }
}

// A sequence that was parked waits for a step again: behind those that came before it.
void Instance::wait_again(Rank& rank, const Parked& parked, Time now) {
  Sequence sequence = parked.sequence;
  RequestRecord& request = requests_[sequence.request];
  if (request.preemptions == 0 && request.generated == 0) request.loading += now - parked.since;
  if (request.abandoned()) {
    rank.kv_tokens -= sequence.tokens;
    rank.kv.finish(sequence);
    return;
  }
  rank.queue.put_in_order(sequence);
}

void Instance::land(std::size_t index, std::size_t tier, const KvTier::Landed& landed, Time now) {
  ++changes_;
  Rank& rank = ranks_[index];
  const std::optional<std::uint32_t> request = rank.kv.land(tier, landed, now);
  if (!request) return;
  for (const Parked& parked : rank.queue.take_parked()) {
    if (parked.loads == 0 || parked.sequence.request == *request) {
      wait_again(rank, parked, now);
    } else {
      rank.queue.park(parked);
    }
  }
}

// If nothing can compute for lack of blocks, those in the queue hold what they have loaded. The
// last one then releases its blocks. Not while transfers are under way, which hold blocks too.
bool Instance::give_up_load(Rank& rank) {
  if (rank.kv.moves()) return false;
  return rank.queue.give_up_last([&](Sequence& sequence) {
    rank.kv.preempt(sequence);
    rank.kv.below().tier->give_up();
    note_loads(sequence, {});
  });
}

// Begins the transfers of the plan. Returns when its step can begin. Then the contents of blocks
// that it takes have been copied, and what it loads before it computes has come.
Time Instance::move_blocks(Time now) {
  Time begins = loaded_ = now;
  for (Rank& rank : ranks_) {
    const Time loaded = rank.kv.load_noted(now);
    const TierRead read = rank.kv.below().read;
    if (read == TierRead::blocking) begins = std::max(begins, loaded);
    if (read == TierRead::layerwise) loaded_ = std::max(loaded_, loaded);
  }
  for (Rank& rank : ranks_) begins = std::max(begins, rank.kv.copy_taken(now));
  return begins;
}

// Memories of the GPUs of a rank, each of which brings its part of every block.
std::span<RankMemory> Instance::expert_memories_of(std::size_t rank) {
  const std::span<RankMemory> all = models_->of(StepKind::prefill).expert_memories();
  const std::size_t first = rank * all.size() / ranks_.size();
  const std::size_t end = std::max(first + 1, (rank + 1) * all.size() / ranks_.size());
  return all.subspan(first, all.empty() ? 0 : end - first);
}

// Tells those that bring experts which blocks are on their way over the same links.
void Instance::share_host_links(Time now) {
  loads_until_.clear();
  for (std::size_t r = 0; r < ranks_.size(); ++r) {
    const TierPort& below = ranks_[r].kv.below();
    loads_until_.push_back(below.tier->loads_until(below.port, now));
    for (RankMemory& memory : expert_memories_of(r))
      memory.share_link({*deployment_.host_link, loads_until_.back()});
  }
}

// Experts have held up the blocks of a rank by as much as on the slowest of its GPUs.
void Instance::hold_up_loads(Time now) {
  for (std::size_t r = 0; r < ranks_.size(); ++r) {
    Duration longest{};
    for (const RankMemory& memory : expert_memories_of(r))
      longest = std::max(longest, memory.link().blocks_until() - loads_until_[r]);
    if (longest == Duration{}) continue;
    const TierPort& below = ranks_[r].kv.below();
    below.tier->hold_up_loads(below.port, longest, now);
    if (below.read == TierRead::layerwise) loaded_ = std::max(loaded_, loads_until_[r] + longest);
  }
}

void Instance::served_agent(AgentName agent, std::optional<std::size_t> rank) {
  for (std::size_t r = 0; r < ranks_.size(); ++r) {
    if (r == rank || !ranks_[r].kv.remembers(agent)) continue;
    ++changes_;
    ranks_[r].kv.forget_agent(agent);
  }
}

std::optional<std::size_t> Instance::announce(const Announcement& announced, Time now) {
  const auto remembers = [&](const Rank& rank) { return rank.kv.remembers(announced.agent); };
  const auto rank = std::ranges::find_if(ranks_, remembers);
  if (rank == ranks_.end()) return std::nullopt;
  ++changes_;
  const NextRequest& next = announced.next;
  if (next.state == NextRequest::State::never) {
    rank->kv.forget_agent(announced.agent);
    return std::nullopt;
  }
  const KvCacheSpec& spec = deployment_.kv_cache;
  if (const auto until = spec.retains() ? spec.retention->until(now) : std::nullopt)
    rank->kv.retain(announced.agent, *until);
  const bool comes = spec.prefetch_lead && next.state == NextRequest::State::due;
  if (!comes || below_.empty()) return std::nullopt;
  return at(rank - ranks_.begin());
}

void Instance::prefetch(std::size_t rank, AgentName agent, Time now) {
  ++changes_;
  KvCache& kv = ranks_[rank].kv;
  if (kv.remembers(agent)) kv.prefetch(agent, now);
}

void Instance::release_retained() {
  for (Rank& rank : ranks_) {
    while (rank.kv.release_one()) {
    }
  }
}

// Each GPU of the rank sends its part of the KV cache.
void Instance::sends_kv(std::size_t rank, Bytes bytes, Time now) {
  if (!deployment_.host_link || below_.empty()) return;
  const TierPort& below = ranks_[rank].kv.below();
  below.tier->hold_up_stores(below.port, bytes / deployment_.parallel.rank_gpus(), now);
}

// A layer computes when its blocks are there, while those of the next ones come. So the step ends a
// layer's time after the last blocks, or a layer's blocks before all layers have computed. All
// layers count the same.
void Instance::stretch_by_loads(Time now) {
  if (loaded_ <= now) return;
  const auto layers = static_cast<double>(deployment_.model.layers.size());
  const Seconds load = to_seconds(loaded_ - now), step = cost_.total;
  const Seconds both = std::max(load + step / layers, load / layers + step);
  summary_.start = std::max(summary_.start, now + to_duration(both - step));
  batch_.start = summary_.start;
}

}  // namespace moesim
