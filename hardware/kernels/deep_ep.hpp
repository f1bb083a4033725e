// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "hardware/kernels/kernel.hpp"

namespace moesim {

/// DeepEP's kernels for small batches, one message per token and expert, out and back; its normal
/// ones both ways. Their price is Fabric::exchange.
extern const Kernel low_latency_all_to_all_kernel, low_latency_combine_kernel;
extern const Kernel normal_all_to_all_kernel;

/// DeepEP's dispatch (fp8) or combine (bf16) over nodes of eight GPUs.
struct ExchangeCall {
  bool low_latency = false, combine = false;
  double nodes = 1, hidden = 0, tokens_per_rank = 0, top_k = 0, experts = 0;
  double sms = 0;  ///< that the kernels may use; 0: low latency
};
Question ask(const ExchangeCall&, const GpuSpec&);

/// Volume that a rank sends for one token of its own, and passes on of others', where tokens choose
/// evenly among the experts. It is the mean over ranks, which the busiest one equals then.
struct ExchangeVolume {
  double nvlink = 0, network = 0;  ///< bytes
};
ExchangeVolume volume_of(const ExchangeCall&);

/// The nodes of the tables, and the links between them: ConnectX-7, bytes/s.
inline constexpr double measured_gpus_per_node = 8, measured_nic = 50e9;

}  // namespace moesim
