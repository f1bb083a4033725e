// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <optional>

#include "sim/prefill_alignment/decode_interval.hpp"

namespace moesim {

namespace {

// ATOM's prefill coalescer (atom/model_engine/prefill_delayer.py, ROCm/ATOM#1611, July 2026; on by
// default with data parallelism). Ranks sum up in each tick what they would prefill; one decision
// holds for all, prompts under way included:
//   no rank prefills, or none decodes                                 -> fire
//   KV use of a prefilling rank >= high watermark or < low watermark  -> fire
//   held for ttft_max_ticks; with a prompt under way partial_max_ticks -> fire
//   some rank has nothing to prefill                                  -> hold
//   tokens of all >= target_fill x ranks x max_num_batched_tokens     -> fire
//   for stall_ticks ticks no more tokens than in the one before       -> fire
//   else                                                              -> hold
// The first tick fires. A rank counts no more tokens than fit its step. Not here: max_queue_ms, off
// by default.
class Coalescer final : public PrefillAlignment {
 public:
  explicit Coalescer(ConfigReader& options)
      : target_fill_(options.number("target_fill")),
        ttft_max_ticks_(options.integer("ttft_max_ticks")),
        partial_max_ticks_(options.integer("partial_max_ticks")),
        stall_ticks_(options.integer("stall_ticks")),
        kv_high_watermark_(options.number("kv_high_watermark")),
        interval_(options.integer("prefill_decode_interval")) {
    if (options.optional("token_usage_low_watermark"))
      kv_low_watermark_ = options.number("token_usage_low_watermark");
  }

  void align(const GroupPrompts& group, std::span<PromptWork> allowed) override {
    if (interval_.defers(group) || (group.prefilling() > 0 && holds(group))) {
      std::ranges::fill(allowed, PromptWork::none);
      return;
    }
    held_ = stalled_ = 0;
    tokens_before_ = -1;
    if (group.prefilling() > 0) {
      first_ = false;
      interval_.prefills();
    }
  }

 private:
  bool holds(const GroupPrompts& group) {
    const bool holds = !must_fire(group) && (group.prefilling() < group.up() || waits(group));
    held_ += holds ? 1 : 0;
    return holds;
  }

  bool must_fire(const GroupPrompts& group) const {
    if (first_ || group.decoding() == 0 || held_ >= ttft_max_ticks_) return true;
    return std::ranges::any_of(group.ranks, [&](const RankPrompts& rank) {
      const bool pressed = rank.kv_usage >= kv_high_watermark_ ||
                           (kv_low_watermark_ && rank.kv_usage < *kv_low_watermark_);
      return (rank.prefills() && pressed) || (rank.under_way > 0 && held_ >= partial_max_ticks_);
    });
  }

  bool waits(const GroupPrompts& group) {
    std::int64_t tokens = 0;
    for (const RankPrompts& rank : group.ranks) tokens += rank.tokens;
    const double room = double(group.prefilling()) * group.max_num_batched_tokens;
    if (double(tokens) >= target_fill_ * room) return false;
    stalled_ = tokens <= tokens_before_ ? stalled_ + 1 : 0;
    tokens_before_ = tokens;
    return stalled_ < stall_ticks_;
  }

  double target_fill_;
  std::int64_t ttft_max_ticks_, partial_max_ticks_, stall_ticks_;
  double kv_high_watermark_;
  std::optional<double> kv_low_watermark_;
  DecodeInterval interval_;
  bool first_ = true;
  std::int64_t held_ = 0, stalled_ = 0, tokens_before_ = -1;
};

}  // namespace

std::span<const Key> coalescer_keys() {
  static constexpr Form ticks = form::integer(1, 1 << 20);
  static constexpr Form share = form::number(0, 1);
  static constexpr Key keys[] = {
      {"target_fill", form::number(0.05, 1), "0.7",
       "share of the ranks' max_num_batched_tokens that prompts have to fill"},
      {"ttft_max_ticks", ticks, "30", "steps after which prompts go all the same"},
      {"partial_max_ticks", ticks, "8", "the same, while a prompt is under way"},
      {"stall_ticks", ticks, "3", "steps without more tokens to prefill after which prompts go"},
      {"kv_high_watermark", share, "0.9", "share of KV blocks held from which prompts go at once"},
      {"token_usage_low_watermark", share, unset("none"), "share of KV blocks below which they do"},
      prefill_decode_interval_key};
  return keys;
}

PrefillAlignmentFactory make_coalescer(ConfigReader& options) {
  return copies_of(Coalescer(options));
}

}  // namespace moesim
