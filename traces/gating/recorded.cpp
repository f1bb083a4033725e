// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "traces/gating/gating.hpp"
#include "traces/gating/synthetic.hpp"

namespace moesim {
namespace {

/// Requests of these workloads only.
std::vector<TraceRequest> chosen_requests(const RoutingTrace& trace, ConfigReader& options) {
  std::vector<char> wanted(trace.workloads().size(), 1);
  if (options.has("workloads")) {
    std::fill(wanted.begin(), wanted.end(), char{0});
    const std::vector<std::string_view> known(trace.workloads().begin(), trace.workloads().end());
    for (const ConfigNode& tag : options.child("workloads").list()) {
      const std::string name = tag.text();
      const auto found = std::find(known.begin(), known.end(), name);
      if (found == known.end())
        tag.fail("the trace has no workload \"{}\"; it has: {}", name, join_names(known));
      wanted[at(found - known.begin())] = 1;
    }
  }
  std::vector<TraceRequest> chosen;
  for (const TraceRequest& request : trace.requests())
    if (wanted[at(request.workload)] != 0) chosen.push_back(request);
  return chosen;
}

class Recorded final : public Gating {
 public:
  explicit Recorded(ConfigReader& options)
      : node_(options.node()),
        adapt_(options.flag("adapt")),
        trace_(RoutingTrace::open(options.path("trace"))) {
    trace_ = trace_.with_requests(chosen_requests(trace_, options));
    const bool skip = options.flag("skip_repetition");
    remark_ = trace_.loops_remark(skip ? "left out" : "kept");
    trace_ = skip ? trace_.without_loops() : trace_.with_loops();
    if (trace_.requests().empty()) node_.fail("leaves no request of the trace");
  }

  RoutingTrace trace(const MoeModel& model, std::uint64_t) const override {
    const std::vector<int> layer_ids = moe_layer_ids(model);
    if (trace_.num_experts() != model.experts ||
        trace_.experts_per_token() != model.experts_per_token)
      node_.fail(
          "the trace is of {} ({} of {} experts), the model {} picks {} of {}; a trace is not "
          "rescaled to other experts, since no data supports that: use a synthetic gating",
          trace_.meta().model, trace_.experts_per_token(), trace_.num_experts(), model.name,
          model.experts_per_token, model.experts);
    trace_.check_ids();
    if (std::ssize(layer_ids) == trace_.layers()) return trace_;
    if (!adapt_)
      node_.fail(
          "the trace is of {} with {} MoE layers, the model {} has {}; \"adapt\": true replays the "
          "recorded layers in turn",
          trace_.meta().model, trace_.layers(), model.name, layer_ids.size());
    return trace_.with_layers(layer_ids);
  }

  std::string remark() const override { return remark_; }

 private:
  ConfigNode node_;
  bool adapt_;
  RoutingTrace trace_;
  std::string remark_;
};

}  // namespace

std::span<const Key> recorded_gating_keys() {
  static constexpr Key keys[] = {
      {"trace", form::file, required, "the directory"},
      {"adapt", form::flag, "false", "replay a trace of another number of layers"},
      {"workloads", form::list(form::text), unset("all"), "tags of the requests to keep"},
      {"skip_repetition", form::flag, "true", "leave degenerate loops out"}};
  return keys;
}

std::unique_ptr<Gating> make_recorded_gating(ConfigReader& options) {
  return std::make_unique<Recorded>(options);
}

}  // namespace moesim
