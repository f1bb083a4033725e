// SPDX-License-Identifier: Apache-2.0
#include "sim/report/metric_catalogue.hpp"

namespace moesim {

const ReportKey& Metric::key() const {
  const ReportKey* key = find_report_key(pointer);
  check(key != nullptr, "a metric of the catalogue is no key of a report");
  return *key;
}

}  // namespace moesim
