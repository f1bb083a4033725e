// SPDX-License-Identifier: Apache-2.0
#include "sim/prefill_alignment/prefill_alignment.hpp"

#include <algorithm>

namespace moesim {

// The constructor of each row and its options, from policies/.
Registry<PrefillAlignmentFactory>::Maker make_vllm_interval, make_sglang_delayer,
    make_sglang_decode_interval, make_coalescer, make_trtllm_balance;
Keys vllm_interval_keys, sglang_delayer_keys, sglang_decode_interval_keys, coalescer_keys,
    trtllm_balance_keys;

const Registry<PrefillAlignmentFactory>& prefill_alignments() {
  static const Registry<PrefillAlignmentFactory> table(
      "prefill_alignment",
      {{"none", "every rank prefills as soon as it can",
        [](ConfigReader&) { return PrefillAlignmentFactory(); }},
       {"vllm_interval", "prompts enter every N-th step (vLLM's --prefill-schedule-interval)",
        make_vllm_interval, vllm_interval_keys},
       {"sglang_delayer",
        "prompts wait until every rank has one (SGLang's --enable-prefill-delayer)",
        make_sglang_delayer, sglang_delayer_keys},
       {"sglang_decode_interval",
        "N rounds without prompts after one with (SGLang's --prefill-decode-interval)",
        make_sglang_decode_interval, sglang_decode_interval_keys},
       {"coalescer", "prompts wait until they fill a step of all ranks (ATOM)", make_coalescer,
        coalescer_keys},
       {"trtllm_balance",
        "new prompts wait for others, or for all ranks (TensorRT-LLM's enable_balance)",
        make_trtllm_balance, trtllm_balance_keys}});
  return table;
}

std::span<const Key> prefill_alignment_keys() {
  static constexpr Key keys[] = {
      {"pad_to_longest", form::flag, "false",
       "ranks pad prompts to the longest of the step (SGLang's MAX_LEN)"}};
  return keys;
}

namespace {

int count(std::span<const RankPrompts> ranks, bool (*is)(const RankPrompts&)) {
  return static_cast<int>(
      std::ranges::count_if(ranks, [is](const RankPrompts& r) { return r.up && is(r); }));
}

}  // namespace

std::int64_t GroupPrompts::decoding() const {
  std::int64_t all = 0;
  for (const RankPrompts& rank : ranks) all += rank.decoding;
  return all;
}

int GroupPrompts::up() const {
  return count(ranks, [](const RankPrompts&) { return true; });
}

int GroupPrompts::admitting() const {
  return count(ranks, [](const RankPrompts& r) { return r.admits > 0; });
}

int GroupPrompts::prefilling() const {
  return count(ranks, [](const RankPrompts& r) { return r.prefills(); });
}

bool GroupPrompts::idle() const {
  return std::ranges::all_of(
      ranks, [](const RankPrompts& r) { return !r.prefills() && r.decoding + r.left == 0; });
}

}  // namespace moesim
