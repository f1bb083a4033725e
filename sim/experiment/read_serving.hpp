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

Keys kv_cache_keys, expert_buffers_keys, speculative_keys, api_server_keys, cuda_graph_keys,
    slo_keys, class_keys, measurement_keys;

}  // namespace moesim
