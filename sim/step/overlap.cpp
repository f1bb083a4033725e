// SPDX-License-Identifier: Apache-2.0
#include "sim/step/overlap.hpp"

#include <algorithm>
#include <array>

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

double interleaved_seconds(std::span<const Segment> a, std::span<const Segment> b) {
  struct Chain {
    std::span<const Segment> left;
    double ready = 0;
  };
  std::array<Chain, 2> chains{Chain{a}, Chain{b}};
  std::array<double, 2> stream_free{};  // compute, link
  const auto start = [&](const Chain& chain) {
    return std::max(chain.ready, stream_free[chain.left.front().on_link ? 1 : 0]);
  };
  while (!chains[0].left.empty() || !chains[1].left.empty()) {
    const bool second =
        chains[0].left.empty() || (!chains[1].left.empty() && start(chains[1]) < start(chains[0]));
    Chain& next = chains[second ? 1 : 0];
    const Segment& segment = next.left.front();
    next.ready = start(next) + segment.seconds;
    stream_free[segment.on_link ? 1 : 0] = next.ready;
    next.left = next.left.subspan(1);
  }
  return std::max(chains[0].ready, chains[1].ready);
}

}  // namespace moesim
