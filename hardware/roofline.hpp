// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "hardware/gpu.hpp"

namespace moesim {

/// What can bound an operation.
enum class Resource { tensor_core, hbm, l2, smem, nvlink, network, latency, launch, host_link };
inline constexpr std::array<std::string_view, 9> resource_names{
    "tensor_core", "hbm", "l2", "smem", "nvlink", "network", "latency", "launch", "host_link"};

/// What an operation asks of one GPU.
struct Work {
  Flops flops{};
  Bytes hbm{};
  Bytes l2{};
  Bytes smem{};
};

/// How long an operation takes and why. `time` includes the launch floor; `bound` is the resource
/// that set it (launch when the floor is more than half of it).
struct Cost {
  Seconds time{};
  Resource bound = Resource::launch;
  Work work{};
  Evidence evidence = Evidence::calibrated;  ///< what its constants were fitted on
  FlopsPerSecond peak{};  ///< the data sheet's, of its multiplications; 0: it only moves bytes
};

/// The operands of a multiplication, as they are stored.
struct Operands {
  Precision weights = Precision::bf16;
  Precision activations = Precision::bf16;
};

/// What KernelConstants says of one kernel family with one kind of operands on one GPU, looked up
/// once.
class Roofline {
 public:
  Roofline(Operands, KernelFamily, const GpuSpec&);
  /// No work at all costs nothing.
  Cost cost(const Work&) const;

 private:
  Seconds launch_;
  double overlap_;
  BytesPerSecond hbm_, l2_, smem_;
  FlopsPerSecond peak_, reached_;
  Reach reach_;
};
/// What one piece of work costs, by a Roofline made for it alone.
Cost roofline(const Work&, Operands, KernelFamily, const GpuSpec&);

/// The rows that one GPU's grouped GEMM computes, summed over its active slots. A slot's rows are
/// padded to a multiple of tile_m, or to the smallest power of two (16 at least) that holds them
/// when that is less, because kernels pick a smaller tile for few tokens.
struct GroupedRows {
  std::int64_t slots = 0;   ///< with at least one token: each reads its weights
  std::int64_t tokens = 0;  ///< useful rows
  std::int64_t padded = 0;
  std::int64_t tiles = 0;  ///< of up to tile_m rows
  bool operator==(const GroupedRows&) const = default;
};
GroupedRows grouped_rows(std::span<const std::int32_t> tokens_per_slot, int tile_m);

/// The expert FFN of one layer on one GPU: gate, up and down projections of every active slot.
struct GroupedGemmShape {
  double hidden = 0;  ///< d
  double width = 0;   ///< m, this GPU's slice of the expert's intermediate width
  Precision weights = Precision::bf16;
  Precision activations = Precision::bf16;
  KernelFamily kernel = KernelFamily::grouped_gemm;
  double experts = 0;  ///< of the layer, on all GPUs; 0: unknown, and no table is asked
  double top_k = 0;    ///< experts of a token
};

class ExpertTables;

/// bytes_hbm = sum over ACTIVE slots of W, plus activations in and out; flops = sum 2*3*d*m*
/// padded rows; weights cross L2 once per M tile and activations once per N tile; tiles that
/// do not fill their last wave over the SMs leave them idle (reference: the measured law t0 +
/// n_active*W/(f*BW)). `work.flops` counts the padding, not the idle SMs. No tokens cost nothing.
class GroupedGemm {
 public:
  GroupedGemm(const GroupedGemmShape&, const GpuSpec&);
  /// grouped_rows() with the kernel's tile_m.
  GroupedRows rows(std::span<const std::int32_t> tokens_per_slot) const;
  /// `tokens` enter the EP group of which this GPU computes a share; only tables ask for them, and
  /// take the rows' own where they are 0.
  Cost cost(const GroupedRows&, double tokens = 0) const;

 private:
  GroupedGemmShape shape_;
  std::shared_ptr<const ExpertTables> tables_;  // null: none has this layer
  int tile_m_, tile_n_, sms_;
  BytesPerSecond hbm_;  // of the data sheet, as is the peak
  FlopsPerSecond peak_;
  std::vector<std::int32_t> padded_;  // rows of a slot by its tokens, up to tile_m
  Roofline roofline_;
};

/// One dense GEMM [m, k] x [k, n], tiled as above.
Cost gemm(double m, double n, double k, Precision weights, Precision activations, const GpuSpec&);

/// An operation that only moves memory: norms, permutes, top-k, quantisation.
Cost memory_op(Bytes moved, const GpuSpec&);

}  // namespace moesim
