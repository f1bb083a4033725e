// SPDX-License-Identifier: Apache-2.0
#include "traces/requests/patience.hpp"

#include <algorithm>

namespace moesim {
namespace {

// 30 days: a client that stays longer stays to the end.
constexpr Seconds longest{2.592e6};

Seconds above_zero(const ConfigNode& time) {
  const auto seconds = time.quantity<Seconds>();
  if (!(seconds.count() > 0)) time.fail("must be above zero");
  return seconds;
}

std::optional<Seconds> read_limit(ConfigReader& workload, std::string_view key) {
  return workload.optional(key) ? std::optional(above_zero(workload.child(key))) : std::nullopt;
}

std::optional<Duration> on_the_clock(const std::optional<Seconds>& limit) {
  return limit ? std::optional(to_duration(*limit)) : std::nullopt;
}

}  // namespace

Patience PatienceRule::draw(Rng& rng) const {
  const bool cancels = rng.uniform() < cancelling_share;
  const Seconds after = cancels_after * rng.exponential();
  return {on_the_clock(first_token), on_the_clock(whole),
          cancels ? on_the_clock(std::min(after, longest)) : std::nullopt};
}

std::span<const Key> cancellation_keys() {
  static constexpr Key keys[] = {
      {"share", form::number(0, 1), required, "share of the clients that leave before the end"},
      {"mean_after", form::time, required, "mean time from arrival to leaving, exponential"}};
  return keys;
}

PatienceRule read_patience(ConfigReader& workload) {
  PatienceRule rule{read_limit(workload, "ttft_timeout"), read_limit(workload, "timeout")};
  if (workload.optional("cancellation")) {
    read_object(workload.child("cancellation"), cancellation_keys, [&](ConfigReader& cancellation) {
      rule.cancelling_share = cancellation.number("share");
      rule.cancels_after = above_zero(cancellation.child("mean_after"));
    });
  }
  return rule;
}

}  // namespace moesim
