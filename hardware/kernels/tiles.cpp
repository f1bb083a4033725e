// SPDX-License-Identifier: Apache-2.0
#include "hardware/kernels/tiles.hpp"

#include <algorithm>
#include <bit>
#include <cmath>

namespace moesim {

namespace {

// The smallest power of two, 16 at least, that holds the tokens, of which a tile has no more than
// tile_m.
std::int64_t rows_of_tile(std::int64_t tokens, std::int64_t tile_m) {
  const auto at_least_16 = static_cast<std::uint64_t>(std::max<std::int64_t>(16, tokens));
  return std::min(tile_m, static_cast<std::int64_t>(std::bit_ceil(at_least_16)));
}

/// The last, partly filled wave of tiles takes as long as a full one. Fewer tiles than SMs are
/// split along K instead. Tiles are counted in full ones (a smaller tile is a part of one), or one
/// more small tile would fill a wave and look faster.
double busy_flops(double flops, double full_tiles, double flops_per_tile, int sms) {
  return full_tiles <= sms ? flops : std::ceil(full_tiles / sms) * sms * flops_per_tile;
}

}  // namespace

void add_slot(GroupedRows& rows, std::int64_t tokens, std::int64_t tile_m) {
  rows.tokens += tokens;
  if (tokens > tile_m) {
    const std::int64_t tiles = (tokens + tile_m - 1) / tile_m;
    rows.slots += 1;
    rows.tiles += tiles;
    rows.padded += tiles * tile_m;
    return;
  }
  // In decode slots have few tokens or none, as it happens: no branch would be guessed.
  const std::int64_t active = tokens > 0 ? 1 : 0;
  rows.slots += active;
  rows.tiles += active;
  rows.padded += active * rows_of_tile(tokens, tile_m);
}

GroupedRows grouped_rows(std::span<const std::int32_t> tokens_per_slot, int tile_m) {
  GroupedRows rows;
  for (const std::int32_t tokens : tokens_per_slot) add_slot(rows, tokens, tile_m);
  return rows;
}

void add_projection(TiledWork& total, const GroupedRows& sums, const Projection& p, Tile tile,
                    int sms) {
  const struct {
    double slots, tokens, padded, tiles;
  } rows{double(sums.slots), double(sums.tokens), double(sums.padded), double(sums.tiles)};
  const double column_tiles = std::ceil(p.n / tile.n);
  const double weights = p.n * p.k * p.weight_bytes;
  const double inputs = p.k * p.activation_bytes;
  const double row_flops = 2 * p.n * p.k;
  const double flops = rows.padded * row_flops;
  total.work.flops += Flops(flops);
  total.busy_flops += sms == 0 ? flops
                               : busy_flops(flops, rows.padded / tile.m * column_tiles,
                                            row_flops * tile.m / column_tiles, sms);
  total.work.hbm += Bytes(rows.slots * weights + rows.tokens * (inputs + p.n * p.output_bytes));
  total.work.l2 += Bytes(rows.tiles * weights + rows.tokens * column_tiles * inputs);
  // Every tile writes its slices of both operands to shared memory once and reads them once.
  const double staged_weights = tile.n * p.k * p.weight_bytes;
  total.work.smem += Bytes(2 * column_tiles * (rows.padded * inputs + rows.tiles * staged_weights));
}

Cost tiled_cost(const TiledWork& tiled, const Roofline& roofline) {
  Work timed = tiled.work;
  timed.flops = Flops(tiled.busy_flops);
  Cost cost = roofline.cost(timed);
  cost.work = tiled.work;
  return cost;
}

}  // namespace moesim
