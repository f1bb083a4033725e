// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>
#include <vector>

#include "sim/experiment/spec.hpp"
#include "sim/report/observer.hpp"
#include "tools/cli/output.hpp"

namespace moesim {

/// Writes a line per step as CSV: when, what it held, its length and its parts along the critical
/// path (they add up to it). Then come the mean wait of a GPU at barriers, and activated slots and
/// tokens of the busiest and of the average rank. The latter are means over the MoE layers. Units
/// are in the header: _s, _ms; the others are counts.
class StepsCsv : public RunObserver {
 public:
  /// Throws ConfigError if the file cannot be written.
  explicit StepsCsv(const std::filesystem::path& file);

  void step_ended(const StepRecord&, Time now) override;

  /// Only now the file stands under its name.
  void finish() { file_.commit(); }

 private:
  OutputFile file_;
  std::int64_t steps_ = 0;
};

/// Returns a line per request, with the EP group and the DP rank in it where the router sent it. It
/// has what the router went by: its score, the share of the prompt cached there, the experts near
/// by, KV tokens. The prefill_ columns say the same of a prefill pool, kv_transfer_ms what came
/// between the first token and the decode pool; empty without pools. Latencies of finished requests
/// only; TPOT of those with two output tokens and more. Turns of sessions have two columns more,
/// which session and which turn of it, both from 0: with these the file can be replayed. A third
/// says how many tokens all first prompts have in common (SessionRules::shared_prefix), if any.
/// Where requests have classes, a last column names that of each. Units as above. A request is
/// rejected as longer than `max_model_len` tokens (0: no limit), or as larger than the KV cache.
std::string requests_csv(const std::vector<RequestRecord>&, std::span<const RequestClass>,
                         std::int64_t max_model_len, std::int64_t shared_prefix = 0);

}  // namespace moesim
