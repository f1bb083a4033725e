// SPDX-License-Identifier: Apache-2.0
#include "hardware/roofline.hpp"

#include <algorithm>
#include <bit>
#include <cmath>

#include "hardware/kernel_tables.hpp"

namespace moesim {

namespace {

// The smallest power of two, 16 at least, that holds the tokens, of which a tile has no more than
// tile_m.
std::int64_t rows_of_tile(std::int64_t tokens, std::int64_t tile_m) {
  const auto at_least_16 = static_cast<std::uint64_t>(std::max<std::int64_t>(16, tokens));
  return std::min(tile_m, static_cast<std::int64_t>(std::bit_ceil(at_least_16)));
}

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

/// A multiplication by weights [n, k] with element sizes in bytes.
struct Projection {
  double n, k;
  double weight_bytes, activation_bytes, output_bytes;
};

struct TiledWork {
  Work work;
  double busy_flops = 0;  // with the idle SMs of the last waves
};

/// The last, partly filled wave of tiles takes as long as a full one. Fewer tiles than SMs are
/// split along K instead. Tiles are counted in full ones (a smaller tile is a part of one), or one
/// more small tile would fill a wave and look faster.
double busy_flops(double flops, double full_tiles, double flops_per_tile, int sms) {
  return full_tiles <= sms ? flops : std::ceil(full_tiles / sms) * sms * flops_per_tile;
}

struct Tile {
  int m, n;  // rows and columns
};

// `sms`: of those that run the tiles in waves; 0: waves are not counted.
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

/// (x^p + y^p)^(1/p), as the greater times (1 + (smaller/greater)^p)^(1/p).
Seconds overlapped(Seconds x, Seconds y, double p) {
  const auto [less, more] = std::minmax(x, y);
  const double ratio = more > Seconds{} ? less / more : 0;
  if (ratio == 0 || p > 15) return more;
  return more * std::pow(1 + std::pow(ratio, p), 1 / p);
}

}  // namespace

Roofline::Roofline(Operands operands, KernelFamily family, const GpuSpec& gpu)
    : l2_(gpu.l2_bandwidth),
      smem_(gpu.smem_bandwidth),
      peak_(gpu.peak(operands.weights, operands.activations)) {
  const KernelConstants& kernel = gpu.kernel(family);
  launch_ = kernel.launch;
  overlap_ = kernel.overlap;
  hbm_ = gpu.hbm_bandwidth * kernel.bandwidth_share;
  reached_ = peak_ * kernel.peak_share_of(operands.weights);
  reach_ = kernel.reach(operands.weights);
}

Cost Roofline::cost(const Work& work) const {
  if (work.flops.value() + work.hbm.value() + work.l2.value() + work.smem.value() <= 0) return {};
  const Seconds loads = work.hbm / hbm_;
  const Seconds arithmetic = work.flops / reached_;
  Cost cost{.time = overlapped(loads, arithmetic, overlap_),
            .bound = loads > arithmetic ? Resource::hbm : Resource::tensor_core,
            .work = work,
            .evidence = reach_.evidence(work.hbm.value(), work.flops.value()),
            .peak = work.flops > Flops{} ? peak_ : FlopsPerSecond{}};
  const auto at_least = [&cost](Seconds time, Resource resource) {
    if (time <= cost.time) return;
    cost.time = time;
    cost.bound = resource;
  };
  at_least(work.l2 / l2_, Resource::l2);
  at_least(work.smem / smem_, Resource::smem);
  if (launch_ > cost.time) cost.bound = Resource::launch;
  cost.time += launch_;
  return cost;
}

Cost roofline(const Work& work, Operands operands, KernelFamily family, const GpuSpec& gpu) {
  return Roofline(operands, family, gpu).cost(work);
}

GroupedRows grouped_rows(std::span<const std::int32_t> tokens_per_slot, int tile_m) {
  GroupedRows rows;
  for (const std::int32_t tokens : tokens_per_slot) add_slot(rows, tokens, tile_m);
  return rows;
}

GroupedGemm::GroupedGemm(const GroupedGemmShape& shape, const GpuSpec& gpu)
    : shape_(shape),
      tile_m_(gpu.kernel(shape.kernel).tile_m),
      tile_n_(gpu.kernel(shape.kernel).tile_n),
      sms_(shape.kernel == KernelFamily::grouped_gemm ? 0 : gpu.sms),
      hbm_(gpu.hbm_bandwidth),
      peak_(gpu.peak(shape.weights, shape.activations)),
      roofline_({shape.weights, shape.activations}, shape.kernel, gpu) {
  for (std::int32_t tokens = 0; tokens <= tile_m_; ++tokens) {
    padded_.push_back(
        static_cast<std::int32_t>(grouped_rows(std::span(&tokens, 1), tile_m_).padded));
  }
  const bool fused = shape.kernel == KernelFamily::grouped_gemm && shape.experts > 0;
  if (gpu.tables && fused) {
    tables_ = gpu.tables->experts(shape.hidden, shape.width, shape.top_k, shape.experts,
                                  shape.weights, shape.activations);
  }
}

GroupedRows GroupedGemm::rows(std::span<const std::int32_t> tokens_per_slot) const {
  GroupedRows rows, long_ones;
  for (const std::int32_t tokens : tokens_per_slot) {
    if (tokens > tile_m_) {
      add_slot(long_ones, tokens, tile_m_);
      continue;
    }
    rows.tokens += tokens;
    rows.slots += tokens > 0 ? 1 : 0;
    rows.padded += padded_[static_cast<std::size_t>(tokens)];
  }
  return {rows.slots + long_ones.slots, rows.tokens + long_ones.tokens,
          rows.padded + long_ones.padded, rows.slots + long_ones.tiles};
}

Cost GroupedGemm::cost(const GroupedRows& rows, double tokens) const {
  if (rows.slots == 0) return {};
  const double weight = bytes_per_element(shape_.weights);
  const double activation = bytes_per_element(shape_.activations);
  // Gate and up are one GEMM whose epilogue multiplies them: of its 2m columns m are written. The
  // sum over experts is taken in bf16 whatever the multiplication's precision.
  const Projection gate_up{2 * shape_.width, shape_.hidden, weight, activation, activation / 2};
  const Projection down{shape_.hidden, shape_.width, weight, activation, 2};
  TiledWork total;
  add_projection(total, rows, gate_up, {tile_m_, tile_n_}, sms_);
  add_projection(total, rows, down, {tile_m_, tile_n_}, sms_);
  if (!tables_) return tiled_cost(total, roofline_);
  const auto useful = static_cast<double>(rows.tokens);
  const auto own = useful / shape_.top_k;
  const TableTime measured = tables_->time(std::max(tokens, own), useful, double(rows.slots));
  const Flops flops(6 * shape_.hidden * shape_.width * useful);
  return priced({.work = total.work, .peak = peak_}, measured, total.work.hbm / hbm_,
                flops / peak_);
}

Cost gemm(double m, double n, double k, Precision weights, Precision activations,
          const GpuSpec& gpu) {
  if (m <= 0 || n <= 0 || k <= 0) return {};
  const KernelConstants& kernel = gpu.kernel(KernelFamily::gemm);
  GroupedRows rows;
  add_slot(rows, std::llround(std::ceil(m)), kernel.tile_m);
  TiledWork total;
  const Projection projection{n, k, bytes_per_element(weights), bytes_per_element(activations), 2};
  add_projection(total, rows, projection, {kernel.tile_m, kernel.tile_n}, gpu.sms);
  if (gpu.tables) {
    const FlopsPerSecond peak = gpu.peak(weights, activations);
    for (const std::string_view name : table_names(weights, activations)) {
      const auto measured = gpu.tables->time(GemmCall{name, m, n, k});
      if (!measured) continue;
      return priced({.work = total.work, .peak = peak}, *measured,
                    total.work.hbm / gpu.hbm_bandwidth, Flops(2 * m * n * k) / peak);
    }
  }
  return tiled_cost(total, Roofline({weights, activations}, KernelFamily::gemm, gpu));
}

Cost memory_op(Bytes moved, const GpuSpec& gpu) {
  return roofline({.hbm = moved}, {}, KernelFamily::memory, gpu);
}

}  // namespace moesim
