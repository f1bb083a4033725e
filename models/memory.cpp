// SPDX-License-Identifier: Apache-2.0
#include "models/memory.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <utility>

#include "hardware/at.hpp"

namespace moesim {

namespace {

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

Kept kept(const LayerSpec& layer, const ParallelPlan& plan, const PrecisionPlan& precision) {
  return layer.mixer->kept(of_slices(plan), precision);
}

// A layer whose KV cache others are counted in: the first that sees everything, else the first with
// any.
const LayerSpec& unit_layer(const MoeModel& model) {
  const auto has_cache = [](const LayerSpec& layer) { return kept(layer, {}, {}).elements > 0; };
  const auto sees_all = [&](const LayerSpec& layer) {
    return has_cache(layer) && layer.mixer->sight().window == 0;
  };
  auto layer = std::ranges::find_if(model.layers, sees_all);
  if (layer == model.layers.end()) layer = std::ranges::find_if(model.layers, has_cache);
  return layer == model.layers.end() ? model.layers.front() : *layer;
}

// Number of KV caches of the unit layer that a layer's cache fills, whole ones. Engines give layers
// with more to cache as many pages more (vLLM's unified page size). Layers whose entries replace
// several tokens have pages of their own size.
double kv_layers(const LayerSpec& layer, const LayerSpec& unit, const ParallelPlan& plan) {
  const Kept here = kept(layer, plan, {});
  if (here.elements == 0) return 0;
  const double units = here.elements / kept(unit, plan, {}).elements;
  return here.tokens_of_entry > 1 ? units : std::ceil(units);
}

// Number of layers of so many that a stage of the pipeline has at most.
double of_a_stage(double layers, const ParallelPlan& plan) {
  return std::floor(layers) == layers ? std::ceil(layers / plan.pp) : layers / plan.pp;
}

Bytes kv_bytes_per_layer(const MoeModel& model, const ParallelPlan& plan,
                         const PrecisionPlan& precision) {
  return Bytes(kept(unit_layer(model), plan, precision).bytes);
}

// Layers that keep something, and the mean of what they keep.
struct Keeping {
  std::int64_t layers = 0;
  double each = 0;
  /// In as many layers as a stage of the pipeline has at most.
  double of_a_stage(int pp) const { return each * double(ceil_div(layers, pp)); }
};

// Counts the layers of which `what(Kept)` is more than nothing.
template <class What>
Keeping keeping(const MoeModel& model, const ParallelPlan& plan, const PrecisionPlan& precision,
                What&& what) {
  Keeping all;
  for (const LayerSpec& layer : model.layers) {
    const double here = what(kept(layer, plan, precision));
    if (here > 0) ++all.layers;
    all.each += here;
  }
  if (all.layers > 0) all.each /= double(all.layers);
  return all;
}

double kept_by_stage(const MoeModel& model, const ParallelPlan& plan,
                     const PrecisionPlan& precision, double Kept::*what) {
  return keeping(model, plan, precision, [&](const Kept& here) { return here.*what; })
      .of_a_stage(plan.pp);
}

// Returns the states of recurrent layers, or the windows of compressed attention.
Keeping states_of(const MoeModel& model, const ParallelPlan& plan, const PrecisionPlan& precision,
                  bool recurrent) {
  return keeping(model, plan, precision, [&](const Kept& here) {
    return (here.state_tokens == 0) == recurrent ? here.state_bytes : 0;
  });
}

// Bytes of such windows for each of the tokens that they hold, on a GPU of the largest stage.
Bytes window_bytes_per_token(const MoeModel& model, const ParallelPlan& plan,
                             const PrecisionPlan& precision) {
  double bytes = 0;
  for (const LayerSpec& layer : model.layers)
    if (const Kept here = kept(layer, plan, precision); here.state_tokens > 0)
      bytes += here.state_bytes / here.state_tokens;
  return Bytes(bytes / plan.pp);
}

// Bytes of the index keys of one token, on a GPU of the stage with most indexers.
Bytes index_bytes_per_token(const MoeModel& model, const ParallelPlan& plan,
                            const PrecisionPlan& precision) {
  return Bytes(kept_by_stage(model, plan, precision, &Kept::index_bytes));
}

}  // namespace

std::int64_t KvGroup::first_block(std::int64_t computed, int of) const {
  if (window == 0) return 0;
  const std::int64_t first =
      chunked ? computed / window * window : std::max<std::int64_t>(computed - window + 1, 0);
  return first / of;
}

bool KvLayout::has_windows() const {
  return windows_apart ||
         std::ranges::any_of(groups, [](const KvGroup& group) { return group.window > 0; });
}

std::int64_t KvLayout::blocks_at_most(std::int64_t tokens, std::int64_t chunk) const {
  const std::int64_t computed = chunk > 1 ? chunk * steps_in_flight : chunk;
  std::int64_t blocks = tokens > 0 ? state_blocks : 0;
  for (const KvGroup& group : groups) {
    const std::int64_t each = group.block_tokens;
    const std::int64_t held = ceil_div(group.window - 1 + computed, each) + 1;
    blocks += group.window == 0 ? ceil_div(tokens, each) : std::min(ceil_div(tokens, each), held);
  }
  return blocks;
}

namespace {

// Pages of DeepSeek-V4 as vLLM lays them out (vllm/models/deepseek_v4, compressor.py). A block is a
// tuple of pages for as many layers: of entries for 4 tokens each, their index keys, and entries
// for 128 tokens. All groups draw such blocks. One is of the entries, others of all layers'
// windows, and one of tokens whose entry is open, for each size of entry.
KvLayout compressed_layout(const MoeModel& model, const ParallelPlan& plan,
                           const PrecisionPlan& precision) {
  constexpr int tokens = 256, window_block = 64, open_block_if_thinned = 4, open_block = 8;
  const auto page = [](double bytes) {
    constexpr double alignment = 576;
    return std::ceil(bytes / alignment) * alignment;
  };
  struct Kind {
    double layers = 0, pages = 0;
    bool thinned = false;
  };
  std::map<int, Kind> kinds;
  double windows = 0, window = 0, most = 1, pages = 0;
  for (const LayerSpec& layer : model.layers) {
    const Kept here = kept(layer, plan, precision);
    windows += here.state_tokens > 0 ? 1 : 0;
    window = std::max(window, here.state_tokens);
    if (here.tokens_of_entry <= 1) continue;
    Kind& kind = kinds[here.tokens_of_entry];
    kind.pages = page(tokens * here.bytes) + page(tokens * here.index_bytes);
    kind.thinned = here.index_bytes > 0;
    most = std::max(most, ++kind.layers);
  }
  for (const auto& [ratio, kind] : kinds) pages += kind.pages;
  const double groups = std::max(1.0, std::round(windows / most));
  const double tuple = std::max(most, std::ceil(windows / groups));
  const int layers = static_cast<int>(tuple);
  KvLayout layout{.block_tokens = tokens,
                  .block = Bytes(of_a_stage(tuple, plan) * pages),
                  .pieces = kept_by_stage(model, plan, precision, &Kept::pieces),
                  .groups = {{.layers = layers, .block_tokens = tokens}}};
  for (double i = 0; i < groups; ++i) {
    layout.groups.push_back(
        {.layers = layers, .window = static_cast<int>(window), .block_tokens = window_block});
  }
  for (const auto& [ratio, kind] : kinds) {
    layout.groups.push_back({.layers = layers,
                             .window = kind.thinned ? 2 * ratio : ratio,
                             .block_tokens = kind.thinned ? open_block_if_thinned : open_block});
  }
  return layout;
}

// Returns the layout of all other models, and of other engines.
KvLayout layer_layout(const MoeModel& model, const ParallelPlan& plan,
                      const PrecisionPlan& precision, const KvPaging& paging) {
  const LayerSpec& unit = unit_layer(model);
  const bool windows_apart = paging.window_ratio > 0 && unit.mixer->sight().window == 0;
  std::map<std::pair<int, bool>, double> layers_of_kind;
  double apart = 0;
  for (const LayerSpec& layer : model.layers) {
    const Sight sight = paging.keeps_all ? Sight{} : layer.mixer->sight();
    const double layers = kv_layers(layer, unit, plan);
    if (sight.window > 0 && windows_apart) {
      apart += layers;
    } else if (layers > 0) {
      layers_of_kind[{sight.window, sight.chunked}] += layers;
    }
  }
  const Keeping states = states_of(model, plan, precision, true);
  const bool in_pages = paging.pages_as_states && states.layers > 0;
  double fewest = std::numeric_limits<double>::max(), most = 0;
  const auto count = [&](double layers) {
    fewest = std::min(fewest, layers);
    most = std::max(most, layers);
  };
  for (const auto& [kind, layers] : layers_of_kind) count(layers);
  if (in_pages) count(double(states.layers));
  const double group_layers = most < 1.5 * fewest ? most : fewest;

  KvLayout layout;
  const Bytes token = kv_bytes_per_layer(model, plan, precision);
  int block_tokens = paging.block_tokens;
  if (in_pages && token > Bytes(0)) {
    constexpr double longest = 1 << 24;
    // Kernels of latent attention take blocks of 64 (kernel_block_alignment_size; vllm#28228).
    constexpr int of_latent = 64;
    const int unit_tokens =
        unit.mixer->absorbs() ? std::max(block_tokens, of_latent) : block_tokens;
    const double blocks = std::ceil(states.each / token.value() / unit_tokens);
    block_tokens =
        static_cast<int>(std::clamp<double>(blocks * unit_tokens, block_tokens, longest));
  }
  // Token p is on GPU p mod dcp, so the first GPU of a group fills its blocks first.
  layout.block_tokens = block_tokens * plan.dcp;
  for (const auto& [kind, layers] : layers_of_kind) {
    for (double i = 0; i < std::ceil(layers / group_layers); ++i)
      layout.groups.push_back({.layers = static_cast<int>(std::ceil(group_layers)),
                               .window = kind.first,
                               .chunked = kind.second,
                               .block_tokens = layout.block_tokens});
  }
  layout.windows_apart = apart > 0;
  const double layers =
      of_a_stage(group_layers, plan) + paging.window_ratio * of_a_stage(apart, plan);
  const Bytes windows = window_bytes_per_token(model, plan, precision) * paging.window_ratio;
  layout.windows_apart |= windows > Bytes(0);
  // Groups of blocks that are all as large share the index keys.
  layout.block = (token * layers + (windows + index_bytes_per_token(model, plan, precision)) /
                                       double(layout.groups.size())) *
                 block_tokens;
  layout.pieces =
      kept_by_stage(model, plan, precision, &Kept::pieces) / double(layout.groups.size());
  double shared = 0;  // with tokens
  if (!in_pages && paging.state_slots == 0) shared += states.of_a_stage(plan.pp);
  if (paging.window_ratio == 0)
    shared += states_of(model, plan, precision, false).of_a_stage(plan.pp);
  layout.state_blocks =
      static_cast<std::int64_t>(std::ceil(shared / layout.block.value()) +
                                (in_pages ? std::ceil(double(states.layers) / group_layers) : 0));
  return layout;
}

}  // namespace

KvLayout kv_layout(const MoeModel& model, const ParallelPlan& plan, const PrecisionPlan& precision,
                   const KvPaging& paging) {
  const bool compressed = std::ranges::any_of(model.layers, [&](const LayerSpec& layer) {
    return kept(layer, plan, precision).tokens_of_entry > 1;
  });
  KvLayout layout = compressed && paging.pages_as_states
                        ? compressed_layout(model, plan, precision)
                        : layer_layout(model, plan, precision, paging);
  layout.steps_in_flight =
      paging.steps_in_flight > 1 ? paging.steps_in_flight + plan.pp - 1 : paging.steps_in_flight;
  return layout;
}

Bytes state_bytes(const MoeModel& model, const ParallelPlan& plan, const PrecisionPlan& precision) {
  return Bytes(states_of(model, plan, precision, true).of_a_stage(plan.pp));
}

Bytes kv_bytes_per_token(const MoeModel& model, const ParallelPlan& plan,
                         const PrecisionPlan& precision) {
  double layers = 0;
  const LayerSpec& unit = unit_layer(model);
  for (const LayerSpec& layer : model.layers) layers += kv_layers(layer, unit, plan);
  const Bytes bytes = kv_bytes_per_layer(model, plan, precision) * of_a_stage(layers, plan) +
                      index_bytes_per_token(model, plan, precision);
  return bytes / plan.dcp;
}

Bytes expert_bytes(const MoeModel& model, const ParallelPlan& plan,
                   const PrecisionPlan& precision) {
  const auto padded = [](double size, int multiple) {
    return std::ceil(size / multiple) * multiple;
  };
  int input = model.expert_input();
  double slice = static_cast<double>(model.expert_width) / plan.moe_tp();
  if (precision.experts == Precision::mxfp4) {
    input = static_cast<int>(padded(input, precision.mxfp4_hidden_multiple));
    slice = padded(slice, precision.mxfp4_width_multiple);
  }
  return Bytes(ffn_parameters(input, slice) *
               bytes_per_weight(precision.experts, precision.expert_shares));
}

Bytes non_expert_bytes(const MoeModel& model, const ParallelPlan& plan,
                       const PrecisionPlan& precision) {
  const ParallelPlan cut = of_slices(plan);
  const double table = static_cast<double>(model.vocabulary) * model.hidden / cut.tp;
  const int layers = static_cast<int>(model.layers.size());
  struct Stage {
    double attention = 0, ffn = 0, kept = 0;
  };
  std::vector<Stage> stages(at(plan.pp));
  for (int l = 0; l < layers; ++l) {
    const LayerSpec& layer = model.layers[at(l)];
    Stage& stage = stages[at(plan.stage_of(l, layers))];
    stage.attention += layer.mixer->parameters(model.hidden, cut);
    stage.kept += norm_parameters(model.hidden);
    if (layer.moe) {
      stage.ffn += ffn_parameters(model.hidden, model.shared_width) / cut.tp;
      stage.kept += gate_parameters(model);
    }
    if (layer.has_dense_ffn() || model.dense_residual)
      stage.ffn += ffn_parameters(model.hidden, model.dense_width) / cut.tp;
  }
  // Tied tables are one only where the first stage is the last.
  if (!model.tied_embeddings || plan.pp > 1) stages.front().kept += table;
  stages.back().kept += table + model.hidden;  // and the final norm
  const double attention = bytes_per_weight(precision.attention, precision.attention_shares);
  const double ffn = bytes_per_weight(precision.ffn, precision.ffn_shares);
  Bytes most{};
  for (const Stage& stage : stages) {
    most = std::max(most, Bytes(stage.attention * attention + stage.ffn * ffn +
                                stage.kept * bytes_per_element(Precision::bf16)));
  }
  return most;
}

int moe_layers_of_stage(const MoeModel& model, const ParallelPlan& plan) {
  const int layers = static_cast<int>(model.layers.size());
  std::vector<int> of_stage(at(plan.pp));
  for (int l = 0; l < layers; ++l) {
    if (model.layers[at(l)].moe) ++of_stage[at(plan.stage_of(l, layers))];
  }
  return *std::max_element(of_stage.begin(), of_stage.end());
}

}  // namespace moesim
