// SPDX-License-Identifier: Apache-2.0
#include "sim/report/sections/energy.hpp"

#include <algorithm>
#include <numeric>
#include <set>

#include "sim/experiment/pools.hpp"
#include "sim/report/write_up.hpp"

namespace moesim {

using enum Better;

Fields<SiteEnergyStats> rows_of(const SiteEnergyStats*) {
  using S = SiteEnergyStats;
  return {
      {"watts_per_gpu", &S::watts_per_gpu, "(watts_per_gpu + overhead_per_gpu) x pue", "W", less},
      {"joules_per_output_token", &S::joules_per_output_token, "of the site, over tokens emitted",
       "J", less},
      {"joules_per_token", &S::joules_per_token, "the same, over prompt tokens as well", "J", less},
      {"output_tokens_per_s_per_mw", &S::output_tokens_per_s_per_mw,
       "output_throughput over the site's megawatts", "tokens/s", more},
      {if_any, "electricity_per_million_output_tokens", &S::electricity_per_million_output_tokens,
       "at dollars_per_kwh", "dollars", less},
      {if_any, "cost_with_electricity_per_million_output_tokens", &S::cost_with_electricity,
       "price of the GPUs and electricity, where the price holds no electricity", "dollars", less}};
}

Fields<EnergyStats> rows_of(const EnergyStats*) {
  using S = EnergyStats;
  return {{"joules", &S::joules, "drawn by all GPUs while measured", "J"},
          {"joules_per_output_token", &S::joules_per_output_token, "joules over tokens emitted",
           "J", less},
          {"joules_per_token", &S::joules_per_token,
           "joules over tokens emitted, and prompt tokens of requests with their first token", "J",
           less},
          {"watts_per_gpu", &S::watts_per_gpu, "mean draw of a GPU", "W"},
          {"share_of_limit", &S::share_of_limit, "mean draw over the data sheet's limit", "share"},
          {"output_tokens_per_s_per_mw", &S::output_tokens_per_s_per_mw,
           "output_throughput over the GPUs' megawatts", "tokens/s", more},
          {"tokens_per_s_per_mw", &S::tokens_per_s_per_mw,
           "total_token_throughput over the GPUs' megawatts", "tokens/s", more},
          {"shares/PART", &S::shares,
           "joules of computing by part; of exchanges what is above waiting; waits: barriers, "
           "links, gaps between kernels; between_steps: no step under way",
           "share of energy"},
          {if_any, "site", &S::site, "with overhead and PUE, where power is given"},
          {"source", &S::source, "where the power of GPUs comes from"}};
}

namespace {

// (GPUs + overhead) x PUE, and what that costs.
SiteEnergyStats site_of(const SitePower& site, const EnergyStats& gpus, const Metrics& metrics) {
  constexpr double joules_per_kwh = 3.6e6;
  SiteEnergyStats stats;
  stats.watts_per_gpu =
      (gpus.watts_per_gpu + site.overhead_per_gpu.value_or(Watts{}).value()) * site.pue;
  const double times = ratio(stats.watts_per_gpu, gpus.watts_per_gpu);
  stats.joules_per_output_token = gpus.joules_per_output_token.value_or(0) * times;
  stats.joules_per_token = gpus.joules_per_token.value_or(0) * times;
  stats.output_tokens_per_s_per_mw = ratio(gpus.output_tokens_per_s_per_mw, times);
  if (!site.dollars_per_kwh || !gpus.joules_per_output_token) return stats;
  const double dollars =
      stats.joules_per_output_token * 1e6 / joules_per_kwh * *site.dollars_per_kwh;
  stats.electricity_per_million_output_tokens = dollars;
  if (metrics.cost_per_million_output_tokens)
    stats.cost_with_electricity = *metrics.cost_per_million_output_tokens + dollars;
  return stats;
}

}  // namespace

// Over all pools and the time that was measured:
//   E = sum over operations of draw x time + idle draw x (GPUs x time - time of computing)
// for each kind of GPU. Nothing where the power of some GPUs is not known.
std::optional<EnergyStats> energy_of(const Experiment& experiment, std::span<const Totals> pools,
                                     const Metrics& metrics) {
  if (!all_gpus(experiment, [](const GpuSpec& gpu) { return gpu.power != nullptr; }))
    return std::nullopt;
  Energy computed;
  double waits = 0, between_steps = 0, limit = 0, gpu_seconds = 0;
  std::set<std::string> names;
  EnergyStats stats;
  for (std::size_t pool = 0; pool < pools.size(); ++pool) {
    const Deployment& e = experiment.pools[pool];
    const Totals& totals = pools[pool];
    const Energy& energy = totals.tokens.energy;
    computed.add(energy);
    const std::vector<GpusOfKind> kinds = kinds_of_gpus(e);
    for (std::size_t kind = 0; kind < kinds.size(); ++kind) {
      const auto& [gpu, gpus] = kinds[kind];
      const GpuPower& power = *gpu.power;
      // Experts compute on the second kind alone.
      const double computing = kinds.size() == 1 ? energy.computing
                               : kind == 0       ? energy.computing - energy.computing_experts
                                                 : energy.computing_experts;
      double in_steps = 0;
      for (const auto& [number, group] : totals.groups)
        in_steps += group.busy * (gpus / e.instances);
      const double all = gpus * metrics.duration_s;
      waits += power.idle.value() * (in_steps - computing);
      between_steps += power.idle.value() * std::max(0.0, all - in_steps);
      limit += power.limit.value() * all;
      gpu_seconds += all;
      if (names.insert(gpu.name).second)
        stats.source += (stats.source.empty() ? "" : "; ") + power.source;
    }
  }
  if (gpu_seconds <= 0) return std::nullopt;
  const auto& parts = computed.joules;
  stats.joules = std::accumulate(parts.begin(), parts.end(), waits + between_steps);
  const double seconds = metrics.duration_s, megawatts = stats.joules / seconds / 1e6;
  const auto per_token = [&](double throughput) {
    return throughput > 0 ? std::optional(stats.joules / seconds / throughput) : std::nullopt;
  };
  stats.joules_per_output_token = per_token(metrics.output_throughput);
  stats.joules_per_token = per_token(metrics.total_token_throughput);
  stats.watts_per_gpu = stats.joules / gpu_seconds;
  stats.share_of_limit = stats.joules / limit;
  stats.output_tokens_per_s_per_mw = metrics.output_throughput / megawatts;
  stats.tokens_per_s_per_mw = metrics.total_token_throughput / megawatts;
  for (std::size_t part = 0; part < parts.size(); ++part)
    if (parts[part] > 0) stats.shares.emplace_back(part_names[part], parts[part] / stats.joules);
  stats.shares.emplace_back("waits", waits / stats.joules);
  stats.shares.emplace_back("between_steps", between_steps / stats.joules);
  if (const auto& site = experiment.decode().site_power)
    stats.site = site_of(*site, stats, metrics);
  return stats;
}

}  // namespace moesim
