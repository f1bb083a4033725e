// SPDX-License-Identifier: Apache-2.0
#include "tools/lab/study/sensitivity.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <concepts>
#include <mutex>
#include <set>
#include <utility>

#include <fmt/format.h>
#include <tbb/parallel_for.h>
#include <tbb/task_arena.h>

#include "hardware/kernels/kernel.hpp"
#include "hardware/tables/kernel_tables.hpp"
#include "sim/serving/simulator.hpp"
#include "tools/cli/output.hpp"
#include "tools/cli/table.hpp"

namespace moesim {

namespace {

void scale_share(double& share, double factor) { share = std::min(1.0, share * factor); }

// "fitted, error 8.8 %"; where nothing was fitted what the source begins with: "family default".
template <class Constants>
std::string basis_of(const Constants& constants) {
  if (constants.calibration) {
    return fmt::format("fitted, error {:.1f} %", 100 * constants.calibration->median_error);
  }
  return constants.source.substr(0, constants.source.find_first_of(";,"));
}

// Times that tables do not hold at the very point: a table's are wrong together.
void add_tables(const KernelTables& tables, std::vector<PriceConstant>& constants) {
  constexpr std::array guesses{std::pair(Evidence::interpolated, "interpolated"),
                               std::pair(Evidence::carried_over, "of a sibling GPU")};
  for (const MeasuredTable* table : measured_tables()) {
    for (const auto& [evidence, word] : guesses) {
      constants.push_back({fmt::format("{} table, {}", table->name, word),
                           fmt::format("error {:.1f} %", 100 * tables.error(*table, evidence)),
                           [table, evidence = evidence](Deployment& pool, double factor) {
                             TableFactors factors;
                             factors[table->name].fill(1);
                             factors[table->name][at(evidence)] = factor;
                             pool.each_cluster([&](ClusterSpec& cluster) {
                               auto& of_gpu = cluster.gpu.tables;
                               if (of_gpu) of_gpu = scaled(*of_gpu, factors);
                             });
                           }});
    }
  }
}

// Adds constants of one part of every pool, by name: "GROUP NAME". `part` finds the part in a pool.
// Parts of a cluster are found in each cluster. A constant is members of the part, or a function.
template <class Part>
auto adder(std::string group, std::string basis, Part part, std::vector<PriceConstant>& constants) {
  return [=, &constants](const std::string& name, auto scale, auto... more) {
    const auto scale_in = [=](auto& of, double factor) {
      if constexpr (std::is_member_object_pointer_v<decltype(scale)>) {
        of.*scale *= factor;
        ((of.*more *= factor), ...);
      } else {
        scale(of, factor);
      }
    };
    constants.push_back(
        {group + ' ' + name, basis, [part, scale_in](Deployment& pool, double factor) {
           if constexpr (std::invocable<Part, ClusterSpec&>) {
             pool.each_cluster([&](ClusterSpec& cluster) { scale_in(part(cluster), factor); });
           } else {
             scale_in(part(pool), factor);
           }
         }});
  };
}

// Constants of all precisions of a kernel go together.
void add_roofline(const Kernel& kernel, const std::string& basis,
                  std::vector<PriceConstant>& constants) {
  const auto of_gpu = [&kernel](ClusterSpec& cluster) -> KernelConstants& {
    return cluster.gpu.kernels.at(&kernel);
  };
  const auto add = adder(std::string(kernel.name), basis, of_gpu, constants);
  add("launch", [](KernelConstants& k, double factor) {
    k.launch *= factor;
    for (auto& [precision, own] : k.by_precision) own.launch *= factor;
  });
  add("bandwidth_share", [](KernelConstants& k, double factor) {
    scale_share(k.bandwidth_share, factor);
    for (auto& [precision, own] : k.by_precision) scale_share(own.bandwidth_share, factor);
  });
  add("peak_share", [](KernelConstants& k, double factor) {
    for (auto& [precision, share] : k.peak_share) scale_share(share, factor);
  });
  add("copies", [](KernelConstants& k, double factor) {
    k.copies *= factor;
    k.held_copies *= factor;
    for (auto& [precision, own] : k.by_precision) {
      own.copies *= factor;
      own.held_copies *= factor;
    }
  });
}

void add_links(const Kernel& kernel, const std::string& basis,
               std::vector<PriceConstant>& constants) {
  const auto of_gpu = [&kernel](ClusterSpec& cluster) -> CollectiveConstants& {
    return cluster.gpu.collectives.at(&kernel);
  };
  const auto add = adder(std::string(kernel.name), basis, of_gpu, constants);
  add("launch", &CollectiveConstants::launch);
  add("per_gpu", &CollectiveConstants::per_gpu);
  add("bandwidth_share",
      [](CollectiveConstants& c, double factor) { scale_share(c.bandwidth_share, factor); });
  add("ramp", &CollectiveConstants::ramp);
}

void add_network(std::vector<PriceConstant>& constants) {
  const auto of_cluster = [](ClusterSpec& cluster) -> LinkSpec& { return cluster.network; };
  const auto add = adder("network", "cluster file", of_cluster, constants);
  add("latency", &LinkSpec::latency, &LinkSpec::latency_per_doubling);
  add("bandwidth_share",
      [](LinkSpec& link, double factor) { scale_share(link.bandwidth_share, factor); });
}

void add_charges(const Experiment& experiment, std::vector<PriceConstant>& constants) {
  const auto of_pool = [](Deployment& pool) -> Charges& { return pool.charges; };
  const auto add = adder("charges", "setting", of_pool, constants);
  for (const auto& [policy, charge] : experiment.decode().charges.token_routing) {
    add("token_routing " + policy, [policy = policy](Charges& charges, double factor) {
      const auto of_policy = charges.token_routing.find(policy);
      if (of_policy == charges.token_routing.end()) return;
      of_policy->second.fixed *= factor;
      of_policy->second.per_128_active *= factor;
      of_policy->second.per_128_candidates *= factor;
    });
  }
  add("top_k_of_all_tokens", &Charges::top_k_of_all_tokens);
  add("host_overhead", &Charges::host_overhead);
  add("per_layer", &Charges::per_layer);
  add("per_sequence", &Charges::per_sequence);
  add("eager_launch", &Charges::eager_launch, &Charges::eager_layer);
  add("rank_jitter", &Charges::rank_jitter, &Charges::wait_for_last);
}

void add_api_server(std::vector<PriceConstant>& constants) {
  const auto of_pool = [](Deployment& pool) -> ApiServer& { return pool.api_server; };
  const auto add = adder("api_server", "setting", of_pool, constants);
  add("latency", &ApiServer::latency);
  add("tokenization", &ApiServer::tokenization);
}

double metric_of(const Experiment& experiment, const Metric& metric) {
  const Report report = run(experiment);
  const std::optional<double> value = metric.value(report);
  if (!value && report.metrics.completed == 0)
    throw ConfigError(
        "--of: a run has no {}, as none of its {} measured requests finished; send more requests",
        metric.name, report.metrics.measured_requests);
  if (!value) {
    throw ConfigError("--of: a run has no {}; choose a metric that all deployments have",
                      metric.name);
  }
  return *value;
}

// The deployments with one constant changed, each run.
std::vector<double> runs_of(const std::vector<Experiment>& experiments, const Metric& metric,
                            const PriceConstant* constant, double factor) {
  std::vector<double> values;
  for (const Experiment& as_it_is : experiments) {
    Experiment changed = as_it_is;
    if (constant != nullptr) {
      for (Deployment& pool : changed.pools) constant->scale(pool, factor);
    }
    values.push_back(metric_of(changed, metric));
  }
  return values;
}

}  // namespace

std::vector<PriceConstant> price_constants(const std::vector<Experiment>& experiments) {
  std::vector<PriceConstant> constants;
  for (const Experiment& experiment : experiments) {
    const GpuSpec& gpu = experiment.decode().cluster.gpu;
    if (gpu.tables) add_tables(*gpu.tables, constants);
    for (const Kernel* kernel : kernels()) {
      if (kernel->has_own(Law::roofline))
        add_roofline(*kernel, basis_of(gpu.kernels.at(kernel)), constants);
      if (kernel->has_own(Law::links))
        add_links(*kernel, basis_of(gpu.collectives.at(kernel)), constants);
    }
    add_network(constants);
    add_charges(experiment, constants);
    add_api_server(constants);
  }
  std::set<std::string> seen;
  std::erase_if(constants, [&](const PriceConstant& c) { return !seen.insert(c.name).second; });
  return constants;
}

std::size_t Sensitivity::best(const std::vector<double>& values) const {
  const auto place =
      lower_is_better ? std::ranges::min_element(values) : std::ranges::max_element(values);
  return at(place - values.begin());
}

double Sensitivity::lead(const std::vector<double>& values) const {
  const std::size_t first = best(as_it_is);
  if (values.size() == 1) return values[0] / as_it_is[0] - 1;
  std::vector<double> others = values;
  others.erase(others.begin() + static_cast<std::ptrdiff_t>(first));
  const double rival = others[best(others)];
  return lower_is_better ? rival / values[first] - 1 : values[first] / rival - 1;
}

bool Sensitivity::turns(const SensitivityRow& row) const {
  const std::size_t first = best(as_it_is);
  return best(row.less) != first || best(row.more) != first;
}

std::optional<Sensitivity> sensitivity(
    const std::vector<std::string>& names, const std::vector<Experiment>& experiments,
    const Metric& metric, double by, const std::function<void(std::size_t, std::size_t)>& progress,
    const std::function<bool()>& stop) {
  check(!experiments.empty() && names.size() == experiments.size(), "no deployments to compare");
  Sensitivity result{.metric = std::string(metric.name),
                     .lower_is_better = metric.key().better == Better::less,
                     .by = by,
                     .deployments = names,
                     .as_it_is = runs_of(experiments, metric, nullptr, 1),
                     .rows = {}};
  const std::vector<PriceConstant> constants = price_constants(experiments);
  std::vector<std::optional<SensitivityRow>> rows(constants.size());
  std::atomic<std::size_t> done = 0;
  std::mutex mutex;
  tbb::parallel_for(std::size_t{0}, constants.size(), [&](std::size_t i) {
    // A thread that waits for the parts of one run must not begin another run.
    if (!stop())
      tbb::this_task_arena::isolate([&] {
        const PriceConstant& constant = constants[i];
        SensitivityRow row{
            constant.name, constant.basis, runs_of(experiments, metric, &constant, 1 - by), {}};
        // A smaller constant always acts if the constant is used; a larger share may be cut off
        // at 1.
        if (row.less == result.as_it_is) return;
        row.more = runs_of(experiments, metric, &constant, 1 + by);
        rows[i] = std::move(row);
      });
    const std::lock_guard lock(mutex);
    progress(++done, constants.size());
  });
  if (stop()) return std::nullopt;
  for (std::optional<SensitivityRow>& row : rows) {
    if (row) result.rows.push_back(std::move(*row));
  }
  const double as_it_is = result.lead(result.as_it_is);
  const auto moved = [&](const SensitivityRow& row) {
    return std::max(std::abs(result.lead(row.less) - as_it_is),
                    std::abs(result.lead(row.more) - as_it_is));
  };
  std::ranges::stable_sort(result.rows, [&](const SensitivityRow& a, const SensitivityRow& b) {
    return std::pair(result.turns(a), moved(a)) > std::pair(result.turns(b), moved(b));
  });
  return result;
}

namespace {

std::string change_text(double share) {
  const double shown = std::round(1000 * share) / 10;
  return fmt::format("{:+.1f} %", shown == 0 ? 0.0 : shown);  // no "-0.0 %"
}

std::string as_it_is_text(const Sensitivity& s) {
  Table table({"", "deployment", s.metric});
  for (std::size_t i = 0; i < s.deployments.size(); ++i)
    table.add({fmt::format("{}", i + 1), s.deployments[i], number_text(s.as_it_is[i])});
  return table.text(100);
}

// Who is ahead where it is not the one that is best as it is: "2 if less".
std::string turn_text(const Sensitivity& s, const SensitivityRow& row) {
  const std::size_t first = s.best(s.as_it_is);
  std::string text;
  const auto add = [&](const std::vector<double>& values, std::string_view when) {
    const std::size_t ahead = s.best(values);
    if (ahead == first) return;
    text += fmt::format("{}{} if {}", text.empty() ? "" : ", ", ahead + 1, when);
  };
  add(row.less, "less");
  add(row.more, "more");
  return text;
}

std::string turns_text(const Sensitivity& s) {
  const auto turning = std::ranges::count_if(s.rows, [&](const auto& row) { return s.turns(row); });
  const std::size_t first = s.best(s.as_it_is);
  if (s.deployments.size() == 1) return "";
  if (turning == 0) {
    return fmt::format("Deployment {} stays ahead whichever constant is {:.0f} % off.\n", first + 1,
                       100 * s.by);
  }
  return paragraph(
      "{} of {} constants turn the ranking if they are {:.0f} % off. Measure "
      "them before you decide.",
      turning, s.rows.size(), 100 * s.by);
}

}  // namespace

std::string sensitivity_text(const Sensitivity& s) {
  constexpr std::size_t shown = 15;
  const bool ranking = s.deployments.size() > 1;
  const std::string less = fmt::format("-{:.0f} %", 100 * s.by);
  const std::string more = fmt::format("+{:.0f} %", 100 * s.by);
  std::vector<std::string> head{"constant", "basis", less, more};
  if (ranking) head.push_back("then ahead");
  Table table(head);
  for (std::size_t i = 0; i < std::min(shown, s.rows.size()); ++i) {
    const SensitivityRow& row = s.rows[i];
    std::vector<std::string> cells{row.name, row.basis, change_text(s.lead(row.less)),
                                   change_text(s.lead(row.more))};
    if (ranking) cells.push_back(turn_text(s, row));
    table.add(std::move(cells));
  }
  std::string text = as_it_is_text(s) + "\n";
  if (ranking) {
    text += fmt::format("lead of deployment {}: {}; below: its lead with one constant changed\n\n",
                        s.best(s.as_it_is) + 1, change_text(s.lead(s.as_it_is)));
  } else {
    text += fmt::format("below: change of {} with one constant changed\n\n", s.metric);
  }
  text += table.text(100);
  if (s.rows.size() > shown)
    text += fmt::format("{} more constants move it less; --json has them\n", s.rows.size() - shown);
  return text + turns_text(s);
}

OrderedJson sensitivity_json(const Sensitivity& s) {
  OrderedJson json{{"metric", s.metric},
                   {"lower_is_better", s.lower_is_better},
                   {"by", s.by},
                   {"deployments", s.deployments},
                   {"as_it_is", s.as_it_is},
                   {"best", s.best(s.as_it_is)},
                   {"lead", s.lead(s.as_it_is)},
                   {"constants", OrderedJson::array()}};
  for (const SensitivityRow& row : s.rows) {
    json["constants"].push_back({{"name", row.name},
                                 {"basis", row.basis},
                                 {"less", row.less},
                                 {"more", row.more},
                                 {"lead_less", s.lead(row.less)},
                                 {"lead_more", s.lead(row.more)},
                                 {"turns", s.turns(row)}});
  }
  return json;
}

}  // namespace moesim
