// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "hardware/config.hpp"
#include "hardware/engine_version.hpp"
#include "hardware/power.hpp"
#include "hardware/units.hpp"

namespace moesim {

/// How numbers are stored. fp8 and int8 have one scale per tensor or channel, fp8_block one per
/// 128x128 block. The four-bit formats count their block scales: int4 has one for 128 values,
/// int4_g32 for 32 (Kimi-K2.5), int4_g64 for 64.
enum class Precision { bf16, fp8, fp8_block, mxfp4, nvfp4, int4, int4_g32, int8, int4_g64 };
inline constexpr std::array<std::string_view, 9> precision_names{
    "bf16", "fp8", "fp8_block", "mxfp4", "nvfp4", "int4", "int4_g32", "int8", "int4_g64"};
/// Stored bytes of one element, scales included: 2, 1, 1 + 4/16384, 0.53125, 0.5625, 0.515625,
/// 0.5625, 1, 0.53125.
double bytes_per_element(Precision);

/// A row of hardware/kernels/kernel.hpp.
struct Kernel;

/// Smallest and largest, both included.
struct Interval {
  double min = 0, max = 0;
  bool holds(double x) const { return min <= x && x <= max; }
};

/// Evidence that a predicted time rests on. By measured tables: this very point, points of this GPU
/// around it, or points of a sibling GPU carried over. By a roofline: constants fitted on such
/// work, or on other work of this GPU (smaller, other precisions), or constants never measured on
/// this GPU.
enum class Evidence {
  calibrated,
  extrapolated,
  unmeasured,
  measured,
  interpolated,
  carried_over,
  charged
};
inline constexpr std::array<std::string_view, 7> evidence_names{
    "calibrated",   "extrapolated", "unmeasured", "measured",
    "interpolated", "carried_over", "charged"};

/// The measurements that constants were fitted on. A prediction for more bytes or flops than any of
/// them is an extrapolation.
struct Calibration {
  int points = 0;
  double median_error = 0;  ///< |predicted / measured - 1| over the points
  Interval bytes;           ///< HBM of a kernel, or what the busiest rank of a collective moves
  Interval flops;           ///< 0 to 0 for collectives
  std::vector<Precision> precisions;  ///< of the weights; none for collectives
};

/// How far the measurements behind some constants reach.
struct Reach {
  double bytes = -1, flops = -1;  ///< of the largest; -1: none
  Evidence beyond = Evidence::unmeasured;
  Evidence evidence(double work_bytes, double work_flops) const {
    return work_bytes <= bytes && work_flops <= flops ? Evidence::calibrated : beyond;
  }
};

/// Shares of the data-sheet peak by the precision of the weights. What is not listed multiplies at
/// the share of the nearest that is: fp8 and fp8_block for each other, else bf16. A GPU file's
/// shares stand beside the kernel's default ones.
using PeakShares = std::map<Precision, double>;

/// Constants of a kernel that one precision has of its own.
struct PrecisionConstants {
  Seconds launch;
  double bandwidth_share;
  double overlap;
  double copies = 0, held_copies = 0;
};

/// The few constants of a kernel on one GPU, where its law is a roofline:
///   time = launch + max((x^overlap + y^overlap)^(1/overlap), L2, shared memory) + z
///   x = bytes/(bandwidth_share*HBM), y = flops/(peak_share*peak), z = copied bytes/HBM
/// Fused expert layers copy what they compute on, see GroupedGemm.
struct KernelConstants {
  Seconds launch;          ///< t0: launch and drain of the kernels of this operation
  double bandwidth_share;  ///< f, of the data-sheet HBM bandwidth, in (0, 1]
  PeakShares peak_share;   ///< g, of the dense data-sheet peak, each in (0, 1]
  /// How well loads hide behind arithmetic: 1 not at all, 2 about half, 16 and more completely.
  double overlap = 16;
  int tile_m = 1;          ///< rows to which a GEMM pads its tokens, see GroupedRows
  int tile_n = 1;          ///< columns of one output tile
  double copies = 0;       ///< of a rank's rows, in passes over them
  double held_copies = 0;  ///< of all rows that it holds, whichever GPU's experts they chose
  std::map<Precision, PrecisionConstants> by_precision{};  ///< where kernels differ
  std::string source;                                      ///< where the numbers come from
  /// Nothing where the numbers are not a fit: a data sheet's, or of other GPUs.
  std::optional<Calibration> calibration{};

  double peak_share_of(Precision weights) const;
  /// Constants of the precision, of its nearest (as peak_share has it), or else of the kernel.
  PrecisionConstants of(Precision weights) const;
  Reach reach(Precision weights) const;
};

/// Constants of a kernel between GPUs, over NVLink: alpha = launch + per_gpu (n - 1). A
/// transfer that takes x at the full rate takes x + sqrt(ramp x): half the rate is reached at x
/// = ramp.
struct CollectiveConstants {
  Seconds launch;          ///< floor with one peer removed: what n = 1 would cost
  Seconds per_gpu;         ///< what each further GPU of the domain adds
  double bandwidth_share;  ///< of the data-sheet NVLink bandwidth, large messages, in (0, 1]
  Seconds ramp;            ///< filling the pipeline of chunks
  std::string source;
  std::optional<Calibration> calibration{};

  /// Evidence of a price when the busiest rank moves this many bytes.
  Evidence evidence_for(double bytes) const;
};

/// Price of renting a GPU.
struct Price {
  double dollars_per_hour = 0;
  std::string source;
};

/// Constants for a GPU on which a kernel was never measured, to go with its data sheet. They are
/// what the kernel reaches on the GPUs where it was (hardware/families.json). Their source says so.
/// The kernel has constants of its own, of this law.
KernelConstants default_constants(const Kernel&);
CollectiveConstants default_link_constants(const Kernel&);

/// Place of tables of kernel times that were measured with one version of an engine or library.
struct Profile {
  EngineVersion engine;
  std::filesystem::path folder;
};

class KernelTables;

/// A GPU as its data sheet and measurements describe it. Facts have no defaults. Ways in which
/// the source of the expert tables restores what rounding took from its uneven draws. One
/// selection goes to the least loaded expert of each rank in turn. Or it goes to the least loaded
/// experts in the order of their ids, so that rank 0 gets many. Or so where every expert was
/// rounded to none.
enum class DrawFill { by_rank, by_id, by_id_of_none };

/// Software that engines are built for, by the names of vLLM's platforms.
inline constexpr std::array<std::string_view, 5> platform_names{"cuda", "rocm", "tpu", "npu",
                                                                "neuron"};

struct GpuSpec {
  std::string name;
  std::string source;
  std::string_view platform = "cuda";  ///< one of platform_names
  int sms = 0;
  Bytes hbm_capacity;
  BytesPerSecond hbm_bandwidth;
  Bytes l2_capacity;
  BytesPerSecond l2_bandwidth;
  Bytes smem_per_sm;
  BytesPerSecond smem_bandwidth;      ///< all SMs together
  BytesPerSecond scale_up_bandwidth;  ///< NVLink, one direction, one GPU
  BytesPerSecond host_bandwidth;      ///< PCIe or C2C, one direction
  std::map<Precision, FlopsPerSecond>
      dense_peak;  ///< by the precision of the multiplication: bf16, fp8, nvfp4
  std::map<const Kernel*, KernelConstants> kernels;          ///< of each with its own
  std::map<const Kernel*, CollectiveConstants> collectives;  ///< the same
  std::optional<Price> price{};
  std::shared_ptr<const GpuPower> power{};   ///< none: what it draws is not known
  std::vector<Profile> profiles{};           ///< measured on this GPU, in the order of the file
  std::shared_ptr<const GpuSpec> sibling{};  ///< whose utilisation this GPU takes where it has none
  double sibling_time = 1;                   ///< factor on times that are carried over from it
  std::map<std::string, DrawFill, std::less<>> draw_fill{};  ///< by engine, where not as usual
  /// Tables that price kernels before the rooflines do: unset unless with_engine() gave them.
  std::shared_ptr<const KernelTables> tables{};

  /// Peak at which weights and activations of these precisions multiply. Narrow weights without a
  /// native multiplication (int4, mxfp4 before Blackwell) are widened to the activations'
  /// precision.
  FlopsPerSecond peak(Precision weights, Precision activations) const;
  /// The constants that price a kernel, by its law. Throws ConfigError where there are none.
  const KernelConstants& kernel(const Kernel&) const;
  const CollectiveConstants& collective(const Kernel&) const;
};

/// Constants that the file leaves out are those of the GPU that it names as the like of it, else
/// the kernel's default. Throws ConfigError if a fact is missing or
/// impossible.
GpuSpec read_gpu(const ConfigNode&);
std::span<const Key> gpu_keys();

}  // namespace moesim
