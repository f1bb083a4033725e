// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "hardware/config.hpp"

namespace moesim {

/// Splitting a step into two micro-batches, one computing while the other is on the links. Each
/// activates its own experts: in memory-bound decode that costs more weight reads than it hides.
struct TwoBatch {
  /// Every rank must hold more tokens than this (vLLM's DBO: 32 in a decode step, 512 in others).
  std::int32_t decode_tokens = 0;
  std::int32_t prefill_tokens = 0;
};

/// Which communication runs beside which computation.
struct Overlap {
  bool shared_expert = false;  ///< shared experts compute while tokens are dispatched
  /// Computes what follows a combine, up to the next barrier, while it runs. An upper bound: within
  /// one batch attention needs what combine brings.
  bool combine_attention = false;
  std::optional<TwoBatch> two_batch;
};

/// "none", one name, or a list: "shared_expert", "combine_attention", "two_batch" or
/// {"type": "two_batch", "decode_tokens": 32, "prefill_tokens": 512}. Throws ConfigError.
Overlap read_overlap(const ConfigNode&);
std::span<const Key> overlap_keys();

/// A stretch of a step's critical path.
struct Segment {
  bool on_link = false;
  double seconds = 0;
  double sms = 0;  ///< on a link: the share of the SMs that what computes beside it does without
};

/// Returns when two chains of segments end that share one compute stream and one link stream. Each
/// stream serves one segment at a time. A segment starts after the one before it in its chain.
/// Where two could start, the first chain goes first.
double interleaved_seconds(std::span<const Segment> a, std::span<const Segment> b);

}  // namespace moesim
