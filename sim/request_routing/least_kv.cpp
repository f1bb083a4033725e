// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "sim/request_routing/request_router.hpp"

namespace moesim {

namespace {

// argmin L_g, L_g = KV tokens of running and waiting requests: the one-step minimiser of sum (L_g -
// mean)^2, because adding s tokens to rank g changes it by 2s(L_g - mean) + s^2(1 - 1/G).
// policies.md 3; ties lowest id.
class LeastKv final : public RequestRouter {
 public:
  std::size_t pick(const Request&, std::span<const RankLoad> ranks) override {
    const auto lighter = [](const RankLoad& a, const RankLoad& b) {
      return a.kv_tokens < b.kv_tokens;
    };
    return static_cast<std::size_t>(std::min_element(ranks.begin(), ranks.end(), lighter) -
                                    ranks.begin());
  }
};

}  // namespace

std::unique_ptr<RequestRouter> make_least_kv_router(ConfigReader&, std::uint64_t) {
  return std::make_unique<LeastKv>();
}

}  // namespace moesim
