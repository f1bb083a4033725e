// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <map>
#include <optional>

#include <tbb/parallel_for.h>

#include "sim/experiment/does_not_fit.hpp"
#include "sim/serving/typical_step.hpp"
#include "tools/analysis/pareto_gain.hpp"
#include "tools/lab/reproduce/measure_kinds.hpp"
#include "tools/sweep/axes.hpp"
#include "tools/sweep/sweep.hpp"

namespace moesim {

namespace {

/// A decode step of a point: how long, and tokens per second and GPU.
struct PricedStep {
  const Json* config = nullptr;
  ParallelPlan parallel{};
  double ms = 0, throughput = 0;
};

/// Nothing for what does not fit: it is no point of the curve.
std::optional<PricedStep> price(const Json& config, const std::filesystem::path& file, int context,
                                TraceLibrary& traces) {
  constexpr const char* in_flight = "/workload/arrivals/concurrency";
  const Json* sequences = find_value(config, in_flight);
  if (sequences == nullptr) throw ConfigError(file.string() + ":" + in_flight + ": is missing");
  try {
    const Experiment e = load_experiment(ConfigNode(config, file), traces);
    const int batch = sequences->get<int>();
    const double seconds =
        explain_step(e, decode_step(batch / e.decode().parallel.dp, context)).cost.total.count();
    return PricedStep{&config, e.decode().parallel, 1e3 * seconds, batch / seconds / gpus_of(e)};
  } catch (const DoesNotFit&) {
    return std::nullopt;
  }
}

bool matches(const Json& config, const Json& rule) {
  return std::ranges::all_of(rule.items(), [&](const auto& setting) {
    const Json* value = find_value(config, setting.key());
    return value == nullptr ? setting.value().is_null() : same_setting(*value, setting.value());
  });
}

/// Points that match any of these rules.
struct Rules {
  explicit Rules(const ConfigNode& list) : node(list) {
    for (const ConfigNode& rule : list.list()) any.push_back(rule.json());
  }
  bool hold(const Json& config) const {
    return std::ranges::any_of(any, [&](const Json& rule) { return matches(config, rule); });
  }
  ConfigNode node;
  std::vector<Json> any{};
};

/// The steps on the frontier of those that match, the fastest first.
std::vector<PricedStep> frontier_of(const std::vector<PricedStep>& steps, const Rules& rules) {
  std::vector<PricedStep> chosen;
  std::vector<std::pair<double, double>> places;
  for (const PricedStep& step : steps) {
    if (!rules.hold(*step.config)) continue;
    chosen.push_back(step);
    places.emplace_back(step.ms, step.throughput);
  }
  if (chosen.empty()) rules.node.fail("no point of the sweep that fits matches these");
  const std::vector<bool> on = frontier(places);
  std::vector<PricedStep> best;
  for (std::size_t i = 0; i < chosen.size(); ++i) {
    if (on[i]) best.push_back(chosen[i]);
  }
  std::ranges::sort(best, [](const PricedStep& a, const PricedStep& b) { return a.ms < b.ms; });
  return best;
}

Json describe(const std::vector<PricedStep>& steps) {
  const auto count = [&](auto&& is) { return std::ranges::count_if(steps, is); };
  const PricedStep& fastest = steps.front();
  return {{"points", steps.size()},
          {"pipelined", count([](const PricedStep& s) { return s.parallel.pp > 1; })},
          {"expert_parallel", count([](const PricedStep& s) { return s.parallel.ep > 1; })},
          {"most", steps.back().throughput},
          {"fastest",
           {{"ms", fastest.ms},
            {"tp", fastest.parallel.tp},
            {"ep", fastest.parallel.ep},
            {"pp", fastest.parallel.pp}}}};
}

Json gain(const std::vector<PricedStep>& baseline, const std::vector<PricedStep>& candidate) {
  const auto places = [](const std::vector<PricedStep>& steps) {
    Frontier line;
    for (const PricedStep& step : steps) line.emplace_back(step.ms, step.throughput);
    return line;
  };
  const GroupGain over = frontier_gain(places(baseline), places(candidate), {});
  return {{"best_step", over.best_step.step},
          {"best_step_ms", over.best_step.x},
          {"best_interpolated", over.best_interpolated.interpolated},
          {"median_step", over.median.step},
          {"median_interpolated", over.median.interpolated}};
}

}  // namespace

Json measure_frontier(const ConfigNode& node, TraceLibrary& traces) {
  return read_object(node, [&](ConfigReader& r) {
    const Sweep sweep = expand_sweep(ConfigNode::from_file(r.path("sweep")));
    const int context = static_cast<int>(r.integer("context", {0, 1 << 24}));
    const Json set = r.child_or("set", Json::object()).json();
    std::map<std::string, Rules, std::less<>> rules;
    read_object(r.child("frontiers"), [&](ConfigReader& names) {
      for (const std::string& name : names.all_keys()) rules.emplace(name, names.child(name));
    });
    std::vector<Json> configs;
    for (const SweepPoint& point : sweep.points) {
      if (std::ranges::none_of(rules,
                               [&](const auto& of) { return of.second.hold(point.config); })) {
        continue;
      }
      configs.push_back(point.config);
      for (const auto& [pointer, value] : set.items())
        configs.back()[Json::json_pointer(pointer)] = value;
    }
    std::vector<std::optional<PricedStep>> priced(configs.size());
    tbb::parallel_for(std::size_t{0}, configs.size(), [&](std::size_t i) {
      priced[i] = price(configs[i], sweep.base_file, context, traces);
    });
    std::vector<PricedStep> steps;
    for (const std::optional<PricedStep>& step : priced) {
      if (step) steps.push_back(*step);
    }
    Json answer{{"points", steps.size()}, {"do_not_fit", priced.size() - steps.size()}};
    std::map<std::string, std::vector<PricedStep>, std::less<>> frontiers;
    for (const auto& [name, of] : rules) {
      frontiers[name] = frontier_of(steps, of);
      answer["frontiers"][name] = describe(frontiers[name]);
    }
    read_object(r.child("gains"), [&](ConfigReader& names) {
      for (const std::string& name : names.all_keys()) {
        const std::vector<ConfigNode> sides = names.child(name).list();
        if (sides.size() != 2 || !frontiers.contains(sides[0].text()) ||
            !frontiers.contains(sides[1].text())) {
          names.child(name).fail("expected two names of \"frontiers\": [baseline, candidate]");
        }
        answer["gains"][name] = gain(frontiers[sides[0].text()], frontiers[sides[1].text()]);
      }
    });
    return answer;
  });
}

}  // namespace moesim
