// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string_view>

#include "hardware/config.hpp"
#include "models/quantization.hpp"

namespace moesim {

/// Throws ConfigError, without a place, where no precision has the name.
Precision precision_named(std::string_view name);

/// Returns "fp8", or "nvfp4/fp8" (the experts' weights, then all others) as the object that
/// "precision" is. After one name of four bits the others of a model with experts stay as its files
/// store them. Throws ConfigError, without a place, where a precision has no such name.
Json precision_object(std::string_view text, const MoeModel&,
                      const std::optional<StoredPrecision>&);

/// Returns the gating of a model with experts that nothing else is said of: synthetic, by the
/// preset of its family.
Json gating_of_family(const MoeModel&);

/// Returns an experiment whose short forms are written out: the name of an engine, a precision as
/// on the command line, the name of a gating preset. A model with experts and without a gating
/// gets that of its family. Throws ConfigError.
ConfigNode spelled_out(const ConfigNode& experiment);

}  // namespace moesim
