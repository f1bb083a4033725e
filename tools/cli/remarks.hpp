// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <mutex>
#include <set>
#include <string>

#include <spdlog/spdlog.h>

#include "sim/experiment/experiment.hpp"
#include "sim/report/report.hpp"

namespace moesim {

/// The recordings of routing that the requests of a deployment replay.
struct Recordings {
  std::int64_t count = 0;
  bool synthetic = false;
  int experts = 0;  ///< of the model
};
Recordings recordings_of(const Deployment&);

/// Remark on a run that had more requests in flight in the mean than recordings of routing serve.
/// It is "" where it had not, or where nearly all experts are active anyway.
std::string remark_on_recordings(const Recordings&, const Report&);

/// Says on stderr what readers found worth a remark, each once. For several threads at a time.
class Remarks {
 public:
  void say(const std::string& remark) {
    const std::lock_guard lock(mutex_);
    if (!remark.empty() && said_.insert(remark).second) spdlog::warn("{}", remark);
  }
  /// Says what was found as an experiment was read; returns the experiment.
  Experiment say_of(Experiment experiment) {
    for (const std::string& remark : remarks_of(experiment)) say(remark);
    return experiment;
  }

 private:
  std::mutex mutex_;
  std::set<std::string> said_;
};

}  // namespace moesim
