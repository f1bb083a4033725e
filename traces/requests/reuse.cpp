// SPDX-License-Identifier: Apache-2.0
#include "traces/requests/reuse.hpp"

#include <algorithm>
#include <iterator>
#include <limits>
#include <set>
#include <tuple>
#include <unordered_map>
#include <vector>

namespace moesim {

namespace {

// Counts marks at places, each in the logarithm of their number (Fenwick's tree).
class Marks {
 public:
  explicit Marks(std::size_t places) : sums_(places + 1) {}
  void add(std::size_t place, int change) {
    all_ += change;
    for (std::size_t i = place + 1; i < sums_.size(); i += i & (~i + 1)) sums_[i] += change;
  }
  std::int64_t after(std::size_t place) const {
    std::int64_t up_to = 0;
    for (std::size_t i = place + 1; i > 0; i -= i & (~i + 1)) up_to += sums_[i];
    return all_ - up_to;
  }

 private:
  std::vector<std::int64_t> sums_;
  std::int64_t all_ = 0;
};

}  // namespace

std::int64_t ReuseCurve::hits(std::int64_t blocks) const {
  std::int64_t tokens = 0;
  for (const auto& [least, hit] : hit_at) {
    if (least > blocks) break;
    tokens += hit;
  }
  return tokens;
}

ReuseCurve reuse_curve(std::span<const std::shared_ptr<const PromptIds>> prompts) {
  std::size_t uses = 0;
  for (const auto& prompt : prompts) uses += prompt->spans.size();
  Marks latest(uses);  // at the latest use of each block
  std::unordered_map<std::uint64_t, std::size_t> used_at;
  ReuseCurve curve;
  std::size_t now = 0;
  for (const auto& prompt : prompts) {
    curve.queried_tokens += prompt->tokens();
    std::int64_t covered = 0, least = 0;
    for (const PromptIds::Span& span : prompt->spans) {
      const auto used = used_at.find(span.id);
      if (used == used_at.end() || span.end >= prompt->tokens()) break;
      // A block is of no use without those before it.
      least = std::max(least, latest.after(used->second) + 1);
      curve.hit_at[least] += span.end - covered;
      covered = span.end;
    }
    for (std::size_t i = prompt->spans.size(); i-- > 0;) {
      const auto [used, fresh] = used_at.try_emplace(prompt->spans[i].id, now);
      if (!fresh) latest.add(used->second, -1);
      used->second = now;
      latest.add(now++, 1);
    }
  }
  curve.distinct_blocks = std::ssize(used_at);
  return curve;
}

std::int64_t most_hits(std::span<const std::shared_ptr<const PromptIds>> prompts,
                       std::int64_t blocks) {
  // [prompt][place]: the next prompt in which the block can be hit, from behind.
  constexpr std::size_t never = std::numeric_limits<std::size_t>::max();
  std::vector<std::vector<std::size_t>> next(prompts.size());
  std::unordered_map<std::uint64_t, std::size_t> comes;
  for (std::size_t p = prompts.size(); p-- > 0;) {
    for (const PromptIds::Span& span : prompts[p]->spans) {
      const auto found = comes.find(span.id);
      next[p].push_back(found == comes.end() ? never : found->second);
    }
    for (const PromptIds::Span& span : prompts[p]->spans) {
      if (span.end < prompts[p]->tokens()) comes[span.id] = p;
    }
  }
  using Held = std::tuple<std::size_t, std::size_t, std::uint64_t>;  // next hit, place, id
  std::set<Held> cache;
  std::unordered_map<std::uint64_t, Held> held;
  std::int64_t hits = 0;
  for (std::size_t p = 0; p < prompts.size(); ++p) {
    std::int64_t covered = 0;
    for (const PromptIds::Span& span : prompts[p]->spans) {
      if (span.end >= prompts[p]->tokens() || !held.contains(span.id)) break;
      hits += span.end - covered;
      covered = span.end;
    }
    for (std::size_t place = 0; place < next[p].size(); ++place) {
      const std::uint64_t id = prompts[p]->spans[place].id;
      if (const auto old = held.find(id); old != held.end()) cache.erase(old->second);
      cache.insert(held[id] = {next[p][place], place, id});
    }
    while (std::ssize(cache) > blocks) {
      held.erase(std::get<2>(*cache.rbegin()));
      cache.erase(std::prev(cache.end()));
    }
  }
  return hits;
}

}  // namespace moesim
