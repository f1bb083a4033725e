// SPDX-License-Identifier: Apache-2.0
#include "traces/requests/request_source.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "hardware/rng.hpp"
#include "traces/requests/arrivals.hpp"
#include "traces/requests/lengths.hpp"
#include "traces/sessions/session_source.hpp"

namespace moesim {

namespace {

constexpr Range request_count{1, 1e9};

// When sessions start: as recorded, unless the experiment says otherwise.
std::shared_ptr<const Arrivals> read_starts(ConfigReader& workload, const Sessions& sessions) {
  if (workload.optional("arrivals")) return request_arrivals().make(workload.child("arrivals"));
  std::shared_ptr<const Arrivals> recorded = sessions.recorded_starts();
  if (!recorded)
    workload.node().fail(
        "\"arrivals\" is missing, and the sessions do not say when they start; give e.g. "
        R"({"type": "closed_loop", "concurrency": 8})");
  return recorded;
}

RequestWorkload read_session_workload(ConfigReader& workload) {
  if (workload.optional("lengths"))
    workload.child("lengths").fail("sessions have lengths of their own; leave one of them out");
  RequestWorkload read;
  read.sessions = std::make_shared<const SessionPlan>(read_sessions(workload.child("sessions")));
  const Sessions& sessions = *read.sessions->sessions;
  read.arrivals = read_starts(workload, sessions);
  if (read.sessions->rules.start_to > 0 && !read.arrivals->closed())
    workload.child("sessions")
        .child("start_at")
        .fail(R"(sessions that arrive begin with their first turn; give a "closed_loop")");
  read.lengths = read.sessions->sessions;
  const std::int64_t recorded = sessions.recorded_turns();
  read.requests = recorded > 0 ? workload.integer_or("requests", recorded, request_count)
                               : workload.integer("requests", request_count);
  if (!workload.has("arrivals") && read.requests > recorded)
    workload.child("requests")
        .fail(
            "{} requests of recorded sessions of {}; give \"arrivals\" to play these "
            "again",
            read.requests, recorded);
  read.patience = read_patience(workload);
  return read;
}

}  // namespace

PromptIds ids_of_blocks(std::int64_t prompt_tokens, std::int32_t block_tokens,
                        std::span<const std::uint64_t> ids) {
  PromptIds of_prompt;
  for (const std::uint64_t id : ids) {
    const std::int64_t end = of_prompt.tokens() + block_tokens;
    of_prompt.spans.push_back({std::min(end, prompt_tokens), id});
  }
  return of_prompt;
}

std::shared_ptr<const PromptIds> ids_of_others(PromptIds ids, std::uint64_t round) {
  for (PromptIds::Span& span : ids.spans)
    span.id = Rng(span.id, fmt::format("round {}", round)).bits();
  return std::make_shared<const PromptIds>(std::move(ids));
}

RequestWorkload read_workload(ConfigReader& workload) {
  if (workload.optional("sessions")) return read_session_workload(workload);
  RequestWorkload read;
  read.arrivals = request_arrivals().make(workload.child("arrivals"));
  const bool own_lengths = read.arrivals->own_lengths() != nullptr;
  read.lengths = own_lengths && !workload.has("lengths")
                     ? read.arrivals->own_lengths()
                     : request_lengths().make(workload.child("lengths"));
  const std::int64_t available = read.arrivals->available();
  read.requests = available > 0 ? workload.integer_or("requests", available, request_count)
                                : workload.integer("requests", request_count);
  if (available > 0 && read.requests > available)
    workload.child("requests").fail("{} requests of a trace of {}", read.requests, available);
  read.patience = read_patience(workload);
  return read;
}

std::int64_t RequestWorkload::longest() const {
  const Request request = lengths->longest();
  return std::int64_t{request.prompt_tokens} + request.output_tokens;
}

bool RequestWorkload::shares_prefixes() const { return sessions != nullptr || lengths->has_ids(); }

std::unique_ptr<RequestSource> RequestWorkload::make(std::uint64_t seed, int dp_ranks) const {
  const SourceStart start{lengths, requests, seed, dp_ranks};
  if (sessions) return start_sessions(*sessions, *arrivals, start);
  return arrivals->start(start);
}

}  // namespace moesim
