// SPDX-License-Identifier: Apache-2.0
#include "sim/report/slo_watch.hpp"

#include "sim/report/objectives.hpp"

namespace moesim {

namespace {

// Limits are compared in ms, times in ps: nobody is late by less than this.
constexpr Seconds rounding{1e-9};

}  // namespace

SloWatch::SloWatch(const Experiment& experiment, double attainment, bool from_start)
    : load_(experiment.decode()),
      measured_by_(experiment.decode()),
      loosest_(load_.loosest_slo()),
      may_miss_(1 - attainment),
      from_start_(from_start),
      warmup_(static_cast<std::int64_t>(measured_by_.warmup *
                                        static_cast<double>(load_.workload.requests))) {}

void SloWatch::start_if_warm() {
  const auto arrived = std::ssize(fates_);
  if (begin_ || arrived <= warmup_ || left_ < warmup_) return;
  begin_ = now_;
  // The one that arrives now is among them.
  measured_ = load_.workload.requests - arrived + 1;
}

void SloWatch::event(const EventSeen& seen) {
  now_ = seen.at;
  if (seen.what == "request_arrives") {
    const Time arrival = seen.sent;
    fates_.push_back({.received = now_});
    start_if_warm();
    if (loosest_.ttft) {
      const Seconds longest = *loosest_.ttft / measured_by_.anchored_ttft + rounding;
      deadlines_.push({arrival + to_duration(longest), *seen.request, true});
    }
  }
  pass_deadlines();
}

void SloWatch::first_token(std::uint32_t id, const RequestRecord& request) {
  fates_[id].has_token = true;
  const Slo& slo = load_.slo_of(request.of_class);
  if (!slo.tpot || request.output_tokens < 2) return;
  const Seconds longest = *slo.tpot * double(request.output_tokens - 1) + rounding;
  deadlines_.push({now_ + to_duration(longest), id, false});
}

void SloWatch::request_left(std::uint32_t id, const RequestRecord& request) {
  ++left_;
  start_if_warm();
  if (request.state == RequestLife::State::cancelled) {
    fates_[id].decided = true;  // nothing is owed
  } else {
    decide(id, request.state == RequestLife::State::finished &&
                   objectives_met(latency_of(request, measured_by_.anchored_ttft),
                                  load_.slo_of(request.of_class))
                       .all());
  }
}

void SloWatch::pass_deadlines() {
  while (!deadlines_.empty() && deadlines_.top().at < now_) {
    const Deadline passed = deadlines_.top();
    deadlines_.pop();
    if (!passed.of_first_token || !fates_[passed.request].has_token) decide(passed.request, false);
  }
}

void SloWatch::decide(std::uint32_t id, bool met) {
  Fate& fate = fates_[id];
  if (std::exchange(fate.decided, true)) return;
  ++(met ? met_ : missed_);
  if (met) return;
  if (begin_ && fate.received >= *begin_) ++missed_while_measured_;
  // A run that turns out too short is measured whole.
  const bool whole_too = double(missed_) > may_miss_ * double(load_.workload.requests);
  const bool measured_too =
      from_start_ || (begin_ && double(missed_while_measured_) > may_miss_ * double(measured_));
  if (whole_too && measured_too) throw SloMissed{double(met_) / double(met_ + missed_)};
}

}  // namespace moesim
