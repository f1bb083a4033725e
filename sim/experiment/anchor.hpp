// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>
#include <vector>

#include "hardware/config.hpp"

namespace moesim {

/// Load that a deployment is asked for, as far as corrections look at it.
struct ServingLoad {
  double concurrency = 0, prompt = 0, output = 0;  ///< requests in flight; tokens
};

/// Corrections of predictions by measured runs of a deployment: measured = predicted x factor x
/// (concurrency / center's)^slope x ..., with slopes of 0 for fewer than three runs.
struct AnchorFit {
  double factor = 1;
  ServingLoad center{1, 1, 1};
  ServingLoad slope{};
  int runs = 0;
  double leave_one_out = 0;  ///< median |predicted / measured - 1| of runs left out of the fit
  double at(const ServingLoad&) const;
  /// True if the factor depends on the requests in flight.
  bool by_concurrency() const { return slope.concurrency != 0; }
};

/// The corrections of one deployment: `moesim bench --anchor` writes them, an experiment names
/// them under "anchor".
struct Anchor {
  std::string deployment;
  AnchorFit tpot, ttft;
  std::string model{}, gpu{};          ///< names; empty: of any
  std::vector<std::string> layouts{};  ///< that were measured; empty: not said
  /// True if runs of this layout (layout_text) were measured, or the anchor does not say.
  bool holds_at(const std::string& layout) const;
};
/// Throws ConfigError.
Anchor read_anchor(const ConfigNode&);
std::span<const Key> anchor_keys();
OrderedJson to_json(const Anchor&);

}  // namespace moesim
