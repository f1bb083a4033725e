// SPDX-License-Identifier: Apache-2.0
#include "sim/report/sections/sessions.hpp"

#include <algorithm>
#include <bit>
#include <functional>
#include <map>
#include <utility>

#include <fmt/format.h>

#include "sim/report/objectives.hpp"

namespace moesim {

using enum Better;

Fields<SessionShares> rows_of(const SessionShares*) {
  using S = SessionShares;
  return {{"service", &S::service, "from the first step of a prompt to the last token",
           "share of time"},
          {"queue", &S::queue, "from sending a request to the first step of its prompt",
           "share of time", less},
          {if_any, "join", &S::join, "waiting for agents that the main agent has started",
           "share of time", less},
          {"gap", &S::gap, "between a reply and the next turn", "share of time"}};
}

Fields<TurnSpan> rows_of(const TurnSpan*) {
  using S = TurnSpan;
  return {{"agent", &S::agent, "of its session, in order of their beginning; 0: the main one"},
          {"turn", &S::turn, "of its agent, from 0"},
          {"sent_s", &S::sent_s, "when its client sent the turn", "s"},
          {"begun_s", &S::begun_s, "when the first step of its prompt began", "s"},
          {"first_token_s", &S::first_token_s, "when its first token came", "s"},
          {"last_token_s", &S::last_token_s, "when its last token came", "s"},
          {if_any, "loading_s", &S::loading_s,
           "parked while blocks came from a tier, where there are any", "s"},
          {"prompt_tokens", &S::prompt_tokens, "tokens of its prompt", "tokens"},
          {"cached_tokens", &S::cached_tokens, "of these, cached at first admission", "tokens"},
          {if_any, "loaded_tokens", &S::loaded_tokens,
           "of these, loaded from tiers, where there are any", "tokens"},
          {"output_tokens", &S::output_tokens, "tokens of its reply", "tokens"}};
}

Fields<SlowSession> rows_of(const SlowSession*) {
  using S = SlowSession;
  return {{"session", &S::session, "its number, in order of their beginning"},
          {"begun_s", &S::begun_s, "when its first request was sent", "s"},
          {"ended_s", &S::ended_s, "when its last reply ended", "s"},
          {"turns", &S::turns, "a turn, in order of their requests"}};
}

Fields<HitSpan> rows_of(const HitSpan*) {
  using S = HitSpan;
  return {
      {"begin_s", &S::begin_s, "from here on", "s"},
      {"end_s", &S::end_s, "to here", "s"},
      {"queried_tokens", &S::queried_tokens, "prompt tokens of turns sent in this time", "tokens"},
      {"hit_tokens", &S::hit_tokens, "of these, cached at first admission", "tokens"},
      {if_any, "loaded_tokens", &S::loaded_tokens,
       "of these, loaded from tiers, where there are any", "tokens"}};
}

Fields<SessionStats> rows_of(const SessionStats*) {
  using S = SessionStats;
  const auto seconds = [](double Summary::*value) {
    return [value](const S& sessions) {
      const Summary& summary = sessions.completion;
      return summary.count == 0 ? std::nullopt : std::optional(summary.*value);
    };
  };
  return {{"finished", &S::finished, "sessions of the whole run whose last turn was answered", "",
           more},
          {"broken", &S::broken, "sessions that ended with a turn rejected or abandoned", "", less},
          {"open", &S::open, "sessions that had turns left when the run ended"},
          {if_any, "too_long", &S::too_long,
           "sessions with a turn beyond max_context, where they end, drop it or compact", "", less},
          {"measured", &S::measured,
           "finished sessions that ended after measuring began; the next rows are theirs"},
          {"mean_completion_s", seconds(&Summary::mean),
           "mean time from the first request to the last reply", "s", less},
          {"p50_completion_s", seconds(&Summary::p50), "median of the same", "s", less},
          {"p90_completion_s", seconds(&Summary::p90), "90th percentile of the same", "s", less},
          {"p99_completion_s", seconds(&Summary::p99), "99th percentile of the same", "s", less},
          {"mean_turns", &S::mean_turns, "turns of a session"},
          {"share_of_time", &S::share_of_time, "where the time of sessions went"},
          {"throughput", &S::throughput, "sessions that finish", "1/s", more},
          {"mean_alive", &S::mean_alive, "sessions under way"},
          {"mean_requests_in_flight", &S::mean_requests_in_flight,
           "requests sent and not yet answered"},
          {if_any, "slowest", &S::slowest,
           "a session that took longest, where measurement/slowest_sessions asks"}};
}

Fields<PrefixStats> rows_of(const PrefixStats*) {
  using S = PrefixStats;
  return {{"queried_tokens", &S::queried_tokens, "prompt tokens", "tokens"},
          {"hit_tokens", &S::hit_tokens, "prompt tokens that were cached at first admission",
           "tokens", more},
          {"computed_tokens", &S::computed_tokens, "prompt tokens that were not", "tokens", less},
          {if_any, "loaded_tokens", &S::loaded_tokens,
           "hits that were loaded from tiers, where there are any", "tokens"},
          {"ideal_hit_tokens", &S::ideal_hit_tokens,
           "hits of one endless cache, in whole KV blocks", "tokens"},
          {"hit_rate", &S::hit_rate, "hit / queried", "share of tokens", more},
          {"ideal_hit_rate", &S::ideal_hit_rate, "ideal hit / queried", "share of tokens"}};
}

Fields<TurnGroupStats> rows_of(const TurnGroupStats*) {
  using S = TurnGroupStats;
  const auto ms = [](double Summary::*value) {
    return [value](const S& turns) { return turns.ttft.*value; };
  };
  return {{"requests", &S::requests, "turns that arrived while measured, and finished"},
          {"mean_ttft_ms", ms(&Summary::mean), "mean time to first token", "ms", less},
          {"p50_ttft_ms", ms(&Summary::p50), "median of the same", "ms", less},
          {"p90_ttft_ms", ms(&Summary::p90), "90th percentile of the same", "ms", less},
          {"p99_ttft_ms", ms(&Summary::p99), "99th percentile of the same", "ms", less},
          {"mean_prompt_tokens", &S::mean_prompt_tokens, "tokens of a prompt", "tokens"},
          {"mean_computed_tokens", &S::mean_computed_tokens, "prompt tokens that were not cached",
           "tokens", less},
          {"mean_output_tokens", &S::mean_output_tokens, "tokens of a reply", "tokens"},
          {"prefix", &S::prefix, "where prompt tokens came from"}};
}

Fields<TurnStats> rows_of(const TurnStats*) {
  using S = TurnStats;
  return {{if_any, "all", &S::all, "all turns"},
          {if_any, "first", &S::first, "the first turns of sessions"},
          {if_any, "later", &S::later, "all other turns"},
          {if_any, "after_compaction", &S::after_compaction,
           "turns with a shorter prompt than the turn before"},
          {"by_number/TURNS", &S::by_number, "turns by their number: 1, 2, 3-4, 5-8, .."},
          {if_any, "over_time", &S::over_time,
           "a 24th of the run, where measurement/slowest_sessions asks"}};
}

namespace {

using State = SessionLife::State;

double seconds_between(Time begin, Time end) { return to_seconds(end - begin).count(); }

// Seconds of an interval that lie in another.
double overlap(Time begin, Time end, const Measured& with) {
  return std::max(0.0, seconds_between(std::max(begin, with.begin), std::min(end, with.end)));
}

// Shares of the time of these sessions, by the turns of their main agents.
SessionShares shares_of(std::span<const SessionLife> lives, const std::vector<bool>& counts,
                        const Requests& requests, double seconds) {
  double queue = 0, service = 0, join = 0;
  bool several = false;  // agents
  for (std::size_t session = 0; session < lives.size(); ++session) {
    if (counts[session]) join += to_seconds(lives[session].joining).count();
  }
  for (std::size_t id = 0; id < requests.turns().size(); ++id) {
    if (requests.turns()[id].agent != 0) {
      several = true;
      continue;
    }
    if (!counts[requests.turns()[id].session]) continue;
    const RequestLife& life = requests.lives()[id];
    queue += seconds_between(life.arrival, life.begun);
    service += seconds_between(life.begun, life.last_token);
  }
  return {ratio(service, seconds), ratio(queue, seconds),
          several ? std::optional(ratio(join, seconds)) : std::nullopt,
          ratio(std::max(0.0, seconds - service - queue - join), seconds)};
}

double requests_in_flight(std::span<const RequestLife> lives, const Measured& measured) {
  double seconds = 0;
  for (const RequestLife& life : lives) {
    if (life.state == RequestLife::State::finished)
      seconds += overlap(life.arrival, life.last_token, measured);
  }
  return ratio(seconds, seconds_between(measured.begin, measured.end));
}

// Turns of one kind, as they are counted.
class TurnSums {
 public:
  explicit TurnSums(bool tiers) {
    if (tiers) prefix_.loaded_tokens = 0;
  }
  void add(const RequestLife& life, const TurnLife& turn, std::int64_t ideal, double ttft) {
    ttft_ms_.push_back(ttft);
    outputs_ += life.output_tokens;
    prefix_.queried_tokens += turn.prompt_tokens;
    prefix_.hit_tokens += turn.cached_tokens;
    if (prefix_.loaded_tokens) *prefix_.loaded_tokens += turn.loaded_tokens;
    prefix_.ideal_hit_tokens += ideal;
  }
  bool empty() const { return ttft_ms_.empty(); }

  TurnGroupStats stats() && {
    PrefixStats prefix = prefix_;
    prefix.computed_tokens = prefix.queried_tokens - prefix.hit_tokens;
    const auto queried = double(prefix.queried_tokens), count = double(ttft_ms_.size());
    prefix.hit_rate = ratio(double(prefix.hit_tokens), queried);
    prefix.ideal_hit_rate = ratio(double(prefix.ideal_hit_tokens), queried);
    return {.requests = std::ssize(ttft_ms_),
            .ttft = summarize(std::move(ttft_ms_)),
            .mean_prompt_tokens = ratio(queried, count),
            .mean_computed_tokens = ratio(double(prefix.computed_tokens), count),
            .mean_output_tokens = ratio(double(outputs_), count),
            .prefix = prefix};
  }

 private:
  std::vector<double> ttft_ms_;
  std::int64_t outputs_ = 0;
  PrefixStats prefix_;
};

// Turns 1, 2, 3 to 4, 5 to 8, ..., by the power of two that ends them.
std::size_t bucket_of(std::uint32_t turn) { return at(std::bit_width(turn)); }
std::string bucket_name(std::size_t bucket) {
  const std::uint64_t last = std::uint64_t{1} << bucket;
  return bucket < 2 ? fmt::format("{}", last) : fmt::format("{}-{}", last / 2 + 1, last);
}

double seconds_at(Time at) { return to_seconds(at.time_since_epoch()).count(); }

// Slowest of the sessions that count, turn by turn; of equal ones the first.
std::vector<SlowSession> slowest_of(const Deployment& e, std::span<const SessionLife> lives,
                                    const std::vector<bool>& counts, const Requests& requests) {
  std::vector<std::size_t> order;
  for (std::size_t session = 0; session < lives.size(); ++session) {
    if (counts[session]) order.push_back(session);
  }
  const auto took = [&](std::size_t session) {
    return lives[session].ended - lives[session].begun;
  };
  std::ranges::stable_sort(order, std::greater{}, took);
  const auto most = at(e.slowest_sessions);
  if (order.size() > most) order.resize(most);
  std::vector<SlowSession> slowest;
  std::vector<std::size_t> place(lives.size(), most);
  for (const std::size_t session : order) {
    place[session] = slowest.size();
    slowest.push_back({std::int64_t(session),
                       seconds_at(lives[session].begun),
                       seconds_at(lives[session].ended),
                       {}});
  }
  for (std::size_t id = 0; id < requests.turns().size(); ++id) {
    const TurnLife& turn = requests.turns()[id];
    if (place[turn.session] == most) continue;
    const RequestLife& life = requests.lives()[id];
    if (life.state != RequestLife::State::finished) continue;
    TurnSpan span{.agent = turn.agent,
                  .turn = turn.turn,
                  .sent_s = seconds_at(life.arrival),
                  .begun_s = seconds_at(life.begun),
                  .first_token_s = seconds_at(life.first_token),
                  .last_token_s = seconds_at(life.last_token),
                  .loading_s = {},
                  .prompt_tokens = turn.prompt_tokens,
                  .cached_tokens = turn.cached_tokens,
                  .loaded_tokens = {},
                  .output_tokens = life.output_tokens};
    if (!e.kv_cache.tiers.empty()) {
      span.loading_s = to_seconds(turn.loading).count();
      span.loaded_tokens = turn.loaded_tokens;
    }
    slowest[place[turn.session]].turns.push_back(span);
  }
  return slowest;
}

// Prompt tokens of all turns that finished, by when they were sent.
std::vector<HitSpan> hits_over_time(const EngineSettings& e, const Requests& requests) {
  constexpr std::size_t parts = 24;
  double end = 0;
  for (const RequestLife& life : requests.lives()) end = std::max(end, seconds_at(life.last_token));
  std::vector<HitSpan> spans(parts);
  for (std::size_t i = 0; i < parts; ++i) {
    spans[i].begin_s = end * double(i) / parts;
    spans[i].end_s = end * double(i + 1) / parts;
    if (!e.kv_cache.tiers.empty()) spans[i].loaded_tokens = 0;
  }
  for (std::size_t id = 0; id < requests.turns().size(); ++id) {
    const RequestLife& life = requests.lives()[id];
    if (life.state != RequestLife::State::finished) continue;
    const TurnLife& turn = requests.turns()[id];
    const double at = parts * seconds_at(life.arrival) / end;
    HitSpan& span = spans[std::min(parts - 1, static_cast<std::size_t>(at))];
    span.queried_tokens += turn.prompt_tokens;
    span.hit_tokens += turn.cached_tokens;
    if (span.loaded_tokens) *span.loaded_tokens += turn.loaded_tokens;
  }
  return spans;
}

}  // namespace

SessionStats sessions_of(const Deployment& e, std::span<const SessionLife> lives,
                         const Requests& requests, const Measured& measured, Time now) {
  SessionStats stats;
  std::vector<double> completion;
  std::vector<bool> counts(lives.size());
  double turns = 0, seconds = 0, alive = 0;
  std::int64_t ended_while_measured = 0;
  for (std::size_t session = 0; session < lives.size(); ++session) {
    const SessionLife& life = lives[session];
    const Time ended = life.state == State::open ? now : life.ended;
    alive += overlap(life.begun, ended, measured);
    ++(life.state == State::finished ? stats.finished
       : life.state == State::broken ? stats.broken
                                     : stats.open);
    if (life.too_long > 0) stats.too_long = stats.too_long.value_or(0) + 1;
    if (life.state != State::finished || life.ended < measured.begin) continue;
    counts[session] = true;
    completion.push_back(seconds_between(life.begun, life.ended));
    seconds += completion.back();
    turns += life.answered;
    ended_while_measured += life.ended <= measured.end ? 1 : 0;
  }
  const double window = seconds_between(measured.begin, measured.end);
  stats.measured = std::ssize(completion);
  stats.mean_turns = ratio(turns, double(completion.size()));
  stats.throughput = ratio(double(ended_while_measured), window);
  stats.mean_alive = ratio(alive, window);
  stats.mean_requests_in_flight = requests_in_flight(requests.lives(), measured);
  stats.share_of_time = shares_of(lives, counts, requests, seconds);
  stats.completion = summarize(std::move(completion));
  if (e.slowest_sessions > 0) stats.slowest = slowest_of(e, lives, counts, requests);
  return stats;
}

TurnStats turns_of(const Deployment& e, const Requests& requests, const Measured& measured) {
  const TurnSums none(!e.kv_cache.tiers.empty());
  TurnSums all = none, first = none, later = none, compacted = none;
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::int32_t> prompt_before;  // of an agent
  std::vector<TurnSums> by_number;
  const std::int64_t block = e.kv_layout.block_tokens;
  for (std::size_t id = 0; id < requests.turns().size(); ++id) {
    const RequestLife& life = requests.lives()[id];
    if (life.state != RequestLife::State::finished) continue;
    const TurnLife& turn = requests.turns()[id];
    std::int32_t& before = prompt_before[{turn.session, turn.agent}];
    const bool is_compacted = std::exchange(before, turn.prompt_tokens) > turn.prompt_tokens;
    if (!measured.holds(life)) continue;
    const std::int64_t ideal = turn.known_tokens / block * block;
    const double ttft = latency_of(life, e.anchored_ttft).ttft;
    const std::size_t bucket = bucket_of(turn.turn);
    by_number.resize(std::max(by_number.size(), bucket + 1), none);
    for (TurnSums* sums : {&all, turn.turn == 0 ? &first : &later, &by_number[bucket]})
      sums->add(life, turn, ideal, ttft);
    if (is_compacted) compacted.add(life, turn, ideal, ttft);
  }
  TurnStats stats;
  if (!all.empty()) stats.all = std::move(all).stats();
  if (!first.empty()) stats.first = std::move(first).stats();
  if (!later.empty()) stats.later = std::move(later).stats();
  if (!compacted.empty()) stats.after_compaction = std::move(compacted).stats();
  for (std::size_t bucket = 0; bucket < by_number.size(); ++bucket) {
    if (by_number[bucket].empty()) continue;
    stats.by_number.emplace_back(bucket_name(bucket), std::move(by_number[bucket]).stats());
  }
  if (e.slowest_sessions > 0) stats.over_time = hits_over_time(e, requests);
  return stats;
}

}  // namespace moesim
