// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sim/experiment/anchor.hpp"

namespace moesim {

/// Places that the lines below read of a report, and of its config: JSON pointers.
std::vector<std::string> trust_pointers();

/// Says of some runs, in a line or two, which share of their time rests on what. These are
/// constants or tables measured on that GPU, beyond them, carried over, or a data sheet alone. Also
/// says how far such predictions were from measured runs that nothing was fitted on
/// (hardware/accuracy.json). Empty if no report has a breakdown. Ends with a newline.
std::string trust_line_over(std::span<const Json* const> reports, std::string_view engine);
/// The line of one run; the engine is the config's.
std::string trust_line(const Json& report, const Json& config);
/// Whose measured runs correct times, by which factors, and how far off runs were that were left
/// out of the fit. Ends with a newline.
std::string anchor_line(const Anchor&, double tpot_factor, double ttft_factor);
/// Scores of choices: how often a prediction found the better of two, in measured runs that were
/// held out. Choices are of two layouts, and of each two of these GPUs and engines. They are rows
/// of "contrasts" in hardware/accuracy.json, with "regret" of layouts. Empty where that file does
/// not say.
Json scores_of_choices(const std::vector<std::string>& gpus,
                       const std::vector<std::string>& engines);
/// The same in a sentence or two. Ends with a newline, or is empty.
std::string choices_text(const Json& scores);
/// The engine that a config names, or "".
std::string engine_of(const Json& config);

}  // namespace moesim
