// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <numeric>

#include <fmt/format.h>

#include "hardware/at.hpp"
#include "traces/gating/gating.hpp"
#include "traces/gating/synthetic.hpp"

namespace moesim {
namespace {

/// A batch of so many tokens activates so many distinct experts of a layer, in the mean.
struct ActiveExperts {
  int tokens = 0;
  double experts = 0;
};

/// The mean over max of tokens that an engine logs: `tokens` of a step on `gpus` GPUs, experts in
/// order. Tokens of the mean GPU over those of the busiest, both summed over layers and steps.
struct Balance {
  double value = 0;
  int gpus = 0;
  int tokens = 0;
};

constexpr double tolerance = .02;  // of what was observed

/// Chances of experts to be chosen by a token. The e-th of E has the weight
/// exp(spread (z + tail (z^2 - 1))). Its z is a quantile of a logistic distribution of variance 1.
struct Shape {
  double spread = 0;
  double tail = 0;  ///< above 0 a few experts stand out, below 0 a few are idle
};

std::vector<double> chances(const MoeModel& model, Shape shape) {
  constexpr double scale = .5513;  // sqrt(3) / pi
  std::vector<double> weights;
  for (int e = 0; e < model.experts; ++e) {
    const double u = (e + .5) / model.experts;
    const double z = scale * std::log(u / (1 - u));
    weights.push_back(std::exp(shape.spread * (z + shape.tail * (z * z - 1))));
  }
  // No token takes an expert twice: chance = min(1, factor x weight), summing to k.
  std::vector<double> of_experts(weights.size());
  const auto sum_with = [&](double factor) {
    std::transform(weights.begin(), weights.end(), of_experts.begin(),
                   [&](double weight) { return std::min(1.0, factor * weight); });
    return std::reduce(of_experts.begin(), of_experts.end());
  };
  double low = 0, high = 1 / *std::min_element(weights.begin(), weights.end());
  for (int i = 0; i < 100; ++i) {
    const double middle = (low + high) / 2;
    (sum_with(middle) < model.experts_per_token ? low : high) = middle;
  }
  sum_with(low);
  return of_experts;
}

/// Distinct experts of `tokens` that choose independently: sum of 1 - (1 - chance)^tokens.
double active(std::span<const double> chances, int tokens) {
  double sum = 0;
  for (const double chance : chances) sum += 1 - std::pow(1 - chance, tokens);
  return sum;
}

constexpr std::int64_t token_parts = 1'000'000'000;  // of a choice

/// The chances in whole parts, k x token_parts together: none above token_parts.
std::vector<std::int64_t> parts_of(std::span<const double> chances, int k) {
  std::vector<std::int64_t> parts;
  for (const double chance : chances) parts.push_back(std::llround(chance * double(token_parts)));
  const std::int64_t missing = k * token_parts - std::reduce(parts.begin(), parts.end());
  const auto room = std::find_if(parts.begin(), parts.end(), [&](std::int64_t part) {
    return part + missing >= 0 && part + missing <= token_parts;
  });
  *room += missing;
  return parts;
}

/// Parts of each layer's experts, in an order of its own.
using Dealt = std::vector<std::vector<std::int64_t>>;

Dealt deal(const std::vector<std::int64_t>& parts, std::size_t layers, std::uint64_t seed) {
  Dealt dealt(layers, parts);
  for (std::size_t layer = 0; layer < layers; ++layer) {
    Rng rng(seed, fmt::format("gating observed layer {}", layer));
    for (std::size_t i = parts.size(); i > 1; --i)
      std::swap(dealt[layer][i - 1], dealt[layer][rng.below(i)]);
  }
  return dealt;
}

class Observed final : public SyntheticGating {
 public:
  Observed(ConfigReader& options, std::vector<ActiveExperts> curve, std::optional<Balance> balance)
      : SyntheticGating(options),
        node_(options.node()),
        curve_(std::move(curve)),
        balance_(balance) {}

  RoutingTrace outline(const MoeModel& model, std::uint64_t seed) const override {
    fitted(model, seed);
    return SyntheticGating::outline(model, seed);
  }

  RoutingTrace trace(const MoeModel& model, std::uint64_t seed) const override {
    const std::size_t layers = moe_layer_ids(model).size(), k = at(model.experts_per_token);
    const Dealt dealt = dealt_to(model, fitted(model, seed), seed);
    const auto fill = [&](std::size_t request, std::span<std::uint16_t> ids) {
      Rng rng(seed, fmt::format("gating observed {}", request));
      draw_rows(dealt, layers, k, ids, rng);
    };
    return fill_trace(model, rows(), "tokens drawn by what was observed", seed, fill);
  }

 private:
  static Dealt dealt_to(const MoeModel& model, Shape shape, std::uint64_t seed) {
    return deal(parts_of(chances(model, shape), model.experts_per_token),
                moe_layer_ids(model).size(), seed);
  }

  Shape fitted(const MoeModel& model, std::uint64_t seed) const {
    return balance_ ? fit_balance(model, seed) : fit_curve(model);
  }

  // The shape whose furthest point is nearest, on a grid that is made finer around the best.
  Shape fit_curve(const MoeModel& model) const {
    Shape best;
    double least = worst_of(model, best);
    double spread_step = .5, tail_step = .1;
    for (int round = 0; round < 6; ++round) {
      const Shape around = best;
      for (int i = -10; i <= 10; ++i) {
        for (int j = -5; j <= 5; ++j) {
          const Shape shape{std::clamp(around.spread + i * spread_step, 0.0, 6.0),
                            std::clamp(around.tail + j * tail_step, -.5, .5)};
          const double worst = worst_of(model, shape);
          if (worst < least) best = shape, least = worst;
        }
      }
      spread_step /= 4;
      tail_step /= 4;
    }
    if (least > tolerance) {
      std::vector<std::string> nearest;
      for (const ActiveExperts& point : curve_)
        nearest.push_back(fmt::format("{:.1f} with {}", active(chances(model, best), point.tokens),
                                      point.tokens));
      node_.fail(
          "tokens that choose independently cannot activate so many experts of {}; the nearest are "
          "{}. Where tokens repeat each other take \"topical\"",
          model.name, fmt::join(nearest, ", "));
    }
    return best;
  }

  double worst_of(const MoeModel& model, Shape shape) const {
    const std::vector<double> of_experts = chances(model, shape);
    double worst = 0;
    for (const ActiveExperts& point : curve_)
      worst = std::max(worst, std::abs(active(of_experts, point.tokens) / point.experts - 1));
    return worst;
  }

  // A wider spread is less balanced.
  Shape fit_balance(const MoeModel& model, std::uint64_t seed) const {
    if (model.experts % balance_->gpus != 0)
      node_.fail("gpus {} do not divide the model's {} experts", balance_->gpus, model.experts);
    double low = 0, high = 6;
    const double most = balance_of(model, {low}, seed), least = balance_of(model, {high}, seed);
    if (balance_->value > most * (1 + tolerance) || balance_->value < least)
      node_.fail(
          "steps of {} tokens on {} GPUs have a balancedness of {:.3f} to {:.3f} "
          "with the experts of {}",
          balance_->tokens, balance_->gpus, least, most, model.name);
    for (int i = 0; i < 14; ++i) {
      const double middle = (low + high) / 2;
      (balance_of(model, {middle}, seed) > balance_->value ? low : high) = middle;
    }
    return {low};
  }

  double balance_of(const MoeModel& model, Shape shape, std::uint64_t seed) const {
    constexpr int enough = 2048;  // tokens of a layer
    const Dealt dealt = dealt_to(model, shape, seed);
    const int steps = std::max(1, enough / balance_->tokens);
    const std::size_t k = at(model.experts_per_token);
    std::vector<std::uint16_t> picks(at(balance_->tokens) * k);
    double means = 0, maxima = 0;
    for (const auto& parts : dealt) {
      Rng rng(seed, "gating observed balance");
      for (int step = 0; step < steps; ++step) {
        draw_rows({&parts, 1}, 1, k, picks, rng);
        std::vector<std::int64_t> on_gpus(at(balance_->gpus));
        for (const std::uint16_t expert : picks)
          ++on_gpus[at(expert * balance_->gpus / model.experts)];
        means += double(picks.size()) / balance_->gpus;
        maxima += double(*std::max_element(on_gpus.begin(), on_gpus.end()));
      }
    }
    return means / maxima;
  }

  ConfigNode node_;
  std::vector<ActiveExperts> curve_;
  std::optional<Balance> balance_;
};

std::span<const Key> point_keys() {
  static constexpr Key keys[] = {
      {"tokens", form::integer(1, 1e6), required, "tokens of a batch, each of another request"},
      {"experts", form::number(1, 65536), required, "distinct experts of a layer, in the mean"}};
  return keys;
}

ActiveExperts read_point(ConfigReader& r) {
  return {static_cast<int>(r.integer("tokens")), r.number("experts")};
}

}  // namespace

std::span<const Key> observed_gating_keys() {
  static constexpr Form point = form::object(point_keys);
  static constexpr Key keys[] = {
      row_keys[0],
      row_keys[1],
      row_keys[2],
      row_keys[3],
      {"active_experts", form::list(point), unset("none"), "experts that batches activate"},
      {"balancedness", form::number(.01, 1), required,
       "mean over max of tokens on GPUs, as logged; or active_experts"},
      {"gpus", form::integer(2, 1024), "8", "GPUs of the logged EP group, without replicas"},
      {"tokens", form::integer(1, 16384), "1024", "tokens of a logged step, over all GPUs"}};
  return keys;
}

std::unique_ptr<Gating> make_observed_gating(ConfigReader& options) {
  std::vector<ActiveExperts> curve;
  std::optional<Balance> balance;
  if (options.has("active_experts") == options.has("balancedness"))
    options.node().fail("observed gating needs either active_experts or balancedness");
  const int gpus = static_cast<int>(options.integer("gpus"));
  const int tokens = static_cast<int>(options.integer("tokens"));
  if (options.has("balancedness")) {
    balance = Balance{options.number("balancedness"), gpus, tokens};
  } else {
    for (const ConfigNode& point : options.child("active_experts").list())
      curve.push_back(read_object(point, point_keys, read_point));
    if (curve.empty()) options.child("active_experts").fail("names no batch");
  }
  return std::make_unique<Observed>(options, std::move(curve), balance);
}

}  // namespace moesim
