// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "sim/experiment/deployment.hpp"
#include "tools/bench/step_pricer.hpp"

namespace moesim {

/// Answers batches of one caller, one after another.
class StepPrices {
 public:
  explicit StepPrices(const Deployment&);

  /// Answer to a batch, a line of JSON each. Throws ConfigError, and then has priced nothing.
  std::string answer(std::string_view batch);

 private:
  // Mean wait of a rank's GPUs.
  double wait(const StepCost&, int rank) const;
  // Adds what a MoE layer activated: experts with a token, and slots with one of each EP rank.
  void count(const LayerOutcome&);
  std::string to_text(const StepCost&);

  const Deployment& deployment_;
  StepPricer pricer_;
  std::vector<RankWork> asked_;  // [dp]
  std::uint64_t lines_ = 0;
  double active_ = 0;
  std::vector<double> activated_;  // [EP ranks]
  std::vector<double> waits_;      // [dp]
};

/// Takes the deployment of `moesim price`, which then reads no batches. Set by a program that has
/// batches of its own.
inline std::function<void(std::shared_ptr<const Deployment>)> take_priced{};

/// Answers batches, a line each, with what an EP group of the deployment takes for them: from stdin
/// to stdout, until the input ends. Throws ConfigError at the first line that is wrong.
void price_stdin(const Deployment&);

/// The same on a Unix socket of this path, until SIGINT or SIGTERM: one caller after another, each
/// begins anew. A line that is wrong is answered with an error. Throws ConfigError where the socket
/// cannot be made.
void serve_prices(const Deployment&, const std::string& path);

}  // namespace moesim
