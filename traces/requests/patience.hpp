// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include "hardware/config.hpp"
#include "hardware/rng.hpp"
#include "hardware/units.hpp"

namespace moesim {

/// How long one client waits for its request, from its arrival; nothing: for ever.
struct Patience {
  std::optional<Duration> first_token;  ///< for the first token alone
  std::optional<Duration> whole;        ///< for the last one
  std::optional<Duration> cancels;      ///< then leaves for reasons of its own
};

/// How long clients wait: "ttft_timeout" and "timeout" hold for all; "cancellation" says which
/// share of clients leaves after an exponentially distributed time, and its mean.
struct PatienceRule {
  std::optional<Seconds> first_token, whole;
  double cancelling_share = 0;
  Seconds cancels_after{};

  bool endless() const { return !first_token && !whole && cancelling_share == 0; }
  /// Two numbers are drawn for every request, so that rules differ in nothing else.
  Patience draw(Rng&) const;
};

/// Reads "timeout", "ttft_timeout" and "cancellation" ({"share": 0.1, "mean_after": "5 s"}), none
/// of which must be there. Throws ConfigError.
PatienceRule read_patience(ConfigReader& workload);
std::span<const Key> cancellation_keys();

}  // namespace moesim
