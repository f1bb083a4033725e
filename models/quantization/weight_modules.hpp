// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "models/moe_model.hpp"

namespace moesim {

/// The kinds of modules that a PrecisionPlan tells apart; FFNs are the shared and the dense ones.
enum class WeightPart { attention, experts, ffn };

/// A linear module of a layer, or several alike.
struct WeightModule {
  std::string name;   ///< in the model's files: "model.layers.3.mlp.experts.7.up_proj"
  std::string fused;  ///< engines' name for it with its like ("...qkv_proj"); empty: none
  WeightPart part;
  double parameters = 0;
};

/// Prefixes of the number of a layer in the names of a model's modules; the usual first.
std::vector<std::string> layer_prefixes(const ConfigNode& model);

/// Calls `take` for every linear module of the layers of a HuggingFace model, under names that
/// begin with `prefix`. With `alike` an expert stands for all whose number has as many digits.
void for_each_module(const ConfigNode& file, const MoeModel&, std::string_view prefix, bool alike,
                     const std::function<void(const WeightModule&)>& take);

}  // namespace moesim
