// SPDX-License-Identifier: Apache-2.0
#include "sim/experiment/spelled_out.hpp"

#include <algorithm>

#include "hardware/shipped.hpp"
#include "models/moe_model.hpp"
#include "traces/gating/presets.hpp"

namespace moesim {

namespace {

// Placements are fitted on half of the requests, and the others are served: as many as the usual
// limit on sequences.
Json topical(std::string_view preset) {
  return {{"type", "topical"},
          {"preset", preset},
          {"requests", 1024},
          {"prompt_rows", 16},
          {"decode_rows", 32}};
}

void spell_gating(Json& gating) {
  if (!gating.is_string()) return;
  const auto name = gating.get<std::string>();
  if (std::ranges::find(gating_presets, name, &GatingPreset::name) != gating_presets.end())
    gating = topical(name);
}

}  // namespace

Precision precision_named(std::string_view name) {
  const auto found = std::ranges::find(precision_names, name);
  if (found != precision_names.end())
    return static_cast<Precision>(found - precision_names.begin());
  throw ConfigError("there is no precision \"{}\"; one of: {}", name, join_names(precision_names));
}

Json gating_of_family(const MoeModel& model) { return topical(preset_of(model).preset.name); }

Json precision_object(std::string_view text, const MoeModel& model,
                      const std::optional<StoredPrecision>& stored) {
  const auto name = [](Precision p) { return precision_names[at(p)]; };
  const std::size_t slash = text.find('/');
  const Precision experts = precision_named(text.substr(0, slash));
  const bool four_bits = bytes_per_element(experts) < 1;
  Precision others = stored ? stored->plan.attention : Precision::bf16;
  if (slash != text.npos) {
    others = precision_named(text.substr(slash + 1));
  } else if (!four_bits || model.experts == 0) {
    others = experts;
  }
  Json precision{{"experts", name(experts)}, {"attention", name(others)}};
  // ModelOpt's NVFP4 of what is published in fp8: attention in bf16, all FFNs converted.
  if (slash == text.npos && experts == Precision::nvfp4 && model.experts > 0 &&
      bytes_per_element(others) < 2)
    precision.update({{"attention", "bf16"}, {"ffn", "nvfp4"}});
  return precision;
}

ConfigNode spelled_out(const ConfigNode& experiment) {
  Json config = experiment.json();
  if (!config.is_object()) return experiment;
  if (const auto engine = config.find("engine"); engine != config.end() && engine->is_string())
    *engine = {{"name", *engine}};
  const auto workload = config.find("workload");
  const bool has_workload = workload != config.end() && workload->is_object();
  if (has_workload) {
    for (const char* key : {"gating", "prefill_gating"})
      if (workload->contains(key)) spell_gating((*workload)[key]);
  }
  const bool short_precision = config.contains("precision") && config["precision"].is_string();
  const bool no_gating = has_workload && !workload->contains("gating");
  if (config.contains("model") && (short_precision || no_gating)) {
    const ConfigNode file = named_or_inline(experiment.child("model"), Shipped::model);
    const MoeModel model = read_model(file);
    if (short_precision) {
      try {
        config["precision"] = precision_object(config["precision"].get<std::string>(), model,
                                               read_stored_precision(file, model));
      } catch (const ConfigError& error) {
        experiment.child("precision").fail(error.what());
      }
    }
    if (no_gating && model.experts > 0) (*workload)["gating"] = gating_of_family(model);
  }
  return {std::move(config), experiment.file(), experiment.pointer()};
}

}  // namespace moesim
