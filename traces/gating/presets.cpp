// SPDX-License-Identifier: Apache-2.0
#include "traces/gating/presets.hpp"

#include <algorithm>

namespace moesim {

PresetOfModel preset_of(const MoeModel& model) {
  const bool named = !model.gating_preset.empty();
  const std::string_view name =
      named ? std::string_view(model.gating_preset) : preset_of_other_families;
  const auto* const found = std::ranges::find(gating_presets, name, &GatingPreset::name);
  if (found == gating_presets.end())
    throw ConfigError(
        "the model {} names an unknown gating preset \"{}\"; see moesim list "
        "presets",
        model.name, name);
  return {*found, !named};
}

}  // namespace moesim
