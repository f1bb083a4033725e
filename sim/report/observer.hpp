// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "sim/requests/requests.hpp"
#include "sim/step/step_record.hpp"

namespace moesim {

/// Something that happens in a run, as its one loop takes it up.
struct EventSeen {
  Time at{};
  std::string_view what;  ///< a literal: "request_arrives", "step_ends", ...
  std::optional<std::uint32_t> request{};
  std::optional<int> instance{};  ///< the EP group
  Time sent{};                    ///< when a client sent the request that arrives
};

/// Watches a run as it happens, e.g. to write a timeline. What it does changes nothing, but for an
/// exception: that ends the run without a report. What it is shown is valid during the call only. A
/// new kind of happening is one more function here, which does nothing unless overridden.
class RunObserver {
 public:
  virtual ~RunObserver() = default;
  /// Something happens: what follows from it comes after this call. Events that have become void,
  /// as the end of a step that an outage cut short, are not shown.
  virtual void event(const EventSeen&) {}
  /// A step ended. It lasted from its start to `now`.
  virtual void step_ended(const StepRecord&, Time /*now*/) {}
  /// A request got its first token in the step that ended just before.
  virtual void first_token(std::uint32_t /*id*/, const RequestRecord&) {}
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
