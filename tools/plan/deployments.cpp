// SPDX-License-Identifier: Apache-2.0
#include "tools/plan/deployments.hpp"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <set>
#include <span>

#include <fmt/format.h>

#include "hardware/find_value.hpp"
#include "models/context_parallel.hpp"
#include "sim/engines/serving_engine.hpp"
#include "sim/experiment/pools.hpp"

namespace moesim {

namespace {

std::vector<int> divisors(int n) {
  std::vector<int> all;
  for (int d = 1; d <= n; ++d) {
    if (n % d == 0) all.push_back(d);
  }
  return all;
}

// GPUs of a group: what fills them all, and in a small cluster powers of two that leave some idle.
// Five GPUs divide neither heads nor experts.
std::vector<int> group_sizes(int gpus) {
  constexpr int small = 16;
  std::vector<int> sizes = divisors(gpus);
  for (int group = 2; group < gpus && gpus <= small; group *= 2)
    if (gpus % group != 0) sizes.push_back(group);
  return sizes;
}

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

// Each with a GPU of a rank at tokens of its own (PCP).
std::vector<ParallelPlan> shared(const std::vector<ParallelPlan>& plans, const MoeModel& model) {
  std::vector<ParallelPlan> all;
  if (!divides_prompts(model)) return all;
  for (ParallelPlan plan : plans) {
    if (plan.tp == 1 || plan.pp > 1) continue;
    plan.pcp = plan.tp;
    all.push_back(plan);
  }
  return all;
}

// True if every GPU holds as many experts without copies.
bool is_even(const ParallelPlan& plan, const MoeModel& model) {
  return plan.ep == 1 || model.experts % plan.ep == 0;
}

int fewest_slots(const ParallelPlan& plan, const MoeModel& model) {
  return (model.experts + plan.ep - 1) / plan.ep;
}

// Slots of all GPUs over experts.
double replication(int slots, const ParallelPlan& plan, const MoeModel& model) {
  return double(slots) * plan.ep / model.experts;
}

// Gives every GPU as many slots by copies: engines refuse slots that EP does not divide (SGLang's
// expert_location.py, TensorRT-LLM's load balancer, DeepEP).
void fill_slots(PlannedDeployment& planned, const MoeModel& model) {
  const ParallelPlan& plan = planned.decode.parallel;
  if (is_even(plan, model)) return;
  planned.replication = replication(fewest_slots(plan, model), plan, model);
}

// Ways to try for a group: DeepEP where tokens travel. With AFD gathered tokens have no way back:
// both phases go by the all-to-all.
std::vector<Travel> travels(const PlannedGroup& group) {
  const ParallelPlan& plan = group.parallel;
  if (plan.afd()) return {Travel::all_to_all, Travel::deep_ep};
  if (!plan.exchanges() || plan.ep == 1) return {group.travel};
  return {group.travel, Travel::deep_ep};
}

}  // namespace

std::vector<PlannedDeployment> shapes(const PlannedDeployment& like, const MoeModel& model,
                                      const ClusterSpec& cluster, Layouts which) {
  const int gpus = cluster.gpus(), domain = cluster.scale_up_domain;
  std::vector<PlannedDeployment> all;
  for (const int group : group_sizes(gpus)) {
    if (gpus > domain && group % domain != 0 && domain % group != 0) continue;
    std::vector<ParallelPlan> plans = layouts(group, model, domain);
    if (which == Layouts::all) {
      for (auto& more : {striped(plans, model), sliced(plans, model), shared(plans, model),
                         apart(group, model, domain)})
        plans.insert(plans.end(), more.begin(), more.end());
    }
    for (const ParallelPlan& plan : plans) {
      PlannedDeployment shape = like;
      shape.decode = {.parallel = plan, .instances = gpus / group};
      fill_slots(shape, model);
      for (const Travel travel : travels(shape.decode)) {
        shape.decode.travel = travel;
        all.push_back(shape);
      }
    }
  }
  return all;
}

std::vector<PlannedDeployment> startable(std::vector<PlannedDeployment> planned,
                                         const Json& experiment, const MoeModel& model,
                                         const PrecisionPlan& precision, Layouts which) {
  const ServingEngine* engine = find_engine(text_at(experiment, "/engine/name"));
  if (engine == nullptr || which == Layouts::all) return planned;
  const auto starts = [&](const PlannedGroup& group) {
    return engine->unfit(group.parallel, model, precision).empty();
  };
  // Copies are a decode pool's, and of MXFP4 no engine makes any.
  const bool copies = precision.experts != Precision::mxfp4;
  for (PlannedDeployment& each : planned) {
    Travel& travel = each.decode.travel;
    if (engine->one_dispatch && !each.apart() && travel == Travel::deep_ep)
      travel = Travel::all_to_all;
  }
  std::erase_if(planned, [&](const PlannedDeployment& each) {
    if (each.apart() && each.decode.parallel.pp > 1 && !engine->decodes_in_stages) return true;
    if (!starts(each.decode) || !(copies || is_even(each.decode.parallel, model))) return true;
    return each.apart() && !(starts(*each.prefill) && is_even(each.prefill->parallel, model));
  });
  return planned;
}

namespace {

// The best shapes by what they allow per GPU, each layout once.
std::vector<BoundedShape> best_per_gpu(std::vector<BoundedShape> all, double TuneBound::*phase,
                                       std::size_t most) {
  std::ranges::stable_sort(all, [&](const BoundedShape& a, const BoundedShape& b) {
    return a.bound.*phase > b.bound.*phase;
  });
  std::vector<BoundedShape> best;
  const auto layout = [](const BoundedShape& of) { return of.shape.decode.parallel; };
  for (BoundedShape& shape : all) {
    if (best.size() < most && std::ranges::find(best, layout(shape), layout) == best.end())
      best.push_back(std::move(shape));
  }
  return best;
}

PlannedDeployment pools_of(const PlannedDeployment& prefill, int prefillers,
                           const PlannedDeployment& decode, int decoders) {
  PlannedDeployment pools = decode;
  pools.prefill = prefill.decode;
  pools.prefill->instances = prefillers;
  pools.decode.instances = decoders;
  return pools;
}

const ParallelPlan& plan_of(const BoundedShape& shape) { return shape.shape.decode.parallel; }

// Shapes that prefill best, of each depth of pipeline, and its smallest group that comes near them.
// A bound takes prompts to be spread evenly, and knows nothing of ranks that wait for the one that
// has some. Such ranks are fewer in a pipeline and in a small group.
std::vector<BoundedShape> best_prefillers(const std::vector<BoundedShape>& parts) {
  constexpr std::size_t flat = 3, piped = 2;
  constexpr double near = .7;
  std::map<int, std::vector<BoundedShape>> by_depth;
  for (const BoundedShape& part : parts) by_depth[plan_of(part).pp].push_back(part);
  std::vector<BoundedShape> best;
  for (const auto& [depth, of_depth] : by_depth) {
    auto some = best_per_gpu(of_depth, &TuneBound::prefill, depth == 1 ? flat : piped);
    const BoundedShape* small = &some.front();
    for (const BoundedShape& part : of_depth) {
      const bool comes_near = part.bound.prefill > near * some.front().bound.prefill;
      if (comes_near && plan_of(part).gpus() < plan_of(*small).gpus()) small = &part;
    }
    some.push_back(BoundedShape(*small));
    std::ranges::move(best_per_gpu(std::move(some), &TuneBound::prefill, flat + 1),
                      std::back_inserter(best));
  }
  return best;
}

// The layout as one group that takes all GPUs that are left, where it spreads experts over all or
// cuts each over all.
std::optional<PlannedDeployment> widened(const PlannedDeployment& shape, int gpus,
                                         const MoeModel& model, int domain) {
  PlannedDeployment wide = shape;
  ParallelPlan& plan = wide.decode.parallel;
  const bool spread = plan.ep == plan.gpus(), cut = plan.ep == 1 && model.experts > 0;
  if (plan.pp > 1 || plan.dp == 1 || !(spread || cut)) return std::nullopt;
  if (gpus <= plan.gpus() || gpus % plan.tp != 0 || gpus > domain) return std::nullopt;
  if (spread ? gpus > model.experts : model.expert_width % gpus != 0) return std::nullopt;
  plan.dp = gpus / plan.tp;
  if (spread) plan.ep = gpus;
  fill_slots(wide, model);
  return wide;
}

}  // namespace

std::vector<PlannedDeployment> pools(const std::vector<BoundedShape>& bounded,
                                     const MoeModel& model, const ClusterSpec& cluster) {
  constexpr std::size_t decoders_looked_at = 3;
  const int gpus = cluster.gpus();
  std::vector<BoundedShape> parts, decoding;
  for (const BoundedShape& shape : bounded) {
    const bool half = 2 * plan_of(shape).gpus() <= gpus;
    if (!half || shape.bound.goodput <= 0) continue;
    parts.push_back(shape);
    // A pool that only decodes has no prompts for PCP to divide.
    if (plan_of(shape).pcp == 1) decoding.push_back(shape);
  }
  std::vector<PlannedDeployment> all;
  // Layouts that differ in size only are one and the same when widened.
  const auto add = [&](const PlannedDeployment& planned) {
    if (std::ranges::find(all, planned) == all.end()) all.push_back(planned);
  };
  std::erase_if(parts, [&](const BoundedShape& part) { return !is_even(plan_of(part), model); });
  for (const BoundedShape& p : best_prefillers(parts)) {
    for (const BoundedShape& d : best_per_gpu(decoding, &TuneBound::decode, decoders_looked_at)) {
      const int of_p = plan_of(p).gpus(), of_d = plan_of(d).gpus();
      // Bounds are of the whole cluster: shares that let both have as many requests.
      const double share = d.bound.decode / (p.bound.prefill + d.bound.decode);
      const int balanced = static_cast<int>(share * gpus / of_p);
      for (const int prefillers : {balanced, balanced + 1}) {
        const int left = gpus - prefillers * of_p;
        if (prefillers < 1 || left < of_d) continue;
        add(pools_of(p.shape, prefillers, d.shape, left / of_d));
        if (left % of_d == 0) continue;
        if (const auto wide = widened(d.shape, left, model, cluster.scale_up_domain))
          add(pools_of(p.shape, prefillers, *wide, 1));
      }
    }
  }
  return all;
}

std::vector<PlannedDeployment> with_copies(const PlannedDeployment& planned,
                                           const MoeModel& model) {
  std::vector<PlannedDeployment> all{planned};
  const ParallelPlan& plan = planned.decode.parallel;
  if (model.experts == 0 || plan.ep == 1) return all;
  std::set<int> slots{fewest_slots(plan, model)};
  for (const double ratio : {1.125, 1.25, 1.5}) {
    // Ratios that fill every GPU with as many.
    const int per_gpu = static_cast<int>(std::ceil(ratio * model.experts / plan.ep - 1e-9));
    if (!slots.insert(per_gpu).second) continue;
    all.push_back(planned);
    all.back().replication = replication(per_gpu, plan, model);
    if (plan.afd()) continue;
    all.push_back(all.back());
    all.back().metro = true;
  }
  return all;
}

namespace {

// Tokens of a step that decodes so many sequences, their drafts with them.
int decoded_tokens(int sequences, int drafts) { return sequences * (1 + drafts); }

}  // namespace

std::vector<PlannedDeployment> with_chunks(const PlannedDeployment& planned) {
  std::vector<PlannedDeployment> all{planned};
  // A limit on sequences that decode apart is no limit of what prefills, which has the usual one.
  const int sequences = planned.apart() ? usual_sequences : planned.sequences;
  const int decoded = decoded_tokens(sequences, planned.drafts);
  for (const int tokens : {512, 1024, 2048, 4096, 16384}) {
    if (tokens < decoded) continue;
    all.push_back(planned);
    all.back().chunk = tokens;
  }
  return all;
}

std::vector<PlannedDeployment> with_drafts(const PlannedDeployment& planned) {
  std::vector<PlannedDeployment> all{planned};
  if (planned.drafts == 0) return all;
  all.push_back(planned);
  all.back().drafts = 0;
  for (const int drafts : std::set<int>{1, planned.drafts / 2}) {
    if (drafts < 1 || drafts >= planned.drafts) continue;
    all.push_back(planned);
    all.back().drafts = drafts;
  }
  return all;
}

std::vector<PlannedDeployment> with_prefill_layouts(const PlannedDeployment& planned,
                                                    const MoeModel& model,
                                                    const ClusterSpec& cluster, Layouts which) {
  std::vector<PlannedDeployment> all{planned};
  if (!planned.apart()) return all;
  const PlannedGroup& prefill = *planned.prefill;
  for (const ParallelPlan& plan :
       layouts(prefill.parallel.gpus(), model, cluster.scale_up_domain)) {
    PlannedGroup group = prefill;
    group.parallel = plan;
    std::vector<ParallelPlan> cuts{plan};
    if (which == Layouts::all) std::ranges::move(shared({plan}, model), std::back_inserter(cuts));
    for (const ParallelPlan& cut : cuts) {
      group.parallel = cut;
      for (const Travel travel : travels(group)) {
        PlannedDeployment other = planned;
        other.prefill = group;
        other.prefill->travel = travel;
        if (std::ranges::find(all, other) == all.end()) all.push_back(std::move(other));
      }
    }
  }
  return all;
}

std::vector<PlannedDeployment> with_one_kernel(const PlannedDeployment& planned) {
  std::vector<PlannedDeployment> all{planned};
  const auto fuse = [](PlannedGroup& group) {
    const ParallelPlan& plan = group.parallel;
    const bool whole = plan.ep > 1 && plan.ep == plan.expert_gpus();
    if (!plan.exchanges() || plan.afd() || !whole) return false;
    group.travel = Travel::mega_moe;
    return true;
  };
  PlannedDeployment other = planned;
  if (planned.apart() && fuse(*other.prefill)) all.push_back(other);
  if (!planned.metro && fuse(other.decode)) all.push_back(other);
  return all;
}

std::vector<PlannedDeployment> with_sequences(const PlannedDeployment& planned, std::int64_t room) {
  std::vector<PlannedDeployment> all{planned};
  for (const int sequences : {64, 128, 256, 1024}) {
    if (sequences >= 2 * room) continue;
    all.push_back(planned);
    all.back().sequences = sequences;
  }
  return all;
}

namespace {

std::string group_text(const PlannedGroup& group) {
  return layout_text(group.parallel, group.instances);
}

}  // namespace

bool PlannedDeployment::plain() const {
  const ParallelPlan& plan = decode.parallel;
  return !apart() && plan.dp == 1 && plan.pp == 1 && plan.dcp == 1 && plan.pcp == 1 &&
         !plan.afd() && (plan.ep == 1 || plan.ep == plan.tp);
}

std::string PlannedDeployment::shape() const {
  if (!apart()) return group_text(decode);
  return fmt::format("prefill {}, decode {}", group_text(*prefill), group_text(decode));
}

std::string PlannedDeployment::routing() const {
  if (metro) return "metro";
  const ParallelPlan& plan = decode.parallel;
  const bool travels = plan.afd() || (plan.dp > 1 && plan.ep > 1);
  if (travels && decode.travel == Travel::mega_moe) return "even+MegaMoE";
  const bool gathers_else = !plan.afd() && decode.travel == Travel::all_to_all;
  return travels && (gathers_else || decode.travel == Travel::deep_ep) ? "even+DeepEP" : "even";
}

std::string PlannedDeployment::drafts_text() const {
  if (drafts == 0) return "no drafts";
  return drafts == 1 ? "1 draft" : fmt::format("{} drafts", drafts);
}

// Choices as keys of an experiment, and back.
namespace {

Json json_of(const ParallelPlan& plan) {
  Json json{{"dp", plan.dp}, {"tp", plan.tp}, {"ep", plan.ep}, {"pp", plan.pp}};
  if (plan.pcp > 1) json["pcp"] = plan.pcp;
  if (plan.dcp > 1) json["dcp"] = plan.dcp;
  if (plan.afd()) json["ffn_gpus"] = plan.ffn_gpus;
  return json;
}

ParallelPlan plan_in(const Json& json) {
  ParallelPlan plan{json.at("dp"), json.at("tp"), json.at("ep"), json.at("pp")};
  plan.pcp = json.value("pcp", 1);
  plan.dcp = json.value("dcp", 1);
  plan.ffn_gpus = json.value("ffn_gpus", 0);
  return plan;
}

// Dispatch of a group; null where the engine's preset says it.
Json dispatch_of(Travel travel, const std::string& engine) {
  switch (travel) {
    case Travel::deep_ep: return {{"prefill", "all_to_all"}, {"decode", "low_latency"}};
    case Travel::all_to_all: return {{"prefill", "all_to_all"}, {"decode", "all_to_all"}};
    case Travel::mega_moe: return {{"prefill", "mega_moe"}, {"decode", "mega_moe"}};
    case Travel::as_engine: break;
  }
  return engine_dispatch(engine);
}

Travel travel_in(const Json& group) {
  if (!group.contains("dispatch")) return Travel::as_engine;
  // METRO's decodes are gathered whatever prompts do.
  const Json& dispatch = group.at("dispatch");
  if (dispatch.value("prefill", Json()) == "mega_moe") return Travel::mega_moe;
  if (dispatch.value("prefill", Json()) != "all_to_all") return Travel::as_engine;
  return dispatch.at("decode") == "all_to_all" ? Travel::all_to_all : Travel::deep_ep;
}

void put_group(const PlannedGroup& group, const std::string& engine, Json& keys) {
  keys["parallel"] = json_of(group.parallel);
  keys["instances"] = group.instances;
  keys.erase("dispatch");
  if (Json dispatch = dispatch_of(group.travel, engine); !dispatch.is_null())
    keys["dispatch"] = std::move(dispatch);
}

PlannedGroup group_in(const Json& keys) {
  return {plan_in(keys.at("parallel")), keys.at("instances"), travel_in(keys)};
}

}  // namespace

Json with_choices(Json experiment, const PlannedDeployment& planned) {
  const std::string engine = experiment.at("engine").at("name");
  for (const char* key : {"parallel", "instances", "dispatch", "pools"}) experiment.erase(key);
  Json& scheduling = experiment["scheduling"];
  scheduling["max_num_batched_tokens"] = planned.chunk;
  Json* group = &experiment;
  if (planned.apart()) {
    Json& pools = experiment["pools"];
    put_group(*planned.prefill, engine, pools["prefill"]);
    group = &pools["decode"];
    Json& limits =
        (*group)["scheduling"] = {{"type", "decode_only"}, {"max_num_seqs", planned.sequences}};
    const int tokens = decoded_tokens(planned.sequences, planned.drafts);
    if (tokens > planned.sequences) limits["max_num_batched_tokens"] = tokens;
  }
  scheduling["max_num_seqs"] = planned.apart() ? usual_sequences : planned.sequences;
  put_group(planned.decode, engine, *group);
  if (experiment.contains("placement")) {
    experiment["placement"]["replication"] = 1.0;
    if (planned.apart() && planned.replication != 1)
      (*group)["placement"] = experiment.at("placement");
    if (planned.replication != 1) (*group)["placement"]["replication"] = planned.replication;
  }
  experiment["token_routing"]["decode"] = planned.metro ? "metro" : "even";
  if (planned.metro)
    (*group)["dispatch"]["decode"] = {{"type", "all_gather"}, {"combine", "all_to_all"}};
  if (planned.drafts == 0) {
    experiment.erase("speculative");
  } else {
    experiment["speculative"]["num_speculative_tokens"] = planned.drafts;
  }
  return experiment;
}

PlannedDeployment choices_in(const Json& experiment) {
  PlannedDeployment planned;
  const Json* group = &experiment;
  if (experiment.contains("pools")) {
    planned.prefill = group_in(experiment.at("pools").at("prefill"));
    group = &experiment.at("pools").at("decode");
  }
  if (group->contains("parallel")) planned.decode = group_in(*group);
  for (const Json* keys : {&experiment, group}) {
    if (keys->contains("placement")) planned.replication = keys->at("placement").at("replication");
    planned.sequences = keys->at("scheduling").at("max_num_seqs");
  }
  planned.chunk = experiment.at("scheduling").at("max_num_batched_tokens");
  planned.metro = experiment.at("token_routing").at("decode") == "metro";
  if (experiment.contains("speculative"))
    planned.drafts = experiment.at("speculative").at("num_speculative_tokens");
  return planned;
}

}  // namespace moesim
