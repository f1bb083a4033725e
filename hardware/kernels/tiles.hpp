// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>

#include "hardware/roofline.hpp"

namespace moesim {

/// Rows that one GPU's grouped GEMM computes, summed over its active slots. A slot's rows are
/// padded to a multiple of tile_m, or to the smallest power of two (16 at least) that holds them.
/// The lesser counts, because kernels pick a smaller tile for few tokens.
struct GroupedRows {
  std::int64_t slots = 0;   ///< with at least one token: each reads its weights
  std::int64_t tokens = 0;  ///< useful rows
  std::int64_t padded = 0;
  std::int64_t tiles = 0;  ///< of up to tile_m rows
  bool operator==(const GroupedRows&) const = default;
};
GroupedRows grouped_rows(std::span<const std::int32_t> tokens_per_slot, int tile_m);
void add_slot(GroupedRows&, std::int64_t tokens, std::int64_t tile_m);

/// A multiplication of rows by weights [n, k], with element sizes in bytes.
struct Projection {
  double n, k;
  double weight_bytes, activation_bytes, output_bytes;
};

struct Tile {
  int m, n;  ///< rows and columns
};

/// The work of products that are computed in tiles, and the flops that take as long when the last
/// wave of tiles leaves SMs idle.
struct TiledWork {
  Work work;
  double busy_flops = 0;
};

/// Adds a projection of some rows. `sms` run the tiles in waves; 0: waves are not counted.
void add_projection(TiledWork& total, const GroupedRows& rows, const Projection&, Tile, int sms);

Cost tiled_cost(const TiledWork&, const Roofline&);

}  // namespace moesim
