// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "hardware/config.hpp"

namespace moesim {

/// Where a report has the shares of the time by what its prediction rests on: what
/// trust_line_over() reads.
inline constexpr std::array<std::string_view, 5> trust_pointers{
    "/breakdown/extrapolated_share", "/breakdown/unmeasured_share", "/breakdown/measured_share",
    "/breakdown/interpolated_share", "/breakdown/carried_over_share"};

/// Of some runs, in a line or two: which share of their time rests on constants or tables measured
/// on that GPU, beyond them, carried over, or on a data sheet alone; and how far such predictions
/// were from measured runs that nothing was fitted on (hardware/accuracy.json). Empty if no report
/// has a breakdown. Ends with a newline.
std::string trust_line_over(std::span<const Json* const> reports, std::string_view engine);
/// Of one run; the engine is the config's.
std::string trust_line(const Json& report, const Json& config);
/// The engine that a config names, or "".
std::string engine_of(const Json& config);

}  // namespace moesim
