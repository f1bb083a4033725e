// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "sim/scheduling/scheduler.hpp"

namespace moesim {

std::unique_ptr<Scheduler> make_chunked_prefill(ConfigReader&);
std::span<const Key> chunked_prefill_keys();
std::unique_ptr<Scheduler> make_prefill_first(ConfigReader&);
std::span<const Key> prefill_first_keys();
std::unique_ptr<Scheduler> make_decode_only(ConfigReader&);
std::span<const Key> decode_only_keys();
std::unique_ptr<Scheduler> make_comm_aware(ConfigReader&);
std::span<const Key> comm_aware_keys();

}  // namespace moesim
