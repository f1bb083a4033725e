// SPDX-License-Identifier: Apache-2.0
#include "tools/plan/deployments.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <map>
#include <set>
#include <span>

#include <fmt/format.h>

#include "hardware/find_value.hpp"
#include "hardware/shipped.hpp"
#include "models/context_parallel.hpp"
#include "sim/engines/serving_engine.hpp"
#include "traces/gating/presets.hpp"

namespace moesim {

namespace {

// Nodes of eight GPUs behind NVSwitch, one 400 Gb/s NIC each: what a GPU without a cluster file is
// taken to stand in.
constexpr const char* common_node = "h200x8";

ConfigNode shipped_cluster(const std::string& name) {
  return ConfigNode::from_file(*shipped_file(Shipped::cluster, name));
}

std::string gpu_named_in(const ConfigNode& cluster) {
  const Json& gpu = cluster.json().at("gpu");
  return gpu.is_string() ? std::filesystem::path(gpu.get<std::string>()).stem().string() : "";
}

// As many of the nodes of a cluster as hold the GPUs.
Json resized(const ConfigNode& like, const std::string& gpu, int gpus) {
  Json cluster = like.json();
  const int per_node = std::min(gpus, cluster.at("gpus_per_node").get<int>());
  if (gpus % per_node != 0) {
    throw ConfigError(fmt::format("--gpus {}: a node holds {} {}; use a multiple of {}", gpus,
                                  per_node, gpu, per_node));
  }
  const bool rack = cluster.at("scale_up_domain") > cluster.at("gpus_per_node");
  cluster["name"] = fmt::format("{} x {}", gpus, gpu);
  cluster["gpu"] = gpu;
  cluster["gpus_per_node"] = per_node;
  cluster["nodes"] = gpus / per_node;
  cluster["scale_up_domain"] =
      rack ? std::min(gpus, cluster.at("scale_up_domain").get<int>()) : per_node;
  return cluster;
}

}  // namespace

Json cluster_of(const std::string& gpu, int gpus, std::string& remark) {
  const ConfigNode named(gpu, "plan", "/gpu");
  if (!shipped_file(Shipped::gpu, gpu)) named_or_inline(named, Shipped::gpu);  // says what there is
  const std::string name = shipped_file(Shipped::gpu, gpu)->stem().string();
  std::optional<ConfigNode> like;
  for (const std::string& cluster : shipped_names(Shipped::cluster)) {
    const ConfigNode file = shipped_cluster(cluster);
    if (gpu_named_in(file) != name) continue;
    if (read_cluster(file).gpus() == gpus) return cluster;
    if (!like) like = file;
  }
  if (!like) {
    remark = fmt::format(
        "no cluster of {} comes along: nodes of 8 with one 400 Gb/s NIC per GPU "
        "are taken; --cluster FILE says otherwise",
        name);
  }
  return resized(like ? *like : shipped_cluster(common_node), name, gpus);
}

namespace {

// How the engine exchanges tokens unless told otherwise is in its preset.
void exchange_as_engine(const PlanQuestion& question, Json& config) {
  if (find_engine(question.engine) == nullptr)
    config["dispatch"] = {{"prefill", "all_gather"}, {"decode", "all_gather"}};
}

// Distinct synthetic requests. Placements are fitted on half of them, and the others are served: as
// many as the limit on sequences below.
constexpr int synthetic_requests = 1024;

Json gating_of(const PlanQuestion& question, const MoeModel& model) {
  if (!question.trace.empty()) return {{"type", "recorded"}, {"trace", question.trace}};
  return {{"type", "topical"},
          {"preset", preset_of(model).preset.name},
          {"requests", synthetic_requests},
          {"prompt_rows", 16},
          {"decode_rows", 32}};
}

Precision precision_named(std::string_view option, const std::string& name) {
  const auto found = std::ranges::find(precision_names, name);
  if (found != precision_names.end())
    return static_cast<Precision>(found - precision_names.begin());
  throw ConfigError(fmt::format("{}: there is no precision \"{}\"; one of: {}", option, name,
                                join_names(precision_names)));
}

// What the question says of precisions, else what the model's files do; null where neither does.
// Presets of engines go by what an experiment says.
Json precision_of(const PlanQuestion& question, const MoeModel& model,
                  const std::optional<StoredPrecision>& stored) {
  Precision experts = stored ? stored->plan.experts : Precision::bf16;
  Precision others = stored ? stored->plan.attention : Precision::bf16;
  if (!question.precision.empty()) {
    const std::size_t slash = question.precision.find('/');
    experts = precision_named("--precision", question.precision.substr(0, slash));
    const bool four_bits = bytes_per_element(experts) < 1;
    if (slash != std::string::npos) {
      others = precision_named("--precision", question.precision.substr(slash + 1));
    } else if (!four_bits || model.experts == 0) {
      others = experts;
    }
  }
  if (!stored && question.precision.empty() && question.kv_cache_dtype.empty()) return {};
  const auto name = [](Precision p) { return precision_names[static_cast<std::size_t>(p)]; };
  Json precision{{"experts", name(experts)}, {"attention", name(others)}};
  if (!question.kv_cache_dtype.empty())
    precision["kv_cache"] = name(precision_named("--kv-cache-dtype", question.kv_cache_dtype));
  return precision;
}

}  // namespace

Json base_deployment(const PlanQuestion& question, const MoeModel& model,
                     const std::optional<StoredPrecision>& stored) {
  Json config{
      {"cluster", question.cluster},
      {"model", question.model},
      {"token_routing", {{"prefill", "even"}, {"decode", "even"}}},
      {"workload",
       {{"arrivals", {{"type", "poisson"}, {"rate", question.rate}}},
        {"lengths", {{"type", "fixed"}, {"prompt", question.prompt}, {"output", question.output}}},
        {"gating", gating_of(question, model)},
        {"requests", 1000}}},
      {"measurement", {{"warmup", .1}, {"expert_counts", false}}},
      {"seed", question.seed}};
  const ServingEngine* engine = find_engine(question.engine);
  config["scheduling"] = {{"type", engine == nullptr ? "chunked_prefill" : engine->scheduler()},
                          {"max_num_batched_tokens", 8192},
                          {"max_num_seqs", 512}};
  config["engine"] = {{"name", question.engine}};
  exchange_as_engine(question, config);
  if (model.experts > 0) {
    config["placement"] = {
        {"type", "eplb"}, {"replication", 1.0}, {"load", {{"from", "trace"}, {"disjoint", true}}}};
  }
  if (Json precision = precision_of(question, model, stored); !precision.is_null())
    config["precision"] = std::move(precision);
  if (!question.ttft.empty()) config["slo"]["ttft"] = question.ttft;
  if (!question.tpot.empty()) config["slo"]["tpot"] = question.tpot;
  return config;
}

namespace {

std::vector<int> divisors(int n) {
  std::vector<int> all;
  for (int d = 1; d <= n; ++d) {
    if (n % d == 0) all.push_back(d);
  }
  return all;
}

// Prompts to their experts by the all-to-all, single tokens straight to each.
Json deep_ep() { return {{"prefill", "all_to_all"}, {"decode", "low_latency"}}; }

// Both by the all-to-all: what GPUs for experts alone had gathered would have no way back.
Json all_to_all() { return {{"prefill", "all_to_all"}, {"decode", "all_to_all"}}; }

constexpr int widest_tp = 16;

// Layouts of one group of that many GPUs.
std::vector<ParallelPlan> layouts(int gpus, const MoeModel& model, int domain) {
  constexpr int deepest = 4;
  std::vector<ParallelPlan> plans;
  for (const int pp : divisors(gpus)) {
    const int stage = gpus / pp;
    if (pp > deepest || (pp > 1 && domain % stage != 0 && stage % domain != 0)) continue;
    for (const int tp : divisors(stage)) {
      if (tp > std::min(widest_tp, domain) || !model.cut_fault(tp).empty()) continue;
      std::set<int> eps{1};
      if (model.experts >= stage) eps.insert(stage);
      for (const int ep : eps) plans.push_back({stage / tp, tp, ep, pp});
    }
  }
  return plans;
}

// The same with DCP, of each layout.
std::vector<ParallelPlan> striped(std::span<const ParallelPlan> usual, const MoeModel& model) {
  std::vector<ParallelPlan> plans;
  for (ParallelPlan plan : usual) {
    const int most = most_stripes(model, plan.tp);
    for (const int dcp : {most, most / 2}) {
      if (dcp < 2 || most % dcp != 0) continue;
      plan.dcp = dcp;
      plans.push_back(plan);
    }
  }
  return plans;
}

// The same with each expert cut over some of the GPUs, of each layout that cuts experts over all.
std::vector<ParallelPlan> sliced(std::span<const ParallelPlan> usual, const MoeModel& model) {
  std::vector<ParallelPlan> plans;
  for (ParallelPlan plan : usual) {
    if (plan.ep != 1) continue;
    for (const int ep : divisors(plan.stage_gpus())) {
      if (ep == 1 || ep == plan.stage_gpus() || ep > model.experts) continue;
      plan.ep = ep;
      plans.push_back(plan);
    }
  }
  return plans;
}

// Layouts of one group of that many GPUs that gives a quarter, half or three quarters of them to
// experts alone. Attention is data parallel, or one rank of all its GPUs.
std::vector<ParallelPlan> apart(int gpus, const MoeModel& model, int domain) {
  std::vector<ParallelPlan> plans;
  for (const int quarters : {1, 2, 3}) {
    const int experts = gpus * quarters / 4, attention = gpus - experts;
    if (gpus * quarters % 4 != 0 || experts < 1 || experts > model.experts) continue;
    for (const int tp : std::set{1, attention}) {
      if (tp > std::min(widest_tp, domain) || !model.cut_fault(tp).empty()) continue;
      ParallelPlan plan{attention / tp, tp, experts, 1};
      plan.ffn_gpus = experts;
      plans.push_back(plan);
    }
  }
  return plans;
}

Json json_of(const ParallelPlan& plan) {
  Json json{{"dp", plan.dp}, {"tp", plan.tp}, {"ep", plan.ep}, {"pp", plan.pp}};
  if (plan.dcp > 1) json["dcp"] = plan.dcp;
  if (plan.afd()) json["ffn_gpus"] = plan.ffn_gpus;
  return json;
}

ParallelPlan plan_of(const Json& group) {
  const Json& json = group.at("parallel");
  ParallelPlan plan{json.at("dp"), json.at("tp"), json.at("ep"), json.at("pp")};
  plan.dcp = json.value("dcp", 1);
  plan.ffn_gpus = json.value("ffn_gpus", 0);
  return plan;
}

}  // namespace

namespace {

// A group under every dispatch that makes a difference.
template <class Emit>
void for_each_dispatch(Json group, Emit&& emit) {
  const ParallelPlan plan = plan_of(group);
  if (plan.afd()) group["dispatch"] = all_to_all();
  emit(group);
  if (!plan.afd() && (plan.dp == 1 || plan.ep == 1)) return;
  group["dispatch"] = deep_ep();
  emit(group);
}

}  // namespace

std::vector<Json> shapes(const Json& base, const MoeModel& model, const ClusterSpec& cluster,
                         Layouts which) {
  const int gpus = cluster.gpus(), domain = cluster.scale_up_domain;
  std::vector<Json> all;
  for (const int group : divisors(gpus)) {
    if (group % domain != 0 && domain % group != 0) continue;
    std::vector<ParallelPlan> plans = layouts(group, model, domain);
    if (which == Layouts::all) {
      for (auto& more : {striped(plans, model), sliced(plans, model), apart(group, model, domain)})
        plans.insert(plans.end(), more.begin(), more.end());
    }
    for (const ParallelPlan& plan : plans) {
      Json config = base;
      config["parallel"] = json_of(plan);
      config["instances"] = gpus / group;
      for_each_dispatch(config, [&](const Json& shape) { all.push_back(shape); });
    }
  }
  return all;
}

namespace {

// The best shapes by what they allow per GPU, each layout once.
std::vector<BoundedShape> best_per_gpu(std::vector<BoundedShape> all, double TuneBound::*phase,
                                       std::size_t most) {
  std::ranges::stable_sort(all, [&](const BoundedShape& a, const BoundedShape& b) {
    return a.bound.*phase > b.bound.*phase;
  });
  std::set<std::string> seen;
  std::vector<BoundedShape> best;
  for (BoundedShape& shape : all) {
    if (best.size() < most && seen.insert(shape.config.at("parallel").dump()).second) {
      best.push_back(std::move(shape));
    }
  }
  return best;
}

// Tokens of a step that decodes so many sequences, their drafts with them.
int decoded_tokens(const Json& deployment, int sequences) {
  const Json* drafts = find_value(deployment, "/speculative/num_speculative_tokens");
  return sequences * (1 + (drafts == nullptr ? 0 : drafts->get<int>()));
}

// Sets that limit on sequences of a group; a pool of decodes alone gets room for their drafts.
void limit_sequences(const Json& deployment, Json& scheduling, int sequences) {
  scheduling["max_num_seqs"] = sequences;
  const int tokens = decoded_tokens(deployment, sequences);
  if (scheduling.at("type") == "decode_only" && tokens > sequences)
    scheduling["max_num_batched_tokens"] = tokens;
}

Json pool(const Json& shape, int instances) {
  Json pool{{"parallel", shape.at("parallel")}, {"instances", instances}};
  if (shape.contains("dispatch")) pool["dispatch"] = shape.at("dispatch");
  return pool;
}

Json pools_of(const Json& prefill, int prefillers, const Json& decode, int decoders) {
  Json config = prefill;
  for (const char* key : {"parallel", "instances", "dispatch"}) config.erase(key);
  config["pools"] = {{"prefill", pool(prefill, prefillers)}, {"decode", pool(decode, decoders)}};
  Json& scheduling = config["pools"]["decode"]["scheduling"] = {{"type", "decode_only"}};
  limit_sequences(config, scheduling, decode.at("scheduling").at("max_num_seqs"));
  return config;
}

// Those that prefill best, of each depth of pipeline, and its smallest group that comes near them:
// a bound takes prompts to be spread evenly, and knows nothing of ranks that wait for the one that
// has some, which are fewer in a pipeline and in a small group.
std::vector<BoundedShape> best_prefillers(const std::vector<BoundedShape>& parts) {
  constexpr std::size_t flat = 3, piped = 2;
  constexpr double near = .7;
  std::map<int, std::vector<BoundedShape>> by_depth;
  for (const BoundedShape& part : parts) by_depth[plan_of(part.config).pp].push_back(part);
  std::vector<BoundedShape> best;
  for (const auto& [depth, of_depth] : by_depth) {
    auto some = best_per_gpu(of_depth, &TuneBound::prefill, depth == 1 ? flat : piped);
    const BoundedShape* small = &some.front();
    for (const BoundedShape& part : of_depth) {
      const bool comes_near = part.bound.prefill > near * some.front().bound.prefill;
      const int gpus = plan_of(part.config).gpus(), fewest = plan_of(small->config).gpus();
      if (comes_near && gpus < fewest) small = &part;
    }
    some.push_back(BoundedShape(*small));
    std::ranges::move(best_per_gpu(std::move(some), &TuneBound::prefill, flat + 1),
                      std::back_inserter(best));
  }
  return best;
}

// The layout as one group that takes all GPUs that are left, where it spreads experts over all.
std::optional<Json> widened(const Json& shape, int gpus, const MoeModel& model, int domain) {
  ParallelPlan plan = plan_of(shape);
  const bool spread = plan.pp == 1 && plan.dp > 1 && plan.ep == plan.gpus();
  if (!spread || gpus <= plan.ep || gpus % plan.tp != 0 || gpus > domain || gpus > model.experts)
    return std::nullopt;
  plan.dp = gpus / plan.tp;
  plan.ep = gpus;
  Json wide = shape;
  wide["parallel"] = json_of(plan);
  return wide;
}

}  // namespace

std::vector<Json> pools(const std::vector<BoundedShape>& bounded, const MoeModel& model,
                        const ClusterSpec& cluster) {
  constexpr std::size_t decoders_looked_at = 3;
  const int gpus = cluster.gpus();
  std::vector<BoundedShape> parts;
  for (const BoundedShape& shape : bounded) {
    const bool half = 2 * plan_of(shape.config).gpus() <= gpus;
    if (half && shape.bound.goodput > 0) parts.push_back(shape);
  }
  std::vector<Json> all;
  for (const BoundedShape& p : best_prefillers(parts)) {
    for (const BoundedShape& d : best_per_gpu(parts, &TuneBound::decode, decoders_looked_at)) {
      const int of_p = plan_of(p.config).gpus(), of_d = plan_of(d.config).gpus();
      // Bounds are of the whole cluster: shares that let both have as many requests.
      const double share = d.bound.decode / (p.bound.prefill + d.bound.decode);
      const int balanced = static_cast<int>(share * gpus / of_p);
      for (const int prefillers : {balanced, balanced + 1}) {
        const int left = gpus - prefillers * of_p;
        if (prefillers < 1 || left < of_d) continue;
        all.push_back(pools_of(p.config, prefillers, d.config, left / of_d));
        if (left % of_d == 0) continue;
        if (const auto wide = widened(d.config, left, model, cluster.scale_up_domain))
          all.push_back(pools_of(p.config, prefillers, *wide, 1));
      }
    }
  }
  // Layouts that differ in size only are one and the same when widened.
  std::set<std::string> seen;
  std::erase_if(all, [&](const Json& config) { return !seen.insert(config.dump()).second; });
  return all;
}

bool is_apart(const Json& deployment) { return deployment.contains("pools"); }

bool is_plain(const Json& deployment) {
  if (is_apart(deployment)) return false;
  const ParallelPlan plan = plan_of(deployment);
  return plan.dp == 1 && plan.pp == 1 && plan.dcp == 1 && !plan.afd() &&
         (plan.ep == 1 || plan.ep == plan.tp);
}

const Json& decode_group(const Json& deployment) {
  return deployment.contains("pools") ? deployment.at("pools").at("decode") : deployment;
}

namespace {

Json& decode_group(Json& deployment) {
  return deployment.contains("pools") ? deployment["pools"]["decode"] : deployment;
}

}  // namespace

std::vector<Json> with_copies(const Json& deployment, const MoeModel& model) {
  std::vector<Json> all{deployment};
  const ParallelPlan plan = plan_of(decode_group(deployment));
  if (model.experts == 0 || plan.ep == 1) return all;
  std::set<int> slots{(model.experts + plan.ep - 1) / plan.ep};
  for (const double replication : {1.125, 1.25, 1.5}) {
    // Ratios that fill every GPU with as many.
    const int per_gpu = static_cast<int>(std::ceil(replication * model.experts / plan.ep - 1e-9));
    if (!slots.insert(per_gpu).second) continue;
    Json config = deployment;
    Json& group = decode_group(config);
    if (!group.contains("placement")) group["placement"] = config.at("placement");
    group["placement"]["replication"] = double(per_gpu) * plan.ep / model.experts;
    all.push_back(config);
    if (plan.afd()) continue;
    config["token_routing"]["decode"] = "metro";
    group["dispatch"]["decode"] = {{"type", "all_gather"}, {"combine", "all_to_all"}};
    all.push_back(std::move(config));
  }
  return all;
}

std::vector<Json> with_chunks(const Json& deployment) {
  std::vector<Json> all{deployment};
  for (const int tokens : {2048, 4096, 16384}) {
    Json config = deployment;
    config["scheduling"]["max_num_batched_tokens"] = tokens;
    const int sequences = config["scheduling"].at("max_num_seqs");
    if (tokens >= decoded_tokens(config, sequences)) all.push_back(std::move(config));
  }
  return all;
}

std::vector<Json> with_drafts(const Json& deployment) {
  std::vector<Json> all{deployment};
  if (!deployment.contains("speculative")) return all;
  all.push_back(deployment);
  all.back().erase("speculative");
  const int most = deployment["speculative"].at("num_speculative_tokens");
  for (const int drafts : std::set<int>{1, most / 2}) {
    if (drafts < 1 || drafts >= most) continue;
    all.push_back(deployment);
    all.back()["speculative"]["num_speculative_tokens"] = drafts;
  }
  return all;
}

std::vector<Json> with_prefill_layouts(const Json& deployment, const MoeModel& model,
                                       const ClusterSpec& cluster) {
  std::vector<Json> all{deployment};
  if (!deployment.contains("pools")) return all;
  const Json& prefill = deployment.at("pools").at("prefill");
  for (const ParallelPlan& plan :
       layouts(plan_of(prefill).gpus(), model, cluster.scale_up_domain)) {
    Json group = prefill;
    group["parallel"] = json_of(plan);
    for_each_dispatch(group, [&](const Json& with_dispatch) {
      if (with_dispatch == prefill) return;
      Json& config = all.emplace_back(deployment);
      config["pools"]["prefill"] = with_dispatch;
    });
  }
  return all;
}

std::vector<Json> with_sequences(const Json& deployment, std::int64_t room) {
  std::vector<Json> all{deployment};
  for (const int sequences : {64, 128, 256, 1024}) {
    if (sequences >= 2 * room) continue;
    Json config = deployment;
    limit_sequences(config, decode_group(config)["scheduling"], sequences);
    all.push_back(std::move(config));
  }
  return all;
}

namespace {

std::string group_text(const Json& group) {
  const ParallelPlan plan = plan_of(group);
  std::string text;
  const auto add = [&](const char* name, int value) {
    if (value > 1) text += fmt::format("{}{}{}", text.empty() ? "" : " ", name, value);
  };
  add("tp", plan.tp), add("dcp", plan.dcp), add("dp", plan.dp);
  if (!plan.afd()) add("ep", plan.ep);
  add("pp", plan.pp);
  if (text.empty()) text = "tp1";
  if (plan.afd()) text += fmt::format(" ffn{}", plan.ffn_gpus);
  const int instances = group.at("instances");
  return instances > 1 ? fmt::format("{} x {}", instances, text) : text;
}

}  // namespace

std::string shape_text(const Json& deployment) {
  if (!deployment.contains("pools")) return group_text(deployment);
  const Json& pools = deployment.at("pools");
  return fmt::format("prefill {}, decode {}", group_text(pools.at("prefill")),
                     group_text(pools.at("decode")));
}

std::string drafts_text(const Json& deployment) {
  const Json* drafts = find_value(deployment, "/speculative/num_speculative_tokens");
  if (drafts == nullptr) return "no drafts";
  return *drafts == 1 ? "1 draft" : fmt::format("{} drafts", drafts->get<int>());
}

std::string routing_text(const Json& deployment) {
  if (deployment.at("token_routing").at("decode") == "metro") return "metro";
  const ParallelPlan plan = plan_of(decode_group(deployment));
  if (!plan.afd() && (plan.dp == 1 || plan.ep == 1)) return "even";
  const Json& group = decode_group(deployment);
  return group.contains("dispatch") && group["dispatch"].at("decode") == "low_latency"
             ? "even+DeepEP"
             : "even";
}

}  // namespace moesim
