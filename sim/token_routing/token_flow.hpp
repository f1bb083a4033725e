// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sim/placement/placement.hpp"

namespace moesim {

/// Balances tokens over GPUs, exactly, for one layer:
///
///   min M  s.t.  sum over slots s of expert i of x[i][s] = T[i],  tokens of each GPU <= M,
///                x whole and >= 0
///
/// Starts from a split that puts tokens on the first slot of an expert on a GPU alone (hosts_of),
/// and rearranges it.
class TokenFlow {
 public:
  /// Memory that is used again, of no interest to others; one per thread. Nothing is allocated once
  /// it has grown.
  struct Workspace {
    std::vector<std::int32_t> tokens_on_gpu;                          // [gpus]
    std::vector<std::int32_t> queue, reached_by, reached_from, seen;  // the search's tree, [gpus]
    std::vector<std::int32_t> is_usable, saved;                       // [slots]
    std::vector<std::int32_t> split;  // slots of experts with tokens on several
  };

  /// `tokens_of_slot` is the split, changed in place.
  TokenFlow(const LayerPlacement&, Workspace&, std::span<std::int32_t> tokens_of_slot);

  /// Lowers the most tokens on any GPU to the optimum, and answers it.
  std::int32_t minimise();
  /// Leaves out slots one by one, those with the fewest tokens first, as long as no GPU need hold
  /// more than `limit`. No slot that still has tokens could be spared alone.
  void spare_slots(std::int32_t limit);

 private:
  std::int32_t level(std::int32_t limit);
  bool push_from(std::int32_t gpu, std::int32_t limit);
  void shift(std::int32_t start, std::int32_t end, std::int32_t limit);
  bool spare(std::int32_t slot, std::int32_t limit);
  void add_up();

  const LayerPlacement& placement_;
  Workspace& s_;
  std::span<std::int32_t> x_;
  std::vector<std::int32_t>& load_;
  std::size_t reached_ = 0;  // GPUs that the last search saw
};

}  // namespace moesim
