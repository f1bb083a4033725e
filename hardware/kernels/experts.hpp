// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <vector>

#include "hardware/kernels/expert_kernel.hpp"
#include "hardware/kernels/kernel.hpp"
#include "hardware/rng.hpp"
#include "hardware/tables/kernel_tables.hpp"

namespace moesim {

/// The fused expert layer of the engines; DeepGEMM's layout for low-latency dispatch; the same
/// layer with the way of its tokens, there and back, in one kernel (DeepGEMM's MegaMoE).
extern const Kernel grouped_gemm_kernel, masked_grouped_gemm_kernel, mega_moe_kernel;

/// The fused expert layer of one rank: `tokens` enter its EP group, `rows` of their copies fall to
/// the rank's `active` experts, whose slice is `width` wide.
struct ExpertsCall {
  std::string_view precision;  ///< a format of the tables (table_names())
  double hidden = 0, width = 0, top_k = 0, experts = 0;
  double held = 0;  ///< of the experts, by the rank
  double tokens = 0, rows = 0, active = 0;
  /// Kernel; for others than grouped_gemm `tokens` do not count: no copies are permuted.
  ExpertKernel kernel = ExpertKernel::grouped_gemm;
};
/// The call that a row measured, in the format of that name. Throws ConfigError if the row lacks a
/// column or no layer is like that.
ExpertsCall experts_of(const TableRow&, const EngineVersion&, const GpuSpec&,
                       std::string_view format);

/// Experts of the rank that a row timed. Throws ConfigError as above.
double experts_held(const TableRow&);

/// Curve that was made of the tables for one shape of expert layer; shared by all who ask for it.
struct ExpertCurve;

/// The fused expert layer of one shape as a function of a rank's load, see ExpertsCall. Equal
/// tokens and rows never take less time on more active experts.
class ExpertTables {
 public:
  /// Null where no table has the precision. Loads of the shape do not matter.
  static std::shared_ptr<const ExpertTables> of(const KernelTables&, const ExpertsCall& shape);
  /// The kernel that such weights and activations are multiplied by. Null where no table has one.
  static std::shared_ptr<const ExpertTables> of(const KernelTables&, const ExpertsCall& shape,
                                                Precision weights, Precision activations);
  TableTime time(double tokens, double rows, double active) const;

 private:
  static std::shared_ptr<ExpertTables> of_group(const KernelTables&, const ExpertsCall& shape,
                                                std::string_view group);
  TableTime own_time(double tokens, double rows, double active) const;

  std::shared_ptr<const ExpertCurve> curve_;
  KernelTables tables_;
  // Kernels that were measured in this format, beside one that was measured in another.
  std::shared_ptr<const ExpertTables> own_format_;

  ExpertTables(std::shared_ptr<const ExpertCurve> curve, const KernelTables& tables)
      : curve_(std::move(curve)), tables_(tables) {}
};

/// The expert FFN of one layer on one GPU: gate, up and down projections of every active slot.
struct GroupedGemmShape {
  double hidden = 0;  ///< d
  double width = 0;   ///< m, this GPU's slice of the expert's intermediate width
  Precision weights = Precision::bf16;
  Precision activations = Precision::bf16;
  ExpertKernel kernel = ExpertKernel::grouped_gemm;
  double experts = 0;  ///< of the layer, on all GPUs; 0: unknown, and no table is asked
  double top_k = 0;    ///< experts of a token
  double held = 0;     ///< of the experts, by one GPU, redundant copies not counted; 0: all
};

/// Bytes that a pass over one row of a layer's copies moves: a token and its two intermediate
/// results, read and written in bf16.
inline double row_bytes(double hidden, double width) { return 2 * (2 * hidden + 4 * width); }

/// Work of such rows on a GPU. `sms` run the tiles in waves; 0: waves are not counted.
TiledWork expert_work(const GroupedGemmShape&, const GroupedRows&, Tile, int sms);

/// Bytes of HBM are the sum over ACTIVE slots of W, plus activations in and out. Flops are the sum
/// of 2*3*d*m*padded rows. Weights cross L2 once per M tile and activations once per N tile. Tiles
/// that do not fill their last wave over the SMs leave them idle (reference: the measured law t0 +
/// n_active*W/(f*BW)). `work.flops` counts the padding, not the idle SMs. No tokens cost nothing.
/// Rows are copied as well: permuted, activated, summed up. Kernels of engines do that with the
/// rows that they compute, and with those that the GPU holds but other GPUs' experts compute.
class GroupedGemm {
 public:
  GroupedGemm(const GroupedGemmShape&, const GpuSpec&);
  /// True if a table has the layer; else its price is a roofline.
  bool measured() const { return tables_ != nullptr; }
  /// grouped_rows() with the kernel's tile_m.
  GroupedRows rows(std::span<const std::int32_t> tokens_per_slot) const;
  /// `tokens` enter the EP group of which this GPU computes a share, and it holds all of them;
  /// those of the rows alone where they are 0.
  Cost cost(const GroupedRows&, double tokens = 0) const;

 private:
  GroupedGemmShape shape_;
  Cost undrawn(const GroupedRows&, double tokens) const;

  std::shared_ptr<const ExpertTables> tables_;  // null: none has this layer
  std::shared_ptr<const GpuPower> power_;       // null: not known
  int tile_m_, tile_n_, sms_;
  double copied_row_, copied_held_row_;  // bytes
  BytesPerSecond hbm_;                   // of the data sheet, as is the peak
  FlopsPerSecond peak_;
  std::vector<std::int32_t> padded_;  // rows of a slot by its tokens, up to tile_m
  Roofline roofline_;
};

/// Tokens that choose experts by a power law over the experts, rounded to the number of selections.
/// The source of the expert tables draws them so (ai-dynamo/aiconfigurator, collector/helper.py).
struct PowerLaw {
  std::string_view distribution;  ///< "power_law_1.2"
  double tokens = 0, top_k = 0;
  int experts = 0, ranks = 1;
  DrawFill fill{};
};
/// Tokens of each expert of the rank with the most, in one draw. The source averages over
/// `power_law_draws`.
std::vector<std::int32_t> power_law_rank(const PowerLaw&, Rng&);
inline constexpr int power_law_draws = 5;

/// Tokens of each expert of one rank of `ranks` in the source's timing of SGLang's balanced layer.
/// All experts are on that rank (collector/helper.py, build_rank0_local_workload). Token t chooses
/// the experts t + j stride, and the rank gets the tokens that choose one of its own. What else
/// these choose goes to expert 0, because the kernel needs some index
/// (collector/sglang/collect_moe.py).
std::vector<std::int32_t> lone_rank(std::int64_t tokens, int top_k, int experts, int ranks);

/// True if the source times such lone ranks with this engine: SGLang from 0.5.10 on, Triton's
/// kernel. Before, a rank's balanced rows are an even share.
bool times_lone_ranks(const EngineVersion&);

/// How the source of the expert tables gave selections to the rank that it timed.
struct Draws {
  /// Balanced rows: an even share, or a lone rank's (lone_rank()), or a rest of an even share. The
  /// rest is left when the engine lets a token choose in 4 of 8 groups, as the model does. Then
  /// most selections fall on the first ids, which rank 0 holds.
  enum class Balanced { even, lone, in_groups } balanced = Balanced::even;
  DrawFill fill = DrawFill::by_rank;  ///< of uneven rows
};
/// Draws of a layer's rows. `triton`: the kernel is Triton's. Uneven rows are filled as the GPU's
/// file says, else by id for SGLang before 0.5.10 and TensorRT-LLM before 1.3. Balanced rows of the
/// model with groups (256 experts of 8, 7,168 wide) are in groups for vLLM from 0.22 and SGLang
/// from 0.5.14 on (hardware/README.md). An engine without a version is taken for a new one.
Draws draws_of(const EngineVersion&, const GpuSpec&, const ExpertsCall&, bool triton);

/// Rows and active experts of the rank that an expert table's row timed. They are the mean over
/// draws of a power law, or what Draws says of a balanced row.
struct BusiestRank {
  double rows = 0, active = 0;
};
BusiestRank rank_load(std::string_view distribution, double tokens, double top_k, double experts,
                      double ranks, Draws);

}  // namespace moesim
