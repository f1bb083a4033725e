// SPDX-License-Identifier: Apache-2.0
#include "sim/serving/speculation.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "hardware/at.hpp"
#include "hardware/kernels/gemm.hpp"
#include "models/memory.hpp"

namespace moesim {

namespace {

// An MTP module is one more layer like the model's last one, with the model's embedding and head
// (DeepSeek-V3, arXiv:2412.19437, section 2.2).
StepModel module_of(const Deployment& e) {
  MoeModel layer = e.model;
  layer.layers.erase(layer.layers.begin(), layer.layers.end() - 1);
  return StepModel({.cluster = e.cluster,
                    .ffn_cluster = e.ffn_cluster,
                    .model = std::move(layer),
                    .plan = e.parallel,
                    .precision = e.precision,
                    .charges = e.charges,
                    .overlap = e.overlap,
                    .shared_expert = e.shared_expert,
                    .mega_moe = fuses_experts(e)});
}

// Adds work that every GPU of attention computes after the step.
void follow(StepCost& sum, const ParallelPlan& plan, Part part, const Cost& cost) {
  charge(sum, part, cost);
  sum.total += cost.time;
  sum.energy.add(part, cost, plan.attention_gpus());
  sum.segments.push_back({false, cost.time.count()});
  if (!sum.afd) return;
  const AfdTimes times{cost.time, {cost.time}, {cost.time}};
  *sum.afd += times;
  for (int gpu = plan.first_expert_gpu(); gpu < plan.gpus(); ++gpu)
    sum.idle[at(gpu)] += cost.time.count();
}

// A forward pass after another one. What the layers did is told of the first.
void append(StepCost& sum, const StepCost& pass) {
  sum.total += pass.total;
  add_times(sum, pass);
  add_traffic(sum, pass);
  add_work(sum, pass);
  sum.segments.insert(sum.segments.end(), pass.segments.begin(), pass.segments.end());
  if (pass.afd) *sum.afd += *pass.afd;
}

// The rows of a step's tokens, which are asked for in ascending order.
class TokenRows {
 public:
  explicit TokenRows(const std::vector<RowRange>& ranges) : range_(ranges.begin()) {}
  RowRange of(std::int64_t token) {
    for (; token >= first_ + range_->count; ++range_) first_ += range_->count;
    return {range_->phase, range_->rank, 1, range_->first_row + (token - first_)};
  }

 private:
  std::vector<RowRange>::const_iterator range_;
  std::int64_t first_ = 0;  // token of range_
};

// Makes a pass of the drafting layer: of every sequence that verifies more than `index` drafts the
// token at that place. A rank without such a sequence keeps step with a token of its own.
void take_tokens(const StepBatch& step, std::int32_t index, StepBatch& pass) {
  pass.start = step.start;
  pass.rows.clear();
  pass.ranks.resize(step.ranks.size());
  TokenRows rows(step.rows);
  std::int64_t token = 0;
  for (std::size_t r = 0; r < step.ranks.size(); ++r) {
    RankStep& rank = pass.ranks[r];
    rank.sequences.clear();
    const std::int64_t first = token;
    for (const SequenceWork& work : step.ranks[r].sequences) {
      if (work.verifies && work.new_tokens > index + 1) {
        rank.sequences.push_back({1, work.context_tokens + index});
        pass.rows.push_back(rows.of(token + index));
      }
      token += work.new_tokens;
    }
    rank.dummy = rank.sequences.empty() && step.ranks[r].tokens > 0;
    rank.tokens = rank.sampled = static_cast<std::int32_t>(rank.sequences.size());
    if (!rank.dummy) continue;
    rank.sequences.push_back({1, 0});
    rank.tokens = 1;
    pass.rows.push_back(rows.of(first));
  }
}

}  // namespace

Speculation::Speculation(const Deployment& deployment, int instance)
    : deployment_(deployment.of_steps(StepKind::decode)),
      choice_(deployment.speculation.choice ? deployment.speculation.choice() : nullptr),
      rng_(deployment.seed, fmt::format("speculation/acceptance of instance {}", instance)) {
  if (deployment.speculation.has_module()) module_.emplace(module_of(deployment_));
}

void Speculation::choose(std::span<Sequence* const> decoding, const RowSource& rows,
                         const Requests& requests, const ExpertPlacement& placement) {
  const SpeculationPlan& plan = deployment_.speculation;
  drafts_.assign(decoding.size(), plan.tokens);
  if (choice_) {
    GroupDrafts group{plan.tokens, plan.acceptance};
    if (choice_->needs_experts()) {
      rows_.clear();
      for (const Sequence* sequence : decoding) {
        ranges_.clear();
        RoutingCoverage not_counted;
        rows.append(
            requests[sequence->request].binding,
            {Phase::decode, 0, 1 + plan.tokens, sequence->computed - sequence->prompt_tokens},
            ranges_, not_counted);
        for (const RowRange& range : ranges_) {
          for (std::int32_t row = 0; row < range.count; ++row)
            rows_.push_back(range.first_row + row);
        }
      }
      const Bytes expert =
          expert_bytes(deployment_.model, deployment_.parallel, deployment_.precision);
      group.experts.emplace(DraftExperts{rows.trace(Phase::decode), rows_, placement,
                                         expert / deployment_.cluster.gpu.hbm_bandwidth});
    }
    choice_->choose(group, drafts_);
  }
  for (std::size_t i = 0; i < decoding.size(); ++i) decoding[i]->drafts = drafts_[i];
}

void Speculation::decoded(const StepBatch& batch, Seconds time, std::int64_t tokens) {
  if (!choice_ || tokens == 0) return;
  std::int64_t sequences = 0;
  for (const RankStep& rank : batch.ranks) sequences += rank.dummy ? 0 : std::ssize(rank.sequences);
  choice_->decoded({time, sequences, tokens});
}

std::int32_t Speculation::accept(std::int32_t drafts) {
  std::int32_t accepted = 0;
  const std::vector<double>& chance = deployment_.speculation.acceptance;
  while (accepted < drafts && rng_.uniform() < chance[at(accepted)]) ++accepted;
  ++tally_.verifications;
  tally_.drafted += drafts;
  tally_.accepted += accepted;
  return accepted;
}

void Speculation::draft(const StepInput& step, StepCost& cost) {
  std::int32_t passes = 0;
  for (const RankStep& rank : step.batch.ranks) {
    for (const SequenceWork& work : rank.sequences) {
      if (work.verifies) passes = std::max(passes, work.new_tokens - 1);
    }
  }
  const Seconds before = cost.total;
  for (std::int32_t index = 0; index < passes; ++index) {
    if (module_) {
      pass(index, step, cost);
    } else {
      follow(cost, deployment_.parallel, Part::other,
             {deployment_.speculation.draft_time, Resource::launch, {}});
    }
  }
  tally_.draft_seconds += (cost.total - before).count();
}

// The module's first operation projects a token's embedding and the hidden state before it to one
// hidden state: [tokens, 2h] x [2h, h], sliced by tp. Its routing is that of the first MoE layer.
void Speculation::pass(std::int32_t index, const StepInput& step, StepCost& cost) {
  take_tokens(step.batch, index, batch_);
  const Deployment& e = deployment_;
  std::int32_t most = 0;
  for (const RankStep& rank : batch_.ranks) most = std::max(most, rank.tokens);
  const double hidden = e.model.hidden;
  const Cost projection = gemm(most, hidden / e.parallel.tp, 2 * hidden, e.precision.attention,
                               e.precision.activations, e.cluster.gpu);
  follow(cost, e.parallel, Part::dense_ffn, projection);
  cost.flops += projection.work.flops.value() * e.parallel.attention_gpus();
  cost.hbm_bytes += projection.work.hbm.value() * e.parallel.attention_gpus();
  module_->price(step.of(batch_), cost_);
  append(cost, cost_);
}

}  // namespace moesim
