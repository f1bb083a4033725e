// SPDX-License-Identifier: Apache-2.0
#include "tools/config/report_keys.hpp"

#include <fmt/format.h>

#include "sim/report/report.hpp"
#include "tools/cli/output.hpp"

namespace moesim {

std::string report_keys_text() {
  std::string text;
  for (const ReportKey& key : report_keys()) {
    const std::string unit = key.unit.empty() ? "" : fmt::format("{}: ", key.unit);
    text += wrapped(fmt::format("{:<52} {}{}", key.pointer, unit, key.meaning), 100, 53) + '\n';
  }
  return text;
}

}  // namespace moesim
