// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "hardware/units.hpp"
#include "sim/kv_cache/kv_cache.hpp"
#include "traces/trace_rows.hpp"

namespace moesim {

/// How a request came to its rank. Zero where the router does not look.
struct RoutingRecord {
  double score = 0;       ///< what the router went by
  double hit_share = 0;   ///< of the prompt, cached on the rank at that moment
  double locality = 0;    ///< of the experts predicted, on the rank's GPUs
  std::int64_t load = 0;  ///< KV tokens on the rank before it came
};

/// Where a request's prompt was computed, when that was in a pool of its own.
struct PrefillRecord {
  std::int32_t instance = -1, rank = -1;
  RoutingRecord routing;
  Duration kv_exposed{};  ///< from the first token until its KV cache had arrived
};

/// What the metrics are made of. Times are those of the simulated clock.
struct RequestLife {
  enum class State : std::uint8_t {
    waiting,
    running,
    finished,
    rejected,   ///< no rank can ever hold it
    timed_out,  ///< its client gave up waiting
    cancelled   ///< its client left for reasons of its own
  };
  Time arrival{};   ///< when its client sent it
  Time received{};  ///< by the engine, tokenized
  Time begun{};     ///< its prompt's first step
  Time first_token{}, last_token{};
  std::int32_t output_tokens = 0;
  State state = State::waiting;
  std::uint8_t of_class = 0;  ///< an index into PoolSpec::classes
};

/// All about one request.
struct RequestRecord : RequestLife {
  bool kv_arrived = false;  ///< from a prefill pool: only its next token is left to compute
  bool abandoned() const { return state == State::timed_out || state == State::cancelled; }
  /// Whether it was given up on: ranks drop what they hold of it.
  bool left() const { return abandoned() || state == State::rejected; }
  bool open() const { return state == State::waiting || state == State::running; }
  std::int32_t prompt_tokens = 0;
  std::int32_t generated = 0;
  std::int32_t instance = -1, rank = -1;  ///< the EP group, and the DP rank in it
  std::int32_t preemptions = 0;
  std::int32_t lost_tokens = 0;                  ///< that were computed when it was preempted last
  std::int32_t cached_tokens = 0;                ///< of the prompt, found in the KV cache
  std::int32_t loaded_tokens = 0;                ///< of these, loaded from tiers below HBM
  OfLowerTiers<std::int32_t> loaded_of_lower{};  ///< of these, those that no nearer tier had
  Duration loading{};                            ///< parked while blocks came from a tier
  Time abandoned_at{};
  Binding binding;
  RoutingRecord routing;
  std::shared_ptr<const PrefillRecord> prefill{};  ///< by another pool; of most there is none
  std::shared_ptr<const PromptIds> prompt_ids{};
  std::optional<SessionTurn> turn{};
  /// The agent whose turn it is, if it is one.
  std::optional<AgentName> agent() const {
    return turn ? std::optional(agent_name(turn->session, turn->agent)) : std::nullopt;
  }
};

/// What is kept of a request that is a turn of a session.
struct TurnLife : SessionTurn {
  std::int32_t prompt_tokens = 0;
  std::int32_t cached_tokens = 0;
  std::int32_t loaded_tokens = 0;
  Duration loading{};
};

/// The requests of a run by id, which counts them in order of arrival. Of one that has finished
/// only its life is kept, so that a long run needs some 52 bytes for each. Records of rejected and
/// abandoned requests stay: a rank may have yet to drop them.
class Requests {
 public:
  /// So many are expected.
  explicit Requests(std::int64_t expected = 0);

  /// The next one. As with a vector, references to records do not outlast this.
  RequestRecord& add();
  std::int64_t size() const { return std::ssize(places_); }
  /// Whether it has not finished yet. Only then may its record be asked for.
  bool has(std::uint32_t id) const { return places_[id] != gone; }
  RequestRecord& operator[](std::uint32_t id) { return records_[places_[id]]; }
  const RequestRecord& operator[](std::uint32_t id) const { return records_[places_[id]]; }

  /// A request has finished, was rejected or abandoned; called once for each.
  void left(std::uint32_t id);
  /// [id], of those that have left.
  std::span<const RequestLife> lives() const { return lives_; }
  /// [id], of those that have left; empty where requests are of no session.
  std::span<const TurnLife> turns() const { return turns_; }
  /// By those that have left.
  std::int64_t generated_tokens() const { return generated_tokens_; }

 private:
  static constexpr std::uint32_t gone = std::numeric_limits<std::uint32_t>::max();

  std::vector<std::uint32_t> places_;  // [id], in records_
  std::vector<RequestLife> lives_;     // [id]
  std::vector<TurnLife> turns_;        // [id], of sessions
  std::vector<RequestRecord> records_;
  std::vector<std::uint32_t> free_;  // places that the next ones take
  std::int64_t generated_tokens_ = 0;
};

}  // namespace moesim
