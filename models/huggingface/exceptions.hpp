// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "models/model_draft.hpp"

// What families say by more than the names of keys: functions of rows of families.cpp.

namespace moesim {

MixerPtr kimi_latent(ConfigReader&, int hidden);
MixerPtr minimax_sparse(ConfigReader&, int hidden);
MixerPtr step3_attention(ConfigReader&, int hidden);
MixerPtr step_attention(ConfigReader&, int hidden);

void afmoe_windows(ConfigReader&, ModelDraft&);
void exaone_windows(ConfigReader&, ModelDraft&);
void phimoe_window(ConfigReader&, ModelDraft&);
void smallthinker_windows(ConfigReader&, ModelDraft&);

void arctic_residual(ConfigReader&, ModelDraft&);
void bailing_lightning(ConfigReader&, ModelDraft&);
void dbrx_parts(ConfigReader&, ModelDraft&);
void deepseek_v4_layers(ConfigReader&, ModelDraft&);
void ernie_layers(ConfigReader&, ModelDraft&);
void gemma4_parts(ConfigReader&, ModelDraft&);
void granite_mamba(ConfigReader&, ModelDraft&);
void grok_residual(ConfigReader&, ModelDraft&);
void hunyuan_parts(ConfigReader&, ModelDraft&);
void jamba_layers(ConfigReader&, ModelDraft&);
void kimi_delta_nets(ConfigReader&, ModelDraft&);
void laguna_heads(ConfigReader&, ModelDraft&);
void mimo_layers(ConfigReader&, ModelDraft&);
void lfm_layers(ConfigReader&, ModelDraft&);
void longcat_layers(ConfigReader&, ModelDraft&);
void minimax_lightning_layers(ConfigReader&, ModelDraft&);
void minimax_m3_layers(ConfigReader&, ModelDraft&);
void nemotron_parts(ConfigReader&, ModelDraft&);
void qwen_delta_nets(ConfigReader&, ModelDraft&);
void qwen_dense_layers(ConfigReader&, ModelDraft&);
void step_layers(ConfigReader&, ModelDraft&);

}  // namespace moesim
