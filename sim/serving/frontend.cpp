// SPDX-License-Identifier: Apache-2.0
#include "sim/serving/frontend.hpp"

#include <algorithm>
#include <functional>

namespace moesim {

Frontend::Frontend(const Deployment& deployment, std::vector<Instance*> instances,
                   const RowSource& rows, Requests& requests)
    : deployment_(deployment),
      instances_(std::move(instances)),
      rows_(rows),
      requests_(requests),
      router_(deployment.request_router()),
      needs_(router_->needs()),
      history_(deployment.model.moe_layers(), deployment.model.experts,
               deployment.model.experts_per_token),
      active_experts_(needs_.experts_read ? instances_.size() : 0, deployment.model.moe_layers(),
                      deployment.model.experts),
      published_(instances_.size() * at(deployment.parallel.dp)),
      seen_(instances_.size()) {}

// Looks again at the groups on which something has changed.
void Frontend::look_at_ranks() {
  auto place = ranks_.begin();
  for (std::size_t i = 0; i < instances_.size(); ++i) {
    Seen& seen = seen_[i];
    if (seen.changes == instances_[i]->changes()) {
      place += seen.ranks;
      continue;
    }
    instances_[i]->loads(needs_.requests, ranks_of_instance_);
    for (RankLoad& rank : ranks_of_instance_) place_in_pool(rank, i);
    if (std::ssize(ranks_of_instance_) != seen.ranks) {
      place = ranks_.erase(place, place + seen.ranks);
      place = ranks_.insert(place, ranks_of_instance_.size(), RankLoad{});
    }
    place = std::ranges::copy(ranks_of_instance_, place).out;
    seen = {instances_[i]->changes(), std::ssize(ranks_of_instance_)};
  }
}

void Frontend::place_in_pool(RankLoad& rank, std::size_t instance) const {
  rank.group = static_cast<std::int32_t>(instance);
  rank.rank += rank.group * deployment_.parallel.dp;
  show_published(rank);
}

void Frontend::show_published(RankLoad& rank) const {
  const RankLoad& published = published_[at(rank.rank)];
  rank.published_waiting = published.waiting;
  rank.published_running = published.running;
}

void Frontend::publish(Time now) {
  if (!needs_.statistics_interval) return;
  const std::int64_t due = now.time_since_epoch() / *needs_.statistics_interval;
  if (due == publication_) return;
  publication_ = due;
  look_at_ranks();
  for (RankLoad& rank : ranks_) {
    published_[at(rank.rank)] = rank;
    show_published(rank);
  }
}

void Frontend::left(std::uint32_t request, Time now) {
  active_experts_.remove(request);
  const auto placed = kin_of_.find(request);
  if (placed == kin_of_.end()) return;
  KinSeen& kin = kin_.at(placed->second);
  --kin.on_ranks;
  kin.left = now;
  kin_of_.erase(placed);
}

void Frontend::arrive(std::uint32_t request, Time now) {
  left(request, now);
  Waiting& waiting = waiting_.emplace_back(Waiting{request, {}, {}, {}});
  if (needs_.prefixes || needs_.locality || needs_.experts_read) {
    waiting.hashes = prompt_of(request);
  }
  const bool own = needs_.experts_from == ExpertsFrom::prompt ||
                   needs_.experts_from == ExpertsFrom::first_tokens;
  if (own && (needs_.locality || needs_.experts_read)) waiting.own = own_experts_of(request);
  if (needs_.prefill_counts) {
    const RequestRecord& record = requests_[request];
    waiting.prefill_counts =
        history_.count(record.binding, Phase::prefill, 0, record.prompt_tokens, rows_);
  }
}

std::vector<BlockHash> Frontend::prompt_of(std::uint32_t request) const {
  const RequestRecord& record = requests_[request];
  return prompt_hashes(record.prompt_ids.get(), request, record.prompt_tokens,
                       deployment_.kv_layout.block_tokens);
}

std::vector<LikelyExpert> Frontend::own_experts_of(std::uint32_t request) const {
  constexpr std::int32_t most = 16;
  const RequestRecord& record = requests_[request];
  const bool prompt = needs_.experts_from == ExpertsFrom::prompt;
  const std::int32_t tokens = std::min(most, prompt ? record.prompt_tokens : record.output_tokens);
  return prompt ? history_.used_by(record.binding, Phase::prefill, record.prompt_tokens - tokens,
                                   tokens, rows_)
                : history_.used_by(record.binding, Phase::decode, 0, tokens, rows_);
}

std::span<const LikelyExpert> Frontend::experts_of(const Waiting& waiting) const {
  switch (needs_.experts_from) {
    case ExpertsFrom::history: return history_.predict(waiting.hashes);
    case ExpertsFrom::topic:
      return history_.predict(waiting.hashes, rows_.workload(requests_[waiting.request].binding));
    case ExpertsFrom::prompt:
    case ExpertsFrom::first_tokens: break;
  }
  return waiting.own;
}

void Frontend::finished(std::uint32_t request, Time now) {
  left(request, now);
  const RequestRecord& record = requests_[request];
  finished_outputs_.push_back(record.output_tokens);
  if (needs_.locality || needs_.experts_read) {
    history_.record(record.binding, record.output_tokens, rows_, prompt_of(request));
  }
}

bool Frontend::withdraw(std::uint32_t request) {
  const auto found = std::ranges::find(waiting_, request, &Waiting::request);
  if (found == waiting_.end()) return false;
  waiting_.erase(found);
  return true;
}

void Frontend::show(Time now) {
  look_at_ranks();
  const std::size_t shown = std::min(needs_.window, waiting_.size());
  const std::size_t count = published_.size();  // of all ranks, those that are down included
  const auto dp = at(deployment_.parallel.dp);
  hits_.resize(needs_.prefixes ? shown * count : 0);
  localities_.resize(needs_.locality ? shown * count : 0);
  experts_read_.resize(needs_.experts_read ? shown * count : 0);
  experts_added_.resize(experts_read_.size());
  pending_.clear();
  for (std::size_t i = 0; i < shown; ++i) {
    const Waiting& waiting = waiting_[i];
    const RequestRecord& record = requests_[waiting.request];
    PendingRequest& pending = pending_.emplace_back();
    pending.id = waiting.request;
    // What was generated on a rank that failed is computed again, as if it were of the prompt.
    pending.prompt_tokens = record.prompt_tokens + record.generated;
    pending.output_tokens = record.output_tokens - record.generated;
    pending.blocks = deployment_.kv_layout.blocks_for(pending.prompt_tokens);
    pending.hashes = waiting.hashes;
    pending.prefill_counts = waiting.prefill_counts;
    if (needs_.kin != Kin::none && record.turn) show_kin(pending, now);
    if (needs_.prefixes) {
      pending.hits = std::span(hits_).subspan(i * count, count);
      for (std::size_t g = 0; g < count; ++g) {
        hits_[i * count + g] =
            instances_[g / dp]->find(g % dp, waiting.hashes, pending.prompt_tokens);
      }
    }
    if (needs_.locality || needs_.experts_read) show_experts(pending, i, count);
  }
}

void Frontend::show_kin(PendingRequest& pending, Time now) const {
  const SessionTurn& turn = *requests_[pending.id].turn;
  const std::uint32_t siblings = needs_.kin == Kin::siblings ? turn.siblings : 0;
  pending.kin = (std::uint64_t{siblings} << 32) | turn.session;
  const auto seen = kin_.find(*pending.kin);
  if (seen != kin_.end() && seen->second.on_ranks == 0) pending.kin_idle = now - seen->second.left;
}

void Frontend::show_experts(PendingRequest& pending, std::size_t place, std::size_t ranks) {
  const auto experts = experts_of(waiting_[place]);
  const auto dp = at(deployment_.parallel.dp);
  if (needs_.locality) {
    const auto localities = std::span(localities_).subspan(place * ranks, ranks);
    for (std::size_t g = 0; g < ranks; ++g) {
      localities[g] = expert_locality(experts, instances_[g / dp]->placement(),
                                      deployment_.parallel, static_cast<int>(g % dp));
    }
    pending.locality = localities;
  }
  if (needs_.experts_read) {
    const auto read = std::span(experts_read_).subspan(place * ranks, ranks);
    const auto added = std::span(experts_added_).subspan(place * ranks, ranks);
    for (std::size_t i = 0; i < instances_.size(); ++i) {
      const double fresh = active_experts_.expected_new(i, experts);
      std::ranges::fill(added.subspan(i * dp, dp), fresh);
      std::ranges::fill(read.subspan(i * dp, dp), active_experts_.expected(i) + fresh);
    }
    pending.experts_read = read;
    pending.experts_added = added;
  }
}

void Frontend::carry_out(const Assignment& assignment) {
  const PendingRequest& pending = pending_[assignment.pending];
  const auto rank = at(assignment.rank);
  const auto dp = at(deployment_.parallel.dp);
  RoutingRecord& routing = requests_[pending.id].routing;
  routing.score = assignment.score;
  RankLoad& load = *std::ranges::lower_bound(ranks_, assignment.rank, {}, &RankLoad::rank);
  routing.load = load.kv_tokens;
  if (needs_.prefixes) {
    routing.hit_share = static_cast<double>(pending.hits[rank].blocks) *
                        deployment_.kv_layout.block_tokens / pending.prompt_tokens;
  }
  if (needs_.locality) routing.locality = pending.locality[rank];
  if (needs_.experts_read) {
    active_experts_.add(pending.id, rank / dp, experts_of(waiting_[assignment.pending]));
  }
  if (pending.kin) {
    ++kin_[*pending.kin].on_ranks;
    kin_of_[pending.id] = *pending.kin;
  }
  Instance& instance = *instances_[rank / dp];
  Seen& seen = seen_[rank / dp];
  const bool is_seen = seen.changes == instance.changes();
  instance.submit(pending.id, rank % dp);
  if (!is_seen) return;
  // A request changes no other rank of its group.
  load = instance.load(rank % dp, needs_.requests);
  place_in_pool(load, rank / dp);
  seen.changes = instance.changes();
}

void Frontend::place(Time now) {
  while (!waiting_.empty()) {
    show(now);
    if (ranks_.empty()) return;
    assignments_.clear();
    router_->route({now, pending_, ranks_, publication_, finished_outputs_}, assignments_);
    if (assignments_.empty()) return;
    for (const Assignment& assignment : assignments_) carry_out(assignment);
    std::ranges::sort(assignments_, std::ranges::greater{}, &Assignment::pending);
    for (const Assignment& assignment : assignments_) {
      waiting_.erase(waiting_.begin() + static_cast<std::ptrdiff_t>(assignment.pending));
    }
  }
}

}  // namespace moesim
