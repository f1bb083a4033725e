// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "sim/request_routing/request_router.hpp"

namespace moesim {

namespace {

// Join the shortest queue: argmin of waiting + running; ties fewest KV tokens, then lowest id.
class ShortestQueue final : public RequestRouter {
 public:
  std::size_t pick(const Request&, std::span<const RankLoad> ranks) override {
    const auto shorter = [](const RankLoad& a, const RankLoad& b) {
      return std::pair(a.waiting + a.running, a.kv_tokens) <
             std::pair(b.waiting + b.running, b.kv_tokens);
    };
    return static_cast<std::size_t>(std::min_element(ranks.begin(), ranks.end(), shorter) -
                                    ranks.begin());
  }
};

}  // namespace

std::unique_ptr<RequestRouter> make_jsq_router(ConfigReader&, std::uint64_t) {
  return std::make_unique<ShortestQueue>();
}

}  // namespace moesim
