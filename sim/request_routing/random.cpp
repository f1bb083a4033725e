// SPDX-License-Identifier: Apache-2.0
#include "hardware/rng.hpp"
#include "sim/request_routing/request_router.hpp"

namespace moesim {

namespace {

class Random final : public RequestRouter {
 public:
  explicit Random(std::uint64_t seed) : rng_(seed, "request_routing/random") {}

  std::size_t pick(const Request&, std::span<const RankLoad> ranks) override {
    return static_cast<std::size_t>(rng_.below(ranks.size()));
  }

 private:
  Rng rng_;
};

}  // namespace

std::unique_ptr<RequestRouter> make_random_router(ConfigReader&, std::uint64_t seed) {
  return std::make_unique<Random>(seed);
}

}  // namespace moesim
