// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "hardware/tables/measured_kernel.hpp"

namespace moesim {

/// A collective of `gpus` in one NVLink domain; bytes as nccl-tests counts them.
struct CollectiveCall {
  bool engine = false;  ///< the engine's own all-reduce
  std::string_view op;  ///< all_reduce, all_gather, reduce_scatter, alltoall
  double gpus = 0, bytes = 0;
};
const MeasuredKernel& all_reduce_table();   ///< engines' own
const MeasuredKernel& collectives_table();  ///< NCCL's
Question ask(const CollectiveCall&, const GpuSpec&);

}  // namespace moesim
