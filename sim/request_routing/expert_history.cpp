// SPDX-License-Identifier: Apache-2.0
#include "sim/request_routing/expert_history.hpp"

#include <algorithm>
#include <numeric>

namespace moesim {

namespace {

constexpr std::int32_t tokens_of_profile = 64;
constexpr std::size_t profiles_kept = 1024;

// How many leading blocks two prompts must share for the one of `blocks` to look alike.
std::size_t alike(std::size_t blocks) { return (4 * blocks + 4) / 5; }

}  // namespace

ExpertHistory::ExpertHistory(int layers, int experts, int experts_per_token)
    : layers_(at(layers)), experts_(at(experts)), experts_per_token_(experts_per_token) {}

void ExpertHistory::add(Use& use, std::span<const std::int64_t> counts) const {
  use.tokens.resize(counts.size());
  for (std::size_t i = 0; i < counts.size(); ++i) use.tokens[i] += counts[i];
  use.most = most_used(use.tokens);
}

std::vector<LikelyExpert> ExpertHistory::most_used(std::span<const std::int64_t> counts) const {
  const std::size_t most = std::min<std::size_t>(top, experts_);
  std::vector<LikelyExpert> used;
  std::vector<std::uint16_t> order(experts_);
  for (std::size_t l = 0; l < layers_; ++l) {
    const auto of_layer = counts.subspan(l * experts_, experts_);
    std::iota(order.begin(), order.end(), std::uint16_t{0});
    const auto end = order.begin() + static_cast<std::ptrdiff_t>(most);
    std::partial_sort(order.begin(), end, order.end(), [&](auto a, auto b) {
      return std::pair(-of_layer[a], a) < std::pair(-of_layer[b], b);
    });
    const auto picks = std::accumulate(
        order.begin(), end, std::int64_t{0},
        [&](std::int64_t sum, std::uint16_t expert) { return sum + of_layer[expert]; });
    for (auto expert = order.begin(); expert != end; ++expert) {
      const double share =
          picks == 0 ? 0 : static_cast<double>(of_layer[*expert]) / static_cast<double>(picks);
      used.push_back({*expert, static_cast<float>(std::min(1.0, experts_per_token_ * share))});
    }
  }
  return used;
}

std::vector<std::int64_t> ExpertHistory::count(const Binding& binding, Phase phase,
                                               std::int64_t first, std::int32_t tokens,
                                               const RowSource& source) const {
  std::vector<RowRange> rows;
  RoutingCoverage coverage;
  source.append(binding, {phase, 0, tokens, first}, rows, coverage);
  const RoutingTrace& trace = source.trace(phase);
  const auto k = at(trace.experts_per_token());
  std::vector<std::int64_t> counts(layers_ * experts_);
  trace.visit([&](auto ids) {
    for (const RowRange& range : rows) {
      const std::size_t begin = at(range.first_row) * layers_ * k;
      const std::size_t end = begin + at(range.count) * layers_ * k;
      for (std::size_t i = begin; i < end; ++i) {
        ++counts[i / k % layers_ * experts_ + at(ids[i])];
      }
    }
  });
  return counts;
}

std::vector<LikelyExpert> ExpertHistory::used_by(const Binding& binding, Phase phase,
                                                 std::int64_t first, std::int32_t tokens,
                                                 const RowSource& source) const {
  return most_used(count(binding, phase, first, tokens, source));
}

void ExpertHistory::record(const Binding& binding, std::int32_t output_tokens,
                           const RowSource& source, std::vector<BlockHash> prompt) {
  const std::vector<std::int64_t> counts =
      count(binding, Phase::decode, 0, std::min(output_tokens, tokens_of_profile), source);
  add(all_, counts);
  add(of_topic_[source.workload(binding)], counts);

  if (prompt.empty()) return;
  prompt.erase(prompt.begin(),
               prompt.begin() + static_cast<std::ptrdiff_t>(alike(prompt.size())) - 1);
  if (recent_.size() == profiles_kept) forget_oldest();
  for (const BlockHash hash : prompt) profile_of_[hash] = forgotten_ + recent_.size();
  recent_.push_back({most_used(counts), std::move(prompt)});
}

void ExpertHistory::forget_oldest() {
  for (const BlockHash hash : recent_.front().prompt) {
    const auto found = profile_of_.find(hash);
    if (found != profile_of_.end() && found->second == forgotten_) profile_of_.erase(found);
  }
  recent_.pop_front();
  ++forgotten_;
}

std::span<const LikelyExpert> ExpertHistory::predict(std::span<const BlockHash> prompt,
                                                     std::optional<std::uint32_t> topic) const {
  for (std::size_t b = prompt.size(); b > 0 && b >= alike(prompt.size()); --b) {
    const auto found = profile_of_.find(prompt[b - 1]);
    if (found != profile_of_.end()) return recent_[found->second - forgotten_].experts;
  }
  if (topic) {
    const auto known = of_topic_.find(*topic);
    if (known != of_topic_.end()) return known->second.most;
  }
  return all_.most;
}

double expert_locality(std::span<const LikelyExpert> experts, const ExpertPlacement& placement,
                       const ParallelPlan& plan, int dp_rank) {
  if (experts.empty() || placement.empty() || plan.afd()) return 0;
  // EP ranks that the DP rank's GPUs belong to.
  const int first = dp_rank * plan.tp / plan.moe_tp();
  const int last = (dp_rank * plan.tp + plan.tp - 1) / plan.moe_tp();
  const std::size_t top = experts.size() / placement.size();
  std::int64_t local = 0;
  for (std::size_t i = 0; i < experts.size(); ++i) {
    const LayerPlacement& layer = placement[i / top];
    const auto hosts = layer.hosts_of(experts[i].expert);
    local += std::any_of(hosts.begin(), hosts.end(), [&](std::int32_t slot) {
      const int gpu = layer.gpu_of_slot(slot);
      return first <= gpu && gpu <= last;
    });
  }
  return static_cast<double>(local) / static_cast<double>(experts.size());
}

}  // namespace moesim
