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

  void event(const EventSeen&) override;

  /// Only now the file stands under its name.
  void finish() { file_.commit(); }

 private:
  OutputFile file_;
};

}  // namespace moesim
