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

// What an EP rank's experts did in a MoE layer of the step, in the mean.
std::string expert_args(const StepCost& cost, std::size_t rank) {
  const auto layers = static_cast<double>(cost.moe_layers().size());
  double activated = 0, tokens = 0;
  for (const LayerOutcome& layer : cost.moe_layers()) {
    activated += layer.load.activated[rank] / layers;
    tokens += layer.load.tokens[rank] / layers;
  }
  return fmt::format(R"(,"args":{{"activated_experts":{:.2f},"tokens":{:.2f}}})", activated,
                     tokens);
}

// What one GPU did in a step, in order. The parts of the cost are those of the slowest rank at each
// barrier, or, where some are hidden beside others, what is exposed; what this GPU waited
// there is its own work short of that.
std::array<Slice, 8> slices_of(const StepCost& cost, std::size_t gpu, const ParallelPlan& plan) {
  const std::size_t expert_rank = gpu / at(plan.moe_tp());
  double experts = 0;
  for (const LayerOutcome& layer : cost.moe_layers())
    experts += layer.experts[expert_rank].time.count();
  experts = std::min(experts, seconds_of(cost, Part::experts));
  const double waits_for_experts = seconds_of(cost, Part::experts) - experts;
  double alone = 0;
  for (const Part part : {Part::attention, Part::gate, Part::permute, Part::shared_experts,
                          Part::dense_ffn, Part::other}) {
    alone += seconds_of(cost, part);
  }
  const double waits_for_attention = std::clamp(cost.idle[gpu] - waits_for_experts, 0.0, alone);
  alone -= waits_for_attention;
  return {{{"attention", alone},
           {"idle", waits_for_attention},
           {"all_reduce", seconds_of(cost, Part::all_reduce)},
           {"token_routing", seconds_of(cost, Part::token_routing)},
           {"dispatch", seconds_of(cost, Part::dispatch)},
           {"experts", experts, experts > 0 ? expert_args(cost, expert_rank) : ""},
           {"idle", waits_for_experts},
           {"combine", seconds_of(cost, Part::combine)}}};
}

}  // namespace

Timeline::Timeline(const std::filesystem::path& file, const Experiment& experiment)
    : experiment_(experiment), groups_(groups_of(experiment)), first_gpu_{0}, file_(file) {
  file_.write(R"({"displayTimeUnit":"ms","traceEvents":[)");
  name("process_name", steps_lane, "steps");
  for (std::size_t group = 0; group < groups_.size(); ++group) {
    name("thread_name", steps_lane_of(std::int64_t(group)), of_group("steps", group));
  }
  name("process_name", gpu_lane(0), "GPUs");
  for (std::size_t group = 0; group < groups_.size(); ++group) {
    const int gpus = groups_[group]->parallel.gpus();
    for (int gpu = 0; gpu < gpus; ++gpu) {
      name("thread_name", gpu_lane(first_gpu_.back() + gpu),
           of_group(fmt::format("GPU {}", gpu), group));
    }
    first_gpu_.push_back(first_gpu_.back() + gpus);
  }
  name("process_name", requests_lane, "requests");
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
  const auto group = static_cast<std::size_t>(record.instance);
  const ParallelPlan& plan = groups_[group]->parallel;
  const Lane steps = steps_lane_of(record.instance);
  span(step_kind_names[at(step.kind)], steps, step.start, now,
       fmt::format(R"(,"args":{{"rule":"{}","prefill_tokens":{},"decode_tokens":{},)"
                   R"("dummy_ranks":{},"preemptions":{}}})",
                   step_kind_names[at(step.rule)], step.prefill_tokens, step.decode_tokens,
                   step.dummy_ranks, step.preemptions));
  write(of_group("KV blocks", group), 'C', steps,
        fmt::format(R"("ts":{},"args":{{"used":{}}})", us(step.start), step.kv_blocks_used));
  for (int gpu = 0; gpu < plan.gpus(); ++gpu) {
    add_lane(gpu, plan, step.start, now, record.cost, first_gpu_[group] + gpu);
  }
  add_alarm(step.start, record.cost, plan, first_gpu_[group]);
}

void Timeline::add_lane(int gpu, const ParallelPlan& plan, Time start, Time now,
                        const StepCost& cost, std::int64_t lane) {
  const auto slices = slices_of(cost, at(gpu), plan);
  double passed = 0;
  Time begin = start;
  for (const Slice& slice : slices) {
    passed += slice.seconds;
    // Sums of doubles: at the end of the step they may be off by a picosecond.
    const bool last = &slice == &slices.back();
    const Time end = last ? now : std::clamp(start + to_duration(Seconds(passed)), begin, now);
    if (end > begin) span(slice.name, gpu_lane(lane), begin, end, slice.args);
    begin = end;
  }
}

void Timeline::add_alarm(Time start, const StepCost& cost, const ParallelPlan& plan,
                         std::int64_t first_gpu) {
  std::size_t worst = 0, hot_layers = 0;
  double highest = 0;
  for (std::size_t l = 0; l < cost.moe_layers().size(); ++l) {
    const LayerLoad& load = cost.moe_layers()[l].load;
    const double tokens = std::accumulate(load.tokens.begin(), load.tokens.end(), 0.0);
    const double ratio = load.max_tokens * double(load.tokens.size()) / tokens;
    if (ratio > experiment_.decode().hot_rank_threshold) ++hot_layers;
    if (ratio <= highest) continue;
    highest = ratio;
    worst = l;
  }
  if (hot_layers == 0) return;
  const auto& tokens = cost.moe_layers()[worst].load.tokens;
  const auto rank = std::max_element(tokens.begin(), tokens.end()) - tokens.begin();
  write("hot rank", 'i', gpu_lane(first_gpu + rank * plan.moe_tp()),
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
}

void Timeline::finish() {
  file_.write("\n]}\n");
  file_.commit();
}

}  // namespace moesim
