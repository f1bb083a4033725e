// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "sim/experiment/deployment.hpp"
#include "sim/kv_cache/kv_cache.hpp"
#include "sim/prefill_alignment/prefill_alignment.hpp"
#include "sim/request_routing/request_router.hpp"
#include "sim/requests/requests.hpp"
#include "sim/scheduling/scheduler.hpp"
#include "sim/serving/expert_layout.hpp"
#include "sim/serving/rank_queue.hpp"
#include "sim/serving/speculation.hpp"
#include "sim/serving/step_sampler.hpp"
#include "sim/step/step_model.hpp"
#include "sim/step/step_record.hpp"
#include "traces/trace_rows.hpp"

namespace moesim {

/// Links of an instance to the rest of a run.
struct InstanceLinks {
  int number = 0;  ///< what observers and requests know it by
  /// Stands for the routing of the requests' own tokens, which then take no rows.
  StepSampler* sampler = nullptr;
  const StepPrice* price = nullptr;  ///< by which some schedulers plan
  std::vector<TierPort> below{};     ///< the ways of its ranks to a tier, [rank], or none
};

/// An EP group: its DP ranks step together. Owns queues, KV blocks and the trace rows of its
/// requests; reads no clock but what it is given.
class Instance {
 public:
  /// All arguments but the links must outlive it.
  Instance(const Deployment&, RowSource&, Requests&, InstanceLinks = {});
  int number() const { return number_; }

  /// Queues a request on a rank that is up and must be able to hold it. One that comes from a rank
  /// that stopped computes again what it has generated.
  void submit(std::uint32_t request, std::size_t rank);
  /// From now on takes requests, or finishes those that it has and is shown to no router. One that
  /// opens has nothing cached.
  void open(bool takes_requests);
  bool takes_requests() const { return open_; }
  /// True if it has nothing to do, and sends nothing.
  bool idle() const;
  /// Requests that wait on its ranks for a seat.
  std::int64_t waiting() const;
  /// Requests on its ranks, those whose KV caches are leaving included.
  std::int64_t requests() const;
  /// True if a rank that holds nothing else has room for it; an outage may have taken some.
  bool can_ever_hold(const RequestRecord&) const;

  /// Composes and prices the next step, and answers when it will have ended; nothing when no rank
  /// has work, or has to wait for a tier.
  std::optional<Seconds> begin_step(Time now);
  /// Ends the step that began: tokens are emitted, requests that finished or were abandoned free
  /// their blocks.
  StepRecord end_step(Time now);

  /// The KV cache of a request that left after its first token stands elsewhere: its blocks are
  /// free. False if its rank has stopped meanwhile, and the KV cache with it.
  bool sent(std::uint32_t request);
  /// Takes what a session announces of an agent, whose blocks the HBM of one of these ranks may
  /// hold. Returns that rank if it is to prefetch what tiers have of the agent.
  std::optional<std::size_t> announce(const Announcement&, Time now);
  /// An agent was served elsewhere, or on this rank: the other ones hold nothing for it.
  void served_agent(AgentName, std::optional<std::size_t> rank);
  void prefetch(std::size_t rank, AgentName, Time now);
  /// No agent comes back any more.
  void release_retained();
  /// A KV cache of so many bytes leaves a rank over the network: copies to a tier may share the
  /// link.
  void sends_kv(std::size_t rank, Bytes, Time now);
  /// A transfer of one of a rank's tiers, counted from the first, has landed.
  void land(std::size_t rank, std::size_t tier, const KvTier::Landed&, Time now);
  /// The request, which is on a rank, was abandoned or rejected: it emits nothing any more, and
  /// leaves when the step in flight ends.
  void abandon(std::uint32_t request);

  /// GPUs stop now, and the step in flight with them. Answers the requests that lost their rank, in
  /// order of arrival, and how long the engine stands still.
  struct Stopped {
    std::vector<std::uint32_t> requests;
    Seconds time{};
  };
  Stopped fail(const Outage&, Time now);
  /// The last outage of these GPUs ends, between two steps. Answers how long the engine stands
  /// still while experts move back.
  Seconds recover(const Outage&, Time now);

  /// Writes what routers see of the ranks that are up, with the requests on them only if asked.
  /// What `loads` refers to is good until the next call.
  void loads(bool requests, std::vector<RankLoad>& loads);
  /// The same of one rank, which is up.
  RankLoad load(std::size_t rank, bool requests);
  /// Counts what may have changed the answer of `loads`.
  std::int64_t changes() const { return changes_; }
  /// Returns what a prompt would find in a rank's KV cache.
  CacheHit find(std::size_t rank, std::span<const BlockHash> prompt, std::int32_t tokens) const;
  const ExpertPlacement& placement() const { return layout_.placement(); }
  /// The step in flight, or the last one.
  const StepSummary& step() const { return summary_; }
  const StepCost& cost() const { return cost_; }
  const StepBatch& batch() const { return batch_; }
  std::int64_t total_blocks() const;
  /// KV blocks held over all ranks, now.
  std::int64_t used_blocks() const;
  const std::vector<OutageRecord>& outages() const { return layout_.outages(); }
  /// Moves in the run so far.
  const RebalancingLog& rebalancing() const { return layout_.rebalancing(); }

 private:
  std::int64_t tokens_at_end(const RequestRecord&) const;
  // Values of a running request that every step changes, kept with its sequence, as records lie far
  // apart in memory. The record gets them with the first token, and when the request ends its run.
  struct Progress {
    Time last_token{};
    std::int32_t generated = 0, output_tokens = 0;
    bool abandoned = false;
  };
  struct Rank {
    std::vector<Sequence> running{};
    std::vector<Progress> progress{};  // of those that run
    RankQueue queue;
    // Sequences that left after their first token while their blocks are still held.
    std::vector<Sequence> sending{};
    KvCache kv;
    std::int64_t kv_tokens = 0;
    std::vector<RankRequest> shown{};
    StepPlan plan{};
    // True if each that runs has just emitted a token that was not its first. Each then takes one
    // token a step until the first of them finishes, so many steps from now.
    bool steady = false;
    std::int32_t steps_left = 0;
    // True if the plan would hold more tokens if the expert buffers did.
    bool cut_by_buffers = false;
    PromptWork prompts = PromptWork::all;
    // True if a request on this rank was abandoned.
    bool abandoned = false;
    bool down = false;
    // Since when sequences run here, and how many have finished.
    std::optional<Time> runs_since{};
    std::int64_t finished = 0;
  };

  RankRequest show_request(const Sequence& sequence, std::int32_t generated) const;
  KvCache empty_cache(std::size_t rank) const;
  std::span<const Sequence> show_waiting(Rank& rank);
  void order_running(Rank& rank) const;
  void order_waiting(Rank& rank) const;
  void receive();
  RankPrompts prompts_of(Rank& rank);
  HeldPrompts planned_prompts();
  bool plan_step();
  void choose_drafts();
  bool plan_turns();
  void allow(std::span<const PromptWork> prompts);
  bool plan_turn(Turn turn);
  void admit(Rank& rank, Sequence& sequence);
  void show_first(Rank& rank, std::size_t place);
  void plan_rank(Rank& rank, Turn turn);
  void apply_plan(Rank& rank, std::int32_t index);
  void note_loads(const Sequence& sequence, const CacheHit& hit);
  void park(Rank& rank, Sequence sequence);
  void park_alone();
  void wait_again(Rank& rank, const Parked& parked, Time now);
  bool give_up_load(Rank& rank);
  Time move_blocks(Time now);
  void stretch_by_loads(Time now);
  bool shares_host_link() const {
    return deployment_.host_link && deployment_.expert_memory && !below_.empty();
  }
  std::span<RankMemory> expert_memories_of(std::size_t rank);
  void share_host_links(Time now);
  void hold_up_loads(Time now);
  void compute(const Sequence& sequence, std::int32_t tokens, std::int32_t rank);
  void compute_one_each(Rank& rank, std::int32_t index);
  void classify_step();
  std::span<const std::int32_t> decode_places();
  void take_two_terms();
  void price_step(Time now);
  void move_experts();
  bool emit(Rank& rank, std::size_t place, Time now);
  void note_milestones(std::uint32_t request, std::int32_t tokens, bool starts, bool finished);
  void note_gap(Duration length, std::int32_t tokens);
  void leave(Rank& rank, std::size_t place, bool finished);
  void emit_one_each(Rank& rank, Time now);
  void end_each(Rank& rank, Time now);
  void write_back(const Rank& rank, std::size_t place);
  void drop_abandoned();
  void drop_requests_of(Rank& rank, OutageRecord& record, std::vector<std::uint32_t>& requests);
  void preempt_last(Rank& rank);
  void make_room(Rank& rank, std::int64_t blocks, OutageRecord& record);
  std::int64_t set_aside() const;

  const Deployment& deployment_;
  StepSampler* sampler_;    // none: every token is routed
  const StepPrice* price_;  // if the scheduler needs it
  std::int64_t changes_ = 0;
  // These, as nothing was left to do: until something changes no step begins.
  std::int64_t asleep_at_ = -1;
  RowSource& rows_;
  Requests& requests_;
  int number_;
  std::vector<TierPort> below_;       // [rank], or none
  Time planned_at_{};                 // the last step
  std::vector<Time> loads_until_;     // [rank], before the step has brought experts
  Time loaded_{};                     // when what the step loads layer by layer is there
  std::optional<StepModels> models_;  // without a sampler
  // Weights that move between steps that cut experts otherwise: their present cut, and the time of
  // a move.
  bool cut_for_decode_ = false;
  std::optional<CollectiveCost> recut_;
  Speculation speculation_;
  std::vector<Rank> ranks_;
  StepBatch batch_;
  StepCost cost_;
  StepSummary summary_;
  // Counts of the step that ended.
  std::int64_t emitted_ = 0;
  std::vector<Milestone> milestones_;
  std::vector<TokenGap> gaps_;
  ExpertLayout layout_;
  std::unique_ptr<PrefillAlignment> alignment_;  // or none
  std::vector<RankPrompts> prompts_;             // of each rank, for it
  std::vector<PromptWork> allowed_;
  HeldPrompts held_;
  std::int32_t decodes_since_received_ = 0;
  Time busy_until_{};
  bool had_prompts_ = false;  ///< the last step
  bool stepping_ = false;
  bool open_ = true;
  std::int64_t for_experts_ = 0;                 // KV blocks of each rank that experts have taken
  std::vector<std::uint32_t> request_of_range_;  // of batch_.rows
  std::vector<std::int32_t> running_of_topic_;   // if the scheduler reorders
  std::vector<std::int32_t> decode_places_;      // of the step, once they are asked for
};

}  // namespace moesim
