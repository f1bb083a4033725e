// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "sim/prefill_alignment/decode_interval.hpp"

namespace moesim {

namespace {

class SglangDecodeInterval final : public PrefillAlignment {
 public:
  explicit SglangDecodeInterval(ConfigReader& options)
      : interval_(options.integer("prefill_decode_interval")) {}

  void align(const GroupPrompts& group, std::span<PromptWork> allowed) override {
    if (interval_.defers(group)) {
      std::ranges::fill(allowed, PromptWork::none);
    } else if (group.prefilling() > 0) {
      interval_.prefills();
    }
  }

 private:
  DecodeInterval interval_;
};

}  // namespace

std::span<const Key> sglang_decode_interval_keys() {
  static constexpr std::span<const Key> keys(&prefill_decode_interval_key, 1);
  return keys;
}

PrefillAlignmentFactory make_sglang_decode_interval(ConfigReader& options) {
  return copies_of(SglangDecodeInterval(options));
}

}  // namespace moesim
