// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "sim/report/observer.hpp"
#include "tools/cli/output.hpp"

namespace moesim {

/// Writes what happens in a run, a JSON object per line in the order in which it happens:
/// {"at_s", "event", "request" or "instance"}.
class EventLog : public RunObserver {
 public:
  /// Throws ConfigError if the file cannot be written.
  explicit EventLog(const std::filesystem::path& file) : file_(file) {}

  void event(const EventSeen& seen) override {
    std::string line =
        fmt::format(R"({{"at_s": {:.12g}, "event": "{}")", to_seconds(seen.at).count(), seen.what);
    if (seen.request) line += fmt::format(R"(, "request": {})", *seen.request);
    if (seen.instance) line += fmt::format(R"(, "instance": {})", *seen.instance);
    file_.write(line + "}\n");
  }

  /// Only now the file stands under its name.
  void finish() { file_.commit(); }

 private:
  OutputFile file_;
};

}  // namespace moesim
