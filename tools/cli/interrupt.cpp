// SPDX-License-Identifier: Apache-2.0
#include "tools/cli/interrupt.hpp"

#include <atomic>
#include <csignal>

namespace moesim {

namespace {

// The one global: a signal handler can reach nothing else.
std::atomic<bool> noted = false;
static_assert(std::atomic<bool>::is_always_lock_free);

}  // namespace

InterruptGuard::InterruptGuard() {
  for (const int number : {SIGINT, SIGTERM}) {
    std::signal(number, [](int received) {
      noted = true;
      std::signal(received, SIG_DFL);
    });
  }
}

InterruptGuard::~InterruptGuard() {
  std::signal(SIGINT, SIG_DFL);
  std::signal(SIGTERM, SIG_DFL);
}

bool InterruptGuard::interrupted() { return noted; }

}  // namespace moesim
