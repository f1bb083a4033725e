// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "sim/experiment/deployment.hpp"
#include "sim/report/report.hpp"
#include "sim/serving/spot_checks.hpp"
#include "sim/step/step_model.hpp"
#include "traces/trace_rows.hpp"

namespace moesim {

/// Samples of `sampled` fidelity. Times of a step's MoE layers are drawn from similar steps that
/// were priced exactly once, instead of from the routing of its own tokens. Everything else of a
/// step - its sequences' attention, KV cache and scheduling - stays exact.
///
/// Similar steps run under one rule with as many decode tokens over the group. Their prompt tokens
/// on the rank that has the most, and on the others, are as many. Sizes are on a grid, of eight to
/// the octave where all tokens decode, else powers of two. For prompts the grid is of the other
/// ranks' mean (exact below that). A size between two takes the lower or the upper one at random so
/// that the mean comes out. A sample's decode tokens, and the prompt tokens of the other ranks, are
/// spread evenly. Decode tokens are of as many recorded requests, at places in their outputs where
/// requests of the step that wanted the sample are, by chance. Prompt tokens are of as many
/// recorded requests as those of that step, and of one request follow each other in the recording.
/// Of large samples some consecutive layers are priced, and stand for the others; which ones goes
/// round. With `few_samples` sizes that come seldom have fewer samples. A sample does not know how
/// tokens are spread over unequal ranks otherwise, nor that consecutive steps have their requests
/// in common.
class StepSampler {
 public:
  explicit StepSampler(const Deployment&);

  /// Prices a step of the run, by one model for all instances: what it remembers serves all of
  /// them. `places` is asked for what a new sample needs. Without any, the single tokens of the
  /// batch (prompts that micro-batches cut) are taken to be first ones. Samples in the cost are
  /// good as long as the sampler.
  void price(StepKind rule, const StepBatch&, const DecodePlaces& places, StepCost&);
  SampledStats stats() const;

 private:
  // Which way sizes between two go, from 0 (up) to 1 (down). The same for all micro-batches of a
  // step: a pipeline waits for the longest, and those of one size must not differ by chance.
  struct Coins {
    std::optional<double> decode, most, others;
  };
  struct Key {
    StepKind rule;
    std::int64_t decode_tokens, most_prefill_tokens, other_prefill_tokens;
    auto operator<=>(const Key&) const = default;
    std::int64_t tokens() const {
      return decode_tokens + most_prefill_tokens + other_prefill_tokens;
    }
  };
  struct Grid {
    std::int64_t sizes_per_octave, unit;
  };
  const StepSample& draw(StepKind rule, const StepBatch&, const DecodePlaces& places, Coins&);
  std::int64_t on_grid(std::int64_t size, Grid, std::optional<double>& coin);
  const StepSample& sample(const Key&, std::int32_t prompt_tokens,
                           std::span<const std::int32_t> places);
  void add_prompts(StepBatch&, std::int32_t tokens, std::int32_t of_each);
  LayerRange next_layers(std::int64_t tokens);

  const Deployment& deployment_;
  RowSource rows_;
  StepModels models_;
  Rng rng_;
  struct Drawn {
    std::vector<const StepSample*> samples;
    std::size_t uses = 0;
  };
  std::map<Key, Drawn> by_key_;
  std::vector<std::unique_ptr<StepSample>> samples_;
  int next_layer_ = 0;  // that a sample of large steps begins with
  std::optional<SpotChecks> checks_;
};

}  // namespace moesim
