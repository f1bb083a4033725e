// SPDX-License-Identifier: Apache-2.0
#include "sim/experiment/refusals.hpp"

#include <algorithm>
#include <initializer_list>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "sim/step/step_model.hpp"

namespace moesim {

namespace {

// A feature that others may not be modelled with: its key, how it is called, and which config has
// it.
struct Feature {
  const char* key;
  std::string_view name;
  bool (*in)(const PoolSpec&);
};
namespace feature {

constexpr Feature expert_memory{"expert_memory", "\"expert_memory\"",
                                [](const PoolSpec& e) { return e.expert_memory.has_value(); }};
constexpr Feature failures{"failures", "\"failures\"",
                           [](const PoolSpec& e) { return !e.failures.outages.empty(); }};
constexpr Feature rebalancing{"rebalancing", "\"rebalancing\"",
                              [](const PoolSpec& e) { return e.rebalancing.name() != "none"; }};
constexpr Feature capacity{"capacity", "\"capacity\"",
                           [](const PoolSpec& e) { return e.capacity->limits(); }};
constexpr Feature drafts{"speculative", "\"speculative\"",
                         [](const PoolSpec& e) { return e.speculation.tokens > 0; }};
constexpr Feature two_batch{"overlap", "\"two_batch\"",
                            [](const PoolSpec& e) { return e.overlap.two_batch.has_value(); }};
constexpr Feature combine_attention{"overlap", "\"combine_attention\"",
                                    [](const PoolSpec& e) { return e.overlap.combine_attention; }};
constexpr Feature overlapped_shared{"overlap", "\"shared_expert\"",
                                    [](const PoolSpec& e) { return e.overlap.shared_expert; }};
constexpr Feature shared_slot{"shared_expert", "a shared expert that is a slot",
                              [](const PoolSpec& e) { return e.shared_expert.is_slot(); }};
constexpr Feature cut_experts{"parallel", "experts cut over several GPUs",
                              [](const PoolSpec& e) { return e.parallel.moe_tp() > 1; }};
constexpr Feature afd{"parallel", "\"ffn_gpus\"",
                      [](const PoolSpec& e) { return e.parallel.afd(); }};
constexpr Feature one_rank{"parallel", "one attention rank, whose tokens do not travel",
                           [](const PoolSpec& e) { return !e.parallel.exchanges(); }};
constexpr Feature mixed_by_tokens{
    "token_routing", "a rule of mixed steps that hangs on their tokens",
    [](const PoolSpec& e) { return e.mixed.kind == MixedRule::Kind::decode_if_few; }};
constexpr Feature copies_that_move{
    "placement", "copies of experts while weights move", [](const PoolSpec& e) {
      return e.parallel.decode_weights == DecodeWeights::moved && e.replication_effective > 1;
    }};

}  // namespace feature

void refuse(ConfigReader& reader, const PoolSpec& e, std::string_view with,
            std::initializer_list<Feature> features,
            std::string_view instead = "leave one of them out") {
  for (const Feature& feature : features) {
    if (feature.in(e))
      reader.child(feature.key).fail("{} is not modelled with {}; {}", feature.name, with, instead);
  }
}

// GPUs of a part of the group are in one NVLink domain, or in whole ones.
void check_lines_up(ConfigReader& reader, const PoolSpec& e, std::string_view parts, int gpus) {
  const int domain = e.cluster.scale_up_domain;
  if (domain % gpus == 0 || gpus % domain == 0) return;
  reader.child("parallel")
      .fail("{} = {} GPUs do not line up with NVLink domains of {}; one must divide the other",
            parts, gpus, domain);
}

void check_pipeline(ConfigReader& reader, const PoolSpec& e) {
  check_lines_up(reader, e, "pipeline stages of dp * tp", e.parallel.stage_gpus());
  refuse(reader, e, fmt::format("pp {}", e.parallel.pp),
         {feature::two_batch, feature::expert_memory, feature::drafts, feature::rebalancing});
}

// Attention's GPUs send tokens, and the experts' GPUs do not learn of others.
void check_afd(ConfigReader& reader, const PoolSpec& e) {
  refuse(reader, e, "ffn_gpus", {feature::two_batch}, "use \"parallel/micro_batches\" instead");
  refuse(reader, e, "ffn_gpus", {feature::combine_attention, feature::expert_memory});
  for (const PhaseSpec& phase : e.phases) {
    if (phase.dispatch->gathers_tokens())
      reader.child("dispatch")
          .fail(
              "a gather of all tokens on every GPU is not modelled with ffn_gpus; use "
              "\"all_to_all\", "
              "\"low_latency\" or \"ids_all_gather\"");
  }
}

// A shared expert that is one more slot of a rank is like an expert, and every rank has it whole.
// With AFD any attention rank can send to such a slot.
void check_shared_slot(ConfigReader& reader, const PoolSpec& e) {
  const MoeModel& model = e.model;
  const bool apart = e.parallel.afd();
  const std::pair<bool, std::string> rows[] = {
      {model.shared_width == 0, "of a model without one"},
      {model.shared_width != model.expert_width || model.expert_input() != model.hidden,
       fmt::format("if it is {} wide and they are {}", model.shared_width, model.expert_width)},
      {e.precision.ffn != e.precision.experts, "in another precision"},
      {apart && e.parallel.moe_tp() > 1, "unless ep is as large as \"ffn_gpus\""},
      {!apart && (e.parallel.tp > 1 || e.parallel.ep != e.parallel.dp),
       "unless tp is 1 and ep is dp"}};
  for (const auto& [present, why] : rows) {
    if (present)
      reader.child("shared_expert")
          .fail("the shared expert is no slot of the experts {}; use \"local\"", why);
  }
  refuse(reader, e, feature::shared_slot.name,
         {feature::overlapped_shared, feature::capacity, feature::expert_memory}, "use \"local\"");
}

// All GPUs of a group compute a slice of each cut expert: they need all tokens, and what they
// answer is summed up. What moves or loads experts knows whole ones alone.
void check_cut_experts(ConfigReader& reader, const PoolSpec& e) {
  const auto fail_if = [&](bool that, const char* key, std::string_view what) {
    if (that) reader.child(key).fail("\"cut_coldest\" cuts experts {}", what);
  };
  const int gpus = e.parallel.expert_gpus();
  fail_if(e.parallel.afd() || e.parallel.ep != gpus || e.parallel.decode_ep > 0, "parallel",
          "over all GPUs of the group; leave out \"ep\", \"decode_ep\" and \"ffn_gpus\"");
  fail_if(e.model.expert_width % gpus != 0, "parallel",
          fmt::format("of width {} into {} equal slices; use GPUs that divide the width",
                      e.model.expert_width, gpus));
  fail_if(e.replication_effective != 1, "placement",
          "and makes no copies; use a replication of 1, and GPUs that divide the experts");
  fail_if(!e.placed.from_trace, "placement",
          "by a load that was seen; use \"load\": {\"from\": \"trace\"}");
  for (const PhaseSpec& phase : e.phases) {
    fail_if(e.parallel.exchanges() &&
                (!phase.dispatch->gathers_tokens() || phase.dispatch->needs_copies()),
            "dispatch",
            "whose slices need all tokens and a sum; use {\"type\": \"all_gather\", \"combine\": "
            "\"reduce_scatter\"} or \"all_reduce\" in all phases");
    fail_if(phase.routing.name() != "even", "token_routing",
            "and leaves no copies to choose from; use \"even\" in all phases");
  }
  fail_if(e.locality, "measurement", "that are on no GPU of their own; leave out \"locality\"");
  refuse(reader, e, "cut experts, which are in HBM alone", {feature::expert_memory});
  refuse(reader, e, "cut experts, which do not move", {feature::rebalancing, feature::failures});
  refuse(reader, e, "cut experts", {feature::shared_slot}, "use \"local\"");
}

// A kernel that writes into other GPUs' memory reaches those of its NVLink domain.
void check_domain(ConfigReader& reader, const PoolSpec& e) {
  const int gpus = e.parallel.stage_gpus(), domain = e.cluster.scale_up_domain;
  if (gpus > domain) check_lines_up(reader, e, "ranks of tp", e.parallel.tp);
  if (!e.parallel.exchanges() || gpus <= domain) return;
  for (const PhaseSpec& phase : e.phases) {
    if (phase.dispatch->within_nvlink())
      reader.child("dispatch")
          .fail(
              "a dispatch over NVLink needs all {} GPUs of a group in one NVLink domain, which "
              "holds {}; use \"all_to_all\"",
              gpus, domain);
  }
}

// The kernel computes whole layers of experts that are in HBM, and was measured on few GPUs.
void check_mega_moe(ConfigReader& reader, const PoolSpec& e) {
  refuse(reader, e, "\"mega_moe\"",
         {feature::one_rank, feature::afd, feature::cut_experts, feature::expert_memory,
          feature::shared_slot, feature::two_batch});
  if (has_mega_moe({.cluster = e.cluster,
                    .model = e.model,
                    .plan = e.parallel,
                    .precision = e.precision,
                    .charges = {},
                    .mega_moe = true}))
    return;
  reader.child("dispatch")
      .fail(
          "no measured table prices \"mega_moe\" for experts in {} on {}; use another dispatch, or "
          "a GPU, a precision and an \"engine\" with a table megamoe_module",
          precision_names[at(e.precision.experts)], e.cluster.gpu.name);
}

// A request that is never due would wait for all others.
void refuse_without_deadlines(ConfigReader& reader, const PoolSpec& spec) {
  if (!spec.scheduler->needs_deadlines()) return;
  const auto never_due = [](const RequestClass& one) { return !one.slo.ttft; };
  const auto without = std::ranges::find_if(spec.classes, never_due);
  if (spec.classes.empty() ? spec.slo.ttft.has_value() : without == spec.classes.end()) return;
  const std::string who =
      spec.classes.empty() ? "requests have" : fmt::format("class \"{}\" has", without->name);
  reader.child("scheduling")
      .fail(
          "\"{}\" goes by when first tokens are due, and {} no such objective; give "
          "\"slo\": {{\"ttft\": \"30 s\"}}",
          spec.names.scheduling, who);
}

}  // namespace

void refuse_combinations(ConfigReader& reader, const PoolSpec& spec) {
  refuse_without_deadlines(reader, spec);
  // A cache below HBM knows slots by their number, which must stay where they are. What moves
  // experts needs equally many slots in every layer.
  if (spec.expert_memory)
    refuse(reader, spec, feature::expert_memory.name,
           {feature::failures, feature::rebalancing, feature::two_batch});
  if (spec.placed.by_gain)
    refuse(reader, spec, "\"by_gain\"", {feature::failures, feature::rebalancing});
  if (spec.parallel.pp > 1) check_pipeline(reader, spec);
  if (spec.parallel.afd()) check_afd(reader, spec);
  check_domain(reader, spec);
  if (fuses_experts(spec)) check_mega_moe(reader, spec);
  if (spec.placed.placer != nullptr && spec.placed.placer->cuts()) check_cut_experts(reader, spec);
  if (spec.shared_expert.is_slot()) check_shared_slot(reader, spec);
  // They need the routing of the step's own tokens.
  if (spec.sampled)
    refuse(reader, spec, "\"fidelity\": \"sampled\"",
           {feature::expert_memory, feature::failures, feature::capacity, feature::drafts,
            feature::rebalancing},
           "use \"exact\"");
  if (spec.two_term) refuse(reader, spec, "\"two_term_step\"", {feature::drafts});
}

// Policies that move or load experts know one cut.
void refuse_with_decode_cut(ConfigReader& reader, const PoolSpec& spec) {
  refuse(reader, spec, "\"decode_ep\"",
         {feature::expert_memory, feature::failures, feature::rebalancing, feature::capacity,
          feature::mixed_by_tokens, feature::copies_that_move});
}

}  // namespace moesim
