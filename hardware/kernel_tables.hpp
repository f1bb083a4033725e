// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "hardware/gpu.hpp"
#include "hardware/roofline.hpp"
#include "hardware/tables/calls.hpp"

namespace moesim {

/// Which of several kernels that were measured side by side an engine runs, by table ("experts",
/// "gemm", "attention_decode", ...): part of the kernel's name there, e.g. {"experts",
/// "min_latency"}. Without one the fastest for the work at hand. {"engines", "any"} takes kernels
/// of all engines that were measured on a GPU for as many side by side: what they run comes from
/// the same few libraries, and an engine does not always run the one it was measured with.
/// {"fused", "norm rope"} names small operations that the engine computes inside its larger ones.
using KernelChoice = std::map<std::string, std::string, std::less<>>;

/// The GPU with its kernels priced by measured tables instead of by rooflines alone. Each family is
/// looked for in turn in the nearest version of the engine on this GPU, in another engine's on this
/// GPU, in the same two of the GPU's sibling, scaled by the data sheets; a family found in none
/// keeps its roofline. An empty version is the newest. A GPU without profiles and sibling comes
/// back as it was. Tables are read when a family is first asked for, once in a process, and then
/// throw ConfigError if they are malformed.
GpuSpec with_engine(GpuSpec gpu, const EngineVersion& engine, const KernelChoice& = {});

/// The profiles of a GPU, the nearest first: the engine's by distance of versions, then other
/// engines' in the order of the file.
std::vector<Profile> by_nearness(std::vector<Profile> profiles, const EngineVersion& engine);

/// What tables say of one call: how long it takes, and whether that was measured, interpolated or
/// carried over from a sibling.
struct TableTime {
  Seconds time{};
  Evidence evidence = Evidence::interpolated;
};

/// What times of tables are multiplied by: [family, evidence].
struct TableFactors {
  std::array<std::array<double, evidence_names.size()>, table_family_names.size()> of;
  TableFactors() {
    for (auto& family : of) family.fill(1);
  }
  double at(TableFamily family, Evidence evidence) const {
    return of[static_cast<std::size_t>(family)][static_cast<std::size_t>(evidence)];
  }
};

/// Measured times of kernels as functions of the work: what was measured between other points is
/// interpolated in its share of the data sheet's time, see Scattered. Safe to ask from several
/// threads. Every answer is empty where no table has such a kernel.
class KernelTables {
 public:
  KernelTables(const GpuSpec&, const EngineVersion&, KernelChoice);

  std::optional<TableTime> time(const GemmCall&) const;
  std::optional<TableTime> time(const AttentionCall&) const;
  /// `keys`: the projection of queries into the latent, before the core; else the one behind it.
  std::optional<TableTime> time(const BmmCall&, bool keys) const;
  std::optional<TableTime> time(const QuantizeCall&) const;
  std::optional<TableTime> time(const CollectiveCall&) const;
  std::optional<TableTime> time(const ExchangeCall&) const;

  /// Whether the engine computes a small operation ("norm", "rope", "quantise") inside its
  /// neighbours.
  bool fuses(std::string_view operation) const;

  /// The median error of such an answer, |predicted / measured - 1|: as errors.csv beside the GPU's
  /// profiles tells it, of what is carried over the one beside the sibling's.
  double error(TableFamily, Evidence) const;

  /// The expert layer of one shape. Null where no table has its precision.
  std::shared_ptr<const ExpertTables> experts(double hidden, double width, double top_k,
                                              double experts, Precision weights,
                                              Precision activations) const;
  /// The expert layer of a shape whose precision is named as in the tables.
  std::shared_ptr<const ExpertTables> experts(const ExpertsCall& shape) const;

 private:
  struct State;
  friend std::shared_ptr<const KernelTables> scaled(const KernelTables&, const TableFactors&);
  std::optional<TableTime> scaled_by_family(TableFamily, std::optional<TableTime>) const;
  std::shared_ptr<ExpertTables> experts(const ExpertsCall& shape, std::string_view group) const;

  std::shared_ptr<const State> state_;
  TableFactors factors_;
};

/// These tables with their times multiplied, e.g. by what they may be wrong by. What was read is
/// shared.
std::shared_ptr<const KernelTables> scaled(const KernelTables&, const TableFactors&);

/// What was made of the tables for one shape of expert layer; shared by all who ask for it.
struct ExpertCurve;

/// The fused expert layer of one shape as a function of a rank's load, see ExpertsCall. Equal
/// tokens and rows never take less time on more active experts.
class ExpertTables {
 public:
  TableTime time(double tokens, double rows, double active) const;

 private:
  friend class KernelTables;
  TableTime own_time(double tokens, double rows, double active) const;

  std::shared_ptr<const ExpertCurve> curve_;
  TableFactors factors_;
  // Kernels that were measured in this format, beside one that was measured in another.
  std::shared_ptr<const ExpertTables> own_format_;
};

/// The attention kernel of one layer on one GPU. MLA has one latent for all heads: kv_heads and
/// head_dim are not looked at.
struct AttentionShape {
  bool decode = true;  ///< a query or few of each sequence against a long context
  bool mla = false;    ///< decode in the absorbed form, prefill in the expanded one
  double q_heads = 0, kv_heads = 0, head_dim = 0;  ///< of this GPU's slice
  int window = 0;                                  ///< keys that a query sees; 0: all
  Precision kv_cache = Precision::bf16;
};

/// What one call of an attention kernel works on, summed over its sequences.
struct AttentionLoad {
  double sequences = 0;
  double queries = 0;  ///< new tokens
  double context = 0;  ///< tokens in the KV caches, whatever a window hides, new ones included
  Work work{};         ///< what the roofline charges for it
};

/// From the tables where the GPU has them, else the roofline of the work. A batch of sequences of
/// different lengths is taken for one of equally long ones.
Cost attention(const AttentionShape&, const AttentionLoad&, const GpuSpec&);

/// A whole MLA block of one layer on one GPU, projections and quantisation included, where the
/// engine's table times it as one (vLLM, TensorRT-LLM); nothing otherwise. `projections` is the
/// precision of its weights.
std::optional<Cost> mla_block(const AttentionShape&, const AttentionLoad&, Precision projections,
                              const GpuSpec&);

/// Computing the scales of [m, k] activations and writing them in fp8 or narrower.
Cost quantise(double m, double k, Precision, const GpuSpec&);

/// A cost with the time that tables give, but never less than what the data sheet allows, at full
/// bandwidth and peak, for its loads and its arithmetic.
Cost priced(Cost cost, const TableTime& measured, Seconds loads, Seconds arithmetic);

}  // namespace moesim
