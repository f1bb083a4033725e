// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string>

#include "hardware/config.hpp"

namespace moesim {

/// Facts that `trace info FILE` prints of a file of requests or sessions: lengths, turns, growth,
/// gaps. Also how much of the prompts a cache without a clock would hit, by its capacity. One of
/// the hash_ids of a file covers `id_block` tokens. Throws ConfigError.
OrderedJson request_info(const std::filesystem::path& file, std::int32_t id_block);
/// The same as tables.
std::string request_info_text(const OrderedJson& info);

}  // namespace moesim
