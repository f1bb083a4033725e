// SPDX-License-Identifier: Apache-2.0
// Draws of the source of the expert tables: what a row's rank was given.
#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <map>
#include <numeric>
#include <string>
#include <tuple>

#include <fmt/format.h>

#include "hardware/kernels/experts.hpp"
#include "hardware/rng.hpp"

namespace moesim {

namespace {

constexpr std::string_view power_law = "power_law_";

double exponent_of(std::string_view distribution) {
  double alpha = 1.01;
  const std::string_view digits = distribution.substr(power_law.size());
  std::from_chars(digits.data(), digits.data() + digits.size(), alpha);
  return alpha == 1 ? 1.0001 : alpha;
}

// Selections that rounding added or lost go to the least and come from the most loaded expert, rank
// by rank.
void settle_by_rank(std::vector<std::int32_t>& counts, int ranks, double tokens,
                    std::int64_t left) {
  const auto per_rank = static_cast<std::ptrdiff_t>(counts.size()) / ranks;
  for (std::ptrdiff_t rank = 0; left != 0; rank = (rank + 1) % ranks) {
    const auto first = counts.begin() + rank * per_rank;
    const auto last = first + per_rank;
    const auto expert = left > 0 ? std::min_element(first, last) : std::max_element(first, last);
    if (left > 0 ? *expert >= tokens : *expert == 0) continue;
    *expert += left > 0 ? 1 : -1;
    left -= left > 0 ? 1 : -1;
  }
}

// The same over all experts at once, equal ones in the order of their ids.
void settle_by_id(std::vector<std::int32_t>& counts, double tokens, std::int64_t left) {
  const int step = left > 0 ? 1 : -1;
  std::vector<std::size_t> order(counts.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  while (left != 0) {
    std::ranges::stable_sort(order, {}, [&](std::size_t i) { return step * counts[i]; });
    for (const std::size_t expert : order) {
      if (left == 0) break;
      if (step > 0 ? counts[expert] >= tokens : counts[expert] == 0) continue;
      counts[expert] += step;
      left -= step;
    }
  }
}

// Tokens per expert, as drawn by a bounded power law over experts.
std::vector<std::int32_t> power_law_counts(const PowerLaw& law, Rng& rng) {
  const double alpha = exponent_of(law.distribution), tokens = law.tokens,
               selections = tokens * law.top_k;
  const bool many = selections > law.experts;
  const double low = std::pow(many ? 1 : 0.01, 1 - alpha);
  const double high = std::pow(many ? 0.8 * tokens : 2, 1 - alpha);
  std::vector<double> weights(at(law.experts));
  double sum = 0;
  for (double& weight : weights) {
    weight = std::pow((high - low) * rng.uniform() + low, 1 / (1 - alpha));
    sum += weight;
  }
  std::vector<std::int32_t> counts;
  std::int64_t left = std::llround(selections);
  const std::int64_t all = left;
  for (const double weight : weights) {
    counts.push_back(
        static_cast<std::int32_t>(std::min(tokens, std::round(weight / sum * selections))));
    left -= counts.back();
  }
  const bool by_id =
      law.fill == DrawFill::by_id || (law.fill == DrawFill::by_id_of_none && left == all);
  by_id ? settle_by_id(counts, tokens, left) : settle_by_rank(counts, law.ranks, tokens, left);
  return counts;
}

std::span<const std::int32_t> busiest(std::span<const std::int32_t> counts, int ranks) {
  const std::size_t per_rank = counts.size() / at(ranks);
  std::span<const std::int32_t> most;
  std::int64_t rows = -1;
  for (std::size_t first = 0; first + per_rank <= counts.size(); first += per_rank) {
    const auto rank = counts.subspan(first, per_rank);
    const std::int64_t sum = std::accumulate(rank.begin(), rank.end(), std::int64_t{0});
    if (sum > rows) most = rank;
    rows = std::max(rows, sum);
  }
  return most;
}

BusiestRank load_of(std::span<const std::int32_t> experts) {
  BusiestRank load;
  for (const std::int32_t tokens : experts) {
    load.rows += tokens;
    load.active += tokens > 0 ? 1 : 0;
  }
  return load;
}

}  // namespace

std::vector<std::int32_t> power_law_rank(const PowerLaw& law, Rng& rng) {
  const auto counts = power_law_counts(law, rng);
  const auto rank = busiest(counts, law.ranks);
  return {rank.begin(), rank.end()};
}

bool times_lone_ranks(const EngineVersion& engine) {
  return engine.name == "sglang" && numbers_of(engine.version) >= std::array{0, 5, 10, 0};
}

Draws draws_of(const EngineVersion& engine, const GpuSpec& gpu, const ExpertsCall& layer,
               bool triton) {
  const auto before = [&](std::array<int, 4> version) {
    return !engine.version.empty() && numbers_of(engine.version) < version;
  };
  const bool vllm = engine.name == "vllm", sglang = engine.name == "sglang";
  Draws draws;
  const bool groups = layer.experts == 256 && layer.top_k == 8 && layer.hidden == 7168;
  if (groups && ((vllm && !before({0, 22, 0, 0})) || (sglang && !triton && !before({0, 5, 14, 0}))))
    draws.balanced = Draws::Balanced::in_groups;
  else if (triton && times_lone_ranks(engine))
    draws.balanced = Draws::Balanced::lone;
  if ((sglang && before({0, 5, 10, 0})) || (engine.name == "trtllm" && before({1, 3, 0, 0}))) {
    const auto given = gpu.draw_fill.find(engine.name);
    draws.fill = given != gpu.draw_fill.end() ? given->second : DrawFill::by_id;
  }
  return draws;
}

std::vector<std::int32_t> lone_rank(std::int64_t tokens, int top_k, int experts, int ranks) {
  const int stride = (experts + top_k - 1) / top_k;
  std::vector<std::int32_t> counts(at(experts / ranks));
  for (std::int64_t t = 0; t < tokens; ++t) {
    const std::int64_t first = tokens < stride ? t * stride / tokens : t;
    std::int32_t elsewhere = 0;
    for (int j = 0; j < top_k; ++j) {
      const auto expert = at((first + std::int64_t{j} * stride) % experts);
      expert < counts.size() ? ++counts[expert] : ++elsewhere;
    }
    if (elsewhere < top_k) counts[0] += elsewhere;
  }
  return counts;
}

namespace {

// Share of all selections that falls on the first n of 256 experts, when balanced choices are cut
// to 4 of 8 groups. A fit to times of six GPUs (Blackwell, L40S) at 4 to 256 ranks. These give the
// rows of rank 0 by the uneven rows of as many ranks.
struct FirstExperts {
  double experts, share;
};
constexpr std::array<FirstExperts, 8> first_experts{
    {{0, 0}, {1, 0.072}, {4, 0.135}, {8, 0.175}, {16, 0.211}, {32, 0.3}, {64, 0.45}, {256, 1}}};

BusiestRank in_groups(double tokens, double held) {
  constexpr double top_k = 8;
  BusiestRank load;
  for (std::size_t i = 1; i < first_experts.size(); ++i) {
    const auto [from, before] = first_experts[i - 1];
    const auto [to, upto] = first_experts[i];
    const double own = std::clamp(held - from, 0.0, to - from);
    const double likely = top_k * (upto - before) / (to - from);  // that a token chooses the expert
    load.rows += tokens * own * likely;
    load.active += own * (1 - std::pow(1 - likely, tokens));
  }
  return {std::max(1.0, load.rows), std::max(1.0, load.active)};
}

}  // namespace

BusiestRank rank_load(std::string_view distribution, double tokens, double top_k, double experts,
                      double ranks, Draws draws) {
  const double selections = tokens * top_k;
  if (!distribution.starts_with(power_law)) {
    if (draws.balanced == Draws::Balanced::in_groups) return in_groups(tokens, experts / ranks);
    if (draws.balanced == Draws::Balanced::lone && ranks > 1) {
      return load_of(lone_rank(std::llround(tokens), static_cast<int>(top_k),
                               static_cast<int>(experts), static_cast<int>(ranks)));
    }
    const double own = experts / ranks;
    const double rows = std::max(1.0, selections / ranks);
    return {rows, selections < experts ? std::min(own, std::ceil(selections / ranks)) : own};
  }
  // The same few come again in row after row.
  const std::string name = fmt::format("{} {} {} {}", distribution, tokens, top_k, experts);
  static thread_local std::map<std::tuple<std::string, double, DrawFill>, BusiestRank> drawn;
  const auto [found, unseen] = drawn.try_emplace({name, ranks, draws.fill});
  BusiestRank& mean = found->second;
  if (!unseen) return mean;
  Rng rng(1, name);
  for (int i = 0; i < power_law_draws; ++i) {
    const BusiestRank load =
        load_of(power_law_rank({distribution, tokens, top_k, static_cast<int>(experts),
                                static_cast<int>(ranks), draws.fill},
                               rng));
    mean.rows += load.rows / power_law_draws;
    mean.active += load.active / power_law_draws;
  }
  return mean;
}

}  // namespace moesim
