// SPDX-License-Identifier: Apache-2.0
#include "sim/kv_tiers/kv_tiers.hpp"

namespace moesim {

namespace {

// Writes as the block is taken for other tokens, unless another copy stays in HBM. The step that
// takes it begins when the copy is made: TensorRT-LLM and SGLang's write_back wait for it.
class WriteBack final : public TierWrite {
 public:
  bool when_taken(int /*hits*/, bool /*goes_on*/) const override { return true; }
};

}  // namespace

std::unique_ptr<TierWrite> make_write_back(ConfigReader&) { return std::make_unique<WriteBack>(); }

}  // namespace moesim
