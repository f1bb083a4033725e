// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>

#include "hardware/registry.hpp"
#include "traces/requests/request_source.hpp"

namespace moesim {

/// One data-parallel rank as the router sees it.
struct RankLoad {
  std::int64_t kv_tokens = 0;  ///< of running and waiting requests, a just-routed one included
  std::int64_t waiting = 0;
  std::int64_t running = 0;
};

/// Chooses the DP rank of an arriving request, for its whole life.
class RequestRouter {
 public:
  virtual ~RequestRouter() = default;
  /// An index into `ranks`, which is never empty. Ties: lowest load, then lowest id.
  virtual std::size_t pick(const Request&, std::span<const RankLoad> ranks) = 0;
};

/// The table: round_robin, random, jsq, least_kv. The seed names the policy's random stream.
const Registry<RequestRouter, std::uint64_t>& request_routers();

std::unique_ptr<RequestRouter> make_round_robin_router(ConfigReader&, std::uint64_t seed);
std::unique_ptr<RequestRouter> make_random_router(ConfigReader&, std::uint64_t seed);
std::unique_ptr<RequestRouter> make_jsq_router(ConfigReader&, std::uint64_t seed);
std::unique_ptr<RequestRouter> make_least_kv_router(ConfigReader&, std::uint64_t seed);

}  // namespace moesim
