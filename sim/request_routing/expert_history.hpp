// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "models/step_ops.hpp"
#include "sim/kv_cache/kv_cache.hpp"
#include "sim/placement/placement.hpp"
#include "traces/trace_rows.hpp"

namespace moesim {

/// An expert of a layer, and how likely a token of the request picks it, which is taken to pick its
/// k experts among those of the profile.
struct LikelyExpert {
  std::uint16_t expert = 0;
  float probability = 0;
  friend bool operator==(const LikelyExpert&, const LikelyExpert&) = default;
};

/// Predicts which experts a request will use from those that finished before it [expert-locality].
/// They are the `top` most used per layer of the latest request whose prompt shares at least 4/5 of
/// its blocks with it, as a prefix. Else they are those of all requests of its topic, if one is
/// given and any request of it finished; else of all requests. Equal use: lowest expert.
class ExpertHistory {
 public:
  ExpertHistory(int layers, int experts, int experts_per_token);

  /// A request finished: the first tokens that it generated, and its prompt. Its topic is the
  /// workload tag of the recording that it replays.
  void record(const Binding&, std::int32_t output_tokens, const RowSource&,
              std::vector<BlockHash> prompt);

  /// [layers * top]; empty while none has finished.
  std::span<const LikelyExpert> predict(std::span<const BlockHash> prompt,
                                        std::optional<std::uint32_t> topic = {}) const;
  static constexpr int top = 16;

  /// The experts that tokens first..first+count-1 of a request's phase use most, in the same form.
  /// Equal use: lowest expert.
  std::vector<LikelyExpert> used_by(const Binding&, Phase, std::int64_t first, std::int32_t tokens,
                                    const RowSource&) const;
  /// How often these tokens choose each expert, [layers * experts].
  std::vector<std::int64_t> count(const Binding&, Phase, std::int64_t first, std::int32_t tokens,
                                  const RowSource&) const;

 private:
  struct Profile {
    std::vector<LikelyExpert> experts;  // [layers * top]
    std::vector<BlockHash> prompt;      // the hashes that lead here
  };
  struct Use {
    std::vector<std::int64_t> tokens;  // per expert, [layers, experts]
    std::vector<LikelyExpert> most;    // [layers * top]
  };
  void add(Use&, std::span<const std::int64_t> counts) const;
  std::vector<LikelyExpert> most_used(std::span<const std::int64_t> counts) const;
  void forget_oldest();

  std::size_t layers_, experts_;
  int experts_per_token_;
  Use all_;
  std::map<std::uint32_t, Use> of_topic_;
  std::deque<Profile> recent_;
  std::uint64_t forgotten_ = 0;         // profiles before recent_.front()
  BlockMap<std::uint64_t> profile_of_;  // number of the profile
};

/// The share of these experts ([layers * top]) that have a replica on a DP rank's own GPUs; none
/// where experts have GPUs of their own.
double expert_locality(std::span<const LikelyExpert> experts, const ExpertPlacement&,
                       const ParallelPlan&, int dp_rank);

}  // namespace moesim
