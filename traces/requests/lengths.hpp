// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "hardware/registry.hpp"
#include "hardware/rng.hpp"
#include "traces/requests/request_source.hpp"

namespace moesim {

/// How long prompts and outputs are.
class Lengths {
 public:
  virtual ~Lengths() = default;
  /// The lengths of the index-th request sent, from 0.
  virtual Request request(std::int64_t index, Rng& rng) const = 0;
  /// The longest prompt and the longest output, where the config says them; 0 tokens: lengths are
  /// drawn without a bound or recorded.
  virtual Request longest() const { return {}; }
  /// The shortest prompt and output, each as a share of the longest, where every length between is
  /// as likely; 1: all are of one length.
  virtual double least() const { return 1; }
  /// Names of the classes that recorded requests are of; none: no file says so. A row without a
  /// class among others that have one is of class "".
  virtual std::span<const std::string> classes() const { return {}; }
  /// True if ids of tokens were recorded, so that prompts may begin with those of others.
  virtual bool has_ids() const { return false; }
};

/// The table: fixed, uniform, lognormal, trace.
const Registry<Lengths>& request_lengths();

}  // namespace moesim
