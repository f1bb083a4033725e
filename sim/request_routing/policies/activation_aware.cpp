// SPDX-License-Identifier: Apache-2.0
#include "sim/request_routing/request_router.hpp"

namespace moesim {

namespace {

// Requests of one topic share experts, so a group that already reads a request's experts takes it
// for less. Chooses the least time of the group's decode step with the request on it, as far as it
// depends on requests:
//   time to read the KV cache of the group's most loaded rank
//   + weight * time to read the experts that requests of the group use
// The addition of a request to these alone would send all to one group, which reads most experts
// already. Within one group the second term is the same for all ranks. Ties as usual. By
// "experts_from" an application or a tenant tells a request's workload tag ("topic"). With "prompt"
// the prefill pool sends what its last prompt tokens activated.
class ActivationAware final : public OneByOneRouter {
 public:
  ActivationAware(ConfigReader& options, const RouterContext& context)
      : OneByOneRouter(options),
        context_(context),
        weight_(options.number("weight")),
        experts_from_(read_experts_from(options)) {}

  RouterNeeds needs() const override {
    return {.experts_read = true, .experts_from = experts_from_};
  }

 private:
  Choice pick(const PendingRequest& request, std::span<const RankLoad> ranks,
              const RoutingState&) override {
    std::vector<double> seconds;
    for (const auto group : groups_of(ranks)) {
      const std::int64_t barrier = barrier_of(group);
      for (const RankLoad& rank : group) {
        const std::int64_t kv_tokens = std::max(barrier, rank.kv_tokens + request.prompt_tokens);
        const double experts = request.experts_read[at(rank.rank)];
        seconds.push_back(static_cast<double>(kv_tokens) * context_.kv_token_s +
                          weight_ * experts * context_.expert_read_s);
      }
    }
    const std::size_t best = least(seconds, ranks);
    return {best, seconds[best]};
  }

  RouterContext context_;
  double weight_;
  ExpertsFrom experts_from_;
};

}  // namespace

std::span<const Key> activation_aware_router_keys() {
  static constexpr Key keys[] = {
      admission_key,
      {"weight", form::number(non_negative), "1", "weight of reading experts over reading KV"},
      experts_from_key};
  return keys;
}

RequestRouterFactory make_activation_aware_router(ConfigReader& options,
                                                  const RouterContext& context) {
  return copies_of(ActivationAware(options, context));
}

}  // namespace moesim
