// SPDX-License-Identifier: Apache-2.0
#include "sim/failures/failures.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "hardware/at.hpp"

namespace moesim {

namespace {

// The ranks behind each of these GPUs, ascending, each once.
std::vector<int> ranks_of(const std::vector<int>& gpus, int gpus_per_rank) {
  std::vector<int> ranks;
  for (const int gpu : gpus) {
    if (ranks.empty() || ranks.back() != gpu / gpus_per_rank) ranks.push_back(gpu / gpus_per_rank);
  }
  return ranks;
}

Outage read_outage(const ConfigNode& node, const ClusterSpec& cluster, const ParallelPlan& plan,
                   int instances) {
  return read_object(node, outage_keys, [&](ConfigReader& reader) {
    Outage outage;
    if (reader.optional("instance")) {
      outage.instance = static_cast<int>(reader.integer("instance", {0, double(instances - 1)}));
    }
    const bool all_fails = reader.has("instance") && !reader.has("node") && !reader.has("gpu");
    const bool node_fails = reader.has("node");
    const int width = all_fails ? plan.gpus() : node_fails ? cluster.gpus_per_node : 1;
    const int count = (plan.gpus() + width - 1) / width;
    const char* const key = node_fails ? "node" : "gpu";
    const auto index =
        all_fails ? 0 : static_cast<int>(reader.integer(key, {0, double(count - 1)}));
    outage.what = fmt::format("{} {}", node_fails ? "node" : "GPU", index);
    if (all_fails) outage.what = fmt::format("instance {}", outage.instance);
    outage.at = Time(to_duration(reader.quantity<Seconds>("at")));
    if (reader.has("recovers_after")) {
      outage.recovers_after = to_duration(reader.quantity<Seconds>("recovers_after"));
    }
    std::vector<int> failed;
    for (int gpu = index * width; gpu < std::min((index + 1) * width, plan.gpus()); ++gpu) {
      failed.push_back(gpu);
    }
    outage.dp_ranks = ranks_of(failed, plan.tp);
    for (const int rank : outage.dp_ranks) {
      for (int i = 0; i < plan.tp; ++i) outage.gpus.push_back(rank * plan.tp + i);
    }
    outage.ep_ranks = ranks_of(outage.gpus, plan.moe_tp());
    return outage;
  });
}

// How many attention ranks of a group are down at that moment.
std::size_t ranks_down(const std::vector<Outage>& outages, int instance, Time now) {
  std::size_t down = 0;
  for (const Outage& o : outages) {
    const bool lasts = !o.recovers_after || o.at + *o.recovers_after > now;
    if (o.instance == instance && o.at <= now && lasts) down += o.dp_ranks.size();
  }
  return down;
}

// Checks what is down right after an outage began, itself included.
void check_rest(const std::vector<Outage>& outages, const Outage& now, const ConfigNode& node,
                const ParallelPlan& plan, const PlacementProblem& problem, int instances) {
  std::vector<char> dp(at(plan.dp), 1), ep(at(plan.ep), 1);
  for (const Outage& other : outages) {
    const bool lasts = !other.recovers_after || other.at + *other.recovers_after > now.at;
    if (other.instance != now.instance || other.at > now.at || !lasts) continue;
    for (const int rank : other.dp_ranks) {
      if (dp[at(rank)] == 0) node.fail("{} is down already", now.what);
      dp[at(rank)] = 0;
    }
    for (const int rank : other.ep_ranks) ep[at(rank)] = 0;
  }
  if (std::count(dp.begin(), dp.end(), 1) == 0) {
    for (int i = 0; i < instances; ++i) {
      if (ranks_down(outages, i, now.at) < dp.size()) return;  // others serve
    }
    node.fail("without {} no attention rank is left; use more DP ranks", now.what);
  }
  const auto live = std::count(ep.begin(), ep.end(), 1);
  if (live == 0 && problem.experts > 0) {
    node.fail("without {} no EP rank is left for {} experts; use more EP ranks", now.what,
              problem.experts);
  }
}

}  // namespace

std::span<const Key> outage_keys() {
  static constexpr Form index = form::integer(0, 1 << 20);
  static constexpr Key keys[] = {
      {"at", form::time, required, "when the GPU stops, from the start of the run"},
      {"instance", index, unset("the first"), "EP group; without gpu or node: all of it"},
      {"node", index, unset("a GPU"), "a host with all its GPUs; or ..."},
      {"gpu", index, unset("a node"), "... a GPU, with those that share its tokens"},
      {"recovers_after", form::time, unset("never"), "until it is there again"}};
  return keys;
}

std::span<const Key> failures_keys() {
  static constexpr Form outage = form::object(outage_keys);
  static constexpr Key keys[] = {{"events", form::list(outage), "[]", "what stops"},
                                 {"detection", form::time, "0 s", "until the others know"},
                                 {"reload_bandwidth", form::bytes_per_second, "25 GB/s",
                                  "bandwidth from storage for lost experts"},
                                 {"placement", form::policy("placement"), unset("as it was"),
                                  "placement of the experts on the remaining GPUs"}};
  return keys;
}

FailurePlan read_failures(const ConfigNode& node, const Registry<Placer>& placers,
                          const ClusterSpec& cluster, const ParallelPlan& parallel,
                          const PlacementProblem& problem, int instances) {
  FailurePlan plan;
  const auto read_events = [&](const ConfigNode& events) {
    if (parallel.pp > 1 && !events.list().empty()) {
      node.fail("failures are not modelled with pp {}; use none", parallel.pp);
    }
    if (parallel.afd() && !events.list().empty())
      node.fail("failures are not modelled with ffn_gpus; use none");
    for (const ConfigNode& event : events.list()) {
      plan.outages.push_back(read_outage(event, cluster, parallel, instances));
    }
    std::size_t i = 0;
    for (const ConfigNode& event : events.list()) {
      check_rest(plan.outages, plan.outages[i++], event, parallel, problem, instances);
    }
  };
  const bool bare = node.json().is_array();
  if (bare) read_events(node);
  const ConfigNode options = bare ? ConfigNode(Json::object(), node.file()) : node;
  read_object(options, failures_keys, [&](ConfigReader& reader) {
    if (!bare) read_events(reader.child("events"));
    plan.detection = reader.quantity<Seconds>("detection");
    plan.reload = reader.quantity<BytesPerSecond>("reload_bandwidth");
    if (plan.reload <= BytesPerSecond(0)) {
      reader.child("reload_bandwidth").fail("must be more than zero");
    }
    if (!reader.optional("placement")) return;
    const ConfigNode placement = reader.child("placement");
    plan.placer = placers.make(placement);
    if (!plan.placer->goes_by_load_alone()) {
      placement.fail("does not use the observed tokens per expert; use e.g. \"eplb\"");
    }
  });
  return plan;
}

}  // namespace moesim
