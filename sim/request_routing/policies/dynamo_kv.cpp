// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <numeric>

#include "hardware/rng.hpp"
#include "sim/request_routing/request_router.hpp"
#include "sim/request_routing/scores.hpp"

namespace moesim {

namespace {

// KV router of NVIDIA [Dynamo]: overlap_weight * prefill blocks + decode blocks, lower is
// better. Prefill blocks: what the rank would have to prefill, its queue and the uncached part
// of this prompt. Blocks that a tier can load count `tier_credit` of cached ones there, and
// those that only a lower tier can load `lower_tier_credit`. Decode blocks: those in use or
// promised, with this request on it. Temperature 0 takes the least (ties at random, dynamo#9516),
// above 0 draws by softmax.
class DynamoKv final : public OneByOneRouter {
 public:
  DynamoKv(ConfigReader& options, const RouterContext& context)
      : OneByOneRouter(options),
        overlap_weight_(options.number("overlap_weight")),
        temperature_(options.number("temperature")),
        tier_credit_(options.number("tier_credit")),
        lower_tier_credit_(
            options.optional("lower_tier_credit") ? options.number("lower_tier_credit") : 0.25),
        block_tokens_(context.block_tokens),
        rng_(context.seed, "request_routing/dynamo_kv") {}

  Choice pick(const PendingRequest& request, std::span<const RankLoad> ranks,
              const RoutingState&) override {
    logits_.clear();
    for (const RankLoad& rank : ranks) logits_.push_back(logit(request, rank));
    const std::size_t chosen = temperature_ > 0 ? draw() : lowest();
    return {chosen, logits_[chosen]};
  }
  RouterNeeds needs() const override { return {.requests = true, .prefixes = true}; }

 private:
  double logit(const PendingRequest& request, const RankLoad& rank) const {
    const CacheHit hit = request.hits[at(rank.rank)];
    std::int64_t prefill = request.prompt_tokens - hit.blocks * block_tokens_;
    for (const RankRequest& r : rank.requests) prefill += r.prefill_left;
    const std::int64_t lower =
        std::accumulate(hit.of_lower.begin(), hit.of_lower.end(), std::int64_t{0});
    const double credit = tier_credit_ * static_cast<double>(hit.loads - lower) +
                          lower_tier_credit_ * static_cast<double>(lower);
    return overlap_weight_ * static_cast<double>(prefill) / block_tokens_ +
           static_cast<double>(rank.blocks + request.blocks - hit.in_use) -
           overlap_weight_ * credit;
  }
  std::size_t lowest() {
    const double least = *std::ranges::min_element(logits_);
    std::uint64_t place =
        rng_.below(static_cast<std::uint64_t>(std::ranges::count(logits_, least)));
    std::size_t chosen = 0;
    while (logits_[chosen] != least || place-- > 0) ++chosen;
    return chosen;
  }
  std::size_t draw() {
    const std::vector<double> p = dynamo_probabilities(logits_, temperature_);
    double left = rng_.uniform();
    std::size_t chosen = 0;
    while (chosen + 1 < p.size() && left >= p[chosen]) left -= p[chosen++];
    return chosen;
  }

  double overlap_weight_, temperature_, tier_credit_, lower_tier_credit_;
  int block_tokens_;
  Rng rng_;
  std::vector<double> logits_;
};

}  // namespace

std::span<const Key> dynamo_kv_router_keys() {
  static constexpr Key keys[] = {admission_key,
                                 {"overlap_weight", form::number(non_negative), "1",
                                  "weight of prefill blocks over decode blocks"},
                                 {"temperature", form::number(non_negative), "0",
                                  "temperature of the draw by softmax; 0: the least cost"},
                                 {"tier_credit", form::number(0, 1), "0.75",
                                  "of a block in a tier below HBM, where one in HBM counts 1"},
                                 {"lower_tier_credit", form::number(0, 1), unset("0.25"),
                                  "the same of a block that only a tier below the first has"}};
  return keys;
}

RequestRouterFactory make_dynamo_kv_router(ConfigReader& options, const RouterContext& context) {
  return copies_of(DynamoKv(options, context));
}

}  // namespace moesim
