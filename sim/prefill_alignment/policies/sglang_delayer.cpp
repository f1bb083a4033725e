// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <optional>
#include <vector>

#include "sim/prefill_alignment/decode_interval.hpp"

namespace moesim {

namespace {

// PrefillDelayer of SGLang (python/sglang/srt/managers/prefill_delayer.py) in August 2026:
//   sglang#23189  queue trigger, April 2026
//   sglang#31835  a rank is prefillable if it would admit a prompt, July 2026
//   sglang#32880  bound of "all", high-watermark that decays, July 2026
// Ranks gather in each pass whether they are prefillable, and decide alike:
//   some prefillable rank's KV use < low watermark                    -> go
//   all ranks:   slots:  max_running - running < max_prefill_bs       -> delay
//                queue:  waiting < min(int(ratio x running), max_prefill_bs), not for longer than
//                        max_delay                                    -> delay
//                else                                                 -> go
//   some ranks:                                                       -> delay
//   no rank:                                                          -> go
// running, waiting and max_prefill_bs are those of the rank with most. A delay lasts
// max_delay_passes
// - 1 passes at most. The first time that slots or queue would delay, they do not.
//   max_prefill_bs = max(.998 max_prefill_bs, prompts admitted), after each admission of a rank
// Only admission is negotiated. A prompt under way computes its next chunk all the same. A rank
// whose chunk fills the step admits nothing, so the others wait for it (#16665, open). Ranks that
// drift apart by a chunk may keep each other waiting: sglang#35241.
class SglangDelayer final : public PrefillAlignment {
 public:
  explicit SglangDelayer(ConfigReader& options)
      : max_delay_passes_(options.integer("max_delay_passes")),
        max_delay_(options.quantity<Seconds>("max_delay")),
        interval_(options.integer("prefill_decode_interval")) {
    if (options.optional("token_usage_low_watermark"))
      low_watermark_ = options.number("token_usage_low_watermark");
    if (options.optional("queue_min_ratio")) queue_min_ratio_ = options.number("queue_min_ratio");
  }

  void align(const GroupPrompts& group, std::span<PromptWork> allowed) override {
    if (interval_.defers(group)) {
      std::ranges::fill(allowed, PromptWork::none);
      return;
    }
    bool chunks = false;
    for (const RankPrompts& rank : group.ranks) chunks = chunks || rank.under_way > 0;
    const bool delays = negotiates_delay(group);
    if (delays) {
      std::ranges::fill(allowed, PromptWork::under_way);
    } else {
      note_admissions(group);
    }
    if (chunks || (!delays && group.admitting() > 0)) interval_.prefills();
  }

 private:
  bool negotiates_delay(const GroupPrompts& group) {
    const int prefillable = group.admitting();
    const bool waits = prefillable > 0 && !below_watermark(group) &&
                       (prefillable < group.up() || slots_or_queue(group)) &&
                       passes_ + 1 < max_delay_passes_;
    if (!waits) {
      passes_ = 0;
      return false;
    }
    if (passes_++ == 0) since_ = group.now;
    return true;
  }

  bool below_watermark(const GroupPrompts& group) const {
    return low_watermark_ && std::ranges::any_of(group.ranks, [&](const RankPrompts& r) {
             return r.up && r.admits > 0 && r.kv_usage < *low_watermark_;
           });
  }

  bool slots_or_queue(const GroupPrompts& group) {
    std::int32_t running = 0, waiting = 0;
    double most_admitted = 0;
    for (const RankPrompts& rank : group.ranks) {
      running = std::max(running, rank.decoding);
      waiting = std::max(waiting, rank.admits + rank.left);
    }
    for (const double most : max_prefill_bs_) most_admitted = std::max(most_admitted, most);
    const auto max_prefill_bs = static_cast<std::int32_t>(most_admitted);
    bool delays = group.max_num_seqs - running < max_prefill_bs;
    if (queue_min_ratio_ && running > 0) {
      const auto by_ratio = static_cast<std::int32_t>(running * *queue_min_ratio_);
      const bool too_long = passes_ > 0 && to_seconds(group.now - since_) >= max_delay_;
      delays = delays || (waiting < std::min(by_ratio, max_prefill_bs) && !too_long);
    }
    const bool spared = delays && first_;
    if (delays) first_ = false;
    return delays && !spared;
  }

  void note_admissions(const GroupPrompts& group) {
    max_prefill_bs_.resize(group.ranks.size());
    for (std::size_t r = 0; r < group.ranks.size(); ++r) {
      const std::int32_t admits = group.ranks[r].admits;
      if (admits > 0) max_prefill_bs_[r] = std::max(.998 * max_prefill_bs_[r], double(admits));
    }
  }

  std::int64_t max_delay_passes_;
  Seconds max_delay_;
  DecodeInterval interval_;
  std::optional<double> low_watermark_, queue_min_ratio_;
  std::int64_t passes_ = 0;
  Time since_{};
  bool first_ = true;
  std::vector<double> max_prefill_bs_;
};

}  // namespace

std::span<const Key> sglang_delayer_keys() {
  static constexpr Key keys[] = {
      {"max_delay_passes", form::integer(1, 1 << 20), "30",
       "passes after which prompts go (--prefill-delayer-max-delay-passes)"},
      {"token_usage_low_watermark", form::number(0, 1), unset("none"),
       "share of a rank's KV blocks held, below which prompts go at once"},
      {"queue_min_ratio", form::number(0, 1e3), unset("none"),
       "waiting over running requests, below which prompts are held"},
      {"max_delay", form::time, "5 s",
       "the longest wait by queue_min_ratio (--prefill-delayer-max-delay-ms)"},
      prefill_decode_interval_key};
  return keys;
}

PrefillAlignmentFactory make_sglang_delayer(ConfigReader& options) {
  return copies_of(SglangDelayer(options));
}

}  // namespace moesim
