// SPDX-License-Identifier: Apache-2.0
#include "tools/config/report_keys.hpp"

#include <fmt/format.h>

#include "sim/report/cluster_report.hpp"
#include "tools/cli/output.hpp"
#include "tools/config/key_rows.hpp"

namespace moesim {

namespace {

std::string text_of(const std::vector<ReportKey>& keys) {
  std::string text;
  for (const ReportKey& key : folded(keys)) text += report_line(key);
  return text;
}

}  // namespace

std::string report_line(const ReportKey& key) {
  const std::string unit = key.unit.empty() ? "" : fmt::format("{}: ", key.unit);
  return indented(fmt::format("{:<52} {}{}", key.pointer, unit, key.meaning), 53);
}

std::string report_keys_text() {
  return text_of(report_keys()) + "\nwith \"deployments\"\n" + text_of(cluster_report_keys());
}

}  // namespace moesim
