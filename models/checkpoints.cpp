// SPDX-License-Identifier: Apache-2.0
#include "models/checkpoints.hpp"

namespace moesim {

std::span<const Key> checkpoint_keys() {
  static constexpr KeyDefault unknown = unset("none is known");
  static constexpr Key keys[] = {
      {"bf16", form::text, unknown, "experts in bf16"},
      {"fp8", form::text, unknown, "experts in FP8, a scale for each tensor or channel"},
      {"fp8_block", form::text, unknown, "experts in FP8, a scale for each block"},
      {"nvfp4", form::text, unknown, "experts in NVFP4"},
      {"mxfp4", form::text, unknown, "experts in MXFP4"},
      {"int4", form::text, unknown, "experts in 4-bit integers, a scale for 128"},
      {"int4_g32", form::text, unknown, "experts in 4-bit integers, a scale for 32"},
      {"int4_g64", form::text, unknown, "experts in 4-bit integers, a scale for 64"},
      {"int8", form::text, unknown, "experts in 8-bit integers"}};
  return keys;
}

Checkpoints read_checkpoints(const ConfigNode& model) {
  if (!model.json().is_object() || !model.json().contains("checkpoints")) return {};
  return read_object(model.child("checkpoints"), checkpoint_keys, [](ConfigReader& reader) {
    Checkpoints ids;
    for (std::size_t i = 0; i < precision_names.size(); ++i)
      if (reader.optional(precision_names[i]))
        ids[static_cast<Precision>(i)] = reader.text(precision_names[i]);
    return ids;
  });
}

}  // namespace moesim
