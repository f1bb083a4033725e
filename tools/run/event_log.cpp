// SPDX-License-Identifier: Apache-2.0
#include "tools/run/event_log.hpp"

#include <fmt/format.h>

namespace moesim {

void EventLog::event(const EventSeen& seen) {
  std::string line =
      fmt::format(R"({{"at_s": {:.12g}, "event": "{}")", to_seconds(seen.at).count(), seen.what);
  if (seen.request) line += fmt::format(R"(, "request": {})", *seen.request);
  if (seen.instance) line += fmt::format(R"(, "instance": {})", *seen.instance);
  file_.write(line + "}\n");
}

}  // namespace moesim
