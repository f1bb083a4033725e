// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "models/step_ops.hpp"
#include "sim/kv_cache/kv_cache.hpp"
#include "sim/placement/placement.hpp"
#include "traces/trace_rows.hpp"

namespace moesim {

/// Predicts which experts a request will use from those that finished before it [expert-locality]:
/// the `top` most used per layer of the latest request whose prompt shares at least 4/5 of its
/// blocks with it, as a prefix; else of all requests of its topic, if one is given and any of them
/// finished; else of all requests. Equal use: lowest expert.
class ExpertHistory {
 public:
  ExpertHistory(int layers, int experts);

  /// A request finished: the first tokens that it generated, and its prompt. Its topic is the
  /// workload tag of the recording that it replays.
  void record(const Binding&, std::int32_t output_tokens, const RowSource&,
              std::vector<BlockHash> prompt);

  /// [layers * top]; empty while none has finished.
  std::span<const std::uint16_t> predict(std::span<const BlockHash> prompt,
                                         std::optional<std::uint32_t> topic = {}) const;
  static constexpr int top = 16;

 private:
  struct Profile {
    std::vector<std::uint16_t> experts;  // [layers * top]
    std::vector<BlockHash> prompt;       // the hashes that lead here
  };
  struct Use {
    std::vector<std::int64_t> tokens;  // per expert, [layers, experts]
    std::vector<std::uint16_t> most;   // [layers * top]
  };
  void add(Use&, std::span<const std::int64_t> counts) const;
  std::vector<std::uint16_t> most_used(std::span<const std::int64_t> counts) const;
  void forget_oldest();

  std::size_t layers_, experts_;
  Use all_;
  std::map<std::uint32_t, Use> of_topic_;
  std::deque<Profile> recent_;
  std::uint64_t forgotten_ = 0;                              // profiles before recent_.front()
  std::unordered_map<BlockHash, std::uint64_t> profile_of_;  // number of the profile
};

/// The share of these experts ([layers * top]) that have a replica on a DP rank's own GPUs.
double expert_locality(std::span<const std::uint16_t> experts, const ExpertPlacement&,
                       const ParallelPlan&, int dp_rank);

}  // namespace moesim
