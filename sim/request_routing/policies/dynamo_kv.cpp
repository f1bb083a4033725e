// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <numeric>
#include <unordered_map>

#include "hardware/rng.hpp"
#include "sim/request_routing/request_router.hpp"
#include "sim/request_routing/scores.hpp"

namespace moesim {

namespace {

// Prompt blocks of the requests that a rank has, each counted once however many requests share it.
// A rank's own count has the blocks of every waiting request, as nothing is shared before it runs.
class LiveBlocks {
 public:
  /// A request with these blocks has come.
  void add(std::uint32_t request, std::span<const BlockHash> prompt) {
    for (const BlockHash hash : prompt) ++live_[hash];
    prompts_[request] = {{prompt.begin(), prompt.end()}, looks_};
  }
  /// Forgets requests that the rank has no more.
  void keep(std::span<const RankRequest> requests) {
    ++looks_;
    for (const RankRequest& request : requests) {
      if (const auto known = prompts_.find(request.id); known != prompts_.end())
        known->second.seen = looks_;
    }
    std::erase_if(prompts_, [&](const auto& prompt) {
      if (prompt.second.seen == looks_) return false;
      for (const BlockHash hash : prompt.second.blocks) {
        if (const auto block = live_.find(hash); --block->second == 0) live_.erase(block);
      }
      return true;
    });
  }
  /// Blocks of waiting requests that running ones have too, or that several wait for.
  std::int64_t counted_twice(std::span<const RankRequest> waiting) const {
    std::unordered_map<BlockHash, std::int64_t> wanted;
    for (const RankRequest& request : waiting) {
      const auto prompt = prompts_.find(request.id);
      if (prompt == prompts_.end()) continue;
      for (const BlockHash hash : prompt->second.blocks) ++wanted[hash];
    }
    std::int64_t twice = 0;
    for (const auto& [hash, times] : wanted) twice += times - (live_.at(hash) > times ? 0 : 1);
    return twice;
  }
  /// How many of a prompt's first blocks are there or on their way.
  std::int64_t shared(std::span<const BlockHash> prompt) const {
    const auto end = std::ranges::find_if(prompt, [&](BlockHash h) { return !live_.contains(h); });
    return end - prompt.begin();
  }

 private:
  struct Prompt {
    std::vector<BlockHash> blocks;
    std::int64_t seen = 0;
  };
  std::unordered_map<BlockHash, std::int64_t> live_;  // requests that have it
  std::unordered_map<std::uint32_t, Prompt> prompts_;
  std::int64_t looks_ = 0;
};

// KV router of NVIDIA [Dynamo]: overlap_weight * prefill blocks + decode blocks, lower is
// better. Prefill blocks: what the rank would have to prefill, its queue and the uncached part
// of this prompt. Blocks that a tier can load count `tier_credit` of cached ones there, and
// those that only a lower tier can load `lower_tier_credit`. Decode blocks: those in use or
// promised, with this request on it; a prompt block of several requests counts once. Temperature 0
// takes the least (ties at random, dynamo#9516), above 0 draws by softmax.
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
        live_(at(context.ranks)),
        rng_(context.seed, "request_routing/dynamo_kv") {}

  Choice pick(const PendingRequest& request, std::span<const RankLoad> ranks,
              const RoutingState&) override {
    logits_.clear();
    for (const RankLoad& rank : ranks) {
      live_[at(rank.rank)].keep(rank.requests);
      logits_.push_back(logit(request, rank));
    }
    const std::size_t chosen = temperature_ > 0 ? draw() : lowest();
    live_[at(ranks[chosen].rank)].add(request.id, request.hashes);
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
    const LiveBlocks& live = live_[at(rank.rank)];
    const auto running = std::min(at(rank.running), rank.requests.size());
    const std::int64_t blocks = rank.blocks - live.counted_twice(rank.requests.subspan(running)) +
                                request.blocks - std::max(hit.in_use, live.shared(request.hashes));
    return overlap_weight_ * static_cast<double>(prefill) / block_tokens_ +
           static_cast<double>(blocks) - overlap_weight_ * credit;
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
  std::vector<LiveBlocks> live_;  // [rank]
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
