// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

#include "models/moe_model.hpp"

namespace moesim {

/// The precisions that a model's own files give.
struct StoredPrecision {
  PrecisionPlan plan;
  std::string said_by;     ///< what says so, for messages: "config.json: quantization_config (fp8)"
  bool quantised = false;  ///< its weights exist in these precisions alone
  bool states_said = false;  ///< the files say the precision of states, too
  std::string warning{};     ///< why it may be another; empty: nothing speaks against it
  std::string unknown{};  ///< why the files' precisions cannot be told, with the place; empty: can
};

/// Reads them from "quantization_config" of a HuggingFace config.json, or hf_quant_config.json next
/// to it: fp8, whole or in blocks, NVFP4, MXFP4, int4, and mixtures. What is left unconverted
/// counts where that is most layers' attention, experts or FFNs. Without a word in a config.json it
/// is bf16 throughout. A zoo file says it under "precision". States of linear attention are fp32
/// unless "mamba_ssm_dtype" or "mamba_ssm_cache_dtype" says otherwise. Nothing where a zoo file
/// does not. `model` is what read_model() made of the same file.
std::optional<StoredPrecision> read_stored_precision(const ConfigNode&, const MoeModel& model);

/// "experts fp8_block, other weights bf16, KV cache bf16, activations fp8_block"; attention and
/// FFNs apart where they differ.
std::string precision_text(const PrecisionPlan&);

}  // namespace moesim
