// SPDX-License-Identifier: Apache-2.0
#include "tools/run/run_csv.hpp"

#include <iterator>
#include <numeric>

#include <fmt/format.h>

#include "tools/cli/output.hpp"

namespace moesim {

namespace {

std::string ms(double seconds) { return fmt::format("{:.6f}", seconds * 1e3); }

double mean(double sum, std::size_t count) { return count == 0 ? 0 : sum / double(count); }

// Figures of each MoE layer's busiest and average rank, averaged over the layers.
std::string expert_cells(const std::vector<LayerOutcome>& layers) {
  double max_activated = 0, activated = 0, max_tokens = 0, tokens = 0;
  for (const LayerOutcome& layer : layers) {
    const LayerLoad& load = layer.load;
    const std::size_t ranks = load.tokens.size();
    max_activated += load.most_activated();
    activated += mean(std::accumulate(load.activated.begin(), load.activated.end(), 0.0), ranks) +
                 load.sliced;
    max_tokens += load.most_tokens();
    tokens += mean(std::accumulate(load.tokens.begin(), load.tokens.end(), 0.0), ranks) +
              load.sliced_tokens;
  }
  const std::size_t n = layers.size();
  return fmt::format("{:.4f},{:.4f},{:.4f},{:.4f}", mean(max_activated, n), mean(activated, n),
                     mean(max_tokens, n), mean(tokens, n));
}

std::string decision_cells(const RoutingRecord& routing) {
  return fmt::format("{},{},{},{}", routing.score, routing.hit_share, routing.locality,
                     routing.load);
}

std::string prefill_cells(const RequestRecord& request) {
  if (!request.prefill) return ",,,,,,";
  const PrefillRecord& p = *request.prefill;
  return fmt::format("{},{},{},{}", p.instance, p.rank, decision_cells(p.routing),
                     ms(to_seconds(p.kv_exposed).count()));
}

}  // namespace

StepsCsv::StepsCsv(const std::filesystem::path& file) : file_(file) {
  std::string head =
      "step,start_s,step_ms,holds,rule,prefill_tokens,decode_tokens,dummy_ranks,kv_blocks_used,"
      "preemptions";
  for (const std::string_view part : part_names) head += fmt::format(",{}_ms", part);
  file_.write(head +
              ",mean_idle_ms,max_activated,mean_activated,max_tokens,mean_tokens,instance\n");
}

void StepsCsv::step_ended(const StepRecord& record, Time now) {
  const StepSummary& step = record.step;
  const StepCost& cost = record.cost;
  std::string line =
      fmt::format("{},{:.9f},{},{},{},{},{},{},{},{}", steps_++, to_seconds(step.start).count(),
                  ms(to_seconds(now - step.start).count()), step_kind_names[at(step.kind)],
                  step_kind_names[at(step.rule)], step.prefill_tokens, step.decode_tokens,
                  step.dummy_ranks, step.kv_blocks_used, step.preemptions);
  for (const auto& part : cost.parts)
    fmt::format_to(std::back_inserter(line), ",{}",
                   ms(std::accumulate(part.begin(), part.end(), 0.0)));
  const double idle = std::accumulate(cost.idle.begin(), cost.idle.end(), 0.0);
  file_.write(fmt::format("{},{},{},{}\n", line, ms(mean(idle, cost.idle.size())),
                          expert_cells(cost.moe_layers()), record.instance));
}

// Agents that others have started are written as sessions of their own.
std::string session_name(const SessionTurn& turn) {
  return turn.agent == 0 ? fmt::format("{}", turn.session)
                         : fmt::format("{}.{}", turn.session, turn.agent);
}

std::string requests_csv(const std::vector<RequestRecord>& requests,
                         std::span<const RequestClass> classes, std::int64_t max_model_len,
                         std::int64_t shared_prefix) {
  const bool sessions = !requests.empty() && requests.front().turn;
  std::string csv =
      "request,arrival_s,instance,rank,state,prompt_tokens,output_tokens,generated_tokens,ttft_ms,"
      "tpot_ms,e2el_ms,preemptions,cached_tokens,score,hit_share,locality,load_kv_tokens,prefill_"
      "instance,prefill_rank,prefill_score,prefill_hit_share,prefill_locality,prefill_load_kv_"
      "tokens,kv_transfer_ms";
  if (sessions) csv += ",session,turn";
  if (shared_prefix > 0) csv += ",shared_prefix";
  csv += classes.empty() ? "\n" : ",class\n";
  constexpr std::array<std::string_view, 6> states{
      "waiting", "running", "finished", "rejected: exceeds_kv_capacity", "timed_out", "cancelled"};
  for (std::size_t i = 0; i < requests.size(); ++i) {
    const RequestRecord& r = requests[i];
    const bool finished = r.state == RequestRecord::State::finished;
    const bool too_long = r.state == RequestRecord::State::rejected && max_model_len > 0 &&
                          std::int64_t{r.prompt_tokens} + r.output_tokens > max_model_len;
    const auto length = [&](Time begin, Time end, std::int32_t tokens) {
      const double seconds = to_seconds(end - begin).count();
      return finished && tokens > 0 ? ms(seconds / tokens) : "";
    };
    csv += fmt::format(
        "{},{:.9f},{},{},{},{},{},{},{},{},{},{},{},{},{}", i, to_seconds(r.arrival).count(),
        r.instance, r.rank, too_long ? "rejected: exceeds_max_model_len" : states[at(r.state)],
        r.prompt_tokens, r.output_tokens, r.generated, length(r.arrival, r.first_token, 1),
        length(r.first_token, r.last_token, r.output_tokens - 1),
        length(r.arrival, r.last_token, 1), r.preemptions, r.cached_tokens,
        decision_cells(r.routing), prefill_cells(r));
    if (r.turn) csv += fmt::format(",{},{}", session_name(*r.turn), r.turn->turn);
    if (shared_prefix > 0) csv += fmt::format(",{}", shared_prefix);
    if (!classes.empty()) csv += "," + csv_cell(classes[r.of_class].name);
    csv += '\n';
  }
  return csv;
}

}  // namespace moesim
