// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "hardware/kernels/kernel.hpp"

namespace moesim {

extern const Kernel hyper_connections_kernel;

/// Prices manifold-constrained hyper-connections (DeepSeek-V4) of `tokens` tokens on one GPU, at
/// both sites of a layer: before or after its attention and its FFN. The hidden state is several
/// streams. Before, streams are mixed and collapsed into one; after, the output is added to all.
Cost hyper_connections(bool before, double tokens, double hidden, double streams, const GpuSpec&);
/// Parameters of both sites: 2 n + n^2 numbers out of n streams.
double hyper_connection_parameters(double hidden, double streams);

}  // namespace moesim
