// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "hardware/gpu.hpp"
#include "hardware/rng.hpp"
#include "hardware/tables/scattered.hpp"
#include "hardware/tables/table_file.hpp"

namespace moesim {

/// The tables of a profile, and the files that hold them (<name>.csv).
enum class TableFamily {
  gemm,
  experts,
  attention_decode,
  attention_prefill,
  mla_decode,
  mla_prefill,
  mla_decode_module,
  mla_prefill_module,
  mla_bmm,
  quantize,
  all_reduce,
  collectives,
  low_latency,
  normal
};
inline constexpr std::array<std::string_view, 14> table_family_names{
    "gemm",        "experts",     "attention_decode",  "attention_prefill",
    "mla_decode",  "mla_prefill", "mla_decode_module", "mla_prefill_module",
    "mla_bmm",     "quantize",    "all_reduce",        "collectives",
    "low_latency", "normal"};

/// Where a call of a kernel stands among those that were measured (mostly logarithms to base two),
/// and a rough time of it by the data sheet. What is interpolated is log(time / rough): the shares
/// in it only make that vary slowly. No kernel takes less than `least_us`: its arithmetic at the
/// data sheet's peak and, of attention, the KV caches that cannot be in the L2 at full bandwidth.
struct Located {
  Coordinates at{};
  double rough_us = 0, least_us = 0;
};

// Precisions are as tables name them: bfloat16, fp8, fp8_static, fp8_block, nvfp4, w4a16_mxfp4,
// int4_wo, int8_wo, sq (8-bit weights and activations).

/// [m, k] x [k, n].
struct GemmCall {
  std::string_view precision;
  double m = 0, n = 0, k = 0;
};
/// The fused expert layer of one rank: `tokens` enter its EP group, `rows` of their copies fall to
/// the rank's `active` experts, whose slice is `width` wide.
struct ExpertsCall {
  std::string_view precision;
  double hidden = 0, width = 0, top_k = 0, experts = 0;
  double tokens = 0, rows = 0, active = 0;
};
/// An attention kernel; `block` with the projections of MLA in the precision of that name.
struct AttentionCall {
  bool decode = true, mla = false;
  std::string_view block;
  double kv_bytes = 2;  ///< of a cached element
  double q_heads = 0, kv_heads = 0, head_dim = 0, window = 0;
  double batch = 0, queries = 0, context = 0;  ///< of each sequence the new tokens, all tokens
};
/// Bytes of the KV caches that a call of attention reads.
double cached_bytes(const AttentionCall&);
/// Whether a decode's caches are so much larger than the L2 that they come from HBM: of four times
/// its capacity at most a quarter is there. Tables hold such points apart, as groups of their own.
bool reads_from_hbm(const AttentionCall&, const GpuSpec&);
/// The name of such a group, of the one of the smaller caches.
std::string from_hbm(std::string_view group);

/// A batched multiplication of `tokens` by the latent's projections of `heads` heads.
struct BmmCall {
  double tokens = 0, heads = 0;
};
struct QuantizeCall {
  double m = 0, k = 0;
};
/// A collective of `gpus` in one NVLink domain; bytes as nccl-tests counts them.
struct CollectiveCall {
  bool engine = false;  ///< the engine's own all-reduce
  std::string_view op;  ///< all_reduce, all_gather, reduce_scatter, alltoall
  double gpus = 0, bytes = 0;
};
/// DeepEP's dispatch (fp8) or combine (bf16) over nodes of eight GPUs.
struct ExchangeCall {
  bool low_latency = false, combine = false;
  double nodes = 1, hidden = 0, tokens_per_rank = 0, top_k = 0, experts = 0, sms = 0;
};

/// What the busiest rank sends for one token of its own, spread evenly over all experts.
struct ExchangeVolume {
  double nvlink = 0, network = 0;  ///< bytes
};
ExchangeVolume volume_of(const ExchangeCall&);
/// The links between the nodes that DeepEP was measured on: ConnectX-7, bytes/s.
inline constexpr double measured_nic = 50e9;

Located locate(const GemmCall&, const GpuSpec&);
Located locate(const ExpertsCall&, const GpuSpec&);
Located locate(const AttentionCall&, const GpuSpec&);
Located locate(const BmmCall&, const GpuSpec&);
Located locate(const QuantizeCall&, const GpuSpec&);
Located locate(const CollectiveCall&, const GpuSpec&);
Located locate(const ExchangeCall&, const GpuSpec&);

/// How many coordinates a family's calls have.
int axes_of(TableFamily);

/// A measured point of a table. Points of one group are of one kind (precision, KV cache, ...), and
/// those of one kernel in it make one map.
struct Sample {
  std::string group, kernel;
  Located place;
  double us = 0;
  double value() const;  ///< log(us / rough)
};

/// The points of one row (DeepEP's hold two), measured with this engine. Throws ConfigError if the
/// row lacks a column or is no kernel's.
std::vector<Sample> samples_of(TableFamily, const TableRow&, const GpuSpec& measured_on,
                               const EngineVersion&);

/// Engine and version in the name of a profile's folder: "vllm-0.19.0".
EngineVersion engine_named(std::string_view folder);
/// "1.3.0rc10" is 1, 3, 0, 10.
std::array<int, 4> numbers_of(std::string_view version);

/// The names of a precision in tables, the most fitting first, of GEMMs and expert layers.
std::vector<std::string_view> table_names(Precision weights, Precision activations);
/// The name in tables of a precision as points files spell it ("bf16", "fp16", "fp4", ...).
std::string_view table_name(std::string_view precision);

/// Tokens of each expert of the rank with the most, in one draw of a power law ("power_law_1.2")
/// over experts, rounded to the number of selections, as the source of the expert tables draws them
/// (ai-dynamo/aiconfigurator, collector/helper.py). It averages over `power_law_draws`.
std::vector<std::int32_t> power_law_rank(std::string_view distribution, double tokens, double top_k,
                                         int experts, int ranks, Rng&);
inline constexpr int power_law_draws = 5;

/// Tokens of each expert of one rank of `ranks` when the source times SGLang's balanced layer,
/// whose experts all stand on that rank (collector/helper.py, build_rank0_local_workload): token t
/// chooses the experts t + j stride, the rank gets the tokens that choose one of its own, and what
/// else these choose goes to expert 0, because the kernel needs some index
/// (collector/sglang/collect_moe.py).
std::vector<std::int32_t> lone_rank(std::int64_t tokens, int top_k, int experts, int ranks);

/// Whether the source times such lone ranks with this engine: SGLang from 0.5.10 on. Before, a
/// rank's balanced rows are an even share.
bool times_lone_ranks(const EngineVersion&);

/// Rows and active experts of the rank that an expert table's row timed: the mean over draws of a
/// power law, a lone rank's (SGLang's balanced rows of more than one rank), or an even share.
struct BusiestRank {
  double rows = 0, active = 0;
};
BusiestRank rank_load(std::string_view distribution, double tokens, double top_k, double experts,
                      double ranks, bool lone_rank);

}  // namespace moesim
