// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>
#include <numeric>
#include <optional>

#include <tbb/parallel_for.h>

#include "hardware/at.hpp"
#include "hardware/kernels/deep_ep.hpp"
#include "hardware/rng.hpp"
#include "models/memory.hpp"
#include "sim/dispatch/token_traffic.hpp"
#include "sim/placement/placement_score.hpp"
#include "sim/replay/replay.hpp"
#include "sim/report/statistics.hpp"
#include "sim/serving/simulator.hpp"
#include "sim/serving/typical_step.hpp"
#include "sim/step/routed_layer.hpp"
#include "tools/bench/predict_operation.hpp"
#include "tools/lab/reproduce/measure_kinds.hpp"
#include "tools/lab/reproduce/reproduction.hpp"
#include "tools/policies/request_info.hpp"
#include "tools/sweep/axes.hpp"
#include "tools/sweep/sweep.hpp"
#include "traces/gating/expert_sampler.hpp"
#include "traces/gating/gating.hpp"
#include "traces/trace_statistics.hpp"

namespace moesim {

namespace {

Json plain(const OrderedJson& document) { return Json::parse(document.dump()); }

/// Runs every point of a sweep and puts what `answer` says of it under the values of its axes.
template <class Answer>
Json by_axes(const ConfigNode& file, TraceLibrary& traces, Answer&& answer) {
  const Sweep sweep = expand_sweep(file);
  std::vector<Json> answers(sweep.points.size());
  tbb::parallel_for(std::size_t{0}, answers.size(), [&](std::size_t i) {
    answers[i] =
        answer(load_experiment(ConfigNode(sweep.points[i].config, sweep.base_file), traces));
  });
  const Json axes = file.json().value("axes", Json::object());
  Json all;
  for (std::size_t i = 0; i < answers.size(); ++i) {
    Json* place = &all;
    for (const auto& [pointer, values] : axes.items()) {
      place = &(*place)[setting_text(*find_value(sweep.points[i].config, pointer))];
    }
    *place = std::move(answers[i]);
  }
  return all;
}

Json measure_run(const ConfigNode& node, TraceLibrary& traces) {
  return by_axes(node, traces, [](const Experiment& e) { return plain(run(e).document()); });
}

/// How long a figure of the report's "over_time" stayed above a limit.
Json measure_spells(ConfigReader& r, TraceLibrary& traces) {
  const std::string key = r.text("key");
  const double above = r.number("above");
  return by_axes(r.child("sweep"), traces, [&](const Experiment& e) {
    double total = 0, spell = 0, longest = 0;
    const OrderedJson report = run(e).document();
    for (const OrderedJson& bucket : report.at("over_time")) {
      const double seconds = bucket.at("end_s").get<double>() - bucket.at("begin_s").get<double>();
      const bool is_above = bucket.at(key).get<double>() > above;
      spell = is_above ? spell + seconds : 0;
      total += is_above ? seconds : 0;
      longest = std::max(longest, spell);
    }
    return Json{{"seconds", total}, {"longest", longest}};
  });
}

Json explained(const ExplainedStep& step) {
  double total = 0;
  for (const Seconds sample : step.totals) total += sample.count();
  Json answer{{"total_us", total * 1e6 / static_cast<double>(step.totals.size())},
              {"flops", step.cost.flops},
              {"hbm_bytes", step.cost.hbm_bytes}};
  // An operation may come several times, as the FFN of dense layers and of shared experts.
  std::map<std::string_view, ExplainedOperation> sums;
  for (const ExplainedOperation& op : step.operations) {
    const auto [place, is_new] = sums.try_emplace(op.name, op);
    if (is_new) continue;
    ExplainedOperation& sum = place->second;
    sum.calls += op.calls;
    sum.seconds += op.seconds;
    sum.flops += op.flops;
    sum.hbm_bytes += op.hbm_bytes;
    sum.link_bytes += op.link_bytes;
  }
  for (const auto& [name, op] : sums)
    answer[std::string(name)] = {{"us", op.seconds * 1e6},
                                 {"us_per_call", op.seconds * 1e6 / op.calls},
                                 {"flops", op.flops},
                                 {"hbm_bytes", op.hbm_bytes},
                                 {"link_bytes", op.link_bytes}};
  return answer;
}

Json measure_explain(ConfigReader& r, TraceLibrary& traces) {
  const auto kind = static_cast<StepKind>(r.choice("step", step_kind_names));
  const int sequences = static_cast<int>(r.integer("sequences", {1, 1 << 16}));
  const int context = static_cast<int>(r.integer("context", {0, 1 << 24}));
  const int tokens = static_cast<int>(r.integer_or("tokens", 1, {1, 1 << 20}));
  const int samples = static_cast<int>(r.integer_or("samples", 1, {1, 1 << 16}));
  const StepContent content = kind == StepKind::decode    ? decode_step(sequences, context)
                              : kind == StepKind::prefill ? prefill_step(tokens)
                                                          : mixed_step(sequences, context, tokens);
  return by_axes(r.child("sweep"), traces,
                 [=](const Experiment& e) { return explained(explain_step(e, content, samples)); });
}

MoeModel read_model_at(ConfigReader& r) {
  return read_model(ConfigNode::from_file(r.path("model")));
}

RoutingTrace read_trace(ConfigReader& r, std::uint64_t seed) {
  if (r.optional("trace")) return RoutingTrace::open(r.path("trace"));
  return gatings().make(r.child("gating"))->trace(read_model_at(r), seed);
}

std::vector<ConfigNode> policies(const ConfigNode& list) {
  std::vector<ConfigNode> nodes;
  for (const ConfigNode& node : list.list()) nodes.push_back(node.as_policy());
  return nodes;
}

std::vector<std::string> texts(const ConfigNode& list) {
  std::vector<std::string> all;
  for (const ConfigNode& node : list.list()) all.push_back(node.text());
  return all;
}

Json measure_replay(ConfigReader& r, TraceLibrary&) {
  ReplayConfig config;
  config.seed = static_cast<std::uint64_t>(r.integer_or("seed", 1, non_negative));
  const RoutingTrace trace = read_trace(r, config.seed);
  config.gpus = static_cast<int>(r.integer("gpus", {1, 1 << 16}));
  config.placements = policies(r.child_or("placements", Json::array({"eplb"})));
  config.routings = policies(r.child("routings"));
  for (const ConfigNode& ratio : r.child_or("replications", Json::array({1.0})).list())
    config.replications.push_back(ratio.number());
  for (const ConfigNode& batch : r.child("batches").list())
    config.batches.push_back(static_cast<int>(batch.integer(positive_count)));
  config.sample = static_cast<ReplaySample>(r.choice_or("sample", replay_sample_names, 0));
  config.fit = static_cast<ReplayFit>(r.choice_or("fit", replay_fit_names, 0));
  config.sampled_batches = static_cast<int>(r.integer_or("sampled_batches", 200, {1, 1 << 20}));
  config.nodes = static_cast<int>(r.integer_or("nodes", 1, {1, 1 << 16}));
  config.groups = static_cast<int>(r.integer_or("groups", 1, {1, 1 << 16}));
  config.capacity = r.child_or("capacity", "dropless").as_policy();
  config.fit_workloads = texts(r.child_or("fit_workloads", Json::array()));
  config.score_workloads = texts(r.child_or("score_workloads", Json::array()));
  for (const ConfigNode& cut : r.child_or("cuts", Json::array()).list())
    config.cuts.push_back(static_cast<int>(cut.integer({2, 1 << 16})));
  config.bootstrap = static_cast<int>(r.integer_or("bootstrap", 0, {0, 1000}));
  Json answer;
  const OrderedJson rows = to_json(replay(trace, config));
  for (const OrderedJson& row : rows.at("rows"))
    answer[row.at("placement").get<std::string>()]
          [setting_text(Json(row.at("replication").get<double>()))]
          [std::to_string(row.at("batch").get<int>())][row.at("routing").get<std::string>()] =
              plain(row);
  return answer;
}

std::vector<std::vector<int>> integers(const ConfigNode& rows) {
  std::vector<std::vector<int>> table;
  for (const ConfigNode& row : rows.list()) {
    auto& line = table.emplace_back();
    for (const ConfigNode& number : row.list()) line.push_back(static_cast<int>(number.integer()));
  }
  return table;
}

LayerPlacement placement_of(int experts, const ConfigNode& experts_on_gpu) {
  try {
    return {experts, integers(experts_on_gpu)};
  } catch (const std::invalid_argument& error) {
    experts_on_gpu.fail("{}; \"tokens\" has {} experts", error.what(), experts);
  }
}

Json measure_route(ConfigReader& r, TraceLibrary&) {
  std::vector<std::int32_t> tokens;
  for (const ConfigNode& count : r.child("tokens").list())
    tokens.push_back(static_cast<std::int32_t>(count.integer(non_negative)));
  const ExpertPlacement placement{
      placement_of(static_cast<int>(tokens.size()), r.child("experts_on_gpu"))};
  Json answer;
  for (const ConfigNode& policy : policies(r.child("routings"))) {
    const auto router = token_routers().make(policy)({.placement = placement});
    LayerLoad load;
    RoutedLayer().route(*router, {.placement = placement.front(), .tokens = tokens}, load);
    answer[policy.child("type").text()] = {{"max_activated", load.max_activated},
                                           {"max_tokens", load.max_tokens}};
  }
  return answer;
}

Json measure_place(ConfigReader& r, TraceLibrary&) {
  std::vector<ExpertLoad> load;
  for (const std::vector<int>& row : integers(r.child("load")))
    load.emplace_back(row.begin(), row.end());
  if (load.empty()) r.node().fail("\"load\" has no layers");
  PlacementProblem problem;
  problem.experts = static_cast<int>(load.front().size());
  problem.gpus = static_cast<int>(r.integer("gpus", {1, 1 << 16}));
  problem.slots_per_gpu = static_cast<int>(r.integer("slots", positive_count)) / problem.gpus;
  problem.nodes = static_cast<int>(r.integer_or("nodes", 1, {1, 1 << 16}));
  problem.groups = static_cast<int>(r.integer_or("groups", 1, {1, 1 << 16}));
  const ExpertPlacement placed = place_all(*placers().make(r.child("policy")), problem, load);
  const auto expected = integers(r.child("expected"));
  if (expected.size() != placed.size() ||
      std::ranges::any_of(expected, [&](const std::vector<int>& layer) {
        return std::ssize(layer) != placed.front().slots();
      })) {
    r.node().fail("\"expected\" is not {} layers of {} slots", placed.size(),
                  placed.front().slots());
  }
  int different = 0;
  for (std::size_t layer = 0; layer < placed.size(); ++layer) {
    for (int slot = 0; slot < placed[layer].slots(); ++slot)
      different += placed[layer].expert_of_slot(slot) != expected.at(layer).at(at(slot)) ? 1 : 0;
  }
  return Json{{"different_slots", different},
              {"imbalance", score_placement(placed, load).imbalance_mean}};
}

Json measure_model(ConfigReader& r, TraceLibrary&) {
  const MoeModel model = read_model_at(r);
  const auto expert = [&](Precision p) { return expert_bytes(model, {}, {.experts = p}).value(); };
  const ParameterCount count = count_parameters(model);
  return Json{{"hidden", model.hidden},
              {"experts", model.experts},
              {"experts_per_token", model.experts_per_token},
              {"moe_layers", model.moe_layers()},
              {"expert_parameters", expert_parameters(model)},
              {"expert_bytes_bf16", expert(Precision::bf16)},
              {"expert_bytes_fp8", expert(Precision::fp8)},
              {"kv_bytes_per_token", kv_bytes_per_token(model, {}, {}).value()},
              {"parameters", count.total},
              {"active_parameters", count.active}};
}

Json measure_gpu(ConfigReader& r, TraceLibrary&) {
  const GpuSpec gpu = read_gpu(ConfigNode::from_file(r.path("gpu")));
  return Json{{"hbm_bandwidth", gpu.hbm_bandwidth.value()},
              {"hbm_capacity", gpu.hbm_capacity.value()},
              {"host_bandwidth", gpu.host_bandwidth.value()},
              {"nvlink_bandwidth", gpu.scale_up_bandwidth.value()},
              {"bf16_flops", gpu.peak(Precision::bf16, Precision::bf16).value()}};
}

/// Experts that a batch picks if all are as likely but for the first `hot`, whose weight is
/// `hot_weight`: [tokens, k].
class UniformBatches {
 public:
  UniformBatches(int experts, int k, int hot, double hot_weight, std::string_view stream)
      : k_(at(k)), sampler_(experts, k, 1, 1), rng_(1, stream) {
    std::vector<double> weights(at(experts), 1.0);
    std::fill_n(weights.begin(), hot, hot_weight);
    sampler_.set_weights(weights);
  }
  std::vector<std::uint16_t> draw(int tokens) {
    std::vector<std::uint16_t> ids(at(tokens) * k_);
    for (std::size_t t = 0; t < at(tokens); ++t)
      sampler_.first(std::span(ids).subspan(t * k_, k_), rng_);
    return ids;
  }

 private:
  std::size_t k_;
  ExpertSampler sampler_;
  Rng rng_;
};

LayerPlacement one_slot_each(int experts, int gpus) {
  std::vector<std::vector<int>> on_gpu(at(gpus));
  for (int e = 0; e < experts; ++e) on_gpu[at(std::int64_t{e} * gpus / experts)].push_back(e);
  return {experts, on_gpu};
}

double sent_by_all(const LinkTraffic& copies) {
  return std::accumulate(copies.near_out.begin(), copies.near_out.end(), 0.0) +
         std::accumulate(copies.far_out.begin(), copies.far_out.end(), 0.0);
}

Json measure_exchange(ConfigReader& r, TraceLibrary&) {
  const Fabric fabric(read_cluster(ConfigNode::from_file(r.path("cluster"))));
  const int experts = static_cast<int>(r.integer("experts", {1, 1 << 15}));
  const int k = static_cast<int>(r.integer("k", {1, 64}));
  const int gpus = static_cast<int>(r.integer("gpus", {1, fabric.cluster().gpus() * 1.0}));
  const int tokens = static_cast<int>(r.integer("tokens", {1, 1 << 20}));
  const double bytes_per_copy = r.number("hidden", positive_count) * 2;  // bf16
  const auto ids = UniformBatches(experts, k, 0, 1, "reproduce/exchange").draw(tokens);
  std::vector<std::int32_t> of_slot(at(experts)), source;
  for (const std::uint16_t id : ids) ++of_slot[id];
  for (int t = 0; t < tokens; ++t)
    source.push_back(static_cast<std::int32_t>(std::int64_t{t} * gpus / tokens));
  const auto active = static_cast<std::int32_t>(
      std::ranges::count_if(of_slot, [](std::int32_t chosen) { return chosen > 0; }));
  const LayerPlacement placement = one_slot_each(experts, gpus);
  Json answer;
  for (const auto& [name, rule] : {std::pair("per_selection", CopyRule::per_selection),
                                   std::pair("per_gpu", CopyRule::per_gpu)}) {
    LinkTraffic copies;
    CopyCounter().count(placement, {of_slot, active, ids, at(tokens)}, runs_of(source),
                        {rule, fabric.cluster().scale_up_domain}, copies);
    const double remote = sent_by_all(copies);
    const auto us = [&](const Kernel& kernel) {
      return fabric.all_to_all(copies, kernel, bytes_per_copy).time.count() * 1e6;
    };
    answer[name] = {{"copies_per_token", remote / tokens},
                    {"bytes", remote * bytes_per_copy},
                    {"us", us(all_to_all_kernel)},
                    {"low_latency_us", us(low_latency_all_to_all_kernel)}};
  }
  return answer;
}

Json measure_draws(ConfigReader& r, TraceLibrary&) {
  const int experts = static_cast<int>(r.integer("experts", {1, 1 << 15}));
  const int k = static_cast<int>(r.integer("k", {1, 64}));
  const int tokens = static_cast<int>(r.integer("tokens", {1, 1 << 20}));
  const int gpus = static_cast<int>(r.integer_or("gpus", 1, {1, 1 << 16}));
  const int draws = static_cast<int>(r.integer_or("draws", 2000, {1, 1 << 20}));
  const int hot = static_cast<int>(r.integer_or("hot", 0, {0, experts * 1.0}));
  UniformBatches batches(experts, k, hot, r.number_or("hot_weight", 1, {1, 1e9}),
                         "reproduce/draws");
  const double mean = double(tokens) * k / experts;
  std::vector<double> busiest_gpu, busiest_expert;
  int over_twice = 0, beyond_hot = 0;
  for (int draw = 0; draw < draws; ++draw) {
    const auto ids = batches.draw(tokens);
    std::vector<int> of_expert(at(experts)), of_gpu(at(gpus));
    for (const std::uint16_t id : ids) {
      ++of_expert[id];
      ++of_gpu[at(std::int64_t{id} * gpus / experts)];
    }
    busiest_expert.push_back(*std::ranges::max_element(of_expert));
    over_twice += busiest_expert.back() >= 2 * mean ? 1 : 0;
    beyond_hot += std::accumulate(of_expert.begin() + hot, of_expert.end(), 0) > 0 ? 1 : 0;
    busiest_gpu.push_back(*std::ranges::max_element(of_gpu));
  }
  const double sum = std::accumulate(busiest_gpu.begin(), busiest_gpu.end(), 0.0);
  return Json{{"selections_per_gpu", double(tokens) * k / gpus},
              {"busiest_gpu", sum / draws},
              {"busiest_gpu_p99", nearest_rank(busiest_gpu, 0.99)},
              {"selections_per_expert", mean},
              {"busiest_expert_p99", nearest_rank(busiest_expert, 0.99)},
              {"some_expert_at_twice_the_mean", double(over_twice) / draws},
              {"touches_others_than_hot", double(beyond_hot) / draws}};
}

Json measure_point(ConfigReader& r, TraceLibrary&) {
  MeasuredPoint point;
  point.category = r.text("category");
  point.gpu = r.text("gpu");
  point.interconnect = r.text_or("interconnect", "");
  point.model = r.text("model");
  point.operation = r.text("operation");
  point.precision = r.text("precision");
  point.gpus = point.ep = static_cast<int>(r.integer("gpus", {1, 1 << 16}));
  point.nodes = static_cast<int>(r.integer("nodes", {1, 1 << 16}));
  point.batch = r.number("tokens_per_rank", positive_count);
  point.tokens = point.batch * point.gpus;
  point.metric = "latency";
  point.unit = "us";
  const std::filesystem::path root = r.path("root");
  const Predicted predicted = OperationPredictor(root).predict(point);
  if (const auto* skipped = std::get_if<Skipped>(&predicted)) r.node().fail(skipped->reason);
  return Json{{"us", std::get<Prediction>(predicted).value}};
}

/// Share of a layer's selections that its `top` most wanted experts take, mean over layers.
double top_share(std::vector<std::int64_t> counts, std::ptrdiff_t experts, std::ptrdiff_t top) {
  double sum = 0;
  int layers = 0;
  for (auto layer = counts.begin(); layer != counts.end(); layer += experts, ++layers) {
    std::sort(layer, layer + experts, std::greater<>());
    const auto all = static_cast<double>(std::accumulate(layer, layer + experts, std::int64_t{0}));
    sum += static_cast<double>(std::accumulate(layer, layer + top, std::int64_t{0})) / all;
  }
  return sum / layers;
}

Json measure_trace(ConfigReader& r, TraceLibrary&) {
  const RoutingTrace trace = read_trace(r, 1);
  const int experts = trace.num_experts();
  Json answer;
  for (const ConfigNode& top : r.child_or("top", Json::array()).list()) {
    const std::int64_t hottest = top.integer({1, experts * 1.0});
    answer["top"][std::to_string(hottest)] = top_share(trace.expert_counts(), experts, hottest);
  }
  const std::array lags{1};
  if (const auto share = token_overlap(trace, lags, 1).lags.front().share)
    answer["overlap_at_lag_1"] = share->mean;
  return answer;
}

/// Shares of prompt tokens that caches without a clock hit, by their capacity in tokens.
Json measure_requests(ConfigReader& r, TraceLibrary&) {
  const std::filesystem::path file = r.path("file");
  const OrderedJson info = request_info(
      file, static_cast<std::int32_t>(r.integer_or("hash_id_tokens", 16, {1, 1 << 20})));
  if (!info.contains("reuse"))
    r.node().fail("the requests of " + file.string() + " have no hash_ids");
  Json answer{{"ideal", info["reuse"]["ideal_hit_rate"]}};
  for (const OrderedJson& point : info["reuse"]["lru"]) {
    const std::string tokens = std::to_string(point["capacity_tokens"].get<std::int64_t>());
    answer["lru"][tokens] = point["hit_rate"].get<double>();
    answer["most"][tokens] = point["most_hit_rate"].get<double>();
  }
  return answer;
}

/// Wall time is not the same twice, so only its class is told: the next power of ten from 10 us on.
double time_class(double us) { return std::max(10.0, std::pow(10, std::ceil(std::log10(us)))); }

Json measure_timing(ConfigReader& r, TraceLibrary& traces) {
  const Experiment experiment =
      load_experiment(ConfigNode::from_file(r.path("experiment")), traces);
  const Deployment& e = experiment.decode();
  const int tokens = static_cast<int>(r.integer("tokens", {1, 1 << 20}));
  UniformBatches batches(e.model.experts, e.model.experts_per_token, 0, 1, "reproduce/timing");
  std::vector<std::vector<std::int32_t>> counts(e.placement.size());
  for (auto& layer : counts) {
    layer.resize(at(e.model.experts));
    for (const std::uint16_t id : batches.draw(tokens)) ++layer[id];
  }
  Json answer;
  for (const ConfigNode& policy : policies(r.child("routings"))) {
    const auto router = token_routers().make(policy)({.placement = e.placement});
    std::vector<double> us;
    for (std::size_t layer = 0; layer < counts.size(); ++layer) {
      std::vector<std::int32_t> of_slot(at(e.placement[layer].slots()));
      const auto begin = std::chrono::steady_clock::now();
      router->route({.placement = e.placement[layer],
                     .tokens = counts[layer],
                     .layer = static_cast<int>(layer)},
                    {of_slot});
      us.push_back(
          std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin)
              .count());
    }
    answer[policy.child("type").text()] = {{"us_below", time_class(median(us))}};
  }
  return answer;
}

/// Settings of a file of configs/reproduce/workloads. Every number in it says where it is from.
Json read_workload(const std::filesystem::path& file) {
  return read_object(ConfigNode::from_file(file), [](ConfigReader& r) {
    r.text("dataset");
    const Json parts{{"lengths", r.child("lengths").json()}, {"gating", r.child("gating").json()}};
    const Json numbers = parts.flatten();
    read_object(r.child("sources"), [&](ConfigReader& sources) {
      for (const auto& [pointer, value] : numbers.items()) sources.text(pointer);
    });
    return Json{{"/workload/lengths", parts["lengths"]}, {"/workload/gating", parts["gating"]}};
  });
}

/// A kind's object with a workload's settings in its sweep, which may still set over them.
ConfigNode with_workload(const ConfigNode& node, const Json& settings) {
  Json json = node.json();
  Json& set = (json.contains("sweep") ? json["sweep"] : json)["set"];
  Json all = settings;
  if (set.is_object()) all.update(set);
  set = all;
  return {json, node.file(), node.pointer()};
}

// A kind whose object is read key by key.
template <Json (*measure)(ConfigReader&, TraceLibrary&)>
Json by_reader(const ConfigNode& node, TraceLibrary& traces) {
  return read_object(node, [&](ConfigReader& r) { return measure(r, traces); });
}

struct Kind {
  std::string_view name;
  Json (*measure)(const ConfigNode&, TraceLibrary&);
};
constexpr std::array kinds{Kind{"run", measure_run},
                           Kind{"explain", by_reader<measure_explain>},
                           Kind{"replay", by_reader<measure_replay>},
                           Kind{"route", by_reader<measure_route>},
                           Kind{"place", by_reader<measure_place>},
                           Kind{"model", by_reader<measure_model>},
                           Kind{"gpu", by_reader<measure_gpu>},
                           Kind{"exchange", by_reader<measure_exchange>},
                           Kind{"draws", by_reader<measure_draws>},
                           Kind{"point", by_reader<measure_point>},
                           Kind{"trace", by_reader<measure_trace>},
                           Kind{"timing", by_reader<measure_timing>},
                           Kind{"spells", by_reader<measure_spells>},
                           Kind{"frontier", measure_frontier},
                           Kind{"article", measure_article},
                           Kind{"bfio", measure_bfio},
                           Kind{"requests", by_reader<measure_requests>},
                           Kind{"regimes", measure_regimes}};

}  // namespace

Json measure(const ConfigNode& node, TraceLibrary& traces) {
  return read_object(node, [&](ConfigReader& r) {
    std::optional<Json> workload;
    if (r.optional("workload")) workload = read_workload(r.path("workload"));
    for (const Kind& kind : kinds) {
      if (!r.optional(kind.name)) continue;
      const ConfigNode asked = r.child(kind.name);
      return kind.measure(workload ? with_workload(asked, *workload) : asked, traces);
    }
    std::array<std::string_view, kinds.size()> names;
    for (std::size_t i = 0; i < kinds.size(); ++i) names[i] = kinds[i].name;
    node.fail("expected one of " + join_names(names));
  });
}

}  // namespace moesim
