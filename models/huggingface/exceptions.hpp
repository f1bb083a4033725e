// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "models/huggingface/family.hpp"

// What families say by more than the names of keys: functions of rows of families.cpp.

namespace moesim {

ReadMixer kimi_latent, minimax_sparse, step3_attention, step_attention;

LayerRule afmoe_windows, cohere_windows, exaone_windows, phimoe_window, smallthinker_windows;

LayerRule arctic_residual, bailing_lightning, dbrx_parts, deepseek_v4_layers, ernie_layers,
    gemma4_parts, granite_mamba, grok_residual, hunyuan_parts, inkling_layers, jamba_layers,
    kimi_delta_nets, laguna_heads, mimo_layers, lfm_layers, longcat_layers,
    minimax_lightning_layers, minimax_m3_layers, nemotron_parts, qwen_delta_nets, qwen_dense_layers,
    step_layers;

}  // namespace moesim
