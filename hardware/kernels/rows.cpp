// SPDX-License-Identifier: Apache-2.0
#include "hardware/kernels/rows.hpp"

#include <algorithm>

#include "hardware/kernels/attention.hpp"
#include "hardware/kernels/collectives.hpp"
#include "hardware/kernels/deep_ep.hpp"
#include "hardware/kernels/experts.hpp"
#include "hardware/kernels/gemm.hpp"
#include "hardware/kernels/quantise.hpp"

namespace moesim {

std::span<const MeasuredKernel* const> measured_kernels() {
  static const MeasuredKernel* const rows[] = {&gemm_table(),
                                               &experts_table(),
                                               &attention_decode_table(),
                                               &attention_prefill_table(),
                                               &mla_decode_table(),
                                               &mla_prefill_table(),
                                               &mla_decode_module_table(),
                                               &mla_prefill_module_table(),
                                               &mla_bmm_table(),
                                               &quantise_table(),
                                               &all_reduce_table(),
                                               &collectives_table(),
                                               &low_latency_table(),
                                               &normal_table()};
  return rows;
}

const MeasuredKernel* measured_kernel(std::string_view name) {
  const auto rows = measured_kernels();
  const auto found = std::ranges::find(rows, name, &MeasuredKernel::name);
  return found == rows.end() ? nullptr : *found;
}

}  // namespace moesim
