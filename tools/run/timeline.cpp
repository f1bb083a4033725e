// SPDX-License-Identifier: Apache-2.0
#include "tools/run/timeline.hpp"

#include <algorithm>
#include <numeric>

#include <fmt/format.h>

#include "hardware/at.hpp"

namespace moesim {

namespace {

// No process or lane is 0, which viewers take for the idle one, and no two lanes have one number.
constexpr Timeline::Lane steps_lane{1, 1};
Timeline::Lane steps_lane_of(std::int64_t group) {
  return group == 0 ? steps_lane : Timeline::Lane{1, 1'000'000 + group};
}
constexpr Timeline::Lane requests_lane{3, 3};
constexpr int sessions_process = 4;
Timeline::Lane gpu_lane(std::int64_t gpu) { return {2, 10 + gpu}; }

// Picoseconds as the format's microseconds, exactly.
std::string us(Duration duration) {
  return fmt::format("{}.{:06}", duration.count() / 1'000'000, duration.count() % 1'000'000);
}
std::string us(Time time) { return us(time.time_since_epoch()); }

double seconds_of(const StepCost& cost, Part part) {
  const auto& row = cost.parts[at(part)];
  return std::accumulate(row.begin(), row.end(), 0.0);
}

struct Slice {
  std::string_view name;
  double seconds;
  std::string args = "";
};

using Layers = std::span<const std::size_t>;  // MoE layers of a step

// Arguments of an EP rank's experts in a MoE layer, in the mean of these.
std::string expert_args(const StepCost& cost, std::size_t rank, Layers layers) {
  double activated = 0, tokens = 0;
  for (const std::size_t layer : layers) {
    const LayerLoad& load = cost.layers[layer].load;
    activated += (load.activated[rank] + load.sliced) / static_cast<double>(layers.size());
    tokens += (load.tokens[rank] + load.sliced_tokens) / static_cast<double>(layers.size());
  }
  return fmt::format(R"("activated_experts":{:.2f},"tokens":{:.2f})", activated, tokens);
}

// How much of what `all` of a GPU's layers take together these take; all alike where it is nothing.
template <class Time>
double share_of(Layers layers, Layers all, Time&& time_of) {
  if (layers.size() == all.size()) return 1;  // the usual case, and that of a GPU without any
  const auto sum = [&](Layers of) {
    double seconds = 0;
    for (const std::size_t layer : of) seconds += time_of(layer);
    return seconds;
  };
  const double whole = sum(all);
  return whole > 0 ? sum(layers) / whole
                   : static_cast<double>(layers.size()) / static_cast<double>(all.size());
}

// With AFD: how long a GPU works and waits in some of the MoE layers, all alike. Micro-batches
// alternate many times in a layer.
std::vector<Slice> slices_with_afd(const StepCost& cost, const Timeline::Gpu& gpu, Layers layers) {
  const double share = share_of(layers, gpu.layers, [](std::size_t) { return 1.0; });
  const double idle = std::clamp(cost.idle[gpu.number], 0.0, cost.total.count());
  const double busy = (cost.total.count() - idle) * share;
  if (!gpu.rank) return {{"attention", busy}, {"idle", idle * share}};
  return {{"experts", busy, expert_args(cost, *gpu.rank, layers)}, {"idle", idle * share}};
}

// Slices of one GPU in some of the MoE layers of its stage, in order. The parts of the cost are
// those of the slowest rank at each barrier, or, where some are hidden, what is exposed. What this
// GPU waited there is its own work short of that. A pipeline's are the mean stage's; of its GPUs
// without MoE layers what the others do for experts is "pipeline".
std::vector<Slice> slices_of(const StepCost& cost, const Timeline::Gpu& gpu, Layers layers) {
  if (cost.afd) return slices_with_afd(cost, gpu, layers);
  const auto& outcomes = cost.layers;
  const auto slowest = [&](std::size_t layer) {
    return std::ranges::max(outcomes[layer].experts, {}, &Cost::time).time.count();
  };
  const auto own = [&](std::size_t layer) {
    return outcomes[layer].experts[*gpu.rank].time.count();
  };
  const auto part = [&](Part which, auto&& time_of) {
    return seconds_of(cost, which) * share_of(layers, gpu.layers, time_of);
  };
  const auto of_experts = [&](Part which, auto&& time_of) {
    return gpu.layers.empty() ? 0 : part(which, time_of);
  };
  const auto alike = [](std::size_t) { return 1.0; };
  const auto experts_of = [&](Layers some) {
    if (some.empty()) return std::pair(0.0, 0.0);
    const double all = seconds_of(cost, Part::experts) * share_of(some, gpu.layers, slowest);
    double longest = 0, mine = 0;
    for (const std::size_t layer : some) {
      longest += slowest(layer);
      mine += own(layer);
    }
    // Of two batches the layers hold sums, whose longest is no rank's own.
    if (cost.micro_batches > 1) return std::pair(all, std::min(mine, all));
    return std::pair(all, longest > 0 ? all * mine / longest : 0);
  };
  const auto [experts, mine] = experts_of(layers);
  const auto [all_experts, all_mine] =
      layers.size() == gpu.layers.size() ? std::pair(experts, mine) : experts_of(gpu.layers);
  double alone = 0;
  for (const Part which : {Part::attention, Part::gate, Part::permute, Part::shared_experts,
                           Part::dense_ffn, Part::other}) {
    alone += seconds_of(cost, which);
  }
  const double waits = std::clamp(
      cost.idle[gpu.number] - (all_experts - all_mine) - seconds_of(cost, Part::pipeline), 0.0,
      alone);
  const double share = share_of(layers, gpu.layers, alike);
  std::vector<Slice> slices{
      {"attention", (alone - waits) * share},
      {"idle", waits * share},
      {"all_reduce", part(Part::all_reduce, alike)},
      {"token_routing", of_experts(Part::token_routing, alike)},
      {"dispatch",
       of_experts(Part::dispatch,
                  [&](std::size_t l) { return outcomes[l].exchange.dispatch.time.count(); })},
      {"experts", mine, mine > 0 ? expert_args(cost, *gpu.rank, layers) : ""},
      {"idle", experts - mine},
      {"combine", of_experts(Part::combine, [&](std::size_t l) {
         return outcomes[l].exchange.combine.time.count();
       })}};
  if (seconds_of(cost, Part::rebalancing) > 0)
    slices.push_back({"rebalancing", part(Part::rebalancing, alike)});
  if (gpu.staged) slices.push_back({"pipeline", part(Part::pipeline, alike)});
  return slices;
}

// The GPUs of a group, each with the MoE layers of its stage.
std::vector<Timeline::Gpu> gpus_of(const ServedModel& group) {
  const ParallelPlan& plan = group.parallel;
  const int layers = static_cast<int>(group.model.layers.size());
  std::vector<std::vector<std::size_t>> of_stage(at(plan.pp));
  std::size_t moe_layer = 0;
  for (int layer = 0; layer < layers; ++layer) {
    if (group.model.layers[at(layer)].moe)
      of_stage[at(plan.stage_of(layer, layers))].push_back(moe_layer++);
  }
  std::vector<Timeline::Gpu> gpus;
  for (int gpu = 0; gpu < plan.gpus(); ++gpu) {
    const int stage = gpu / plan.stage_gpus();
    const std::optional<int> rank = plan.expert_rank(gpu);
    gpus.push_back({at(gpu), rank ? std::optional(at(*rank)) : std::nullopt, plan.pp > 1,
                    of_stage[at(stage)]});
  }
  return gpus;
}

}  // namespace

Timeline::Timeline(const std::filesystem::path& file, const Experiment& experiment,
                   std::int64_t unfolded)
    : experiment_(experiment),
      groups_(groups_of(experiment)),
      first_gpu_{0},
      file_(file),
      unfolded_(unfolded) {
  file_.write(R"({"displayTimeUnit":"ms","traceEvents":[)");
  name("process_name", steps_lane, "steps");
  for (std::size_t group = 0; group < groups_.size(); ++group) {
    name("thread_name", steps_lane_of(std::int64_t(group)), of_group("steps", group));
  }
  name("process_name", gpu_lane(0), "GPUs");
  for (std::size_t group = 0; group < groups_.size(); ++group) {
    const int gpus = groups_[group]->parallel.gpus();
    gpus_.push_back(gpus_of(*groups_[group]));
    for (int gpu = 0; gpu < gpus; ++gpu) {
      name("thread_name", gpu_lane(first_gpu_.back() + gpu),
           of_group(fmt::format("GPU {}", gpu), group));
    }
    first_gpu_.push_back(first_gpu_.back() + gpus);
  }
  name("process_name", requests_lane, "requests");
  if (experiment.decode().workload.sessions)
    name("process_name", {sessions_process, 1}, "sessions");
}

void Timeline::write(std::string_view name, char phase, Lane lane, std::string_view more) {
  file_.write(fmt::format(R"({}{{"name":"{}","ph":"{}","pid":{},"tid":{},{}}})",
                          empty_ ? "\n" : ",\n", name, phase, lane.process, lane.thread, more));
  empty_ = false;
}

void Timeline::name(std::string_view what, Lane lane, std::string_view name) {
  write(what, 'M', lane, fmt::format(R"("args":{{"name":"{}"}})", name));
}

void Timeline::span(std::string_view name, Lane lane, Time begin, Time end, std::string_view more) {
  write(name, 'X', lane, fmt::format(R"("ts":{},"dur":{}{})", us(begin), us(end - begin), more));
}

// "steps", or "steps, prefill 1" where there are several groups.
std::string Timeline::of_group(std::string_view what, std::size_t group) const {
  if (groups_.size() == 1) return std::string(what);
  const char* kind = !experiment_.apart()           ? "instance"
                     : groups_[group]->prefill_only ? "prefill"
                                                    : "decode";
  return fmt::format("{}, {} {}", what, kind, group);
}

void Timeline::step_ended(const StepRecord& record, Time now) {
  const StepSummary& step = record.step;
  const auto group = at(record.instance);
  const bool unfold = ++steps_ == unfolded_;
  const Lane steps = steps_lane_of(record.instance);
  span(step_kind_names[at(step.kind)], steps, step.start, now,
       fmt::format(R"(,"args":{{"rule":"{}","prefill_tokens":{},"decode_tokens":{},)"
                   R"("dummy_ranks":{},"preemptions":{}{}}})",
                   step_kind_names[at(step.rule)], step.prefill_tokens, step.decode_tokens,
                   step.dummy_ranks, step.preemptions,
                   step.held.prompts == 0 ? ""
                                          : fmt::format(R"(,"held_prompts":{},"held_tokens":{})",
                                                        step.held.prompts, step.held.tokens)));
  write(of_group("KV blocks", group), 'C', steps,
        fmt::format(R"("ts":{},"args":{{"used":{}}})", us(step.start), step.kv_blocks_used));
  StepCost cost = record.cost;
  cost.layers = cost.moe_layers();
  for (const Gpu& gpu : gpus_[group]) {
    add_lane(gpu, unfold, step.start, now, cost, first_gpu_[group]);
  }
  add_alarm(step.start, cost, group);
}

void Timeline::add_lane(const Gpu& gpu, bool unfold, Time start, Time now, const StepCost& cost,
                        std::int64_t first_gpu) {
  const Lane lane = gpu_lane(first_gpu + static_cast<std::int64_t>(gpu.number));
  double passed = 0;
  Time begin = start;
  const auto add = [&](Layers layers, bool last_layers) {
    const std::vector<Slice> slices = slices_of(cost, gpu, layers);
    std::string layer;
    if (unfold && !layers.empty())
      layer =
          fmt::format(R"("layer":{})", experiment_.decode().trace.meta().layer_ids[layers.front()]);
    for (const Slice& slice : slices) {
      passed += slice.seconds;
      // Sums of doubles: at the end of the step they may be off by a picosecond.
      const bool last = last_layers && &slice == &slices.back();
      const Time end = last ? now : std::clamp(start + to_duration(Seconds(passed)), begin, now);
      const std::string_view comma = layer.empty() || slice.args.empty() ? "" : ",";
      const std::string args = layer + std::string(comma) + slice.args;
      if (end > begin)
        span(slice.name, lane, begin, end,
             args.empty() ? "" : fmt::format(R"(,"args":{{{}}})", args));
      begin = end;
    }
  };
  if (!unfold || gpu.layers.empty()) return add(gpu.layers, true);
  for (std::size_t i = 0; i < gpu.layers.size(); ++i)
    add(Layers(gpu.layers).subspan(i, 1), i + 1 == gpu.layers.size());
}

void Timeline::add_alarm(Time start, const StepCost& cost, std::size_t group) {
  std::size_t worst = 0, hot_layers = 0;
  double highest = 0;
  for (std::size_t l = 0; l < cost.layers.size(); ++l) {
    const LayerLoad& load = cost.layers[l].load;
    const auto ranks = static_cast<double>(load.tokens.size());
    const double tokens = std::accumulate(load.tokens.begin(), load.tokens.end(), 0.0);
    const double ratio = load.most_tokens() * ranks / (tokens + load.sliced_tokens * ranks);
    if (ratio > experiment_.decode().hot_rank_threshold) ++hot_layers;
    if (ratio <= highest) continue;
    highest = ratio;
    worst = l;
  }
  if (hot_layers == 0) return;
  const auto& tokens = cost.layers[worst].load.tokens;
  const auto rank = at(std::ranges::max_element(tokens) - tokens.begin());
  const auto hot = std::ranges::find_if(gpus_[group], [&](const Gpu& gpu) {
    return gpu.rank == rank && std::ranges::find(gpu.layers, worst) != gpu.layers.end();
  });
  write("hot rank", 'i', gpu_lane(first_gpu_[group] + static_cast<std::int64_t>(hot->number)),
        fmt::format(R"("s":"t","ts":{},"args":{{"layer":{},"max_over_mean":{:.4f},)"
                    R"("hot_layers":{}}})",
                    us(start), experiment_.decode().trace.meta().layer_ids[worst], highest,
                    hot_layers));
}

void Timeline::request_left(std::uint32_t id, const RequestRecord& request) {
  const std::string what =
      fmt::format(R"("args":{{"request":{},{}"rank":{},"prompt_tokens":{},"output_tokens":{},)"
                  R"("preemptions":{}}})",
                  id, groups_.size() == 1 ? "" : fmt::format(R"("instance":{},)", request.instance),
                  request.rank, request.prompt_tokens, request.output_tokens, request.preemptions);
  if (request.state == RequestRecord::State::rejected) {
    write("rejected", 'i', requests_lane,
          fmt::format(R"("s":"p","ts":{},{})", us(request.arrival), what));
    return;
  }
  const auto mark = [&](char phase, std::string_view name, Time at, const std::string& more = "") {
    write(name, phase, requests_lane,
          fmt::format(R"("cat":"request","id":{},"ts":{}{})", id, us(at), more));
  };
  mark('b', "request", request.arrival, "," + what);
  if (request.abandoned()) {
    const bool timed_out = request.state == RequestRecord::State::timed_out;
    mark('n', timed_out ? "timed out" : "cancelled", request.abandoned_at);
    mark('e', "request", request.abandoned_at);
    return;
  }
  mark('b', "to first token", request.arrival);
  mark('e', "to first token", request.first_token);
  mark('b', "decode", request.first_token);
  mark('e', "decode", request.last_token);
  mark('e', "request", request.last_token);
  if (request.turn) add_turn(request);
}

// Adds what a turn that was answered waited for and did, on the lane of its agent.
void Timeline::add_turn(const RequestRecord& request) {
  const SessionTurn& turn = *request.turn;
  const auto [found, is_new] =
      agents_.try_emplace(std::pair(turn.session, turn.agent), std::ssize(agents_) + 1);
  const Lane lane{sessions_process, found->second};
  if (is_new)
    name("thread_name", lane,
         turn.agent == 0 ? fmt::format("session {}", turn.session)
                         : fmt::format("session {}, agent {}", turn.session, turn.agent));
  const std::string what =
      fmt::format(R"(,"args":{{"turn":{},"prompt_tokens":{},"cached_tokens":{},)"
                  R"("loaded_tokens":{},"output_tokens":{}}})",
                  turn.turn, request.prompt_tokens, request.cached_tokens, request.loaded_tokens,
                  request.output_tokens);
  const Time loads = request.begun - request.loading;
  const std::pair<std::string_view, std::pair<Time, Time>> parts[] = {
      {"queue", {request.arrival, loads}},
      {"load", {loads, request.begun}},
      {"prefill", {request.begun, request.first_token}},
      {"decode", {request.first_token, request.last_token}}};
  for (const auto& [part, times] : parts) {
    if (times.second > times.first) span(part, lane, times.first, times.second, what);
  }
}

void Timeline::finish() {
  file_.write("\n]}\n");
  file_.commit();
}

}  // namespace moesim
