// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>

#include "traces/routing_trace.hpp"

namespace moesim {

/// Throws ConfigError if a directory that is to be written is there already, and not empty.
void check_new_directory(const std::filesystem::path&);

/// Writes a trace into a new directory. A program that is stopped meanwhile leaves no part of it.
void write_new_trace(const RoutingTrace&, const std::filesystem::path& directory);

}  // namespace moesim
