// SPDX-License-Identifier: Apache-2.0
#include "tools/lab/validation/contrasts.hpp"

#include <algorithm>
#include <cmath>
#include <tuple>

#include <fmt/format.h>

#include "sim/report/statistics.hpp"

namespace moesim {

namespace {

constexpr double no_difference = 1.02;  // times, measured
constexpr double slack = 1.05;          // of a limit

// The layout without its experts: "TP8" of "TP8 EP8".
std::string layout_of_attention(const ServingRun& run) {
  return run.layout.substr(0, run.layout.find(" EP"));
}

std::string layout_of_experts(const ServingRun& run) {
  const std::size_t place = run.layout.find("EP");
  return place == std::string::npos ? "cut" : run.layout.substr(place);
}

// Name of what differs between two runs, as a reader says it.
std::string thing_of(Difference kind, const ServingRun& run) {
  switch (kind) {
    case Difference::layout: return run.layout;
    case Difference::experts: return layout_of_experts(run);
    case Difference::gpu: return run.gpu;
    case Difference::engine: return run.engine.name;
    case Difference::precision: return run.precision;
    case Difference::batch: return fmt::format("{}", run.concurrency);
  }
  return "";
}

std::string work_of(const ServingRun& run) {
  return fmt::format("{}|{}|{}", run.model, run.prompt, run.output);
}

// Text of what two runs have in common that differ in one thing.
std::string common_of(Difference kind, const ServingRun& run) {
  std::string key = work_of(run);
  for (const Difference other : {Difference::layout, Difference::gpu, Difference::engine,
                                 Difference::precision, Difference::batch}) {
    if (other == kind) continue;
    key += "|";
    if (kind == Difference::experts && other == Difference::layout) {
      key += layout_of_attention(run);
    } else if (kind == Difference::layout && other == Difference::batch) {
      key += fmt::format("{}", run.concurrency / run.gpus);
    } else {
      key += thing_of(other, run);
    }
  }
  const bool any_version = kind == Difference::gpu || kind == Difference::engine;
  return any_version ? key : key + "|" + run.engine.version;
}

using Group = std::vector<const ServingRun*>;

std::map<std::string, Group> groups_by(const std::vector<ServingRun>& runs, auto key) {
  std::map<std::string, Group> groups;
  for (const ServingRun& run : runs)
    if (!run.pools) groups[key(run)].push_back(&run);
  return groups;
}

bool some_held_out(const std::vector<ServingRun>& runs) {
  return std::ranges::any_of(runs, [](const ServingRun& run) { return !run.fitted; });
}

// True if no run of `b`'s kind is of a version nearer to that of `a`.
bool nearest_version(const Group& group, const ServingRun& a, const ServingRun& b) {
  const double apart = distance(a.engine.version, b.engine.version);
  return std::ranges::none_of(group, [&](const ServingRun* c) {
    return c->gpu == b.gpu && distance(a.engine.version, c->engine.version) < apart;
  });
}

bool newest_version(const Group& group, const ServingRun& a) {
  return std::ranges::none_of(group, [&](const ServingRun* c) {
    return c->engine.name == a.engine.name &&
           numbers_of(c->engine.version) > numbers_of(a.engine.version);
  });
}

bool next_batch(const Group& group, const ServingRun& a, const ServingRun& b) {
  return std::ranges::none_of(group, [&](const ServingRun* c) {
    return a.concurrency < c->concurrency && c->concurrency < b.concurrency;
  });
}

bool partners(Difference kind, const Group& group, const ServingRun& a, const ServingRun& b) {
  if (kind == Difference::layout) return layout_of_attention(a) != layout_of_attention(b);
  if (kind == Difference::gpu) return nearest_version(group, a, b) && nearest_version(group, b, a);
  if (kind == Difference::engine) return newest_version(group, a) && newest_version(group, b);
  if (kind == Difference::batch) return a.concurrency > 0 && next_batch(group, a, b);
  return true;
}

// The rule of thumb's order: TensorRT-LLM, SGLang, vLLM.
int engine_rank(const ServingRun& run) {
  constexpr std::array<std::string_view, 3> names{"trtllm", "sglang", "vllm"};
  return static_cast<int>(std::ranges::find(names, run.engine.name) - names.begin());
}

int sign_of(double ratio) { return (ratio > 1) - (ratio < 1); }

// The rule of thumb on tokens/s per GPU: its size and its sign.
ContrastRatios rule_of(Difference kind, const ServingRun& a, const ServingRun& b) {
  const auto sized = [](double ratio) {
    return ContrastRatios{.rule = ratio, .rule_sign = sign_of(ratio)};
  };
  const auto known = [&](double x, double y) {
    return x > 0 && y > 0 ? sized(x / y) : ContrastRatios{};
  };
  switch (kind) {
    case Difference::layout: return {.rule_sign = sign_of(double(a.gpus) / b.gpus)};
    case Difference::experts: return {};
    case Difference::gpu: return known(a.hbm_bandwidth, b.hbm_bandwidth);
    case Difference::engine:
      return {.rule_sign = (engine_rank(a) < engine_rank(b)) - (engine_rank(a) > engine_rank(b))};
    case Difference::precision: return known(b.weight_bytes, a.weight_bytes);
    case Difference::batch: return sized(a.concurrency / b.concurrency);
  }
  return {};
}

// Returns the same for TPOT. More tokens in a second mean less time for each, but for a batch. Its
// steps read the same weights, and are longer by an unknown time.
ContrastRatios rule_of_tpot(Difference kind, ContrastRatios rule) {
  if (kind == Difference::batch) return {.rule_sign = rule.rule_sign};
  return {.rule = 1 / rule.rule, .rule_sign = -rule.rule_sign};
}

Contrast contrast_of(Difference kind, const ServingRun& a, const ServingRun& b) {
  Contrast contrast{.differs = kind,
                    .one = a.id,
                    .other = b.id,
                    .of_one = thing_of(kind, a),
                    .of_other = thing_of(kind, b),
                    .per_gpu = rule_of(kind, a, b),
                    .tpot = {}};
  contrast.per_gpu.measured = a.measured.per_gpu / b.measured.per_gpu;
  contrast.per_gpu.predicted = a.predicted.per_gpu / b.predicted.per_gpu;
  if (a.measured.tpot_ms > 0 && b.measured.tpot_ms > 0) {
    contrast.tpot = rule_of_tpot(kind, contrast.per_gpu);
    contrast.tpot->measured = a.measured.tpot_ms / b.measured.tpot_ms;
    contrast.tpot->predicted = a.predicted.tpot_ms / b.predicted.tpot_ms;
  }
  return contrast;
}

void add_pairs(Difference kind, Group group, bool without_fitted, std::vector<Contrast>& pairs) {
  const auto place = [&](const ServingRun* run) {
    const double number = kind == Difference::layout  ? run->gpus
                          : kind == Difference::batch ? run->concurrency
                                                      : 0;
    return std::tuple(number, thing_of(kind, *run));
  };
  std::ranges::stable_sort(group, {}, place);
  for (std::size_t i = 0; i < group.size(); ++i) {
    for (std::size_t j = i + 1; j < group.size(); ++j) {
      const ServingRun &a = *group[i], &b = *group[j];
      if (thing_of(kind, a) == thing_of(kind, b) || !partners(kind, group, a, b)) continue;
      if (without_fitted && a.fitted && b.fitted) continue;
      pairs.push_back(contrast_of(kind, a, b));
    }
  }
}

double as_percentage(std::vector<double> logs) { return 100 * std::expm1(median(std::move(logs))); }

}  // namespace

bool ContrastRatios::equal() const {
  return std::abs(std::log(measured)) < std::log(no_difference);
}

bool ContrastRatios::right() const { return sign_of(measured) == sign_of(predicted); }

std::vector<Contrast> contrasts_of(const std::vector<ServingRun>& runs) {
  std::vector<Contrast> pairs;
  const bool without_fitted = some_held_out(runs);
  for (std::size_t i = 0; i < difference_names.size(); ++i) {
    const auto kind = static_cast<Difference>(i);
    const auto common = [&](const ServingRun& run) { return common_of(kind, run); };
    for (const auto& [key, group] : groups_by(runs, common))
      add_pairs(kind, group, without_fitted, pairs);
  }
  return pairs;
}

ContrastScore score_of(const std::vector<ContrastRatios>& all) {
  ContrastScore score;
  std::vector<double> errors, rule_errors;
  for (const ContrastRatios& ratios : all) {
    if (ratios.equal()) {
      ++score.equal;
      continue;
    }
    ++score.pairs;
    score.right += ratios.right() ? 1 : 0;
    if (ratios.rule_sign == 0) {
      score.rule_right += 0.5;
    } else {
      score.rule_right += ratios.rule_sign == sign_of(ratios.measured) ? 1 : 0;
    }
    errors.push_back(std::abs(std::log(ratios.predicted / ratios.measured)));
    rule_errors.push_back(std::abs(std::log(ratios.rule / ratios.measured)));
  }
  score.size_error_pct = as_percentage(std::move(errors));
  score.rule_size_error_pct = as_percentage(std::move(rule_errors));
  return score;
}

namespace {

// The deployment that serves the run.
std::string option_of(const ServingRun& run) {
  return fmt::format("{}|{}|{}|{}|{}", run.gpu, run.engine.name, run.engine.version, run.precision,
                     run.layout);
}

std::string choice_group(Choice among, const ServingRun& run) {
  if (among == Choice::anything) return work_of(run);
  return fmt::format("{}|{}|{}|{}|{}", work_of(run), run.gpu, run.engine.name, run.engine.version,
                     run.precision);
}

const ServingRun& chosen_of(const Group& group, double limit) {
  const ServingRun *fastest = nullptr, *nearest = group.front();
  for (const ServingRun* run : group) {
    if (run->predicted.tpot_ms < nearest->predicted.tpot_ms) nearest = run;
    if (run->predicted.tpot_ms > limit) continue;
    if (fastest == nullptr || run->predicted.per_gpu > fastest->predicted.per_gpu) fastest = run;
  }
  return fastest != nullptr ? *fastest : *nearest;
}

// Measured tokens/s per GPU of each deployment at its best concurrency that meets the limit.
using BestOf = std::map<std::string, std::pair<const ServingRun*, double>>;
BestOf best_measured(const Group& group, double limit) {
  BestOf best;
  for (const ServingRun* run : group) {
    if (run->measured.tpot_ms > limit) continue;
    auto& [first, speed] = best.try_emplace(option_of(*run), run, 0).first->second;
    speed = std::max(speed, run->measured.per_gpu);
  }
  return best;
}

double by_rule(const BestOf& best) {
  const auto order = [](const ServingRun* run) {
    return std::tuple(-run->hbm_bandwidth, run->weight_bytes, engine_rank(*run), run->gpus);
  };
  const auto first = std::ranges::min_element(
      best, {}, [&](const auto& each) { return order(each.second.first); });
  double sum = 0;
  int equals = 0;
  for (const auto& [option, each] : best) {
    if (order(each.first) != order(first->second.first)) continue;
    sum += each.second;
    ++equals;
  }
  return sum / equals;
}

}  // namespace

Regret regret_of(const std::vector<ServingRun>& runs, Choice among) {
  Regret regret;
  std::vector<double> lost, lost_by_rule;
  const bool without_fitted = some_held_out(runs);
  const auto key = [&](const ServingRun& run) { return choice_group(among, run); };
  for (auto& [name, group] : groups_by(runs, key)) {
    std::erase_if(group, [](const ServingRun* run) { return run->measured.tpot_ms == 0; });
    if (group.empty()) continue;
    const bool fitted = std::ranges::all_of(group, [](const auto* run) { return run->fitted; });
    const auto is_other = [&first = *group.front()](const auto* run) {
      return option_of(*run) != option_of(first);
    };
    const bool options = std::ranges::any_of(group, is_other);
    if (!options || (without_fitted && fitted)) continue;
    for (const double limit : tpot_limits_ms) {
      const auto meets = [&](const ServingRun* run) { return run->measured.tpot_ms <= limit; };
      if (std::ranges::count_if(group, meets) < 2) continue;
      const BestOf best = best_measured(group, limit);
      double most = 0;
      for (const auto& [option, each] : best) most = std::max(most, each.second);
      const ServingRun& chosen = chosen_of(group, limit);
      double speed = chosen.measured.per_gpu;
      if (chosen.measured.tpot_ms > slack * limit) {
        ++regret.misses;
        const auto kept = best.find(option_of(chosen));
        speed = kept == best.end() ? 0 : kept->second.second;
      }
      ++regret.choices;
      lost.push_back(std::max(0., 1 - speed / most));
      lost_by_rule.push_back(1 - by_rule(best) / most);
    }
  }
  regret.mean = summarize(lost).mean;
  regret.p90 = nearest_rank(lost, 0.9);
  regret.rule_mean = summarize(lost_by_rule).mean;
  regret.rule_p90 = nearest_rank(lost_by_rule, 0.9);
  return regret;
}

}  // namespace moesim
