// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <limits>
#include <vector>

#include "hardware/at.hpp"
#include "sim/draft_choice/trials.hpp"

namespace moesim {

namespace {

// Drafts, within the count that the trials allow, that are worth their experts. A draft adds tokens
// in the mean, and experts to the busiest GPU of each layer:
//   verify draft d of a sequence if  a_1 a_2 .. a_d >  (sum over layers of what the largest count
//   of active experts on a GPU grows by) x read time of an expert / time of a step per token
// a_i: chance of draft i. The last factor is that of the last step that only decoded. Drafts are
// asked for in order of d, then of the sequences; a sequence ends at its first draft that is not
// worth it. Of an expert's copies the one on the GPU with fewest active experts counts.
//
// Ours, after EcoSpec's question (arXiv:2607.12696). The experts are those of the recording, which
// no server knows before it verifies: what the policy gains is a bound for any that guesses them.
class ByExperts final : public DraftChoice {
 public:
  explicit ByExperts(ConfigReader& options) : trials_(options) {}
  bool needs_experts() const override { return true; }

  void choose(const GroupDrafts& group, std::span<std::int32_t> drafts) override {
    const std::int32_t most = trials_.drafts(group.most);
    std::ranges::fill(drafts, most);
    if (most == 0) return;
    const DraftExperts& experts = *group.experts;
    activate_none(experts.placement);
    const std::size_t rows_each = at(group.most) + 1;
    const double tokens_of_an_expert = experts.read / token_time_;
    for (std::size_t s = 0; s < drafts.size(); ++s) add(experts, experts.rows[s * rows_each]);
    double chance = 1;
    for (std::int32_t d = 0; d < most; ++d) {
      chance *= group.acceptance[at(d)];
      for (std::size_t s = 0; s < drafts.size(); ++s) {
        if (drafts[s] <= d) continue;
        const std::int64_t grown = add(experts, experts.rows[s * rows_each + at(d) + 1]);
        if (chance > tokens_of_an_expert * static_cast<double>(grown)) continue;
        take_back();
        drafts[s] = d;
      }
    }
  }

  void decoded(const DecodedStep& step) override {
    trials_.decoded(step);
    token_time_ = step.time / static_cast<double>(step.tokens);
  }

 private:
  struct Layer {
    std::vector<bool> active;          // [expert]
    std::vector<std::int32_t> of_gpu;  // active experts
    std::int32_t most = 0;             // of these
  };

  void activate_none(const ExpertPlacement& placement) {
    layers_.resize(placement.size());
    for (std::size_t l = 0; l < layers_.size(); ++l) {
      layers_[l].active.assign(at(placement[l].experts()), false);
      layers_[l].of_gpu.assign(at(placement[l].gpus()), 0);
      layers_[l].most = 0;
    }
  }

  // Undoes the last add().
  void take_back() {
    for (; !added_.empty(); added_.pop_back()) {
      const Added& last = added_.back();
      Layer& layer = layers_[last.layer];
      layer.active[last.expert] = false;
      --layer.of_gpu[last.gpu];
      layer.most = last.most_before;
    }
  }

  // Activates a row's experts; returns what the largest counts grow by, over all layers.
  std::int64_t add(const DraftExperts& experts, std::int64_t row) {
    std::int64_t grown = 0;
    added_.clear();
    const std::size_t k = at(experts.routing.experts_per_token());
    experts.routing.visit([&](auto ids) {
      const auto* id = ids.data() + at(row) * layers_.size() * k;
      for (std::size_t l = 0; l < layers_.size(); ++l) {
        const std::int32_t before = layers_[l].most;
        for (std::size_t i = 0; i < k; ++i) activate(experts.placement[l], l, at(*id++));
        grown += layers_[l].most - before;
      }
    });
    return grown;
  }

  void activate(const LayerPlacement& placement, std::size_t l, std::size_t expert) {
    Layer& layer = layers_[l];
    if (layer.active[expert]) return;
    std::size_t gpu = 0;
    std::int32_t fewest = std::numeric_limits<std::int32_t>::max();
    for (const std::int32_t host : placement.host_gpus_of(static_cast<int>(expert))) {
      if (layer.of_gpu[at(host)] < fewest) gpu = at(host), fewest = layer.of_gpu[gpu];
    }
    added_.push_back({l, expert, gpu, layer.most});
    layer.active[expert] = true;
    layer.most = std::max(layer.most, ++layer.of_gpu[gpu]);
  }

  struct Added {
    std::size_t layer, expert, gpu;
    std::int32_t most_before;
  };
  DraftTrials trials_;
  Seconds token_time_{};  // of a step without drafts at first
  std::vector<Layer> layers_;
  std::vector<Added> added_;
};

}  // namespace

DraftChoiceFactory make_by_experts(ConfigReader& options) { return copies_of(ByExperts(options)); }

}  // namespace moesim
