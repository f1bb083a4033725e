// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "sim/report/sections/requests.hpp"

namespace moesim {

/// Power and energy of the site: GPUs, what stands beside them, and the building.
struct SiteEnergyStats {
  double watts_per_gpu = 0, joules_per_output_token = 0, joules_per_token = 0;
  double output_tokens_per_s_per_mw = 0;
  std::optional<double> electricity_per_million_output_tokens;  ///< where it has a price
  std::optional<double> cost_with_electricity;                  ///< where GPUs have one as well
};

/// Energy of all GPUs while measured.
struct EnergyStats {
  double joules = 0;
  std::optional<double> joules_per_output_token, joules_per_token;  ///< none without tokens
  double watts_per_gpu = 0, share_of_limit = 0;
  double output_tokens_per_s_per_mw = 0, tokens_per_s_per_mw = 0;
  Named<double> shares;
  std::optional<SiteEnergyStats> site;
  std::string source;
};

/// Energy over all pools while measured; nothing where the power of some GPUs is not known.
std::optional<EnergyStats> energy_of(const Experiment&, std::span<const Totals> pools,
                                     const Metrics&);

Fields<EnergyStats> rows_of(const EnergyStats*);

}  // namespace moesim
