// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "sim/experiment/spec.hpp"

namespace moesim {

/// Reads how an engine serves: "kv_cache", "expert_buffers", "speculative", "api_server",
/// "cuda_graph". The scheduler stands. Throws ConfigError.
void read_serving(ConfigReader& experiment, PoolSpec&);
/// Reads what requests are owed: "slo", and "classes" of the workload. Throws ConfigError.
void read_objectives(ConfigReader& experiment, ConfigReader& workload, PoolSpec&);
/// Reads what is measured: "anchor", "measurement". Throws ConfigError.
void read_measurement(ConfigReader& experiment, PoolSpec&);

std::span<const Key> kv_cache_keys();
std::span<const Key> expert_buffers_keys();
std::span<const Key> speculative_keys();
std::span<const Key> api_server_keys();
std::span<const Key> cuda_graph_keys();
std::span<const Key> slo_keys();
std::span<const Key> class_keys();
std::span<const Key> measurement_keys();

}  // namespace moesim
