// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "hardware/registry.hpp"
#include "hardware/units.hpp"
#include "sim/kv_cache/kv_cache.hpp"

namespace moesim {

/// A request on a rank, waiting or running.
struct RankRequest {
  std::uint32_t id = 0;
  std::int32_t prompt_tokens = 0;
  std::int32_t generated = 0;
  /// The true length of its output: only predictors of a stated error may read it.
  std::int32_t output_tokens = 0;
  /// Prompt tokens still to compute, as far as is known.
  std::int32_t prefill_left = 0;
};

/// A data-parallel rank as routers see it.
struct RankLoad {
  /// KV tokens of running and waiting requests, including one that was just routed.
  std::int64_t kv_tokens = 0;
  std::int64_t waiting = 0;
  std::int64_t running = 0;
  std::int32_t rank = 0;
  /// Its EP group: only ranks of one group wait for each other at barriers.
  std::int32_t group = 0;
  /// Sequences that it can take before max_num_seqs are on it.
  std::int64_t seats = 0;
  /// KV blocks in use, and blocks that waiting requests will need.
  std::int64_t blocks = 0;
  /// All KV blocks of the rank.
  std::int64_t total_blocks = 0;
  /// `waiting` and `running` as last published: RouterNeeds::statistics_interval.
  std::int64_t published_waiting = 0, published_running = 0;
  /// The requests on it; empty without RouterNeeds::requests.
  std::span<const RankRequest> requests{};
  std::int64_t free_blocks() const { return total_blocks - blocks; }
};

/// A request that waits for a rank.
struct PendingRequest {
  std::uint32_t id = 0;
  std::int32_t prompt_tokens = 0;
  /// The true length of its output: only predictors of a stated error may read it.
  std::int32_t output_tokens = 0;
  /// KV blocks of its prompt.
  std::int64_t blocks = 0;
  /// Names those that RouterNeeds::kin counts together; nothing for a request by itself.
  std::optional<std::uint64_t> kin{};
  /// For how long none of its kin has been on a rank; zero before any was.
  Duration kin_idle{};
  /// The hashes of its prompt's whole blocks; empty without RouterNeeds::prefixes.
  std::span<const BlockHash> hashes{};
  /// Hits of its prompt in the cache of each rank, [rank]; empty without RouterNeeds::prefixes.
  std::span<const CacheHit> hits{};
  /// The share of the experts that it will need which the rank's own GPUs host, [rank]; empty
  /// without RouterNeeds::locality.
  std::span<const double> locality{};
  /// How many experts the rank's EP group is expected to read in a decode step with it, over all
  /// layers, [rank]; empty without RouterNeeds::experts_read.
  std::span<const double> experts_read{};
  /// How many experts of `experts_read` the group does not read without it, [rank].
  std::span<const double> experts_added{};
  /// How often the tokens of its whole prompt choose each expert, [layers * experts]; empty without
  /// RouterNeeds::prefill_counts.
  std::span<const std::int64_t> prefill_counts{};
};

/// State from which a router decides.
struct RoutingState {
  Time now{};
  std::span<const PendingRequest> pending;   ///< in order of arrival, never empty
  std::span<const RankLoad> ranks;           ///< ascending, group by group, never empty
  std::int64_t publication = 0;              ///< counts the published statistics
  std::span<const std::int32_t> finished{};  ///< output tokens of finished requests, in that order
};

/// Gives a pending request to a rank, for its whole life.
struct Assignment {
  std::size_t pending = 0;  ///< index into RoutingState::pending
  std::int32_t rank = 0;
  double score = 0;  ///< what the router went by, for the record
};

/// Sources of a router's knowledge of a request's experts (ExpertHistory). `prompt` is what a front
/// end of a decode pool can be told with the KV cache. `first_tokens` is unknown before they are
/// generated: it tells what knowing them would be worth.
enum class ExpertsFrom { history, topic, prompt, first_tokens };

/// Requests that a router sees as related: all of a session, or those of agents that one agent of
/// the session has started. Those of its main agent are then apart.
enum class Kin { none, session, siblings };

/// Needs of a router apart from loads. What it does not need is not gathered.
struct RouterNeeds {
  std::size_t window = 1;  ///< pending requests that it chooses among
  bool requests = false;
  Kin kin = Kin::none;
  bool prefixes = false;
  bool locality = false;
  bool experts_read = false;
  bool prefill_counts = false;
  ExpertsFrom experts_from = ExpertsFrom::history;
  /// How often ranks publish their counts; without it they are as of now.
  std::optional<Duration> statistics_interval{};
};

/// Chooses DP ranks for requests. Asked when requests arrive and when a step has ended while some
/// are pending. Asked again with what is then left and loaded until it assigns none.
class RequestRouter {
 public:
  virtual ~RequestRouter() = default;
  /// Appends to `assignments`; a request without one waits. Unless a policy says otherwise ties go
  /// to the lowest load (KV tokens), then to the lowest rank. An idle group must be given work.
  virtual void route(const RoutingState&, std::vector<Assignment>& assignments) = 0;
  virtual RouterNeeds needs() const { return {}; }
};

/// Context that routers are built with.
struct RouterContext {
  std::uint64_t seed = 1;  ///< names their random streams
  int ranks = 1;
  /// EP groups of equally many ranks.
  int groups = 1;
  /// Routed experts of a layer.
  int experts = 1;
  /// Tokens of a KV block.
  int block_tokens = 16;
  /// Seconds to compute a prompt token on one rank.
  double prefill_token_s = 0;
  /// Seconds to send a token to its experts and back in every layer where no expert is local.
  double remote_token_s = 0;
  /// Seconds to read one token's KV cache in a step.
  double kv_token_s = 0;
  /// Seconds that one more active expert of a layer adds to a step.
  double expert_read_s = 0;
  int ranks_of_group() const { return ranks / groups; }
};

/// Options that several routers have.
enum class Admission { rank, central };
inline constexpr std::array<std::string_view, 2> admission_names{"rank", "central"};
inline constexpr Key admission_key{"admission", form::choice(admission_names), "rank",
                                   "where a request waits for a seat: on its rank, or unassigned"};
inline constexpr std::array<std::string_view, 4> experts_from_names{"history", "topic", "prompt",
                                                                    "first_tokens"};
inline constexpr Key experts_from_key{
    "experts_from", form::choice(experts_from_names), "history",
    "what a request's experts are predicted from; first_tokens: unknowable"};
/// The value of `experts_from_key`.
ExpertsFrom read_experts_from(ConfigReader& options);

/// Routers that place one request after the other, first come, first served. Reads the option
/// "admission": "rank" (default) sends a request to a rank at once, there to wait; "central" keeps
/// it until a rank has a seat and blocks for its prompt, and chooses among such ranks. Prompts that
/// no rank could ever hold do not come here.
class OneByOneRouter : public RequestRouter {
 public:
  explicit OneByOneRouter(ConfigReader& options);
  void route(const RoutingState&, std::vector<Assignment>&) final;

 protected:
  struct Choice {
    std::size_t index = 0;  ///< into the ranks offered
    double score = 0;
  };
  /// `ranks` are those offered, never none.
  virtual Choice pick(const PendingRequest&, std::span<const RankLoad> ranks,
                      const RoutingState&) = 0;

 private:
  bool central_;
  std::vector<RankLoad> offered_;
};

/// The index of the smallest (score, KV tokens, place).
std::size_t least(std::span<const double> scores, std::span<const RankLoad> ranks);

/// The ranks of the same EP group as the one at `place`.
std::span<const RankLoad> group_of(std::span<const RankLoad> ranks, std::size_t place);
/// The ranks group by group.
std::vector<std::span<const RankLoad>> groups_of(std::span<const RankLoad> ranks);

/// The KV tokens of the most loaded rank, for which the others of its EP group wait.
std::int64_t barrier_of(std::span<const RankLoad> group);
/// The least barrier_of() of any group.
std::int64_t least_barrier(std::span<const RankLoad> ranks);

/// Makes routers alike, one for each run: they hold what they have seen of it.
using RequestRouterFactory = Factory<RequestRouter>;

/// The table: random, round_robin, power_of_two, jsq, vllm, least_kv, br0, brh, bfio, overflow,
/// fast_phi, cache_aware, dynamo_kv, joint, activation_aware, affinity,
/// eldr, sticky.
const Registry<RequestRouterFactory, const RouterContext&>& request_routers();

}  // namespace moesim
