// SPDX-License-Identifier: Apache-2.0
#include "sim/kv_tiers/block_list.hpp"
#include "sim/request_routing/request_router.hpp"
#include "sim/request_routing/scores.hpp"

namespace moesim {

namespace {

// Memory of a router for the prompts it sent to one worker: blocks by hash, the least recently sent
// forgotten first.
class SentPrefixes {
 public:
  explicit SentPrefixes(std::size_t most) : most_(most) {}
  std::size_t blocks() const { return blocks_.size(); }
  std::size_t match(std::span<const BlockHash> prompt) const {
    std::size_t length = 0;
    while (length < prompt.size() && blocks_.contains(prompt[length])) ++length;
    return length;
  }
  void add(std::span<const BlockHash> prompt) {
    // The far end first, so that it is also forgotten first.
    for (std::size_t b = prompt.size(); b-- > 0;) {
      if (blocks_.contains(prompt[b])) {
        blocks_.to_the_end(prompt[b]);
      } else {
        blocks_.append(prompt[b]);
      }
    }
    while (blocks_.size() > most_) blocks_.erase(blocks_.oldest());
  }

 private:
  std::size_t most_;
  BlockList blocks_;  // least recent first
};

// Router of [SGLang]. It knows no worker's cache, only what it sent where. The match is that of its
// own tree, which may be ahead of the cache or behind it.
class CacheAware final : public OneByOneRouter {
 public:
  CacheAware(ConfigReader& options, const RouterContext& context)
      : OneByOneRouter(options), block_tokens_(context.block_tokens) {
    limits_.cache_threshold = options.number("cache_threshold");
    limits_.absolute = options.integer("balance_abs_threshold");
    limits_.relative = options.number("balance_rel_threshold");
    limits_.miss_by_load = options.flag("miss_by_load");
    const auto tokens = options.integer("max_tree_tokens");
    sent_.assign(at(context.ranks), SentPrefixes(at(tokens / context.block_tokens)));
  }

  Choice pick(const PendingRequest& request, std::span<const RankLoad> ranks,
              const RoutingState&) override {
    std::vector<std::int64_t> requests, tree;
    std::vector<double> match;
    for (const RankLoad& rank : ranks) {
      const SentPrefixes& sent = sent_[at(rank.rank)];
      requests.push_back(rank.waiting + rank.running);
      tree.push_back(static_cast<std::int64_t>(sent.blocks()));
      match.push_back(static_cast<double>(sent.match(request.hashes)) * block_tokens_ /
                      request.prompt_tokens);
    }
    const std::size_t chosen = cache_aware_choice(limits_, requests, match, tree);
    sent_[at(ranks[chosen].rank)].add(request.hashes);
    return {chosen, match[chosen]};
  }
  RouterNeeds needs() const override { return {.prefixes = true}; }

 private:
  CacheAwareLimits limits_;
  int block_tokens_;
  std::vector<SentPrefixes> sent_;  // [rank]
};

}  // namespace

std::span<const Key> cache_aware_router_keys() {
  static constexpr Key keys[] = {
      admission_key,
      {"cache_threshold", form::number(0, 1), "0.3",
       "share of the prompt above which a match decides"},
      {"balance_abs_threshold", form::integer(non_negative), "64", "requests, and ..."},
      {"balance_rel_threshold", form::number(1, 1e9), "1.5",
       "... factor that make ranks unbalanced"},
      {"miss_by_load", form::flag, "false",
       "a prompt without a match goes to the shortest queue (SGLang's today)"},
      {"max_tree_tokens", form::integer(positive_count), "16777216", "remembered per rank"}};
  return keys;
}

RequestRouterFactory make_cache_aware_router(ConfigReader& options, const RouterContext& context) {
  return copies_of(CacheAware(options, context));
}

}  // namespace moesim
