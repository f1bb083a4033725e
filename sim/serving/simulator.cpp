// SPDX-License-Identifier: Apache-2.0
#include "sim/serving/simulator.hpp"

#include <algorithm>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "sim/serving/event_queue.hpp"
#include "sim/serving/pool.hpp"
#include "sim/serving/ways.hpp"

namespace moesim {

namespace {

constexpr std::uint32_t finished_between_progress = 64;

template <class... Cases>
struct Overload : Cases... {
  using Cases::operator()...;
};
template <class... Cases>
Overload(Cases...) -> Overload<Cases...>;

// Owner of the clock. Moves requests to ranks and steps to their ends. Moves KV caches from the
// pool that prefills, if there is one, to the pool that decodes.
class Simulation {
 public:
  Simulation(const Experiment& experiment, const Progress& progress,
             std::span<RunObserver* const> observers)
      : experiment_(experiment),
        load_(experiment.decode()),
        progress_(progress),
        observers_(observers),
        source_(load_.workload.make(load_.seed, load_.ranks())),
        requests_(load_.workload.requests),
        rows_(load_.trace, load_.prefill_trace, load_.bind_odd_only, load_.seed, load_.binding),
        patience_rng_(load_.seed, "workload/patience"),
        class_rng_(load_.seed, "workload/classes"),
        ingress_(load_.api_server, load_.ranks()) {
    for (const Deployment& pool : experiment.pools) add_pool(pool);
    if (experiment.roles) roles_.emplace(*experiment.roles, load_.loosest_slo());
  }

  Report run() {
    for (const Group* group : groups_) {
      const std::vector<Outage>& outages = outages_of(*group);
      const int first = group->pool.groups.front()->instance.number();
      for (std::size_t i = 0; i < outages.size(); ++i) {
        if (first + outages[i].instance != group->instance.number()) continue;
        queue_.schedule(outages[i].at, OutageBegins{group->instance.number(), i});
      }
    }
    if (roles_) queue_.schedule(Time{} + to_duration(roles_->options().sample), PoolsLookedAt{});
    schedule_arrival();
    while (auto event = queue_.pop()) {
      for (const auto& pool : pools_) pool->frontend.publish(queue_.now());
      if (!observers_.empty()) show(*event);
      std::visit([this](const auto& what) { handle(what); }, event->what);
      // All that happens at one moment has happened before a step begins: requests and KV caches
      // that come together join the same step.
      if (!queue_.more_now()) {
        serve_pending();
        await_landings();
      }
    }
    std::vector<PoolRun> runs;
    for (const auto& pool : pools_) {
      check(pool->frontend.empty(), "a request was left without a rank");
      runs.push_back(pool->run(queue_.now()));
    }
    for (Group* group : groups_) {
      group->instance.release_retained();
      check(group->instance.used_blocks() == 0, "KV blocks were left behind");
    }
    between_.kv = kv_links_.sent();
    if (roles_) between_.role_changes = roles_->changes();
    return write_up(experiment_, runs, between_, requests_, source_->sessions(), ended_);
  }

 private:
  void add_pool(const Deployment& deployment) {
    const int first = static_cast<int>(groups_.size());
    const bool offloads = experiment_.kv_link && experiment_.kv_link->decode_offload;
    const Deployment* const writers =
        offloads && deployment.prefill_only ? &experiment_.decode() : nullptr;
    const PoolTiers* const above =
        offloads && !deployment.prefill_only ? &pools_.front()->tiers : nullptr;
    Pool& pool = *pools_.emplace_back(
        std::make_unique<Pool>(deployment, rows_, requests_, first, writers, above));
    for (const auto& group : pool.groups) groups_.push_back(group.get());
    if (remembers_agents(deployment)) {
      for (const auto& group : pool.groups) remembering_.push_back(group.get());
    }
    for (PoolTiers::Site& site : pool.tiers.sites()) tiers_.push_back(&site);
    if (deployment.prefill_only)
      kv_links_ = {*experiment_.kv_link, groups_.size(), deployment.parallel.dp};
  }
  Group& group(int number) { return *groups_[at(number)]; }
  static const std::vector<Outage>& outages_of(const Group& group) {
    return group.pool.deployment.failures.outages;
  }

  // Shows an event to observers, unless it is void or of no interest to them.
  void show(const Event& event) const {
    EventSeen seen{event.at, {}};
    const auto of_request = [&](std::string_view what, std::int64_t id) {
      seen.what = what;
      seen.request = static_cast<std::uint32_t>(id);
      return true;
    };
    const auto of_group = [&](std::string_view what, int instance) {
      seen.what = what;
      seen.instance = instance;
      return true;
    };
    const auto if_valid = [&](std::string_view what, const auto& end) {
      return end.serial == groups_[at(end.instance)]->serial && of_group(what, end.instance);
    };
    const bool shown = std::visit(
        Overload{[&](const RequestArrives&) {
                   seen.sent = due_->arrival;
                   return of_request("request_arrives", requests_.size());
                 },
                 [&](const ClientLeaves& client) {
                   return requests_.has(client.request) && requests_[client.request].open() &&
                          of_request("client_leaves", client.request);
                 },
                 [&](const StepEnds& step) { return if_valid("step_ends", step); },
                 [&](const EngineReady& ready) { return if_valid("engine_ready", ready); },
                 [&](const OutageBegins& of) { return of_group("outage_begins", of.instance); },
                 [&](const OutageEnds& of) { return of_group("outage_ends", of.instance); },
                 [&](const RoleTaken& taken) { return of_group("role_taken", taken.instance); },
                 [&](const KvArrives& kv) { return of_request("kv_arrives", kv.request); },
                 [](const auto&) { return false; }},
        event.what);
    if (!shown) return;
    for (RunObserver* observer : observers_) observer->event(seen);
  }

  // Puts one arrival into the queue at a time. The source is asked for the next when it is due, or
  // when the source may be asked.
  void schedule_arrival() {
    if (arrival_pending_) return;
    if (const Time from = source_->not_before(); from > queue_.now()) {
      if (asks_at_ && *asks_at_ <= from) return;
      asks_at_ = from;
      queue_.schedule(from, PauseEnds{});
      return;
    }
    due_ = source_->next();
    if (!due_) return;
    arrival_pending_ = true;
    const Time ready = ingress_.ready(due_->arrival, due_->request.prompt_tokens);
    queue_.schedule(std::max(ready, queue_.now()), RequestArrives{});
  }

  void handle(const PauseEnds&) {
    if (asks_at_ && *asks_at_ <= queue_.now()) asks_at_.reset();
    schedule_arrival();
  }

  void handle(const RequestArrives&) {
    arrival_pending_ = false;
    ended_ = queue_.now();
    const auto id = static_cast<std::uint32_t>(requests_.size());
    RequestRecord& request = requests_.add();
    request.prompt_tokens = due_->request.prompt_tokens;
    request.output_tokens = due_->request.output_tokens;
    request.prompt_ids = due_->request.prompt_ids;
    request.turn = due_->request.turn;
    request.arrival = due_->arrival;
    request.received = queue_.now();
    request.binding =
        rows_.bind(request.turn ? std::optional(request.turn->session) : std::nullopt);
    request.of_class = class_of(due_->request);
    const bool last = requests_.size() == load_.workload.requests;
    for (const auto& pool : pools_) {
      pool->measurement.request_arrived(queue_.now());
      if (last) pool->measurement.no_more_arrivals(queue_.now());
    }
    const Patience patience = load_.workload.patience.draw(patience_rng_);
    Pool& first = *pools_.front();
    if (fits(request)) {
      await(id, patience);
      to_router(0, id);
    } else {
      request.state = RequestRecord::State::rejected;
      request_left(id);
    }
    schedule_arrival();
    first.changed = true;
  }

  // A router that takes time sees requests one after the other.
  void to_router(std::size_t pool_number, std::uint32_t id) {
    Pool& pool = *pools_[pool_number];
    const Seconds each = pool.deployment.charges.request_routing;
    if (each == Seconds{}) {
      pool.frontend.arrive(id, queue_.now());
      return;
    }
    Time& idle_from = pool.router.idle_from;
    idle_from = end_of(each, "a router's queue", std::max(idle_from, queue_.now()));
    ++pool.router.decisions;
    pool.router.waited += idle_from - queue_.now();
    at_router_.insert(id);
    queue_.schedule(idle_from, RouterDecides{static_cast<int>(pool_number), id});
  }

  void handle(const RouterDecides& decision) {
    if (at_router_.erase(decision.request) == 0) return;
    Pool& pool = *pools_[at(decision.pool)];
    pool.frontend.arrive(decision.request, queue_.now());
    pool.changed = true;
  }

  // True if every group could hold a request: routers do not look for one that can. Groups of a
  // pool differ only in KV blocks that experts take in outages.
  bool fits(const RequestRecord& request) const {
    const auto holds = [&](const auto& group) { return group->instance.can_ever_hold(request); };
    return std::ranges::all_of(pools_, [&](const auto& pool) {
      return pool->deployment.failures.outages.empty() ? holds(pool->groups.front())
                                                       : std::ranges::all_of(pool->groups, holds);
    });
  }

  // All turns of a session are of the class of its first.
  std::uint8_t class_of(const Request& request) {
    const auto own = [&] {
      return load_.recorded_classes.empty() ? draw_class(load_.classes, class_rng_)
                                            : load_.recorded_classes[request.recorded_class];
    };
    if (!request.turn) return own();
    const auto [session, begins] = class_of_session_.try_emplace(request.turn->session);
    if (begins) session->second = own();
    return session->second;
  }

  // A client counts from when it sends, before its request has passed the API server.
  void await(std::uint32_t id, const Patience& patience) {
    using Because = ClientLeaves::Because;
    const Time sent = requests_[id].arrival;
    const auto leaves = [&](const std::optional<Duration>& after, Because because) {
      if (after) queue_.schedule(std::max(queue_.now(), sent + *after), ClientLeaves{id, because});
    };
    leaves(patience.first_token, Because::no_first_token);
    leaves(patience.whole, Because::not_finished);
    leaves(patience.cancels, Because::cancelled);
  }

  void handle(const ClientLeaves& client) {
    using Because = ClientLeaves::Because;
    if (!requests_.has(client.request)) return;
    RequestRecord& request = requests_[client.request];
    const bool served = client.because == Because::no_first_token && request.first_token != Time{};
    if (!request.open() || served) return;
    ended_ = queue_.now();
    request.state = client.because == Because::cancelled ? RequestRecord::State::cancelled
                                                         : RequestRecord::State::timed_out;
    request.abandoned_at = queue_.now();
    for (const auto& pool : pools_) pool->measurement.request_abandoned();
    drop(client.request);
  }

  // An open request gets no further token.
  void drop(std::uint32_t id) {
    const bool waited =
        at_router_.erase(id) > 0 ||
        std::ranges::any_of(pools_, [&](const auto& pool) { return pool->frontend.withdraw(id); });
    if (!waited) group(requests_[id].instance).instance.abandon(id);
    for (const auto& pool : pools_) pool->frontend.left(id, queue_.now());
    request_left(id);
    schedule_arrival();
    for (const auto& pool : pools_) pool->changed = true;
  }

  // An outage has left KV caches less room than some requests need.
  void reject_what_fits_no_more() {
    for (std::uint32_t id = 0; id < static_cast<std::uint32_t>(requests_.size()); ++id) {
      if (!requests_.has(id) || !requests_[id].open() || fits(requests_[id])) continue;
      ended_ = queue_.now();
      requests_[id].state = RequestRecord::State::rejected;
      drop(id);
    }
  }

  void handle(const StepEnds& step) {
    Group& ended = group(step.instance);
    if (step.serial != ended.serial) return;
    Pool& pool = ended.pool;
    ended.busy = false;
    ended_ = queue_.now();
    const StepRecord record = ended.instance.end_step(queue_.now());
    pool.measurement.step_ended(record, requests_, queue_.now());
    for (RunObserver* observer : observers_) observer->step_ended(record, queue_.now());
    if (roles_) note_latencies(record, pool);
    for (const Milestone& token : record.milestones) {
      if (token.first && requests_[token.request].first_token != Time{}) {
        for (RunObserver* observer : observers_)
          observer->first_token(token.request, requests_[token.request]);
      }
      if (!token.last) {
        if (pool.deployment.prefill_only) send_kv(token.request);
        continue;
      }
      for (const auto& any : pools_) any->frontend.finished(token.request, queue_.now());
      request_left(token.request);
    }
    schedule_arrival();
    pool.changed = true;
  }

  // Notes latencies for the policy that moves groups between the pools.
  void note_latencies(const StepRecord& record, const Pool& pool) {
    if (!pool.deployment.prefill_only) {
      for (const TokenGap& gap : record.gaps) roles_->gaps(to_seconds(gap.length), gap.tokens);
      return;
    }
    for (const Milestone& token : record.milestones) {
      if (token.first)
        roles_->first_token(to_seconds(queue_.now() - requests_[token.request].arrival));
    }
  }

  void handle(const PoolsLookedAt&) {
    if (finished()) return;
    roles_->sample(pools_.front()->sample(), pools_.back()->sample());
    if (const std::optional<PoolRole> wanted = roles_->decide(queue_.now())) {
      Pool& giver = *(*wanted == PoolRole::prefill ? pools_.back() : pools_.front());
      Group& leaves = giver.least_busy();
      leaves.leaves = true;
      leaves.instance.open(false);
      roles_->begin(leaves.instance.number() - giver.groups.front()->instance.number(), *wanted,
                    queue_.now());
      giver.changed = true;
    }
    queue_.schedule(queue_.now() + to_duration(roles_->options().sample), PoolsLookedAt{});
  }

  // A group that has drained becomes one of the other pool.
  void change_role(Group& group) {
    group.leaves = false;
    roles_->drained(queue_.now());
    const RoleChangeOptions& options = roles_->options();
    const int of_pool = static_cast<int>(pools_.front()->groups.size());
    const int there = (group.instance.number() + of_pool) % (2 * of_pool);
    const MemoryBudget& memory = groups_[at(there)]->pool.deployment.memory;
    const Bytes weights = memory.weights + memory.experts + memory.replicas;
    const Seconds loads = options.reload ? weights / *options.reload : Seconds{};
    queue_.schedule(end_of(options.switch_time + loads, "a change of roles", queue_.now()),
                    RoleTaken{there});
  }

  void handle(const RoleTaken& taken) {
    Group& joins = group(taken.instance);
    joins.serves = true;
    joins.instance.open(true);
    roles_->serves(queue_.now());
    joins.pool.changed = true;
  }

  void send_kv(std::uint32_t id) {
    RequestRecord& request = requests_[id];
    const KvTransferCost cost = kv_transfer(experiment_, request.prompt_tokens);
    const Time there = kv_links_.send(request, cost, queue_.now());
    if (experiment_.kv_link->network)
      group(request.instance).instance.sends_kv(at(request.rank), cost.bytes, queue_.now());
    queue_.schedule(there, KvArrives{id});
  }

  void handle(const KvArrives& kv) {
    Pool& prefill = *pools_.front();
    Pool& decode = *pools_.back();
    RequestRecord& request = requests_[kv.request];
    // If the rank has stopped on the way, the decode pool computes the prompt again.
    request.kv_arrived = group(request.instance).instance.sent(kv.request);
    prefill.frontend.left(kv.request, queue_.now());
    if (!request.left()) {
      request.routing = {};
      to_router(pools_.size() - 1, kv.request);
    }
    decode.changed = prefill.changed = true;
  }

  void handle(const BlocksLand& lands) {
    PoolTiers::Site* const site = tiers_[at(lands.tier)];
    if (site->due == queue_.now()) site->due.reset();
    std::vector<KvTier::Landed> landed;
    site->tier->land(queue_.now(), landed);
    for (const KvTier::Landed& transfer : landed) {
      const PoolTiers::Place& place = site->ranks[at(transfer.port)];
      Group& landed_on = group(place.group);
      landed_on.instance.land(place.rank, place.depth, transfer, queue_.now());
      landed_on.pool.changed = true;
    }
  }

  // An event for the next transfer to land in each tier. Transfers that begin may make those before
  // slower, never faster.
  void await_landings() {
    for (std::size_t t = 0; t < tiers_.size(); ++t) {
      PoolTiers::Site& site = *tiers_[t];
      const std::optional<Time> next = site.tier->next();
      if (!next || (site.due && *site.due <= *next)) continue;
      site.due = std::max(*next, queue_.now());
      if (to_seconds(*site.due) > last_end)
        throw ConfigError(
            "a transfer of KV blocks would end beyond the 100 days that can be simulated; give the "
            "tier more bandwidth");
      queue_.schedule(*site.due, BlocksLand{static_cast<int>(t)});
    }
  }

  // Nothing has work or will have.
  bool finished() const { return !arrival_pending_ && !asks_at_ && left_ == requests_.size(); }

  // A request that lost its rank arrives anew at another one, with all its tokens as a prompt.
  void handle(const OutageBegins& begins) {
    if (finished()) return;
    Group& hit = group(begins.instance);
    Pool& pool = hit.pool;
    const Outage& outage = outages_of(hit)[begins.outage];
    const Instance::Stopped stopped = hit.instance.fail(outage, queue_.now());
    hit.busy = true;
    const auto in_pools = std::ranges::find(pools_, &pool, &std::unique_ptr<Pool>::get);
    for (const std::uint32_t id : stopped.requests) to_router(at(in_pools - pools_.begin()), id);
    reject_what_fits_no_more();
    pool.frontend.place(queue_.now());
    if (outage.recovers_after) {
      queue_.schedule(queue_.now() + *outage.recovers_after,
                      OutageEnds{begins.instance, begins.outage});
    }
    stop_engine(hit, stopped.time);
    pool.changed = true;
  }

  void handle(const OutageEnds& ends) {
    Group& back = group(ends.instance);
    back.returning.push_back(ends.outage);
    back.pool.changed = true;
  }

  void handle(const EngineReady& ready) {
    Group& stopped = group(ready.instance);
    if (ready.serial != stopped.serial) return;
    stopped.busy = false;
    stopped.pool.changed = true;
  }

  // A stop that begins while another lasts ends no sooner than that one.
  void stop_engine(Group& group, Seconds time) {
    group.busy = true;
    group.stopped_until = std::max(group.stopped_until, end_of(time, "a stop", queue_.now()));
    queue_.schedule(group.stopped_until, EngineReady{group.instance.number(), ++group.serial});
  }

  // Ranks that are back take up experts before the next step.
  bool take_back(Group& group) {
    if (group.returning.empty()) return false;
    Seconds time{};
    for (const std::size_t outage : group.returning) {
      time += group.instance.recover(outages_of(group)[outage], queue_.now());
    }
    group.returning.clear();
    stop_engine(group, time);
    return true;
  }

  // Requests that wait may find a rank, and groups that have work begin a step.
  void serve_pending() {
    for (const auto& pool : pools_) {
      if (!std::exchange(pool->changed, false)) continue;
      pool->frontend.place(queue_.now());
      for (const auto& group : pool->groups) {
        if (!group->busy) begin_step(*group);
        if (group->leaves && !group->busy && group->instance.idle()) change_role(*group);
      }
    }
  }

  void begin_step(Group& group) {
    if (take_back(group)) return;
    const auto length = group.instance.begin_step(queue_.now());
    if (!length) return;
    group.busy = true;
    queue_.schedule(end_of(*length, "a step", queue_.now()),
                    StepEnds{group.instance.number(), ++group.serial});
  }

  // Tells a group that may hold an agent's blocks, or load them before the agent is back.
  void announce(Group& group, const Announcement& announced, const RequestRecord& left) {
    const int number = group.instance.number();
    if (left.agent() == announced.agent) {
      std::optional<std::size_t> rank;
      if (left.instance == number) rank = at(left.rank);
      if (left.prefill && left.prefill->instance == number) rank = at(left.prefill->rank);
      group.instance.served_agent(announced.agent, rank);
    }
    const auto rank = group.instance.announce(announced, queue_.now());
    if (!rank) return;
    const Seconds lead = *group.pool.deployment.kv_cache.prefetch_lead;
    const Time from = announced.next.at - to_duration(lead);
    queue_.schedule(std::max(queue_.now(), from), PrefetchBegins{number, *rank, announced.agent});
  }

  void handle(const PrefetchBegins& begins) {
    if (finished()) return;
    group(begins.instance).instance.prefetch(begins.rank, begins.agent, queue_.now());
  }

  static Outcome outcome_of(const RequestRecord& request) {
    if (request.abandoned()) return Outcome::abandoned;
    const bool rejected = request.state == RequestRecord::State::rejected;
    return rejected ? Outcome::rejected : Outcome::finished;
  }

  void request_left(std::uint32_t id) {
    source_->completed(id, outcome_of(requests_[id]), queue_.now());
    for (const Announcement& announced : source_->announced()) {
      for (const PoolTiers::Site* site : tiers_) site->tier->announce(announced);
      for (Group* any : remembering_) announce(*any, announced, requests_[id]);
    }
    for (const auto& pool : pools_) pool->measurement.request_left(queue_.now());
    for (RunObserver* observer : observers_) observer->request_left(id, requests_[id]);
    requests_.left(id);
    if (++left_ % finished_between_progress == 0 && progress_) {
      progress_(left_, load_.workload.requests);
    }
  }

  const Experiment& experiment_;
  const Deployment& load_;  // the pool whose load and seed the run has
  const Progress& progress_;
  std::span<RunObserver* const> observers_;
  EventQueue queue_;
  std::unique_ptr<RequestSource> source_;
  Requests requests_;
  RowSource rows_;
  std::vector<std::unique_ptr<Pool>> pools_;  // that prefills first
  std::vector<Group*> groups_;                // by Instance::number()
  std::vector<Group*> remembering_;           // of these, whose KV caches remember agents
  KvLinks kv_links_;                          // of the prefill pool
  std::vector<PoolTiers::Site*> tiers_;
  std::unordered_set<std::uint32_t> at_router_;  // requests that a router takes its time for
  BetweenPools between_;
  std::optional<RoleChanges> roles_;
  Rng patience_rng_, class_rng_;
  std::unordered_map<std::uint32_t, std::uint8_t> class_of_session_;
  Ingress ingress_;  // from clients to the engine
  std::optional<TimedRequest> due_;
  bool arrival_pending_ = false;
  std::optional<Time> asks_at_{};  // when the source is asked next though no request has left
  Time ended_{};
  std::int64_t left_ = 0;
};

// True if corrections depend on requests in flight, of which an open loop names no number.
bool by_unknown_concurrency(const Deployment& e) {
  return e.anchor && e.anchored_at.concurrency == 0 &&
         (e.anchor->tpot.by_concurrency() || e.anchor->ttft.by_concurrency());
}

}  // namespace

Report run(const Experiment& experiment, const Progress& progress,
           std::span<RunObserver* const> observers) {
  if (!by_unknown_concurrency(experiment.decode()))
    return Simulation(experiment, progress, observers).run();
  // A run without them, as if the center's, tells how many there are, by Little's law.
  const Metrics first = Simulation(experiment, {}, {}).run().metrics;
  Experiment corrected = experiment;
  for (Deployment& pool : corrected.pools) {
    ServingLoad load = pool.anchored_at;
    load.concurrency = first.request_throughput * first.e2el.mean / 1e3;
    const Anchor anchor = *pool.anchor;
    pool.correct(anchor, load);
  }
  return Simulation(corrected, progress, observers).run();
}

}  // namespace moesim
