// SPDX-License-Identifier: Apache-2.0
#include "hardware/gpu.hpp"

#include <algorithm>

#include <fmt/format.h>

namespace moesim {

namespace {

constexpr Range share{0.001, 1};
constexpr Range tile{1, 4096};

template <class Q>
Q positive(ConfigReader& reader, std::string_view key) {
  const Q quantity = reader.quantity<Q>(key);
  if (quantity <= Q(0)) reader.child(key).fail("must be more than zero");
  return quantity;
}

/// Every name of `names` must be there: `read(reader, index)` is given its object.
template <std::size_t N, class Read>
void read_table(const ConfigNode& node, const std::array<std::string_view, N>& names, Read read) {
  read_object(node, [&](ConfigReader& table) {
    for (std::size_t i = 0; i < N; ++i)
      read_object(table.child(names[i]), [&](ConfigReader& row) { read(row, i); });
  });
}

std::map<Precision, FlopsPerSecond> read_peaks(const ConfigNode& node) {
  return read_object(node, [](ConfigReader& reader) {
    std::map<Precision, FlopsPerSecond> peaks;
    peaks[Precision::bf16] = positive<FlopsPerSecond>(reader, "bf16");
    // Absent where the GPU does not multiply in this precision. Asking makes the key known.
    if (reader.optional("fp8")) peaks[Precision::fp8] = positive<FlopsPerSecond>(reader, "fp8");
    if (reader.optional("nvfp4"))
      peaks[Precision::nvfp4] = positive<FlopsPerSecond>(reader, "nvfp4");
    return peaks;
  });
}

KernelConstants read_kernel(ConfigReader& reader) {
  return {.launch = reader.quantity<Seconds>("launch"),
          .bandwidth_share = reader.number("bandwidth_share", share),
          .peak_share = reader.number("peak_share", share),
          .tile_m = static_cast<int>(reader.integer("tile_m", tile)),
          .tile_n = static_cast<int>(reader.integer("tile_n", tile)),
          .source = reader.text("source")};
}

CollectiveConstants read_collective(ConfigReader& reader) {
  return {.launch = reader.quantity<Seconds>("launch"),
          .per_gpu = reader.quantity<Seconds>("per_gpu"),
          .bandwidth_share = reader.number("bandwidth_share", share),
          .ramp = reader.quantity<Seconds>("ramp"),
          .source = reader.text("source")};
}

/// Bits that a multiplication must carry for values stored like this.
int bits(Precision precision) {
  switch (precision) {
    case Precision::bf16: return 16;
    case Precision::fp8:
    case Precision::fp8_block: return 8;
    case Precision::mxfp4:
    case Precision::nvfp4:
    case Precision::int4: return 4;
  }
  return 16;
}

}  // namespace

double bytes_per_element(Precision precision) {
  switch (precision) {
    case Precision::bf16: return 2;
    case Precision::fp8: return 1;
    case Precision::fp8_block: return 1 + 4.0 / (128 * 128);
    case Precision::mxfp4: return 0.5 + 1.0 / 32;
    case Precision::nvfp4: return 0.5 + 1.0 / 16;
    case Precision::int4: return 0.5 + 2.0 / 128;
  }
  return 2;
}

FlopsPerSecond GpuSpec::peak(Precision weights, Precision activations) const {
  // The wider operand decides; what the GPU cannot multiply is widened once more.
  const int needed = std::max(bits(weights), bits(activations));
  if (needed <= 4) {
    if (const auto found = dense_peak.find(Precision::nvfp4); found != dense_peak.end())
      return found->second;
  }
  if (needed <= 8) {
    if (const auto found = dense_peak.find(Precision::fp8); found != dense_peak.end())
      return found->second;
  }
  return dense_peak.at(Precision::bf16);
}

const KernelConstants& GpuSpec::kernel(KernelFamily family) const { return kernels.at(family); }

const CollectiveConstants& GpuSpec::collective(Collective kind) const {
  return collectives[static_cast<std::size_t>(kind)];
}

GpuSpec read_gpu(const ConfigNode& node) {
  return read_object(node, [](ConfigReader& reader) {
    GpuSpec gpu;
    gpu.name = reader.text("name");
    gpu.source = reader.text("source");
    gpu.sms = static_cast<int>(reader.integer("sms", {1, 100000}));
    gpu.hbm_capacity = positive<Bytes>(reader, "hbm_capacity");
    gpu.hbm_bandwidth = positive<BytesPerSecond>(reader, "hbm_bandwidth");
    gpu.l2_capacity = positive<Bytes>(reader, "l2_capacity");
    gpu.l2_bandwidth = positive<BytesPerSecond>(reader, "l2_bandwidth");
    gpu.smem_per_sm = positive<Bytes>(reader, "smem_per_sm");
    gpu.smem_bandwidth = positive<BytesPerSecond>(reader, "smem_bandwidth");
    gpu.scale_up_bandwidth = positive<BytesPerSecond>(reader, "scale_up_bandwidth");
    gpu.host_bandwidth = positive<BytesPerSecond>(reader, "host_bandwidth");
    gpu.dense_peak = read_peaks(reader.child("dense_peak"));
    read_table(reader.child("kernels"), kernel_family_names, [&](ConfigReader& row, std::size_t i) {
      gpu.kernels[static_cast<KernelFamily>(i)] = read_kernel(row);
    });
    read_table(
        reader.child("collectives"), collective_names,
        [&](ConfigReader& row, std::size_t i) { gpu.collectives[i] = read_collective(row); });
    return gpu;
  });
}

}  // namespace moesim
