// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "hardware/fabric.hpp"
#include "hardware/kernels/kernel.hpp"
#include "hardware/tables/kernel_tables.hpp"

namespace moesim {

// What the kernels between GPUs have in common.

/// A collective of `gpus` in one NVLink domain; bytes as nccl-tests counts them.
struct CollectiveCall {
  std::string_view op;  ///< all_reduce, all_gather, reduce_scatter, alltoall
  double gpus = 0, bytes = 0;
};

/// Finds the place of such a call in a table, with a launch of so many microseconds.
Located place_of(const CollectiveCall&, double launch_us, const GpuSpec&);

/// A kernel between GPUs: links price it, and it draws what exchanges do.
constexpr Kernel link_kernel(std::string_view name, std::string_view summary, PointWords points,
                             const MeasuredTable* table = nullptr,
                             decltype(Kernel::collective) collective = nullptr) {
  return {.name = name,
          .summary = summary,
          .law = Law::links,
          .table = table,
          .points = points,
          .power = PowerClass::exchanges,
          .collective = collective};
}

/// NCCL's collectives, all in one table.
extern const MeasuredTable nccl_table;
Question ask_nccl(const CollectiveCall&, const GpuSpec&);

/// A measured time in the place of what the constants give, but no less than the links allow. Links
/// differ more between siblings than kernels do: constants fitted on this GPU go before times that
/// are carried over.
void take(CollectiveCost&, const TableTime& measured, Seconds least);

/// The same with the answer of a table, inside one NVLink domain.
void take_measured(CollectiveCost&, const ClusterSpec&, const CollectiveCall&,
                   Question (*ask)(const CollectiveCall&, const GpuSpec&));

}  // namespace moesim
