// SPDX-License-Identifier: Apache-2.0
#include "sim/request_routing/request_router.hpp"

namespace moesim {

namespace {

class RoundRobin final : public RequestRouter {
 public:
  std::size_t pick(const Request&, std::span<const RankLoad> ranks) override {
    return next_++ % ranks.size();
  }

 private:
  std::size_t next_ = 0;
};

}  // namespace

std::unique_ptr<RequestRouter> make_round_robin_router(ConfigReader&, std::uint64_t) {
  return std::make_unique<RoundRobin>();
}

}  // namespace moesim
