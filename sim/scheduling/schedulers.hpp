// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "sim/scheduling/scheduler.hpp"

namespace moesim {

std::unique_ptr<Scheduler> make_chunked_prefill(ConfigReader&);
std::unique_ptr<Scheduler> make_prefill_first(ConfigReader&);
std::unique_ptr<Scheduler> make_decode_only(ConfigReader&);
std::unique_ptr<Scheduler> make_comm_aware(ConfigReader&);

}  // namespace moesim
