// SPDX-License-Identifier: Apache-2.0
#include "traces/sessions/session_source.hpp"

#include <algorithm>
#include <queue>
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
  // Of a prompt, its leading tokens that are known. Its last token is always computed.
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
        starts_(starts.start(bounded(start, starts.available()))) {
    look_for_start();
  }

  std::optional<TimedRequest> next() override {
    if (!has_next()) return std::nullopt;
    TimedRequest sent = resumes() ? resume() : begin();
    Request& request = sent.request;
    request.turn->known_tokens = computed_.known(request);
    computed_.add(request);
    session_of_.push_back(request.turn->session);
    return sent;
  }

  Time not_before() const override {
    if (!has_next()) return {};
    return resumes() ? paused_.top().until : start_->arrival;
  }

  void completed(std::int64_t request, Outcome outcome, Time now) override {
    const std::uint32_t session = session_of_[static_cast<std::size_t>(request)];
    const bool answered = outcome == Outcome::finished;
    if (answered) ++lives_[session].answered;
    if (answered && pause(session, now)) return;
    using State = SessionLife::State;
    lives_[session].ended = now;
    lives_[session].state = answered ? State::finished : State::broken;
    open_.erase(session);
    starts_->completed(session, outcome, now);
    look_for_start();
  }

  std::span<const SessionLife> sessions() const override { return lives_; }

 private:
  struct Open {
    Rng rng;
    std::int64_t turn = 0, turns = 1;
    std::int32_t first_prompt = 0;
    Time sent{};                  // the last turn
    Request request{};            // the last turn, or the next one
    std::vector<Span> context{};  // names of its prompt and reply
  };
  struct Pause {
    Time until;
    std::int64_t number;  // of equal times the one that began first ends first
    std::uint32_t session;
    bool operator>(const Pause& other) const {
      return std::pair(until, number) > std::pair(other.until, other.number);
    }
  };

  static SourceStart bounded(SourceStart start, std::int64_t available) {
    if (available > 0) start.requests = std::min(start.requests, available);
    return start;
  }

  bool all_sent() const { return std::ssize(session_of_) == requests_; }
  bool has_next() const { return !all_sent() && (start_ || !paused_.empty()); }
  // Whether a session that is under way comes before one that starts.
  bool resumes() const {
    return !paused_.empty() && (!start_ || paused_.top().until <= start_->arrival);
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
    Open& open = open_.try_emplace(session, Open{Rng(seed_, fmt::format("session {}", session))})
                     .first->second;
    open.turns = sessions_->turns(session, open.rng);
    open.first_prompt = sent.request.prompt_tokens;
    open.request = sent.request;
    const std::int64_t shared = std::min<std::int64_t>(rules_.shared_prefix, open.first_prompt);
    if (shared > 0) open.context.push_back({shared, fresh_id("shared prefix")});
    name_tokens(open, session, shared, open.request.prompt_ids.get());
    return send(open, session, sent.arrival);
  }

  TimedRequest resume() {
    const Pause ended = paused_.top();
    paused_.pop();
    return send(open_.at(ended.session), ended.session, ended.until);
  }

  TimedRequest send(Open& open, std::uint32_t session, Time at) {
    open.sent = at;
    open.request.turn = {session, static_cast<std::uint32_t>(open.turn)};
    return {at, open.request};
  }

  // Names the tokens of the next request: of the context so many stay, then come the prompt's own
  // ones, as recorded or like no others, and what will be generated.
  void name_tokens(Open& open, std::uint32_t session, std::int64_t kept, const PromptIds* ids) {
    const std::int64_t prompt = open.request.prompt_tokens;
    open.context = beginning(open.context, kept);
    if (ids != nullptr) {
      for (const Span& span : ids->spans) {
        if (span.end > kept) open.context.push_back({std::min(span.end, prompt), span.id});
      }
    } else if (prompt > kept) {
      open.context.push_back({prompt, fresh_id("prompt", session, open.turn)});
    }
    PromptIds named{open.context};
    open.context.push_back(
        {prompt + open.request.output_tokens, fresh_id("reply", session, open.turn)});
    if (rules_.reuse_output) named.spans = open.context;
    open.request.prompt_ids = std::make_shared<const PromptIds>(std::move(named));
  }

  // Prepares the next turn of a session; false: it has none.
  bool pause(std::uint32_t session, Time now) {
    Open& open = open_.at(session);
    const std::int64_t context =
        std::int64_t{open.request.prompt_tokens} + open.request.output_tokens;
    while (++open.turn < open.turns) {
      NextTurn turn = sessions_->turn(session, open.turn, context, open.rng);
      if (!fits(turn) && rules_.too_long == SessionRules::TooLong::drop) continue;
      if (!fits(turn) && rules_.too_long == SessionRules::TooLong::compact) {
        turn.prompt_tokens -= turn.kept - open.first_prompt;
        turn.kept = open.first_prompt;
      }
      if (!fits(turn)) return false;
      if (all_sent()) return true;  // it would have one
      open.request.prompt_tokens = static_cast<std::int32_t>(turn.prompt_tokens);
      open.request.output_tokens = turn.output_tokens;
      name_tokens(open, session, turn.kept, turn.ids.get());
      paused_.push({end_of_pause(turn.gap, open.sent, now), pauses_++, session});
      return true;
    }
    return false;
  }

  bool fits(const NextTurn& turn) const {
    constexpr std::int64_t longest = 1'000'000'000;  // of any request
    return turn.prompt_tokens + turn.output_tokens <= rules_.max_context.value_or(longest);
  }

  Time end_of_pause(Seconds gap, Time sent, Time now) const {
    if (rules_.idle_cap) gap = std::min(gap, *rules_.idle_cap);
    const Time from = rules_.gaps_from_starts ? sent : now;
    if (to_seconds(from) + gap > last_arrival)
      throw ConfigError(
          "workload/sessions: turns arrive for longer than the 60 days that can be simulated; "
          "give an \"idle_cap\" or fewer requests");
    return std::max(now, from + to_duration(gap));
  }

  std::shared_ptr<const Sessions> sessions_;
  SessionRules rules_;
  std::uint64_t seed_;
  std::int64_t requests_;
  std::unique_ptr<RequestSource> starts_;
  std::optional<TimedRequest> start_;  // the next session
  std::priority_queue<Pause, std::vector<Pause>, std::greater<>> paused_;
  std::int64_t pauses_ = 0;
  std::unordered_map<std::uint32_t, Open> open_;
  std::vector<SessionLife> lives_;         // [session]
  std::vector<std::uint32_t> session_of_;  // [request]
  EndlessCache computed_;
};

}  // namespace

std::unique_ptr<RequestSource> start_sessions(const SessionPlan& plan, const Arrivals& starts,
                                              const SourceStart& start) {
  return std::make_unique<SessionSource>(plan, starts, start);
}

}  // namespace moesim
