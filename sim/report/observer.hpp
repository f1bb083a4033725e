// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "sim/serving/instance.hpp"

namespace moesim {

/// Watches a run as it happens, e.g. to write a timeline. What it does changes nothing; what it is
/// shown is valid during the call only. A new kind of happening is one more function here, which
/// does nothing unless overridden.
class RunObserver {
 public:
  virtual ~RunObserver() = default;
  /// A step ended: instance.step() and instance.cost() say what it was and took. It lasted from
  /// step().start to `now`.
  virtual void step_ended(const Instance&, Time /*now*/) {}
  /// A request finished, was rejected or abandoned.
  virtual void request_left(std::uint32_t /*id*/, const RequestRecord&) {}
};

/// Keeps the record of every request, which a run itself does not.
class RequestLog : public RunObserver {
 public:
  void request_left(std::uint32_t id, const RequestRecord& request) override {
    if (id >= requests_.size()) requests_.resize(id + std::size_t{1});
    requests_[id] = request;
  }
  /// [id], in order of arrival: as each was when it left.
  const std::vector<RequestRecord>& requests() const { return requests_; }

 private:
  std::vector<RequestRecord> requests_;
};

}  // namespace moesim
