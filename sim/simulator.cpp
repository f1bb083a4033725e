// SPDX-License-Identifier: Apache-2.0
#include "sim/simulator.hpp"

#include "sim/event_queue.hpp"
#include "sim/frontend.hpp"
#include "sim/instance.hpp"

namespace moesim {

namespace {

constexpr std::uint32_t finished_between_progress = 64;

// The one place that owns the clock and moves requests: arrivals to ranks, steps to their ends.
class Simulation {
 public:
  Simulation(const Experiment& experiment, const Progress& progress,
             std::span<RunObserver* const> observers)
      : experiment_(experiment),
        progress_(progress),
        observers_(observers),
        source_(experiment.workload.make(experiment.seed, experiment.parallel.dp)),
        rows_(experiment.trace, experiment.prefill_trace, experiment.bind_odd_only, experiment.seed,
              experiment.binding),
        instance_(experiment, rows_, requests_),
        frontend_(experiment, rows_, requests_),
        measurement_(experiment, instance_.total_blocks()),
        patience_rng_(experiment.seed, "workload/patience") {}

  Report run() {
    const std::vector<Outage>& outages = experiment_.failures.outages;
    for (std::size_t i = 0; i < outages.size(); ++i) {
      queue_.schedule(outages[i].at, OutageBegins{i});
    }
    schedule_arrival();
    while (auto event = queue_.pop()) {
      std::visit([this](const auto& what) { handle(what); }, event->what);
    }
    check(frontend_.empty(), "a request was left without a rank");
    return write_report(experiment_, measurement_, instance_, std::move(requests_), ended_);
  }

 private:
  // One arrival is in the queue at a time; the source is asked for the next when it is due.
  void schedule_arrival() {
    if (arrival_pending_) return;
    due_ = source_->next();
    if (!due_) return;
    arrival_pending_ = true;
    queue_.schedule(std::max(due_->arrival, queue_.now()), RequestArrives{});
  }

  void handle(const RequestArrives&) {
    arrival_pending_ = false;
    ended_ = queue_.now();
    const auto id = static_cast<std::uint32_t>(requests_.size());
    RequestRecord& request = requests_.emplace_back();
    request.prompt_tokens = due_->request.prompt_tokens;
    request.output_tokens = due_->request.output_tokens;
    request.prompt_ids = due_->request.prompt_ids;
    request.arrival = queue_.now();
    request.binding = rows_.bind();
    measurement_.request_arrived(queue_.now());
    if (std::ssize(requests_) == experiment_.workload.requests) {
      measurement_.no_more_arrivals(queue_.now());
    }
    frontend_.publish(queue_.now(), instance_);
    const Patience patience = experiment_.workload.patience.draw(patience_rng_);
    if (instance_.can_ever_hold(request)) {
      await(id, patience);
      frontend_.arrive(id);
    } else {
      request.state = RequestRecord::State::rejected;
      request_left(id);
    }
    schedule_arrival();
    // Requests that arrive at the same moment join the same step.
    const bool more_now = arrival_pending_ && due_->arrival <= queue_.now();
    if (more_now) return;
    frontend_.place(queue_.now(), instance_);
    if (!step_running_) begin_step();
  }

  void await(std::uint32_t id, const Patience& patience) {
    using Because = ClientLeaves::Because;
    const auto leaves = [&](const std::optional<Duration>& after, Because because) {
      if (after) queue_.schedule(queue_.now() + *after, ClientLeaves{id, because});
    };
    leaves(patience.first_token, Because::no_first_token);
    leaves(patience.whole, Because::not_finished);
    leaves(patience.cancels, Because::cancelled);
  }

  void handle(const ClientLeaves& client) {
    using Because = ClientLeaves::Because;
    RequestRecord& request = requests_[client.request];
    const bool served = client.because == Because::no_first_token && request.generated > 0;
    if (!request.open() || served) return;
    ended_ = queue_.now();
    frontend_.publish(queue_.now(), instance_);
    request.state = client.because == Because::cancelled ? RequestRecord::State::cancelled
                                                         : RequestRecord::State::timed_out;
    request.abandoned_at = queue_.now();
    if (!frontend_.withdraw(client.request)) instance_.abandon(client.request);
    measurement_.request_abandoned();
    request_left(client.request);
    schedule_arrival();
    const bool more_now = arrival_pending_ && due_->arrival <= queue_.now();
    if (more_now) return;
    frontend_.place(queue_.now(), instance_);
    if (!step_running_) begin_step();
  }

  void handle(const StepEnds& step) {
    if (step.serial != serial_) return;
    step_running_ = false;
    ended_ = queue_.now();
    frontend_.publish(queue_.now(), instance_);
    const StepOutcome& outcome = instance_.end_step(queue_.now());
    measurement_.step_ended(instance_, outcome, requests_, coverage_, queue_.now());
    for (RunObserver* observer : observers_) observer->step_ended(instance_, queue_.now());
    for (const StepOutcome::Emitted& token : outcome.tokens) {
      if (!token.last) continue;
      frontend_.finished(token.request);
      request_left(token.request);
    }
    schedule_arrival();
    const bool more_now = arrival_pending_ && due_->arrival <= queue_.now();
    if (more_now) return;
    frontend_.place(queue_.now(), instance_);
    begin_step();
  }

  // Nothing has work or will have.
  bool finished() const { return !arrival_pending_ && left_ == std::ssize(requests_); }

  // Whoever lost its rank arrives anew at another one, with all its tokens as a prompt.
  void handle(const OutageBegins& begins) {
    if (finished()) return;
    const Outage& outage = experiment_.failures.outages[begins.outage];
    frontend_.publish(queue_.now(), instance_);
    const Instance::Stopped stopped = instance_.fail(outage, queue_.now());
    for (const std::uint32_t id : stopped.requests) frontend_.arrive(id);
    frontend_.place(queue_.now(), instance_);
    if (outage.recovers_after) {
      queue_.schedule(queue_.now() + *outage.recovers_after, OutageEnds{begins.outage});
    }
    stop_engine(stopped.time);
  }

  void handle(const OutageEnds& ends) {
    returning_.push_back(ends.outage);
    if (!step_running_) begin_step();
  }

  void handle(const EngineReady& ready) {
    if (ready.serial != serial_) return;
    step_running_ = false;
    frontend_.place(queue_.now(), instance_);
    begin_step();
  }

  void stop_engine(Seconds time) {
    step_running_ = true;
    queue_.schedule(queue_.now() + to_duration(time), EngineReady{++serial_});
  }

  // Ranks that are back take up experts before the next step.
  bool take_back() {
    if (returning_.empty()) return false;
    Seconds time{};
    for (const std::size_t outage : returning_) {
      time += instance_.recover(experiment_.failures.outages[outage], queue_.now());
    }
    returning_.clear();
    stop_engine(time);
    return true;
  }

  void begin_step() {
    if (take_back()) return;
    coverage_ = {};
    const auto length = instance_.begin_step(queue_.now(), coverage_);
    if (!length) return;
    step_running_ = true;
    queue_.schedule(queue_.now() + to_duration(*length), StepEnds{0, ++serial_});
  }

  void request_left(std::uint32_t id) {
    source_->completed(queue_.now());
    measurement_.request_left(queue_.now());
    for (RunObserver* observer : observers_) observer->request_left(id, requests_[id]);
    if (++left_ % finished_between_progress == 0 && progress_) {
      progress_(left_, experiment_.workload.requests);
    }
  }

  const Experiment& experiment_;
  const Progress& progress_;
  std::span<RunObserver* const> observers_;
  EventQueue queue_;
  std::unique_ptr<RequestSource> source_;
  std::vector<RequestRecord> requests_;
  RowSource rows_;
  Instance instance_;
  Frontend frontend_;
  Measurement measurement_;
  Rng patience_rng_;
  std::optional<TimedRequest> due_;
  bool arrival_pending_ = false;
  bool step_running_ = false;  // or the engine stands still
  std::int64_t serial_ = 0;    // of the step or stop that is under way
  std::vector<std::size_t> returning_;
  Time ended_{};
  std::array<RoutingCoverage, 2> coverage_{};
  std::int64_t left_ = 0;
};

}  // namespace

Report run(const Experiment& experiment, const Progress& progress,
           std::span<RunObserver* const> observers) {
  return Simulation(experiment, progress, observers).run();
}

ExplainedStep explain_step(const Experiment& experiment, StepKind kind, int sequences_per_rank,
                           int context, int prefill_tokens) {
  RowSource rows(experiment.trace, experiment.prefill_trace, experiment.bind_odd_only,
                 experiment.seed);
  StepModel model = step_model(experiment);
  StepBatch batch;
  RoutingCoverage coverage;
  ExplainedStep step;
  for (int r = 0; r < experiment.parallel.dp; ++r) {
    RankStep& rank = batch.ranks.emplace_back();
    if (kind != StepKind::decode) {
      rank.sequences.push_back({prefill_tokens, 0});
      rank.tokens += prefill_tokens;
      rank.sampled += 1;
      rows.append(rows.bind(), Phase::prefill, 0, prefill_tokens, r, batch.rows, coverage);
      step.summary.prefill_tokens += prefill_tokens;
    }
    for (int i = 0; i < sequences_per_rank && kind != StepKind::prefill; ++i) {
      rank.sequences.push_back({1, context});
      rows.append(rows.bind(), Phase::decode, i, 1, r, batch.rows, coverage);
      ++rank.tokens;
      ++rank.sampled;
      ++step.summary.decode_tokens;
    }
  }
  step.summary.kind = kind;
  step.summary.rule = rule_kind(experiment.mixed, kind, step.summary.prefill_tokens);
  model.price(batch, experiment.rules.of(step.summary.rule), experiment.placement, rows, step.cost,
              &step.operations);
  return step;
}

}  // namespace moesim
