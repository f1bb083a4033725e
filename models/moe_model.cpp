// SPDX-License-Identifier: Apache-2.0
#include "models/moe_model.hpp"

#include <algorithm>

namespace moesim {

std::vector<int> MoeModel::moe_layer_numbers() const {
  std::vector<int> numbers;
  for (const LayerSpec& layer : layers)
    if (layer.moe) numbers.push_back(layer.number);
  return numbers;
}

int MoeModel::moe_layers() const {
  return static_cast<int>(std::ranges::count_if(layers, &LayerSpec::moe));
}

bool MoeModel::keeps_state() const {
  return std::ranges::any_of(
      layers, [](const LayerSpec& layer) { return layer.mixer->kept({}, {}).state_bytes > 0; });
}

std::string MoeModel::cut_fault(int tp) const {
  for (const LayerSpec& layer : layers)
    if (std::string fault = layer.mixer->cut_fault(tp); !fault.empty()) return fault;
  return {};
}

double ffn_parameters(int hidden, double width) { return 3.0 * hidden * width; }

double expert_parameters(const MoeModel& m) {
  return ffn_parameters(m.expert_input(), m.expert_width);
}

double gate_parameters(const MoeModel& m) {
  return static_cast<double>(m.hidden) * m.experts + 2.0 * m.hidden * m.expert_hidden;
}

double norm_parameters(int hidden) { return 2.0 * hidden; }

ParameterCount count_parameters(const MoeModel& m) {
  const double embedding = static_cast<double>(m.vocabulary) * m.hidden;
  const double moe_layers = m.moe_layers();
  const double all_layers = static_cast<double>(m.layers.size());
  double mixers = 0;
  double dense_ffns = 0;
  for (const LayerSpec& layer : m.layers) {
    mixers += layer.mixer->parameters(m.hidden, {});
    if (layer.has_dense_ffn() || m.dense_residual) ++dense_ffns;
  }
  const double everywhere =
      mixers + all_layers * norm_parameters(m.hidden) +
      moe_layers * (gate_parameters(m) + ffn_parameters(m.hidden, m.shared_width)) +
      dense_ffns * ffn_parameters(m.hidden, m.dense_width) + m.hidden;
  const double expert = moe_layers * expert_parameters(m);
  return {.total = everywhere + expert * m.experts + embedding * (m.tied_embeddings ? 1 : 2),
          .active = everywhere + expert * m.experts_per_token + embedding};
}

double active_as_published(const MoeModel& m) {
  const double embedding = static_cast<double>(m.vocabulary) * m.hidden;
  const double active = count_parameters(m).active;
  switch (m.published_counts) {
    case ActiveCounts::lm_head: return active;
    case ActiveCounts::embeddings_and_lm_head: return active + (m.tied_embeddings ? 0 : embedding);
    case ActiveCounts::layers_only: return active - embedding;
  }
  return active;
}

}  // namespace moesim
