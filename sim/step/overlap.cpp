// SPDX-License-Identifier: Apache-2.0
#include "sim/step/overlap.hpp"

#include <algorithm>
#include <array>
#include <limits>

#include "hardware/choice.hpp"

namespace moesim {

namespace {

enum class OverlapKind { none, shared_expert, combine_attention, two_batch };
constexpr std::array<std::string_view, 4> kinds{"none", "shared_expert", "combine_attention",
                                                "two_batch"};

void read_one(const ConfigNode& node, Overlap& overlap) {
  read_object(node.as_policy(), overlap_keys, [&](ConfigReader& reader) {
    const auto kind = choice<OverlapKind>(reader, "type", kinds);
    if (kind == OverlapKind::shared_expert) overlap.shared_expert = true;
    if (kind == OverlapKind::combine_attention) overlap.combine_attention = true;
    if (kind != OverlapKind::two_batch) return;
    overlap.two_batch = TwoBatch{static_cast<std::int32_t>(reader.integer("decode_tokens")),
                                 static_cast<std::int32_t>(reader.integer("prefill_tokens"))};
  });
}

}  // namespace

std::span<const Key> overlap_keys() {
  static constexpr Key keys[] = {
      {"type", form::choice(kinds), required, "what communication overlaps with"},
      {"decode_tokens", form::integer(0, 1 << 24), "32",
       "two_batch: a rank needs more decode tokens than this to split a step"},
      {"prefill_tokens", form::integer(0, 1 << 24), "512", "two_batch: or any other step"}};
  return keys;
}

Overlap read_overlap(const ConfigNode& node) {
  Overlap overlap;
  if (!node.json().is_array()) {
    read_one(node, overlap);
    return overlap;
  }
  for (const ConfigNode& one : node.list()) read_one(one, overlap);
  return overlap;
}

namespace {

// Rest of a chain. Its first segment may be under way.
struct Chain {
  std::span<const Segment> segments;
  double left = 0;  // seconds of the first segment
  bool runs = false;

  explicit Chain(std::span<const Segment> all) : segments(all) { begin(); }
  bool wants(bool link) const {
    return !segments.empty() && !runs && segments.front().on_link == link;
  }
  bool on(bool link) const { return runs && segments.front().on_link == link; }
  void pass(double seconds) {
    left -= seconds;
    // Rounding leaves no remainder that would take another turn.
    if (left > 1e-12 * segments.front().seconds) return;
    segments = segments.subspan(1);
    begin();
  }

 private:
  void begin() {
    runs = false;
    left = segments.empty() ? 0 : segments.front().seconds;
  }
};

}  // namespace

double interleaved_seconds(std::span<const Segment> a, std::span<const Segment> b) {
  std::array<Chain, 2> chains{Chain(a), Chain(b)};
  double now = 0;
  while (!chains[0].segments.empty() || !chains[1].segments.empty()) {
    std::array<Chain*, 2> running{};  // compute, link
    for (const bool link : {false, true}) {
      Chain*& stream = running[link ? 1 : 0];
      for (Chain& chain : chains)
        if (chain.on(link)) stream = &chain;
      for (Chain& chain : chains)
        if (stream == nullptr && chain.wants(link)) stream = &chain;
      if (stream != nullptr) stream->runs = true;
    }
    const double rate = running[1] != nullptr ? 1 - running[1]->segments.front().sms : 1;
    double passes = std::numeric_limits<double>::infinity();
    if (running[0] != nullptr && rate > 0) passes = running[0]->left / rate;
    if (running[1] != nullptr) passes = std::min(passes, running[1]->left);
    now += passes;
    if (running[0] != nullptr) running[0]->pass(passes * rate);
    if (running[1] != nullptr) running[1]->pass(passes);
  }
  return now;
}

}  // namespace moesim
