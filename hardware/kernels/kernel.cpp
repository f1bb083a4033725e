// SPDX-License-Identifier: Apache-2.0
#include "hardware/kernels/kernel.hpp"

#include <algorithm>

#include "hardware/fabric.hpp"
#include "hardware/kernels/attention.hpp"
#include "hardware/kernels/compressed_attention.hpp"
#include "hardware/kernels/deep_ep.hpp"
#include "hardware/kernels/experts.hpp"
#include "hardware/kernels/gemm.hpp"
#include "hardware/kernels/hybrid_ep.hpp"
#include "hardware/kernels/hyper_connections.hpp"
#include "hardware/kernels/linear_attention.hpp"
#include "hardware/kernels/memory.hpp"
#include "hardware/kernels/one_sided.hpp"
#include "hardware/kernels/quantise.hpp"
#include "hardware/kernels/sparse_attention.hpp"

namespace moesim {

// A row that no other file names is declared here, above the table.

std::span<const Kernel* const> kernels() {
  static constexpr const Kernel* rows[] = {&gemm_kernel,
                                           &grouped_gemm_kernel,
                                           &masked_grouped_gemm_kernel,
                                           &mega_moe_kernel,
                                           &attention_decode_kernel,
                                           &attention_prefill_kernel,
                                           &mla_decode_kernel,
                                           &mla_prefill_kernel,
                                           &mla_decode_module_kernel,
                                           &mla_prefill_module_kernel,
                                           &mla_bmm_kernel,
                                           &dsa_decode_kernel,
                                           &dsa_prefill_kernel,
                                           &msa_decode_kernel,
                                           &msa_prefill_kernel,
                                           &csa_decode_kernel,
                                           &csa_prefill_kernel,
                                           &hca_decode_kernel,
                                           &hca_prefill_kernel,
                                           &hyper_connections_kernel,
                                           &gdn_kernel,
                                           &kda_kernel,
                                           &quantise_kernel,
                                           &memory_kernel,
                                           &one_shot_all_reduce_kernel,
                                           &all_reduce_kernel,
                                           &all_gather_kernel,
                                           &reduce_scatter_kernel,
                                           &all_to_all_kernel,
                                           &one_sided_all_to_all_kernel,
                                           &one_sided_combine_kernel,
                                           &hybrid_all_to_all_kernel,
                                           &hybrid_combine_kernel,
                                           &low_latency_all_to_all_kernel,
                                           &normal_all_to_all_kernel,
                                           &low_latency_combine_kernel};
  return rows;
}

std::span<const MeasuredTable* const> measured_tables() {
  static const std::vector<const MeasuredTable*> all = [] {
    std::vector<const MeasuredTable*> tables;
    for (const Kernel* kernel : kernels())
      if (kernel->table != nullptr && std::ranges::find(tables, kernel->table) == tables.end())
        tables.push_back(kernel->table);
    return tables;
  }();
  return all;
}

const Kernel* kernel_timed_by(std::string_view category, std::string_view operation) {
  const Kernel* other = nullptr;
  for (const Kernel* kernel : kernels()) {
    const auto& [of, word] = kernel->points;
    if (of != category || of.empty()) continue;
    if (word.empty()) other = kernel;
    if (!word.empty() && operation.find(word) != operation.npos) return kernel;
  }
  return other;
}

}  // namespace moesim
