// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include <fmt/format.h>

#include "sim/report/report.hpp"
#include "tools/cli/output.hpp"

namespace moesim {

/// Line that says what stopped, for how long, and what it cost. Ends with a newline.
inline std::string outage_text(const OutageStats& stats) {
  const OutageRecord& outage = stats.outage;
  return paragraph(
      "{} stopped at {:.3f} s{}: {} requests moved, {} experts lost, engine stopped for {:.3f} s",
      outage.what, to_seconds(outage.at).count(),
      outage.recovered ? fmt::format(", back at {:.3f} s", to_seconds(*outage.recovered).count())
                       : "",
      outage.requests, outage.experts_lost, (outage.stopped + outage.stopped_again).count());
}

}  // namespace moesim
