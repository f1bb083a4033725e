// SPDX-License-Identifier: Apache-2.0
#include "traces/sessions/session_source.hpp"

#include <algorithm>
#include <set>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace moesim {

namespace {

using Span = PromptIds::Span;

// A name for tokens that no file names: of a turn of a session, or of what all sessions share.
std::uint64_t fresh_id(std::string_view what, std::uint32_t session = 0, std::int64_t turn = 0) {
  return Rng((std::uint64_t{session} << 32) | static_cast<std::uint64_t>(turn), what).bits();
}

// The spans of the first `tokens` tokens.
std::vector<Span> beginning(const std::vector<Span>& spans, std::int64_t tokens) {
  std::vector<Span> begun;
  std::int64_t covered = 0;
  for (const Span& span : spans) {
    if (covered >= tokens) break;
    covered = std::min(span.end, tokens);
    begun.push_back({covered, span.id});
  }
  return begun;
}

// Which tokens have been computed, had nothing been forgotten.
class EndlessCache {
 public:
  // Number of leading tokens of a prompt that are known. Its last token is always computed.
  std::int32_t known(const Request& request) const {
    std::int64_t known = 0;
    for (const Span& span : request.prompt_ids->spans) {
      const auto found = until_.find(span.id);
      if (found == until_.end()) break;
      known = std::min(span.end, found->second);
      if (known < span.end) break;
    }
    return static_cast<std::int32_t>(std::min<std::int64_t>(known, request.prompt_tokens - 1));
  }
  // The last token that a request generates is never fed back.
  void add(const Request& request) {
    const std::int64_t computed = std::int64_t{request.prompt_tokens} + request.output_tokens - 1;
    for (const Span& span : request.prompt_ids->spans) {
      std::int64_t& until = until_[span.id];
      until = std::max(until, std::min(span.end, computed));
    }
  }

 private:
  std::unordered_map<std::uint64_t, std::int64_t> until_;  // by id: tokens before the end
};

class SessionSource final : public RequestSource {
 public:
  SessionSource(const SessionPlan& plan, const Arrivals& starts, const SourceStart& start)
      : sessions_(plan.sessions),
        rules_(plan.rules),
        seed_(start.seed),
        requests_(start.requests),
        first_sessions_(rules_.start_to > 0 ? starts.in_flight(start.dp_ranks) : 0),
        starts_(starts.start(bounded(start, starts.available()))) {
    look_for_start();
  }

  std::optional<TimedRequest> next() override {
    if (!has_next()) return std::nullopt;
    TimedRequest sent = resumes() ? resume() : begin();
    Request& request = sent.request;
    request.turn->known_tokens = computed_.known(request);
    computed_.add(request);
    return sent;
  }

  Time not_before() const override {
    if (!has_next()) return {};
    return resumes() ? paused_.begin()->until : start_->arrival;
  }

  void completed(std::int64_t request, Outcome outcome, Time now) override {
    const std::uint32_t id = agent_of_[at(request)];
    const std::uint32_t session = agents_.at(id).session;
    announced_.clear();
    go_on(id, outcome, now);
    if (rules_.tree_idle_cap) end_long_idleness(session, now);
  }

  std::span<const Announcement> announced() const override { return announced_; }

  std::span<const SessionLife> sessions() const override { return lives_; }

 private:
  // Continues an agent after a request of it has left.
  void go_on(std::uint32_t id, Outcome outcome, Time now) {
    Agent& agent = agents_.at(id);
    Open& open = open_.at(agent.session);
    agent.in_flight = false;
    --open.in_flight;
    agent.replied = now;
    const bool answered = outcome == Outcome::finished;
    if (answered) ++lives_[agent.session].answered;
    if (agent.is_main() && !answered) cut(open, outcome);
    if (answered && !open.is_cut()) {
      start_children(id, now);
      if (prepare(id)) {
        const Agent& goes_on = agents_.at(id);
        goes_on.awaited == 0 ? pause(id, now) : announce_waiting(id);
        if (goes_on.parent) announce_waiting(*goes_on.parent);
        return;
      }
    }
    leave(id, now);
  }

  struct Pause {
    Time until;
    std::int64_t number;  // of equal times the one that began first ends first
    std::uint32_t agent;
    bool operator<(const Pause& other) const {
      return std::pair(until, number) < std::pair(other.until, other.number);
    }
  };
  // A session as long as any of its agents is.
  struct Open {
    bool is_cut() const { return outcome != Outcome::finished; }

    Rng rng;
    std::uint32_t begun = 0;              // agents
    std::vector<std::uint32_t> agents{};  // alive
    std::int32_t in_flight = 0;           // requests
    std::optional<Time> main_left{};      // when its main agent had its last reply
    Outcome outcome = Outcome::finished;  // of the main agent's last turn
  };
  struct Agent {
    bool is_main() const { return number == 0; }

    std::uint32_t session = 0, number = 0, siblings = 0;  // as of SessionTurn
    std::shared_ptr<const ChildAgent> told{};  // what starts a child; null: the main agent
    std::optional<Rng> draws{};                // of its turns
    std::optional<std::uint32_t> parent{};     // an agent whose next turn waits for this one
    std::int64_t turn = -1, turns = 1;
    std::int64_t first_prompt = 0;
    ChildAgents children{};               // that the turn's reply starts
    std::int32_t awaited = 0;             // agents that its next turn waits for
    std::vector<std::uint32_t> joined{};  // all that it ever waited for with its last reply
    bool in_flight = false;
    bool primer = false;  // its first turn is sent for one token
    Seconds gap{};        // before the next turn
    std::optional<Pause> pause{};
    Time sent{}, replied{};       // the last turn
    Time due{};                   // when it would have been sent if no reply had been late
    Request request{};            // the last turn, or the next one
    std::vector<Span> context{};  // names of its prompt and reply
  };

  static SourceStart bounded(SourceStart start, std::int64_t available) {
    if (available > 0) start.requests = std::min(start.requests, available);
    return start;
  }

  bool all_sent() const { return std::ssize(agent_of_) == requests_; }
  bool has_next() const { return !all_sent() && (start_ || !paused_.empty()); }
  // True if a session that is under way comes before one that starts.
  bool resumes() const {
    return !paused_.empty() && (!start_ || paused_.begin()->until <= start_->arrival);
  }
  void look_for_start() {
    if (!start_) start_ = starts_->next();
  }

  TimedRequest begin() {
    const auto session = static_cast<std::uint32_t>(lives_.size());
    TimedRequest sent = std::move(*start_);
    start_.reset();
    look_for_start();
    lives_.push_back({.begun = sent.arrival});
    Open& open =
        open_.try_emplace(session, Open{.rng = Rng(seed_, fmt::format("session {}", session))})
            .first->second;
    const std::uint32_t id = add_agent(session, 0);
    Agent& main = agents_.at(id);
    main.turn = 0;
    main.turns = sessions_->turns(session, open.rng);
    main.children = sessions_->first_children(session, open.rng);
    main.request = sent.request;
    name_first_prompt(main, sent.request.prompt_ids.get());
    if (session < first_sessions_) skip_turns(id, open.rng);
    TimedRequest first = send(id, sent.arrival);
    if (agents_.at(id).primer) first.request.output_tokens = 1;
    return first;
  }

  // Begins somewhere among the turns, as the rules say.
  void skip_turns(std::uint32_t id, Rng& rng) {
    const double share = rules_.start_from + rng.uniform() * (rules_.start_to - rules_.start_from);
    const std::int64_t turns = agents_.at(id).turns;
    auto first = std::min(turns - 1, static_cast<std::int64_t>(share * double(turns)));
    if (rules_.primes && first > 0) {
      agents_.at(id).primer = true;
      --first;
    }
    while (agents_.at(id).turn < first) {
      const Agent before = agents_.at(id);
      if (prepare(id)) continue;
      agents_.at(id) = before;  // the turns after it are too long
      return;
    }
  }

  std::uint32_t add_agent(std::uint32_t session, std::uint32_t siblings) {
    Open& open = open_.at(session);
    const std::uint32_t id = agents_begun_++;
    open.agents.push_back(id);
    agents_[id] = {.session = session, .number = open.begun++, .siblings = siblings};
    return id;
  }

  void start_children(std::uint32_t id, Time now) {
    const auto children = std::exchange(agents_.at(id).children, nullptr);
    agents_.at(id).joined.clear();
    if (!children) return;
    for (const ChildAgent& told : *children) {
      const std::uint32_t child = add_agent(agents_.at(id).session, agents_.at(id).number + 1);
      Agent& agent = agents_.at(child);
      agent.told = {children, &told};
      agent.draws = told.draws;
      agent.turns = told.turns;
      agent.sent = agent.due = now;
      if (!prepare(child)) {
        leave(child, now);  // no turn of it fits
        continue;
      }
      agent.gap = told.offset;
      pause(child, now);
      if (told.background) continue;
      agent.parent = id;
      ++agents_.at(id).awaited;
      agents_.at(id).joined.push_back(child);
    }
  }

  // Prepares the next turn of an agent; false: it has none.
  bool prepare(std::uint32_t id) {
    Agent& agent = agents_.at(id);
    const std::int64_t context =
        std::int64_t{agent.request.prompt_tokens} + agent.request.output_tokens;
    while (++agent.turn < agent.turns) {
      Rng& rng = agent.draws ? *agent.draws : open_.at(agent.session).rng;
      NextTurn turn = agent.told
                          ? sessions_->turn_of(agent.session, *agent.told, agent.turn, context, rng)
                          : sessions_->turn(agent.session, agent.turn, context, rng);
      if (!fits(turn)) ++lives_[agent.session].too_long;
      if (!fits(turn) && rules_.too_long == SessionRules::TooLong::drop) continue;
      if (!fits(turn) && rules_.too_long == SessionRules::TooLong::compact) {
        turn.prompt_tokens -= turn.kept - std::min(turn.kept, agent.first_prompt);
        turn.kept = std::min(turn.kept, agent.first_prompt);
      }
      if (!fits(turn)) return false;
      if (all_sent()) return true;  // it would have one
      agent.gap = turn.gap;
      agent.children = turn.children;
      agent.request.prompt_tokens = static_cast<std::int32_t>(turn.prompt_tokens);
      agent.request.output_tokens = turn.output_tokens;
      if (agent.context.empty()) {
        name_first_prompt(agent, turn.ids.get());
      } else {
        name_tokens(agent, turn.kept, turn.ids.get());
      }
      return true;
    }
    return false;
  }

  bool fits(const NextTurn& turn) const {
    constexpr std::int64_t longest = 1'000'000'000;  // of any request
    return turn.prompt_tokens + turn.output_tokens <= rules_.max_context.value_or(longest);
  }

  void pause(std::uint32_t id, Time now) {
    if (all_sent()) return announce(id, {});
    const Time until = end_of_pause(agents_.at(id), now);
    paused_.insert(*(agents_.at(id).pause = {until, pauses_++, id}));
    announce(id, {NextRequest::State::due, until});
  }

  // A session with nothing under way but pauses that are too long: all of them end sooner, in
  // order.
  void end_long_idleness(std::uint32_t session, Time now) {
    const auto open = open_.find(session);
    if (open == open_.end() || open->second.in_flight > 0) return;
    std::vector<Pause> pauses;
    for (const std::uint32_t id : open->second.agents) {
      if (const auto& pause = agents_.at(id).pause) pauses.push_back(*pause);
    }
    if (pauses.empty()) return;
    const Time latest = now + to_duration(*rules_.tree_idle_cap);
    const Duration sooner = std::min_element(pauses.begin(), pauses.end())->until - latest;
    if (sooner <= Duration{}) return;
    for (Pause& pause : pauses) {
      paused_.erase(pause);
      pause.until -= sooner;
      paused_.insert(pause);
      Agent& agent = agents_.at(pause.agent);
      agent.pause = pause;
      agent.due -= sooner;
      announce(pause.agent, {NextRequest::State::due, pause.until, 0});
    }
  }

  void announce(std::uint32_t id, const NextRequest& next) {
    const Agent& agent = agents_.at(id);
    announced_.push_back({agent_name(agent.session, agent.number), next});
  }

  // How many turns of those that an agent waits for follow each other at least.
  void announce_waiting(std::uint32_t id) {
    const auto found = agents_.find(id);
    if (found == agents_.end() || found->second.awaited == 0) return;
    std::int64_t turns = 0;
    for (const std::uint32_t child : found->second.joined) {
      if (const auto other = agents_.find(child); other != agents_.end())
        turns = std::max(turns, other->second.turns - other->second.turn);
    }
    announce(id, {NextRequest::State::waits, {}, static_cast<std::int32_t>(turns)});
  }

  Time end_of_pause(Agent& agent, Time now) const {
    using GapFrom = SessionRules::GapFrom;
    const Seconds gap = rules_.idle_cap ? std::min(agent.gap, *rules_.idle_cap) : agent.gap;
    const Time from = rules_.gap_from == GapFrom::end     ? now
                      : rules_.gap_from == GapFrom::start ? agent.sent
                                                          : agent.due;
    if (to_seconds(from) + gap > last_arrival)
      throw ConfigError(
          "workload/sessions: turns arrive for longer than the 60 days that can be simulated; "
          "give an \"idle_cap\" or fewer requests");
    agent.due = from + to_duration(gap);
    return std::max(now, agent.due);
  }

  TimedRequest resume() {
    const Pause ended = *paused_.begin();
    paused_.erase(paused_.begin());
    agents_.at(ended.agent).pause.reset();
    return send(ended.agent, ended.until);
  }

  TimedRequest send(std::uint32_t id, Time at) {
    Agent& agent = agents_.at(id);
    agent.sent = at;
    if (agent.is_main() && agent.turn == 0) agent.due = at;
    agent.in_flight = true;
    ++open_.at(agent.session).in_flight;
    agent.request.turn = {.session = agent.session,
                          .turn = static_cast<std::uint32_t>(agent.turn),
                          .agent = agent.number,
                          .siblings = agent.siblings};
    agent_of_.push_back(id);
    return {at, agent.request};
  }

  // The main agent has failed: those of its session that are not in flight ask for nothing more.
  void cut(Open& open, Outcome outcome) {
    open.outcome = outcome;
    std::erase_if(open.agents, [&](std::uint32_t id) {
      const Agent& agent = agents_.at(id);
      if (agent.in_flight || agent.is_main()) return false;
      announce(id, {});
      if (agent.pause) paused_.erase(*agent.pause);
      agents_.erase(id);
      return true;
    });
  }

  // An agent has nothing more to ask for. The one that waited for it may be the last to do so.
  void leave(std::uint32_t id, Time now) {
    announce(id, {});
    const Agent left = std::move(agents_.extract(id).mapped());
    Open& open = open_.at(left.session);
    if (left.is_main()) open.main_left = now;
    if (const auto parent = left.parent ? agents_.find(*left.parent) : agents_.end();
        parent != agents_.end() && --parent->second.awaited == 0) {
      if (parent->second.is_main()) lives_[left.session].joining += now - parent->second.replied;
      pause(parent->first, now);
    } else if (left.parent) {
      announce_waiting(*left.parent);
    }
    std::erase(open.agents, id);
    if (open.agents.empty()) end(left.session, open, now);
  }

  void end(std::uint32_t session, const Open& open, Time now) {
    SessionLife& life = lives_[session];
    life.ended = now;
    life.state = open.is_cut() ? SessionLife::State::broken : SessionLife::State::finished;
    life.joining += now - *open.main_left;
    const Outcome outcome = open.outcome;
    open_.erase(session);
    starts_->completed(session, outcome, now);
    look_for_start();
  }

  // Names the tokens of a first prompt, which begins with what all sessions share.
  void name_first_prompt(Agent& agent, const PromptIds* ids) {
    agent.first_prompt = agent.request.prompt_tokens;
    const std::int64_t shared = std::min(rules_.shared_prefix, agent.first_prompt);
    if (shared > 0) agent.context.push_back({shared, fresh_id("shared prefix")});
    name_tokens(agent, shared, ids);
  }

  // Names the tokens of the next request. Of the context so many stay. Then come the prompt's own
  // ones, as recorded or like no others, and what will be generated.
  void name_tokens(Agent& agent, std::int64_t kept, const PromptIds* ids) {
    const std::int64_t prompt = agent.request.prompt_tokens;
    const auto fresh = [&](const char* what) {
      return fresh_id(agent.is_main() ? what : fmt::format("{} of agent {}", what, agent.number),
                      agent.session, agent.turn);
    };
    agent.context = beginning(agent.context, kept);
    if (ids != nullptr) {
      for (const Span& span : ids->spans) {
        if (span.end > kept) agent.context.push_back({std::min(span.end, prompt), span.id});
      }
    } else if (prompt > kept) {
      agent.context.push_back({prompt, fresh("prompt")});
    }
    PromptIds named{agent.context};
    agent.context.push_back({prompt + agent.request.output_tokens, fresh("reply")});
    if (rules_.reuse_output) named.spans = agent.context;
    agent.request.prompt_ids = std::make_shared<const PromptIds>(std::move(named));
  }

  std::shared_ptr<const Sessions> sessions_;
  SessionRules rules_;
  std::uint64_t seed_;
  std::int64_t requests_;
  std::int64_t first_sessions_;  // that may begin later than with their first turn
  std::unique_ptr<RequestSource> starts_;
  std::optional<TimedRequest> start_;  // the next session
  std::set<Pause> paused_;
  std::int64_t pauses_ = 0;
  std::unordered_map<std::uint32_t, Open> open_;  // [session]
  std::unordered_map<std::uint32_t, Agent> agents_;
  std::uint32_t agents_begun_ = 0;
  std::vector<Announcement> announced_;
  std::vector<SessionLife> lives_;       // [session]
  std::vector<std::uint32_t> agent_of_;  // [request]
  EndlessCache computed_;
};

}  // namespace

std::unique_ptr<RequestSource> start_sessions(const SessionPlan& plan, const Arrivals& starts,
                                              const SourceStart& start) {
  return std::make_unique<SessionSource>(plan, starts, start);
}

}  // namespace moesim
