// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "sim/scheduling/deadline_order.hpp"

namespace moesim {

namespace {

// [expert-parallelism]: "combine tokens by expert while preserving each request's deadline". The
// experts that a request will activate are not known before it runs. Its topic replaces them, the
// workload tag of the recording that it replays. Requests of one topic activate similar experts, so
// that a batch of few topics reads fewer of them from memory.
//
// In the queue of earliest_deadline, requests of one topic go ahead. It is the waiting topic that
// most running sequences of the group have. Ties: the lowest. If none run, it is that of the first
// in the queue. In order of deadlines each of these passes all others that precede it, if for every
// one of them
//   slack_share x (deadline - now - end - step)  >=  sum of max(time, seat) over all that pass it
// where `end` is when its prompt would end without being passed, by
//   end    = max(sum of time up to it, seats to become free before it x seat) + its own time
//   time   = of the prompt alone, and of the decodes that run beside a step of it
//   seat   = mean time between two sequences of the rank that finish; 0 with seats for all, and
//            nobody passes before it is known
//   step   = one more step of a full chunk: the one that may begin before it is looked at again
// So no request is late for the sake of a group, as far as these means tell and of those that have
// come. The rest of the slack is for what they do not tell. Seats become free at random, and
// requests that come later may be due earlier. Requests that earliest_deadline would hardly serve
// in time have no slack, and none passes them. With a share of 0 this is earliest_deadline.
class ExpertGroups final : public LimitedScheduler {
 public:
  ExpertGroups(BatchLimits limits, double slack_share)
      : LimitedScheduler(limits), slack_share_(slack_share) {}
  void plan(const RankView& rank, Turn, StepPlan& plan) const override {
    plan_first_come(rank, limits(), plan);
  }
  bool reorders() const override { return true; }
  void order_waiting(const QueueView& queue, std::span<Sequence> waiting) const override {
    const DeadlineQueue parts = order_by_deadline(queue, max_num_batched_tokens(), waiting);
    if (parts.can.size() > 1) let_pass(queue, parts);
  }
  bool needs_deadlines() const override { return true; }
  bool needs_price() const override { return true; }
  bool prices_prompts() const override { return true; }

 private:
  // Pace that the estimate goes by.
  struct Pace {
    Seconds under_way{};  // of prompts that run
    Seconds beside{};     // of the decodes of a step
    Seconds step{}, seat{};
    std::int64_t free_seats = 0;
  };

  Seconds prompt_time(const QueueView& queue, const Sequence& sequence) const {
    return queue.price->prompt_time(sequence.due(), max_num_batched_tokens());
  }

  Pace pace_of(const QueueView& queue, const DeadlineQueue& parts) const {
    Pace pace;
    std::int64_t decodes = 0, context = 0;
    for (const Sequence& sequence : queue.running) {
      if (sequence.decoding()) {
        ++decodes;
        context += sequence.computed;
      } else {
        pace.under_way += prompt_time(queue, sequence);
      }
    }
    const std::int64_t chunk = max_num_batched_tokens();
    pace.beside = queue.price->time(decodes, context);
    pace.step = queue.price->prompt_time(chunk, chunk) + pace.beside;
    pace.free_seats = max_num_seqs() - std::ssize(queue.running);
    const std::int64_t wanted = std::ssize(parts.shown) + std::ssize(parts.can);
    pace.seat = wanted <= pace.free_seats ? Seconds{} : queue.between_seats;
    return pace;
  }

  Seconds time_of(const QueueView& queue, const Pace& pace, const Sequence& sequence) const {
    const std::int64_t chunk = max_num_batched_tokens();
    const std::int64_t steps = (sequence.due() + chunk - 1) / chunk;
    return prompt_time(queue, sequence) + pace.beside * double(steps);
  }

  static std::uint32_t topic_of_group(const QueueView& queue, std::span<const Sequence> waiting) {
    const auto running = [&](std::uint32_t topic) {
      return topic < queue.running_of_topic.size() ? queue.running_of_topic[topic] : 0;
    };
    std::uint32_t best = waiting.front().topic;
    for (const Sequence& sequence : waiting) {
      const auto more = running(sequence.topic), most = running(best);
      if (more > most || (more == most && more > 0 && sequence.topic < best)) best = sequence.topic;
    }
    return best;
  }

  void let_pass(const QueueView& queue, const DeadlineQueue& parts) const {
    const Pace pace = pace_of(queue, parts);
    if (!std::isfinite(pace.seat.count())) return;
    Seconds sum = pace.under_way;
    for (const Sequence& sequence : parts.shown) sum += time_of(queue, pace, sequence);
    std::int64_t seats = std::ssize(parts.shown) - pace.free_seats;  // to become free, with its own
    const std::uint32_t topic = topic_of_group(queue, parts.can);
    Seconds least_slack(std::numeric_limits<double>::infinity());  // of those that stay
    std::vector<Sequence> pass, stay;
    for (const Sequence& sequence : parts.can) {
      const Seconds own = time_of(queue, pace, sequence), delay = std::max(own, pace.seat);
      const auto waits_for = static_cast<double>(std::max<std::int64_t>(++seats, 0));
      const Seconds end = std::max(sum, pace.seat * waits_for) + own;
      sum += own;
      if (sequence.topic == topic && delay <= least_slack) {
        least_slack -= delay;
        pass.push_back(sequence);
        continue;
      }
      const Seconds slack = to_seconds(sequence.deadline - queue.now) - end - pace.step;
      least_slack = std::min(least_slack, slack * slack_share_);
      stay.push_back(sequence);
    }
    const auto behind = std::ranges::copy(pass, parts.can.begin()).out;
    std::ranges::copy(stay, behind);
  }

  double slack_share_;
};

}  // namespace

std::span<const Key> expert_groups_keys() {
  static constexpr Key keys[] = {
      batch_limit_keys[0],
      batch_limit_keys[1],
      batch_limit_keys[2],
      reserve_full_prompt_key,
      capacity_policy_key,
      {"slack_share", form::number(0, 1), "0.1", "share of a request's slack that groups may use"}};
  return keys;
}

std::unique_ptr<Scheduler> make_expert_groups(ConfigReader& options) {
  const BatchLimits limits = read_batch_limits(options);
  return std::make_unique<ExpertGroups>(limits, options.number("slack_share"));
}

}  // namespace moesim
