// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace moesim {

/// 128 + SIGINT, as shells have it: what a verb returns that was interrupted.
inline constexpr int exit_interrupted = 130;

/// While it lives, the first Ctrl-C, or TERM as a scheduler sends it, is only noted and answered on
/// stderr. So the runs in flight can finish; the second one is handled as before: it ends the
/// program, or is Python's.
class InterruptGuard {
 public:
  /// `answer` is said at once, in a line: what is kept. It must outlive the guard.
  explicit InterruptGuard(const char* answer);
  ~InterruptGuard();
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;

  static bool interrupted();
};

}  // namespace moesim
