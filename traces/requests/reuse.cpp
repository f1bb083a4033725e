// SPDX-License-Identifier: Apache-2.0
#include "traces/requests/reuse.hpp"

#include <algorithm>
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

}  // namespace moesim
