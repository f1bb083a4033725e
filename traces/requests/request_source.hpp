// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "hardware/config.hpp"
#include "hardware/units.hpp"
#include "traces/requests/patience.hpp"

namespace moesim {

class Arrivals;
class Lengths;

/// Which prompts begin alike: an id names all tokens before the end of its block, so that prompts
/// with equal ids at one place are equal up to there.
struct PromptIds {
  std::int32_t block_tokens = 0;
  std::vector<std::uint64_t> ids;  ///< of ceil(prompt_tokens / block_tokens) blocks
};

/// What a client asks for: lengths are known to the simulator, not to the policies.
struct Request {
  std::int32_t prompt_tokens = 0;                 ///< >= 1
  std::int32_t output_tokens = 0;                 ///< >= 1; the first is produced by the prefill
  std::shared_ptr<const PromptIds> prompt_ids{};  ///< null: the prompt begins like no other
};

struct TimedRequest {
  Time arrival;
  Request request;
};

/// Requests in order of arrival.
class RequestSource {
 public:
  virtual ~RequestSource() = default;
  /// The next request that arrives whatever the system does; arrivals never decrease. nullopt is
  /// the end (for now: a closed loop answers again after completed()).
  virtual std::optional<TimedRequest> next() = 0;
  /// A request left at `now`: a closed loop sends the next one. Times never decrease.
  virtual void completed(Time /*now*/) {}
};

/// What the "workload" object of an experiment says about requests: "arrivals", "lengths",
/// "requests", and when clients leave. Cheap to copy; every source made from it starts anew.
struct RequestWorkload {
  std::shared_ptr<const Arrivals> arrivals;
  std::shared_ptr<const Lengths> lengths;
  std::int64_t requests = 0;  ///< how many are sent
  PatienceRule patience{};

  /// Tokens of the longest prompt and the longest output together; 0: unbounded or recorded.
  std::int64_t longest() const;
  /// The same seed gives the same requests. `dp_ranks` is what "concurrency_per_rank" counts.
  std::unique_ptr<RequestSource> make(std::uint64_t seed, int dp_ranks) const;
};

/// Reads "arrivals", "lengths" (may be left out when the arrivals are a trace, which has lengths of
/// its own) and "requests" (may be left out likewise: all of the trace), and read_patience()'s
/// keys. Other keys, such as "gating", are left for the caller. Throws ConfigError.
RequestWorkload read_workload(ConfigReader& workload);

}  // namespace moesim
